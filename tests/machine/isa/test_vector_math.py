"""Functions, comparisons and selection of the vector unit: numbers, costs and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import BF16, FP16, FP32, INT32, DType
from npusim.base.errors import ProgramError
from npusim.machine.isa.dma import Window
from npusim.machine.isa.operands import Buffer, Slot
from npusim.machine.isa.vector import VecBinary, VecReduce
from npusim.machine.isa.vector_math import COMPARE, UNARY, VecCompare, VecSelect, VecUnary
from npusim.machine.program.language import Language
from tests.machine.isa.test_isa_numbers import UB, Bench

Array = np.ndarray[Any, Any]
TINY, B2 = npusim.load_device("tiny"), npusim.load_device("ascend910b2")
L1 = Slot(Buffer("l1", "L1", 1 << 12, 1, 1), 0)

#: What the operations do, in float64.
EXACT: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs, "exp": np.exp, "ln": np.log, "rec": lambda x: 1 / x,
    "relu": lambda x: np.where(x > 0, x, 0), "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
@pytest.mark.parametrize("operation", UNARY)
def test_functions_round_once(operation: str, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(0, 3, 100).astype(dtype.numpy)
    a[:5] = 0.0, -0.0, np.inf, np.finfo(dtype.numpy).smallest_subnormal, -1.0
    bench = Bench()
    source, target = bench.put(UB, a, dtype), UB.at(4096, a.nbytes)
    with np.errstate(all="ignore"):
        VecUnary(operation, target, source, dtype).execute(bench.memory)
        want = EXACT[operation](a.astype(np.float64)).astype(dtype.numpy)
    np.testing.assert_array_equal(bench.get(target, dtype).ravel(), want)


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
def test_division_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.normal(0, 3, 99).astype(dtype.numpy) for _ in "ab")
    b[:2], a[1] = 0, 0
    bench = Bench()
    left, right = bench.put(UB, a, dtype), bench.put(UB, b, dtype, offset=4096)
    target = UB.at(8192, a.nbytes)
    with np.errstate(all="ignore"):
        VecBinary("div", target, left, right, dtype).execute(bench.memory)
        want = (a.astype(np.float64) / b.astype(np.float64)).astype(dtype.numpy)
    np.testing.assert_array_equal(bench.get(target, dtype).ravel(), want)


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
@pytest.mark.parametrize("operation", COMPARE)
@pytest.mark.parametrize("number", [False, True])
def test_masks_choose_elements(operation: str, dtype: DType, number: bool) -> None:
    rng = np.random.default_rng(3)
    a, b, x, y = (rng.integers(-2, 3, 77).astype(dtype.numpy) for _ in "abxy")
    a[3], y[5] = np.nan, np.nan
    bench = Bench()
    place = {
        n: bench.put(UB, v, dtype, 4096 * i)
        for i, (n, v) in enumerate(zip("abxy", (a, b, x, y), strict=True))
    }
    mask, target = UB.at(20000, 10), UB.at(24000, a.nbytes)
    other = 1.0 if number else place["b"]
    VecCompare(operation, mask, place["a"], other, dtype).execute(bench.memory)
    VecSelect(target, mask, place["x"], -7.0 if number else place["y"], dtype).execute(bench.memory)
    signs = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
    chosen = eval(f"a {signs[operation]} c", {"a": a, "c": 1.0 if number else b})
    want = np.where(chosen, x, dtype.numpy.type(-7) if number else y)
    np.testing.assert_array_equal(bench.get(target, dtype).ravel(), want)


def test_the_least_of_each_row() -> None:
    a = np.random.default_rng(4).normal(size=(5, 13)).astype(np.float32)
    bench = Bench()
    source, target = bench.put(UB, a, FP32), UB.at(4096, 20)
    VecReduce("min", target, source, 5, 13, FP32).execute(bench.memory)
    np.testing.assert_array_equal(bench.get(target, FP32).ravel(), a.min(axis=1))


def test_costs_of_a_910b() -> None:
    """1024 elements: 8 repeats of fp16, 16 of fp32; a start of 2 cycles."""
    half, full = (UB.at(0, 2048), UB.at(8192, 2048)), (UB.at(0, 4096), UB.at(8192, 4096))
    mask = UB.at(16384, 128)
    for instruction, cycles in (
        (VecUnary("exp", *half, FP16), 2 + 16 * 2),
        (VecUnary("exp", *full, FP32), 2 + 16 * 2),
        (VecUnary("sqrt", *half, FP16), 2 + 16 * 2),
        (VecUnary("abs", *half, FP16), 2 + 8),
        (VecUnary("relu", *full, FP32), 2 + 16),
        (VecBinary("div", *half, UB.at(32768, 2048), FP16), 2 + 8 * 4),
        (VecCompare("gt", mask, *half, FP16), 2 + 8 * 2),
        (VecCompare("gt", mask, half[0], 0.0, FP16), 2 + 8),
        (VecSelect(half[1], mask, half[0], 0.0, FP16), 2 + 8 * 2),
    ):
        assert instruction.cost(B2).cycles == cycles, instruction


REFUSED = {
    "no such function": (
        lambda k, u: k.vec_unary("tan", u.at(0, 64), u, FP16),
        r"there is no operation 'tan'; it is one of abs, exp",
    ),
    "function of bf16": (
        lambda k, u: k.vec_unary("exp", u.at(0, 64), u, BF16),
        r"in bf16; the vector unit computes it in fp16 and fp32: convert with vec_cast",
    ),
    "quotient of integers": (
        lambda k, u: k.vec_binary("div", u.at(0, 64), u, u, INT32),
        r"in int32; only floats are divided",
    ),
    "bits of floats": (
        lambda k, u: k.vec_binary("and", u.at(0, 64), u, u, FP16),
        r"in fp16; only integers have bits to join",
    ),
    "bits of floats turned": (
        lambda k, u: k.vec_unary("not", u.at(0, 64), u, FP32),
        r"in fp32; only integers have bits to turn",
    ),
    "positions of bf16": (
        lambda k, u: k.col2img(u, u, Window(1, 1), 0, BF16),
        r"in bf16; it adds fp16 and fp32",
    ),
    "image with padding": (
        lambda k, u: k.col2img(u, u, Window(1, 1, pad_left=1), 0, FP16),
        r"the window is padded; give the image its padding",
    ),
    "tap of no window": (
        lambda k, u: k.col2img(u, u, Window(1, 1), 1, FP16),
        r"tap is 1; the window has taps 0 to 0",
    ),
    "no such comparison": (
        lambda k, u: k.vec_compare("above", u, u.at(0, 64), 0, FP16),
        r"there is no operation 'above'; it is one of lt, le",
    ),
    "comparison of integers": (
        lambda k, u: k.vec_compare("lt", u, u.at(0, 64), 0, INT32),
        r"in int32; the vector unit computes it in fp16 and fp32",
    ),
    "operands of other sizes": (
        lambda k, u: k.vec_compare("lt", u, u.at(0, 64), u.at(0, 32), FP16),
        r"has 32 B, it must have 64 B",
    ),
    "mask of another size": (
        lambda k, u: k.vec_select(u.at(0, 64), u.at(0, 8), u, u, FP16),
        r"has 8 B, it must have 4 B",
    ),
    "mask for a list": (
        lambda k, u: k.vec_select(u.at(0, 64), u, u, [0], FP16),
        r"a list \[0\] is no operand",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    body, message = REFUSED[case]
    k = Language(TINY, TINY.core_kind("vector"))
    slot = k.buffer("UB", (64,), FP32).next()
    with pytest.raises(ProgramError, match=message):
        body(k, slot)  # type: ignore[no-untyped-call]
