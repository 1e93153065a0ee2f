"""Slots: stores that overlap, gaps that stay poisoned, and widening that loses nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import BF16, FP16, FP32, DType
from npusim.machine.numerics.memory import PhysicalSlot, Place, content_of, widen

Array = np.ndarray[Any, Any]
UNITS = 3


def row(offset: int, size: int) -> Place:
    return offset, 1, size, size


def numbers(count: int, start: int = 0, dtype: DType = FP16) -> Array:
    return np.arange(start, start + UNITS * count).reshape(UNITS, count).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("shape", [(-1,), (128, -1)])
def test_every_16_bit_float_widens_exactly(dtype: DType, shape: tuple[int, ...]) -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy).reshape(shape)
    np.testing.assert_array_equal(
        widen(values).view(np.uint32), values.astype(np.float32).view(np.uint32)
    )


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("bytes_first", [False, True])
def test_pieces_join_and_gaps_are_poison(wide: bool, bytes_first: bool) -> None:
    slot = PhysicalSlot(UNITS, 64)
    slot.put((0, 2, 8, 16), FP16, content_of(numbers(8)))
    slot.put(row(32, 8), FP16, content_of(numbers(4, 100)))
    slot.put(row(36, 8), FP16, content_of(numbers(4, 200)))  # over half of the last
    if bytes_first:
        slot.view(row(0, 64), FP16.numpy)
    got = slot.get(row(0, 64), FP16).get(wide=wide).reshape(UNITS, 32)
    want = np.full((UNITS, 32), np.nan)
    first, second, third = numbers(8), numbers(4, 100), numbers(4, 200)
    want[:, 0:4], want[:, 8:12] = first[:, :4], first[:, 4:]
    want[:, 16:18], want[:, 18:22] = second[:, :2], third
    assert got.dtype == (np.float32 if wide else np.float16)
    np.testing.assert_array_equal(got, want)
    part = slot.get((0, 2, 4, 32), FP16).get(wide=wide).reshape(UNITS, 4)
    np.testing.assert_array_equal(part, want[:, [0, 1, 16, 17]])


def test_a_place_read_as_another_type_is_its_bytes() -> None:
    slot = PhysicalSlot(UNITS, 32)
    values = numbers(8, 5, FP32)
    slot.put(row(0, 32), FP32, content_of(values))
    halves = slot.get(row(0, 32), FP16).get().reshape(UNITS, 16)
    np.testing.assert_array_equal(halves, values.view(np.float16))


def test_what_was_read_does_not_change_and_what_is_read_again_does() -> None:
    slot = PhysicalSlot(UNITS, 32)
    slot.put(row(0, 32), FP16, content_of(numbers(16)))
    before = slot.get(row(8, 8), FP16)
    slot.put(row(12, 8), FP16, content_of(numbers(4, 50)))
    slot.put(row(8, 2), FP16, content_of(np.full((UNITS, 1), 7, np.float16)))
    np.testing.assert_array_equal(before.get().reshape(UNITS, 4), numbers(16)[:, 4:8])
    after = slot.get(row(8, 8), FP16).get().reshape(UNITS, 4)
    want = numbers(16)[:, 4:8].copy()
    want[:, 2:], want[:, 0] = numbers(4, 50)[:, :2], 7
    np.testing.assert_array_equal(after, want)


def test_taking_a_slot_forgets_everything() -> None:
    slot = PhysicalSlot(UNITS, 32)
    slot.put(row(0, 32), FP16, content_of(numbers(16)))
    slot.view(row(0, 32), FP16.numpy)
    slot.take()
    assert np.isnan(slot.get(row(0, 32), FP16).get()).all()
