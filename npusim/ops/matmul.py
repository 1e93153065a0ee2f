"""matmul: C = A @ B for row-major fp16 or bf16 operands, fp32 (or narrower) result."""

from __future__ import annotations

from typing import Any

from npusim.call.call import Call
from npusim.call.spec import Array, Spec
from npusim.call.tiling import own_tiling
from npusim.dtypes import BF16, FP16, dtype
from npusim.errors import ArgumentError
from npusim.kernels.matmul import Matmul, Tiling
from npusim.kernels.tilings.matmul import auto_tiling
from npusim.ops.arguments import operand
from npusim.results import Result


def matmul(a: Array | Spec, b: Array | Spec, *, out_dtype: Any = "fp32", **options: Any) -> Result:
    """C[M, N] = A[M, K] @ B[K, N] on the cube, accumulated in fp32.

    ``a`` and ``b`` are arrays of one 16-bit float type, or ``npusim.spec``s for a timing-only
    run. Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.matmul.Tiling``. Raises ``ArgumentError`` for shapes or types that do not
    fit together.
    """
    first, second = operand(a), operand(b)
    for name, matrix, axes in (("a", first, "(M, K)"), ("b", second, "(K, N)")):
        if len(matrix.shape) != 2:
            shape = tuple(matrix.shape)
            raise ArgumentError(f"{name} has shape {shape}; it must have 2 axes {axes}")
    kind, other = dtype(first.dtype), dtype(second.dtype)
    (m, k), (k2, n) = first.shape, second.shape
    if k != k2 or kind != other:
        raise ArgumentError(
            f"a is {(m, k)} {kind}, b is {(k2, n)} {other}; a's columns must equal b's rows and "
            "both must have one dtype"
        )
    if kind not in (FP16, BF16):
        raise ArgumentError(f"a and b are {kind}; matmul takes fp16 or bf16")
    if not m or not n or not k:
        raise ArgumentError(f"matmul of {(m, k)} by {(k2, n)}: every size must be at least 1")
    call = Call.of(matmul, options, (first, second), without=("deterministic", "rules"))
    call.require_dtype(kind)
    tiling = own_tiling(call.options.tiling, Matmul.name, Tiling)
    if tiling is None:
        tiling = auto_tiling(m, k, n, call.device, call.cube_cores)
    out = call.output("c", (m, n), dtype(out_dtype))
    kernel = Matmul(tiling, call.input("a", first, kind), call.input("b", second, kind), out)
    call.launch(kernel)
    problem = f"C[{m}, {n}] = A[{m}, {k}] @ B[{k}, {n}], {kind} -> {out.dtype}"
    return call.result({"c": call.arrays.get("c")}, problem, kind)
