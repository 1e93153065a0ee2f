"""Strided gradients that are those of another convolution: few channels, or filters of 1x1."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.call.tilings.choice import chosen
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling
from npusim.kernels.layout.folding import thinned
from npusim.machine.device.spec import Device
from npusim.ops import conv_launch, conv_ways
from npusim.ops.conv_ways import best_way, ways
from npusim.ops.cube_math import CubeMath
from npusim.problem.convolution import Convolution
from npusim.problem.reference import conv_filter_grad, conv_forward, conv_input_grad
from npusim.results import Result
from npusim.reuse.answers import Answers
from tests.sampled import crossed, some
from tools.tilings.larger_machines import cycles_of

CONV1: dict[str, Any] = {"channels": (3, 64), "size": (224, 224), "kernel": (7, 7)}


def timed(
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    device: Any = "ascend910b2",
    mask: tuple[bool, ...] = (True, True, False),
    **options: Any,
) -> Result:
    """The time of the gradients of a layer of stride 2 that halves its input."""
    cin, cout = channels
    maps = [(batch, cout, *(n // 2 for n in size)), (batch, cin, *size), (cout, cin, *kernel)]
    pads = tuple(k // 2 for k in kernel)
    dy, x, w = (npusim.spec(shape, "fp16") for shape in maps)
    return npusim.ops.convolution_backward(
        dy, x, w, stride=2, padding=pads, output_mask=mask, device=device, **options
    )


def names(result: Result) -> list[str]:
    """The kernels that were launched."""
    return [run.name for run in result.runs]


def test_conv1_of_resnet50_is_folded() -> None:
    """Its input gradient took 417 us and its filter gradient 252 us in blocks of 3 channels."""
    first = timed(32, **CONV1, mask=(True, False, False))
    assert names(first) == ["trans_data", "fold_weights", "conv_forward", "fold_map"]
    assert first.time_us < 140
    second = timed(32, **CONV1, mask=(False, True, False))
    expected = ["fold_map", "trans_data", "mem_set", "conv_backprop_filter", "fold_weights", "cast"]
    assert names(second) == expected
    assert second.time_us < 175
    both = timed(32, **CONV1)
    assert both.time_us < first.time_us + second.time_us - 30  # gradOutput is converted once
    assert "Cin x 8 x 2" in both.sizes
    assert both.sizes["Cin x 2 x 2"] == (12, 16)


def test_a_patch_embedding_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its filters fill the UB to the byte, and 64 B a slot more were asked for: 668 us, now 69."""

    def filter_gradient(dy: Any, x: Any, w: Any) -> Result:
        made = npusim.ops.convolution_backward(
            dy, x, w, stride=16, output_mask=(False, True, False), device="ascend910b2"
        )
        assert names(made)[0] == "fold_map"
        return made

    shapes = [(32, 384, 14, 14), (32, 3, 224, 224), (384, 3, 16, 16)]
    assert filter_gradient(*(npusim.spec(shape, "fp16") for shape in shapes)).time_us < 72
    rng = np.random.default_rng(0)
    dy, x = (rng.integers(-3, 4, s).astype(np.float16) for s in ((2, 32, 4, 4), (2, 3, 64, 64)))
    monkeypatch.setattr(conv_launch, "can_multiply", lambda _: False)  # as so small a layer is
    outputs = filter_gradient(dy, x, np.zeros((32, 3, 16, 16), np.float16)).outputs
    assert outputs is not None
    exact_x, exact_dy = x.astype(np.float64), dy.astype(np.float64)
    pads = ((0, 0), (0, 0))
    want = conv_filter_grad(exact_x, exact_dy, (16, 16), (16, 16), pads, (1, 1), 1)
    np.testing.assert_array_equal(np.asarray(outputs[1]), want.astype(np.float16))


@pytest.mark.parametrize("tiling", ["library", "production"])
def test_the_library_folds_nothing(tiling: str) -> None:
    mask = (True, tiling == "library", False)  # the rule for filter gradients is not for this one
    found = names(timed(1, (8, 64), (56, 56), (3, 3), mask=mask, tiling=tiling))
    assert "conv_backprop_input" in found
    assert not {"fold_map", "fold_weights"} & set(found)


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_up_to_four_channels_the_best_kernels_stand_for_the_library_s(device: str) -> None:
    """The library has kernels for filter gradients in blocks of four; for input gradients none."""
    x, w = npusim.spec((2, 3, 112, 112), "fp16"), npusim.spec((64, 3, 7, 7), "fp16")
    dy = npusim.spec((2, 64, 56, 56), "fp16")
    filters, inputs = (
        npusim.ops.convolution_backward(
            dy, x, w, None, 2, 3, output_mask=mask, device=device, tiling="library"
        )
        for mask in ((False, True, False), (True, False, False))
    )
    assert "fold_map" in names(filters)
    assert "conv_backprop_input" in names(inputs)


