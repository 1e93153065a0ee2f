"""The L2 of the compiled engine holds what that of the reference holds."""

from __future__ import annotations

import numpy as np
import pytest

import npusim
from npusim.base.records import replace
from npusim.machine.timing.fast.l2 import FastL2, Place, touch
from npusim.machine.timing.fast.state import COST, empty
from npusim.machine.timing.l2 import L2State


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("unit", [512, 4096, 96])
def test_both_engines_hold_the_same(unit: int, seed: int) -> None:
    """Rows of whole sectors, of whole blocks and of neither, at every pitch."""
    shipped = npusim.load_device("tiny").l2
    assert shipped is not None
    small = replace(shipped, size_bytes=60 * shipped.block_bytes)
    rng, size = np.random.default_rng(seed), 256 * unit * 40
    slow, fast, cost = L2State(small), FastL2(small), empty(COST, 1)
    first = fast.place("x", size)
    shapes = set()
    for _ in range(300):
        rows, row = int(rng.integers(1, 40)), unit * int(rng.choice([1, 1, 2, 3, 8, 9]))
        step = int(rng.choice([0, 1, 2, 3, 7, 8, 9, 16, 17, 64]))
        pitch = unit * step
        offset = unit * int(rng.integers(0, (size - row - (rows - 1) * pitch) // unit + 1))
        write = bool(rng.integers(2))
        got = slow.touch("x", offset, rows, row, pitch, write=write)
        touch(fast.cache, Place(first, offset, rows, row, pitch), write, cost)
        assert tuple(got) == (cost["hit"][0], cost["fetched"][0], cost["evicted"][0])
        assert slow.used == fast.cache.info["used"][0]
        shapes.add((write, got.hit > 0, got.fetched > 0, got.evicted > 0))
    assert slow.content() == fast.content()
    assert len(shapes) > 5
