"""row_sums against NumPy, and which gradients of biases it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, INT8, DType
from npusim.base.errors import ArgumentError, CapacityError
from npusim.call.call import Call, simulate
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.kernels.vector.bias_grad import BiasGrad
from npusim.kernels.vector.row_sums import MANY_ROWS, RowSums, row_parts
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.ops.bias_gradient import launch_bias
from tests.sampled import examples

Array = npt.NDArray[Any]

TINY = load_device("tiny")
A2 = load_device("ascend910b2")
FIRST = load_device("ascend910")
TYPES = {"fp16": FP16, "bf16": BF16, "fp32": FP32}


def summed(
    dy: Array, kind: DType, device: Device, parts: int, result: DType | None = None
) -> Array:
    call = Call("test", Options(device=device), timing_only=False)
    source = call.input("dy", dy, kind)
    target = call.output("db", dy.shape[1:], result or kind)
    partial = call.output("parts", (parts, dy.shape[1]), FP32)
    call.launch(RowSums(source, target, partial, saturate=device.saturates))
    return call.arrays["db"]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[int, int, int]:
    rows = draw(st.integers(1, 70) | st.sampled_from([500, 1500]))
    channels = draw(st.integers(1, 40) | st.sampled_from([300, 5000]))
    if rows * channels > 500_000:
        rows = 50
    return rows, channels, draw(st.integers(1, min(rows, 9)))


@examples(60)
@given(matrices(), st.sampled_from(list(TYPES)), st.sampled_from([TINY, A2]))
def test_row_sums_are_the_exact_sum_rounded_once(
    problem: tuple[int, int, int], name: str, device: Device
) -> None:
    rows, channels, parts = problem
    kind = TYPES[name]
    dy = np.random.default_rng(rows).integers(-8, 9, (rows, channels)).astype(kind.numpy)
    want = dy.astype(np.float64).sum(axis=0).astype(kind.numpy)
    np.testing.assert_array_equal(summed(dy, kind, device, parts), want)


@pytest.mark.parametrize("result", ["fp16", "fp32"])
def test_row_sums_round_the_fp32_sum_once_and_repeat_bit_for_bit(result: str) -> None:
    dy = np.random.default_rng(1).uniform(-1, 1, (3000, 130)).astype(np.float16)
    first, second = (summed(dy, FP16, A2, 40, TYPES[result]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    want = dy.astype(np.float64).sum(axis=0)
    terms = np.abs(dy.astype(np.float64)).sum(axis=0)
    rounding = {"fp16": 2.0**-11, "fp32": 2.0**-24}[result]
    assert (np.abs(first - want) <= rounding * np.abs(want) + 2.0**-18 * terms).all()


def test_a_sum_too_large_for_fp16_follows_the_device() -> None:
    dy = np.full((4, 3), 30_000.0, np.float16)
    assert summed(dy, FP16, A2, 2).tolist() == [np.inf] * 3
    assert summed(dy, FP16, FIRST, 2).tolist() == [65504.0] * 3


def test_rows_have_as_many_parts_as_cores_where_they_are_many() -> None:
    assert [row_parts(rows, 32) for rows in (1, MANY_ROWS - 1)] == [1, 1]
    assert [row_parts(rows, 32) for rows in (MANY_ROWS, 50_000)] == [16, 32]
    assert row_parts(50_000, 2) == 2


@pytest.mark.parametrize("device", [A2, FIRST], ids=["910B2", "910"])
@pytest.mark.parametrize("shape", [(50_176, 384), (4096, 3072), (32_768, 96), (1024, 96)])
def test_many_rows_take_less_than_by_columns(device: Device, shape: tuple[int, int]) -> None:
    call = Call("test", Options(device=device, launch="graph"), timing_only=True)
    source = call.input("dy", Spec(shape, FP16), FP16)
    launch_bias(call, source, call.output("db", shape[1:], FP32), "parts")
    call.launch_spread(BiasGrad(source, call.output("sums", shape[1:], FP32)))
    rows, columns = call.runs
    assert (rows.name, columns.name) == ("row_sums", "bias_grad")
    assert rows.cycles + rows.launch_cycles < columns.cycles + columns.launch_cycles


def test_few_rows_stay_with_the_other_kernel() -> None:
    call = Call("test", Options(device=A2), timing_only=True)
    source = call.input("dy", Spec((MANY_ROWS - 1, 96), FP16), FP16)
    launch_bias(call, source, call.output("db", (96,), FP16), "parts")
    assert [run.name for run in call.runs] == ["bias_grad"]


def test_a_small_ub_cuts_its_columns() -> None:
    kernel = RowSums(
        Tensor("dy", (40, 900), FP16),
        Tensor("db", (900,), FP32, "out"),
        Tensor("parts", (2, 900), FP32, "out"),
    )
    small = TINY.replace("memories.UB.size", "2KiB")
    assert simulate(kernel, small).time_us > simulate(kernel, TINY).time_us
    many = RowSums(kernel.dy, kernel.db, Tensor("parts", (40, 900), FP32, "out"))
    with pytest.raises(CapacityError, match="40 parts of 16 columns need 640; use fewer parts"):
        simulate(many, small)


@pytest.mark.parametrize(
    ("dy", "db", "partial", "text"),
    [
        ((0, 3), (3,), (1, 3), "both sizes at least 1"),
        ((2, 3, 4), (3,), (1, 3), r"it must be floats \(R, C\)"),
        ((2, 3), (2,), (1, 3), r"makes it fp16 of shape \(3,\)"),
        ((2, 3), (3,), (1, 2), r"fp32 \(parts, 3\) with 1 to 2 parts"),
        ((2, 3), (3,), (3, 3), "with 1 to 2 parts"),
    ],
)
def test_refused(
    dy: tuple[int, ...], db: tuple[int, ...], partial: tuple[int, ...], text: str
) -> None:
    with pytest.raises(ArgumentError, match=text):
        RowSums(Tensor("dy", dy, FP16), Tensor("db", db, FP16), Tensor("p", partial, FP32))


def test_integers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="dy is int8"):
        RowSums(Tensor("dy", (2, 3), INT8), Tensor("db", (3,), INT8), Tensor("p", (1, 3), FP32))
