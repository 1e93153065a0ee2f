"""matmul: C = A @ B for row-major fp16 or bf16 operands, fp32 (or narrower) result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npusim.call.spec import Array, Spec
from npusim.call.tiling import own_tiling
from npusim.dtypes import BF16, FP16, DType, dtype
from npusim.errors import ArgumentError
from npusim.integers import round_up
from npusim.kernels.matmul import Matmul, Tiling
from npusim.kernels.tilings.matmul import Shape, auto_tiling
from npusim.ops.arguments import operand
from npusim.ops.card import LIMITS, Card, Case, Input, Option, Output, Sample, integer, named_sizes
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
    a_dtype, b_dtype = dtype(first.dtype), dtype(second.dtype)
    (m, k), (k2, n) = first.shape, second.shape
    if k != k2 or a_dtype != b_dtype:
        raise ArgumentError(
            f"a is {(m, k)} {a_dtype}, b is {(k2, n)} {b_dtype}; a's columns must equal b's rows "
            "and both must have one dtype"
        )
    if a_dtype not in (FP16, BF16):
        raise ArgumentError(f"a and b are {a_dtype}; matmul takes fp16 or bf16")
    if not m or not n or not k:
        raise ArgumentError(f"matmul of {(m, k)} by {(k2, n)}: every size must be at least 1")
    call = CARD.begin(options, a=first, b=second)
    call.require_dtype(a_dtype)
    given = own_tiling(call.options.tiling, Matmul.name, Tiling, tuned=True)
    tiling = given or auto_tiling(Shape(m, k, n, a_dtype), call.device, call.cube_cores)
    out = call.output("c", (m, n), _result_type(out_dtype))
    kernel = Matmul(tiling, call.input("a", first, a_dtype), call.input("b", second, a_dtype), out)
    if given is None:
        kernel = call.tuned(call.choose(kernel))
    for needed in (*kernel.before, kernel):
        call.launch(needed)
    problem = f"C[{m}, {n}] = A[{m}, {k}] @ B[{k}, {n}], {a_dtype} -> {out.dtype}"
    sizes = {name: (size, round_up(size, 16)) for name, size in (("M", m), ("K", k), ("N", n))}
    return call.result({"c": call.arrays.get("c")}, problem, a_dtype, sizes=sizes)


def _result_type(out_dtype: Any) -> DType:
    """The type of the result, refused by the name of the argument."""
    try:
        return dtype(out_dtype)
    except ArgumentError as error:
        raise ArgumentError(f"out_dtype: {error}") from None


Sizes = Mapping[str, int]
_AXES = {"a": "M, K", "b": "K, N"}


def _product(sample: Sample[Sizes]) -> Array:
    """The float64 opinion."""
    a, b = (sample.arrays[name].astype(np.float64) for name in _AXES)
    product: Array = a @ b
    return product


CARD: Card[Sizes] = Card(
    function=matmul,
    options=(
        Option("m", integer(1), "N", "rows of A and C, elements (default: as in --input a)"),
        Option(
            "k", integer(1), "N", "columns of A and rows of B, elements (default: as in --input)"
        ),
        Option("n", integer(1), "N", "columns of B and C, elements (default: as in --input b)"),
    ),
    problem=lambda stated: named_sizes(stated, _AXES),
    inputs=(
        Input(name="a", axes=_AXES["a"], shape=lambda p: (p["m"], p["k"])),
        Input(name="b", axes=_AXES["b"], shape=lambda p: (p["k"], p["n"])),
    ),
    outputs=lambda _: (
        Output(
            name="c",
            layout="row-major",
            axes="(M, N)",
            expected=_product,
            limit=lambda _: LIMITS["fp32"],
        ),
    ),
    call=lambda _, given, options: matmul(given["a"], given["b"], **options),
    dtypes=(FP16, BF16),
    tilings={Matmul: Tiling},
    without=("deterministic", "rules"),
    cases=(Case(name="fp16", needs="fp16", calls=("--m 33 --k 20 --n 17",)),),
    example="npusim run matmul --device ascend910b2 --m 512 --k 1024 --n 512 --cores 0-7 "
    "--timing-only",
)
