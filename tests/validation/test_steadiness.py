"""Scored kernels whose cores start otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.validation.rows import KernelRow
from npusim.validation.score import is_scored
from npusim.validation.sheet import shipped_sheets
from npusim.validation.simulate import Outcome, simulate_row
from npusim.validation.steadiness import Restarted, restarted, with_notes
from npusim.validation.tables import scorecard


def simulated(ids: tuple[str, ...] = ()) -> list[Outcome]:
    rows = [row for sheet in shipped_sheets() for row in sheet.rows if is_scored(row)]
    return [simulate_row(row, {}) for row in rows if not ids or row.id in ids]


def test_kernels_of_few_tiles_move_little() -> None:
    # With all cores in step these moved by 4 to 22 %.
    found = restarted(simulated(("C109", "C137", "C139", "C154")), {}, seeds=(1,))
    assert len(found) == 4
    assert all(abs(one.moved) < 0.04 for one in found)
    assert sum(one.is_steady for one in found) >= 3


@pytest.mark.slow
def test_at_least_48_of_53_scored_kernels_move_by_less_than_2_percent() -> None:
    found = restarted(simulated(), {})
    assert len(found) == 53
    assert sum(one.is_steady for one in found) >= 48


def test_one_that_moves_gets_a_note_and_a_row() -> None:
    outcomes = simulated(("C137", "C139"))
    steady, moving = outcomes
    assert isinstance(moving.row, KernelRow)
    assert steady.simulated is not None
    assert moving.simulated is not None
    time = moving.simulated.time_us
    found = [
        Restarted(steady, (steady.simulated.time_us * 1.01,)),
        Restarted(moving, (time * 0.95, time)),
    ]
    first, second = with_notes(outcomes, found)
    assert first is steady
    assert second.simulated is not None
    assert second.simulated.notes[-1].endswith("random starts move it by -5.0%")
    assert replace(second.simulated, notes=moving.simulated.notes) == moving.simulated
    table = next(t for t in scorecard(outcomes, again=found) if t.title.startswith("Random"))
    assert "1 of 2" in table.title
    assert [row[0] for row in table.rows] == [moving.row.id, steady.row.id]
