"""Concatenation along an axis, and its gradient, which splits: copies of runs of bytes.

    whole[i, first[p] + j] = parts[p][i, j]          or back, where ``whole`` is read

Layouts: any, of one type; i counts what is before the axis, j the elements from the axis on. Of
maps in blocks (N, C1, H, W, C0) axis 1 is that of channels, where all parts but the last fill their
blocks.

for (rows, or piece of a row) of a part, of this core:   # one task
    UB <- the piece of one side                          # MTE2
    GM the piece of the other side <- UB                 # MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.parts.room import piece
from npusim.kernels.parts.spread import Spread
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    BLOCK_BYTES,
    ArgumentError,
    Language,
    Plan,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    round_up,
)

#: Most bytes of a piece: its load has full bandwidth.
_PIECE = 32 * 1024


class Piece(NamedTuple):
    """``rows`` rows of ``size`` bytes of a part, by number."""

    part: int
    rows: int
    size: int


@dataclass(frozen=True)
class Concat(Spread):
    """``parts`` side by side along ``axis`` are ``whole``, whose role says which are written."""

    parts: tuple[Tensor, ...]
    whole: Tensor
    axis: int = 1

    name: ClassVar[str] = "concat"

    def __post_init__(self) -> None:
        whole, axis = self.whole, self.axis
        for one in self.parts:
            alike = (one.dtype, *one.shape[:axis], *one.shape[axis + 1 :])
            if alike != (whole.dtype, *whole.shape[:axis], *whole.shape[axis + 1 :]) or (
                len(one.shape) <= axis or not one.size_bytes or one.role == whole.role
            ):
                raise ArgumentError(
                    f"concat: {one.name} is {one.dtype} of shape {one.shape} ({one.role}), "
                    f"{whole.name} {whole.dtype} of {whole.shape} ({whole.role}); but for axis "
                    f"{axis} they must be the same, none empty, one read and the other written"
                )
        total = sum(one.shape[axis] for one in self.parts)
        if not self.parts or total != whole.shape[axis]:
            raise ArgumentError(
                f"concat: {len(self.parts)} parts have {total} along axis {axis}, {whole.name} of "
                f"shape {whole.shape} must have as many, and at least one part"
            )

    def stream(self, device: Device, cores: int) -> Stream:
        size = self.whole.size_bytes
        tasks = np.maximum(np.arange(1, cores + 1), ceil_div(size, _PIECE))
        return Stream(size, size, tasks, ())

    def plan(self, k: Language, cores: int) -> Plan[Piece]:
        whole, dtype = self.whole, self.whole.dtype
        share = round_up(ceil_div(whole.size_bytes, cores), BLOCK_BYTES)
        most = piece(k, self.name, min(_PIECE, share), 2, multiple=BLOCK_BYTES)
        held = k.buffer("UB", (most // dtype.bytes,), dtype, slots=2, name="piece")
        rows = prod(whole.shape[: self.axis])

        def emit(u: Piece) -> None:
            sides = [
                one.at(0, u.size, base=base, rows=u.rows, pitch=one.size_bytes // rows)
                for base, one in (("part", self.parts[u.part]), ("whole", whole))
            ]
            source, target = sides[:: -1 if whole.role == "in" else 1]
            tile = held.next().at(0, u.size, rows=u.rows, pitch=round_up(u.size, BLOCK_BYTES))
            k.data_move(tile, source, dtype)
            k.data_move(target, tile, dtype)

        return Plan(self._tasks(most, rows, cores), emit)

    def _tasks(self, most: int, lines: int, cores: int) -> Tasks[Piece]:
        """Whole rows of a part where they are small, else pieces of one, in runs by bytes."""
        before, tables = 0, []
        for number, part in enumerate(self.parts):
            row = part.size_bytes // lines
            run = max(1, min(lines, most // round_up(row, BLOCK_BYTES)))
            (first, at), (rows, size) = in_pieces((lines, run), (row, most))
            place = first * (self.whole.size_bytes // lines) + before + at
            tables.append((np.full(len(first), number), rows, size, first * row + at, place))
            before += row
        columns = [np.concatenate(column) for column in zip(*tables, strict=True)]
        ends = np.cumsum(columns[1] * columns[2])
        core = (ends - 1) * min(cores, len(ends)) // ends[-1]
        fields = dict(zip(Piece._fields, columns, strict=False))
        return Tasks(core, Piece, fields, {"part": columns[3], "whole": columns[4]})
