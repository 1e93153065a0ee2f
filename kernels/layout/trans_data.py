"""Layout conversions between plain tensors and the blocked ones the cube reads.

    to_blocked            x[n, c, d, h, w] -> [n, d, c div C0, h, w, c mod C0]     zeros from C on
    from_blocked          the reverse
    to_fracz              w[q, c, kd, kh, kw] -> per real group, one dense matrix per tap with
                          zeros between its groups: [kd, c div C0, kh, kw, q, c mod C0]
    to_fracz_transposed   the same with q and c exchanged: [kd, q div C0, kh, kw, c, q mod C0]
    from_fracz            the reverse of to_fracz, diagonal blocks only

Layouts: plain is (N, C, [D, [H,]] W) or (Cout, Cin/groups, [KD, [KH,]] KW); C0 is 8 or 16 and
elements have 2 or 4 bytes. A *lane* is C0 channels at one place; blocks and taps hold lanes.

``parts/layout_change.py`` has the loop nest. Tiles are of lanes, those of weights turned once or
twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.layout.conversion import Conversion, Pieces, even, most_in_task
from npusim.kernels.layout.fractal_weights import WeightWork
from npusim.kernels.layout.layout_change import LayoutChange, Turning
from npusim.language import (
    BLOCK_BYTES,
    Language,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    round_down,
    round_up,
)

__all__ = ["Conversion", "TransData"]


class MapTile(NamedTuple):
    """``blocks`` of C0 with ``channels`` that exist, by positions of depth planes."""

    blocks: int
    channels: int
    planes: int
    positions: int


class MapWork(Turning):
    """Feature maps: a lane is C0 channels of one position, its block is one C1 plane."""

    def __init__(self, conversion: Conversion, plain: Tensor, blocked: Tensor) -> None:
        super().__init__(conversion, plain, blocked)
        self.n, self.c, *spatial = plain.shape
        self.d = spatial[0] if len(spatial) == 3 else 1
        self.hw = prod(spatial) // self.d
        if self.d == 1 and self.c % self.c0 == 0:  # samples follow each other like C1 planes
            self.n, self.c = 1, self.n * self.c
        self.c1 = ceil_div(self.c, self.c0)

    def _tile(self, slot_bytes: int, cores: int) -> tuple[int, int, int]:
        """(blocks, depth planes, positions) of a task; whole planes where one fits."""
        step = 32 // self.e  # rows of channels start at 32 B in UB
        total = self.n * self.d * self.c1 * self.hw * self.lane
        size = step * self.lane
        lanes = step * most_in_task(size, total, slot_bytes, cores)
        if self.hw > lanes:
            return 1, 1, even(self.hw, lanes, step)
        planes = even(self.d, lanes // self.hw)
        run = planes * self.hw
        if planes < self.d:
            run = round_up(run, step)
        return even(self.c1, max(1, lanes // run)), planes, self.hw

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[MapTile]:
        """Whole planes of several blocks, or a chunk of one plane."""
        blocks, planes, positions = self._tile(slot_bytes, cores)
        (n, b0, d0, p0), (_, count, deep, run) = in_pieces(
            (self.n, 1), (self.c1, blocks), (self.d, planes), (self.hw, positions)
        )
        columns = {
            "blocks": count,
            "channels": np.minimum(count * self.c0, self.c - b0 * self.c0),
            "planes": deep,
            "positions": run,
        }
        element = (n * self.c + b0 * self.c0) * self.d * self.hw + d0 * self.hw + p0
        lane = ((n * self.d + d0) * self.c1 + b0) * self.hw + p0
        return self.in_runs(cores, MapTile, columns, (element, lane))

    def _row(self, u: MapTile) -> tuple[int, int]:
        """Bytes of a channel of the tile, and from one to the next in UB."""
        row = u.planes * u.positions * self.e
        return row, row if row == self.d * self.hw * self.e else round_up(row, BLOCK_BYTES)

    def _clear(self, k: Language, slot: Slot, u: MapTile, *, shared: bool) -> None:
        """Clear missing channels: before the others are loaded if they share a block with them."""
        _, pitch = self._row(u)
        loaded = u.channels * pitch
        size = u.blocks * self.c0 * pitch
        tail = round_down(loaded, BLOCK_BYTES)
        if loaded < size and shared == (tail < loaded):
            k.vec_dup(slot.at(tail, size - tail), 0.0, self.plain.dtype)

    def clear(self, k: Language, first: Slot, second: Slot, u: MapTile) -> None:
        """Channels that are missing, if they begin within a block."""
        if self.load:
            self._clear(k, first, u, shared=True)

    def turn(self, k: Language, first: Slot, second: Slot, u: MapTile) -> Slot:
        """Channel rows on one side, lanes on the other."""
        (row, pitch) = self._row(u)
        run = u.planes * u.positions
        dtype = self.plain.dtype
        matrix = (first if self.load else second).at(0, row, rows=u.blocks * self.c0, pitch=pitch)
        if self.load:
            self._clear(k, first, u, shared=False)
            k.vec_transpose(second, matrix, self.c0, run, dtype, count=u.blocks)
        else:
            k.vec_transpose(matrix, first, run, self.c0, dtype, count=u.blocks)
        return second

    def of_plain(self, u: MapTile) -> list[Pieces]:
        """Rows of channels."""
        row, pitch = self._row(u)
        return [Pieces(u.channels, row, 0, self.d * self.hw * self.e, 0, pitch)]

    def of_blocked(self, u: MapTile) -> list[Pieces]:
        """Moves of lanes [block][plane][position], along the longer of the first two axes."""
        plane, block = u.positions * self.lane, self.hw * self.lane  # of the tile, of the tensor
        deep = self.c1 * block
        if u.planes <= u.blocks:
            return [
                Pieces(u.blocks, plane, d * deep, block, d * plane, u.planes * plane)
                for d in range(u.planes)
            ]
        return [
            Pieces(u.planes, plane, b * plane, deep, b * u.planes * plane, plane)
            for b in range(u.blocks)
        ]


@dataclass(frozen=True)
class TransData(LayoutChange):
    """The conversion of maps and weights as a ``Conversion`` says."""

    change: Conversion

    name: ClassVar[str] = "trans_data"
    library: ClassVar[tuple[str, ...]] = ("TransData",)

    @property
    def anywhere(self) -> bool:
        return not self.change.maps  # groups begin at any element

    @property
    def work(self) -> Turning:
        kind = MapWork if self.change.maps else WeightWork
        return kind(self.change, self.plain, self.blocked)
