"""Scored kernels whose cores start otherwise.

Constants that lie near the end of their range say why.

A time range holds the structural part of its class.

Ranges of times hold about 80 % of the measured rows that had no say in them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.base.records import replace
from npusim.silicon.constants import Constant, load_constants
from npusim.silicon.rows import KernelRow
from npusim.silicon.score import is_scored
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import RowOutcome, simulate_row
from tools.scorecard.starts import Restarted, restarted, with_notes
from tools.scorecard.tables import scorecard


def simulated(ids: tuple[str, ...] = ()) -> list[RowOutcome]:
    rows = [row for sheet in shipped_sheets() for row in sheet.rows if is_scored(row)]
    return [simulate_row(row, {}) for row in rows if not ids or row.id in ids]


def test_kernels_of_few_tiles_move_little() -> None:
    # With all cores in step these moved by 4 to 22 %.
    found = restarted(simulated(("C109", "C137", "C139", "C154")), {}, seeds=(1,))
    assert len(found) == 4
    assert all(abs(one.moved) < 0.04 for one in found)
    assert sum(one.is_steady for one in found) >= 3


@pytest.mark.slow
def test_at_least_47_of_53_scored_kernels_move_by_less_than_2_percent() -> None:
    found = restarted(simulated(), {})
    assert len(found) == 53
    assert sum(one.is_steady for one in found) >= 47


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
    table = next(t for t in scorecard(outcomes, restarted=found) if t.title.startswith("Random"))
    assert "1 of 2" in table.title
    assert [row[0] for row in table.rows] == [moving.row.id, steady.row.id]


PAGE = Path(__file__).parents[2] / "docs" / "model" / "calibration.md"

#: Share of a range that counts as its end.
NEAR = 0.1


def near_an_end(constant: Constant) -> bool:
    share = (constant.shipped - constant.low) / (constant.high - constant.low)
    return min(share, 1 - share) <= NEAR


def explained() -> set[tuple[str, str]]:
    """Constants and devices of the table of the page."""
    text = PAGE.read_text(encoding="utf-8").partition("## Constants near the end")[2]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return {(row[1].strip(" `"), row[2].strip()) for row in rows}


def test_constants_near_the_end_of_their_range_say_why() -> None:
    listed = [*load_constants(), *load_constants(part="calls")]
    near = {(one.path, ", ".join(one.devices)) for one in listed if near_an_end(one)}
    assert near == explained()


@pytest.mark.parametrize(("place", "near"), [(0, True), (3, False), (10, True)])
def test_what_near_means(place: int, near: bool) -> None:
    first = load_constants()[0]
    low, high = first.low, first.high
    shipped = low + (high - low) * place / 10
    moved = Constant(first.path, first.devices, first.kind, low, high, shipped)
    assert near_an_end(moved) == near
