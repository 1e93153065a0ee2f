"""What im2col and its backward share: images, the patches that windows cut out of them, and pieces.

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
from npusim.kernels.parts.ub_room import Held, converted, declare
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
    """What the program of a piece depends on along one axis: sizes, and per tap both.

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
    #: Whether the image is read, not the patches.
    cuts_image: ClassVar[bool]

    def __post_init__(self) -> None:
        s, t = self.shape, self.tiling
        high, wide = self.extent
        if t and t.at_once and (t.rows < high or t.columns < wide):
            raise ArgumentError(
                f"tiling is {t} of {self.extent}; at_once needs whole images: raise rows and "
                "columns or set at_once=False"
            )
        for tensor, (each, _) in zip((self.read, self.out), self.sides, strict=True):
            want = s.n * each * tensor.dtype.bytes
            if tensor.size_bytes != want or tensor.dtype != self.read.dtype:
                raise ArgumentError(
                    f"{self.name}: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; {s} "
                    f"makes it {self.read.dtype} of {s.n} x {each} elements"
                )

    def cut(self, axis: int, step: int) -> list[Cut]:
        """What is written along axis 0 (rows) or 1 (columns) in pieces."""
        return (window_cuts if self.cuts_image else cuts)(self.shape, axis, step)

    @property
    def wide(self) -> DType:
        """The type in which the kernel computes."""
        return self.read.dtype

    @property
    def extent(self) -> tuple[int, ...]:
        """Rows and columns of what is written."""
        return self.shape.out if self.cuts_image else self.shape.spatial

    @property
    def sides(self) -> list[tuple[int, int]]:
        """Elements of a plane, and of a row in pixels, of what is read and what is written."""
        s = self.shape
        found = [(pixels(s), s.spatial[1]), (patches(s), s.out[1])]
        return found if self.cuts_image else found[::-1]

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
        """What the program of a piece depends on."""
        rows, columns = (Side(cut.size, cut.span, cut.taps) for cut in piece)
        return rows, columns

    def stream(self, device: Device, cores: int) -> Stream:
        read, written = self.read.size_bytes, self.out.size_bytes
        held = ceil_div(2 * (read + written), device.memory("UB").size_bytes)
        return Stream(
            read=read,
            written=written,
            tasks=np.maximum(np.arange(1, cores + 1), held),
            **self.streamed,
        )

    @property
    @abstractmethod
    def streamed(self) -> dict[str, Any]:
        """What ``Stream`` says of vector instructions and loads."""

    def tasks(self, cores: int) -> Tasks[Piece]:
        """Pieces of planes in equal runs for each core."""
        s, t, e = self.shape, self.tiling, self.read.dtype.bytes
        (read, wide_read), (made, wide) = self.sides
        number = {pattern: i for i, pattern in enumerate(self.patterns)}
        pattern = np.array([number[self.pattern(piece)] for piece in self.pieces], np.int64)
        # At once whole planes are read, from their first pixel on.
        bases = [(0, 0) if t.at_once else (r.base, c.base) for r, c in self.pieces]
        first = np.array([row * wide_read + column for row, column in bases], np.int64)
        start = np.array([r.start * wide + c.start for r, c in self.pieces], np.int64)
        total = ceil_div(s.n, t.planes) * len(self.pieces)
        piece = np.arange(total) % len(self.pieces)
        plane = np.arange(total) // len(self.pieces) * t.planes
        return Tasks(
            in_runs(total, cores),
            Piece,
            {"pattern": pattern[piece], "planes": np.minimum(t.planes, s.n - plane)},
            {
                self.base: (plane * read + first[piece] * s.cin) * e,
                "out": (plane * made + start[piece] * s.cin) * e,
            },
        )

    def lines(self, tensor: Tensor, at: int, extent: tuple[int, int], step: int = 1) -> GmRegion:
        """Every ``step``-th of (rows, pixels) of a side from pixel ``at`` after its base on."""
        written = tensor is self.out
        pixel, (rows, row) = self.shape.cin * tensor.dtype.bytes, extent
        size, pitch = row * pixel, step * self.sides[written][1] * pixel
        if size == pitch:  # rows follow each other
            rows, size = 1, rows * size
        base = "out" if written else self.base
        return tensor.at(at * pixel, size, base=base, rows=rows, pitch=pitch)


class Nest(Abstract):
    """The program of a piece, on the buffers of one core: what is ``held`` in UB, by name.

    "wide" is what is read in the type in which the kernel computes, where this is another one.
    """

    kernel: Any
    #: The buffer in which results of type ``wide`` are rounded.
    rounds: ClassVar[str] = "out"

    def __init__(self, kernel: Patches, k: Language, held: Mapping[str, Held]) -> None:
        self.kernel, self.k, self.held = kernel, k, declare(k, held)
        self.dtype, self.wide = kernel.read.dtype, kernel.wide
        self.mixed, self.pixel = self.dtype != self.wide, kernel.shape.cin * kernel.wide.bytes

    @abstractmethod
    def emit(self, piece: Piece) -> None:
        """Issue it."""

    def load(self, name: str, source: GmRegion) -> Slot:
        """Rows of what is read, in the type in which the kernel computes."""
        slot = self.held[name].next()
        self.k.data_move(slot, source, self.dtype)
        types = self.dtype, self.wide
        return converted(self.k, slot.at(0, source.size), types, self.held.get("wide")).slot

    def store(self, values: SlotRegion, extent: tuple[int, int], at: int = 0) -> None:
        """Rows of what is written, from pixel ``at`` on, rounded in ``rounds`` if there are any."""
        target, types = self.kernel.lines(self.kernel.out, at, extent), (self.wide, self.dtype)
        if self.mixed:
            made, saturate = self.held[self.rounds], self.kernel.saturate
            values = converted(self.k, values, types, made, saturate=saturate)
        self.k.data_move(target, values, self.dtype)


def rectangles(
    to: Grid, source: Grid, extent: tuple[int, int], pixel: int
) -> Iterator[tuple[SlotRegion, SlotRegion]]:
    """The regions of (rows, columns) of two grids, ``pixel`` bytes each.

    Where the pixels of a row touch all rows go in one instruction, else one goes per row and hops
    over the pixels in between.
    """
    high, wide = extent
    touch = wide == 1 or to.step == source.step == 1
    for row in range(1 if touch else high):
        sides = []
        for one in (to, source):
            size, count, pitch = (wide, high, one.pitch) if touch else (1, wide, one.step)
            at = (one.first + row * one.pitch) * pixel
            sides.append(one.slot.at(at, size * pixel, rows=count, pitch=pitch * pixel))
        yield sides[0], sides[1]