def test_a_tiling_that_is_given_is_that_of_the_plain_kernel() -> None:
    own = Tiling(base_m=224, base_n=16, base_k=64, form="phases")
    found = names(timed(1, **CONV1, tiling={"conv_backprop_input": own}))
    assert "conv_backprop_input" in found
    assert "fold_map" in found  # of the filter gradient, whose tiling is not given
    assert "conv_forward" not in found


@pytest.mark.parametrize("tiling", ["library", "auto"])
def test_shortcuts_of_resnet50(tiling: str) -> None:
    """Filters of 1x1 and stride 2 read a quarter of the pixels; with all both took 147 us."""
    sizes: dict[str, Any] = {"channels": (1024, 2048), "size": (14, 14), "kernel": (1, 1)}
    found = timed(32, **sizes, tiling=tiling)
    assert ("thin_map" in names(found)) == (tiling == "auto")
    if tiling == "auto":
        assert "mem_set" not in names(found)  # zeros of the gradient are converted with it
        assert found.time_us < 140


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("size", [32, 112])
def test_the_way_of_the_least_estimate_is_among_the_fastest_simulated(
    gradient: bool, size: int
) -> None:
    device, math = npusim.load_device("ascend910b2"), CubeMath(FP16, hf32=False)
    c = layer(1, 3, 64, (size, size), (7, 7), (2, 2))
    best = best_way(device, 24, c, math, gradient=gradient)
    assert best.shape is not None
    times = compared(c, device, math, gradient=gradient)
    assert len(times) == 4
    assert times[str(best.shape)] < 1.1 * min(times.values())
    assert times[str(best.shape)] < times["None"]


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("batch", [1, 8])
def test_pixels_that_no_filter_reads_are_left_out(gradient: bool, batch: int) -> None:
    device, math = npusim.load_device("ascend910b2"), CubeMath(FP16, hf32=False)
    c = layer(batch, 256, 512, (56, 56), (1, 1), (2, 2))
    best = best_way(device, 24, c, math, gradient=gradient)
    plain = ways(device, c, math, gradient=gradient)[0]
    assert best.shape == thinned(c)
    assert best.shape.useful_macs == c.useful_macs
    assert best.product.needed_bytes["dy"] == plain.product.needed_bytes["dy"]
    times = compared(c, device, math, gradient=gradient)
    assert times[str(best.shape)] < times["None"]


def compared(c: Convolution, device: Device, math: CubeMath, *, gradient: bool) -> dict[str, int]:
    """Simulated cycles of all ways to compute a gradient, with launches, by their shape."""
    times = {}
    for way in ways(device, c, math, gradient=gradient):
        around = [one.on_few(device, 48) for one in way.around]
        product = chosen(way.product, device, tuple(range(24)))
        times[str(way.shape)] = sum(cycles_of(one, device) for one in (*around, product))
    return times


