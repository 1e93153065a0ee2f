"""Bytes of global memory that the L2 holds: sectors, grouped in blocks under LRU.

A sector (a line of the cache, or a few) is present or not, and clean or dirty; a miss fetches
whole sectors from main memory. Age is kept per block, a larger aligned piece of a tensor. After
each access the least recent blocks leave until the sectors fit again; their dirty sectors are
written back. A sector counts as present from the moment its transfer begins, so a second reader
in flight hits; that it does not end before that transfer is for an engine to see to (``Fetches``).
Writing allocates without fetching.

Without an L2 every byte read comes from main memory and every byte written goes there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from npusim.machine.device.parts import L2Cache


class Access(NamedTuple):
    """Bytes of one access.

    ``hit`` of those asked for were in the L2; ``fetched`` came from main memory (whole sectors,
    so hit + fetched may exceed the request); ``evicted`` dirty bytes were written back.
    """

    hit: int
    fetched: int
    evicted: int


class L2State:
    """Content of the L2 (None: there is none); it survives from kernel to kernel of one call."""

    def __init__(self, spec: L2Cache | None) -> None:
        self.cached = spec is not None
        self.block = spec.block_bytes if spec else 1
        self.sector = spec.sector_bytes if spec else 1
        self.capacity = spec.size_bytes // spec.sector_bytes if spec else 0  # in sectors
        self.used = 0
        self.lines: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()  # valid, dirty

    def touch(
        self, tensor: str, offset: int, rows: int, row_bytes: int, pitch: int, *, write: bool
    ) -> Access:
        """Access ``rows`` pieces of a tensor; returns what it costs and updates residency."""
        if not self.cached:
            size = rows * row_bytes
            return Access(0, 0, size) if write else Access(0, size, 0)
        hit = fetched = evicted = 0
        for row in range(rows):
            first, end = offset + row * pitch, offset + row * pitch + row_bytes
            while first < end:
                number = first // self.block
                stop = min(end, (number + 1) * self.block)
                mask = self._mask(first - number * self.block, stop - number * self.block)
                new = self._line(tensor, number, mask, write=write)
                hit += max(0, stop - first - new)
                fetched += new
                first = stop
        while self.used > self.capacity:
            valid, dirty = self.lines.popitem(last=False)[1]
            self.used -= valid.bit_count()
            evicted += dirty.bit_count() * self.sector
        return Access(hit, fetched, evicted)

    def store(
        self, tensor: str, offset: int, rows: int, row_bytes: int, pitch: int, many: int, apart: int
    ) -> int:
        """Write ``many`` such places ``apart`` bytes from each other; returns the bytes evicted."""
        places = ((tensor, offset + i * apart, rows, row_bytes, pitch) for i in range(many))
        return sum(self.touch(*place, write=True).evicted for place in places)

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""
        self.touch(tensor, 0, 1, size, 0, write=False)

    def content(self) -> list[tuple[str, int, int, int]]:
        """(tensor, block, valid sectors, dirty sectors as bit masks), least recent first."""
        return [(*key, *masks) for key, masks in self.lines.items()]

    def resident(self) -> Mapping[str, int]:
        """Bytes by tensor, in whole sectors; tensors without any may be missing."""
        sums: Counter[str] = Counter()
        for (tensor, _), (valid, _) in self.lines.items():
            sums[tensor] += valid.bit_count() * self.sector
        return sums

    def hold(self, content: Sequence[tuple[str, int, int, int]]) -> None:
        """Hold what another holds, by its ``content``; this one is empty."""
        self.lines.update({(name, block): (valid, dirty) for name, block, valid, dirty in content})
        self.used = sum(valid.bit_count() for _, _, valid, _ in content)

    def _mask(self, first: int, stop: int) -> int:
        """Bits of the sectors that bytes first..stop of a block touch."""
        low, high = first // self.sector, -(-stop // self.sector)
        return ((1 << (high - low)) - 1) << low

    def _line(self, tensor: str, number: int, mask: int, *, write: bool) -> int:
        """Use the sectors ``mask`` of one block; returns the bytes fetched for them."""
        key = (tensor, number)
        valid, dirty = self.lines.get(key, (0, 0))
        missing = mask & ~valid
        self.used += missing.bit_count()
        self.lines[key] = (valid | mask, dirty | mask if write else dirty)
        self.lines.move_to_end(key)
        return 0 if write else missing.bit_count() * self.sector


class Fetches:
    """Transfers under way that fetch something, and what each of them reads, in sectors."""

    def __init__(self, sector: int) -> None:
        self.sector = sector
        self.under_way: dict[int, tuple[str, set[int]]] = {}

    def awaited(
        self, transfer: int, access: Access, tensor: str, offset: int, *shape: int
    ) -> list[int]:
        """Note what a transfer reads; returns those it must not end before.

        ``shape`` are rows, their bytes and their pitch. A read that hits something waits for all
        that fetch something and read one of the same sectors.
        """
        rows, size, pitch = shape
        starts, sector = [offset + row * pitch for row in range(rows)], self.sector
        sectors = {
            s for begin in starts for s in range(begin // sector, -(-(begin + size) // sector))
        }
        others = self.under_way.items() if access.hit else ()
        awaited = [
            n for n, (name, all_) in others if name == tensor and not all_.isdisjoint(sectors)
        ]
        if access.fetched:
            self.under_way[transfer] = tensor, sectors
        return awaited

    def landed(self, transfer: int) -> None:
        """Note that a transfer has ended."""
        self.under_way.pop(transfer, None)
