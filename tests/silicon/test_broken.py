"""No measured row is faster than its bound; where one is, a figure or the row is named."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.results.facts.least import LeastTime
from npusim.silicon.broken import ROW, broken, over_least
from npusim.silicon.rows import KernelRow, Row, SimulatedRow
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import CHIPS, RowOutcome, simulate_row
from npusim.silicon.tables import scorecard
from tests.sampled import slow_if

pytestmark = pytest.mark.compiled


@cache
def rows(chip: str = "") -> list[Row]:
    """The measured kernels and calls that ship, of one chip or of all."""
    every = [row for sheet in shipped_sheets() for row in sheet.rows]
    return [row for row in every if isinstance(row, Row) and chip in ("", row.chip)]


@cache
def shipped(chip: str = "") -> list[RowOutcome]:
    return [simulate_row(row, {}) for row in rows(chip)]


@pytest.mark.parametrize("chip", ["950PR", slow_if(True, "")])
def test_no_measured_row_is_faster_than_its_bound(chip: str) -> None:
    """But for one, whose cube is busy for 7 % less than its multiply-adds need: its own fault."""
    found = broken(shipped(chip))
    assert [(one.row.id, one.is_busy, one.faults) for one in found] == [("C087", True, (ROW,))]
    table = next(one for one in scorecard(shipped(chip)) if one.title.startswith("Measured below"))
    assert table.rows == (("C087", "CS-MM", "950PR", "18.479", "19.859", "pipe M", ROW),)


@pytest.mark.slow
def test_the_bounds_that_hold_are_no_idle_ones() -> None:
    """Silicon comes near: half of the large products take less than twice their bound."""
    assert len(over_least(shipped())) > 50
    assert 1 < median(over_least(shipped())) < 2
    nearest: dict[tuple[str, str], float] = {}
    for outcome in shipped():
        for least in outcome.simulated.bounds if outcome.simulated is not None else ():
            share = least.us / (outcome.row.time_us or 1e9)
            key = outcome.row.chip, least.figure
            nearest[key] = max(nearest.get(key, 0.0), share)
    assert nearest["950PR", "cube.rates.fp16"] > 0.99
    assert nearest["950PR", "l2.read_at_most"] > 0.8
    assert nearest["A3", "l2.read_at_most"] > 0.7


#: Figures at half their speed, one at a time, by the chip whose device has them.
PLANTED: dict[str, dict[str, str]] = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "planted_figures.yaml").read_text(encoding="utf-8")
)
CASES = [(chip, *case) for chip, slow in PLANTED.items() for case in slow.items()]


@pytest.mark.parametrize(
    ("chip", "figure", "slow"), [slow_if(case[0] != "A3", *case) for case in CASES]
)
def test_a_figure_that_is_too_slow_is_found_and_named(chip: str, figure: str, slow: str) -> None:
    found = broken(simulate_row(row, {figure: slow}) for row in rows(chip))
    named = [one.faults for one in found if one.faults != (ROW,)]
    assert named
    assert all(figure in names for names in named)


def test_twenty_planted_figures_are_tried_and_each_is_half_as_fast() -> None:
    assert len(CASES) >= 20
    for chip, figure, slow in CASES:
        device = load_device(CHIPS[chip])
        was, now = (figures(one)[figure].value for one in (device, device.replace(figure, slow)))
        speed = [(Fraction(one[0] * one[1] * one[2], one[3]) if isinstance(one, tuple) else one)
                 for one in (was, now)]  # fmt: skip
        assert float(speed[0] / speed[1]) == pytest.approx(2, rel=1e-3), (chip, figure)


def test_one_row_alone_is_at_fault_and_several_accuse_a_figure() -> None:
    """Of four cubes that should have been busy for 10 us, one was for 8: it, or the figure."""

    def outcome(name: str, busy: float, time_us: float = 20, **columns: Any) -> RowOutcome:
        row = KernelRow(id=name, chip="A3", op="gemm", time_us=time_us, cube_us=busy, **columns)
        least = (
            LeastTime(10, "pipe M", "", "cube.rates.fp16"),
            LeastTime(9, "L2 read", "", "l2.read"),
        )
        return RowOutcome(row, SimulatedRow(20, {}, bounds=least))

    usual = [outcome(name, 10.5) for name in "abc"]
    assert broken(usual) == []
    (alone,) = broken([*usual, outcome("d", 8)])
    assert (alone.row.id, alone.faults, alone.measured_us) == ("d", (ROW,), 8)
    assert broken([*usual, outcome("d", 8, trust="C")]) == []
    assert broken([*usual, outcome("d", 8, busy_statistic="median")]) == []
    both = broken([outcome("d", 8), outcome("e", 8.2), *usual])
    assert {one.faults for one in both} == {("cube.rates.fp16", "clock")}
    (fast, also) = broken([*usual, outcome("f", 10.5, time_us=8)])
    assert [fast.faults, also.faults] == [("cube.rates.fp16", "clock"), ("l2.read",)]
