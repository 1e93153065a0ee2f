"""What the vector unit computes, against NumPy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, DType
from npusim.machine.isa.col2img import Col2img
from npusim.machine.isa.dma import Window
from npusim.machine.isa.vector import VecBinary, VecCast, VecDup, VecReduce, VecScalar
from npusim.machine.isa.vector_math import VecUnary
from tests.machine.isa.test_isa_numbers import UB, Bench
from tests.sampled import examples

Array = np.ndarray[Any, Any]


# -- vector ------------------------------------------------------------------------------------

TYPES = st.sampled_from([FP16, BF16, FP32, INT32])


@examples(60)
@given(TYPES, st.sampled_from(["add", "sub", "mul", "max", "min"]), st.integers(1, 70))
def test_element_wise_operations_round_once(dtype: DType, operation: str, count: int) -> None:
    rng = np.random.default_rng(count)
    a, b = (rng.integers(-90, 90, count).astype(dtype.numpy) for _ in "ab")
    bench = Bench()
    left, right = (bench.put(UB, v, dtype, offset=4096 * i) for i, v in enumerate((a, b)))
    target = UB.at(16384, count * dtype.bytes)
    VecBinary(operation, target, left, right, dtype).execute(bench.memory)
    x, y = a.astype(np.float64), b.astype(np.float64)
    exact = {"add": x + y, "sub": x - y, "mul": x * y, "max": np.maximum(x, y),
             "min": np.minimum(x, y)}[operation]  # fmt: skip
    np.testing.assert_array_equal(bench.get(target, dtype).ravel(), exact.astype(dtype.numpy))
    if operation == "sub":  # a chip adds the negative instead
        return
    VecScalar(operation + "s", target, left, 3.0, dtype).execute(bench.memory)
    exact = {"add": x + 3, "mul": x * 3, "max": np.maximum(x, 3),
             "min": np.minimum(x, 3)}[operation]  # fmt: skip
    np.testing.assert_array_equal(bench.get(target, dtype).ravel(), exact.astype(dtype.numpy))


def test_vector_results_overflow_to_infinity_and_casts_too() -> None:
    bench = Bench()
    big = bench.put(UB, np.full(16, 60000.0), FP16)
    with np.errstate(over="ignore"):
        VecBinary("add", UB.at(64, 32), big, big, FP16).execute(bench.memory)
        wide = bench.put(UB, np.full(16, -1e6), FP32, offset=128)
        VecCast(UB.at(256, 32), wide, FP32, FP16).execute(bench.memory)
    assert (bench.get(UB.at(64, 32), FP16) == np.inf).all()
    assert (bench.get(UB.at(256, 32), FP16) == -np.inf).all()


def test_casts_round_to_nearest_even() -> None:
    bench = Bench()
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 300.25, -7.9, 7.9])
    wide = bench.put(UB, values, FP32)
    VecCast(UB.at(64, 32), wide, FP32, INT32).execute(bench.memory)
    assert bench.get(UB.at(64, 32), INT32).ravel().tolist() == [0, 2, 2, 0, -2, 300, -8, 8]
    VecCast(UB.at(128, 8), wide, FP32, INT8).execute(bench.memory)
    assert bench.get(UB.at(128, 8), INT8).ravel().tolist() == [0, 2, 2, 0, -2, 127, -8, 8]
    VecCast(UB.at(192, 32), UB.at(128, 8), INT8, FP32).execute(bench.memory)
    assert bench.get(UB.at(192, 32), FP32).ravel().tolist() == [0, 2, 2, 0, -2, 127, -8, 8]


@pytest.mark.parametrize("operation", ["add", "max"])
def test_reductions_give_one_value_per_row(operation: str) -> None:
    rows, columns = 5, 33
    values = np.random.default_rng(3).integers(-50, 50, (rows, columns)).astype(np.float16)
    bench = Bench()
    source = bench.put(UB, values, FP16)
    target = UB.at(8192, rows * 2)
    VecReduce(operation, target, source, rows, columns, FP16).execute(bench.memory)
    want = values.sum(axis=1, dtype=np.float64) if operation == "add" else values.max(axis=1)
    assert bench.get(target, FP16).ravel().tolist() == want.tolist()


def test_sums_are_taken_in_fp32() -> None:
    bench = Bench()
    source = bench.put(UB, np.array([[2048.0] + [1.0] * 8]), FP16)
    VecReduce("add", UB.at(64, 2), source, 1, 9, FP16).execute(bench.memory)
    assert bench.get(UB.at(64, 2), FP16).ravel()[0] == 2056.0  # 2048 if added up in fp16


def test_dup_fills_with_the_value_in_its_type() -> None:
    bench = Bench()
    VecDup(UB.at(32, 64), 0.1, FP16).execute(bench.memory)
    assert (bench.get(UB.at(32, 64), FP16) == np.float16(0.1)).all()
    assert np.isnan(bench.get(UB.at(96, 32), FP16)).all()


def test_bits_of_integers_are_joined_and_turned() -> None:
    bench = Bench()
    a = bench.put(UB, np.array([0b1100, -1]), INT32)
    b = bench.put(UB, np.array([0b1010, 5]), INT32, offset=64)
    target = UB.at(128, 8)
    for operation, want in (("and", [0b1000, 5]), ("or", [0b1110, -1])):
        VecBinary(operation, target, a, b, INT32).execute(bench.memory)
        assert bench.get(target, INT32).ravel().tolist() == want
    VecUnary("not", target, a, INT32).execute(bench.memory)
    assert bench.get(target, INT32).ravel().tolist() == [~0b1100, 0]


@pytest.mark.parametrize("dtype", [FP16, FP32])
def test_col2img_adds_positions_where_a_tap_reads(dtype: DType) -> None:
    window = Window(5, 7, kernel_h=3, kernel_w=3, stride_h=2, stride_w=2)  # 2 x 3 positions
    rng = np.random.default_rng(0)
    image = rng.integers(-9, 10, (5, 7, 16))
    positions = rng.integers(-9, 10, (2, 3, 16))
    bench = Bench()
    target = bench.put(UB, image, dtype)
    source = bench.put(UB, positions, dtype, offset=8192)
    for tap in range(9):
        Col2img(target, source, dtype, window, tap).execute(bench.memory)
        down, across = divmod(tap, 3)
        image[down : down + 3 : 2, across : across + 5 : 2] += positions
    got = bench.get(target, dtype).reshape(image.shape)
    np.testing.assert_array_equal(got, image.astype(dtype.numpy))
