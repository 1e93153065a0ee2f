"""Times of measured rows as the files of ``tests/replay`` have them: nothing is simulated again."""

from __future__ import annotations

from functools import cache

from npusim.silicon.rows import CallRow, KernelRow
from npusim.silicon.sheet import shipped_sheets
from tests.replay.digests import ROWS_FILE, Timed, read


@cache
def times() -> dict[str, float]:
    """Simulated microseconds by row; rows that are declined have none."""
    lines = read(ROWS_FILE, Timed).values()
    return {line.row: float(line.time_us) for line in lines if line.time_us != "declined"}


@cache
def ratios() -> dict[KernelRow | CallRow, float]:
    """Measured over simulated time of every row that has both."""
    rows = (row for sheet in shipped_sheets() for row in sheet.rows)
    return {
        row: row.time_us / times()[row.id]
        for row in rows
        if isinstance(row, KernelRow | CallRow) and row.time_us and row.id in times()
    }
