"""The library's gradient of a bias: its schedule, its numbers, and the times of a 910."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.errors import ArgumentError
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Spec
from npusim.kernels.vector.library_bias_grad import LibraryBiasGrad, schedule
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.dma import DataMove
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.problem.reference import conv_bias_grad
from tests.sampled import examples

Array = npt.NDArray[Any]
Shape = tuple[int, int, int]

FIRST = load_device("ascend910")
SMALL = load_device("ascend310")
#: Elements of a step on a 910: 256 KiB of UB.
ELEMENTS = 16384


def summed(dy: Array, kind: DType, device: Device) -> Array:
    call = Call("test", Options(device=device), timing_only=False)
    source = call.input("dy", dy, kind)
    kernel = LibraryBiasGrad.on(
        device, call.vector_cores, source, call.output("db", dy.shape[1:2], FP32)
    )
    for clearing in kernel.before:
        call.launch(clearing)
    call.launch(kernel)
    return call.arrays["db"]


def kernel_of(shape: Shape, device: Device = FIRST, kind: DType = FP16) -> LibraryBiasGrad:
    db = Tensor("db", shape[1:2], FP32, "out")
    return LibraryBiasGrad.on(device, device.groups, Tensor("dy", shape, kind), db)


# -- the schedule ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "cores", "images", "channels"),
    [
        # 32 images; 57 x 57 and 13 x 13 as published, others worked out by the same rule.
        ((32, 64, 57 * 57), 8, 5, 1),
        ((32, 96, 55 * 55), 12, 5, 1),
        ((32, 192, 27 * 27), 24, 16, 1),
        ((32, 256, 13 * 13), 32, 32, 2),
        ((32, 384, 13 * 13), 32, 32, 2),
        ((32, 512, 7 * 7), 32, 32, 8),
        ((1, 20, 7 * 7), 3, 1, 8),
    ],
)
def test_channels_go_to_cores_by_eight_or_more(
    shape: Shape, cores: int, images: int, channels: int
) -> None:
    found = schedule(shape, 32, ELEMENTS)
    assert not found.atomic
    assert found.slots == 1, "the library has no double buffer here"
    assert (found.cores, found.images, found.channels) == (cores, images, channels)
    assert found.unit == max(8, -(-shape[1] // 32))


@pytest.mark.parametrize(
    ("shape", "atomic"),
    [
        ((32, 192, 28 * 28), True),
        ((32, 1024, 28 * 28), True),
        ((32, 1025, 28 * 28), False),  # more channels on a core than images
        ((32, 192, 27 * 27), False),  # 729 numbers of fp32 are no whole blocks
        ((1, 2, 388 * 388), True),
        ((1, 64, 568 * 568), False),
        ((2, 64, 141 * 141), True),  # no whole blocks, but larger than a step
        ((2, 65, 141 * 141), False),
    ],
)
def test_images_go_to_cores_where_pictures_are_whole_blocks(shape: Shape, atomic: bool) -> None:
    assert schedule(shape, 32, ELEMENTS).atomic is atomic
    kernel = kernel_of(shape)
    assert bool(kernel.before) is atomic, "what is added to is cleared before"
    assert ("atomically" in kernel.tiling_text) is atomic


def test_a_few_images_are_cut_into_positions() -> None:
    found = schedule((1, 2, 388 * 388), 32, ELEMENTS)
    assert found.cores == 32
    assert found.part % 16 == 0
    assert 31 * found.part < 388 * 388 <= 32 * found.part


@pytest.mark.parametrize(
    ("rows", "channels", "cores", "run", "columns"),
    [
        (32, 4096, 32, 1, 4096),
        (10, 4096, 10, 1, 4096),
        (50_176, 384, 32, 42, 384),
        (8192, 10, 32, 256, 10),
        (64, 20_000, 32, 1, 16_384),
    ],
)
def test_vectors_go_to_cores_by_rows(
    rows: int, channels: int, cores: int, run: int, columns: int
) -> None:
    found = schedule((rows, channels, 1), 32, ELEMENTS)
    assert found.atomic
    assert (found.cores, found.images, found.channels) == (cores, run, columns)


def loads(shape: Shape, kind: DType = FP16) -> list[int]:
    """Rows of every load in the kernel's first step."""
    program = build(kernel_of(shape, kind=kind), FIRST, tuple(range(FIRST.groups)))
    instructions = program.templates[0].instructions
    moves = [one for one in instructions if isinstance(one, DataMove)]
    return [one.src.rows for one in moves if one.src.memory == "GM"]


def test_rows_that_are_no_whole_blocks_are_loads_of_their_own() -> None:
    assert loads((32, 64, 57 * 57)) == [1] * 5
    assert loads((32, 256, 13 * 13)) == [1] * 64
    assert loads((32, 512, 7 * 7)) == [1] * 256
    assert loads((2, 100, 24)) == [2], "two images, whole blocks apart"
    assert loads((2, 9, 8), FP32) == [1], "a core has all of dy: one piece"
    # 20 channels of an image of 784 numbers lie together; 4720 of 150,544 positions do not.
    assert loads((32, 192, 784)) == [1]
    assert loads((1, 2, 388 * 388)) == [2]
    assert loads((50_176, 384, 1)) == [42], "rows of 768 B"
    assert loads((8192, 10, 1)) == [1] * 256, "rows of 20 B"


# -- numbers -----------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> tuple[Shape, DType, Device]:
    channels = draw(st.sampled_from([1, 7, 16, 33, 260]))
    images = draw(st.integers(1, 5) | st.sampled_from([33, 70]))
    positions = draw(
        st.just(1) | st.integers(1, 40) | st.sampled_from([64, 169, 784, 8191, 20_000])
    )
    if images * channels * positions > 2_000_000:
        images, channels = 3, 7
    device = draw(st.sampled_from([FIRST, SMALL]))
    return (images, channels, positions), draw(st.sampled_from([FP16, FP32])), device


