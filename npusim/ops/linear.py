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
from npusim.program.kernel import Kernel
from npusim.results import Result
from npusim.workloads import LinearLayer


def linear_layer(
    layer: LinearLayer, dtype: DType, results: tuple[str, ...], options: Options
) -> Result:
    """Time y = x @ w^T, dx = dy @ w and dw = dy^T @ x of ``layer``.

    ``results`` are those wanted, of "output", "input" and "weight".

    Operands are row-major: x (rows, Cin), w (Cout, Cin), dy (rows, Cout), with the rows of all
    ``layer.n`` images. Results have the type of the operands. A bias is left out. Raises
    ``ArgumentError`` for types of other than 2 bytes, which no device transposes between L1 and
    L0, and where none of the three is wanted.
    """
    call = Call("linear_layer", options, timing_only=True)
    if dtype.bytes != 2:
        raise ArgumentError(
            f"layer {layer.name} is linear, and linear layers are simulated in fp16 or bf16 only, "
            f"not {dtype}; choose one of these, or leave the layer out"
        )
    call.require_dtype(dtype)
    rows, cin, cout = layer.n * layer.rows, layer.cin, layer.cout
    sizes = {"grad_output": (rows, cout), "weight": (cout, cin), "input": (rows, cin)}
    made: dict[str, Tensor] = {}

    def operand(name: str) -> Tensor:
        if name not in made:
            made[name] = call.input(name, Spec(sizes[name], dtype), dtype)
        return made[name]

    if "output" in results:
        y = call.output("output", (rows, cout), dtype)
        x, w = operand("input"), operand("weight")
        tiling = _tiling(call, (rows, cin, cout))
        _launch(call, LinearForward(tiling, x, w, y, ("ND", "ND_nk")))
    if "input" in results:
        dy, w = operand("grad_output"), operand("weight")
        dx = call.output("grad_input", (rows, cin), dtype)
        _launch(call, LinearBackpropInput(_tiling(call, (rows, cout, cin)), dy, w, dx))
    if "weight" in results:
        dy, x = operand("grad_output"), operand("input")
        dw = call.output("grad_weight", (cout, cin), dtype)
        tiling = _tiling(call, (cout, rows, cin))
        _weight(call, LinearBackpropWeight(tiling, dy, x, dw, layouts=("ND_km", "ND")))
    if not call.runs:
        raise ArgumentError(f"layer {layer.name} is linear: only input and weight gradients run")
    problem = f"a linear layer, {rows} rows, {cin} -> {cout} features; {dtype}"
    return call.result({}, problem, dtype)


def _launch(call: Call, kernel: Matmul) -> None:
    """Launch a product, with the best tiling there is unless one was given for matmul."""
    given = own_tiling(call.options.tiling, Matmul.name, Tiling)
    call.launch(call.choose(kernel) if given is None else kernel)


def _weight(call: Call, kernel: LinearBackpropWeight) -> None:
    """Launch the gradient of a weight, which of many rows is the sum of parts of them."""
    if own_tiling(call.options.tiling, Matmul.name, Tiling):
        call.launch(kernel)
        return
    sums = replace(kernel.c, name=f"{kernel.c.name}_fp32", dtype=FP32)
    best = call.choose(replace(kernel, c=sums), _rounded)
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


def _tiling(call: Call, shape: tuple[int, int, int]) -> Tiling:
    """The tiling of an (m, k) by (k, n) product: the one given for matmul, or the kernel's own."""
    given = own_tiling(call.options.tiling, Matmul.name, Tiling)
    return given or auto_tiling(*shape, call.device, call.cube_cores)
