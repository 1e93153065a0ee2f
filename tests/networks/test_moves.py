"""Permutations, parts, shifts, repeats and sums of plain tensors: numbers as NumPy's, and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.errors import ArgumentError
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.machine.isa.operands import Tensor
from npusim.networks.run import moves

DEVICES = ("ascend310", "ascend910", "ascend910b2")

Array = npt.NDArray[Any]
Move = Callable[[Call, Tensor, Tensor], None]


def drawn(shape: Sequence[int], dtype: DType = FP16) -> Array:
    """Random numbers, always the same."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype.numpy)


def moved(
    device: str, move: Move, x: Array, shape: Sequence[int], dtype: DType = FP16, read: DType = FP16
) -> Array:
    """What a move makes of ``x``."""
    call = Call("move", Options(device=device, check=True), timing_only=False)
    source, target = call.input("x", x, read), call.output("y", tuple(shape), dtype)
    move(call, source, target)
    return np.asarray(call.arrays["y"]).reshape(shape)


def given(function: Callable[..., None], *arguments: Any) -> Move:
    """A move with these arguments behind its tensors."""

    def move(call: Call, source: Tensor, target: Tensor) -> None:
        function(call, source, target, *arguments)

    return move


def timed(
    device: str, move: Move, read: Sequence[int], written: Sequence[int]
) -> tuple[Call, float]:
    """The call of a move of fp16, timed alone, and its microseconds without launches."""
    call = Call("move", Options(device=device), timing_only=True)
    source = call.input("x", npusim.spec(tuple(read), "fp16"), FP16)
    target = call.output("y", tuple(written), FP16)
    move(call, source, target)
    return call, sum(call.device.time_us(run.cycles) for run in call.runs)


# -- permutations ----------------------------------------------------------------------------------

PERMUTED = (
    ((3, 50, 4, 32), (0, 2, 1, 3)),  # heads of attention
    ((2, 4, 37, 64), (0, 2, 1, 3)),
    ((2, 48, 49), (0, 2, 1)),  # channels last, of odd maps
    ((2, 49, 48), (0, 2, 1)),
    ((2, 3, 160), (0, 2, 1)),  # and of three channels
    ((2, 160, 3), (0, -1, -2)),
    ((4, 96, 14, 14), (0, 2, 3, 1)),
    ((5, 7, 11), (2, 1, 0)),
    ((3, 4, 5, 6, 7), (4, 0, 2, 1, 3)),
    ((4, 9), (0, 1)),
    ((4,), (0,)),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
def test_axes_are_permuted(dtype: DType, device: str) -> None:
    for shape, axes in PERMUTED:
        x = drawn(shape, dtype)
        want = np.transpose(x, axes)
        found = moved(device, given(moves.permute, axes), x, want.shape, dtype, dtype)
        np.testing.assert_array_equal(found, want, err_msg=f"{shape} by {axes}")


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((32, 197, 12, 64), (0, 2, 1, 3)),
        ((8, 1024, 16, 128), (0, 2, 1, 3)),
        ((2048, 49, 3, 3, 32), (2, 0, 3, 1, 4)),
        ((32, 64, 56, 56), (0, 2, 3, 1)),
        ((32, 56, 56, 64), (0, 3, 1, 2)),
        ((32, 2048, 7, 7), (0, 2, 3, 1)),
        ((32, 7, 7, 2048), (0, 3, 1, 2)),
        ((32, 3, 224, 224), (0, 2, 3, 1)),
        ((32, 224, 224, 3), (0, 3, 1, 2)),
    ],
)
def test_a_permutation_takes_up_to_three_times_the_bytes(
    shape: tuple[int, ...], axes: tuple[int, ...], device: str
) -> None:
    target = tuple(shape[axis] for axis in axes)
    call, time = timed(device, given(moves.permute, axes), shape, target)
    size = 2 * 2 * prod(shape)
    assert time <= 3 * call.device.time_us(size / call.device.main_read_rate)


def test_of_two_ways_the_faster_one_is_launched() -> None:
    def kernels(shape: tuple[int, ...], axes: tuple[int, ...]) -> list[str]:
        target = tuple(shape[axis] for axis in axes)
        permuted = timed("ascend910b2", given(moves.permute, axes), shape, target)
        return [run.name for run in permuted[0].runs]

    assert kernels((8, 64, 64, 64), (0, 2, 3, 1)) == ["transpose"]
    assert kernels((32, 2048, 7, 7), (0, 2, 3, 1)) == ["trans_data", "transpose"]
    assert kernels((32, 3, 224, 224), (0, 2, 3, 1)) == ["transpose", "trans_data"]


# -- parts -----------------------------------------------------------------------------------------

