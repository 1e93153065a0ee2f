"""Filters wider than a load of img2col slides are cut into bands, whose sums add up."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import npusim
from npusim import spec
from npusim.base.errors import ArgumentError
from npusim.kernels.implicit_gemm import Tiling
from npusim.shapes.axis import Axis
from tests.drawn import some
from tests.ops import wide_filters
from tests.ops.wide_filters import RESULTS, Layer, drawn, time_us, wrong


def gradient(taps: int, **options: Any) -> npusim.Result:
    """The input gradient of a classifier of texts, whose filters are as wide as a word's vector."""
    shapes = (32, 100, 198, 1), (32, 1, 200, taps), (100, 1, 3, taps)
    return npusim.ops.convolution_backward(
        *(spec(shape, "fp16") for shape in shapes),
        output_mask=(True, False, False),
        rules="hardware",
        device="ascend910b2",
        timeline=False,
        **options,
    )


def test_a_tap_beyond_the_field_of_a_load_costs_little() -> None:
    """906 us with 255 taps; single taps took 44,753 us with 256."""
    narrow, wide = (gradient(taps).time_us for taps in (255, 256))
    assert wide < 1.1 * narrow


def test_signals_take_little_more_with_a_tap_more() -> None:
    """157 us with 255 taps, 381 with 256 before; 4,354 with 1,024, now a sixth of that."""
    times = {}
    for taps in (255, 256, 1024):
        x, w = spec((4, 64, 4000), "fp16"), spec((64, 64, taps), "fp16")
        found = npusim.ops.convolution(x, w, transposed=True, device="ascend910b2", timeline=False)
        times[taps] = found.time_us
    assert times[256] < 1.1 * times[255]
    assert times[1024] < 1.2 * 1024 / 255 * times[255]


@pytest.mark.parametrize("insert", [1, 2, 3])
@pytest.mark.parametrize("form", ["window", "phases"])
def test_bands_are_equal_and_cover_each_tap_once(insert: int, form: str) -> None:
    axis = Axis(size=900, out=900, kernel=601, before=300, insert=insert)
    taps = []
    for parts in axis.parts(form):
        counts = [part.axis.kernel for part in parts]
        assert max(counts) <= 255
        assert max(counts) - min(counts) <= 1
        for part in parts:
            first, apart = part.taps
            taps += [first + i * apart for i in range(part.axis.kernel)]
    assert sorted(taps) == list(range(601))


def test_tilings_that_bands_cannot_have() -> None:
    tiling = Tiling(base_m=64, base_n=16, base_k=16, form="window", step_m=2, step_n=2)
    x, w = spec((4, 16, 900), "fp16"), spec((16, 16, 300), "fp16")
    with pytest.raises(ArgumentError, match="bands of a wide filter add up in one tile at a time"):
        npusim.ops.convolution(x, w, device="ascend910b2", tiling={"conv_forward": tiling})


@pytest.mark.drawn
@pytest.mark.parametrize("result", RESULTS)
def test_random_wide_filters_are_right_and_as_fast(result: str) -> None:
    random = Random(result)
    for number in range(some(20) // 2):
        layer: Layer = drawn(random, 255, large=True)
        assert time_us(layer.wider(), result) <= 1.1 * time_us(layer, result), str(layer)
        small = drawn(random, random.randint(200, 400), large=False)
        assert not wrong(small, result, number)


@pytest.mark.slow
def test_many_random_wide_filters() -> None:
    found = wide_filters.compared(Random(200), 200)
    assert found[0][0] <= 1.1, found[0]
