"""The hand-over of tiles from a cube core to the vector cores of its group: blocks of GM in turns.

The cube core drains a tile into a block and raises a flag; each reader waits for it, loads its rows
of the block, and raises a flag back, which the cube core awaits before it uses the block again.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from npusim.kernels.parts.tile_order import Tiles
from npusim.language import ArgumentError, Column, IntArray, Language, Tasks

Task = TypeVar("Task", bound=tuple[Any, ...])

#: Flags between cores: a block is full, and a reader has done with it.
FULL = 0
FREE = 1


class HandOver(Struct, frozen=True):
    """Tiles of an (m, n) result in ``slots`` blocks per cube core, each for ``readers`` cores."""

    m: int
    n: int
    slots: int
    readers: int

    def __post_init__(self) -> None:
        if min(self.slots, self.readers) < 1:
            raise ArgumentError(
                f"hand-over in {self.slots} blocks to {self.readers} readers; both must be >= 1"
            )

    def places(self, core: IntArray) -> tuple[IntArray, Column]:
        """The block of each tile, counted over all cores, and true where it was used before."""
        order = np.argsort(core, kind="stable")
        first = np.searchsorted(core[order], core[order])
        nth = np.empty(len(core), np.int64)
        nth[order] = np.arange(len(core)) - first
        return core * self.slots + nth % self.slots, nth >= self.slots

    def shares(self, table: Tiles) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """The rows of each tile that each reader takes; the last one may have none.

        One row per tile and reader: which they are, its first row of the tile, and how many.
        """
        reader = np.tile(np.arange(self.readers), len(table.m))
        tile = np.repeat(np.arange(len(table.m)), self.readers)
        each = -(-table.m[tile] // self.readers)
        first = np.minimum(reader * each, table.m[tile])
        return tile, reader, first, np.minimum(each, table.m[tile] - first)

    def reuse(self, k: Language) -> None:
        """Hold the drain until all readers have done with the block."""
        k.core_wait_flag(k.pipe_of("L0C", "GM"), FREE)

    def give(self, k: Language) -> None:
        """Tell the readers of the group that a block is full."""
        k.core_set_flag(k.pipe_of("L0C", "GM"), FULL, "group")

    def take(self, k: Language) -> None:
        """Hold a reader's loads until a block is full."""
        k.core_wait_flag(k.pipe_of("GM", "UB"), FULL)

    def leave(self, k: Language) -> None:
        """Tell the cube core that this reader has loaded its rows."""
        k.core_set_flag(k.pipe_of("GM", "UB"), FREE, "group")


def with_meeting(tasks: Tasks[Task], cores: int, *, last: bool) -> Tasks[Task]:
    """Tasks with one of zeros more for each core, after all others (``last``) or before them.

    The kernel lets the cores meet in it, also those that have nothing else to do.
    """
    columns: dict[str, Any] = {
        name: np.zeros(cores, np.asarray(column).dtype) for name, column in tasks.columns.items()
    }
    meeting = Tasks(np.arange(cores), tasks.record, columns)
    return joined(tasks, meeting) if last else joined(meeting, tasks)


def joined(tasks: Tasks[Task], more: Tasks[Task]) -> Tasks[Task]:
    """Tasks of one kind, each core doing the ``more`` ones after the others.

    A base that only some of them have is 0 for the others.
    """
    columns: dict[str, Any] = {
        name: np.concatenate([column, more.columns[name]]) for name, column in tasks.columns.items()
    }
    bases = {
        name: np.concatenate([_base(tasks, name), _base(more, name)])
        for name in {**tasks.bases, **more.bases}
    }
    return Tasks(np.concatenate([tasks.core, more.core]), tasks.record, columns, bases)


def _base(tasks: Tasks[Any], name: str) -> IntArray:
    return tasks.bases.get(name, np.zeros(len(tasks.core), np.int64))
