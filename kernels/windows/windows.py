"""Axes of an image in pieces, and what each tap of a sliding window finds there.

Window ``o`` reads pixel ``o * stride + shift`` through tap ``k``, whose ``shift`` is
``k * dilation - padding``.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from npusim.base.records import replace
from npusim.language import IntArray, ceil_div
from npusim.problem.axis import Part
from npusim.problem.convolution import Convolution

#: Where a tap begins in a piece and on the other side, and how far it reaches.
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
        return tuple((tap, found) for tap, found in enumerate(self.taps) if found[2])


def cuts(shape: Convolution, axis: int, step: int) -> list[Cut]:
    """Axis 0 (rows) or 1 (columns) of the image in pieces of ``step`` pixels."""
    size, windows, stride = shape.spatial[axis], shape.out[axis], shape.stride[axis]
    pieces = []
    for start in range(0, size, step):
        count, base, taps = min(step, size - start), start // stride, []
        for shift in _shifts(shape, axis):
            low = max(0, ceil_div(start - shift, stride))
            high = min(windows, ceil_div(start + count - shift, stride))
            inside = (low * stride + shift - start, low - base, high - low)
            taps.append(inside if high > low else (0, 0, 0))
        pieces.append(Cut(start, count, base, 0, tuple(taps)))
    return pieces


def window_cuts(shape: Convolution, axis: int, step: int) -> list[Cut]:
    """The windows along axis 0 (rows) or 1 (columns) in pieces of ``step``; others read padding."""
    size, windows, stride = shape.spatial[axis], shape.out[axis], shape.stride[axis]
    pieces = []
    for start in range(0, windows, step):
        count, found = min(step, windows - start), []
        for shift in _shifts(shape, axis):
            low = max(start, ceil_div(-shift, stride))
            high = min(start + count, (size - 1 - shift) // stride + 1)
            found.append((low, low * stride + shift, high - low) if high > low else None)
        read = [one for one in found if one is not None]
        base = min((pixel for _, pixel, _ in read), default=0)
        last = max((pixel + (count - 1) * stride for _, pixel, count in read), default=base - 1)
        taps = tuple(
            (o - start, at - base, n) if n else (0, 0, 0)
            for o, at, n in (one or (0, 0, 0) for one in found)
        )
        pieces.append(Cut(start, count, base, last + 1 - base, taps))
    return pieces


def phase_cuts(shape: Convolution, axis: int, step: int) -> list[Cut]:
    """The pixels along an axis by their residue modulo the stride, in pieces of ``step``.

    The taps of a residue read neighbouring windows. Pixels that none reads follow, apart or
    together, whichever takes fewer pieces.
    """
    stride = shape.stride[axis]
    backwards = replace(shape.gradient_axis(axis), insert=stride)
    pieces, left = [], np.ones(backwards.out, bool)
    for part in backwards.phases():
        for start in range(0, part.axis.out, step):
            piece = _read(part, start, min(step, part.axis.out - start), backwards.kernel)
            if piece.reads:
                left[piece.start :: piece.hop][: piece.size] = False
                pieces.append(piece)
    rest = min((_apart(np.flatnonzero(left), hop, step) for hop in (1, stride)), key=len)
    return pieces + rest


def _read(part: Part, start: int, count: int, kernel: int) -> Cut:
    """What the taps of a part, whose filter is turned, read for some of its outputs."""
    (first, hop), (turned, every), a = part.outputs, part.taps, part.axis
    found = {}
    for tap in range(a.kernel):
        shift = tap * a.dilation - a.before
        low, high = max(start, -shift), min(start + count, a.size - shift)
        if high > low:
            found[kernel - 1 - turned - tap * every] = low - start, low + shift, high - low
    base = min((place for _, place, _ in found.values()), default=0)
    taps = [(0, 0, 0)] * kernel
    for tap, (at, place, n) in found.items():
        taps[tap] = at, place - base, n
    return Cut(first + start * hop, count, base, 0, tuple(taps), hop)


def _apart(places: IntArray, hop: int, step: int) -> list[Cut]:
    """Ascending places in pieces of up to ``step`` that lie ``hop`` apart and read nothing."""
    places = places[np.argsort(places % hop, kind="stable")]
    runs = np.split(places, np.flatnonzero(np.diff(places) != hop) + 1)
    return [
        Cut(int(run[at]), min(step, len(run) - at), 0, 0, (), hop)
        for run in runs
        for at in range(0, len(run), step)
    ]


def _shifts(shape: Convolution, axis: int) -> list[int]:
    """Per tap, the pixel that window 0 reads; negative ones lie in the padding."""
    before, dilation = shape.padding[axis][0], shape.dilation[axis]
    return [k * dilation - before for k in range(shape.kernel[axis])]