@examples(60)
@given(problems())
def test_sums_are_exact_where_fp32_is(problem: tuple[Shape, DType, Device]) -> None:
    shape, kind, device = problem
    dy = np.random.default_rng(sum(shape)).integers(-8, 9, shape).astype(kind.numpy)
    want = dy.astype(np.float64).sum(axis=(0, 2))
    np.testing.assert_array_equal(summed(dy, kind, device), want)


@pytest.mark.parametrize("kind", [FP16, FP32], ids=["fp16", "fp32"])
@pytest.mark.parametrize("shape", [(2, 3, 20_011), (3, 70, 49), (64, 5, 784), (300, 5, 1)])
def test_sums_are_fp32(shape: Shape, kind: DType) -> None:
    dy = np.random.default_rng(1).uniform(-1, 1, shape).astype(kind.numpy)
    want = conv_bias_grad(dy.astype(np.float64))
    terms = np.abs(dy.astype(np.float64)).sum(axis=(0, 2))
    assert (np.abs(summed(dy, kind, FIRST) - want) <= 2.0**-18 * terms).all()


def test_a_device_with_fewer_cores_than_the_schedule_runs_it() -> None:
    dy = np.random.default_rng(1).integers(-8, 9, (32, 40, 9)).astype(np.float16)
    call = Call("test", Options(device=FIRST, cores=[0, 1, 2]), timing_only=False)
    source = call.input("dy", dy, FP16)
    sums = call.output("db", (40,), FP32)
    call.launch(LibraryBiasGrad.on(FIRST, 32, source, sums))
    assert call.runs[0].cores == 3
    np.testing.assert_array_equal(call.arrays["db"], dy.astype(np.float64).sum(axis=(0, 2)))


@pytest.mark.parametrize(
    ("dy", "db", "text"),
    [
        (Tensor("dy", (0, 3, 4), FP16), Tensor("db", (3,), FP32), "every size at least 1"),
        (Tensor("dy", (2, 3, 4, 4), FP16), Tensor("db", (3,), FP32), r"must be fp16 or fp32"),
        (Tensor("dy", (2, 3, 4), FP16), Tensor("db", (2,), FP32), r"fp32 of shape \(3,\)"),
        (Tensor("dy", (2, 3, 4), FP16), Tensor("db", (3,), FP16), "db is fp16"),
    ],
)
def test_refused(dy: Tensor, db: Tensor, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        LibraryBiasGrad(dy, db, schedule((2, 3, 4), 32, ELEMENTS))


# -- times -------------------------------------------------------------------------------------


def time_us(shape: Shape) -> float:
    call = Call("test", Options(device=FIRST, launch="graph"), timing_only=True)
    source = call.input("dy", Spec(shape, FP16), FP16)
    call.launch(LibraryBiasGrad.on(FIRST, 32, source, call.output("db", shape[1:2], FP32)))
    (run,) = call.runs
    return FIRST.time_us(run.cycles + run.launch_cycles)


@pytest.mark.parametrize(
    ("shape", "measured_us"),
    [((32, 64, 57 * 57), 148.6), ((32, 256, 13 * 13), 54.5)],
)
def test_a_910_takes_what_a_profile_has(shape: Shape, measured_us: float) -> None:
    """BiasAddGrad in a published profile of a training step of AlexNet, batch 32.

    No figure of the device was fitted to them.
    """
    assert time_us(shape) == pytest.approx(measured_us, rel=0.2)


# -- through the operator -------------------------------------------------------------------------


def test_the_operator_runs_it_where_the_library_is_asked_for() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (2, 8, 7, 5)).astype(np.float16)
    w = rng.integers(-2, 3, (12, 4, 3, 3)).astype(np.float16)
    dy = rng.integers(-2, 3, (2, 12, 7, 5)).astype(np.float16)
    options: dict[str, Any] = {
        "padding": 1,
        "groups": 2,
        "bias_sizes": (12,),
        "output_mask": (False, False, True),
    }

    def result(device: str, tiling: str) -> tuple[list[str], Any]:
        found = npusim.ops.convolution_backward(dy, x, w, device=device, tiling=tiling, **options)
        np.testing.assert_array_equal(found.grad_bias, conv_bias_grad(dy))
        return [run.name for run in found.runs], found

    names, found = result("ascend910", "library")
    assert names == ["bias_add_grad", "cast"], "the library's result is fp32"
    assert any("BiasAddGrad" in note and "'auto'" in note for note in found.notes)
    assert result("ascend910", "auto")[0] == ["bias_grad"]
    assert result("ascend910b2", "library")[0] == ["bias_grad"]


@pytest.mark.parametrize("size", [(16,), (4, 4), (2, 2, 4), (1, 1)])
def test_the_operator_sums_maps_of_any_rank(size: tuple[int, ...]) -> None:
    """One position is a vector, whose sums are atomic whatever its length."""
    dy = np.random.default_rng(0).integers(-2, 3, (3, 5, *size)).astype(np.float16)
    ones = (1,) * len(size)
    found = npusim.ops.convolution_backward(
        dy,
        dy,
        np.ones((5, 5, *ones), np.float16),
        bias_sizes=(5,),
        output_mask=(False, False, True),
        device="ascend910",
        tiling="library",
        rules="hardware",
    )
    np.testing.assert_array_equal(found.grad_bias, conv_bias_grad(dy))
    assert [run.name for run in found.runs] == ["mem_set", "bias_add_grad", "cast"]
