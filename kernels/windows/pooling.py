"""What pooling and its gradient share: windows over planes of a map, and tiles that fit UB.

The windows of a task follow each other in UB, so that one instruction does all of them; where a row
does not fit, a tile is a part of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from typing import Any, ClassVar

import numpy as np

from npusim.base.records import replace
from npusim.kernels.parts.ub_room import Held
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

#: What becomes of the taps of a window: the largest, their sum, or this over the number of all taps
#: or of those inside the map.
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
        s, dtype, mask, t = self.shape, self.read.dtype, self.mask, self.tiling
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
        return {"vector": (("add", size), *[("select", size)] * bool(self.mask))}

    def fits(self, device: Device) -> bool:
        """Whether UB holds all that one window reads."""
        return self._takes(Tiling(rows=1, columns=1)) <= device.memory("UB").size_bytes

    @abstractmethod
    def buffers(self, pixels: int, windows: int) -> dict[str, Held]:
        """What UB holds by name, where a task has so many elements of the image and of windows."""

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        tiling = self.tiling or self._fitting(k.memory("UB").size_bytes, cores)
        own = replace(self, tiling=tiling)
        return Plan(own.tasks(cores), own.nest(own, k, own._held(tiling)).emit)

    def tasks(self, cores: int) -> Tasks[Piece]:
        found = super().tasks(cores)
        windows = found.bases["out" if self.cuts_image else self.base]
        return replace(found, bases={**found.bases, "mask": windows // (8 * self.read.dtype.bytes)})

    def reach(self, side: Side | Cut) -> tuple[int, int]:
        """First of what a piece reads, after its base, and how many there are up to the last."""
        if self.cuts_image:
            return 0, side.span
        some = [(other, other + count) for _, other, count in side.taps if count]
        first = min((one for one, _ in some), default=0)
        return first, max((end for _, end in some), default=first) - first

    def pattern(self, piece: tuple[Cut, Cut]) -> tuple[Side, Side]:
        rows, columns = super().pattern(piece)
        if self.kind != "mean_inside":
            return rows, columns
        counts = [self._counts(axis, cut) for axis, cut in enumerate(piece)]
        return rows._replace(counts=counts[0]), columns._replace(counts=counts[1])

    def _counts(self, axis: int, cut: Cut) -> tuple[int, ...]:
        """Of each window that a piece makes or reads, the taps inside the map, at least 1."""
        s, (first, count) = self.shape, self.reach(cut)
        first += cut.base
        if self.cuts_image:
            first, count = cut.start, cut.size
        elif self.tiling and self.tiling.at_once:
            first, count = 0, s.out[axis]
        taps = np.arange(s.kernel[axis]) * s.dilation[axis] - s.padding[axis][0]
        pixels = np.arange(first, first + count)[:, None] * s.stride[axis] + taps
        inside = ((pixels >= 0) & (pixels < s.spatial[axis])).sum(axis=1)
        return tuple(np.maximum(1, inside).tolist())

    def _fitting(self, room: int, cores: int) -> Tiling:
        """Whole planes where they keep all cores busy, else rows, else parts of a row."""
        (high, wide), n = self.extent, self.shape.n
        most = min(ceil_div(n, cores), max(1, _LOAD * n // self.read.size_bytes))
        for planes in range(most if n >= cores else 0, 0, -1):
            tiling = Tiling(rows=high, columns=wide, planes=planes, at_once=True)
            if self._takes(tiling) <= room:
                return tiling
        step = 1 if self.cuts_image else self.shape.stride[0]  # tiles that look alike
        rows, columns = min(high, round_up(ceil_div(high, ceil_div(cores, n)), step)), wide
        while rows > 1 and self._takes(Tiling(rows=rows, columns=wide)) > room:
            rows = max(1, min(rows - 1, round_up(rows - step, step)))
        while columns > 1 and self._takes(Tiling(rows=rows, columns=columns)) > room:
            columns = ceil_div(columns, 2)
        return Tiling(rows=rows, columns=columns)  # of one position: buffers say what is missing

    def _takes(self, tiling: Tiling) -> int:
        return sum(one.size for one in self._held(tiling).values())

    def _held(self, tiling: Tiling) -> dict[str, Held]:
        if tiling.at_once:
            image, windows = map(prod, (self.shape.spatial, self.shape.out))
        else:
            cuts = [self.cut(0, tiling.rows), self.cut(1, tiling.columns)]
            made = prod(max(cut.size for cut in side) for side in cuts)
            read = prod(max(1, *(self.reach(cut)[1] for cut in side)) for side in cuts)
            image, windows = (read, made) if self.cuts_image else (made, read)
        each = tiling.planes * self.shape.cin
        return self.buffers(image * each, windows * each)


class PoolNest(Nest):
    """The program of a piece of windows, or of a map."""

    kernel: Pooling

    def bits(self, at: int, windows: int) -> tuple[GmRegion, int]:
        """The masks of windows from ``at`` after the base on, and bytes between rows of them in UB.

        There is a row for each tap.
        """
        kernel, mask = self.kernel, self.kernel.mask
        assert mask
        lanes, taps = kernel.shape.cin // 8, kernel.shape.taps
        pitch = mask.size_bytes // taps
        region = mask.at(at * lanes, windows * lanes, base="mask", rows=taps, pitch=pitch)
        return region, round_up(windows * lanes, 32)

    def rectangles(
        self,
        sides: tuple[Grid, Grid],
        extent: tuple[int, int],
        planes: tuple[int, tuple[int, int]],
    ) -> Iterator[tuple[SlotRegion, SlotRegion]]:
        """Regions of (rows, columns) of two grids in every plane; these are so many pixels apart.

        One position of each plane goes in one instruction.
        """
        count, apart = planes
        if extent == (1, 1):
            to, source = (one._replace(pitch=far) for one, far in zip(sides, apart, strict=True))
            yield from rectangles(to, source, (count, 1), self.pixel)
            return
        for plane in range(count):
            to, source = (
                one._replace(first=one.first + plane * far)
                for one, far in zip(sides, apart, strict=True)
            )
            yield from rectangles(to, source, extent, self.pixel)

    def divide(self, tile: Slot, sides: tuple[Side, Side], extent: tuple[int, int, int]) -> None:
        """Divide the sums of windows, (planes, rows, columns) of them, where a mean is taken."""
        kernel, (planes, high, wide) = self.kernel, extent
        if kernel.kind == "mean":
            whole = tile.at(0, prod(extent) * self.pixel)
            self.k.vec_scalar("muls", whole, whole, 1 / kernel.shape.taps, self.wide)
        if kernel.kind != "mean_inside":
            return
        shares = [_equal(side.counts) for side in sides]
        for (top, end, down), (left, right, across) in product(*shares):
            grid = Grid(tile, top * wide + left, wide, 1)
            size, apart = (end - top, right - left), high * wide
            for place, _ in self.rectangles((grid, grid), size, (planes, (apart, apart))):
                self.k.vec_scalar("muls", place, place, 1 / (down * across), self.wide)


def _equal(counts: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Runs of equal counts: (first, behind the last, count)."""
    ends = [i for i in range(1, len(counts) + 1) if counts[i : i + 1] != counts[i - 1 : i]]
    return [(a, b, counts[a]) for a, b in pairwise([0, *ends])]
