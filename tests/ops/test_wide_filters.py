"""Filters wider than a load of img2col slides are cut into bands, whose sums add up."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import spec
from npusim.base.errors import ArgumentError, RuleError
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling
from npusim.problem.axis import Axis
from npusim.problem.convolution import Convolution
from npusim.problem.reference import conv_filter_grad
from tests.ops import wide_filters
from tests.ops.wide_filters import RESULTS, Layer, drawn, time_us, wrong
from tests.sampled import some


def gradient(taps: int, **options: Any) -> npusim.Result:
    """The input gradient of a classifier of texts, whose filters are as wide as a word's vector."""
    return npusim.ops.convolution_backward(
        spec((32, 100, 198, 1), "fp16"),
        spec((32, 1, 200, taps), "fp16"),
        spec((100, 1, 3, taps), "fp16"),
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
    for number in range(some(20, least=4) // 2):
        layer: Layer = drawn(random, 255, large=True)
        assert time_us(layer.wider(), result) <= 1.1 * time_us(layer, result), str(layer)
        small = drawn(random, random.randint(200, 400), large=False)
        assert not wrong(small, result, number)


@pytest.mark.slow
def test_many_random_wide_filters() -> None:
    found = wide_filters.compared(Random(200), 200)
    assert found[0][0] <= 1.1, found[0]


def filter_gradient(kernel: tuple[int, int], size: tuple[int, int], **options: Any) -> float:
    """The time of a filter gradient over eight maps of one channel, as large as what it makes."""
    pads = tuple(taps // 2 for taps in kernel)
    maps = spec((8, 1, *size), "fp16")
    found = npusim.ops.convolution_backward(
        maps,
        maps,
        spec((1, 1, *kernel), "fp16"),
        padding=pads,
        output_mask=(False, True, False),
        rules="hardware",
        device="ascend910b2",
        timeline=False,
        **options,
    )
    return found.time_us


def test_a_long_thin_filter_takes_as_long_as_turned() -> None:
    """The gradient of 255 x 1 taps took 31,735 us, of 257 x 1 7,758, of 1 x 255 6,768."""
    high, higher = (filter_gradient((taps, 1), (400, 600)) for taps in (255, 257))
    wide = filter_gradient((1, 255), (600, 400))
    assert high < 1.05 * wide
    assert high < 1.05 * higher < 1.1 * wide


@pytest.mark.parametrize(
    ("kernel", "bands"),
    [
        ((5, 3), {"band_rows": 2}),
        ((2, 23), {"band_rows": 1, "band_columns": 7}),
        ((1, 23), {"band_columns": 12, "k_parts": 2}),
        ((2, 13), {"band_rows": 1, "band_columns": 5, "step_n": 2, "group": 2}),
    ],
)
def test_filter_gradients_of_bands_are_right(
    kernel: tuple[int, int], bands: dict[str, Any]
) -> None:
    tiling = FilterTiling(base_m=16, base_n=32, base_k=32, slab_k=48, form="bands", **bands)
    data = np.random.default_rng(len(bands))
    pads = tuple((taps // 2, taps // 2) for taps in kernel)
    c = Convolution(
        n=2, cin=20, cout=20, spatial=(9, 40), kernel=kernel, stride=(1, 2), padding=pads
    )
    dy, x = (data.integers(-2, 3, shape).astype(np.float16) for shape in (c.dy_shape, c.x_shape))
    found = npusim.ops.convolution_backward(
        dy,
        x,
        np.zeros(c.w_shape, np.float16),
        stride=c.stride,
        padding=tuple(before for before, _ in pads),
        output_mask=(False, True, False),
        device="ascend910b2",
        rules="hardware",
        tiling={"conv_backprop_filter": tiling},
        check=True,
    )
    assert found.outputs is not None
    exact_x, exact_dy = (array.astype(np.float64) for array in (x, dy))
    want = conv_filter_grad(exact_x, exact_dy, kernel, c.stride, pads, (1, 1), 1)
    np.testing.assert_array_equal(np.asarray(found.outputs[1]), want.astype(np.float16))


@pytest.mark.parametrize(
    ("kernel", "more", "words"),
    [
        ((1, 256), {}, "split the filter into narrower ones that add up, use im2col and matmul"),
        ((1, 3), {"padding": (0, 256)}, "pad the input before, use im2col and matmul"),
        ((1, 3), {"dilation": (1, 256)}, "choose such a value, use im2col and matmul, or rules="),
    ],
)
def test_limits_of_loads_name_their_ways_out(
    kernel: tuple[int, int], more: dict[str, Any], words: str
) -> None:
    c = Convolution(n=1, cin=8, cout=8, spatial=(1, 900), kernel=kernel)
    dy, x, w = (spec(shape, "fp16") for shape in (c.dy_shape, c.x_shape, c.w_shape))
    with pytest.raises(RuleError, match=words):
        npusim.ops.convolution_backward(dy, x, w, device="ascend910b2", **more)


@pytest.mark.parametrize(
    ("bands", "words"),
    [
        ({"band_rows": 2, "band_columns": 7}, "a band is whole rows or part of one"),
        ({"band_rows": 1, "images": 2}, "with form 'taps' or 'bands'"),
        ({"form": "window", "band_rows": 1}, "only form 'bands' has them"),
    ],
)
def test_bands_that_are_refused(bands: dict[str, Any], words: str) -> None:
    sizes: dict[str, Any] = {"base_m": 16, "base_n": 32, "base_k": 32, "slab_k": 48}
    sizes |= {"form": "bands"} | bands
    with pytest.raises(ArgumentError, match=words):
        filter_gradient((3, 23), (9, 40), tiling={"conv_backprop_filter": FilterTiling(**sizes)})
