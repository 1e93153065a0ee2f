"""Clear what a dense filter gradient holds between groups that share fractals.

Layout: dw (real_g, KD * cin1_g * KH * KW, cout_g, C0) fp32, in place. With several groups to a real
group, the product of their channels also fills blocks between different groups: those become zero.

for piece (columns of one channel block, output channels) of this core:      # one task
    UB piece <- GM                                                           # MTE2
    UB piece <- 0, per group and tap: beside the input channels of the group # V
    GM piece <- UB                                                           # MTE3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.parts.ub_room import piece
from npusim.language import (
    FP32,
    ArgumentError,
    Kernel,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
)
from npusim.problem.layouts import GroupPlan

#: Largest piece: near full bandwidth, and three of them fit the smallest UB.
PIECE_BYTES = 8 * 1024
#: Pieces in flight: one loading, one in the vector unit, one being stored.
SLOTS = 3


class Piece(NamedTuple):
    """``columns`` taps of channel ``block``, ``rows`` output channels from ``first`` on."""

    block: int
    columns: int
    first: int
    rows: int
    groups: int  # that the real group holds


class _Block(NamedTuple):
    """``rows`` from ``row`` on of a block, channels ``low`` to ``high``, that no group owns."""

    row: int
    rows: int
    low: int
    high: int


@dataclass(frozen=True)
class ClearBlocks(Kernel):
    """Set ``dw`` to zero outside the diagonal blocks of ``groups``, of filters ``depth`` deep."""

    dw: Tensor
    groups: GroupPlan
    depth: int = 1

    name: ClassVar[str] = "clear_blocks"
    role: ClassVar[str] = "vector"

    def __post_init__(self) -> None:
        g = self.groups
        shape = self.dw.shape
        fits = len(shape) == 4 and shape[0] == g.real_groups and shape[2:] == (g.cout_g, g.c0)
        if not fits or shape[1] % (self.depth * g.cin1_g) or self.dw.dtype is not FP32:
            raise ArgumentError(
                f"clear_blocks: {self.dw.name} is {self.dw.dtype} of {shape}; it must be fp32 of "
                f"({g.real_groups}, a multiple of {self.depth * g.cin1_g}, {g.cout_g}, {g.c0})"
            )

    tiling_text = f"piece up to {PIECE_BYTES} B"

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        row = self.groups.c0 * FP32.bytes
        most = piece(k, self.name, PIECE_BYTES, SLOTS, multiple=row)
        dw_ub = k.buffer("UB", (most // FP32.bytes,), FP32, slots=SLOTS, name="dw_ub")
        return Plan(self._tasks(most, cores), lambda part: self._emit(k, dw_ub.next(), part))

    def _emit(self, k: Language, ub: Slot, part: Piece) -> None:
        """Load a piece, set to zero what no group owns, store it."""
        row = self.groups.c0 * FP32.bytes
        size = part.rows * row
        pitch = self.groups.cout_g * row
        place = self.dw.at(0, size, base="dw", rows=part.columns, pitch=pitch)
        values = ub.at(0, part.columns * size)
        k.data_move(values, place, FP32)
        for block in self._outside(part):
            first = block.row * row + block.low * FP32.bytes
            width = (block.high - block.low) * FP32.bytes
            for column in range(part.columns):
                zeros = ub.at(column * size + first, width, rows=block.rows, pitch=row)
                k.vec_dup(zeros, 0.0, FP32, masked=True)
        k.data_move(place, values, FP32)

    def _outside(self, piece: Piece) -> Iterator[_Block]:
        """The blocks of a piece that are outside the diagonal."""
        g = self.groups
        for group in range(piece.groups):
            start = max(group * g.cout_per_group, piece.first) - piece.first
            stop = min((group + 1) * g.cout_per_group - piece.first, piece.rows)
            low = self._in_block(piece, group * g.cin_per_group)
            high = self._in_block(piece, (group + 1) * g.cin_per_group)
            for left, right in ((0, low), (high, g.c0)) if low < high else ((0, g.c0),):
                if start < stop and left < right:
                    yield _Block(start, stop - start, left, right)
        # Behind the last group nothing is owned.
        start = max(piece.groups * g.cout_per_group, piece.first) - piece.first
        if start < piece.rows:
            yield _Block(start, piece.rows - start, 0, g.c0)

    def _in_block(self, piece: Piece, channel: int) -> int:
        """The place of an input channel in the piece's block, its ends where it is not there."""
        return min(max(channel - piece.block * self.groups.c0, 0), self.groups.c0)

    def _tasks(self, most: int, cores: int) -> Tasks[Piece]:
        """Pieces of ``most`` bytes, whole columns; of one column's rows where it is larger."""
        g = self.groups
        row = g.c0 * FP32.bytes
        planes = g.real_groups * self.depth
        taps = self.dw.shape[1] // (self.depth * g.cin1_g)
        rows = min(g.cout_g, most // row)
        columns = 1
        if rows == g.cout_g:
            share = ceil_div(planes * g.cin1_g * taps, cores)
            columns = max(1, min(most // (rows * row), taps, share))
        (plane, block, tap, first), (*_, across, down) = in_pieces(
            (planes, 1), (g.cin1_g, 1), (taps, columns), (g.cout_g, rows)
        )
        place = ((plane * g.cin1_g + block) * taps + tap) * g.cout_g + first
        real = plane // self.depth
        return Tasks(
            in_runs(len(real), cores),
            Piece,
            {
                "block": block,
                "columns": across,
                "first": first,
                "rows": down,
                "groups": np.minimum(g.mag_factor, g.groups - real * g.mag_factor),
            },
            {"dw": place * row},
        )
