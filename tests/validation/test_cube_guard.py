"""No kernel of a measured call keeps the cube busier than silicon can."""

from __future__ import annotations

import pytest

from npusim.device.catalog import load_device
from npusim.validation.call_rows import simulate_call_row
from npusim.validation.rows import CallRow
from npusim.validation.sheet import shipped_sheets

ROWS = {row.id: row for sheet in shipped_sheets() for row in sheet.rows}

#: Cube cycles of a core for a 16 x 16 x 16 product in 16 bits, and cores, of a 910B2.
_CORES, _MACS, _CLOCK = 24, 4096, 1.8e9


@pytest.mark.parametrize("name", ["L034", "L035", "L036", "L037"])
def test_large_filter_gradients_leave_the_cube_idle_as_measured(name: str) -> None:
    """Silicon keeps it at 45 to 65 % in the kernel alone; the call has conversions beside it."""
    row = ROWS[name]
    assert isinstance(row, CallRow)
    device = load_device("ascend910b2")
    simulated = simulate_call_row(row, device).time_us
    assert row.work is not None
    least = row.work / 2 / (_CORES * _MACS * _CLOCK) * 1e6
    assert row.time_us is not None
    assert 0.2 < least / simulated < 0.7
    assert abs(least / simulated - least / row.time_us) < 0.2
