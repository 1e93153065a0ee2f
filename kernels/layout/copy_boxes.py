"""Copies of boxes of one tensor to other places of another, such as those of a cyclic shift.

    target[to + i] = source[from + i]        for every index i inside a box

Layouts: both row-major, of one type and of equally many axes.

for rows, or a piece of a row, of a box, of this core:      # one task
    UB <- the piece in the source                           # MTE2
    GM the piece in the target <- UB                        # MTE3
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    round_up,
)
from npusim.problem.work import LAYOUT

#: Most bytes of a piece: its load has full bandwidth.
_PIECE_BYTES = 32 * 1024


class Box(NamedTuple):
    """A box of ``shape`` elements, by its first index in the source and in the target."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    shape: tuple[int, ...]


class Piece(NamedTuple):
    """``rows`` rows of ``size`` bytes, by the bytes between their starts on both sides."""

    rows: int
    size: int
    source_pitch: int
    target_pitch: int


@dataclass(frozen=True)
class CopyBoxes(Spread):
    """Copy ``boxes`` of ``source`` into ``target``; what no box covers keeps its value.

    Raises ``ArgumentError`` for tensors of different types or ranks, for no box, and for a box that
    is empty or leaves a tensor.
    """

    source: Tensor
    target: Tensor
    boxes: tuple[Box, ...]

    name: ClassVar[str] = "copy_boxes"

    @property
    def work_class(self) -> str:
        return LAYOUT

    def __post_init__(self) -> None:
        source = self.source
        target = self.target
        if source.dtype != target.dtype or len(source.shape) != len(target.shape):
            raise ArgumentError(
                f"copy_boxes: {source.name} is {source.dtype} of shape {source.shape}, "
                f"{target.name} {target.dtype} of shape {target.shape}; both need one type and "
                "equally many axes"
            )
        if not self.boxes:
            raise ArgumentError("copy_boxes: there is no box; give at least one")
        for box in self.boxes:
            for tensor, first in ((source, box.source), (target, box.target)):
                sizes = zip(first, box.shape, tensor.shape, strict=True)
                if any(begin < 0 or size < 1 or begin + size > end for begin, size, end in sizes):
                    raise ArgumentError(
                        f"copy_boxes: a box of {box.shape} from {first} on does not lie in "
                        f"{tensor.name} of shape {tensor.shape}; it needs an element, and must not "
                        "reach beyond the tensor"
                    )

    @property
    def tiling_text(self) -> str:
        return f"{len(self.boxes)} boxes, pieces up to {_PIECE_BYTES}"

    @property
    def _size_bytes(self) -> int:
        """Bytes of all boxes."""
        return sum(prod(box.shape) for box in self.boxes) * self.source.dtype.bytes

    def stream(self, device: Device, cores: int) -> Stream:
        size = self._size_bytes
        tasks = np.maximum(np.arange(1, cores + 1), ceil_div(size, _PIECE_BYTES))
        return Stream(size, size, tasks, ())

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        dtype = self.source.dtype
        most = min(_PIECE_BYTES, round_up(ceil_div(self._size_bytes, cores), BLOCK_BYTES))
        most = piece(k, self.name, most, 2, multiple=BLOCK_BYTES)
        buffer = k.buffer("UB", (most // dtype.bytes,), dtype, slots=2, name="piece")

        def emit(u: Piece) -> None:
            pitch = round_up(u.size, BLOCK_BYTES)
            tile = buffer.next().at(0, u.size, rows=u.rows, pitch=pitch)
            source = self.source.at(0, u.size, base="source", rows=u.rows, pitch=u.source_pitch)
            target = self.target.at(0, u.size, base="target", rows=u.rows, pitch=u.target_pitch)
            k.data_move(tile, source, dtype)
            k.data_move(target, tile, dtype)

        return Plan(self._tasks(most, cores), emit)

    def _tasks(self, most: int, cores: int) -> Tasks[Piece]:
        """The pieces of all boxes, in runs of about equal bytes."""
        tables = [self._pieces(box, most) for box in self.boxes]
        columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        bases = {name: columns.pop(name) for name in ("source", "target")}
        ends = np.cumsum(columns["rows"] * columns["size"])
        core = (ends - 1) * min(cores, len(ends)) // ends[-1]
        return Tasks(core, Piece, columns, bases)

    def _pieces(self, box: Box, most: int) -> dict[str, IntArray]:
        """The pieces of a box as columns: fields, and first bytes in the source and the target.

        A row begins at the last axis of which the box has only a part. Rows equally far apart,
        those of the axes up to the one of which the box has a part before that, are moved together
        where they are small; long rows are moved in pieces.
        """
        source = (1, *self.source.shape)
        target = (1, *self.target.shape)
        shape = (1, *box.shape)
        cut = [axis for axis, size in enumerate(shape) if not source[axis] == size == target[axis]]
        outer, inner = (1, 1, *cut)[-2:]
        row = prod(shape[inner:]) * self.source.dtype.bytes
        lines = prod(shape[outer:inner])
        together = max(1, min(lines, most // round_up(row, BLOCK_BYTES)))
        (block, line, column), (_, rows, size) = in_pieces(
            (prod(shape[:outer]), 1), (lines, together), (row, most)
        )
        index = np.unravel_index(block, shape[:outer])

        def first(tensor: tuple[int, ...], corner: tuple[int, ...]) -> IntArray:
            """The first byte of each piece in a tensor in which the box begins at ``corner``."""
            element = self.source.dtype.bytes
            pitch = prod(tensor[inner:]) * element
            origin = np.ravel_multi_index((0, *corner), tensor) * element
            place = np.ravel_multi_index(index, tensor[:outer])
            begin: IntArray = (place * prod(tensor[outer:inner]) + line) * pitch + column
            return origin + begin

        element = self.source.dtype.bytes
        return {
            "rows": rows,
            "size": size,
            "source_pitch": np.full(len(column), prod(source[inner:]) * element),
            "target_pitch": np.full(len(column), prod(target[inner:]) * element),
            "source": first(source, box.source),
            "target": first(target, box.target),
        }


def rolled(source: Tensor, target: Tensor, shifts: Sequence[int], axes: Sequence[int]) -> CopyBoxes:
    """The cyclic shift of ``source`` by ``shifts`` along ``axes``, as of ``numpy.roll``.

    An axis that is moved has two boxes, so that n axes have up to 2 to the n.
    """
    moves = [0] * len(source.shape)
    for shift, axis in zip(shifts, axes, strict=True):
        moves[axis] = (moves[axis] + shift) % source.shape[axis]
    boxes = [Box((), (), ())]
    for size, move in zip(source.shape, moves, strict=True):
        spans = [(0, move, size - move)]
        if move:
            spans.append((size - move, 0, move))
        boxes = [
            Box((*box.source, first), (*box.target, to), (*box.shape, extent))
            for box in boxes
            for first, to, extent in spans
        ]
    return CopyBoxes(source, target, tuple(boxes))
