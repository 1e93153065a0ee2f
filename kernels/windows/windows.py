"""Axes of an image in pieces, and the positions that each tap of a sliding window finds there.

Window ``o`` reads pixel ``o * stride + shift`` through tap ``k``, whose ``shift`` is
``k * dilation - padding``.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from npusim.base.records import replace
from npusim.language import IntArray, ceil_div
from npusim.problem.axis import AxisPart
from npusim.problem.convolution import Convolution

#: A tap in a piece: its first place there and on the other side, and how far it reaches.
Tap = tuple[int, int, int]


class Cut(Struct, frozen=True):
    """A piece of one axis of the image or of the windows and, per tap, what falls into it.

    ``taps`` are (first of the piece, first of the other side after ``base``, how many), zeros where
    a tap finds nothing. Of windows, the pixels that taps together read are ``span`` from ``base``
    on, with gaps among them. The piece is of positions ``hop`` apart.
    """

    start: int
    size: int
    base: int
    span: int
    taps: tuple[Tap, ...]
    hop: int = 1

    @property
    def reads(self) -> tuple[tuple[int, Tap], ...]:
        """The taps that find anything, each with its number."""
        return tuple((number, tap) for number, tap in enumerate(self.taps) if tap[2])


def cuts(shape: Convolution, axis: int, step: int) -> list[Cut]:
    """Axis 0 (rows) or 1 (columns) of the image in pieces of ``step`` pixels."""
    size = shape.spatial[axis]
    windows = shape.out[axis]
    stride = shape.stride[axis]
    pieces = []
    for start in range(0, size, step):
        count = min(step, size - start)
        base = start // stride
        taps: list[Tap] = []
        for shift in _shifts(shape, axis):
            low = max(0, ceil_div(start - shift, stride))
            high = min(windows, ceil_div(start + count - shift, stride))
            inside = (low * stride + shift - start, low - base, high - low)
            taps.append(inside if high > low else (0, 0, 0))
        pieces.append(Cut(start, count, base, 0, tuple(taps)))
    return pieces


def window_cuts(shape: Convolution, axis: int, step: int) -> list[Cut]:
    """The windows along axis 0 (rows) or 1 (columns) in pieces of ``step``; others read padding."""
    windows = shape.out[axis]
    return [
        _window_cut(shape, axis, start, min(step, windows - start))
        for start in range(0, windows, step)
    ]


def _window_cut(shape: Convolution, axis: int, start: int, count: int) -> Cut:
    """The piece of ``count`` windows from ``start`` on."""
    size = shape.spatial[axis]
    stride = shape.stride[axis]
    reads: dict[int, Tap] = {}  # by tap the first window and pixel, and how many
    for tap, shift in enumerate(_shifts(shape, axis)):
        low = max(start, ceil_div(-shift, stride))
        high = min(start + count, (size - 1 - shift) // stride + 1)
        if high > low:
            reads[tap] = low, low * stride + shift, high - low
    base = min((pixel for _, pixel, _ in reads.values()), default=0)
    last = max((pixel + (n - 1) * stride for _, pixel, n in reads.values()), default=base - 1)
    taps: list[Tap] = [(0, 0, 0)] * shape.kernel[axis]
    for tap, (window, pixel, n) in reads.items():
        taps[tap] = window - start, pixel - base, n
    return Cut(start, count, base, last + 1 - base, tuple(taps))


def phase_cuts(shape: Convolution, axis: int, step: int) -> list[Cut]:
    """The pixels along an axis by their residue modulo the stride, in pieces of ``step``.

    The taps of a residue read neighbouring windows. Pixels that none reads follow, apart or
    together, whichever takes fewer pieces.
    """
    stride = shape.stride[axis]
    backwards = replace(shape.gradient_axis(axis), insert=stride)
    pieces = []
    unread = np.ones(backwards.out, bool)
    for part in backwards.phases():
        for start in range(0, part.axis.out, step):
            piece = _read(part, start, min(step, part.axis.out - start), backwards.kernel)
            if piece.reads:
                unread[piece.start :: piece.hop][: piece.size] = False
                pieces.append(piece)
    rest = min((_apart(np.flatnonzero(unread), hop, step) for hop in (1, stride)), key=len)
    return pieces + rest


def _read(part: AxisPart, start: int, count: int, kernel: int) -> Cut:
    """A piece of some outputs of a part, whose filter is turned."""
    first, hop = part.outputs
    first_tap, taps_apart = part.taps
    axis = part.axis
    reads: dict[int, Tap] = {}
    for tap in range(axis.kernel):
        shift = tap * axis.dilation - axis.before
        low = max(start, -shift)
        high = min(start + count, axis.size - shift)
        if high > low:
            turned = kernel - 1 - first_tap - tap * taps_apart
            reads[turned] = low - start, low + shift, high - low
    base = min((place for _, place, _ in reads.values()), default=0)
    taps: list[Tap] = [(0, 0, 0)] * kernel
    for tap, (output, place, n) in reads.items():
        taps[tap] = output, place - base, n
    return Cut(first + start * hop, count, base, 0, tuple(taps), hop)


def _apart(places: IntArray, hop: int, step: int) -> list[Cut]:
    """Ascending places in pieces of up to ``step`` that lie ``hop`` apart and read nothing."""
    places = places[np.argsort(places % hop, kind="stable")]
    runs = np.split(places, np.flatnonzero(np.diff(places) != hop) + 1)
    return [
        Cut(int(run[first]), min(step, len(run) - first), 0, 0, (), hop)
        for run in runs
        for first in range(0, len(run), step)
    ]


def _shifts(shape: Convolution, axis: int) -> list[int]:
    """Per tap, the pixel that window 0 reads; negative ones lie in the padding."""
    before = shape.padding[axis][0]
    dilation = shape.dilation[axis]
    return [k * dilation - before for k in range(shape.kernel[axis])]
