"""matmul: C = A @ B for row-major operands, summed in fp32 or int32, one product or a batch."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, MX_BLOCK, MXFP4, MXFP8, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div, round_up
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Array, Operand, Spec
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.isa.operands import Tensor
from npusim.ops.arguments import flag, operand
from npusim.ops.card import LIMITS, Card, Input, Output, Sample, Stated
from npusim.ops.cube_math import CubeMath, cube_math, cube_math_number
from npusim.ops.linear import START, converted, launch_product
from npusim.ops.options import BIAS, CUBE_MATH_TYPE, Option, integer
from npusim.problem.limits.table import Undocumented
from npusim.results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npusim.call.options import Keywords

#: Element types of operands; those of blocks with a scale are timed only.
TYPES = (FP16, BF16, FP32, INT8, MXFP8, MXFP4)


def matmul(
    a: Array | Spec,
    b: Array | Spec,
    bias: Array | Spec | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: Any = None,
    cube_math_type: int | str = 0,
    **options: Unpack[Keywords],
) -> Result:
    """C[M, N] = A[M, K] @ B[K, N] + bias[N] on the cube, for one product or a batch of them.

    ``a`` and ``b`` are arrays of one type, fp16, bf16, fp32 or int8, or ``npusim.spec``s for a
    timing-only run, then also of mxfp8 or mxfp4. Axes before the last two are a batch, the same in
    both. With ``transpose_a`` A lies (K, M), with ``transpose_b`` B lies (N, K). Sums are fp32, of
    int8 int32; ``out_dtype`` None leaves them so.

    ``bias`` (N,), the same for a whole batch, is fp16, bf16 or fp32, of int8 products int32. It is
    added to the sums before they are rounded: cubes with a bias table (910B, 950) begin their sums
    from it, a bf16 one cast before; on others a kernel, ``bias_add``, adds it in fp32 to the sums
    of the product, and a third one rounds them to another ``out_dtype``.

    ``cube_math_type`` says how fp32 is multiplied.
    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.matmul.matmul.Tiling``. Raises ``ArgumentError`` for shapes or types that do
    not fit together.
    """
    first, second = operand(a), operand(b)
    kind = _common(first, second)
    turned = flag("transpose_a", transpose_a), flag("transpose_b", transpose_b)
    size = _sizes(first, second, turned)
    added = None if bias is None else operand(bias)
    sums = INT32 if kind is INT8 else FP32
    out = _result_type(out_dtype, sums)
    call = CARD.begin(options, a=first, b=second, bias=added)
    math = _math(call, kind, cube_math_type)
    layouts = "ND_km" if turned[0] else "ND", "ND_nk" if turned[1] else "ND"
    a_gm = _input(call, "a", first, math, k_rows=turned[0])
    b_gm = _input(call, "b", second, math, k_rows=not turned[1])
    rows = size.batch * size.m
    c = call.output("c", (rows, size.n), out)
    scales: tuple[Tensor, ...] = ()
    if kind in (MXFP8, MXFP4):
        wide = ceil_div(size.k, MX_BLOCK)
        scales = tuple(
            call.input(f"scale_{axis}", Spec((size.batch * extent, wide), INT8), INT8)
            for axis, extent in (("m", size.m), ("n", size.n))
        )
    kernel = Matmul(START, a_gm, b_gm, c, layouts, scales, groups=size.batch, hf32=math.hf32)
    row = None if added is None else call.input("bias", added, _bias_type(added, size.n, sums))
    launch_product(call, kernel, row, tuned=True)
    result = call.arrays.get("c")
    stack = f"{size.batch} x " if size.stack else ""
    problem = (
        f"{stack}C[{size.m}, {size.n}] = A[{size.m}, {size.k}] @ B[{size.k}, {size.n}], "
        f"{kind} -> {out}"
    )
    return call.result(
        {"c": None if result is None else result.reshape(*size.stack, size.m, size.n)},
        problem,
        kind,
        math.name,
        sizes={
            name: (extent, round_up(extent, 16))
            for name, extent in (("M", size.m), ("K", size.k), ("N", size.n))
        },
    )


class _Sizes(NamedTuple):
    """A product, and the axes of its batch, none of a single one."""

    stack: tuple[int, ...]
    m: int
    k: int
    n: int

    @property
    def batch(self) -> int:
        return prod(self.stack)


def _common(first: Operand, second: Operand) -> DType:
    """The type of both operands."""
    kinds = _known(first), _known(second)
    for name, value, kind in zip("ab", (first, second), kinds, strict=True):
        if kind not in TYPES:
            raise ArgumentError(
                f"{name} is {kind or value.dtype}; matmul takes {_named()}: give an array of "
                "one of these, such as numpy.asarray(..., numpy.float16)"
            )
    if kinds[0] is not kinds[1]:
        raise ArgumentError(
            f"a is {first.shape} {kinds[0]}, b is {second.shape} {kinds[1]}; both must have one "
            "dtype"
        )
    assert kinds[0] is not None
    return kinds[0]


def _known(value: Operand) -> DType | None:
    """The type of an operand, None of one that no device has."""
    try:
        return dtype(value.dtype)
    except ArgumentError:
        return None


def _named() -> str:
    *most, mx8, mx4 = (kind.name for kind in TYPES)
    return f"{', '.join(most)}, and as npusim.spec for the time alone {mx8} and {mx4}"


def _sizes(first: Operand, second: Operand, turned: tuple[bool, bool]) -> _Sizes:
    for name, value, axes in (
        ("a", first, "(K, M)" if turned[0] else "(M, K)"),
        ("b", second, "(N, K)" if turned[1] else "(K, N)"),
    ):
        if len(value.shape) < 2:
            shape = tuple(value.shape)
            raise ArgumentError(
                f"{name} has shape {shape}; it must have 2 axes {axes}, or a batch before them"
            )
    (*stack, m, k), (*other, k2, n) = first.shape, second.shape
    m, k = (k, m) if turned[0] else (m, k)
    k2, n = (n, k2) if turned[1] else (k2, n)
    if k != k2 or stack != other:
        raise ArgumentError(
            f"a is {tuple(first.shape)}, b is {tuple(second.shape)}; a's columns must equal b's "
            "rows (behind transpose_a and transpose_b), and axes before them must be the same"
        )
    values = dtype(first.dtype).values
    if not prod((*stack, m, k, n)) or k % values:
        least = f"at least 1{f', and K a multiple of {values}' if values > 1 else ''}"
        raise ArgumentError(
            f"matmul of {tuple(first.shape)} by {tuple(second.shape)}: every size must be {least}"
        )
    return _Sizes(tuple(stack), m, k, n)


def _math(call: Call, kind: DType, cube_math_type: int | str) -> CubeMath:
    """The arithmetic of the cube; ``ArgumentError`` where it has none for the type."""
    number = cube_math_number(cube_math_type)
    if kind is FP32:
        return cube_math(kind, number, call.device)
    call.require_dtype(kind)
    return CubeMath(kind, False)


def _input(call: Call, name: str, value: Operand, math: CubeMath, *, k_rows: bool) -> Tensor:
    """An operand as rows, in the type that the cube multiplies; values are packed along K."""
    *stack, rows, columns = value.shape
    kind = dtype(value.dtype)
    along, across = (kind.values, 1) if k_rows else (1, kind.values)
    tensor = call.input(name, value, kind, (prod(stack) * rows // along, columns // across))
    return converted(call, tensor, math.dtype)


def _bias_type(bias: Operand, n: int, sums: DType) -> DType:
    """The type of a bias, refused by its shape or where it cannot be added to such sums."""
    kind = _known(bias)
    if kind is None or kind not in _FITS[sums] or tuple(bias.shape) != (n,):
        raise ArgumentError(
            f"bias is {kind or bias.dtype} of shape {tuple(bias.shape)}; it must be {_fits(sums)} "
            f"of shape ({n},), the same for all products of a batch"
        )
    return kind


#: Types of results, and of what is added, by that of the sums.
_FITS = {INT32: (INT32,), FP32: (FP32, FP16, BF16)}


def _fits(sums: DType) -> str:
    return " or ".join(map(str, _FITS[sums]))


def _result_type(out_dtype: Any, sums: DType) -> DType:
    """The type of the result, refused by the name of the argument."""
    try:
        wanted = sums if out_dtype is None else dtype(out_dtype)
    except ArgumentError as error:
        raise ArgumentError(f"out_dtype: {error}") from None
    if wanted not in _FITS[sums]:
        raise ArgumentError(f"out_dtype is {wanted}; sums in {sums} leave as {_fits(sums)}")
    return wanted


class _Problem(Struct, frozen=True):
    """The problem of a command line: sizes, and how operands lie."""

    batch: int | None
    m: int
    k: int
    n: int
    turned: tuple[bool, bool]
    cube_math_type: int
    bias: bool

    def shape(self, rows: int, columns: int, *, turned: bool) -> tuple[int, ...]:
        """The shape of an operand."""
        stack = () if self.batch is None else (self.batch,)
        return (*stack, columns, rows) if turned else (*stack, rows, columns)


def _stated(stated: Stated) -> _Problem:
    turned = bool(stated["transpose_a"]), bool(stated["transpose_b"])
    axes = {"a": "km" if turned[0] else "mk", "b": "nk" if turned[1] else "kn"}
    shown: dict[str, dict[str, int]] = {"m": {}, "k": {}, "n": {}, "batch": {}}
    for name, array in stated.arrays.items():
        if name == "bias":
            shown["n"][name] = array.size
            continue
        if array.ndim not in (2, 3):
            raise ArgumentError(
                f"{stated.file(name)}; it must have 2 axes ({', '.join(axes[name].upper())}), or 3 "
                "with a batch"
            )
        for axis, size in zip(axes[name][::-1], array.shape[::-1], strict=False):
            shown[axis][name] = size
        if array.ndim == 3:
            shown["batch"][name] = array.shape[0]
    batched = stated["batch"] is not None or shown["batch"]
    return _Problem(
        batch=stated.size("batch", shown["batch"]) if batched else None,
        m=stated.size("m", shown["m"]),
        k=stated.size("k", shown["k"]),
        n=stated.size("n", shown["n"]),
        turned=turned,
        cube_math_type=stated["cube_math_type"] or 0,
        bias=bool(stated["bias"] or "bias" in stated.arrays),
    )


def _product(sample: Sample[_Problem]) -> Array:
    """The float64 opinion; exact for integers."""
    a = sample.arrays["a"].astype(np.float64)
    b = sample.arrays["b"].astype(np.float64)
    a_turned, b_turned = sample.problem.turned
    if a_turned:
        a = a.swapaxes(-1, -2)
    if b_turned:
        b = b.swapaxes(-1, -2)
    product: Array = a @ b
    if sample.problem.bias:
        product = product + sample.arrays["bias"].astype(np.float64)
    return product


def _limit(sample: Sample[_Problem]) -> float:
    """That of what operands are rounded to."""
    kind = dtype(sample.arrays["a"].dtype)
    if kind is not FP32:
        return LIMITS["fp32"]
    math = cube_math(kind, sample.problem.cube_math_type, sample.device)
    return LIMITS["fp32" if math.name == "fp32" else "fp16"]


def _axes(rows: str, columns: str, side: int) -> Any:
    def axes(p: _Problem) -> str:
        matrix = f"{columns}, {rows}" if p.turned[side] else f"{rows}, {columns}"
        return matrix if p.batch is None else f"batch, {matrix}"

    return axes


CARD: Card[_Problem] = Card(
    function=matmul,
    problem=_stated,
    inputs=(
        Input(
            name="a",
            axes=_axes("M", "K", 0),
            shape=lambda p: p.shape(p.m, p.k, turned=p.turned[0]),
        ),
        Input(
            name="b",
            axes=_axes("K", "N", 1),
            shape=lambda p: p.shape(p.k, p.n, turned=p.turned[1]),
        ),
        Input(
            name="bias",
            axes="N",
            shape=lambda p: (p.n,),
            wanted=lambda p: p.bias,
            # What the cube multiplies and does not add is added in the type of the sums.
            dtype=lambda kind: kind if kind in _FITS[FP32] else INT32 if kind is INT8 else FP32,
        ),
    ),
    outputs=lambda _: (
        Output(name="c", layout="row-major", axes="(M, N)", expected=_product, limit=_limit),
    ),
    call=lambda p, operands, options: matmul(
        operands["a"],
        operands["b"],
        operands.get("bias"),
        transpose_a=p.turned[0],
        transpose_b=p.turned[1],
        cube_math_type=p.cube_math_type,
        **options,
    ),
    dtypes=TYPES,
    tilings={Matmul: Tiling},
    without=("deterministic", "rules"),
    strided=("a", "b", "bias", "c"),
    options=(
        Option(
            name="m",
            read=integer(1),
            metavar="N",
            help="rows of A and C, elements (default: as in --input a)",
        ),
        Option(
            name="k",
            read=integer(1),
            metavar="N",
            help="columns of A and rows of B, elements (default: as in --input)",
        ),
        Option(
            name="n",
            read=integer(1),
            metavar="N",
            help="columns of B and C, elements (default: as in --input b)",
        ),
        Option(
            name="batch",
            read=integer(1),
            metavar="N",
            help="so many products (default: one, without that axis)",
        ),
        Option(
            name="transpose_a",
            read=None,
            metavar="",
            help="A lies (K, M) (default: (M, K))",
        ),
        Option(
            name="transpose_b",
            read=None,
            metavar="",
            help="B lies (N, K) (default: (K, N))",
        ),
        replace(
            BIAS, help="add a bias per column to the sums (default: only one given by --input)"
        ),
        CUBE_MATH_TYPE,
    ),
    example=(
        "npusim run matmul --device ascend910b2 --m 512 --k 1024 --n 512 --cores 0-7 --timing-only"
    ),
    undocumented=Undocumented(title="aclnnMatmul"),
)
