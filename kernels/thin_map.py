"""Every h-th row and w-th column of a map between framework layout and blocks of channels.

    thins           x[n, c, h * i, w * j] -> [n, c div C0, i, j, c mod C0]     zeros from C on
    else            the reverse, zeros at all other pixels

Layouts: plain is (N, C, [D = 1, [H,]] W), the other one (N, 1, C1, ceil(H / h), ceil(W / w), C0).
These are the pixels that a filter of 1x1 reads of a strided layer. Elements have 2 or 4 bytes.

    for tile of rows of positions of this core:        # one task, cores take runs of them
        UB <- rows of all pixels, or positions         # MTE2, and V for the zeros
        UB <- transposed, and lanes copied from among the others, or the reverse      # V
        GM <- positions, or rows of all pixels         # MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.parts.conversion import Pieces, even, most_in_task, move, task_counts
from npusim.kernels.parts.plane_map import PlaneMap, plain_sizes
from npusim.kernels.parts.room import piece
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    FRACTAL_BYTES,
    CapacityError,
    Language,
    Plan,
    Slot,
    Tasks,
    ceil_div,
    grid,
    in_runs,
    round_down,
    round_up,
)


class ThinTile(NamedTuple):
    """``rows`` of positions of ``blocks``, of which ``channels`` exist, and rows of pixels."""

    blocks: int
    channels: int
    rows: int
    pixels: int


@dataclass(frozen=True)
class ThinMap(PlaneMap):
    """The conversion of pixels that are ``step`` rows and columns from one to the next."""

    step: tuple[int, int]

    name: ClassVar[str] = "thin_map"

    @property
    def pixels(self) -> str:
        return f"one of {self.step[0]}x{self.step[1]} pixels"

    def blocked_shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        n, c, h, w = plain_sizes(plain)
        positions = ceil_div(h, self.step[0]), ceil_div(w, self.step[1])
        return (n, 1, ceil_div(c, self.c0), *positions, self.c0)

    def stream(self, device: Device, cores: int) -> Stream:
        size, some = self.plain.size_bytes, self.blocked.size_bytes
        vector = [("transpose", size), ("dup", size if not self.to_blocks else 0)]
        return Stream(
            read=self.src.size_bytes,
            written=self.dst.size_bytes,
            tasks=task_counts(max(size, some), device.memory("UB").size_bytes // 4, cores),
            vector=tuple((op, amount) for op, amount in vector if amount),
            cold=self.to_blocks,
        )

    def fits(self, device: Device) -> bool:
        """Whether the UB of a device holds a row of positions as it is loaded and turned."""
        ub = device.memory("UB")
        return _Work(self).row_bytes <= round_down(ub.size_bytes // 4, ub.align_bytes)

    def plan(self, k: Language, cores: int) -> Plan[ThinTile]:
        align, work = k.memory("UB").align_bytes, _Work(self)
        size = piece(
            k, self.name, k.memory("UB").size_bytes, 4, multiple=align, least=FRACTAL_BYTES
        )
        if work.row_bytes > size:
            raise CapacityError(
                f"{self.name}: {k.device_name} has {k.memory('UB').size_bytes} B of UB "
                f"(memories.UB.size), a row of pixels takes {4 * work.row_bytes} B; use a device "
                "with a larger UB"
            )
        first = k.buffer("UB", (size,), None, slots=2, name="as_loaded")
        second = k.buffer("UB", (size,), None, slots=2, name="turned")
        emit = work.emit_thin if self.to_blocks else work.emit_plain
        return Plan(
            work.tasks(size, cores), lambda tile: emit(k, first.next(), second.next(), tile)
        )


class _Work:
    """Tiles of a conversion, and what is done with one."""

    def __init__(self, kernel: ThinMap) -> None:
        self.plain, self.blocked, self.c0 = kernel.plain, kernel.blocked, kernel.c0
        self.n, self.c, self.h, self.w = plain_sizes(self.plain.shape)
        self.e, (self.down, self.across) = self.plain.dtype.bytes, kernel.step
        _, _, self.c1, self.rows, self.columns, _ = self.blocked.shape
        self.lane = self.c0 * self.e

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows of pixels of a row of positions, in UB."""
        return round_up(self.down * self.w * self.e, 32) * self.c0

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[ThinTile]:
        """Whole planes of several blocks, or rows of one plane."""
        total = self.n * self.c1 * self.rows * self.row_bytes
        most = most_in_task(self.row_bytes, total, slot_bytes, cores)
        rows = even(self.rows, most)
        blocks = even(self.c1, max(1, most // self.rows)) if rows == self.rows else 1
        n, b0, i0 = grid(
            np.arange(self.n), np.arange(0, self.c1, blocks), np.arange(0, self.rows, rows)
        )
        count, tall = np.minimum(blocks, self.c1 - b0), np.minimum(rows, self.rows - i0)
        pixel = ((n * self.c + b0 * self.c0) * self.h + i0 * self.down) * self.w
        place = ((n * self.c1 + b0) * self.rows + i0) * self.columns
        return Tasks(
            in_runs(len(n), cores),
            ThinTile,
            {
                "blocks": count,
                "channels": np.minimum(count * self.c0, self.c - b0 * self.c0),
                "rows": tall,
                "pixels": np.minimum(tall * self.down, self.h - i0 * self.down),
            },
            {self.plain.name: pixel * self.e, self.blocked.name: place * self.lane},
        )

    def emit_thin(self, k: Language, first: Slot, second: Slot, u: ThinTile) -> None:
        """Positions of rows of pixels."""
        dtype, (plain, blocked, pitch) = self.plain.dtype, self._pieces(u)
        run, size = pitch // self.e, u.blocks * self.c0 * pitch
        move(k, self.plain, first, plain, store=False)
        if u.channels < u.blocks * self.c0:
            k.vec_dup(first.at(u.channels * pitch, size - u.channels * pitch), 0.0, dtype)
        k.vec_transpose(second.at(0, size), first.at(0, size), self.c0, run, dtype, count=u.blocks)
        self._lanes(k, first, second, u, run, thin=True)
        move(k, self.blocked, first, blocked, store=True)

    def emit_plain(self, k: Language, first: Slot, second: Slot, u: ThinTile) -> None:
        """Rows of pixels of positions, zeros between them."""
        dtype, (plain, blocked, pitch) = self.plain.dtype, self._pieces(u)
        run, size = pitch // self.e, u.blocks * self.c0 * pitch
        move(k, self.blocked, first, blocked, store=False)
        k.vec_dup(second.at(0, size), 0.0, dtype)
        self._lanes(k, first, second, u, run, thin=False)
        k.vec_transpose(first.at(0, size), second.at(0, size), run, self.c0, dtype, count=u.blocks)
        move(k, self.plain, first, plain, store=True)

    def _pieces(self, u: ThinTile) -> tuple[Pieces, Pieces, int]:
        """The moves of pixels and of positions, and bytes from channel to channel in UB."""
        row = u.pixels * self.w * self.e
        pitch = round_up(row, 32)
        plain = Pieces(u.channels, row, 0, self.h * self.w * self.e, 0, pitch)
        size = u.rows * self.columns * self.lane
        blocked = Pieces(u.blocks, size, 0, self.rows * self.columns * self.lane, 0, size)
        return plain, blocked, pitch

    def _lanes(
        self, k: Language, close: Slot, apart: Slot, u: ThinTile, run: int, *, thin: bool
    ) -> None:
        """Lanes of each row from among those of all pixels to follow each other, or the reverse."""
        row, pitch = self.columns * self.lane, self.across * self.lane
        for b in range(u.blocks):
            for i in range(u.rows):
                here = close.at(
                    (b * u.rows + i) * row, self.lane, rows=self.columns, pitch=self.lane
                )
                there = apart.at(
                    (b * run + i * self.down * self.w) * self.lane,
                    self.lane,
                    rows=self.columns,
                    pitch=pitch,
                )
                k.data_move(*((here, there) if thin else (there, here)), dtype=self.plain.dtype)
