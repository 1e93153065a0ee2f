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
from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Struct

from npusim.kernels.layout.conversion import Pieces, even, most_in_task
from npusim.kernels.layout.folding import Fold
from npusim.kernels.layout.layout_change import LayoutChange, Turning, plain_sizes, slot_room
from npusim.language import (
    ArgumentError,
    Device,
    Language,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
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


class Folded(Struct, frozen=True):
    """A map whose rows and columns are channels as ``fold`` says."""

    c0: int
    loads_plain: bool
    fold: Fold

    def __post_init__(self) -> None:
        if min(self.fold) < 1 or self.c0 % self.fold.w:
            raise ArgumentError(
                f"fold_map: {self.fold.w} columns are folded; they must divide c0, {self.c0}"
            )

    def __str__(self) -> str:
        return self.fold.text(loads_plain=self.loads_plain)

    def blocked_shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the folded map of a plain one."""
        n, c, h, w = plain_sizes(plain)
        return (n, 1, self.fold.blocks(c, self.c0), *self.fold.plane(h, w), self.c0)


class FoldWork(Turning):
    """Tiles of a conversion, and what is done with one."""

    def __init__(self, change: Folded, plain: Tensor, blocked: Tensor) -> None:
        super().__init__(change, plain, blocked)
        self.fold = change.fold
        self.n, self.c, self.h, self.w = plain_sizes(plain.shape)
        self.rows = self.c * self.fold.h  # of pixels that positions of a column have
        self.line = self.fold.lane(self.c0)  # rows of a block that are of one column
        _, _, self.blocks, self.down, self.across, _ = change.blocked_shape(plain.shape)

    def streamed(self, device: Device, cores: int) -> dict[str, Any]:
        cuts = [self.cut(slot_room(device), n) for n in range(1, cores + 1)]
        lane = self.rows / self.blocks
        moves = {"loads": lane, "in_turn": self.zeros} if self.load else {"stores": lane}
        return {
            "tasks": np.array([self.count(*cut) for cut in cuts]),
            "vector": (("transpose", self.blocked.size_bytes * self.fold.w),),
            **moves,
        }

    def cut(self, slot_bytes: int, cores: int) -> tuple[int, int]:
        """Rows and columns of positions of a task: rows of one block, or part of a row."""
        # Rows of pixels begin at 32 B in UB.
        step = ceil_div(32 // self.e, self.fold.w)
        total = self.n * self.blocks * self.down * self.across * self.lane
        most = most_in_task(step * self.lane, total, slot_bytes, cores)
        columns = even(round_up(self.across, step), most * step, step)
        if columns < self.across:
            return 1, columns
        return even(self.down, max(1, most * step // columns)), columns

    def count(self, rows: int, columns: int) -> int:
        """The number of tasks of so many rows and columns."""
        of_block = ceil_div(self.down, rows) * ceil_div(self.across, columns)
        return self.n * self.blocks * of_block

    @property
    def zeros(self) -> float:
        """The share of blocks of which not all lanes are rows of pixels."""
        return 1 / self.blocks if self.rows % self.line else 0.0

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[FoldTile]:
        """Runs of them for each core."""
        rows, columns = self.cut(slot_bytes, cores)
        (n, block, i0, j0), (*_, count, wide) = in_pieces(
            (self.n, 1), (self.blocks, 1), (self.down, rows), (self.across, columns)
        )
        first = block * self.line
        whole = self.h // self.fold.h  # rows of positions of which all pixels exist
        extent = {
            "rows": count,
            "columns": wide,
            "width": np.minimum(columns * self.fold.w, self.w - j0 * self.fold.w),
            "first": first % self.fold.h,
            "lane": np.minimum(self.line, self.rows - first),
            "tall": np.clip(whole - i0, 0, count),
            "left": np.full(len(n), self.h % self.fold.h),
        }
        pixel = (n * self.c + first // self.fold.h) * self.h + i0 * self.fold.h
        place = ((n * self.blocks + block) * self.down + i0) * self.across + j0
        places = pixel * self.w + j0 * self.fold.w, place
        return self.in_runs(cores, FoldTile, extent, places)

    def _across(self, u: FoldTile) -> int:
        """Pixels of a row in UB, whole blocks of 32 B."""
        return round_up(u.columns * self.fold.w, 32 // self.e)

    def clear(self, k: Language, first: Slot, second: Slot, u: FoldTile) -> None:
        """Pixels that do not exist, or positions between rows in UB."""
        row = self._across(u) * self.e
        size = self.line * u.rows * row
        start = 0
        no_gaps = self._across(u) == u.columns * self.fold.w
        if self.load and u.tall == u.rows and u.width == u.columns * self.fold.w:
            start = u.lane * u.rows * row
        if start < size and (self.load or not no_gaps):
            k.vec_dup(first.at(start, size - start), 0.0, self.plain.dtype)

    def turn(self, k: Language, first: Slot, second: Slot, u: FoldTile) -> Slot:
        """Rows of pixels on one side, positions on the other."""
        run = u.rows * self._across(u)
        shape = (self.line, run) if self.load else (run, self.line)
        size = self.line * run * self.e
        k.vec_transpose(second.at(0, size), first.at(0, size), *shape, self.plain.dtype)
        return second

    def of_blocked(self, u: FoldTile) -> list[Pieces]:
        """Rows of positions; those that follow each other on both sides are one."""
        row = u.columns * self.lane
        pitch = self._across(u) // self.fold.w * self.lane
        if u.columns == self.across and pitch == row:
            return [Pieces(1, u.rows * pitch, 0, 0, 0, 0)]
        return [Pieces(u.rows, row, 0, self.across * self.lane, 0, pitch)]

    def of_plain(self, u: FoldTile) -> Iterator[Pieces]:
        """Moves of the pixels of each row of the lane, those of all rows of positions at once."""
        line = self.w * self.e
        row = self._across(u) * self.e
        for r in range(u.lane):
            c, a = divmod(u.first + r, self.fold.h)
            count = u.rows if a < u.left else u.tall
            if count:
                gm = (c * self.h + a) * line
                width = u.width * self.e
                pitch = self.fold.h * line
                yield Pieces(count, width, gm, pitch, r * u.rows * row, row)


@dataclass(frozen=True)
class FoldMap(LayoutChange):
    """The conversion of maps as a ``Folded`` says."""

    name: ClassVar[str] = "fold_map"
    works: ClassVar[type[Turning]] = FoldWork
