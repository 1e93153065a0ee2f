"""Images, the patches that windows cut out of them, and pieces of both: the base of im2col.

Layouts: an image is (planes, H, W, block), its patches are (planes, KH * KW, Lh * Lw, block). The
shape is the convolution whose windows these are: ``n`` planes of ``cin`` elements, a channel out
per tap. One side is read and the other written, in pieces of planes, rows and columns; pieces that
look alike run one program.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npusim.base.records import Abstract
from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import UbBuffer, converted, declare
from npusim.kernels.windows.im2col_backward_tiling import patches, pixels
from npusim.kernels.windows.windows import Cut, Tap, cuts, window_cuts
from npusim.language import (
    BLOCK_BYTES,
    ArgumentError,
    Device,
    DType,
    GmRegion,
    Language,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    in_runs,
)
from npusim.problem.convolution import Convolution


class Piece(NamedTuple):
    """The number of a pattern (see ``Patches.patterns``), in so many planes."""

    pattern: int
    planes: int


class Side(NamedTuple):
    """Sizes along one axis that the program of a piece depends on, and per tap both.

    Where a mean is taken over the taps inside the image, ``counts`` are these of each window.
    """

    size: int
    span: int
    taps: tuple[Tap, ...]
    counts: tuple[int, ...] = ()


class Grid(NamedTuple):
    """Pixels or windows in a slot: the first, from one row to the next, and from one to the next.

    All in pixels.
    """

    slot: Slot
    first: int
    pitch: int
    step: int

    def rows(self, high: int, wide: int, pixel: int) -> SlotRegion:
        """So many rows of pixels that touch."""
        first = self.first * pixel
        return self.slot.at(first, wide * pixel, rows=high, pitch=self.pitch * pixel)

    def pixels(self, row: int, wide: int, pixel: int) -> SlotRegion:
        """The pixels of one row."""
        first = (self.first + row * self.pitch) * pixel
        return self.slot.at(first, pixel, rows=wide, pitch=self.step * pixel)


class Extent(NamedTuple):
    """Elements of a plane, and pixels of a row."""

    elements: int
    row: int


@dataclass(frozen=True)
class Patches(Spread):
    """The kernel for one shape, in either direction.

    Raises ``ArgumentError`` for a tiling or tensors that do not belong to the shape.
    """

    shape: Convolution
    tiling: Any
    read: Tensor
    out: Tensor

    #: The column of the task table for ``read``.
    base: ClassVar[str]
    #: True if the image is read, not the patches.
    cuts_image: ClassVar[bool]

    def __post_init__(self) -> None:
        s = self.shape
        t = self.tiling
        high, wide = self.extent
        if t and t.at_once and (t.rows < high or t.columns < wide):
            raise ArgumentError(
                f"tiling is {t} of {self.extent}; at_once needs whole images: raise rows and "
                "columns or set at_once=False"
            )
        for tensor, side in zip((self.read, self.out), self.sides, strict=True):
            want = s.n * side.elements * tensor.dtype.bytes
            if tensor.size_bytes != want or tensor.dtype != self.read.dtype:
                raise ArgumentError(
                    f"{self.name}: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; {s} "
                    f"makes it {self.read.dtype} of {s.n} x {side.elements} elements"
                )

    def cut(self, axis: int, step: int) -> list[Cut]:
        """The pieces that axis 0 (rows) or 1 (columns) of the result is written in."""
        if self.cuts_image:
            return window_cuts(self.shape, axis, step)
        return cuts(self.shape, axis, step)

    @property
    def wide(self) -> DType:
        """The type in which the kernel computes."""
        return self.read.dtype

    @property
    def extent(self) -> tuple[int, ...]:
        """Rows and columns of what is written."""
        return self.shape.out if self.cuts_image else self.shape.spatial

    @property
    def sides(self) -> tuple[Extent, Extent]:
        """The planes of what is read and of what is written."""
        s = self.shape
        image = Extent(pixels(s), s.spatial[1])
        windows = Extent(patches(s), s.out[1])
        return (image, windows) if self.cuts_image else (windows, image)

    @property
    def anywhere(self) -> bool:
        return self.shape.cin * self.read.dtype.bytes % BLOCK_BYTES != 0  # of a pixel

    @cached_property
    def pieces(self) -> list[tuple[Cut, Cut]]:
        """The pieces of a plane, row by row: a cut of its rows and one of its columns."""
        return list(product(self.cut(0, self.tiling.rows), self.cut(1, self.tiling.columns)))

    @cached_property
    def patterns(self) -> list[tuple[Side, Side]]:
        """Pieces that look alike share a pattern: same sizes, and same taps after their base."""
        return list(dict.fromkeys(map(self.pattern, self.pieces)))

    def pattern(self, piece: tuple[Cut, Cut]) -> tuple[Side, Side]:
        """The sizes and taps that the program of a piece depends on."""
        rows, columns = piece
        return (
            Side(rows.size, rows.span, rows.taps),
            Side(columns.size, columns.span, columns.taps),
        )

    def stream(self, device: Device, cores: int) -> Stream:
        read = self.read.size_bytes
        written = self.out.size_bytes
        loads_of_ub = ceil_div(2 * (read + written), device.memory("UB").size_bytes)
        return Stream(
            read=read,
            written=written,
            tasks=np.maximum(np.arange(1, cores + 1), loads_of_ub),
            **self.streamed,
        )

    @property
    @abstractmethod
    def streamed(self) -> dict[str, Any]:
        """Vector instructions and loads, as fields of ``Stream``."""

    def tasks(self, cores: int) -> Tasks[Piece]:
        """Pieces of planes in equal runs for each core."""
        s = self.shape
        t = self.tiling
        read, written = self.sides
        number = {pattern: i for i, pattern in enumerate(self.patterns)}
        pattern = np.array([number[self.pattern(piece)] for piece in self.pieces], np.int64)
        first = np.zeros(len(self.pieces), np.int64)
        if not t.at_once:  # at once whole planes are read, from their first pixel on
            first[:] = [row.base * read.row + column.base for row, column in self.pieces]
        start = [row.start * written.row + column.start for row, column in self.pieces]
        target = np.array(start, np.int64)
        total = ceil_div(s.n, t.planes) * len(self.pieces)
        piece = np.arange(total) % len(self.pieces)
        plane = np.arange(total) // len(self.pieces) * t.planes
        element = self.read.dtype.bytes
        return Tasks(
            in_runs(total, cores),
            Piece,
            {"pattern": pattern[piece], "planes": np.minimum(t.planes, s.n - plane)},
            {
                self.base: (plane * read.elements + first[piece] * s.cin) * element,
                "out": (plane * written.elements + target[piece] * s.cin) * element,
            },
        )

    def lines(self, tensor: Tensor, first: int, extent: tuple[int, int], step: int = 1) -> GmRegion:
        """Every ``step``-th of (rows, pixels) of a side, from pixel ``first`` after its base on."""
        pixel = self.shape.cin * tensor.dtype.bytes
        read, written = self.sides
        side = written if tensor is self.out else read
        rows, row = extent
        size = row * pixel
        pitch = step * side.row * pixel
        if size == pitch:  # rows follow each other
            size = rows * size
            rows = 1
        base = "out" if tensor is self.out else self.base
        return tensor.at(first * pixel, size, base=base, rows=rows, pitch=pitch)


class Nest(Abstract):
    """The program of a piece, on the ``buffers`` in UB of one core, by name.

    "wide" is what is read in the type in which the kernel computes, where this is another one.
    """

    kernel: Any
    #: The buffer in which results of type ``wide`` are rounded.
    rounds: ClassVar[str] = "out"

    def __init__(self, kernel: Patches, k: Language, buffers: Mapping[str, UbBuffer]) -> None:
        self.kernel = kernel
        self.k = k
        self.buffers = declare(k, buffers)
        self.dtype = kernel.read.dtype
        self.wide = kernel.wide
        self.mixed = self.dtype != self.wide
        self.pixel = kernel.shape.cin * kernel.wide.bytes

    @abstractmethod
    def emit(self, piece: Piece) -> None:
        """Issue it."""

    def load(self, name: str, source: GmRegion) -> Slot:
        """Rows of what is read, in the type in which the kernel computes."""
        slot = self.buffers[name].next()
        self.k.data_move(slot, source, self.dtype)
        values = slot.at(0, source.size)
        return converted(self.k, values, self.dtype, self.wide, self.buffers.get("wide")).slot

    def store(self, values: SlotRegion, extent: tuple[int, int], first: int = 0) -> None:
        """Rows of what is written, from pixel ``first``, rounded in ``rounds`` if there are any."""
        target = self.kernel.lines(self.kernel.out, first, extent)
        if self.mixed:
            rounded = self.buffers[self.rounds]
            saturate = self.kernel.saturate
            values = converted(self.k, values, self.wide, self.dtype, rounded, saturate=saturate)
        self.k.data_move(target, values, self.dtype)


def rectangles(
    target: Grid, source: Grid, extent: tuple[int, int], pixel: int
) -> Iterator[tuple[SlotRegion, SlotRegion]]:
    """The regions of (rows, columns) of two grids, ``pixel`` bytes each.

    Where the pixels of a row touch all rows go in one instruction, else one goes per row and hops
    over the pixels in between.
    """
    high, wide = extent
    if wide == 1 or target.step == source.step == 1:
        yield target.rows(high, wide, pixel), source.rows(high, wide, pixel)
        return
    for row in range(high):
        yield target.pixels(row, wide, pixel), source.pixels(row, wide, pixel)
