"""The fast engine's L2, compiled: the rules of ``timing/l2.py`` on arrays.

A block has the clock value of its last access (``stamp``, 0 if absent) and masks of valid and
dirty sectors, so an access costs a few stores. Who is least recent is asked by evictions only:
``aged`` is a list of blocks sorted by stamp, made anew when it is used up. An entry whose stamp
has changed since is passed over, for it and every block that came later are younger than the
whole list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from npusim.base.integers import IntArray, round_up
from npusim.machine.device.parts import L2Cache
from npusim.machine.timing.fast.jit import compiled, entry
from npusim.machine.timing.fast.state import COST, ENTRY, L2_INFO, Cache, Records, empty
from npusim.machine.timing.links import waiting
from npusim.machine.timing.outcome import Held


class Place(NamedTuple):
    """Where an access goes: first block of the tensor, then bytes as in ``GmRegion``."""

    block: int
    offset: int
    rows: int
    row_bytes: int
    pitch: int


#: Most bits of a digit in the sort by age.
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
def make_room(cache: Cache) -> int:
    """Drop the least recent blocks until the sectors fit; returns the dirty bytes dropped."""
    info = cache.info[0]
    dirty = 0
    while info.used > info.capacity:
        if info.aged >= info.aged_end:
            sort_by_age(cache)
        entry = cache.aged[np.uint64(info.aged)]
        info.aged += 1
        block = np.uint64(entry.who)
        if cache.stamp[block] == entry.key:
            info.used -= bits(cache.valid[block])
            if cache.dirty[block]:
                dirty += bits(cache.dirty[block])
            cache.stamp[block] = cache.valid[block] = cache.dirty[block] = 0
    return int(dirty << info.sector_shift)


@compiled
def sort_by_age(cache: Cache) -> None:
    """Fill ``aged`` with every resident block, least recent first: a radix sort."""
    info, aged = cache.info[0], cache.aged
    count, low, high = 0, info.clock, 0
    for block in range(cache.stamp.size):
        stamp = cache.stamp[block]
        if stamp:
            aged[np.uint64(count)].key = stamp
            aged[np.uint64(count)].who = block
            count += 1
            low = min(low, stamp)
            high = max(high, stamp)
    width = 4  # bits of a digit: as many values as there are blocks, within reason
    while width < MOST_DIGIT_BITS and 1 << width < count:
        width += 1
    source, target, shift = aged, cache.spare, 0
    while (high - low) >> shift:
        sort_by_digit(source, target, cache.counts, count, (low, shift, (1 << width) - 1))
        source, target = target, source
        shift += width
    if (shift // width) % 2:
        for i in range(count):
            aged[i].key = cache.spare[i].key
            aged[i].who = cache.spare[i].who
    info.aged, info.aged_end = 0, count


@compiled
def sort_by_digit(
    source: Records, target: Records, counts: IntArray, count: int, digit: tuple[int, int, int]
) -> None:
    """Sort ``count`` entries into ``target`` by (stamp - low) >> shift & mask."""
    low, shift, mask = digit
    for i in range(mask + 1):
        counts[i] = 0
    for i in range(count):
        counts[np.uint64(((source[i].key - low) >> shift) & mask)] += 1
    place = 0
    for i in range(mask + 1):
        place, counts[i] = place + counts[i], place
    for i in range(count):
        value = np.uint64(((source[i].key - low) >> shift) & mask)
        at = counts[value]
        counts[value] = at + 1
        target[np.uint64(at)].key = source[i].key
        target[np.uint64(at)].who = source[i].who


@entry
def touch(cache: Cache, place: Place, write: bool, costs: Records) -> None:
    """Access ``place``; the one element of ``costs`` gets its bytes."""
    info, cost = cache.info[0], costs[0]
    cost.hit = cost.fetched = cost.evicted = 0
    if not info.cached:
        if write:
            cost.evicted = place.rows * place.row_bytes
        else:
            cost.fetched = place.rows * place.row_bytes
        return
    pitch = place.pitch
    # Rows that repeat alike in every block are looked up a block at a time.
    even = place.rows > 1 and 0 < pitch <= 1 << info.block_shift and pitch & (pitch - 1) == 0
    if even and (place.offset & (pitch - 1)) + place.row_bytes <= pitch:
        touch_blocks(cache, place, write, costs)
    elif not touch_sectors(cache, place, write, costs):
        touch_rows(cache, place, write, costs)
    if info.used > info.capacity:
        cost.evicted = make_room(cache)


@compiled
def sectors(small: int, first: int, end: int) -> int:
    """Mask of the sectors of 2**small bytes that bytes first..end of a block touch."""
    low = first >> small
    return int(ONES[((end + (1 << small) - 1) >> small) - low] << low)


@compiled
def touch_blocks(cache: Cache, place: Place, write: bool, costs: Records) -> None:
    """``touch`` for a pitch that is a power of two, and rows that stay within it.

    Whole blocks follow each other and have the same sectors touched: two plain loops.
    """
    info = cache.info[0]
    first_block, offset, rows, row_bytes, pitch = place
    shift, small = info.block_shift, info.sector_shift
    apart = 0
    while 1 << apart < pitch:
        apart += 1
    each = 1 << (shift - apart)  # rows of a whole block
    start, within = (offset >> apart) & (each - 1), offset & (pitch - 1)
    # A sector belongs to one row only: then a block's bytes are those of its sectors.
    whole = each == 1 or (within | row_bytes | pitch) & ((1 << small) - 1) == 0
    before = min(rows, (each - start) & (each - 1)) if whole else rows
    count = (rows - before) >> (shift - apart)
    after = rows - before - count * each
    touch_rows(cache, Place(first_block, offset, before, row_bytes, pitch), write, costs)
    offset += before * pitch
    if count:
        mask = 0
        for i in range(each):
            mask |= sectors(small, within + i * pitch, within + i * pitch + row_bytes)
        block = first_block + (offset >> shift)
        touch_alike(cache, (block, count, mask, each * row_bytes), write, costs)
        offset += count * each * pitch
    touch_rows(cache, Place(first_block, offset, after, row_bytes, pitch), write, costs)


@compiled
def touch_alike(
    cache: Cache, place: tuple[int, int, int, int], write: bool, costs: Records
) -> None:
    """Access the same sectors of each block: first block, count, sectors, bytes of a block.

    Parts of arrays are taken before the loops: Numba then knows that no index is negative, and
    LLVM treats several blocks at once.
    """
    info, cost = cache.info[0], costs[0]
    block, count, mask, piece = place
    stamp, valid = cache.stamp[block : block + count], cache.valid[block : block + count]
    clock, used, hit, small = info.clock + 1, 0, 0, info.sector_shift
    for i in range(count):
        stamp[i] = clock + i
        new = bits(mask & ~valid[i])
        valid[i] |= mask
        used += new
        hit += max(0, piece - (new << small))
    info.clock += count
    info.used += used
    if write:
        dirty = cache.dirty[block : block + count]
        for i in range(count):
            dirty[i] |= mask
        cost.hit += count * piece
    else:
        cost.hit += hit
        cost.fetched += used << small


@compiled
def touch_sectors(cache: Cache, place: Place, write: bool, costs: Records) -> bool:
    """``touch`` of rows of whole sectors, each inside one block; False where they are not such."""
    info, cost = cache.info[0], costs[0]
    shift, small = info.block_shift, info.sector_shift
    up, step, width = (1 << small) - 1, place.pitch >> small, place.row_bytes >> small
    block, sector = place.block + (place.offset >> shift), place.offset >> small
    within, most = (1 << (shift - small)) - 1, (1 << (shift - small)) - width
    if (place.offset | place.pitch | place.row_bytes) & up or most < 0:
        return False
    first = sector & within
    if width > 1:
        for row in range(place.rows):
            if (first + row * step) & within > most:
                return False
    mask, high, used = ONES[width], shift - small, 0
    last = (first + (place.rows - 1) * step) >> high
    valid, stamp = cache.valid[block : block + last + 1], cache.stamp[block : block + last + 1]
    # The blocks follow one another, or there is one for each row.
    clock, apart = info.clock + 1, step > within
    for row in range(place.rows):
        at = first + row * step
        here, wanted = np.uint64(at >> high), mask << (at & within)
        stamp[here] = clock + (row if apart else at >> high)
        there = valid[here]
        used += bits(wanted & ~there)
        valid[here] = there | wanted
    info.clock += place.rows if apart else last + 1
    if write:
        dirty = cache.dirty[block : block + last + 1]
        for row in range(place.rows):
            at = first + row * step
            dirty[np.uint64(at >> high)] |= mask << (at & within)
    else:
        cost.fetched += used << small
    info.used += used
    cost.hit += place.rows * place.row_bytes - (0 if write else used << small)
    return True


@compiled
def touch_rows(cache: Cache, place: Place, write: bool, costs: Records) -> None:
    """``touch``, row by row; adds to ``costs``."""
    info, cost = cache.info[0], costs[0]
    shift, small = info.block_shift, info.sector_shift
    within, up = (1 << shift) - 1, (1 << small) - 1
    clock, used, hit, block = info.clock, 0, 0, -1
    for row in range(place.rows):
        first = place.offset + row * place.pitch
        end = first + place.row_bytes
        while first < end:
            start = first & within
            size = min(end - first, within + 1 - start)
            low = start >> small
            width = ((start + size + up) >> small) - low
            mask = ONES[width] << low
            if place.block + (first >> shift) != block:
                block = place.block + (first >> shift)
                clock += 1
                cache.stamp[block] = clock
            missing = mask & ~cache.valid[block]
            new = 0
            if missing:
                new = width if missing == mask else bits(missing)
                cache.valid[block] |= mask
                used += new
            if write:
                cache.dirty[block] |= mask
                hit += size
            else:
                hit += max(0, size - (new << small))
            first += size
    info.clock = clock
    info.used += used
    cost.hit += hit
    if not write:
        cost.fetched += used << small


class FastL2:
    """Content of an L2 as flat arrays; it survives from kernel to kernel of one call.

    One that has room for all tensors together drops nothing, whatever more it might hold: what is
    timed with it rests on this room, and not on its size.
    """

    def __init__(self, spec: L2Cache | None) -> None:
        self._spec = spec
        self._most = 0  # bytes in whole sectors of all tensors
        self.block = spec.block_bytes if spec else 1 << 30
        info = empty(L2_INFO, 1)
        info["cached"] = spec is not None
        info["block_shift"] = self.block.bit_length() - 1
        info["sector_shift"] = spec.sector_bytes.bit_length() - 1 if spec else 0
        info["waiting"] = waiting(spec)
        self.cache = Cache(
            info=info,
            stamp=np.zeros(0, np.int64),
            valid=np.zeros(0, np.int64),
            dirty=np.zeros(0, np.int64),
            aged=empty(ENTRY, 0),
            spare=empty(ENTRY, 0),
            counts=np.zeros(1 << MOST_DIGIT_BITS, np.int64),
        )
        self.tensors: dict[str, tuple[int, int]] = {}  # first block, bytes

    @classmethod
    def of(cls, spec: L2Cache | None, held: Held) -> FastL2:
        """One that holds what another held."""
        made = cls(spec)
        firsts = np.array([made.place(*tensor) for tensor in held.sizes], np.int64)
        info, cache = made.cache.info, made.cache
        tensors, blocks, valid, dirty = held.blocks
        places, count = firsts[tensors] + blocks, tensors.size
        cache.stamp[places] = np.arange(1, count + 1)
        cache.valid[places], cache.dirty[places] = valid, dirty
        info["used"] = int(np.unpackbits(valid.view(np.uint8)).sum())
        info["clock"] = count
        return made

    def held(self) -> Held:
        """What it holds, as data."""
        names = sorted(self.tensors)
        there = np.flatnonzero(self.cache.stamp)
        there = there[np.argsort(self.cache.stamp[there])]  # no two blocks have one stamp
        # Tensors lie one after another; of those that begin at one block only the last has any.
        begun = sorted((first, names.index(name)) for name, (first, _) in self.tensors.items())
        firsts, ranks = np.array(begun, np.int64).reshape(-1, 2).T
        owner = np.searchsorted(firsts, there, side="right") - 1
        masks = self.cache.valid[there], self.cache.dirty[there]
        blocks = np.array([ranks[owner], there - firsts[owner], *masks], np.int64)
        return Held(tuple((name, self.tensors[name][1]) for name in names), blocks)

    def place(self, tensor: str, size: int) -> int:
        """First block of a tensor of ``size`` bytes, which gets its blocks when first named."""
        if tensor not in self.tensors:
            first, blocks = self.cache.stamp.size, -(-size // self.block)
            grow = ("stamp", "valid", "dirty", "aged", "spare")
            longer = {name: _longer(getattr(self.cache, name), blocks) for name in grow}
            self.cache = self.cache._replace(**longer)
            self.tensors[tensor] = (first, size)
            self._make_capacity(size)
        first, known = self.tensors[tensor]
        assert size <= known, "a tensor keeps its size from kernel to kernel"
        return first

    def _make_capacity(self, size: int) -> None:
        """Set the sectors that are held at most, as a tensor of so many bytes comes."""
        spec, info = self._spec, self.cache.info
        if spec is None:
            return
        self._most += round_up(size, spec.sector_bytes)
        room = self._most if spec.has_room(self._most) else spec.size_bytes
        info["capacity"] = room // spec.sector_bytes

    def preload(self, tensor: str, size: int) -> None:
        """Make the first ``size`` bytes of a tensor resident and clean."""
        place = Place(self.place(tensor, size), 0, 1, size, 0)  # which may replace the cache
        touch(self.cache, place, False, empty(COST, 1))

    def resident(self) -> Mapping[str, int]:
        """Bytes by tensor, in whole sectors; tensors without any may be missing."""
        if not self.cache.info["used"]:
            return {}
        valid, shift = self.cache.valid, int(self.cache.info["sector_shift"][0])
        ends = {name: first - (-size // self.block) for name, (first, size) in self.tensors.items()}
        masks = {name: valid[first : ends[name]] for name, (first, _) in self.tensors.items()}
        return {
            name: int(np.unpackbits(mask.view(np.uint8)).sum()) << shift
            for name, mask in masks.items()
        }

    def content(self) -> list[tuple[str, int, int, int]]:
        """(tensor, block, valid sectors, dirty sectors as bit masks), least recent first."""
        return self.held().content()


def _longer(array: Any, more: int) -> Any:
    """Return a copy of an array or of records with ``more`` zeros at the end."""
    longer = np.zeros(array.size + more, array.dtype)
    longer[: array.size] = array
    return longer
