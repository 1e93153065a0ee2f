"""Maps between framework layout and blocks in which rows and columns are channels.

    to_folded       x[n, c, h * i + a, w * j + b] -> [n, block, i, j, column b, row c * h + a]
    from_folded     the reverse

Layouts: plain is (N, C, [D = 1, [H,]] W); the folded one is that of ``parts/folding.py``, where the
rows c * h + a of all channels are dealt to blocks, a lane of C0 / w to each. What a folded map has
beyond the plane and the channels is zero. Elements have 2 or 4 bytes.

    for tile of positions of this core:                # one task, cores take runs of them
        UB <- its pixels, row by row of the lane       # MTE2, and V for the zeros
        UB <- tile transposed                          # V: [row][pixel] to [pixel][row] or back
        GM <- tile in the other layout                 # MTE3

Neighbouring pixels follow each other in a lane, so that one transposition is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.parts.conversion import Pieces, even, most_in_task, move
from npusim.kernels.parts.folding import Fold
from npusim.kernels.parts.plane_map import PlaneMap, plain_sizes
from npusim.kernels.parts.room import piece
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    FRACTAL_BYTES,
    ArgumentError,
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


class FoldTile(NamedTuple):
    """A block's positions: ``rows`` x ``columns`` of them, the ``width`` pixels of each row.

    ``lane`` rows of pixels from number ``first`` on exist; of the first ``tall`` rows of positions
    all pixels do, of those below only ``left`` rows.
    """

    rows: int
    columns: int
    width: int
    first: int
    lane: int
    tall: int
    left: int


@dataclass(frozen=True)
class FoldMap(PlaneMap):
    """The conversion of maps whose rows and columns are channels as ``fold`` says."""

    fold: Fold

    name: ClassVar[str] = "fold_map"

    def __post_init__(self) -> None:
        if min(self.fold) < 1 or self.c0 % self.fold.w:
            raise ArgumentError(
                f"fold_map: {self.fold.w} columns are folded; they must divide c0, {self.c0}"
            )
        super().__post_init__()

    @property
    def pixels(self) -> str:
        return f"{self.fold.h}x{self.fold.w} pixels a position"

    def blocked_shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        n, c, h, w = plain_sizes(plain)
        return (n, 1, self.fold.blocks(c, self.c0), *self.fold.plane(h, w), self.c0)

    def stream(self, device: Device, cores: int) -> Stream:
        ub, work = device.memory("UB"), _Work(self)
        slot = round_down(ub.size_bytes // 4, ub.align_bytes)
        cuts = [work.cut(slot, n) for n in range(1, cores + 1)]
        zeros, lane = work.zeros if self.to_blocks else 0.0, work.rows / work.blocks
        return Stream(
            read=self.src.size_bytes,
            written=self.dst.size_bytes,
            tasks=np.array([work.count(*cut) for cut in cuts]),
            vector=(("transpose", self.blocked.size_bytes * self.fold.w),),
            loads=lane if self.to_blocks else 1,
            cold=self.to_blocks,
            stores=1 if self.to_blocks else lane,
            in_turn=zeros,
        )

    def plan(self, k: Language, cores: int) -> Plan[FoldTile]:
        align = k.memory("UB").align_bytes
        size = piece(
            k, self.name, k.memory("UB").size_bytes, 4, multiple=align, least=FRACTAL_BYTES
        )
        loaded = k.buffer("UB", (size,), None, slots=2, name="as_loaded")
        turned = k.buffer("UB", (size,), None, slots=2, name="turned")
        work = _Work(self)
        return Plan(
            work.tasks(size, cores), lambda tile: work.emit(k, loaded.next(), turned.next(), tile)
        )


class _Work:
    """Tiles of a conversion, and what is done with one."""

    def __init__(self, kernel: FoldMap) -> None:
        self.fold, self.load = kernel.fold, kernel.to_blocks
        self.plain, self.folded = kernel.plain, kernel.blocked
        self.n, self.c, self.h, self.w = plain_sizes(self.plain.shape)
        self.e, self.c0 = self.plain.dtype.bytes, kernel.c0
        self.lane = self.fold.lane(self.c0)
        self.position = self.c0 * self.e  # bytes
        self.rows = self.c * self.fold.h  # of pixels that positions of a column have
        _, _, self.blocks, self.down, self.across, _ = self.folded.shape

    def cut(self, slot_bytes: int, cores: int) -> tuple[int, int]:
        """Rows and columns of positions of a task: rows of one block, or part of a row."""
        # Rows of pixels begin at 32 B in UB.
        step = ceil_div(32 // self.e, self.fold.w)
        total = self.n * self.blocks * self.down * self.across * self.position
        most = most_in_task(step * self.position, total, slot_bytes, cores)
        columns = even(round_up(self.across, step), most * step, step)
        if columns < self.across:
            return 1, columns
        return even(self.down, max(1, most * step // columns)), columns

    def count(self, rows: int, columns: int) -> int:
        """How many tasks of so many rows and columns there are."""
        of_block = ceil_div(self.down, rows) * ceil_div(self.across, columns)
        return self.n * self.blocks * of_block

    @property
    def zeros(self) -> float:
        """The share of blocks of which not all lanes are rows of pixels."""
        return 1 / self.blocks if self.rows % self.lane else 0.0

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[FoldTile]:
        """Runs of them for each core."""
        rows, columns = self.cut(slot_bytes, cores)
        n, block, i0, j0 = grid(
            np.arange(self.n),
            np.arange(self.blocks),
            np.arange(0, self.down, rows),
            np.arange(0, self.across, columns),
        )
        count, first = np.minimum(rows, self.down - i0), block * self.lane
        whole = self.h // self.fold.h  # rows of positions of which all pixels exist
        extent = {
            "rows": count,
            "columns": np.minimum(columns, self.across - j0),
            "width": np.minimum(columns * self.fold.w, self.w - j0 * self.fold.w),
            "first": first % self.fold.h,
            "lane": np.minimum(self.lane, self.rows - first),
            "tall": np.clip(whole - i0, 0, count),
            "left": np.full(len(n), self.h % self.fold.h),
        }
        pixel = (n * self.c + first // self.fold.h) * self.h + i0 * self.fold.h
        place = ((n * self.blocks + block) * self.down + i0) * self.across + j0
        return Tasks(
            in_runs(len(n), cores),
            FoldTile,
            extent,
            {
                self.plain.name: self.e * (pixel * self.w + j0 * self.fold.w),
                self.folded.name: self.position * place,
            },
        )

    def emit(self, k: Language, first: Slot, second: Slot, u: FoldTile) -> None:
        """Rows of pixels on one side, positions on the other."""
        dtype, across = self.plain.dtype, round_up(u.columns * self.fold.w, 32 // self.e)
        row, run = across * self.e, u.rows * across  # of pixels: bytes in UB, and how many in all
        slot, positions = (first, second) if self.load else (second, first)
        size = self.lane * run * self.e
        matrix, lanes = slot.at(0, size), positions.at(0, size)
        pitch = across // self.fold.w * self.position
        folded = Pieces(u.rows, u.columns * self.position, 0, self.across * self.position, 0, pitch)
        if u.columns == self.across and pitch == folded.size:
            folded = Pieces(1, u.rows * pitch, 0, 0, 0, 0)
        if self.load:
            ragged = u.tall < u.rows or u.width < u.columns * self.fold.w
            start = 0 if ragged else u.lane * u.rows * row
            if start < size:
                k.vec_dup(slot.at(start, size - start), 0.0, dtype)
            for pieces in self._rows(u, row):
                move(k, self.plain, slot, pieces, store=False)
            k.vec_transpose(lanes, matrix, self.lane, run, dtype)
            move(k, self.folded, positions, folded, store=True)
            return
        if pitch > u.columns * self.position:
            k.vec_dup(lanes, 0.0, dtype)
        move(k, self.folded, positions, folded, store=False)
        k.vec_transpose(matrix, lanes, run, self.lane, dtype)
        for pieces in self._rows(u, row):
            move(k, self.plain, slot, pieces, store=True)

    def _rows(self, u: FoldTile, row: int) -> Iterator[Pieces]:
        """Moves of the pixels of each row of the lane, those of all rows of positions at once."""
        line = self.w * self.e
        for r in range(u.lane):
            c, a = divmod(u.first + r, self.fold.h)
            count = u.rows if a < u.left else u.tall
            if count:
                gm = (c * self.h + a) * line
                width, pitch = u.width * self.e, self.fold.h * line
                yield Pieces(count, width, gm, pitch, r * u.rows * row, row)
