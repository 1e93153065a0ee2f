"""Windows over planes of a map, and tiles that fit UB: the base of pooling and its gradient.

The windows of a task follow each other in UB, so that one instruction does all of them; where a row
does not fit, a tile is a part of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npusim.base.records import replace
from npusim.kernels.parts.ub_room import UbBuffer
from npusim.kernels.windows.im2col_backward_tiling import Tiling
from npusim.kernels.windows.patches import Grid, Nest, Patches, Piece, Side, rectangles
from npusim.kernels.windows.windows import Cut
from npusim.language import (
    FP32,
    INT8,
    ArgumentError,
    Device,
    DType,
    GmRegion,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    round_up,
)

#: Ways to join the taps of a window: the largest, their sum, or this over the number of all taps or
#: of those inside the map.
KINDS = ("max", "sum", "mean", "mean_inside")

#: Bytes of the small planes that share a task: a load of full bandwidth.
_LOAD = 32 * 1024


@dataclass(frozen=True)
class Pooling(Patches):
    """Windows over planes, in either direction; without ``tiling`` one is made for the device.

    ``sums`` are of that type, the tensors' or fp32; ``saturate`` keeps fp16 results finite (see
    ``Device.saturates``). Raises ``ArgumentError`` for tensors that do not belong to the windows.
    """

    kind: str
    mask: Tensor | None = None
    sums: DType = FP32
    saturate: bool = False
    tiling: Tiling | None = field(default=None, kw_only=True)

    #: The class whose ``emit`` is the program of a piece.
    nest: ClassVar[type[Nest]]

    def __post_init__(self) -> None:
        super().__post_init__()
        s = self.shape
        dtype = self.read.dtype
        mask = self.mask
        t = self.tiling
        if self.kind not in KINDS:
            raise ArgumentError(
                f"{self.name}: kind is {self.kind!r}; it is one of {', '.join(KINDS)}"
            )
        if dtype.kind != "float" or s.cin not in (8, 16) or self.anywhere or s.cout != s.cin:
            raise ArgumentError(
                f"{self.name}: {self.read.name} is {dtype} in blocks of {s.cin} to {s.cout}; both "
                "sides must be floats in blocks of 16, or of 8 in fp32"
            )
        bits = s.taps * self.windows.size_bytes // (8 * dtype.bytes)
        if mask and (self.kind != "max" or mask.dtype != INT8 or mask.size_bytes != bits):
            raise ArgumentError(
                f"{self.name}: {mask.name} is {mask.dtype} of shape {mask.shape}; a maximum has a "
                f"bit for each tap and element of the windows (int8, {bits} of them), others none"
            )
        if t and t.rows > 1 and t.columns < self.extent[1]:
            raise ArgumentError(
                f"{self.name}: tiling is {t} of {self.extent}; a tile of several rows has whole "
                "ones: raise columns or set rows=1"
            )

    @property
    def windows(self) -> Tensor:
        """The tensor of the windows."""
        return self.out if self.cuts_image else self.read

    @property
    def wide(self) -> DType:
        """The type in which taps are joined: a maximum is one of them."""
        return self.read.dtype if self.kind == "max" and self.cuts_image else self.sums

    @property
    def tiling_text(self) -> str:
        return f"{self.kind} of {'x'.join(map(str, self.shape.kernel))}, {self.tiling or 'fit UB'}"

    @property
    def streamed(self) -> dict[str, Any]:
        size = self.shape.taps * self.windows.size_bytes // self.read.dtype.bytes * self.wide.bytes
        if self.mask:
            return {"vector": (("add", size), ("select", size))}
        return {"vector": (("add", size),)}

    def fits(self, device: Device) -> bool:
        """True if UB holds all that one window reads."""
        return self._takes(Tiling(rows=1, columns=1)) <= device.memory("UB").size_bytes

    @abstractmethod
    def buffers(self, pixels: int, windows: int) -> dict[str, UbBuffer]:
        """The buffers in UB, where a task has so many elements of the image and of windows."""

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        tiling = self.tiling or self._fitting(k.memory("UB").size_bytes, cores)
        tiled = replace(self, tiling=tiling)
        return Plan(tiled.tasks(cores), tiled.nest(tiled, k, tiled._buffers_of(tiling)).emit)

    def tasks(self, cores: int) -> Tasks[Piece]:
        tasks = super().tasks(cores)
        windows = tasks.bases["out" if self.cuts_image else self.base]
        return replace(tasks, bases={**tasks.bases, "mask": windows // (8 * self.read.dtype.bytes)})

    def reach(self, side: Side | Cut) -> tuple[int, int]:
        """First of what a piece reads, after its base, and how many there are up to the last."""
        if self.cuts_image:
            return 0, side.span
        reads = [(first, first + count) for _, first, count in side.taps if count]
        if not reads:
            return 0, 0
        first = min(start for start, _ in reads)
        return first, max(end for _, end in reads) - first

    def pattern(self, piece: tuple[Cut, Cut]) -> tuple[Side, Side]:
        rows, columns = super().pattern(piece)
        if self.kind != "mean_inside":
            return rows, columns
        return (
            rows._replace(counts=self._counts(0, piece[0])),
            columns._replace(counts=self._counts(1, piece[1])),
        )

    def _counts(self, axis: int, cut: Cut) -> tuple[int, ...]:
        """Of each window that a piece makes or reads, the taps inside the map, at least 1."""
        s = self.shape
        if self.cuts_image:
            first = cut.start
            count = cut.size
        elif self.tiling and self.tiling.at_once:
            first = 0
            count = s.out[axis]
        else:
            first, count = self.reach(cut)
            first += cut.base
        taps = np.arange(s.kernel[axis]) * s.dilation[axis] - s.padding[axis][0]
        pixels = np.arange(first, first + count)[:, None] * s.stride[axis] + taps
        inside = ((pixels >= 0) & (pixels < s.spatial[axis])).sum(axis=1)
        return tuple(np.maximum(1, inside).tolist())

    def _fitting(self, room: int, cores: int) -> Tiling:
        """Whole planes where they keep all cores busy, else rows, else parts of a row."""
        n = self.shape.n
        if n >= cores:
            tiling = self._whole_planes(room, ceil_div(n, cores))
            if tiling is not None:
                return tiling
        high, columns = self.extent
        step = 1 if self.cuts_image else self.shape.stride[0]  # tiles that look alike
        rows = min(high, round_up(ceil_div(high, ceil_div(cores, n)), step))
        while rows > 1 and self._takes(Tiling(rows=rows, columns=columns)) > room:
            rows = max(1, min(rows - 1, round_up(rows - step, step)))
        while columns > 1 and self._takes(Tiling(rows=rows, columns=columns)) > room:
            columns = ceil_div(columns, 2)
        return Tiling(rows=rows, columns=columns)  # of one position: buffers say what is missing

    def _whole_planes(self, room: int, most: int) -> Tiling | None:
        """The most whole planes that a load of full bandwidth and UB have room for; None for none.

        No more than ``most``.
        """
        high, wide = self.extent
        in_a_load = max(1, _LOAD * self.shape.n // self.read.size_bytes)
        for planes in range(min(most, in_a_load), 0, -1):
            tiling = Tiling(rows=high, columns=wide, planes=planes, at_once=True)
            if self._takes(tiling) <= room:
                return tiling
        return None

    def _takes(self, tiling: Tiling) -> int:
        """Bytes of UB that a tiling takes."""
        return sum(buffer.size for buffer in self._buffers_of(tiling).values())

    def _buffers_of(self, tiling: Tiling) -> dict[str, UbBuffer]:
        """The buffers of a tiling."""
        if tiling.at_once:
            image = prod(self.shape.spatial)
            windows = prod(self.shape.out)
        else:
            rows = self.cut(0, tiling.rows)
            columns = self.cut(1, tiling.columns)
            written = max(cut.size for cut in rows) * max(cut.size for cut in columns)
            read = self._most_read(rows) * self._most_read(columns)
            image, windows = (read, written) if self.cuts_image else (written, read)
        each = tiling.planes * self.shape.cin
        return self.buffers(image * each, windows * each)

    def _most_read(self, cuts: list[Cut]) -> int:
        """The most positions of an axis that a piece reads, at least 1."""
        return max(1, *(self.reach(cut)[1] for cut in cuts))


class Windows(NamedTuple):
    """Windows in UB: ``planes`` of so many rows and columns."""

    planes: int
    rows: int
    columns: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.planes * self.rows * self.columns


class Planes(NamedTuple):
    """A ``number`` of planes of two grids, and how many pixels apart they lie in each."""

    number: int
    target_apart: int
    source_apart: int


class _Counts(NamedTuple):
    """Windows from the ``first`` up to before the ``end``, of as many ``taps`` inside the map."""

    first: int
    end: int
    taps: int


class PoolNest(Nest):
    """The program of a piece of windows, or of a map."""

    kernel: Pooling

    def bits(self, first: int, windows: int) -> tuple[GmRegion, int]:
        """The masks of windows from ``first`` after the base on, and bytes between rows in UB.

        There is a row for each tap.
        """
        mask = self.kernel.mask
        assert mask
        lanes = self.kernel.shape.cin // 8
        taps = self.kernel.shape.taps
        pitch = mask.size_bytes // taps
        region = mask.at(first * lanes, windows * lanes, base="mask", rows=taps, pitch=pitch)
        return region, round_up(windows * lanes, 32)

    def rectangles(
        self, target: Grid, source: Grid, extent: tuple[int, int], planes: Planes
    ) -> Iterator[tuple[SlotRegion, SlotRegion]]:
        """Regions of (rows, columns) of two grids in every plane.

        One position of each plane goes in one instruction.
        """
        if extent == (1, 1):
            in_planes = target._replace(pitch=planes.target_apart)
            of_planes = source._replace(pitch=planes.source_apart)
            yield from rectangles(in_planes, of_planes, (planes.number, 1), self.pixel)
            return
        for plane in range(planes.number):
            yield from rectangles(
                target._replace(first=target.first + plane * planes.target_apart),
                source._replace(first=source.first + plane * planes.source_apart),
                extent,
                self.pixel,
            )

    def divide(self, tile: Slot, rows: Side, columns: Side, extent: Windows) -> None:
        """Divide the sums of windows where a mean is taken."""
        k = self.k
        if self.kernel.kind == "mean":
            whole = tile.at(0, extent.total * self.pixel)
            k.vec_scalar("muls", whole, whole, 1 / self.kernel.shape.taps, self.wide)
        if self.kernel.kind != "mean_inside":
            return
        plane = extent.rows * extent.columns
        planes = Planes(extent.planes, plane, plane)
        for down, across in product(_equal(rows.counts), _equal(columns.counts)):
            first = down.first * extent.columns + across.first
            grid = Grid(tile, first, extent.columns, 1)
            size = down.end - down.first, across.end - across.first
            for place, _ in self.rectangles(grid, grid, size, planes):
                k.vec_scalar("muls", place, place, 1 / (down.taps * across.taps), self.wide)


def _equal(counts: tuple[int, ...]) -> list[_Counts]:
    """Runs of equal counts."""
    ends = [i for i in range(1, len(counts) + 1) if counts[i : i + 1] != counts[i - 1 : i]]
    return [_Counts(first, end, counts[first]) for first, end in pairwise([0, *ends])]
