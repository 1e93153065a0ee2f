"""How values change type: ties, overflow and NaN, each on its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, DType
from npusim.base.rounding import is_poison, round_hf32, round_to

BF16_TOP = float((2 - 2**-7) * 2.0**127)


def test_values_of_the_type_pass_through_untouched() -> None:
    values = np.array([np.inf, np.nan, 1.0], np.float16)
    assert round_to(values, FP16) is values


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (2049.0, FP16, 2048.0),  # ties go to even
        (2051.0, FP16, 2052.0),
        (2049.001, FP16, 2050.0),
        (2.0**-25, FP16, 0.0),
        (2.0**-25 * 1.5, FP16, 2.0**-24),  # subnormals are kept
        (257.0, BF16, 256.0),
        (259.0, BF16, 260.0),
        (0.5, INT32, 0),
        (1.5, INT32, 2),
        (-2.5, INT32, -2),
    ],
)
def test_rounding_is_to_nearest_even(value: float, dtype: DType, want: float) -> None:
    assert round_to(np.array([value], np.float32), dtype).tolist() == [want]


@pytest.mark.parametrize(
    ("dtype", "value", "saturated", "plain"),
    [
        (FP16, 65519.0, 65504.0, 65504.0),  # still rounds down to the largest
        (FP16, 65520.0, 65504.0, np.inf),
        (FP16, -1e30, -65504.0, -np.inf),
        (BF16, 3.4e38, BF16_TOP, np.inf),
        (BF16, -3.4e38, -BF16_TOP, -np.inf),
        (FP16, np.inf, np.inf, np.inf),  # infinity that came in stays
    ],
)
def test_overflow_saturates_or_is_infinite(
    dtype: DType, value: float, saturated: float, plain: float
) -> None:
    values = np.array([value, 1.0], np.float32)
    assert round_to(values, dtype).tolist() == [saturated, 1.0]
    assert round_to(values, dtype, saturate=False).tolist() == [plain, 1.0]


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_nan_stays_nan_in_floats(dtype: DType) -> None:
    values = np.array([np.nan, 1e9], np.float32)
    assert np.isnan(round_to(values, dtype).astype(np.float32)).tolist() == [True, False]


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(INT8, -128, 127), (INT32, -(2**31), 2**31 - 1)]
)
def test_integers_saturate_and_take_nan_as_zero(dtype: DType, low: int, high: int) -> None:
    values = np.array([np.inf, -np.inf, 1e20, -1e20, np.nan], np.float32)
    assert round_to(values, dtype).tolist() == [high, low, high, low, 0]


@pytest.mark.parametrize("bits", [10, 11])
def test_hf32_keeps_the_leading_bits_and_rounds_ties_to_even(bits: int) -> None:
    ulp = 2.0**-bits
    exact = np.array([1.0, 1 + ulp, -3.0, 0.0, 2.0**-130], np.float32)
    assert round_hf32(exact, bits).tolist() == exact.tolist()
    ties = np.array([1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp * 0.51, -1 - ulp / 2], np.float32)
    assert round_hf32(ties, bits).tolist() == [1.0, 1 + 2 * ulp, 1 + ulp, -1.0]


def test_hf32_passes_nan_and_infinity_and_overflows_to_infinity() -> None:
    values = np.array([np.inf, -np.inf, np.nan, np.finfo(np.float32).max], np.float32)
    got = round_hf32(values, 11)
    assert got[[0, 1, 3]].tolist() == [np.inf, -np.inf, np.inf]
    assert np.isnan(got[2])


def test_widening_is_exact() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    assert (round_to(finite, FP32) == finite).all()
    assert (round_to(round_to(finite, FP32), FP16) == finite).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from([FP16, BF16]))
def test_saturated_results_are_finite_and_nearest(value: float, dtype: DType) -> None:
    got = float(round_to(np.array([value], np.float32), dtype)[0])
    top = 65504.0 if dtype is FP16 else BF16_TOP
    assert np.isfinite(got)
    if abs(value) <= top:
        # one unit in the last place is 2**-10 (fp16) or 2**-7 (bf16) of the value
        half = abs(value) * (2.0**-11 if dtype is FP16 else 2.0**-8)
        assert abs(got - value) <= max(half, 2.0**-25)
    else:
        assert abs(got) == top


def test_nan_becomes_zero_where_the_chip_has_no_infinity_mode() -> None:
    values = np.array([np.nan, -np.nan, np.inf, -1.5, 1e6], np.float32)
    got = round_to(values, FP16, zero_nan=True)
    assert got.tolist() == [0.0, 0.0, np.inf, -1.5, 65504.0]
    assert np.isnan(round_to(values, FP16)).tolist() == [True, True, False, False, False]
    assert np.isnan(round_to(values, FP32, zero_nan=True)[:2]).all()  # no 16-bit float


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32], ids=str)
def test_memory_that_nobody_wrote_stays_nan(dtype: DType) -> None:
    poison = np.full(3 * dtype.bytes, 0xFF, np.uint8).view(dtype.numpy)
    wide = poison.astype(np.float32)
    with np.errstate(invalid="ignore"):
        made = np.array([1.0, 0.0, -2.0], np.float32) * wide + wide
        summed = np.matmul(np.ones((1, 3), np.float32), made[:, None])
    for values in (wide, made, summed):
        assert is_poison(values).all()
        assert np.isnan(round_to(values, FP16, zero_nan=True)).all()
        assert is_poison(round_to(values, FP16, zero_nan=True)).all()  # and on the way further


def test_what_arithmetic_makes_is_no_poison() -> None:
    infinite = np.array([np.inf, 0.0, 0.0], np.float32)
    with np.errstate(invalid="ignore"):
        made = np.array([infinite[0] - infinite[0], infinite[0] * infinite[1], infinite[1] / 0])
    assert np.isnan(made).all()
    assert not is_poison(made.astype(np.float32)).any()
    assert not is_poison(np.array([np.nan, -np.nan, -65504.0, -np.inf], np.float32)).any()
