"""The fast engine's memory system: L2 residency and shared links, compiled.

The same rules as ``l2.py`` and ``fabric.py``, which say why; here on flat int64 arrays.

L2: a block has the clock value of its last access (``stamp``, 0 if absent) and masks of valid
and dirty sectors. ``aged_key``/``aged_block`` are a heap with one entry per resident block, whose
key is its stamp when it was last looked at: a lower bound. The least recent block is on top as
soon as the top's key is its true stamp, so an access costs one store and only evictions pay.

Links: a class has a heap of (finishing point, transfer) in ``finish``/``member``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.isa.base import RATE_BITS
from npusim.timing.jit import compiled

IntArray = npt.NDArray[np.int64]

#: Scalars of an L2, in its array ``info``.
CACHED, BLOCK_SHIFT, SECTOR_SHIFT, CAPACITY, LINES, CLOCK = range(6)
L2_SCALARS = 6

#: Rows of the table of blocks: clock of a block's last access (0: absent), masks of its sectors.
STAMP, VALID, DIRTY = range(3)

#: What one access costs, in an array of three.
HIT, FETCHED, EVICTED = range(3)

#: Columns of the table of classes; the uses of the four links follow.
CAP, COUNT, RATE, DRAINED, USES = range(5)
LINKS = 4
CLASS_COLUMNS = USES + LINKS

NEVER = 1 << 62

#: Masks of the lowest 0 to 64 sectors, as signed integers.
ONES = np.array([(1 << n) - 1 for n in range(64)] + [-1], dtype=np.int64)


@compiled
def bits(mask: int) -> int:
    """Number of set bits of a signed 64-bit mask."""
    x = mask - ((mask >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (x * 0x0101010101010101) >> 56


@compiled
def push(keys: IntArray, values: IntArray, count: int, key: int, value: int) -> None:
    """Add an entry to a heap of ``count`` entries."""
    at = count
    while at > 0:
        up = (at - 1) >> 1
        if keys[up] <= key:
            break
        keys[at] = keys[up]
        values[at] = values[up]
        at = up
    keys[at] = key
    values[at] = value


@compiled
def sink(keys: IntArray, values: IntArray, count: int, key: int, value: int) -> None:
    """Replace the top of a heap of ``count`` entries."""
    at = 0
    while True:
        down = 2 * at + 1
        if down >= count:
            break
        if down + 1 < count and keys[down + 1] < keys[down]:
            down += 1
        if keys[down] >= key:
            break
        keys[at] = keys[down]
        values[at] = values[down]
        at = down
    keys[at] = key
    values[at] = value


@compiled
def admit(info: IntArray, lines: IntArray, aged: IntArray, block: int) -> int:
    """Give ``block`` a line now; returns the dirty bytes of the one dropped for it."""
    count, clock = info[LINES], info[CLOCK]
    push(aged[0], aged[1], count, clock, block)
    info[LINES] = count + 1
    lines[STAMP, block] = clock
    if count + 1 <= info[CAPACITY]:
        return 0
    return int(evict(info, lines, aged) << info[SECTOR_SHIFT])


@compiled
def evict(info: IntArray, lines: IntArray, aged: IntArray) -> int:
    """Drop the least recently used block; returns its dirty sectors."""
    count = info[LINES]
    while True:
        block = aged[1, 0]
        if lines[STAMP, block] == aged[0, 0]:
            break
        sink(aged[0], aged[1], count, lines[STAMP, block], block)
    dirty = bits(lines[DIRTY, block])
    lines[STAMP, block] = lines[VALID, block] = lines[DIRTY, block] = 0
    count -= 1
    sink(aged[0], aged[1], count, aged[0, count], aged[1, count])
    info[LINES] = count
    return dirty


@compiled
def touch(
    info: IntArray,
    lines: IntArray,
    aged: IntArray,
    place: tuple[int, int, int, int, int],
    write: bool,
    cost: IntArray,
) -> None:
    """Access ``place``: first block of the tensor, offset, rows, bytes per row, pitch.

    ``cost`` gets the bytes hit, fetched and evicted.
    """
    _, offset, rows, row_bytes, pitch = place
    cost[HIT] = cost[FETCHED] = cost[EVICTED] = 0
    if not info[CACHED]:
        cost[EVICTED if write else FETCHED] = rows * row_bytes
        return
    block = 1 << info[BLOCK_SHIFT]
    # Rows that repeat alike in every block are looked up a block at a time.
    even = rows > 1 and 0 < pitch <= block and pitch & (pitch - 1) == 0
    if even and (offset & (pitch - 1)) + row_bytes <= pitch:
        touch_blocks(info, lines, aged, place, write, cost)
    else:
        touch_rows(info, lines, aged, place, write, cost)


@compiled
def sectors(info: IntArray, first: int, end: int) -> int:
    """Mask of the sectors that bytes first..end of a block touch."""
    small = info[SECTOR_SHIFT]
    low = first >> small
    return int(ONES[((end + (1 << small) - 1) >> small) - low] << low)


@compiled
def touch_blocks(
    info: IntArray,
    lines: IntArray,
    aged: IntArray,
    place: tuple[int, int, int, int, int],
    write: bool,
    cost: IntArray,
) -> None:
    """``touch`` for a pitch that is a power of two, and rows that stay within it.

    Whole blocks follow each other and have the same sectors touched: two plain loops.
    """
    first_block, offset, rows, row_bytes, pitch = place
    shift = info[BLOCK_SHIFT]
    apart = 0
    while 1 << apart < pitch:
        apart += 1
    each = 1 << (shift - apart)  # rows of a whole block
    start = (offset >> apart) & (each - 1)
    before = min(rows, (each - start) & (each - 1))
    count = (rows - before) >> (shift - apart)
    after = rows - before - count * each
    touch_rows(info, lines, aged, (first_block, offset, before, row_bytes, pitch), write, cost)
    offset += before * pitch
    if count:
        mask, within = 0, offset & (pitch - 1)
        for i in range(each):
            mask |= sectors(info, within + i * pitch, within + i * pitch + row_bytes)
        block = first_block + (offset >> shift)
        whole = (within | row_bytes | pitch) & ((1 << info[SECTOR_SHIFT]) - 1) == 0
        size = count * each * row_bytes
        if not write and present(info, lines, block, count, mask):
            cost[HIT] += size
        elif whole:
            touch_alike(info, lines, aged, (block, count, mask, size), write, cost)
        else:
            part = (first_block, offset, count * each, row_bytes, pitch)
            touch_rows(info, lines, aged, part, write, cost)
        offset += count * each * pitch
    touch_rows(info, lines, aged, (first_block, offset, after, row_bytes, pitch), write, cost)


@compiled
def present(info: IntArray, lines: IntArray, block: int, count: int, mask: int) -> bool:
    """Whether ``count`` blocks all hold the sectors ``mask``; if so they are used now."""
    missing = 0
    for i in range(block, block + count):
        missing |= mask & ~lines[VALID, i]
    if missing != 0:
        return False
    clock = info[CLOCK] + 1
    for i in range(count):
        lines[STAMP, block + i] = clock + i
    info[CLOCK] += count
    return True


@compiled
def touch_alike(
    info: IntArray,
    lines: IntArray,
    aged: IntArray,
    place: tuple[int, int, int, int],
    write: bool,
    cost: IntArray,
) -> None:
    """Access whole sectors, the same of each block: first block, count, sectors, bytes in all."""
    block, count, mask, size = place
    clock, new = info[CLOCK], 0
    for i in range(block, block + count):
        clock += 1
        if lines[STAMP, i] == 0:
            info[CLOCK] = clock
            cost[EVICTED] += admit(info, lines, aged, i)
        lines[STAMP, i] = clock
        missing = mask & ~lines[VALID, i]
        if missing:
            lines[VALID, i] |= mask
            new += bits(missing)
        if write:
            lines[DIRTY, i] |= mask
    info[CLOCK] = clock
    if write:
        cost[HIT] += size
    else:
        cost[FETCHED] += new << info[SECTOR_SHIFT]
        cost[HIT] += size - (new << info[SECTOR_SHIFT])


@compiled
def touch_rows(
    info: IntArray,
    lines: IntArray,
    aged: IntArray,
    place: tuple[int, int, int, int, int],
    write: bool,
    cost: IntArray,
) -> None:
    """``touch``, row by row; adds to ``cost``."""
    first_block, offset, rows, row_bytes, pitch = place
    shift = info[BLOCK_SHIFT]
    clock = info[CLOCK]
    block = -1
    for row in range(rows):
        first = offset + row * pitch
        end = first + row_bytes
        while first < end:
            number = first >> shift
            base = number << shift
            stop = min(end, base + (1 << shift))
            mask = sectors(info, first - base, stop - base)
            if first_block + number != block:
                block = first_block + number
                clock += 1
                if lines[STAMP, block] == 0:
                    info[CLOCK] = clock
                    cost[EVICTED] += admit(info, lines, aged, block)
                lines[STAMP, block] = clock
            missing = mask & ~lines[VALID, block]
            if missing != 0:
                lines[VALID, block] |= mask
            if write:
                lines[DIRTY, block] |= mask
                missing = 0
            new = 0 if missing == 0 else bits(missing) << info[SECTOR_SHIFT]
            cost[FETCHED] += new
            cost[HIT] += max(0, stop - first - new)
            first = stop
    info[CLOCK] = clock


@compiled
def join(
    classes: IntArray, finish: IntArray, member: IntArray, group: int, size: int, who: int
) -> None:
    """Start draining ``size`` bytes of transfer ``who`` in class ``group``."""
    count = classes[group, COUNT]
    if count == 0:
        classes[group, DRAINED] = 0
    key = classes[group, DRAINED] + (size << RATE_BITS)
    push(finish[group], member[group], count, key, who)
    classes[group, COUNT] = count + 1


@compiled
def rerate(classes: IntArray, capacity: IntArray, left: IntArray, limit: IntArray) -> None:
    """Max-min fair rates of all classes; ``left`` and ``limit`` are scratch.

    ``limit`` is one more than the rate a class is limited to, and 0 once it has its rate.
    """
    active = 0
    for link in range(LINKS):
        left[link] = capacity[link]
    for g in range(classes.shape[0]):
        limit[g] = 1 + classes[g, CAP] if classes[g, COUNT] else 0
        active += limit[g] > 0
    while active:
        for link in range(LINKS):
            _limit(classes, left, limit, link)
        level = NEVER
        for g in range(classes.shape[0]):
            if limit[g]:
                level = min(level, limit[g])
        active = _settle(classes, left, limit, level)


@compiled
def _limit(classes: IntArray, left: IntArray, limit: IntArray, link: int) -> None:
    """Limit the classes without a rate to a fair share of what is left of a link."""
    demand = 0
    for g in range(classes.shape[0]):
        if limit[g]:
            demand += classes[g, COUNT] * classes[g, USES + link]
    if demand == 0:
        return
    fair = left[link] // demand
    for g in range(classes.shape[0]):
        if limit[g] and classes[g, USES + link]:
            limit[g] = min(limit[g], fair + 1)


@compiled
def _settle(classes: IntArray, left: IntArray, limit: IntArray, level: int) -> int:
    """Give the classes limited to ``level`` - 1 that rate; returns how many are left."""
    active = 0
    for g in range(classes.shape[0]):
        if limit[g] == level:
            rate = max(1, level - 1)
            classes[g, RATE] = rate
            for link in range(LINKS):
                used = classes[g, COUNT] * classes[g, USES + link] * rate
                left[link] = max(0, left[link] - used)
            limit[g] = 0
        elif limit[g]:
            limit[g] = 1 + classes[g, CAP]
            active += 1
    return active


@compiled
def next_finish(classes: IntArray, finish: IntArray, now: int) -> int:
    """Cycle at which the next part finishes at the present rates, rounded up."""
    best = NEVER
    for g in range(classes.shape[0]):
        if classes[g, COUNT]:
            rate = classes[g, RATE]
            left = finish[g, 0] - classes[g, DRAINED]
            best = min(best, now + (left + rate - 1) // rate)
    return best


class FastL2:
    """Content of an L2 as flat arrays; it survives from kernel to kernel of one call."""

    def __init__(self, spec: Any) -> None:
        self.info = np.zeros(L2_SCALARS, np.int64)
        self.block = spec.block_bytes if spec else 1 << 30
        capacity = max(1, spec.size_bytes // spec.block_bytes) if spec else 1
        self.info[CACHED] = spec is not None
        self.info[BLOCK_SHIFT] = self.block.bit_length() - 1
        self.info[SECTOR_SHIFT] = spec.sector_bytes.bit_length() - 1 if spec else 0
        self.info[CAPACITY] = capacity
        self.lines = np.zeros((3, 0), np.int64)
        self.aged = np.zeros((2, capacity + 2), np.int64)
        self.tensors: dict[str, tuple[int, int]] = {}  # first block, bytes

    def place(self, tensor: str, size: int) -> int:
        """First block of a tensor of ``size`` bytes, which gets its blocks when first named."""
        if tensor not in self.tensors:
            first, blocks = self.lines.shape[1], -(-size // self.block)
            more = np.zeros((3, blocks), np.int64)
            self.lines = np.concatenate([self.lines, more], axis=1)
            self.tensors[tensor] = (first, size)
        first, known = self.tensors[tensor]
        assert size <= known, "a tensor keeps its size from kernel to kernel"
        return first

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""
        place = (self.place(tensor, size), 0, 1, size, 0)
        touch(self.info, self.lines, self.aged, place, False, np.zeros(3, np.int64))

    def content(self) -> list[tuple[str, int, int, int]]:
        """(tensor, block, valid sectors, dirty sectors as bit masks), least recent first."""
        names = {
            first + i: (name, i)
            for name, (first, size) in self.tensors.items()
            for i in range(-(-size // self.block))
        }
        stamps = self.lines[STAMP]
        order = [int(b) for b in np.argsort(stamps, kind="stable") if stamps[b]]
        wide = (1 << 64) - 1
        return [
            (*names[b], int(self.lines[VALID, b]) & wide, int(self.lines[DIRTY, b]) & wide)
            for b in order
        ]
