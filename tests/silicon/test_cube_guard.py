"""No kernel of a measured call keeps the cube busier than silicon can."""

from __future__ import annotations

import pytest

from npusim.base.dtypes import dtype
from npusim.machine.device.catalog import load_device
from npusim.silicon.call_rows import _run
from npusim.silicon.rows import CallRow
from npusim.silicon.simulate import CHIPS
from tests.silicon.replayed import times
from tools.scorecard.mechanisms import calls

ROWS = {row.id: row for chip in ("910B2", "950PR") for row in calls(chip)}

#: Silicon that leaves the cube at most so busy over a whole call, and what no simulated kernel of
#: such a call may then exceed: beside it are launches and conversions, which explain the rest.
LEFT_AT, MOST = 0.6, 0.9


def peak(row: CallRow) -> float:
    """Multiply-adds a cycle of all cubes of the chip."""
    device = load_device(CHIPS[row.chip])
    assert device.cube is not None
    return float(device.cube.macs_per_cycle(dtype(row.dtype).name)) * device.count("cube")


def share(row: CallRow) -> float:
    """Of the measured time, how long the cubes of the chip take for the work at their peak."""
    assert row.work
    assert row.time_us
    clock_hz = load_device(CHIPS[row.chip]).clock_hz
    return float(row.work / 2 / peak(row) / clock_hz * 1e6 / row.time_us)


@pytest.mark.parametrize("name", ROWS)
def test_kernels_leave_the_cube_idle_where_silicon_does(name: str) -> None:
    row = ROWS[name]
    if share(row) > LEFT_AT:
        pytest.skip(f"silicon keeps the cube busy for {share(row):.0%}")
    result, _ = _run(row, load_device(CHIPS[row.chip]), "production")
    busy = [run.macs / (peak(row) * run.cycles) for run in result.runs]
    assert max(busy) > 0, "no kernel has products"
    assert max(busy) <= MOST


@pytest.mark.parametrize("name", ["L034", "L035", "L036", "L037"])
def test_large_filter_gradients_leave_the_cube_idle_as_measured(name: str) -> None:
    """Silicon keeps it at 45 to 65 % in the kernel alone; the call has conversions beside it."""
    row = ROWS[name]
    assert row.time_us
    simulated = share(row) * row.time_us / times()[name]
    assert 0.2 < simulated < 0.7
    assert abs(simulated - share(row)) < 0.2
