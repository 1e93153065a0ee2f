"""Concatenation and its gradient: every byte where NumPy puts it, moved once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.kernels.layout.concat import Concat
from npusim.machine.isa.operands import Tensor
from tests.sampled import examples

Array = npt.NDArray[Any]


def concat(
    shapes: Sequence[tuple[int, ...]], axis: int, dtype: DType = FP16, *, back: bool = False
) -> Concat:
    """The kernel, or its gradient."""
    parts = tuple(
        Tensor(f"p{i}", one, dtype, "out" if back else "in") for i, one in enumerate(shapes)
    )
    whole = list(shapes[0])
    whole[axis] = sum(one[axis] for one in shapes)
    return Concat(parts, Tensor("whole", tuple(whole), dtype, "in" if back else "out"), axis)


def ran(kernel: Concat, device: str, *arrays: Array) -> list[Array]:
    outputs = npusim.simulate(kernel, device, *arrays).outputs
    assert outputs is not None
    return [np.asarray(one) for one in outputs]


@examples(60)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.tuples(st.integers(1, 50), st.integers(1, 30), st.integers(1, 30)),
    st.integers(0, 2),
    st.sampled_from([FP16, FP32]),
    st.sampled_from(["tiny", "ascend310", "ascend910", "ascend910b2", "ascend950pr"]),
)
def test_parts_are_joined_and_split(
    sizes: list[int], others: tuple[int, ...], axis: int, dtype: DType, device: str
) -> None:
    shapes = [(*others[:axis], size, *others[axis + 1 :]) for size in sizes]
    rng = np.random.default_rng(sum(sizes))
    parts = [rng.standard_normal(one).astype(dtype.numpy) for one in shapes]
    whole = np.concatenate(parts, axis)
    (joined,) = ran(concat(shapes, axis, dtype), device, *parts)
    np.testing.assert_array_equal(joined, whole)
    for got, want in zip(
        ran(concat(shapes, axis, dtype, back=True), device, whole), parts, strict=True
    ):
        np.testing.assert_array_equal(got, want)


@examples(60)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 20), st.integers(0, 5)), min_size=1, max_size=5
    ),
    st.sampled_from([FP16, FP32]),
    st.sampled_from(["tiny", "ascend310", "ascend910", "ascend910b2", "ascend950pr"]),
)
def test_a_part_lies_among_zeros_or_is_cut_out(
    axes: list[tuple[int, int, int]], dtype: DType, device: str
) -> None:
    place, part, after = zip(*axes, strict=True)
    shape = tuple(map(sum, axes))
    whole = np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype.numpy)
    inside = whole[tuple(slice(a, a + size) for a, size in zip(place, part, strict=True))]
    small, large = (Tensor(n, s, dtype, "in") for n, s in (("part", part), ("whole", shape)))
    crop = Concat((replace(small, role="out"),), large, place=place)
    pad = Concat((small,), replace(large, role="out"), place=place)
    np.testing.assert_array_equal(ran(crop, device, whole)[0], inside)
    wide = np.pad(inside, list(zip(place, after, strict=True)))
    np.testing.assert_array_equal(ran(pad, device, inside)[0], wide)


def test_a_crop_moves_what_is_inside_and_a_pad_writes_each_element_once() -> None:
    """A skip of a U-Net in blocks of channels: 64 of 72 rows and columns on 20 cores."""
    small, large = (Tensor(f"t{n}", (8, 1, 8, n, n, 16), FP16, "in") for n in (64, 72))
    place = (0, 0, 0, 4, 4, 0)
    crop = Concat((replace(small, role="out"),), large, place=place)
    pad = Concat((small,), replace(large, role="out"), place=place)
    for kernel, written in ((crop, small.size_bytes), (pad, large.size_bytes)):
        (run,) = npusim.simulate(kernel, "ascend910b2").runs
        assert sum(row.bytes for row in run.traffic if row.src == "GM") == small.size_bytes
        assert sum(row.bytes for row in run.traffic if row.dst == "GM") == written
        assert run.cycles < 1.3 * max(one.cycles for one in run.bounds)
        (slow,) = npusim.simulate(replace(kernel, cores=2), "ascend910b2", engine="simpy").runs
        assert (
            slow.cycles == npusim.simulate(replace(kernel, cores=2), "ascend910b2").runs[0].cycles
        )


def test_channels_of_maps_in_blocks_move_once_at_full_rate() -> None:
    shapes = [(32, blocks, 28, 28, 16) for blocks in (4, 8, 2, 2)]
    kernel = concat(shapes, 1)
    (run,) = npusim.simulate(kernel, "ascend910b2").runs
    size = kernel.whole.size_bytes
    assert sum(row.bytes for row in run.traffic if row.src == "GM") == size
    assert sum(row.bytes for row in run.traffic if row.dst == "GM") == size
    bound = max(one.cycles for one in run.bounds)
    assert bound <= run.cycles < 1.15 * bound
    (alone,) = npusim.simulate(replace(kernel, cores=1), "ascend910b2").runs
    assert run.cycles < alone.cycles / 8
    small = concat([(4, 1, 7, 7, 16), (4, 2, 7, 7, 16)], 1, back=True)
    runs = [npusim.simulate(small, "ascend910", engine=one).runs[0] for one in ("simpy", "fast")]
    assert runs[0].cycles == runs[1].cycles


def test_mistakes_are_told() -> None:
    a, b = Tensor("a", (2, 3, 4), FP16), Tensor("b", (2, 5, 4), FP16)
    whole = Tensor("whole", (2, 8, 4), FP16, "out")
    Concat((a, b), whole)
    told = r"from \(0, 3, 0\) on it must lie in it, of one type, not empty"
    for wrong in (
        Tensor("b", (2, 5, 5), FP16),
        Tensor("b", (2, 6, 4), FP16),
        Tensor("b", (2, 5), FP16),
        Tensor("b", (2, 5, 4), FP32),
        Tensor("b", (2, 5, 4), FP16, "out"),
        Tensor("b", (2, 0, 4), FP16),
    ):
        with pytest.raises(ArgumentError, match=told):
            Concat((a, wrong), whole)
    for few in ((a, a), (a, Tensor("b", (2, 5, 3), FP16))):
        with pytest.raises(ArgumentError, match=r"2 parts have .* B along axis 1, .* has 128 B"):
            Concat(few, whole)
    with pytest.raises(ArgumentError, match="0 parts have 0 B along axis 1"):
        Concat((), whole)
    with pytest.raises(ArgumentError, match=r"from \(0, 0, 0, 0\) on"):
        Concat((a, b), whole, 3)
    Concat((b,), whole, place=(0, 3, 0))
    for place in ((0, 4, 0), (0, -1, 0), (0, 3)):
        with pytest.raises(ArgumentError, match="it must lie in it"):
            Concat((b,), whole, place=place)
    with pytest.raises(ArgumentError, match="they must have as many, or be one part with a place"):
        Concat((a, a), whole, place=(0, 0, 0))
