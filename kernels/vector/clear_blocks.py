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


@dataclass(frozen=True)
class ClearBlocks(Kernel):
    """Set ``dw`` to zero outside the diagonal blocks of ``groups``, of filters ``depth`` deep."""

    dw: Tensor
    groups: GroupPlan
    depth: int = 1

    name: ClassVar[str] = "clear_blocks"
    role: ClassVar[str] = "vector"

    def __post_init__(self) -> None:
        g, shape = self.groups, self.dw.shape
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
        held = k.buffer("UB", (most // FP32.bytes,), FP32, slots=SLOTS, name="dw_ub")

        def emit(part: Piece) -> None:
            size = part.rows * row
            ub, pitch = held.next(), self.groups.cout_g * row
            place = self.dw.at(0, size, base="dw", rows=part.columns, pitch=pitch)
            whole = ub.at(0, part.columns * size)
            k.data_move(whole, place, FP32)
            for first, rows, low, high in self._outside(part):
                at, width = first * row + low * FP32.bytes, (high - low) * FP32.bytes
                for column in range(part.columns):
                    between = ub.at(column * size + at, width, rows=rows, pitch=row)
                    k.vec_dup(between, 0.0, FP32, masked=True)
            k.data_move(place, whole, FP32)

        return Plan(self._tasks(most, cores), emit)

    def _outside(self, piece: Piece) -> Iterator[tuple[int, int, int, int]]:
        """(first row, rows, low, high): channels low..high of a block that rows do not own."""
        g = self.groups
        for e in range(piece.groups + 1):
            last = e == piece.groups  # behind the last group nothing is owned
            start = max(e * g.cout_per_group, piece.first) - piece.first
            stop = piece.rows if last else min((e + 1) * g.cout_per_group - piece.first, piece.rows)
            owned = (0, 0) if last else (e * g.cin_per_group, (e + 1) * g.cin_per_group)
            low, high = (min(max(c - piece.block * g.c0, 0), g.c0) for c in owned)
            for left, right in ((0, low), (high, g.c0)) if low < high else ((0, g.c0),):
                if start < stop and left < right:
                    yield start, stop - start, left, right

    def _tasks(self, most: int, cores: int) -> Tasks[Piece]:
        """Pieces of ``most`` bytes, whole columns; of one column's rows where it is larger."""
        g, row = self.groups, self.groups.c0 * FP32.bytes
        planes = g.real_groups * self.depth
        taps = self.dw.shape[1] // (self.depth * g.cin1_g)
        rows = min(g.cout_g, most // row)
        share = ceil_div(planes * g.cin1_g * taps, cores)
        columns = max(1, min(most // (rows * row), taps, share)) if rows == g.cout_g else 1
        axes = (planes, 1), (g.cin1_g, 1), (taps, columns), (g.cout_g, rows)
        (plane, block, tap, first), (*_, across, down) = in_pieces(*axes)
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
