"""Ranges of times hold about 80 % of the measured rows that had no say in them."""

from __future__ import annotations

import pytest

from npusim.results.uncertainty import _spreads
from tests.validation.coverage import CLASSES, ends, inside, members, structure


def test_ranges_hold_the_rows_left_out() -> None:
    """Aimed at are 80 %; figures only widen the structural part, which alone is counted here."""
    classes = [members(of) for of in CLASSES]
    held = sum(len(inside(rows, structure)) for rows in classes)
    assert 0.7 <= held / sum(map(len, classes)) <= 0.9


@pytest.mark.parametrize("of", CLASSES, ids="-".join)
def test_spreads_that_ship_are_those_of_all_rows(of: tuple[str, str]) -> None:
    assert _spreads()[of] == pytest.approx(ends(members(of).values()), abs=0.02)
