"""Addresses of values in main memory: memory of a value that nothing reads any more is used again.

Frameworks plan memory so, in a static plan of a graph or from a caching allocator: a block that is
free goes to the next value of its size. The lines that it left dirty in the L2 are then
overwritten and never written back. Here a block is not cut or joined with others, so that values
of another size take new memory; where a framework does that, it writes back even less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from npusim.base.integers import round_up
from npusim.networks.plan.tasks import StoredValue

#: Bytes that blocks are multiples of, as in the allocators of PyTorch and MindSpore.
GRANULE = 512


class Block(NamedTuple):
    """Memory for one value at a time, by number."""

    number: int
    size_bytes: int


class Addresses:
    """The blocks of values while the launches of a step are gone through.

    A value gets a block when it is first used, and ``after`` its last launch the block is free.
    Values of ``kept`` names, and those that are there before the step (what is read before it is
    written), have theirs for good. A result of the optimizer lies where what it ``updates`` lies.
    """

    def __init__(
        self,
        launches: Iterable[tuple[Collection[StoredValue], Collection[StoredValue]]],
        updates: Mapping[str, str],
        kept: Collection[str],
    ) -> None:
        self._updates = updates
        self._count = 0
        self._blocks: dict[StoredValue, Block] = {}
        self._free: dict[int, list[Block]] = defaultdict(list)
        last_uses: dict[StoredValue, int] = {}
        written = set[StoredValue]()
        #: Values whose blocks are never free.
        self._lasting = set[StoredValue]()
        for number, (reads, writes) in enumerate(launches):
            self._lasting |= {self.home(stored) for stored in reads} - written
            written |= {self.home(stored) for stored in writes}
            for stored in (*reads, *writes):
                last_uses[self.home(stored)] = number
        self._lasting |= {home for home in last_uses if home.name in kept}
        #: Values by the number of the launch that is the last to use them.
        self._ending: dict[int, list[StoredValue]] = defaultdict(list)
        for home, number in last_uses.items():
            self._ending[number].append(home)

    def home(self, stored: StoredValue) -> StoredValue:
        """The value itself, or the one that it updates."""
        return StoredValue(self._updates.get(stored.name, stored.name), stored.format)

    def block(self, stored: StoredValue, size_bytes: int) -> Block:
        """The block of a value, which gets one where it has none."""
        home = self.home(stored)
        if home not in self._blocks:
            size = round_up(size_bytes, GRANULE)
            free = self._free[size]
            if not free:
                self._count += 1
                free.append(Block(self._count, size))
            self._blocks[home] = free.pop()
        return self._blocks[home]

    def after(self, number: int) -> list[Block]:
        """Blocks of values that no launch behind this one uses; all but lasting ones are free."""
        ending = self._ending[number]
        for home in ending:
            if home not in self._lasting:
                block = self._blocks[home]
                self._free[block.size_bytes].append(block)
        return [self._blocks[home] for home in ending]
