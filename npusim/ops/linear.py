"""The gradients of a linear layer, as networks have them between and after their convolutions."""

from __future__ import annotations

from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.call.tiling import own_tiling
from npusim.dtypes import DType
from npusim.errors import ArgumentError
from npusim.kernels.linear import LinearBackpropInput, LinearBackpropWeight
from npusim.kernels.matmul import Matmul, Tiling
from npusim.kernels.tilings.matmul import auto_tiling
from npusim.results import Result
from npusim.workloads import LinearLayer


def linear_backward(
    layer: LinearLayer, dtype: DType, gradients: tuple[str, ...], options: Options
) -> Result:
    """Time dx = dy @ w and dw = dy^T @ x of ``layer``, of ``gradients`` "input" and "weight".

    Operands are row-major: x (rows, Cin), w (Cout, Cin), dy (rows, Cout), with the rows of all
    ``layer.n`` images. Results have the type of the operands. A bias is left out. Raises
    ``ArgumentError`` for types of other than 2 bytes, which no device transposes between L1 and
    L0, and where none of the two gradients is wanted.
    """
    call = Call("linear_backward", options, timing_only=True)
    if dtype.bytes != 2:
        raise ArgumentError(
            f"layer {layer.name} is linear, and linear layers are simulated in fp16 or bf16 only, "
            f"not {dtype}; choose one of these, or leave the layer out"
        )
    call.require_dtype(dtype)
    rows, cin, cout = layer.n * layer.rows, layer.cin, layer.cout
    dy = call.input("grad_output", Spec((rows, cout), dtype), dtype)
    if "input" in gradients:
        w = call.input("weight", Spec((cout, cin), dtype), dtype)
        dx = call.output("grad_input", (rows, cin), dtype)
        call.launch(LinearBackpropInput(_tiling(call, (rows, cout, cin)), dy, w, dx))
    if "weight" in gradients:
        x = call.input("input", Spec((rows, cin), dtype), dtype)
        dw = call.output("grad_weight", (cout, cin), dtype)
        tiling = _tiling(call, (cout, rows, cin))
        call.launch(LinearBackpropWeight(tiling, dy, x, dw, layouts=("ND_km", "ND")))
    if not call.runs:
        raise ArgumentError(f"layer {layer.name} is linear: only input and weight gradients run")
    problem = f"backward of a linear layer, {rows} rows, {cin} -> {cout} features; {dtype}"
    return call.result({}, problem, dtype)


def _tiling(call: Call, shape: tuple[int, int, int]) -> Tiling:
    """The tiling of an (m, k) by (k, n) product: the one given for matmul, or the kernel's own."""
    given = own_tiling(call.options.tiling, Matmul.name, Tiling)
    return given or auto_tiling(*shape, call.device, call.cube_cores)
