"""The fast engine's L2, compiled: the rules of ``timing/l2.py`` on flat int64 arrays.

A block has the clock value of its last access (``STAMP``, 0 if absent) and masks of valid and
dirty sectors, so an access costs a few stores. Who is least recent is asked by evictions only:
``aged`` is a list of blocks sorted by stamp, made anew when it is used up. An entry whose stamp
has changed since is passed over, for it and every block that came later are younger than the
whole list.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.device.spec import L2Cache
from npusim.timing.fast.jit import compiled

IntArray = npt.NDArray[np.int64]

#: Scalars of an L2, in its array ``info``. USED, CAPACITY: sectors. AGED, AGED_END: what is left of
#: the sorted list.
CACHED, BLOCK_SHIFT, SECTOR_SHIFT, CAPACITY, USED, CLOCK, AGED, AGED_END = range(8)
L2_SCALARS = 8

#: Rows of the table of blocks: clock of a block's last access (0: absent), masks of its sectors.
STAMP, VALID, DIRTY = range(3)

#: What an access costs, in bytes: in the L2, from main memory, to it, of all sectors looked at.
HIT, FETCHED, EVICTED, TOUCHED = range(4)
COSTS = 4

MOST_DIGIT_BITS = 11

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
def make_room(info: IntArray, lines: IntArray, aged: IntArray) -> int:
    """Drop the least recent blocks until the sectors fit; returns the dirty bytes dropped."""
    dirty = 0
    while info[USED] > info[CAPACITY]:
        if info[AGED] >= info[AGED_END]:
            sort_by_age(info, lines, aged)
        at = info[AGED]
        info[AGED] += 1
        block = aged[1, at]
        if lines[STAMP, block] == aged[0, at]:
            info[USED] -= bits(lines[VALID, block])
            if lines[DIRTY, block]:
                dirty += bits(lines[DIRTY, block])
            lines[STAMP, block] = lines[VALID, block] = lines[DIRTY, block] = 0
    return int(dirty << info[SECTOR_SHIFT])


@compiled
def sort_by_age(info: IntArray, lines: IntArray, aged: IntArray) -> None:
    """Fill ``aged`` with every resident block, least recent first: a radix sort.

    Rows 0 and 1 are stamps and blocks, 2 and 3 the same while sorting, 4 counts of digits.
    """
    count, low, high = 0, info[CLOCK], 0
    for block in range(lines.shape[1]):
        stamp = lines[STAMP, block]
        if stamp:
            aged[0, count] = stamp
            aged[1, count] = block
            count += 1
            low = min(low, stamp)
            high = max(high, stamp)
    width = 4  # bits of a digit: as many values as there are blocks, within reason
    while width < MOST_DIGIT_BITS and 1 << width < count:
        width += 1
    source = shift = 0
    while (high - low) >> shift:
        sort_by_digit(aged, source, count, (low, shift, (1 << width) - 1))
        source = 2 - source
        shift += width
    if source == 2:
        for i in range(count):
            aged[0, i] = aged[2, i]
            aged[1, i] = aged[3, i]
    info[AGED], info[AGED_END] = 0, count


@compiled
def sort_by_digit(aged: IntArray, source: int, count: int, digit: tuple[int, int, int]) -> None:
    """Sort the rows at ``source`` into the other two by (stamp - low) >> shift & mask."""
    low, shift, mask = digit
    target = 2 - source
    for i in range(mask + 1):
        aged[4, i] = 0
    for i in range(count):
        aged[4, ((aged[source, i] - low) >> shift) & mask] += 1
    place = 0
    for i in range(mask + 1):
        place, aged[4, i] = place + aged[4, i], place
    for i in range(count):
        value = ((aged[source, i] - low) >> shift) & mask
        at = aged[4, value]
        aged[4, value] = at + 1
        aged[target, at], aged[target + 1, at] = aged[source, i], aged[source + 1, i]


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

    ``cost`` gets its bytes.
    """
    _, offset, rows, row_bytes, pitch = place
    cost[HIT] = cost[FETCHED] = cost[EVICTED] = cost[TOUCHED] = 0
    if not info[CACHED]:
        cost[EVICTED if write else FETCHED] = cost[TOUCHED] = rows * row_bytes
        return
    block = 1 << info[BLOCK_SHIFT]
    # Rows that repeat alike in every block are looked up a block at a time.
    even = rows > 1 and 0 < pitch <= block and pitch & (pitch - 1) == 0
    if even and (offset & (pitch - 1)) + row_bytes <= pitch:
        touch_blocks(info, lines, place, write, cost)
    else:
        touch_rows(info, lines, place, write, cost)
    if info[USED] > info[CAPACITY]:
        cost[EVICTED] = make_room(info, lines, aged)


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
    touch_rows(info, lines, (first_block, offset, before, row_bytes, pitch), write, cost)
    offset += before * pitch
    if count:
        mask, within = 0, offset & (pitch - 1)
        for i in range(each):
            mask |= sectors(info, within + i * pitch, within + i * pitch + row_bytes)
        block = first_block + (offset >> shift)
        # A sector belongs to one row only: then a block's bytes are those of its sectors.
        whole = each == 1 or (within | row_bytes | pitch) & ((1 << info[SECTOR_SHIFT]) - 1) == 0
        piece = each * row_bytes
        cost[TOUCHED] += (count * bits(mask)) << info[SECTOR_SHIFT]
        if holds(lines, DIRTY if write else VALID, block, count, mask):
            use(info, lines, block, count)
            cost[HIT] += count * piece
        elif whole and not write and lacks(lines, block, count, mask):
            for i in range(block, block + count):
                lines[VALID, i] |= mask
            use(info, lines, block, count)
            info[USED] += count * bits(mask)
            cost[FETCHED] += (count * bits(mask)) << info[SECTOR_SHIFT]
        elif whole:
            touch_alike(info, lines, (block, count, mask, piece), write, cost)
        else:
            touched = cost[TOUCHED]
            part = (first_block, offset, count * each, row_bytes, pitch)
            touch_rows(info, lines, part, write, cost)
            cost[TOUCHED] = touched
        offset += count * each * pitch
    touch_rows(info, lines, (first_block, offset, after, row_bytes, pitch), write, cost)


