"""im2col_backward against a fold written out here, tap by tap in the type of its sums."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import npusim
from npusim.base.errors import ArgumentError, ConfigError
from npusim.base.resources import configs
from npusim.kernels.windows.im2col_backward_tiling import Tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import parse_device
from npusim.machine.device.spec import Device
from npusim.ops.windows import im2col_backward
from tests.sampled import examples
from tests.tables import rows

Array = npt.NDArray[Any]
Pair = tuple[int, int]

TINY, A2, FIRST = load_device("tiny"), load_device("ascend910b2"), load_device("ascend910")
NEWEST = load_device("ascend950pr")


def windows(size: Pair, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> Pair:
    lh, lw = (
        (x + 2 * p - d * (k - 1) - 1) // s + 1
        for x, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    )
    return lh, lw


def fold(
    grad: Array, size: Pair, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair, sums: type
) -> Array:
    """Pixel by pixel as the formula says, in ``sums``, on a padded image cropped at the end."""
    n, rows, _ = grad.shape
    lh, lw = windows(size, kernel, dilation, padding, stride)
    patches = grad.reshape(n, rows // (kernel[0] * kernel[1]), *kernel, lh, lw)
    padded = np.zeros(
        (*patches.shape[:2], *(x + 2 * p for x, p in zip(size, padding, strict=True))), sums
    )
    for kh, kw in product(range(kernel[0]), range(kernel[1])):
        for oh, ow in product(range(lh), range(lw)):
            h, w = oh * stride[0] + kh * dilation[0], ow * stride[1] + kw * dilation[1]
            padded[:, :, h, w] += patches[:, :, kh, kw, oh, ow].astype(sums)
    (ph, pw), (h, w) = padding, size
    return padded[:, :, ph : ph + h, pw : pw + w].astype(grad.dtype)


def output(grad: Array, geometry: tuple[Pair, Pair, Pair, Pair, Pair], **options: Any) -> Array:
    """The image of one call."""
    outputs = im2col_backward(grad, *geometry, **options).outputs
    assert outputs is not None
    assert outputs[0] is not None
    return outputs[0]


@st.composite
def problems(draw: st.DrawFn, most: int = 12) -> tuple[tuple[Pair, Pair, Pair, Pair, Pair], Pair]:
    """((size, kernel, dilation, padding, stride), (N, C)), the windows inside the image."""

    def pair(low: int, high: int) -> Pair:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    kernel, dilation, padding, stride = pair(1, 4), pair(1, 3), pair(0, 3), pair(1, 4)
    low_h, low_w = (
        max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    size = draw(st.integers(low_h, low_h + most)), draw(st.integers(low_w, low_w + most))
    counts = draw(st.integers(1, 3)), draw(st.integers(1, 18))
    return (size, kernel, dilation, padding, stride), counts


def gradient(shape: tuple[int, ...], kind: type) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(kind)


# -- the numbers -----------------------------------------------------------------------------

#: A geometry, then images and channels.
Drawn = tuple[tuple[Pair, Pair, Pair, Pair, Pair], Pair]


def drawn_gradient(problem: Drawn, dtype: type) -> Array:
    """A gradient of the shape that a drawn problem has."""
    geometry, (n, c) = problem
    lh, lw = windows(*geometry)
    return gradient((n, c * geometry[1][0] * geometry[1][1], lh * lw), dtype)


@examples(60)
@given(problems(), st.sampled_from([TINY, FIRST]))
def test_fp16_sums_are_rounded_tap_by_tap(problem: Drawn, device: Device) -> None:
    geometry, grad = problem[0], drawn_gradient(problem, np.float16)
    got = output(grad, geometry, device=device)
    np.testing.assert_array_equal(got, fold(grad, *geometry, np.float16))


@examples(30)
@given(problems())
def test_fp16_sums_are_rounded_once_where_the_device_sums_in_fp32(problem: Drawn) -> None:
    geometry, grad = problem[0], drawn_gradient(problem, np.float16)
    got = output(grad, geometry, device=NEWEST)
    np.testing.assert_array_equal(got, fold(grad, *geometry, np.float32))


@examples(30)
@given(problems(), st.sampled_from([TINY, A2, NEWEST]))
def test_fp32_is_the_float64_fold_to_a_millionth(problem: Drawn, device: Device) -> None:
    geometry, grad = problem[0], drawn_gradient(problem, np.float32)
    got = output(grad, geometry, device=device)
    want = fold(grad.astype(np.float64), *geometry, np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=4e-6)


@examples(40)
@given(problems(), st.integers(1, 8), st.integers(1, 8), st.sampled_from([FIRST, NEWEST]))
@example((((16, 12), (3, 4), (2, 1), (0, 2), (1, 1)), (1, 1)), 1, 1, FIRST)  # over by 2,048 B
def test_the_tiling_does_not_change_a_bit(
    problem: tuple[tuple[Pair, Pair, Pair, Pair, Pair], Pair],
    rows: int,
    columns: int,
    device: Device,
) -> None:
    geometry, (n, c) = problem
    lh, lw = windows(*geometry)
    grad = gradient((n, c * geometry[1][0] * geometry[1][1], lh * lw), np.float16)
    tilings: list[Any] = [Tiling(rows=rows, columns=columns), "auto"]
    (h, w), (kernel_h, kernel_w) = geometry[:2]
    whole = Tiling(rows=h, columns=w, planes=2, at_once=True)
    taken = 2 * 2 * 32 * (kernel_h * kernel_w * lh * lw + h * w)  # slots, planes, bytes of a block
    if taken <= device.memory("UB").size_bytes:
        tilings.append(whole)
    first, *others = (
        output(grad, geometry, device=device, tiling=tiling, cores=3) for tiling in tilings
    )
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_an_image_larger_than_ub_is_cut_and_still_exact() -> None:
    geometry = ((96, 130), (3, 3), (1, 1), (1, 1), (1, 1))
    grad = gradient((1, 9, 96 * 130), np.float16)
    result = im2col_backward(grad, *geometry, device=TINY)
    assert "tap by tap" in result.runs[1].tiling
    assert result.outputs is not None
    np.testing.assert_array_equal(result.outputs[0], fold(grad, *geometry, np.float16))


def test_overflow_follows_the_device() -> None:
    grad = np.full((4, 9), 40_000.0, np.float16)
    geometry = ((4, 4), (2, 2), (1, 1), (0, 0), (1, 1))
    for device, want in ((A2, np.inf), (FIRST, 65504.0)):
        assert output(grad, geometry, device=device)[0, 1, 1] == want


# -- the launches ----------------------------------------------------------------------------


def test_the_conversions_to_5hd_are_launched_where_sums_are_of_the_tensors_type() -> None:
    grad = npusim.spec((2, 20 * 9, 49), "fp32")
    geometry = ((7, 7), (3, 3), (1, 1), (1, 1), (1, 1))
    classic = im2col_backward(grad, *geometry, device=A2)
    assert classic.outputs is None
    assert [run.name for run in classic.runs] == ["trans_data", "im2col_backward", "trans_data"]
    blocked = 2 * 2 * 16 * 4 * (9 * 49 + 49)  # two blocks of 16 channels for 20, also in fp32
    assert classic.runs[1].gm_bytes == blocked
    newest = im2col_backward(grad, *geometry, device=NEWEST)
    assert [run.name for run in newest.runs] == ["im2col_backward"]
    assert newest.runs[0].gm_bytes == 2 * 20 * 4 * (9 * 49 + 49)


def test_no_images_launch_nothing() -> None:
    result = im2col_backward(
        np.zeros((0, 8, 4), np.float16), (3, 3), (2, 2), (1, 1), (0, 0), (1, 1), device=A2
    )
    assert not result.runs
    assert result.outputs is not None
    assert result.outputs[0] is not None
    assert result.outputs[0].shape == (0, 2, 3, 3)
    assert "nothing is launched" in result.notes[0]


# -- refusals --------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "grad_output": np.zeros((1, 8, 4), np.float16),
    "input_size": (3, 3),
    "kernel_size": (2, 2),
    "dilation": (1, 1),
    "padding": (0, 0),
    "stride": (1, 1),
}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"grad_output": np.zeros(4, np.float16)}, r"grad_output.shape is \(4,\); .* rank 2 or 3"),
        ({"grad_output": np.zeros((1, 8, 4), np.int32)}, "grad_output.dtype is int32; .* fp16 or"),
        (
            {"grad_output": np.zeros((1, 8, 4), np.int32), "rules": "hardware"},
            "grad_output is int32; im2col_backward takes fp16 or fp32 on ascend910b2",
        ),
        ({"grad_output": np.zeros((1, 7, 4), np.float16)}, "the kernel has 4 taps; "),
        ({"grad_output": np.zeros((8, 5), np.float16)}, "there are 4 windows, 2 x 2; "),
        ({"input_size": (0, 3)}, r"input_size is \(0, 3\); .* permit at least 1"),
        ({"dilation": (1, 2.0)}, r"dilation is \(1, 2.0\), no integer; .* permit at least 1"),
        ({"dilation": (3, 1)}, r"kernel is larger than the padded image \(3, 3\); "),
        ({"tiling": "best"}, "tiling is 'best'; it must be 'auto' or a .*Tiling"),
        ({"tiling": Tiling(rows=2, columns=3, at_once=True)}, "at_once needs whole images"),
    ],
)
def test_refusals_name_the_argument_and_the_way_out(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        im2col_backward(**{**GOOD, **changed}, device=A2)


@rows("tests/data/mistakes/ops.yaml", "a_tiling_refuses_what_no_unit_can_do", "sizes, text")
def test_a_tiling_refuses_what_no_unit_can_do(sizes: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Tiling(**sizes)


def test_a_device_without_vector_cores_is_refused() -> None:
    with pytest.raises(ArgumentError, match="ft78ne has no core with role 'vector'"):
        im2col_backward(**GOOD, device="ft78ne")


def test_the_device_says_how_the_sums_are_made() -> None:
    assert (TINY.overlap_sums, NEWEST.overlap_sums) == ("tensor", "fp32")
    source = (configs() / "devices/tiny.yaml").read_text("utf-8")
    changed = source.replace("dtypes:", "overlap_sums: fp16\ndtypes:", 1)
    with pytest.raises(ConfigError, match="overlap_sums: expected tensor or fp32"):
        parse_device(changed, "mine.yaml")
