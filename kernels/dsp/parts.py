"""What the gradients on a DSP share: pieces of positions, im2row of what windows read, buffers.

The positions of a gradient are those of windows over dy, as an ordinary layer has them. Pieces of
them that look alike share a pattern. A chunk of im2row has the positions outside, then some taps,
then channels of dy:

    A <- 0 where a tap does not find dy                              # S, scalar stores
    A <- dy, per tap: a frame of channels for every position         # DMA, strided
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, NamedTuple

from npusim.base.records import Abstract
from npusim.kernels.windows.windows import Cut, Tap, window_cuts
from npusim.language import FP32, Kernel, Language, Slot
from npusim.problem.convolution import Convolution, Sizes


class Side(NamedTuple):
    """Positions along one axis, how far apart they are, and what taps read: see ``Cut.reads``."""

    size: int
    hop: int
    reads: tuple[tuple[int, Tap], ...]


Sides = tuple[Side, Side]


class Place(NamedTuple):
    """A place of the filter, by number, and what it reads along both axes: zeros for nothing."""

    number: int
    down: Tap = (0, 0, 0)
    across: Tap = (0, 0, 0)


class Ends(NamedTuple):
    """Height and width of the positions and of dy, and channels of either in a group.

    A tap reads pixels of dy that are ``steps`` apart at neighbouring positions.
    """

    positions: Sizes
    read: Sizes
    width: int
    depth: int
    steps: Sizes


@dataclass(frozen=True)
class DspGradient(Kernel):
    """A gradient whose positions are windows over dy: the layer that makes these is ``layer``."""

    shape: Convolution
    tiling: Any

    role: ClassVar[str] = "dsp"

    @cached_property
    def layer(self) -> Convolution:
        """The ordinary convolution underneath."""
        return self.shape.plain()

    @cached_property
    def ends(self) -> Ends:
        """Its positions, and what they read."""
        s = self.layer
        return Ends(s.out, s.spatial, s.cout_per_group, s.cin_per_group, s.stride)

    def cut(self, axis: int, step: int) -> list[Cut]:
        """The positions along an axis in pieces, with what every tap reads."""
        return window_cuts(self.layer, axis, step)

    @property
    def useful_macs(self) -> int:
        return self.shape.useful_macs

    @cached_property
    def pieces(self) -> list[tuple[Cut, Cut]]:
        """The positions of an image."""
        return list(product(self.cut(0, self.tiling.rows), self.cut(1, self.tiling.width)))

    @cached_property
    def numbered(self) -> list[int]:
        """The number of the pattern of each piece."""
        number = {pattern: i for i, pattern in enumerate(self.patterns)}
        return [number[_pattern(piece)] for piece in self.pieces]

    @cached_property
    def patterns(self) -> list[Sides]:
        """Pieces that look alike share a pattern."""
        return list(dict.fromkeys(map(_pattern, self.pieces)))

    def taps(self, sides: Sides) -> list[Place]:
        """The taps that read anything for the positions of a pattern."""
        wide, reads = self.layer.kernel[1], product(sides[0].reads, sides[1].reads)
        return [Place(kh * wide + kw, down, across) for (kh, down), (kw, across) in reads]


def _pattern(piece: tuple[Cut, Cut]) -> Sides:
    rows, columns = piece
    return Side(rows.size, rows.hop, rows.reads), Side(columns.size, columns.hop, columns.reads)


class DspNest(Abstract):
    """The program of a chunk: A is im2row of dy, ``names`` are those of B and of the result.

    ``sizes`` are the rows and columns of A, of B and of their product.
    """

    kernel: Any

    def __init__(
        self,
        kernel: Any,
        k: Language,
        sizes: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
        names: tuple[str, str],
    ) -> None:
        self.kernel, self.k, self.dtype = kernel, k, kernel.dy.dtype
        (a, b, acc), (other, out), dtype = sizes, names, self.dtype
        self.a = k.buffer("SM", a, dtype, slots=2, name="im2row")
        self.b = k.buffer("AM", b, dtype, slots=2, name=f"{other}_am")
        self.acc = k.buffer("AM", acc, FP32, name="acc")
        self.out = k.buffer("AM", acc, dtype, name=f"{out}_am") if dtype != FP32 else None

    @abstractmethod
    def emit(self, u: Any) -> None:
        """Issue it."""

    def im2row(
        self, a: Slot, channels: int, taps: list[Place], sides: Sides, *, gaps: bool
    ) -> None:
        """Per tap, frames of channels; zeros in ``gaps`` alone, or at all positions of the tap."""
        k, dy, e, (rows, columns) = self.k, self.kernel.dy, self.dtype.bytes, sides
        frame, row, total = channels * e, len(taps) * channels * e, rows.size * columns.size
        found = [list(self._runs(tap, columns.size)) for tap in taps]
        # Zeros first: a scalar store after a DMA into the same slot would wait for it.
        for i, runs in enumerate(found):
            some = [run for run in runs if gaps or sum(count for _, count, *_ in runs) == total]
            for first, count in _gaps(some, total):
                k.fill(a.at(first * row + i * frame, frame, rows=count, pitch=row), 0, dy.dtype)
        for i, runs in enumerate(found):
            for first, count, pixel, hop in runs:
                k.data_move(
                    a.at(first * row + i * frame, frame, rows=count, pitch=row),
                    dy.at(pixel * e, frame, base="dy", rows=count, pitch=hop * e),
                    dy.dtype,
                )

    def _runs(self, tap: Place, columns: int) -> Iterator[tuple[int, int, int, int]]:
        """(first position, count, element of dy, elements apart), row by row."""
        (y, r, high), (x, c, wide) = tap.down, tap.across
        (ry, rx), width = self.kernel.ends.steps, self.kernel.ends.read[1]
        channels = self.kernel.ends.depth * self.kernel.layer.groups
        if wide == columns and ry * width == wide * rx:
            yield y * columns + x, high * wide, (r * width + c) * channels, rx * channels
            return
        for i in range(high):
            pixel = (r + i * ry) * width + c
            yield (y + i) * columns + x, wide, pixel * channels, rx * channels

    def rounded(self, acc: Slot, count: int) -> Slot:
        """So many sums in the type of the result."""
        if self.out is None:
            return acc
        done = self.out.next()
        self.k.dsp_cast(done, acc.at(0, count * FP32.bytes), FP32, self.dtype)
        return done


def _gaps(runs: list[tuple[int, int, int, int]], total: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the positions below ``total`` that no run covers."""
    at = 0
    for first, count, *_ in (*runs, (total, 0)):
        if first > at:
            yield at, first - at
        at = first + count
