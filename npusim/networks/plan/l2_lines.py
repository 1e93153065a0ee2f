"""Lines of values in the L2 between the kernels of a step, under least-recently-used replacement.

The lines of a value are read or written in order, so that they age in order, and what is left of a
value is always its last part. A queue of values, of each how many bytes are there, therefore says
as much as a queue of all their lines.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from npusim.base.integers import round_up
from npusim.machine.device.parts import L2Cache


class L2Traffic(NamedTuple):
    """Bytes that the operands of a launch move between the L2 and main memory.

    ``fetched`` are read from main memory, ``written_back`` are dirty lines whose room others took,
    whichever launch wrote them; ``unread`` of these are of values that nothing reads any more.
    After the launch ``dirty`` bytes wait in the L2.
    """

    fetched: int = 0
    written_back: int = 0
    unread: int = 0
    dirty: int = 0


class _Entry:
    """What the L2 has of a value: so many bytes of its end, all dirty or all clean."""

    __slots__ = ("dirty", "size", "unread")

    def __init__(self, size: int, *, dirty: bool) -> None:
        self.size = size
        self.dirty = dirty
        self.unread = False  # nothing reads it any more


class L2Lines:
    """The most recently used lines of values, as many as the L2 (None: there is none) has room for.

    Reading a value fetches what is not there, writing one fetches nothing: whole lines are
    written, which are dirty until others need their room and they are written back. So are those
    of values that nothing reads any more, because an L2 does not know that.
    """

    def __init__(self, spec: L2Cache | None) -> None:
        self.sector_bytes = spec.sector_bytes if spec is not None else 1
        sectors = spec.size_bytes // spec.sector_bytes if spec is not None else 0
        self.capacity_bytes = sectors * self.sector_bytes
        self._fetched_bytes = 0
        self._written_back_bytes = 0
        self._unread_bytes = 0
        self._dirty_bytes = 0
        self._used_bytes = 0
        self._entries: dict[Hashable, _Entry] = {}  # the least recently used first

    def read(self, place: Hashable, size_bytes: int) -> bool:
        """Read the value at a place; return whether all of it was there."""
        return self._touch(place, size_bytes, write=False)

    def write(self, place: Hashable, size_bytes: int) -> None:
        """Write the value at a place, all of it."""
        self._touch(place, size_bytes, write=True)

    def unread(self, place: Hashable) -> None:
        """Note that nothing reads the value at a place any more."""
        if place in self._entries:
            self._entries[place].unread = True

    def moved(self) -> L2Traffic:
        """The bytes that were moved since this was asked before, or since the beginning."""
        traffic = L2Traffic(
            fetched=self._fetched_bytes,
            written_back=self._written_back_bytes,
            unread=self._unread_bytes,
            dirty=self._dirty_bytes,
        )
        self._fetched_bytes = 0
        self._written_back_bytes = 0
        self._unread_bytes = 0
        return traffic

    def _touch(self, place: Hashable, size_bytes: int, *, write: bool) -> bool:
        """Use all lines of a value in order; return whether all of them were there."""
        size = round_up(size_bytes, self.sector_bytes)
        entry = self._entries.pop(place, None)
        hit = entry is not None and entry.size == size
        if entry is not None and hit:
            self._dirty_bytes += size if write and not entry.dirty else 0
            entry.dirty |= write
            entry.unread = False
            self._entries[place] = entry
            return True
        # Its first line is missing. A value of which a part has left is the oldest, in a full L2:
        # each of its lines that comes takes the room of the first of them that is left, so that
        # none is there when its turn comes.
        if entry is not None:
            self._drop(entry, entry.size)
        self._make_room(min(size, self.capacity_bytes))
        resident = min(size, self.capacity_bytes)
        if resident:
            self._entries[place] = _Entry(resident, dirty=write)
        self._used_bytes += resident
        if write:
            self._dirty_bytes += resident
            self._written_back_bytes += size - resident
        else:
            self._fetched_bytes += size
        return False

    def _make_room(self, size: int) -> None:
        """Drop the least recently used lines until there is room for so many bytes."""
        missing = self._used_bytes + size - self.capacity_bytes
        while missing > 0:
            oldest = next(iter(self._entries))
            entry = self._entries[oldest]
            leaving = min(missing, entry.size)
            self._drop(entry, leaving)
            missing -= leaving
            if not entry.size:
                del self._entries[oldest]

    def _drop(self, entry: _Entry, size: int) -> None:
        """Drop the first lines of an entry; those that are dirty are written back."""
        entry.size -= size
        self._used_bytes -= size
        if entry.dirty:
            self._dirty_bytes -= size
            self._written_back_bytes += size
            if entry.unread:
                self._unread_bytes += size
