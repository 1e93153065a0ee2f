"""Residency in the L2: sectors, LRU, write-back."""

from __future__ import annotations

import npusim
from npusim.base.records import replace
from npusim.machine.device.parts import L2Cache
from npusim.machine.timing.l2 import Access, L2State


def spec(blocks: int) -> L2Cache:
    """`tiny`: blocks of 4 KiB, sectors of 512 B."""
    shipped = npusim.load_device("tiny").l2
    assert shipped is not None
    return replace(shipped, size_bytes=blocks * shipped.block_bytes)


def l2(blocks: int = 256) -> L2State:
    return L2State(spec(blocks))


def read(state: L2State, offset: int, size: int, rows: int = 1, pitch: int = 0) -> Access:
    return state.touch("x", offset, rows, size, pitch, write=False)


def test_first_read_misses_second_hits() -> None:
    state = l2()
    assert read(state, 0, 10_240) == Access(0, 10_240, 0)
    assert read(state, 0, 10_240) == Access(10_240, 0, 0)


def test_a_block_is_filled_sector_by_sector() -> None:
    # Reading the first half of a block brings only that half: the rest still misses.
    state = l2()
    assert read(state, 0, 2048).fetched == 2048
    assert read(state, 0, 4096) == Access(2048, 2048, 0)


def test_a_short_read_fetches_its_whole_sector() -> None:
    state = l2()
    assert read(state, 100, 64) == Access(0, 512, 0)
    assert read(state, 0, 512) == Access(512, 0, 0)
    assert read(state, 500, 24) == Access(0, 512, 0)  # sector 1 is new


def test_rows_are_looked_up_one_by_one() -> None:
    state = l2()
    assert read(state, 0, 512, rows=4, pitch=4096).fetched == 4 * 512
    assert read(state, 8192, 512).hit == 512
    assert read(state, 8704, 512).fetched == 512


def test_least_recently_used_block_goes_first() -> None:
    state = l2(blocks=2)
    read(state, 0, 4096)
    read(state, 4096, 4096)
    read(state, 0, 4096)  # block 0 is younger now
    read(state, 8192, 4096)  # pushes out block 1
    assert read(state, 0, 4096).hit == 4096
    assert read(state, 4096, 4096).fetched == 4096


def test_capacity_counts_sectors_not_the_blocks_they_lie_in() -> None:
    state = l2(blocks=2)  # 16 sectors
    read(state, 0, 512, rows=16, pitch=4096)  # one in each of 16 blocks
    assert read(state, 0, 512, rows=16, pitch=4096).fetched == 0
    read(state, 512, 512)  # too many by one: block 1 is the oldest, block 0 was just used
    assert read(state, 4096, 512).fetched == 512


def test_dirty_sectors_are_written_back_clean_ones_dropped() -> None:
    state = l2(blocks=1)
    state.touch("y", 0, 1, 1024, 0, write=True)
    assert read(state, 0, 4096).evicted == 1024
    assert state.touch("z", 0, 1, 512, 0, write=False).evicted == 0


def test_written_data_is_read_from_the_l2() -> None:
    state = l2()
    assert state.touch("x", 0, 1, 4096, 0, write=True) == Access(4096, 0, 0)
    assert read(state, 0, 4096).hit == 4096


def test_preload_makes_resident() -> None:
    state = l2()
    state.preload("x", 10_000)
    assert read(state, 0, 10_000).fetched == 0