def layer(
    n: int, cin: int, cout: int, spatial: tuple[int, ...], kernel: Any, stride: Any
) -> Convolution:
    """A layer as kernels see it."""
    pads = tuple((k // 2, k // 2) for k in kernel)
    sizes = {"spatial": spatial, "kernel": kernel, "stride": stride, "padding": pads}
    return Convolution(n=n, cin=cin, cout=cout, **sizes).lifted()


def gradients(rng: Random, device: str) -> list[str]:
    """Gradients of a random layer, compared with the reference; the kernels launched."""
    dims, dtype = rng.choice([1, 2, 2, 2, 2, 3]), rng.choice([FP16, FP32])
    dtype = FP16 if device == "ascend910" else dtype  # its cube has no fp32
    cin, cout, n = rng.randint(1, 6), rng.choice([1, 16, 20, 40]), rng.randint(1, 2)
    if rng.random() < 0.3:
        cin = rng.choice([20, 40])
    stride = [rng.choice([1, 2, 2, 3, 4]) for _ in range(dims)]
    kernel = [rng.randint(1, 7) if cin < 20 else 1 for _ in range(dims)]
    dilation = [rng.choice([1] * 6 + [2]) for _ in range(dims)]
    padding = [rng.randint(0, 4) if cin < 20 else 0 for _ in range(dims)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = [
        max(1, r - 2 * p) + rng.randint(0, 30 if dims < 3 else 8)
        for r, p in zip(reach, padding, strict=True)
    ]
    transposed = rng.random() < 0.25
    pads = tuple((p, p) for p in padding)
    if transposed:
        padding = [min(p, (r - 1) // 2) for p, r in zip(padding, reach, strict=True)]
        pads = tuple((p, p) for p in padding)
    c = Convolution(
        n=n, cin=cin, cout=cout, spatial=tuple(size), kernel=tuple(kernel), stride=tuple(stride),
        padding=pads, dilation=tuple(dilation), transposed=transposed,
    )  # fmt: skip
    data = np.random.default_rng(rng.randrange(2**32))
    dy, x, w = (
        data.integers(-3, 4, shape).astype(dtype.numpy)
        for shape in (c.dy_shape, c.x_shape, c.w_shape)
    )
    result = npusim.ops.convolution_backward(
        dy, x, w, stride=c.stride, padding=tuple(padding), dilation=c.dilation,
        transposed=transposed, output_mask=(True, True, False), device=device, check=True,
        cube_math_type="keep_dtype", rules="hardware",
    )  # fmt: skip
    dy, x, w = (one.astype(np.float64) for one in (dy, x, w))
    if transposed:
        dx = conv_forward(dy, w, c.stride, c.reads, c.dilation, 1)
        dw = conv_filter_grad(dy, x, c.kernel, c.stride, c.reads, c.dilation, 1)
    else:
        dx = conv_input_grad(dy, w, c.x_shape, c.stride, c.padding, c.dilation, 1)
        dw = conv_filter_grad(x, dy, c.kernel, c.stride, c.padding, c.dilation, 1)
    assert result.outputs is not None
    for got, want in zip(result.outputs, (dx, dw), strict=False):
        # Sums of small integers are exact, and rounded once.
        np.testing.assert_array_equal(np.asarray(got, np.float64), want.astype(dtype.numpy))
    return names(result)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("device", "always"), crossed(["ascend910b2", "ascend910", "ascend950pr"], [True, False])
)
def test_random_strided_layers_have_the_right_gradients(
    device: str, always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every one that can be folded is, whatever that takes."""
    if always:
        monkeypatch.setattr(conv_ways, "_estimate", lambda way, *_: way.shape is None)
    monkeypatch.setattr(conv_ways, "_WAYS", Answers("fold", 256, list, list))
    rng, found = Random(device), Counter[str]()
    for _ in range(16 if always else some(8) // 2):
        found.update(set(gradients(rng, device)))
    assert found["fold_map"] >= always
    assert found["thin_map"] >= always


def test_an_infinite_gradient_spreads_to_its_window() -> None:
    """A folded filter multiplies with zeros; where gradOutput is finite, so is the gradient."""
    dy = np.ones((1, 16, 16, 16), np.float16)
    dy[0, 0, 0, 0] = np.inf
    x, w = np.ones((1, 3, 32, 32), np.float16), np.ones((16, 3, 3, 3), np.float16)
    result = npusim.ops.convolution_backward(
        dy, x, w, stride=2, padding=1, output_mask=(True, False, False), device="ascend910b2"
    )
    assert "fold_map" in names(result)
    assert result.outputs is not None
    dx = np.asarray(result.outputs[0])
    assert not np.isfinite(dx[0, :, 0, 0]).any()
    assert np.isfinite(dx[0, :, 16:, :]).all()
    assert np.isfinite(dx[0, :, :, 16:]).all()


@pytest.mark.parametrize("width", [1022, 1024, 1026, 4096])
def test_rows_that_the_ub_cannot_hold_are_converted_as_before(width: int) -> None:
    """A row of positions of 1,024 columns and two rows of pixels just fits a quarter of the UB."""
    device = npusim.load_device("ascend910", {"memories.UB.size": "256KiB"})
    for mask in ((True, False, False), (False, True, False)):
        made = timed(2, (64, 64), (4, width), (1, 1), device=device, mask=mask)
        thin = "thin_map" in names(made)
        # An input gradient that stores the zeros itself may be as fast.
        assert thin == (width <= 1024) or (mask[0] and not thin), width
