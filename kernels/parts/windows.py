"""Axes of an image in pieces, and what each tap of a sliding window finds there.

Window ``o`` reads pixel ``o * stride + shift`` through tap ``k``, whose ``shift`` is
``k * dilation - padding``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.language import IntArray, ceil_div
from npusim.shapes.axis import Part
from npusim.shapes.convolution import Convolution


@dataclass(frozen=True)
class Cut:
    """A piece of one axis of the image or of the windows and, per tap, what falls into it.

    ``taps`` are (first of the piece, first of the other side after ``base``, how many), zeros where
    a tap finds nothing. Of windows, the pixels that taps together read are ``span`` from ``base``
    on, with gaps among them.
    """

    start: int
    size: int
    base: int
    span: int
    taps: tuple[tuple[int, int, int], ...]


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


@dataclass(frozen=True)
class Piece:
    """Positions ``hop`` apart along an axis of a result, and what each tap reads for them.

    ``taps`` are (tap, first position that it reads for, what it reads there after ``base``, number
    of such positions that follow each other), without those that read nothing.
    """

    start: int
    size: int
    hop: int
    base: int
    taps: tuple[tuple[int, int, int, int], ...]


def phase_pieces(shape: Convolution, axis: int, step: int) -> list[Piece]:
    """The pixels along an axis by their residue modulo the stride, in pieces of ``step``.

    The taps of a residue read neighbouring windows. Pixels that none reads follow, apart or
    together, whichever takes fewer pieces.
    """
    stride = shape.stride[axis]
    backwards = replace(shape.gradient_axis(axis), insert=stride)
    pieces, left = [], np.ones(backwards.out, bool)
    for (part,) in backwards.parts("phases"):
        for start in range(0, part.axis.out, step):
            piece = _read(part, start, min(step, part.axis.out - start), backwards.kernel)
            if piece.taps:
                left[piece.start :: piece.hop][: piece.size] = False
                pieces.append(piece)
    rest = min((_apart(np.flatnonzero(left), hop, step) for hop in (1, stride)), key=len)
    return pieces + rest


def _read(part: Part, start: int, count: int, kernel: int) -> Piece:
    """What the taps of a part, whose filter is turned, read for some of its outputs."""
    (first, hop), (turned, every), a = part.outputs, part.taps, part.axis
    found = []
    for tap in reversed(range(a.kernel)):
        shift = tap * a.dilation - a.before
        low, high = max(start, -shift), min(start + count, a.size - shift)
        if high > low:
            found.append((kernel - 1 - turned - tap * every, low - start, low + shift, high - low))
    base = min((one[2] for one in found), default=0)
    taps = tuple((tap, at, place - base, n) for tap, at, place, n in found)
    return Piece(first + start * hop, count, hop, base, taps)


def _apart(places: IntArray, hop: int, step: int) -> list[Piece]:
    """Ascending places in pieces of up to ``step`` that lie ``hop`` apart and read nothing."""
    places = places[np.argsort(places % hop, kind="stable")]
    runs = np.split(places, np.flatnonzero(np.diff(places) != hop) + 1)
    return [
        Piece(int(run[at]), min(step, len(run) - at), hop, 0, ())
        for run in runs
        for at in range(0, len(run), step)
    ]


def window_pieces(shape: Convolution, axis: int, step: int) -> list[Piece]:
    """``window_cuts`` as pieces of a result."""
    return [
        Piece(
            *(cut.start, cut.size, 1, cut.base),
            tuple((tap, *read) for tap, read in enumerate(cut.taps) if read[2]),
        )
        for cut in window_cuts(shape, axis, step)
    ]


def _shifts(shape: Convolution, axis: int) -> list[int]:
    """Per tap, the pixel that window 0 reads; negative ones lie in the padding."""
    before, dilation = shape.padding[axis][0], shape.dilation[axis]
    return [k * dilation - before for k in range(shape.kernel[axis])]
