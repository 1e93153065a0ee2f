"""Convolution and its gradients in float64, one kernel tap at a time.

Everything is one relation, per dimension: output ``o`` reads input ``i = o*s - before + k*d``
through tap ``k``, and reads zero where ``i`` lies outside the input. Arrays are channels first:
input (N, Cin, X...), weight (Cout, Cin/groups, K...), output (N, Cout, Y...), with any number of
spatial dimensions. Strides, dilations and (before, after) paddings have one entry per dimension.

Callers have described a layer or windows before, so shapes fit each other here; of those that do
not NumPy says so (``ValueError``).

For a transposed convolution exchange the roles: its input gradient is ``conv_forward`` of
grad_output, its filter gradient is ``conv_filter_grad(grad_output, input, ...)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.errors import ArgumentError
from npusim.problem.convolution import output_sizes

Float64 = npt.NDArray[np.float64]
Pads = Sequence[tuple[int, int]]

#: Stride, padding and dilation.
Window = tuple[Sequence[int], Pads, Sequence[int]]


def conv_forward(
    input: npt.ArrayLike,
    weight: npt.ArrayLike,
    stride: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
    groups: int,
) -> Float64:
    """Return the output, zero where a position reads only padding."""
    x = _split(input, 1, groups)
    w = _split(weight, 0, groups)
    window = (stride, padding, dilation)
    size, kernel = x.shape[3:], w.shape[3:]
    y = np.zeros((*x.shape[:2], w.shape[1], *output_sizes(size, kernel, *window)))
    for tap, ins, outs in _taps(size, kernel, y.shape[3:], window):
        sums = w[tap] @ _rows(x[ins])  # N, groups, Cout/groups, P
        y[outs] += sums.reshape(y[outs].shape)
    return _joined(y, 1)


def conv_input_grad(
    grad_output: npt.ArrayLike,
    weight: npt.ArrayLike,
    input_shape: Sequence[int],
    stride: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
    groups: int,
) -> Float64:
    """Return the gradient of an input of ``input_shape``, zero where no output reads it."""
    w, dx = _split(weight, 0, groups), _split(np.zeros(input_shape), 1, groups)
    size = dx.shape[3:]
    kernel = w.shape[3:]
    window = (stride, padding, dilation)
    dy = _outputs(grad_output, groups, output_sizes(size, kernel, *window))
    for tap, ins, outs in _taps(size, kernel, dy.shape[3:], window):
        sums = w[tap].swapaxes(1, 2) @ _rows(dy[outs])  # N, groups, Cin/groups, P
        dx[ins] += sums.reshape(dx[ins].shape)
    return _joined(dx, 1)


def conv_filter_grad(
    input: npt.ArrayLike,
    grad_output: npt.ArrayLike,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
    groups: int,
) -> Float64:
    """Return the gradient of the weight, (Cout, Cin/groups, K...)."""
    x, window = _split(input, 1, groups), (stride, padding, dilation)
    size = x.shape[3:]
    dy = _outputs(grad_output, groups, output_sizes(size, kernel, *window))
    dw = np.zeros((groups, dy.shape[2], x.shape[2], *kernel))
    for tap, ins, outs in _taps(size, kernel, dy.shape[3:], window):
        per_image = _rows(dy[outs]) @ _rows(x[ins]).swapaxes(2, 3)
        dw[tap] = per_image.sum(axis=0)
    return _joined(dw, 0)


def conv_bias_grad(grad_output: npt.ArrayLike) -> Float64:
    """Return the gradient of the bias, (Cout,)."""
    dy = np.asarray(grad_output, np.float64)
    return np.asarray(dy.sum(axis=(0, *range(2, dy.ndim))), np.float64)


def fold(
    columns: npt.ArrayLike,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Float64:
    """Sum windows (..., C * taps, windows) into images (..., C, X...), dropping the padding.

    Taps and windows are in row-major order, and ``padding`` is the same on both sides.
    """
    array, window = np.asarray(columns, np.float64), (stride, [(p, p) for p in padding], dilation)
    windows = output_sizes(size, kernel, *window)
    lead = (*array.shape[:-2], array.shape[-2] // prod(kernel))
    patches, summed = array.reshape(*lead, *kernel, *windows), np.zeros((*lead, *size))
    everything = (slice(None),) * len(windows)
    for tap, ins, outs in _taps(size, kernel, windows, window):
        summed[ins] += patches[(*tap, *everything)][outs]
    return summed


def unfold(
    image: npt.ArrayLike,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Float64:
    """Cut images (..., C, X...) into windows (..., C * taps, windows), zero outside the image."""
    array, window = np.asarray(image, np.float64), (stride, [(p, p) for p in padding], dilation)
    lead, size = array.shape[: -len(kernel)], array.shape[-len(kernel) :]
    windows = output_sizes(size, kernel, *window)
    columns = np.zeros((*lead, *kernel, *windows))
    everything = (slice(None),) * len(windows)
    for tap, ins, outs in _taps(size, kernel, windows, window):
        columns[(*tap, *everything)][outs] = array[ins]
    return columns.reshape(*lead[:-1], lead[-1] * prod(kernel), prod(windows))


def relative_error(got: npt.ArrayLike, want: npt.ArrayLike) -> float:
    """Return the Frobenius norm of the difference over that of ``want`` (0 if both are zero).

    Elements that are the same infinity, or no number in both, are equal.
    """
    a, b = without_equal_infinities(got, want)
    difference, scale = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    if scale == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / scale


def without_equal_infinities(got: npt.ArrayLike, want: npt.ArrayLike) -> tuple[Float64, Float64]:
    """Both arrays with 0 where they are the same infinity, or no number in both.

    Raises ``ArgumentError`` where their shapes differ.
    """
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if a.shape != b.shape:
        raise ArgumentError(f"relative_error: shapes differ, {a.shape} and {b.shape}; align them")
    alike = (np.isinf(a) & (a == b)) | (np.isnan(a) & np.isnan(b))
    if not alike.any():
        return a, b
    return np.where(alike, 0.0, a), np.where(alike, 0.0, b)


def _split(array: npt.ArrayLike, axis: int, groups: int) -> Float64:
    """The array with its channels, at ``axis``, as groups and channels of a group."""
    wide = np.asarray(array, np.float64)
    before = wide.shape[:axis]
    channels = wide.shape[axis]
    after = wide.shape[axis + 1 :]
    return wide.reshape(*before, groups, channels // groups, *after)


def _joined(array: Float64, axis: int) -> Float64:
    """The other way round."""
    groups, channels = array.shape[axis : axis + 2]
    return array.reshape(*array.shape[:axis], groups * channels, *array.shape[axis + 2 :])


def _outputs(grad_output: npt.ArrayLike, groups: int, size: Sequence[int]) -> Float64:
    """An output's gradient in groups; it must have the spatial ``size``."""
    dy = _split(grad_output, 1, groups)
    return dy.reshape(*dy.shape[:3], *size)


def _rows(part: Float64) -> Float64:
    """Part of a map, its pixels in one axis."""
    return part.reshape(*part.shape[:3], prod(part.shape[3:]))


def _taps(
    size: Sequence[int], kernel: Sequence[int], out: Sequence[int], window: Window
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]]:
    """Yield each tap, the inputs it reads and the outputs it is read for, as indices.

    Axes before the spatial ones are left as they are. Outputs for which the tap reads outside the
    input are left out.
    """
    for tap in np.ndindex(*kernel):
        ins, outs = [], []
        for k, x, y, s, (before, _), d in zip(tap, size, out, *window, strict=True):
            offset = k * d - before
            first = max(0, -(offset // s))  # the first o with o*s + offset >= 0
            count = max(0, min(y, (x - 1 - offset) // s + 1) - first)
            start = first * s + offset
            outs.append(slice(first, first + count))
            ins.append(slice(start, start + count * s, s) if count else slice(0, 0))
        yield (..., *tap), (..., *ins), (..., *outs)
