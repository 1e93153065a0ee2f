"""Copies of views that do not lie contiguous, against NumPy, and what they cost."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.dtypes import BF16, FP16, FP32, INT8, DType
from npusim.base.errors import ArgumentError
from npusim.call.call import simulate
from npusim.kernels.layout.strided_copy import Contiguous, ViewCopy, between, elements_spanned
from npusim.kernels.layout.transpose import Transpose
from npusim.machine.isa.operands import Tensor
from tests.sampled import examples

Array = np.ndarray[Any, Any]

#: Chips of four kinds, one of them without elements narrower than what its vector unit turns.
CHIPS = ("tiny", "ascend910", "ascend910b2", "ascend950pr")

#: A map of NCHW that lies as NHWC.
MAP = (2, 64, 9, 11)
CHANNELS_LAST = (64 * 9 * 11, 1, 11 * 64, 64)


def stored(view: Array) -> tuple[Array, tuple[int, ...]]:
    """The storage of a view, from its first element to its last, and its strides in elements."""
    strides = tuple(step // view.itemsize for step in view.strides)
    storage = np.zeros(elements_spanned(view.shape, strides), view.dtype)
    np.lib.stride_tricks.as_strided(storage, view.shape, view.strides)[...] = view
    return storage, strides


def check_contiguous(view: Array, dtype: DType, device: str) -> None:
    """The bits of a view arrive in row-major order."""
    storage, strides = stored(view)
    source = Tensor("x", storage.shape, dtype)
    kernel = Contiguous(view.shape, strides, source, Tensor("y", view.shape, dtype, "out"))
    result = simulate(kernel, device, storage.view(dtype.numpy), timeline=False)
    assert result.outputs is not None
    assert result.outputs[0] is not None
    np.testing.assert_array_equal(result.outputs[0].view(view.dtype), view)


def check_view_copy(view: Array, dtype: DType, device: str) -> None:
    """The bits arrive in the view, and what lies between its elements stays."""
    storage, strides = stored(view)
    before = np.full_like(storage, 99)
    source = Tensor("x", view.shape, dtype)
    target = Tensor("y", storage.shape, dtype, "inout")
    kernel = ViewCopy(view.shape, strides, source, target)
    arrays = (np.ascontiguousarray(view).view(dtype.numpy), before.view(dtype.numpy))
    result = simulate(kernel, device, *arrays, timeline=False)
    assert result.outputs is not None
    assert result.outputs[0] is not None
    np.lib.stride_tricks.as_strided(before, view.shape, view.strides)[...] = view
    np.testing.assert_array_equal(result.outputs[0].view(view.dtype), before)


def bits(shape: tuple[int, ...], dtype: DType) -> Array:
    """Bit patterns, all different as far as the type goes."""
    word = np.dtype(f"u{dtype.bytes}")
    return (np.arange(prod(shape)) * 40503 % 65521 + 1).astype(word).reshape(shape)


VIEWS = {
    "channels last": bits((2, 9, 11, 64), FP16).transpose(0, 3, 1, 2),
    "every second element": bits((3, 40, 66), FP16)[:, :, ::2],
    "every second row": bits((3, 40, 66), FP16)[:, ::2],
    "a slice of channels": bits((4, 9, 11, 64), FP16)[..., :3].transpose(0, 3, 1, 2),
    "short rows": bits((100, 16), FP16)[:, :3],
    "a column": bits((100, 16), FP16)[:, 5],
}
REPEATED = {
    "one number": np.broadcast_to(bits((1, 1, 1), FP16), (7, 40, 33)),
    "a number per channel": np.broadcast_to(bits((1, 20, 1), FP16), (3, 20, 49)),
    "a number per image and channel": np.broadcast_to(bits((3, 20, 1), FP16), (3, 20, 49)),
    "one image": np.broadcast_to(bits((1, 20, 49), FP16), (3, 20, 49)),
    "in the middle": np.broadcast_to(bits((3, 1, 49), FP16), (3, 20, 49)),
}


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("name", [*VIEWS, *REPEATED])
def test_views_that_callers_have_are_made_contiguous(name: str, device: str) -> None:
    check_contiguous((VIEWS | REPEATED)[name], FP16, device)


@pytest.mark.parametrize("name", VIEWS)
def test_results_are_written_into_views(name: str) -> None:
    check_view_copy(VIEWS[name], FP16, "ascend910b2")


@examples(60)
@given(data=st.data())
def test_any_view_of_any_type(data: st.DataObject) -> None:
    sizes = st.sampled_from((1, 2, 3, 8, 16, 19, 33))
    shape = data.draw(st.lists(sizes, min_size=1, max_size=4))
    dtype, device = data.draw(st.sampled_from((FP16, BF16, FP32, INT8))), "ascend910b2"
    view = bits(tuple(shape), dtype).transpose(data.draw(st.permutations(range(len(shape)))))
    step = st.sampled_from((1, 1, 2, 3))
    view = view[tuple(slice(None, None, data.draw(step)) for _ in shape)]
    check_view_copy(view, dtype, device)
    axis, count = data.draw(st.integers(0, len(shape))), data.draw(st.sampled_from((1, 2, 70)))
    target = (*view.shape[:axis], count, *view.shape[axis:])
    check_contiguous(np.broadcast_to(np.expand_dims(view, axis), target), dtype, device)


def copy(shape: tuple[int, ...], strides: tuple[int, ...]) -> Contiguous:
    storage = Tensor("x", (elements_spanned(shape, strides),), FP16)
    return Contiguous(shape, strides, storage, Tensor("y", shape, FP16, "out"))


def test_a_map_in_channels_last_takes_what_its_transpose_takes() -> None:
    shape, strides = (32, 64, 112, 112), (64 * 112 * 112, 1, 112 * 64, 64)
    x, y = Tensor("x", (32, 112, 112, 64), FP16), Tensor("y", shape, FP16, "out")
    turned = simulate(Transpose((0, 3, 1, 2), x, y), "ascend910b2", timeline=False)
    copied = simulate(copy(shape, strides), "ascend910b2", timeline=False)
    assert copied.cycles == turned.cycles


def test_what_is_repeated_is_read_once_and_not_from_main_memory_each_time() -> None:
    """One number over 51 MB: the time is that of writing them."""
    result = simulate(copy((32, 64, 112, 112), (0, 0, 0, 0)), "ascend910b2", timeline=False)
    written = 32 * 64 * 112 * 112 * 2
    traffic = result.traffic.set_index(["src", "dst"]).bytes
    assert traffic["UB", "GM"] == written
    assert traffic["GM", "UB"] < written / 1000


def test_axes_are_merged() -> None:
    """Of a map in channels last three are left, of rows with a gap behind each image two."""
    plain = (64 * 9 * 11, 9 * 11, 11, 1)
    axes = between(MAP, CHANNELS_LAST, plain)
    assert (axes.sizes, axes.perm) == ((2, 99, 64), (0, 2, 1))
    axes = between(MAP, (2 * 64 * 99, 99, 11, 1), plain)
    assert (axes.sizes, axes.perm) == ((2, 64 * 99), (0, 1))


@pytest.mark.parametrize("device", CHIPS)
def test_a_view_begins_anywhere_in_its_storage(device: str) -> None:
    storage = np.arange(7 * 40, dtype=np.float16)
    view = np.lib.stride_tricks.as_strided(storage[43:], (3, 5), (80 * 2, 3 * 2))
    x, y = Tensor("x", storage.shape, FP16), Tensor("y", view.shape, FP16, "out")
    result = simulate(Contiguous((3, 5), (80, 3), x, y, first=43), device, storage)
    assert result.outputs is not None
    np.testing.assert_array_equal(result.outputs[0], view)
    x, y = Tensor("x", view.shape, FP16), Tensor("y", storage.shape, FP16, "inout")
    back = ViewCopy((3, 5), (80, 3), x, y, first=43)
    result = simulate(back, device, np.ascontiguousarray(view), np.zeros_like(storage))
    want = np.zeros_like(storage)
    np.lib.stride_tricks.as_strided(want[43:], (3, 5), (80 * 2, 3 * 2))[...] = view
    assert result.outputs is not None
    np.testing.assert_array_equal(result.outputs[0], want)


def test_wrong_views_are_refused() -> None:
    storage, y = Tensor("x", (10,), FP16), Tensor("y", (3, 4), FP16, "out")
    with pytest.raises(ArgumentError, match=r"reaches element 11 of x, which has 10"):
        Contiguous((3, 4), (4, 1), storage, y)
    with pytest.raises(ArgumentError, match=r"from element 2 on reaches element 10 of x"):
        Contiguous((3, 3), (3, 1), storage, Tensor("y", (3, 3), FP16, "out"), first=2)
    with pytest.raises(ArgumentError, match=r"from element -1 on"):
        Contiguous((3, 3), (3, 1), storage, Tensor("y", (3, 3), FP16, "out"), first=-1)
    with pytest.raises(ArgumentError, match="one for each axis, of at least 0"):
        Contiguous((3, 4), (4,), storage, y)
    with pytest.raises(ArgumentError, match="the view has 6 elements of fp16, y"):
        Contiguous((3, 2), (2, 1), storage, y)
    with pytest.raises(ArgumentError, match="an axis of stride 0 would be written several times"):
        ViewCopy((3, 4), (0, 1), Tensor("x", (3, 4), FP16), Tensor("y", (10,), FP16, "out"))
