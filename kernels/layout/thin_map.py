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
from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Struct

from npusim.kernels.layout.conversion import Pieces, even, most_in_task, unit_counts
from npusim.kernels.layout.layout_change import LayoutChange, Turning, plain_sizes
from npusim.language import (
    FRACTAL_BYTES,
    Device,
    Language,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    round_up,
)


class ThinTile(NamedTuple):
    """``rows`` of positions of ``blocks``, of which ``channels`` exist, and rows of pixels."""

    blocks: int
    channels: int
    rows: int
    pixels: int


class Thinned(Struct, frozen=True):
    """Pixels that are ``step`` rows and columns from one to the next."""

    c0: int
    loads_plain: bool
    step: tuple[int, int]

    def __str__(self) -> str:
        return f"{'to' if self.loads_plain else 'from'} one of {self.step[0]}x{self.step[1]} pixels"

    def blocked_shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the blocks that hold these pixels of a plain map."""
        n, c, h, w = plain_sizes(plain)
        positions = ceil_div(h, self.step[0]), ceil_div(w, self.step[1])
        return (n, 1, ceil_div(c, self.c0), *positions, self.c0)


class ThinWork(Turning):
    """Tiles of a conversion, and what is done with one."""

    def __init__(self, change: Thinned, plain: Tensor, blocked: Tensor) -> None:
        super().__init__(change, plain, blocked)
        self.n, self.c, self.h, self.w = plain_sizes(plain.shape)
        self.down, self.across = change.step
        _, _, self.c1, self.rows, self.columns, _ = change.blocked_shape(plain.shape)
        #: Bytes of the rows of pixels of a row of positions, in UB.
        self.row_bytes = round_up(self.down * self.w * self.e, 32) * self.c0
        self.least = max(FRACTAL_BYTES, self.row_bytes)

    def streamed(self, device: Device, cores: int) -> dict[str, Any]:
        size = self.plain.size_bytes
        slot = device.memory("UB").size_bytes // 4
        vector = [("transpose", size)]
        if not self.load:
            vector.append(("dup", size))
        return {
            "tasks": unit_counts(max(size, self.blocked.size_bytes), slot, cores),
            "vector": tuple(vector),
            "rows": self.blocked.size_bytes // self.lane,
        }

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[ThinTile]:
        """Whole planes of several blocks, or rows of one plane."""
        total = self.n * self.c1 * self.rows * self.row_bytes
        most = most_in_task(self.row_bytes, total, slot_bytes, cores)
        rows = even(self.rows, most)
        blocks = 1
        if rows == self.rows:
            blocks = even(self.c1, max(1, most // self.rows))
        (image, block, row), (_, count, tall) = in_pieces(
            (self.n, 1), (self.c1, blocks), (self.rows, rows)
        )
        channel = image * self.c + block * self.c0
        pixel = (channel * self.h + row * self.down) * self.w
        place = ((image * self.c1 + block) * self.rows + row) * self.columns
        columns = {
            "blocks": count,
            "channels": np.minimum(count * self.c0, self.c - block * self.c0),
            "rows": tall,
            "pixels": np.minimum(tall * self.down, self.h - row * self.down),
        }
        return self.in_runs(cores, ThinTile, columns, (pixel, place))

    def turn(self, k: Language, first: Slot, second: Slot, u: ThinTile) -> Slot:
        """Positions of rows of pixels; or the reverse, zeros between them."""
        dtype = self.plain.dtype
        pitch = self._pitch(u)
        run = pitch // self.e
        size = u.blocks * self.c0 * pitch
        loaded = u.channels * pitch
        close = first.at(0, size)
        apart = second.at(0, size)
        if not self.load:
            k.vec_dup(apart, 0.0, dtype)
            self._lanes(k, first, second, u, run)
            k.vec_transpose(close, apart, run, self.c0, dtype, count=u.blocks)
            return first
        if loaded < size:
            k.vec_dup(first.at(loaded, size - loaded), 0.0, dtype)
        k.vec_transpose(apart, close, self.c0, run, dtype, count=u.blocks)
        self._lanes(k, first, second, u, run)
        return first

    def _pitch(self, u: ThinTile) -> int:
        """Bytes from channel to channel in UB."""
        return round_up(u.pixels * self.w * self.e, 32)

    def of_plain(self, u: ThinTile) -> list[Pieces]:
        """All rows of pixels of each channel."""
        row = u.pixels * self.w * self.e
        return [Pieces(u.channels, row, 0, self.h * self.w * self.e, 0, self._pitch(u))]

    def of_blocked(self, u: ThinTile) -> list[Pieces]:
        """The positions of each block."""
        size, pitch = (rows * self.columns * self.lane for rows in (u.rows, self.rows))
        return [Pieces(u.blocks, size, 0, pitch, 0, size)]

    def _lanes(self, k: Language, close: Slot, apart: Slot, u: ThinTile, run: int) -> None:
        """Lanes of each row from among those of all pixels to follow each other, or the reverse."""
        count = self.columns
        lane = self.lane
        for b in range(u.blocks):
            for i in range(u.rows):
                place = b * run + i * self.down * self.w
                here = close.at((b * u.rows + i) * count * lane, lane, rows=count, pitch=lane)
                there = apart.at(place * lane, lane, rows=count, pitch=self.across * lane)
                if self.load:
                    k.data_move(here, there, self.plain.dtype)
                else:
                    k.data_move(there, here, self.plain.dtype)


@dataclass(frozen=True)
class ThinMap(LayoutChange):
    """The conversion of pixels as a ``Thinned`` says."""

    name: ClassVar[str] = "thin_map"
    works: ClassVar[type[Turning]] = ThinWork