@compiled
def holds(lines: IntArray, row: int, block: int, count: int, mask: int) -> bool:
    """Whether ``count`` blocks have all of ``mask`` in a row of their masks."""
    missing = mask & ~lines[row, block]
    if missing == 0:
        for i in range(block, block + count):
            missing |= mask & ~lines[row, i]
    return bool(missing == 0)


@compiled
def lacks(lines: IntArray, block: int, count: int, mask: int) -> bool:
    """Whether ``count`` blocks are all resident and hold nothing of ``mask``."""
    some = mask & lines[VALID, block]
    if some == 0:
        for i in range(block, block + count):
            some |= (mask & lines[VALID, i]) | (lines[STAMP, i] == 0)
    return bool(some == 0)


@compiled
def use(info: IntArray, lines: IntArray, block: int, count: int) -> None:
    """Use ``count`` resident blocks, one after another, now."""
    clock = info[CLOCK] + 1
    for i in range(count):
        lines[STAMP, block + i] = clock + i
    info[CLOCK] += count


@compiled
def touch_alike(
    info: IntArray,
    lines: IntArray,
    place: tuple[int, int, int, int],
    write: bool,
    cost: IntArray,
) -> None:
    """Access the same sectors of each block: first block, count, sectors, bytes of a block."""
    block, count, mask, piece = place
    clock, used, hit, full = info[CLOCK], 0, 0, bits(mask)
    for i in range(block, block + count):
        clock += 1
        lines[STAMP, i] = clock
        missing = mask & ~lines[VALID, i]
        new = 0
        if missing:
            lines[VALID, i] |= mask
            new = full if missing == mask else bits(missing)
            used += new
        if write:
            lines[DIRTY, i] |= mask
            hit += piece
        else:
            hit += max(0, piece - (new << info[SECTOR_SHIFT]))
    info[CLOCK] = clock
    info[USED] += used
    cost[HIT] += hit
    if not write:
        cost[FETCHED] += used << info[SECTOR_SHIFT]


@compiled
def touch_rows(
    info: IntArray,
    lines: IntArray,
    place: tuple[int, int, int, int, int],
    write: bool,
    cost: IntArray,
) -> None:
    """``touch``, row by row; adds to ``cost``."""
    first_block, offset, rows, row_bytes, pitch = place
    shift, small = info[BLOCK_SHIFT], info[SECTOR_SHIFT]
    within, up = (1 << shift) - 1, (1 << small) - 1
    clock, used, hit, touched = info[CLOCK], 0, 0, 0
    block, seen = -1, 0
    for row in range(rows):
        first = offset + row * pitch
        end = first + row_bytes
        while first < end:
            start = first & within
            size = min(end - first, within + 1 - start)
            low = start >> small
            width = ((start + size + up) >> small) - low
            mask = ONES[width] << low
            if first_block + (first >> shift) != block:
                block = first_block + (first >> shift)
                clock += 1
                lines[STAMP, block] = clock
                seen = 0
                touched += width
            elif mask & ~seen:
                touched += bits(mask & ~seen)
            seen |= mask
            missing = mask & ~lines[VALID, block]
            new = 0
            if missing:
                new = width if missing == mask else bits(missing)
                lines[VALID, block] |= mask
                used += new
            if write:
                lines[DIRTY, block] |= mask
                hit += size
            else:
                hit += max(0, size - (new << small))
            first += size
    info[CLOCK] = clock
    info[USED] += used
    cost[HIT] += hit
    cost[TOUCHED] += touched << small
    if not write:
        cost[FETCHED] += used << small


class FastL2:
    """Content of an L2 as flat arrays; it survives from kernel to kernel of one call."""

    def __init__(self, spec: L2Cache | None) -> None:
        self.info = np.zeros(L2_SCALARS, np.int64)
        self.block = spec.block_bytes if spec else 1 << 30
        self.info[CACHED] = spec is not None
        self.info[BLOCK_SHIFT] = self.block.bit_length() - 1
        self.info[SECTOR_SHIFT] = spec.sector_bytes.bit_length() - 1 if spec else 0
        self.info[CAPACITY] = spec.size_bytes // spec.sector_bytes if spec else 0
        self.lines = np.zeros((3, 0), np.int64)
        self.aged = np.zeros((5, 1 << MOST_DIGIT_BITS), np.int64)
        self.tensors: dict[str, tuple[int, int]] = {}  # first block, bytes

    def place(self, tensor: str, size: int) -> int:
        """First block of a tensor of ``size`` bytes, which gets its blocks when first named."""
        if tensor not in self.tensors:
            first, blocks = self.lines.shape[1], -(-size // self.block)
            more = np.zeros((3, blocks), np.int64)
            self.lines = np.concatenate([self.lines, more], axis=1)
            if self.lines.shape[1] > self.aged.shape[1]:
                wider = np.zeros((5, self.lines.shape[1]), np.int64)
                wider[:, : self.aged.shape[1]] = self.aged
                self.aged = wider
            self.tensors[tensor] = (first, size)
        first, known = self.tensors[tensor]
        assert size <= known, "a tensor keeps its size from kernel to kernel"
        return first

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""
        place = (self.place(tensor, size), 0, 1, size, 0)
        touch(self.info, self.lines, self.aged, place, False, np.zeros(COSTS, np.int64))

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
