"""A design with more of everything is no slower: each point chooses its tilings anew."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

import npusim

#: How much slower a larger design may be, as tilings are chosen by estimates.
MARGIN = 1.02

L1 = ("256KiB", "512KiB", "1MiB")
HBM = ("0.8TB/s", "1.6TB/s")


@pytest.mark.slow
def test_more_l1_and_more_bandwidth_are_not_slower(tmp_path: Path) -> None:
    rows = npusim.sweep(
        network="resnet18",
        batch=8,
        device="ascend910b2",
        vary={"memories.L1.size": L1, "main_memory.read": HBM},
        store=tmp_path / "points.sqlite",
    ).rows()
    times = {(row["memories.L1.size"], row["main_memory.read"]): row["time_us"] for row in rows}
    assert len(times) == 6
    for less, more in product(times, times):
        if L1.index(less[0]) <= L1.index(more[0]) and HBM.index(less[1]) <= HBM.index(more[1]):
            assert times[more] <= MARGIN * times[less], (less, more)
