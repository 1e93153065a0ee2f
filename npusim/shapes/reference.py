"""Convolution and its gradients in float64, one kernel tap at a time.

Everything is one relation, per dimension: output ``o`` reads input ``i = o*s - before + k*d``
through tap ``k``, and reads zero where ``i`` lies outside the input. Arrays are channels first:
input (N, Cin, X...), weight (Cout, Cin/groups, K...), output (N, Cout, Y...), with one to three
spatial dimensions. Strides, dilations and (before, after) paddings have one entry per dimension.

For a transposed convolution exchange the roles: its input gradient is ``conv_forward`` of
grad_output, its filter gradient is ``conv_filter_grad(grad_output, input, ...)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.errors import ArgumentError

Float64 = npt.NDArray[np.float64]
Pads = Sequence[tuple[int, int]]

#: More spatial dimensions than any operator has; also catches swapped arguments.
MAX_DIMS = 3


def output_shape(
    spatial: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Return the forward output's spatial size; an error where the kernel does not fit."""
    _Geometry.check(kernel, stride, padding, dilation)
    if len(spatial) != len(kernel):
        raise ArgumentError(f"spatial size {tuple(spatial)} and kernel {tuple(kernel)} must match")
    sizes = []
    for i, (x, k, s, (before, after), d) in enumerate(
        zip(spatial, kernel, stride, padding, dilation, strict=True)
    ):
        reach, room = d * (k - 1) + 1, x + before + after
        if room < reach:
            raise ArgumentError(
                f"spatial dimension {i}: the kernel reaches over {reach} positions "
                f"({k} taps, dilation {d}), input and padding are {x} + {before} + {after} = "
                f"{room}; pad more or use a smaller kernel or dilation"
            )
        sizes.append((room - reach) // s + 1)
    return tuple(sizes)


def conv_forward(
    input: npt.ArrayLike,
    weight: npt.ArrayLike,
    stride: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
    groups: int,
) -> Float64:
    """Return the convolution (N, Cout, Y...) of ``input`` with ``weight``."""
    x, w = _float64("input", input), _float64("weight", weight)
    g = _Geometry.of(x.shape, w.shape, stride, padding, dilation, groups)
    y = np.zeros(g.output_shape)
    for tap, ins, outs in g.taps():
        rows = g.by_group(x[ins])  # N, groups, Cin/groups, P
        sums = g.weights(w[tap]) @ rows  # N, groups, Cout/groups, P
        y[outs] += sums.reshape(y[outs].shape)
    return y


def conv_input_grad(
    grad_output: npt.ArrayLike,
    weight: npt.ArrayLike,
    input_shape: Sequence[int],
    stride: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
    groups: int,
) -> Float64:
    """Return dx of shape ``input_shape`` (N, Cin, X...); zero where no output ever reads."""
    dy, w = _float64("grad_output", grad_output), _float64("weight", weight)
    g = _Geometry.of(tuple(input_shape), w.shape, stride, padding, dilation, groups)
    g.check_grad_output(dy)
    dx = np.zeros(g.input_shape)
    for tap, ins, outs in g.taps():
        rows = g.by_group(dy[outs])  # N, groups, Cout/groups, P
        sums = g.weights(w[tap]).swapaxes(1, 2) @ rows  # N, groups, Cin/groups, P
        dx[ins] += sums.reshape(dx[ins].shape)
    return dx


def conv_filter_grad(
    input: npt.ArrayLike,
    grad_output: npt.ArrayLike,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
    groups: int,
) -> Float64:
    """Return dw (Cout, Cin/groups, K...), summed over batch and output positions."""
    x, dy = _float64("input", input), _float64("grad_output", grad_output)
    if dy.ndim != x.ndim:
        raise ArgumentError(
            f"grad_output has shape {dy.shape}, input {x.shape}; both need N, channels and the "
            "same number of spatial dimensions"
        )
    _check_groups(groups, x.shape[1], dy.shape[1])
    shape = (dy.shape[1], x.shape[1] // groups, *kernel)
    g = _Geometry.of(x.shape, shape, stride, padding, dilation, groups)
    g.check_grad_output(dy)
    dw = np.zeros(shape)
    for tap, ins, outs in g.taps():
        read, grad = g.by_group(x[ins]), g.by_group(dy[outs])
        per_image = grad @ read.swapaxes(2, 3)  # N, groups, Cout/groups, Cin/groups
        dw[tap] = per_image.sum(axis=0).reshape(dw[tap].shape)
    return dw


def conv_bias_grad(grad_output: npt.ArrayLike) -> Float64:
    """Return db (Cout,): grad_output (N, Cout, Y...) summed over all but the channels."""
    dy = _float64("grad_output", grad_output)
    return np.asarray(dy.sum(axis=(0, *range(2, dy.ndim))), np.float64)


def fold(
    columns: npt.ArrayLike,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Float64:
    """Return windows (..., C*K..., L) summed into the image (..., C, ``size``) they were cut from.

    Row ``(c*KH + kh)*KW + kw`` of ``columns`` holds tap (kh, kw) of channel c for every window,
    in row-major order. ``padding`` counts zeros on both sides; what lies there is dropped.
    """
    array = np.asarray(columns, np.float64)
    windows = output_shape(size, kernel, stride, [(p, p) for p in padding], dilation)
    taps, places = math.prod(kernel), math.prod(windows)
    if array.ndim < 2 or array.shape[-2] % taps or array.shape[-1] != places:
        raise ArgumentError(
            f"columns has shape {array.shape}; these windows make it (..., C * {taps}, {places})"
        )
    lead = (*array.shape[:-2], array.shape[-2] // taps)
    patches = array.reshape(*lead, *kernel, *windows)
    everything: tuple[Any, ...] = (slice(None),) * len(lead)
    whole = np.zeros((*lead, *(x + 2 * p for x, p in zip(size, padding, strict=True))))
    for tap in product(*map(range, kernel)):
        at = [
            slice(k * d, k * d + (count - 1) * s + 1, s)
            for k, d, count, s in zip(tap, dilation, windows, stride, strict=True)
        ]
        whole[(*everything, *at)] += patches[(*everything, *tap)]
    return whole[(*everything, *(slice(p, p + x) for x, p in zip(size, padding, strict=True)))]


def unfold(
    image: npt.ArrayLike,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Float64:
    """Return the windows (..., C*K..., L) of an image (..., C, H, W); see ``fold``."""
    array = np.asarray(image, np.float64)
    pads = [(p, p) for p in padding]
    windows = output_shape(array.shape[-2:], kernel, stride, pads, dilation)
    lead = array.shape[:-2]
    padded = np.pad(array, [(0, 0)] * len(lead) + pads)
    columns = np.zeros((*lead, *kernel, *windows))
    for tap in product(*map(range, kernel)):
        at = [
            slice(k * d, k * d + (count - 1) * s + 1, s)
            for k, d, count, s in zip(tap, dilation, windows, stride, strict=True)
        ]
        place: tuple[Any, ...] = (..., *tap, slice(None), slice(None))
        read: tuple[Any, ...] = (..., *at)
        columns[place] = padded[read]
    rows = lead[-1] * math.prod(kernel)
    return columns.reshape(*lead[:-1], rows, math.prod(windows))


def relative_error(got: npt.ArrayLike, want: npt.ArrayLike) -> float:
    """Return |got - want| / |want| in Frobenius norms; 0 if both are zero, inf if only want is."""
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if a.shape != b.shape:
        raise ArgumentError(f"relative_error: shapes differ, {a.shape} and {b.shape}; align them")
    difference, scale = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    if scale == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / scale


@dataclass(frozen=True)
class _Geometry:
    """One convolution's checked shapes, and which slices of its arrays a tap connects."""

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def of(
        input_shape: tuple[int, ...],
        weight_shape: tuple[int, ...],
        stride: Sequence[int],
        padding: Pads,
        dilation: Sequence[int],
        groups: int,
    ) -> _Geometry:
        """Check that all parts fit each other and work out the output's shape."""
        kernel = weight_shape[2:]
        _Geometry.check(kernel, stride, padding, dilation)
        if len(input_shape) != len(weight_shape):
            raise ArgumentError(
                f"input has shape {input_shape}, weight {weight_shape}; both need two channel "
                "axes and the same number of spatial dimensions"
            )
        _check_groups(groups, input_shape[1], weight_shape[0])
        if weight_shape[1] * groups != input_shape[1]:
            raise ArgumentError(
                f"weight of shape {weight_shape} with groups = {groups} reads "
                f"{weight_shape[1] * groups} channels, the input has {input_shape[1]}"
            )
        spatial = output_shape(input_shape[2:], kernel, stride, padding, dilation)
        return _Geometry(
            input_shape=input_shape,
            output_shape=(input_shape[0], weight_shape[0], *spatial),
            kernel=kernel,
            stride=tuple(stride),
            before=tuple(before for before, _ in padding),
            dilation=tuple(dilation),
            groups=groups,
        )

    @staticmethod
    def check(
        kernel: Sequence[int], stride: Sequence[int], padding: Pads, dilation: Sequence[int]
    ) -> None:
        """Check that the window's parts have one sensible entry per spatial dimension."""
        if not 1 <= len(kernel) <= MAX_DIMS:
            raise ArgumentError(f"kernel {tuple(kernel)} needs 1 to {MAX_DIMS} spatial dimensions")
        for name, values in (("stride", stride), ("padding", padding), ("dilation", dilation)):
            if len(values) != len(kernel):
                raise ArgumentError(
                    f"{name} {values!r} needs {len(kernel)} entries, one per dimension of "
                    f"kernel {tuple(kernel)}"
                )
        for name, sizes in (("kernel", kernel), ("stride", stride), ("dilation", dilation)):
            if min(sizes) < 1:
                raise ArgumentError(f"{name} {sizes!r} must be at least 1 in every dimension")

    def check_grad_output(self, dy: Float64) -> None:
        """Raise unless ``dy`` has the shape of the forward output."""
        if dy.shape != self.output_shape:
            raise ArgumentError(
                f"grad_output has shape {dy.shape}, the forward output of input "
                f"{self.input_shape} is {self.output_shape}; correct one of them"
            )

    def by_group(self, part: Float64) -> Float64:
        """Turn (N, C, ...) into (N, groups, C/groups, P)."""
        n, channels = part.shape[:2]
        pixels = int(np.prod(part.shape[2:]))
        return part.reshape(n, self.groups, channels // self.groups, pixels)

    def weights(self, tap: Float64) -> Float64:
        """Turn one tap (Cout, Cin/groups) into (groups, Cout/groups, Cin/groups)."""
        return tap.reshape(self.groups, tap.shape[0] // self.groups, tap.shape[1])

    def taps(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]]:
        """Yield for every tap the index of the weight, of the input and of the output.

        The two slices have equal lengths: the outputs whose read falls inside the input.
        """
        everything = (slice(None), slice(None))
        for tap in product(*map(range, self.kernel)):
            ins, outs = [], []
            for dim, k in enumerate(tap):
                size, s = self.input_shape[2 + dim], self.stride[dim]
                offset = k * self.dilation[dim] - self.before[dim]
                first = max(0, -(offset // s))  # the first o with o*s + offset >= 0
                end = min(self.output_shape[2 + dim], (size - 1 - offset) // s + 1)
                count = max(0, end - first)
                start = first * s + offset
                outs.append(slice(first, first + count))
                ins.append(slice(start, start + count * s, s) if count else slice(0, 0))
            yield (*everything, *tap), (*everything, *ins), (*everything, *outs)


def _float64(name: str, value: npt.ArrayLike) -> Float64:
    """Return ``value`` as a float64 array with batch, channels and spatial dimensions."""
    array = np.asarray(value, np.float64)
    if not 1 <= array.ndim - 2 <= MAX_DIMS:
        raise ArgumentError(
            f"{name} has shape {array.shape}, expected two leading axes (batch or channels) "
            f"and 1 to {MAX_DIMS} spatial dimensions; reshape it"
        )
    return array


def _check_groups(groups: int, cin: int, cout: int) -> None:
    """Raise unless both channel counts divide into ``groups``."""
    if groups < 1 or cin % groups or cout % groups:
        raise ArgumentError(
            f"groups = {groups} must be at least 1 and divide both channel counts, {cin} and {cout}"
        )
