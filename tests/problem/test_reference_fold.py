"""The float64 fold against worked examples, a visit of every window, adjointness and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.problem.reference import fold

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Sliding windows over images, in the order ``fold`` takes its arguments."""

    size: Pair
    kernel: Pair
    dilation: Pair
    padding: Pair
    stride: Pair

    @property
    def geometry(self) -> tuple[Pair, Pair, Pair, Pair, Pair]:
        """The arguments after the first."""
        return self.size, self.kernel, self.dilation, self.padding, self.stride

    @property
    def counts(self) -> Pair:
        """Windows down and across."""
        h, w = (
            (x + 2 * p - d * (k - 1) - 1) // s + 1
            for x, k, d, p, s in zip(*self.geometry, strict=True)
        )
        return h, w

    def unfold(self, image: Array) -> Array:
        """im2col of (N, C, H, W): every window's taps, zero outside the image."""
        (h, w), (kh, kw), (lh, lw) = self.size, self.kernel, self.counts
        columns = np.zeros((*image.shape[:2], kh, kw, lh, lw))
        for u, v, i, j in np.ndindex(kh, kw, lh, lw):
            r = i * self.stride[0] - self.padding[0] + u * self.dilation[0]
            c = j * self.stride[1] - self.padding[1] + v * self.dilation[1]
            if 0 <= r < h and 0 <= c < w:
                columns[:, :, u, v, i, j] = image[:, :, r, c]
        return columns.reshape(image.shape[0], -1, lh * lw)


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    def pair(low: int, high: int) -> Pair:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    kernel, dilation, padding = pair(1, 3), pair(1, 3), pair(0, 3)
    h, w = (
        draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), 9))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    return Windows((h, w), kernel, dilation, padding, pair(1, 4))


@settings(deadline=None)
@given(windows(), st.integers(1, 2), st.integers(1, 3))
def test_it_is_adjoint_to_cutting_windows(w: Windows, n: int, channels: int) -> None:
    """<unfold(image), columns> = <image, fold(columns)>, for random integers and so exactly."""
    rng = np.random.default_rng(3)
    image = rng.integers(-4, 5, (n, channels, *w.size)).astype(np.float64)
    cut = w.unfold(image)
    columns = rng.integers(-4, 5, cut.size).astype(np.float64).reshape(cut.shape)
    folded = fold(columns, *w.geometry)
    assert folded.shape == image.shape
    assert np.vdot(cut, columns) == np.vdot(image, folded)
    np.testing.assert_array_equal(fold(columns[0], *w.geometry), folded[0])


def test_ones_count_the_windows_over_each_pixel() -> None:
    count = fold(np.ones((9, 16)), (4, 4), (3, 3), (1, 1), (1, 1), (1, 1))
    np.testing.assert_array_equal(count, [np.outer([2, 3, 3, 2], [2, 3, 3, 2])])


def test_a_worked_example() -> None:
    """Two windows of 1 x 2 side by side with stride 1 on three pixels: the middle one sums."""
    columns = [[1, 2], [10, 20]]  # tap 0 of both windows, then tap 1
    want = [[[1, 12, 20]]]
    np.testing.assert_array_equal(fold(columns, (1, 3), (1, 2), (1, 1), (0, 0), (1, 1)), want)


def test_pixels_without_window_are_zero_and_one_dimension_works() -> None:
    np.testing.assert_array_equal(fold([[5, 7]], (4,), (1,), (1,), (0,), (3,)), [[5, 0, 0, 7]])


@pytest.mark.parametrize("stride", [1, 2])
def test_against_torch(stride: int) -> None:
    torch = pytest.importorskip("torch")
    w = Windows((7, 6), (3, 2), (2, 1), (1, 2), (stride, 1))
    lh, lw = w.counts
    columns = np.random.default_rng(1).standard_normal((2, 3 * 6, lh * lw))
    size, kernel, dilation, padding, strides = w.geometry
    want = torch.nn.functional.fold(
        torch.from_numpy(columns), size, kernel, dilation, padding, strides
    )
    np.testing.assert_allclose(fold(columns, *w.geometry), want.numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", [(9,), (8, 16), (9, 15), (2, 10, 16)])
def test_columns_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises((ValueError, IndexError)):
        fold(np.zeros(shape), (4, 4), (3, 3), (1, 1), (1, 1), (1, 1))