#: Shapes, and what is taken along each axis.
PARTS = (
    ((6,), np.s_[1:4]),
    ((6,), np.s_[1:4:2]),
    ((3, 40, 33), np.s_[0:, 1:, 3:20]),
    ((2, 5, 9, 7, 11), np.s_[:, :, 2:7, 1:6, 3:10]),
    ((4, 9, 57), np.s_[:, :, ::2]),  # the last element has no other behind it
    ((4, 9, 56), np.s_[1:3, 2:9:3, 1::2]),
    ((2, 8, 64), np.s_[:, :, 1::2]),
    ((2, 300, 640), np.s_[:, :, 3::4]),
    ((3, 40, 32), np.s_[:, 1::2, :]),
    ((2, 20, 20, 3), np.s_[:, ::2, 1::2, :]),
    ((7, 1), np.s_[::3, 0:1]),
    ((5, 6), np.s_[:, :]),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
def test_parts_are_taken_out_and_put_back_among_zeros(dtype: DType, device: str) -> None:
    for shape, index in PARTS:
        x = drawn(shape, dtype)
        slices = index if isinstance(index, tuple) else (index,)
        begin = [one.start or 0 for one in slices]
        step = [one.step or 1 for one in slices]
        crop, uncrop = given(moves.crop, begin, step), given(moves.uncrop, begin, step)
        part = np.ascontiguousarray(x[slices])
        np.testing.assert_array_equal(moved(device, crop, x, part.shape, dtype, dtype), part)
        whole = np.zeros_like(x)
        whole[slices] = part
        np.testing.assert_array_equal(moved(device, uncrop, part, shape, dtype, dtype), whole)


def test_every_second_element_takes_no_longer_than_three_times_the_bytes() -> None:
    # Moved one by one, as rows of a strided move, they took 533 us.
    wide, narrow = (16, 64, 16000), (16, 64, 8000)
    origin, step = (0, 0, 0), (1, 1, 2)
    call, time = timed("ascend910b2", given(moves.crop, origin, step), wide, narrow)
    size = 2 * (prod(wide) + prod(narrow))
    assert time <= 3 * call.device.time_us(size / call.device.main_read_rate)
    call, time = timed("ascend910b2", given(moves.uncrop, origin, step), narrow, wide)
    assert time <= 3 * call.device.time_us(size / call.device.main_read_rate)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_parts_are_joined_and_split(axis: int, device: str) -> None:
    sizes = (2, 4, 1)
    shapes = [[3, 5, 7] for _ in sizes]
    for shape, size in zip(shapes, sizes, strict=True):
        shape[axis] = size
    parts = [drawn(shape) for shape in shapes]
    whole = np.concatenate(parts, axis)
    call = Call("join", Options(device=device), timing_only=False)
    sources = [call.input(f"x{i}", part, FP16) for i, part in enumerate(parts)]
    moves.join(call, sources, call.output("y", whole.shape, FP16), axis)
    np.testing.assert_array_equal(call.arrays["y"], whole)

    call = Call("split", Options(device=device), timing_only=False)
    source = call.input("x", whole, FP16)
    targets = [call.output(f"y{i}", part.shape, FP16) for i, part in enumerate(parts)]
    moves.split(call, source, targets, axis)
    for target, part in zip(targets, parts, strict=True):
        np.testing.assert_array_equal(call.arrays[target.name], part)


@pytest.mark.parametrize("device", DEVICES)
def test_a_value_is_joined_with_itself(device: str) -> None:
    x = drawn((3, 5, 7))

    def twice(call: Call, source: Tensor, target: Tensor) -> None:
        moves.join(call, [source, source], target, 1)

    np.testing.assert_array_equal(
        moved(device, twice, x, (3, 10, 7)), np.concatenate([x, x], axis=1)
    )


# -- shifts and repeats ----------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_elements_are_shifted_cyclically(device: str) -> None:
    for shape, shifts, axes in (
        ((3, 4, 5), (1, 2), (1, 2)),
        ((2, 14, 14, 24), (-3, -3), (1, 2)),
        ((7,), (3,), (0,)),
        ((4, 9, 33), (38, -1), (-1, 0)),
        ((5, 6), (0,), (1,)),
        ((5, 6), (2, 3), (0, 0)),
    ):
        x = drawn(shape)
        roll = given(moves.roll, shifts, axes)
        np.testing.assert_array_equal(moved(device, roll, x, shape), np.roll(x, shifts, axes))


#: Shapes, and what they are repeated to; sums over columns and rows of all kinds lead back.
EXPANDED = (
    ((1, 3, 1), (5, 3, 7)),
    ((1, 1, 24), (6, 50, 24)),
    ((24,), (2, 3, 24)),
    ((1, 1), (3, 5)),
    ((2, 1, 3, 1, 8), (2, 4, 3, 6, 8)),
    ((1, 5, 1, 1), (4, 5, 9, 7)),
    ((2, 1, 7), (2, 30, 7)),
    ((1, 1), (4100, 1)),
    ((3, 1), (3, 4099)),  # a prime number
    ((1, 3000), (70, 3000)),  # in blocks that no 256 divides
    ((4, 9), (4, 9)),
)


@pytest.mark.parametrize("device", DEVICES)
def test_axes_are_repeated_and_summed_over(device: str) -> None:
    for small, large in EXPANDED:
        x, dy = drawn(small), drawn(large)
        np.testing.assert_array_equal(
            moved(device, moves.expand, x, large), np.broadcast_to(x, large)
        )
        shape = (1,) * (len(large) - len(small)) + small
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
        want = dy.astype(np.float64).sum(axes, keepdims=True).reshape(small)
        dx = moved(device, moves.reduce_expanded, dy, small)
        np.testing.assert_array_equal(dx, _nearly(dx, want))
        precise = moved(device, given(moves.sum_axes, axes, 0.25), dy, small, FP32)
        np.testing.assert_allclose(precise, want / 4, rtol=1e-4, atol=1e-4)


def _nearly(found: Array, want: Array) -> Array:
    """What was found, where it is within one rounding to fp16 of what is wanted."""
    near = np.abs(found - want) <= 1e-3 * np.abs(want) + 2e-3
    return np.where(near, found, want)


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_means_of_rows_and_columns(device: str) -> None:
    x = drawn((6, 50, 40))
    want = x.astype(np.float64)
    for axes, shape in (((-1,), (6, 50)), ((1,), (6, 40)), ((0, 2), (50,)), ((0, 1, 2), ())):
        count = x.size // max(1, prod(shape))
        found = moved(
            device,
            given(moves.sum_axes, axes, 1 / count),
            x,
            shape or (1,),
            FP32,
        )
        np.testing.assert_allclose(found.reshape(shape), want.mean(axes), rtol=1e-4, atol=1e-5)


# -- what is refused -------------------------------------------------------------------------------


def tensor(name: str, *shape: int, dtype: DType = FP16, role: str = "in") -> Tensor:
    return Tensor(name, shape, dtype, role)


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (lambda c: moves.permute(c, tensor("x", 2, 3), tensor("y", 2, 3), (1, 0)), r"gives \(3, 2"),
        (lambda c: moves.permute(c, tensor("x", 2, 3), tensor("y", 2, 3), (0, 0)), "once"),
        (
            lambda c: moves.crop(c, tensor("x", 2, 9), tensor("y", 2, 5), (0, 0), (1, 3)),
            r"along axis 1 the 5 elements of y begin at 0 with step 3, and x has 9",
        ),
        (lambda c: moves.crop(c, tensor("x", 2, 9), tensor("y", 2, 5), (0, -1)), "begin at -1"),
        (lambda c: moves.crop(c, tensor("x", 9), tensor("y", 2), (0,), (0,)), "at least 1"),
        (lambda c: moves.crop(c, tensor("x", 9), tensor("y", 1, 2), (0,)), "for each axis"),
        (
            lambda c: moves.uncrop(c, tensor("x", 5, dtype=FP32), tensor("y", 9), (0,)),
            "both need one type",
        ),
        (
            lambda c: moves.join(c, [tensor("a", 2, 3), tensor("b", 2, 4)], tensor("y", 2, 8), 1),
            r"along axis 1 the 2 parts have 7 elements, y of shape \(2, 8\) has 8",
        ),
        (
            lambda c: moves.join(c, [tensor("a", 2, 3), tensor("b", 3, 3)], tensor("y", 2, 6), 1),
            "may differ along axis 1 alone",
        ),
        (lambda c: moves.split(c, tensor("x", 2, 3), [tensor("a", 2, 3)], 2), "one of -2 to 1"),
        (lambda c: moves.roll(c, tensor("x", 2, 3), tensor("y", 3, 2), (1,), (0,)), "alike"),
        (lambda c: moves.roll(c, tensor("x", 2), tensor("y", 2), (1, 2), (0,)), "a shift for each"),
        (lambda c: moves.expand(c, tensor("x", 2, 3), tensor("y", 4, 3)), "must be 1 or that"),
        (
            lambda c: moves.reduce_expanded(c, tensor("x", 4, 3), tensor("y", 2, 3)),
            "must be 1 or that",
        ),
        (lambda c: moves.sum_axes(c, tensor("x", 4, 3), tensor("y", 4), (2,)), "one of -2 to 1"),
        (lambda c: moves.sum_axes(c, tensor("x", 4, 3), tensor("y", 4), (0,)), r"floats of \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(move: Callable[[Call], None], words: str) -> None:
    call = Call("move", Options(device="ascend910b2"), timing_only=True)
    with pytest.raises(ArgumentError, match=words):
        move(call)
