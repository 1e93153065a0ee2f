"""Whether two reads share a sector, in closed form, against sets of sectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.machine.timing.fast.fetches import describe, meet
from npusim.machine.timing.fast.l2 import Place
from npusim.machine.timing.fast.state import FETCH, empty

SMALL = 5  # sectors of 32 bytes


def sectors(read: Place) -> set[int]:
    starts = (read.offset + row * read.pitch for row in range(read.rows))
    ends = ((at, at + read.row_bytes) for at in starts)
    return {s for first, end in ends for s in range(first >> SMALL, -(-end >> SMALL))}


def place(draw: np.random.Generator, pitch: int, most: int) -> Place:
    limits = ((0, 170 * most), (1, most), (1, 200))
    offset, rows, size = (int(draw.integers(*ends)) for ends in limits)
    return Place(0, offset, rows, size, pitch)


def described(read: Place) -> Any:
    found = empty(FETCH, 1).view(np.recarray)  # as plain Python reads it, where nothing compiles
    describe(found[0], 0, read, SMALL)
    return found[0]


def test_reads_that_share_a_sector_are_found() -> None:
    """Rows of one pitch and of several, whole sectors apart or not, overlapping or not."""
    draw = np.random.default_rng(7)
    outcomes = []
    for _ in range(4000):
        pitch = int(draw.integers(1, 20)) * (8, 32)[int(draw.integers(2))]
        wide = 32 * int(draw.integers(1, 20))
        most = (9, 60)[int(draw.integers(2))]  # rows, also more than the period of a pitch
        one = place(draw, pitch, most)
        other = place(draw, (pitch, wide, 0)[int(draw.integers(3))], most)
        want = not sectors(one).isdisjoint(sectors(other))
        assert meet(described(one), described(other), SMALL) == want, (one, other)
        outcomes.append(want)
    assert 0.2 < np.mean(outcomes) < 0.8
