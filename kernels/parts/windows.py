"""Axes of an image in pieces, and what each tap of a sliding window finds there.

Window ``o`` reads pixel ``o * stride + shift`` through tap ``k``, whose ``shift`` is
``k * dilation - padding``.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.convolution import Convolution
from npusim.language import ceil_div


@dataclass(frozen=True)
class Cut:
    """A piece of one axis of the image and, per tap, what falls into it.

    ``taps`` are (first pixel in the piece, first window after ``base``, windows).
    """

    start: int
    size: int
    base: int
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
        pieces.append(Cut(start, count, base, tuple(taps)))
    return pieces


@dataclass(frozen=True)
class WindowCut:
    """A piece of the windows along one axis and, per tap, the pixels they read.

    Taps together read ``span`` pixels from ``base`` on, with gaps among them. ``taps`` are (first
    window in the piece that reads a pixel, that pixel after ``base``, windows); the other windows
    read padding.
    """

    start: int
    size: int
    base: int
    span: int
    taps: tuple[tuple[int, int, int], ...]


def window_cuts(shape: Convolution, axis: int, step: int) -> list[WindowCut]:
    """The windows along axis 0 (rows) or 1 (columns) in pieces of ``step``."""
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
        pieces.append(WindowCut(start, count, base, last + 1 - base, taps))
    return pieces


def _shifts(shape: Convolution, axis: int) -> list[int]:
    """Per tap, the pixel that window 0 reads; negative ones lie in the padding."""
    before, dilation = shape.padding[axis][0], shape.dilation[axis]
    return [k * dilation - before for k in range(shape.kernel[axis])]
