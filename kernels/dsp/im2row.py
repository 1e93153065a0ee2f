"""Pieces of positions, im2row of what windows read, and buffers of the gradients on a DSP.

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
        rows, columns = sides
        row = self.layer.kernel[1]
        reads = product(rows.reads, columns.reads)
        return [Place(kh * row + kw, down, across) for (kh, down), (kw, across) in reads]


def _pattern(piece: tuple[Cut, Cut]) -> Sides:
    rows, columns = piece
    return Side(rows.size, rows.hop, rows.reads), Side(columns.size, columns.hop, columns.reads)


class _Run(NamedTuple):
    """``positions`` from the ``first`` on; the ``element`` of dy they read, ``hop`` apart."""

    first: int
    positions: int
    element: int
    hop: int


class DspNest(Abstract):
    """The program of a chunk: A is im2row of dy, of which all three have rows and columns."""

    kernel: Any

    def __init__(
        self,
        kernel: Any,
        k: Language,
        a: tuple[int, int],
        b: tuple[int, int],
        out: tuple[int, int],
        *,
        b_name: str,
        out_name: str,
    ) -> None:
        self.kernel = kernel
        self.k = k
        self.dtype = kernel.dy.dtype
        self.a = k.buffer("SM", a, self.dtype, slots=2, name="im2row")
        self.b = k.buffer("AM", b, self.dtype, slots=2, name=f"{b_name}_am")
        self.acc = k.buffer("AM", out, FP32, name="acc")
        self.out = None
        if self.dtype != FP32:
            self.out = k.buffer("AM", out, self.dtype, name=f"{out_name}_am")

    @abstractmethod
    def emit(self, u: Any) -> None:
        """Issue it."""

    def im2row(
        self, a: Slot, channels: int, taps: list[Place], sides: Sides, *, gaps: bool
    ) -> None:
        """Per tap, frames of channels; zeros in ``gaps`` alone, or at all positions of the tap."""
        k = self.k
        dy = self.kernel.dy
        element = self.dtype.bytes
        rows, columns = sides
        total = rows.size * columns.size
        frame = channels * element
        row = len(taps) * frame
        runs_of_taps = [list(self._runs(tap, columns.size)) for tap in taps]
        # Zeros first: a scalar store after a DMA into the same slot would wait for it.
        for i, runs in enumerate(runs_of_taps):
            covered = sum(run.positions for run in runs) == total
            for first, count in _gaps(runs if gaps or covered else [], total):
                k.fill(a.at(first * row + i * frame, frame, rows=count, pitch=row), 0, dy.dtype)
        for i, runs in enumerate(runs_of_taps):
            for run in runs:
                target = a.at(run.first * row + i * frame, frame, rows=run.positions, pitch=row)
                source = dy.at(
                    run.element * element,
                    frame,
                    base="dy",
                    rows=run.positions,
                    pitch=run.hop * element,
                )
                k.data_move(target, source, dy.dtype)

    def _runs(self, tap: Place, columns: int) -> Iterator[_Run]:
        """The positions of a tap, row by row."""
        y, row, high = tap.down
        x, column, wide = tap.across
        step_h, step_w = self.kernel.ends.steps
        width = self.kernel.ends.read[1]
        channels = self.kernel.ends.depth * self.kernel.layer.groups
        hop = step_w * channels
        if wide == columns and step_h * width == wide * step_w:
            pixel = row * width + column
            yield _Run(y * columns + x, high * wide, pixel * channels, hop)
            return
        for i in range(high):
            pixel = (row + i * step_h) * width + column
            yield _Run((y + i) * columns + x, wide, pixel * channels, hop)

    def rounded(self, acc: Slot, count: int) -> Slot:
        """So many sums in the type of the result."""
        if self.out is None:
            return acc
        result = self.out.next()
        self.k.dsp_cast(result, acc.at(0, count * FP32.bytes), FP32, self.dtype)
        return result


def _gaps(runs: list[_Run], total: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the positions below ``total`` that no run covers."""
    begin = 0
    for run in runs:
        if run.first > begin:
            yield begin, run.first - begin
        begin = run.first + run.positions
    if begin < total:
        yield begin, total - begin
