"""A linear layer and its gradients, as networks have them between and after their convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.call.tiling import own_tiling
from npusim.dtypes import FP32, DType
from npusim.errors import ArgumentError
from npusim.isa.operands import Tensor
from npusim.kernels.cast import Cast
from npusim.kernels.linear import LinearBackpropInput, LinearBackpropWeight, LinearForward
from npusim.kernels.matmul import Matmul, Tiling
from npusim.kernels.tilings.matmul import auto_tiling
from npusim.ops.cube_math import CubeMath, cube_math
from npusim.program.kernel import Kernel
from npusim.results import Result
from npusim.workloads import LinearLayer


def linear_layer(
    layer: LinearLayer,
    dtype: DType,
    results: tuple[str, ...],
    options: Options,
    cube_math_type: int | str = 0,
) -> Result:
    """Time y = x @ w^T, dx = dy @ w and dw = dy^T @ x of ``layer``.

    ``results`` are those wanted, of "output", "input" and "weight".

    Operands are row-major: x (rows, Cin), w (Cout, Cin), dy (rows, Cout), with the rows of all
    ``layer.n`` images. Where a layer has ``products``, each has x, dy and a right matrix of its
    own, which lies (Cin, Cout). Results have the type of the operands; a bias is left out. Raises
    ``ArgumentError`` where the cube has no such arithmetic, and where none of the three is wanted.
    """
    call = Call("linear_layer", options, timing_only=True)
    math = cube_math(dtype, cube_math_type, call.device)
    groups, own = max(1, layer.products * layer.n), layer.products > 0
    rows, cin, cout = layer.rows * (1 if own else layer.n), layer.cin, layer.cout
    right = (groups * cin, cout) if own else (cout, cin)
    sizes = {"grad_output": (groups * rows, cout), "weight": right, "input": (groups * rows, cin)}
    made: dict[str, Tensor] = {}

    def operand(name: str) -> Tensor:
        if name not in made:
            made[name] = _converted(call, call.input(name, Spec(sizes[name], dtype), dtype), math)
        return made[name]

    if "output" in results:
        y = call.output("output", sizes["grad_output"], dtype)
        x, w = operand("input"), operand("weight")
        layouts = ("ND", "ND" if own else "ND_nk")
        _launch(call, LinearForward(_START, x, w, y, layouts, groups=groups, hf32=math.hf32))
    if "input" in results:
        dy, w = operand("grad_output"), operand("weight")
        dx = call.output("grad_input", sizes["input"], dtype)
        layouts = ("ND", "ND_nk" if own else "ND")
        _launch(
            call, LinearBackpropInput(_START, dy, w, dx, layouts, groups=groups, hf32=math.hf32)
        )
    if "weight" in results:
        dy, x = operand("grad_output"), operand("input")
        dw = call.output("grad_weight", right, dtype)
        left, second = (x, dy) if own else (dy, x)
        layouts = ("ND_km", "ND")
        _weight(
            call,
            LinearBackpropWeight(_START, left, second, dw, layouts, groups=groups, hf32=math.hf32),
        )
    if not call.runs:
        raise ArgumentError(f"layer {layer.name} is linear: only input and weight gradients run")
    what = f"{groups} products, each of {rows} rows" if own else f"a linear layer, {rows} rows"
    problem = f"{what}, {cin} -> {cout} features; {dtype}"
    return call.result({}, problem, dtype, math.name)


#: What a kernel is made with before its own tiling is known.
_START = Tiling(base_m=16, base_n=16, base_k=16)


def _converted(call: Call, tensor: Tensor, math: CubeMath) -> Tensor:
    """The operand in the type that the cube multiplies."""
    if tensor.dtype is math.dtype:
        return tensor
    target = call.workspace(f"{tensor.name}_{math.dtype}", tensor.shape, math.dtype)
    call.launch_spread(Cast(tensor, target, saturate=call.device.saturates))
    return target


def _launch(call: Call, kernel: Matmul) -> None:
    """Launch a product, with the best tiling there is unless one was given for matmul."""
    given = own_tiling(call.options.tiling, Matmul.name, Tiling)
    tiled = replace(kernel, tiling=given or _auto(call, kernel))
    chosen = call.choose(tiled) if given is None else tiled
    for needed in (*chosen.before, chosen):
        call.launch(needed)


def _weight(call: Call, kernel: LinearBackpropWeight) -> None:
    """Launch the gradient of a weight, which of many rows is the sum of parts of them."""
    given = own_tiling(call.options.tiling, Matmul.name, Tiling)
    if given or kernel.groups > 1 or kernel.c.dtype is FP32:
        _launch(call, kernel)
        return
    sums = replace(kernel.c, name=f"{kernel.c.name}_fp32", dtype=FP32)
    best = call.choose(replace(kernel, c=sums, tiling=_auto(call, kernel)), _rounded)
    if best.atomic:
        call.workspace(sums.name, sums.shape, FP32)
    for one in _rounded(best):
        call.launch_spread(one)


def _rounded(kernel: LinearBackpropWeight) -> Sequence[Kernel]:
    """What makes the gradient in the type of the operands: parts are added in fp32, and rounded."""
    result = replace(kernel.c, name=kernel.c.name.removesuffix("_fp32"), dtype=kernel.dtype)
    if not kernel.atomic:
        return (replace(kernel, c=result),)
    return (*kernel.before, kernel, Cast(kernel.c, result))


def _auto(call: Call, kernel: Matmul) -> Tiling:
    """The tiling with the least estimate, with which a choice begins."""
    return auto_tiling(kernel.shape, call.device, call.cube_cores)
