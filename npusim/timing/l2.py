"""Which bytes of global memory the L2 holds: blocks under LRU, valid by sectors.

A block is the unit of allocation and of LRU; inside it a bit per sector says what was fetched
or written. A miss fetches whole sectors from main memory. A sector counts as present from the
moment its transfer begins, so a second reader of a block in flight hits. Writing allocates
without fetching; evicting a dirty block writes its dirty sectors back.

Without an L2 every byte read comes from main memory and every byte written goes there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from npusim.device.spec import L2Cache


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
        self.capacity = max(1, spec.size_bytes // spec.block_bytes) if spec else 1
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
                new, out = self._line(tensor, number, mask, write=write)
                hit += max(0, stop - first - new)
                fetched += new
                evicted += out
                first = stop
        return Access(hit, fetched, evicted)

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""
        self.touch(tensor, 0, 1, size, 0, write=False)

    def content(self) -> list[tuple[str, int, int, int]]:
        """(tensor, block, valid sectors, dirty sectors as bit masks), least recent first."""
        return [(*key, *masks) for key, masks in self.lines.items()]

    def _mask(self, first: int, stop: int) -> int:
        """Bits of the sectors that bytes first..stop of a block touch."""
        low, high = first // self.sector, -(-stop // self.sector)
        return ((1 << (high - low)) - 1) << low

    def _line(self, tensor: str, number: int, mask: int, *, write: bool) -> tuple[int, int]:
        """(bytes fetched, bytes written back) for the sectors ``mask`` of one block."""
        key = (tensor, number)
        evicted = 0
        valid, dirty = self.lines.get(key, (0, 0))
        missing = 0 if write else mask & ~valid
        self.lines[key] = (valid | mask, dirty | mask if write else dirty)
        self.lines.move_to_end(key)
        if len(self.lines) > self.capacity:
            evicted = self.lines.popitem(last=False)[1][1].bit_count() * self.sector
        return missing.bit_count() * self.sector, evicted
