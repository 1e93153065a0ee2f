"""A linear layer and its gradients, as networks have them between and after their convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from npusim.base.dtypes import BF16, FP32, DType
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.call.tilings.words import own_tiling
from npusim.kernels.layout.cast import cast
from npusim.kernels.matmul.linear import LinearBackpropWeight
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.vector.bias_add import BiasAdd
from npusim.kernels.vendor.imported import Imported
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.ops.bias_gradient import launch_bias
from npusim.ops.cube_math import cube_math
from npusim.ops.layer_products import layer_product
from npusim.results import Result

if TYPE_CHECKING:
    from npusim.workloads import LinearLayer


def linear_layer(
    layer: LinearLayer,
    dtype: DType,
    results: tuple[str, ...],
    options: Options,
    cube_math_type: int | str = 0,
) -> Result:
    """Time y = x @ w^T, dx = dy @ w and dw = dy^T @ x of ``layer``.

    ``results`` are those wanted, of "output", "input", "weight" and "bias": the sum of dy over its
    rows. The output of a layer with a bias has it added, as ``launch_product`` does.

    Operands are row-major: x (rows, Cin), w (Cout, Cin), dy (rows, Cout), with the rows of all
    ``layer.n`` images. Where a layer has ``products``, each has x, dy and a right matrix of its
    own, which lies (Cin, Cout); with exchanged axes where the layer says so, and the gradient of
    what lies so too. Results and bias have the type of the operands. Raises ``ArgumentError`` where
    the cube has no such arithmetic, and where no result is wanted.
    """
    call = Call("linear_layer", options, timing_only=True)
    math = cube_math(dtype, cube_math_type, call.device)
    operands: dict[tuple[str, DType], Tensor] = {}

    def operand(name: str, shape: tuple[int, ...], kind: DType = dtype) -> Tensor:
        if (name, kind) not in operands:
            plain = operands.get((name, dtype)) or call.input(name, Spec(shape, dtype), dtype)
            operands[name, dtype] = plain
            operands[name, kind] = converted(call, plain, kind)
        return operands[name, kind]

    for result in ("output", "input", "weight"):
        if result not in results:
            continue
        product = layer_product(layer, result)
        a, b = (operand(_READ[name], product.shapes[name], math.dtype) for name in product.operands)
        c = call.output(_MADE[result], product.shapes[product.result], dtype)
        kernel = product.kernel(START, a, b, c, product.layouts, groups=layer.stack, hf32=math.hf32)
        if isinstance(kernel, LinearBackpropWeight):
            launch_weight_product(call, kernel)
            continue
        bias = operand("bias", (layer.cout,)) if layer.bias and result == "output" else None
        launch_product(call, kernel, bias, rounded=True)
    if "bias" in results:
        before = len(call.runs)
        dy = operand(_READ["y"], (layer.stack * layer.all_rows, layer.cout))
        launch_bias(call, dy, call.output("grad_bias", (layer.cout,), dtype), "grad_bias_parts")
        call.runs[before:] = [replace(run, computes="bias") for run in call.runs[before:]]
    if not call.runs:
        raise ArgumentError(f"layer {layer.name}: none of its results is among {results}")
    rows = f"{layer.all_rows} rows"
    what = (
        f"{layer.stack} products, each of {rows}" if layer.products else f"a linear layer, {rows}"
    )
    problem = f"{what}, {layer.cin} -> {layer.cout} features; {dtype}"
    return call.result({}, problem, dtype, math.name)


#: Tensors of a call by the symbols of a product: what is read, and what is computed.
_READ = {"x": "input", "w": "weight", "y": "grad_output"}
_MADE = {"output": "output", "input": "grad_input", "weight": "grad_weight"}


#: What a kernel is made with before its own tiling is known.
START = Tiling(base_m=16, base_n=16, base_k=32)


def converted(call: Call, tensor: Tensor, dtype: DType) -> Tensor:
    """An operand in the type that the cube multiplies."""
    if tensor.dtype is dtype:
        return tensor
    target = call.workspace(f"{tensor.name}_{dtype}", tensor.shape, dtype)
    call.launch_spread(cast(tensor, target, saturate=call.device.saturates))
    return target


def launch_product(
    call: Call,
    kernel: Matmul,
    bias: Tensor | None = None,
    *,
    tuned: bool = False,
    rounded: bool = False,
    cleared: bool = False,
    ruled: bool = False,
) -> None:
    """Launch a product, with the best tiling there is unless one was given for matmul.

    ``bias`` (N,) is added in fp32 (int32 to integers) before the result is rounded. Where the cube
    has a table for it (BT), sums begin from there, after a cast if it is bf16. Elsewhere the
    product leaves its sums in fp32, to which ``bias_add`` adds a bias in fp32; a cast rounds them.
    With ``rounded`` it is there added to the rounded result in its type, as of convolutions.
    With ``cleared`` the result is set to zero before, also by tilings that do not add to it. With
    ``ruled`` the call may ask for the tilings of the vendor's library, of which none is public for
    products: they are chosen then.
    """
    c = kernel.c
    table = call.device.has_path("L1", "BT")
    kind = c.dtype if rounded else kernel.sums
    if bias is not None and table:
        widened = converted(call, bias, kernel.sums) if bias.dtype is BF16 else bias
        kernel = replace(kernel, bias=widened)
    elif bias is not None:
        bias = converted(call, bias, kind)
        if c.dtype is not kind:
            kernel = replace(kernel, c=call.workspace(f"{c.name}_sums", c.shape, kind))
    tiling, notes = _stated_tiling(call, kernel, tuned=tuned, ruled=ruled)
    call.notes += notes
    kernel = replace(kernel, tiling=tiling or START)
    if tiling is None:
        kernel = call.tuned(call.choose(kernel))
    for clearing in kernel.before:
        call.launch(clearing)
    if cleared and not kernel.before:
        call.launch(MemSet(kernel.c))
    call.launch(kernel)
    if bias is not None and not table:
        call.launch_spread(BiasAdd(kernel.c, bias, saturate=call.device.saturates))
    if kernel.c is not c:
        call.launch_spread(cast(kernel.c, c, saturate=call.device.saturates))


def _stated_tiling(
    call: Call, kernel: Matmul, *, tuned: bool = False, ruled: bool = False
) -> tuple[Tiling | None, list[str]]:
    """The tiling that a call states for a product, None where it is chosen, and notes on it."""
    option = call.options.tiling
    if ruled and option == "library":
        return None, []
    asked = option.get(Matmul.name) if isinstance(option, Mapping) else option
    if isinstance(asked, Imported):
        return asked.tiling(kernel.shape, call.device, call.cube_cores)
    return own_tiling(option, Matmul.name, Tiling, tuned=tuned), []


def launch_weight_product(
    call: Call, kernel: LinearBackpropWeight, *, tuned: bool = False, ruled: bool = False
) -> None:
    """Launch the gradient of a weight, which of many rows is the sum of parts of them.

    ``tuned`` and ``ruled`` are as in ``launch_product``.
    """
    tiling, _ = _stated_tiling(call, kernel, tuned=tuned, ruled=ruled)
    if tiling or kernel.groups > 1 or kernel.c.dtype is FP32 or kernel.whole_k:
        launch_product(call, kernel, tuned=tuned, ruled=ruled)
        return
    sums = replace(kernel.c, name=f"{kernel.c.name}_fp32", dtype=FP32)
    best = call.choose(replace(kernel, c=sums, tiling=START, rounds=True), _rounded)
    best = call.tuned(best)
    if best.atomic:
        call.workspace(sums.name, sums.shape, FP32)
    for launched in _rounded(best):
        call.launch_spread(launched)


def _rounded(kernel: LinearBackpropWeight) -> Sequence[Kernel]:
    """The kernels of a gradient in the type of the operands: fp32 sums of parts, and rounding."""
    result = replace(kernel.c, name=kernel.c.name.removesuffix("_fp32"), dtype=kernel.dtype)
    if not kernel.atomic:
        return (replace(kernel, c=result, rounds=False),)
    return (*kernel.before, kernel, cast(kernel.c, result))
