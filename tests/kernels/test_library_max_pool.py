"""The library's maximum pooling and its gradient: numbers, tiles, instructions, published times."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32, INT8
from npusim.base.errors import ArgumentError
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.kernels.windows.library_max_pool import LibraryMaxPool, rows_in_tile
from npusim.kernels.windows.library_max_pool_grad import (
    LibraryMaxPoolGrad,
    rows_in_step,
    steps_of,
)
from npusim.kernels.windows.library_windows import is_resnet50
from npusim.kernels.windows.pool import pooled
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.ops.library_pool import launch_library_pool
from npusim.problem.convolution import Convolution
from tests.kernels.test_pool import gradient, mask_of, maxima, windows_of
from tests.sampled import examples

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

FIRST = load_device("ascend910")
ROOM = FIRST.memory("UB").size_bytes
NONE = ((0, 0), (0, 0))
SAME = ((1, 1), (1, 1))
#: ResNet-50's, with its padding before or behind the map.
STEM = pooled((32, 4, 112, 112, 16), (3, 3), (2, 2), ((1, 0), (1, 0)))


def forward(shape: Shape, s: Convolution) -> LibraryMaxPool:
    x = Tensor("x", shape, FP16)
    y = Tensor("y", windows_of(shape, s), FP16, "out")
    return LibraryMaxPool(s, x, y, mask_of(shape, s, "out"))


def backward(shape: Shape, s: Convolution) -> LibraryMaxPoolGrad:
    dy = Tensor("dy", windows_of(shape, s), FP16)
    dx = Tensor("dx", shape, FP16, "out")
    return LibraryMaxPoolGrad(s, dy, dx, mask_of(shape, s, "in"))


def check(shape: Shape, s: Convolution, device: str | Device = "ascend910") -> None:
    """Both kernels on maps of small integers, whose sums any order makes alike."""
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(-9, 10, shape).astype(np.float16)
    dy = rng.integers(-9, 10, windows_of(shape, s)).astype(np.float16)
    want, taken = maxima(x.astype(np.float64), s)
    outputs = npusim.simulate(forward(shape, s), device, x).outputs
    assert outputs is not None
    y, mask = (np.asarray(output) for output in outputs)
    np.testing.assert_array_equal(y, want.astype(np.float16))
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits.reshape(taken.shape), taken)
    kernel = backward(shape, s)
    call = Call("test", Options(device=device), timing_only=False)
    call.input("dy", dy, FP16)
    call.input("mask", mask, INT8)
    call.output("dx", shape, FP16)
    for clearing in kernel.before:
        call.launch(clearing)
    call.launch(kernel)
    dx = call.arrays["dx"].reshape(shape)
    np.testing.assert_array_equal(dx, gradient(dy.astype(np.float64), s, "max", taken))


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((1, 2, 57, 57), (3, 3), (2, 2), NONE),  # four tiles, two steps that share a row
        ((2, 2, 13, 13), (3, 3), (2, 2), NONE),  # whole planes
        ((1, 1, 28, 30), (3, 3), (1, 1), SAME),  # row by row
        ((1, 1, 60, 57), (2, 2), (2, 2), NONE),  # pixels that no window reads
        ((1, 1, 112, 112), (3, 3), (2, 2), ((1, 0), (1, 0))),  # ResNet-50, padding before
        ((1, 2, 112, 112), (3, 3), (2, 2), ((0, 1), (0, 1))),  # and behind
        ((3, 2, 7, 7), (7, 7), (1, 1), NONE),  # the whole map
        ((1, 1, 100, 12), (3, 3), (2, 2), ((1, 1), (1, 1))),  # few planes, many rows: groups
        ((1, 1, 9, 11), (2, 3), (3, 2), NONE),  # rows that no window reads between others
    ],
)
def test_numbers(shape: Shape, kernel: Any, stride: Any, padding: Any) -> None:
    shape = (*shape, 16)
    check(shape, pooled(shape, kernel, stride, padding))


@pytest.mark.parametrize("device", ["ascend310", "ascend310p"])
def test_numbers_on_relatives(device: str) -> None:
    shape = (2, 2, 15, 17, 16)
    check(shape, pooled(shape, (3, 3), (2, 2), SAME), device)


@examples(30)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 24), st.integers(1, 24)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(*(st.tuples(st.integers(0, 2), st.integers(0, 2)) for _ in range(2))),
)
def test_any_windows_that_it_takes(sizes: Shape, kernel: Any, stride: Any, padding: Any) -> None:
    shape = (*(max(pair) for pair in zip(sizes, (1, 1, *kernel), strict=True)), 16)
    s = pooled(shape, kernel, stride, padding)
    small = FIRST.replace("memories.UB.size", "24KiB")  # many tiles and steps
    for kind in (LibraryMaxPool, LibraryMaxPoolGrad):
        if not kind.takes(s, FP16, small):
            return
    check(shape, s, small)


# -- the rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "tile", "step"),
    [
        # 32 images; tiles and steps worked out from the library's rules.
        ((32, 4, 57, 57), (3, 3), (2, 2), NONE, 9, 15),
        ((32, 16, 13, 13), (3, 3), (2, 2), NONE, 6, 6),
        ((32, 16, 27, 27), (3, 3), (2, 2), NONE, 13, 13),
        ((32, 12, 56, 56), (3, 3), (2, 2), ((0, 1), (0, 1)), 9, 15),
        ((32, 12, 28, 28), (3, 3), (1, 1), SAME, 8, 28),
        ((32, 4, 112, 112), (2, 2), (2, 2), NONE, 6, 7),
    ],
)
def test_tiles(shape: Shape, kernel: Any, stride: Any, padding: Any, tile: int, step: int) -> None:
    s = pooled((*shape, 16), kernel, stride, padding)
    assert rows_in_tile(s, ROOM) == tile
    if kernel == (3, 3) and stride == (1, 1):
        return  # row by row
    assert rows_in_step(s, ROOM) == step


def test_steps_share_a_row_and_no_pixel() -> None:
    s = pooled((32, 4, 57, 57, 16), (3, 3), (2, 2))
    steps = steps_of(s, 15, 0, 28)
    assert [(step.first, step.rows) for step in steps] == [(0, 15), (14, 14)]
    assert [(step.top, step.bottom) for step in steps] == [(0, 30), (30, 57)]


def issued(kernel: Any) -> Counter[str]:
    """Instructions of the core that has most, by name; masks that are loaded are "masks"."""
    program = build(kernel, FIRST, tuple(range(FIRST.groups)))
    counts: Counter[str] = Counter()
    core = max(program.cores, key=lambda core: len(core.variants))
    for variant in core.variants:
        template = program.templates[program.variants[variant].template]
        for instruction in template.instructions:
            counts[instruction.op] += 1
            if instruction.op == "data_move" and "GM" in str(instruction.move):
                counts[f"{instruction.src.memory}->{instruction.dst.memory}"] += 1
    return counts


def test_instructions_of_the_published_cases() -> None:
    shape = (32, 4, 57, 57, 16)
    s = pooled(shape, (3, 3), (2, 2))
    counts = issued(forward(shape, s))
    assert counts["load3d"] == 200
    assert counts["vec_max"] == counts["vec_compare"] == 1800
    assert counts["vec_or"] + counts["vec_and"] + counts["vec_not"] == 16 * 25
    counts = issued(backward(shape, s))
    assert counts["vec_select"] == counts["col2img"] == 4 * 2 * 9
    shape = (32, 16, 13, 13, 16)
    s = pooled(shape, (3, 3), (2, 2))
    counts = issued(forward(shape, s))
    assert (counts["load3d"], counts["vec_max"], counts["vec_compare"]) == (48, 432, 432)
    counts = issued(forward(STEM_SHAPE, STEM))
    assert (counts["vec_max"], counts["vec_adds"], counts["vec_compare"]) == (1792, 2016, 252)
    counts = issued(backward(STEM_SHAPE, STEM))
    assert (counts["vec_select"], counts["vec_add"]) == (252, 2016)


STEM_SHAPE = (32, 4, 112, 112, 16)


@pytest.mark.parametrize(
    ("shape", "padding", "kind", "measured"),
    [
        ((32, 4, 57, 57, 16), NONE, forward, 63.5),
        ((32, 4, 57, 57, 16), NONE, backward, 138.8),
        ((32, 16, 13, 13, 16), NONE, forward, 21.5),
        ((32, 16, 13, 13, 16), NONE, backward, 108.1),
        (STEM_SHAPE, ((1, 0), (1, 0)), forward, 113.6),
        (STEM_SHAPE, ((1, 0), (1, 0)), backward, 259.0),
    ],
)
def test_published_times(shape: Shape, padding: Any, kind: Any, measured: float) -> None:
    """Two figures are fitted to these six times: a barrier, and the start-up of a move."""
    kernel = kind(shape, pooled(shape, (3, 3), (2, 2), padding))
    time = npusim.simulate(kernel, "ascend910", launch="graph").time_us
    assert time == pytest.approx(measured, rel=0.12)


# -- who runs it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "tiling", "runs"),
    [
        ("ascend910", "library", True),
        ("ascend910", "auto", False),
        ("ascend310p", "library", True),
        ("ascend910b2", "library", False),
    ],
)
def test_who_runs_it(device: str, tiling: str, runs: bool) -> None:
    shape = (2, 2, 15, 15, 16)
    s = pooled(shape, (3, 3), (2, 2))
    call = Call("test", Options(device=device, tiling=tiling), timing_only=True)
    x = call.input("x", Spec(shape, FP16), FP16, shape)
    y = call.output("y", windows_of(shape, s), FP16)
    mask = call.output("mask", (s.taps, prod(windows_of(shape, s)) // 8), INT8)
    assert launch_library_pool(call, s, x, y, mask, back=False) is runs
    assert len(call.runs) == runs
    assert len(call.notes) == runs
    if runs:
        assert ("extrapolated" in call.notes[0]) is (device != "ascend910")


def test_windows_that_it_does_not_take() -> None:
    shape = (1, 1, 9, 9, 16)
    fits = pooled(shape, (3, 3), (2, 2))
    for s, dtype, why in (
        (fits, FP32, "maps are fp32 in blocks of 16"),
        (pooled((1, 1, 16, 17, 16), (16, 16), (1, 1)), FP16, "256 taps; the most are 255"),
        (pooled((1, 1, 9, 3, 16), (3, 3), (2, 2)), FP16, "one column of several rows"),
        (pooled((1, 1, 4, 5, 16), (2, 2), (3, 3), ((2, 0), (0, 2))), FP16, "must read the map"),
    ):
        assert why in LibraryMaxPool.refusal(s, dtype)
        assert not LibraryMaxPoolGrad.takes(s, dtype, FIRST)
    assert not LibraryMaxPool.takes(fits, FP16, load_device("ascend910b2"))  # no img2col to UB
    assert not LibraryMaxPool.takes(pooled(shape, (1, 1), (2, 2)), FP16, FIRST)  # nothing to join
    assert is_resnet50(STEM)
    with pytest.raises(ArgumentError, match=r"x is fp16 of shape .* makes it fp16 of 1 x 81"):
        LibraryMaxPool(
            fits,
            Tensor("x", (1, 1, 9, 8, 16), FP16),
            Tensor("y", windows_of(shape, fits), FP16, "out"),
            mask_of(shape, fits, "out"),
        )
    with pytest.raises(ArgumentError, match="a bit for each tap and element"):
        LibraryMaxPool(
            fits,
            Tensor("x", shape, FP16),
            Tensor("y", windows_of(shape, fits), FP16, "out"),
            Tensor("mask", (9, 30), INT8, "out"),
        )
