"""The transposing kernel against NumPy, and how it cuts and turns its tiles."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, DType
from npusim.base.errors import ArgumentError
from npusim.call.call import simulate
from npusim.kernels.layout.rearrangement import Axes
from npusim.kernels.layout.transpose import Transpose, merged
from npusim.machine.device.catalog import devices, load_device
from npusim.machine.isa.dma import DataMove
from npusim.machine.isa.operands import Tensor
from npusim.machine.isa.vector import VecCast, VecTranspose
from npusim.machine.program.build import build
from npusim.machine.program.program import Program
from tests.sampled import examples

Array = np.ndarray[Any, Any]

#: Every device with vector cores; the DSPs have none.
CHIPS = [
    name
    for name in devices()
    if any("vector" in kind.roles for kind in load_device(name).cores.values())
]
TYPES = (FP16, BF16, FP32, INT8, INT32)


def kernel(shape: tuple[int, ...], perm: tuple[int, ...], dtype: DType = FP32) -> Transpose:
    x = Tensor("x", shape, dtype)
    return Transpose(perm, x, Tensor("y", tuple(shape[a] for a in perm), dtype, "out"))


def program(shape: tuple[int, ...], perm: tuple[int, ...], dtype: DType = FP32) -> Program:
    return build(kernel(shape, perm, dtype), load_device("ascend910b2"), tuple(range(24)))


def check(shape: tuple[int, ...], perm: tuple[int, ...], dtype: DType, device: str) -> None:
    """Bit patterns, all different as far as the type goes, arrive where NumPy puts them."""
    word = np.dtype(f"u{dtype.bytes}")
    bits = (np.arange(np.prod(shape)) * 40503 % 65521 + 1).astype(word).reshape(shape)
    result = simulate(kernel(shape, perm, dtype), device, bits.view(dtype.numpy))
    assert result.outputs is not None
    assert result.outputs[0] is not None
    np.testing.assert_array_equal(result.outputs[0].view(word), bits.transpose(perm))


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_matrices_with_tails_on_every_vector_device(device: str, dtype: DType) -> None:
    check((131, 77), (1, 0), dtype, device)


@pytest.mark.parametrize("perm", list(permutations(range(4))))
def test_every_order_of_four_axes(perm: tuple[int, ...]) -> None:
    check((3, 17, 5, 40), perm, FP16, "ascend910b2")


@pytest.mark.parametrize(
    ("shape", "perm"),
    [((1,), (0,)), ((7,), (0,)), ((1, 1, 1), (2, 0, 1)), ((1, 9, 1, 33), (3, 2, 1, 0))],
)
def test_single_elements_and_axes_of_one(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    check(shape, perm, FP32, "tiny")


@examples(40)
@given(data=st.data())
def test_any_permutation_of_any_type(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from((1, 2, 3, 8, 16, 19, 33)), min_size=1, max_size=4))
    perm = data.draw(st.permutations(range(len(shape))))
    dtype, device = data.draw(st.sampled_from(TYPES)), data.draw(st.sampled_from(CHIPS))
    check(tuple(shape), tuple(perm), dtype, device)


def test_merged_joins_what_stays_together() -> None:
    assert merged((2, 3, 4, 5), (2, 3, 0, 1)) == Axes((6, 20), (1, 0))
    assert merged((3, 7, 13, 40), (0, 3, 1, 2)) == Axes((3, 91, 40), (0, 2, 1))
    assert merged((4, 1, 6), (2, 1, 0)) == Axes((4, 6), (1, 0))
    assert merged((4, 1, 6), (0, 2, 1)) == Axes((24,), (0,))


def test_odd_rows_are_turned_by_fractals() -> None:
    """16 rows of 8 floats a time, where either side's rows end inside a block of 32 B."""
    for shape in ((4096, 1001), (1001, 4096)):
        moves = [i for t in program(shape, (1, 0)).templates for i in t.instructions]
        assert max(r.size for i in moves for r in i.reads()) == 512
    # 32 x 16 floats a time on a 950
    made = build(kernel((4096, 1001), (1, 0)), load_device("ascend950pr"), tuple(range(32)))
    moves = [i for t in made.templates for i in t.instructions]
    assert max(r.size for i in moves for r in i.reads()) == 2048
    assert not Axes((4096, 1000), (1, 0)).ragged(4)
    assert not Axes((7, 5, 1001), (1, 0, 2)).ragged(4)  # rows only move


def test_bytes_are_turned_as_halves() -> None:
    found = [type(i) for t in program((64, 64), (1, 0), INT8).templates for i in t.instructions]
    assert found == [DataMove, VecCast, VecTranspose, VecCast, DataMove]


def test_a_perm_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"perm is \(0, 0\); it must name each of the 2 axes"):
        kernel((3, 4), (0, 0))


def test_a_target_of_another_shape_is_refused() -> None:
    x = Tensor("x", (3, 4), FP32)
    with pytest.raises(ArgumentError, match=r"gives \(4, 3\), not y \(3, 4\)"):
        Transpose((1, 0), x, Tensor("y", (3, 4), FP32, "out"))
