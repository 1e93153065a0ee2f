"""Concatenation along an axis, and its gradient, which splits; padding, and its gradient, a crop.

    whole[i, first[p] + j] = parts[p][i, j]          or back, where ``whole`` is read
    whole[place + i] = part[i], elsewhere 0          or back

Layouts: any, of one type; i counts what is before the axis, j the elements from the axis on. Of
maps in blocks (N, C1, H, W, C0) axis 1 is that of channels, where all parts but the last fill their
blocks.

for (rows, or piece of a row) of a part, or of zeros around it, of this core:   # one task
    UB <- the piece of one side                          # MTE2; of zeros: V
    GM the piece of the other side <- UB                 # MTE3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import piece
from npusim.language import (
    BLOCK_BYTES,
    ArgumentError,
    Device,
    IntArray,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    round_up,
)
from npusim.problem.work import LAYOUT

#: Most bytes of a piece: its load has full bandwidth.
_PIECE = 32 * 1024

#: The number of what is no part.
_ZEROS = -1


class Piece(NamedTuple):
    """``rows`` rows of ``size`` bytes of a part, by number, ``pitch`` bytes apart in the whole."""

    part: int
    rows: int
    size: int
    pitch: int


class Box(NamedTuple):
    """The elements of the whole that are a part, by number: the first of each axis, and extents."""

    part: int
    first: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Concat(Spread):
    """``parts`` side by side along ``axis`` are ``whole``, whose role says which are written.

    With a ``place`` there is one part, which begins there in ``whole``: around it is zero.
    """

    parts: tuple[Tensor, ...]
    whole: Tensor
    axis: int = 1
    place: tuple[int, ...] = ()

    name: ClassVar[str] = "concat"

    @property
    def work_class(self) -> str:
        return LAYOUT

    def __post_init__(self) -> None:
        whole = self.whole
        for part, box in zip(self.parts, self.boxes(), strict=False):
            alike = (part.dtype, len(part.shape), len(box.first))
            ends = zip(box.first, part.shape, whole.shape, strict=False)
            if (
                alike != (whole.dtype, len(whole.shape), len(whole.shape))
                or (not part.size_bytes or part.role == whole.role)
                or any(not 0 <= first <= end - size for first, size, end in ends)
            ):
                raise ArgumentError(
                    f"concat: {part.name} is {part.dtype} of shape {part.shape} ({part.role}), "
                    f"{whole.name} {whole.dtype} of {whole.shape} ({whole.role}); from {box.first} "
                    "on it must lie in it, of one type, not empty, one read and the other written"
                )
        total = sum(part.size_bytes for part in self.parts)
        if total != whole.size_bytes and not (self.place and len(self.parts) == 1):
            raise ArgumentError(
                f"concat: {len(self.parts)} parts have {total} B along axis {self.axis}, "
                f"{whole.name} of shape {whole.shape} has {whole.size_bytes} B; they must have as "
                "many, or be one part with a place"
            )

    def boxes(self) -> Iterator[Box]:
        """The boxes that are moved: the parts, and what is zero around one, axis by axis."""
        shape = self.whole.shape
        if not self.place:
            start = 0
            for number, part in enumerate(self.parts):
                outer = (0,) * self.axis
                inner = (0,) * len(shape[self.axis + 1 :])
                yield Box(number, (*outer, start, *inner), part.shape)
                start += part.shape[self.axis]
            return
        part_shape = self.parts[0].shape
        yield Box(0, self.place, part_shape)
        if self.whole.role == "in":
            return
        for axis, end in enumerate(shape):
            behind = self.place[axis] + part_shape[axis]
            for first, extent in ((0, self.place[axis]), (behind, end - behind)):
                if extent:
                    begin = (*self.place[:axis], first, *(0,) * len(shape[axis + 1 :]))
                    yield Box(_ZEROS, begin, (*part_shape[:axis], extent, *shape[axis + 1 :]))

    def stream(self, device: Device, cores: int) -> Stream:
        read = sum(part.size_bytes for part in self.parts)
        written = read if self.whole.role == "in" else self.whole.size_bytes
        tasks = np.maximum(np.arange(1, cores + 1), ceil_div(written, _PIECE))
        return Stream(read, written, tasks, ())

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        dtype = self.whole.dtype
        boxes = list(self.boxes())
        share = ceil_div(sum(prod(box.shape) for box in boxes) * dtype.bytes, cores)
        most = min(_PIECE, round_up(share, BLOCK_BYTES))
        most = piece(k, self.name, most, 2, multiple=BLOCK_BYTES)
        buffer = k.buffer("UB", (most // dtype.bytes,), dtype, slots=2, name="piece")
        return Plan(self._tasks(boxes, most, cores), lambda u: self._emit(k, buffer.next(), u))

    def _emit(self, k: Language, slot: Slot, u: Piece) -> None:
        """Load rows of one side, or make zeros, and store them on the other."""
        dtype = self.whole.dtype
        line = round_up(u.size, BLOCK_BYTES)
        tile = slot.at(0, u.size, rows=u.rows, pitch=line)
        whole = self.whole.at(0, u.size, base="whole", rows=u.rows, pitch=u.pitch)
        if u.part == _ZEROS:
            k.vec_dup(slot.at(0, u.rows * line), 0.0, dtype)
            k.data_move(whole, tile, dtype)
            return
        part = self.parts[u.part].at(0, u.size, base="part", rows=u.rows, pitch=u.size)
        source, target = (whole, part) if self.whole.role == "in" else (part, whole)
        k.data_move(tile, source, dtype)
        k.data_move(target, tile, dtype)

    def _tasks(self, boxes: list[Box], most: int, cores: int) -> Tasks[Piece]:
        """The pieces of all boxes, in runs by bytes."""
        tables = [_pieces(box, self.whole, most) for box in boxes]
        columns = [np.concatenate(column) for column in zip(*tables, strict=True)]
        ends = np.cumsum(columns[1] * columns[2])
        core = (ends - 1) * min(cores, len(ends)) // ends[-1]
        fields = dict(zip(Piece._fields, columns, strict=False))
        return Tasks(core, Piece, fields, {"part": columns[-2], "whole": columns[-1]})


def _pieces(box: Box, whole: Tensor, most: int) -> list[IntArray]:
    """The pieces of a box as columns: fields, where each begins in its part, and in the whole.

    A row goes from the last axis that is not all of the whole on, and rows equally far apart from
    the one before it on. They are moved together where they are small, else each in pieces.
    """
    element = whole.dtype.bytes
    shape = (1, *whole.shape)
    part = (1, *box.shape)
    cut = [axis for axis in range(len(shape)) if part[axis] != shape[axis]]
    outer, inner = (1, 1, *cut)[-2:]
    row = prod(part[inner:]) * element
    pitch = prod(shape[inner:]) * element
    lines = prod(part[outer:inner])
    run = max(1, min(lines, most // round_up(row, BLOCK_BYTES)))
    (block, line, column), (_, rows, size) = in_pieces(
        (prod(part[:outer]), 1), (lines, run), (row, most)
    )
    place = np.ravel_multi_index(np.unravel_index(block, part[:outer]), shape[:outer])
    origin = np.ravel_multi_index((0, *box.first), shape) * element
    return [
        np.full(len(column), box.part),
        rows,
        size,
        np.full(len(column), pitch),
        (block * lines + line) * row + column,
        origin + (place * prod(shape[outer:inner]) + line) * pitch + column,
    ]
