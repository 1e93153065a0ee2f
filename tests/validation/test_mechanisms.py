"""Choices made again without the calls they are judged by."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.validation.rows import CallRow
from tests.validation.mechanisms import (
    CHOICES,
    POINTS,
    Alternative,
    Choice,
    best,
    errors,
    group_of,
    named,
    rows,
    simulated,
    study,
)
from tests.validation.replayed import times

RATE = Choice("rate", "910B2", (Alternative("slow"), Alternative("fast"), Alternative("faster")))
LINE = Choice("core", "910B2", (Alternative("0us"), Alternative("1.2us")), line=True)


def call(name: str, work: int) -> CallRow:
    return CallRow(id=name, chip="910B2", call="c", family="F", work=work, time_us=1.0)


def test_a_group_is_predicted_by_what_the_others_choose() -> None:
    """Two calls ask for the fast rate; the third, which asks for the faster one, has no say."""
    fast, faster = [[-0.5], [0.0], [0.3]], [[-0.8], [-0.2], [0.0]]
    table = {
        call("a", 10): np.array(fast),
        call("b", 100): np.array(fast),
        call("c", 1000): np.array(faster),
        call("d", 1001): np.array(faster) / 2,
    }
    found = study(table, [RATE, LINE])
    told = {one.row.id: one.error for one in found.predictions}
    assert told["c"] == pytest.approx(-0.2)
    assert told["d"] == pytest.approx(-0.1), "of one power of ten: left out with c"
    assert found.chosen["F", "910B2", 3] == ("fast", "0.6us")
    table[call("e", 11)] = np.array(faster) * 9
    assert study(table, [RATE, LINE]).chosen["F", "910B2", 2] == ("faster", "0.6us")


def test_what_no_other_call_tells_stands_as_without_any() -> None:
    assert best([np.zeros((1, 1))], [RATE, LINE]) == (0, POINTS // 2)
    line = np.linspace(-1, 0.5, POINTS)[None, :]
    assert best([line], [RATE, LINE]) == (0, 8)
    assert named(LINE, 8) == "0.8us"


def test_a_call_that_a_choice_does_not_move_has_one_place() -> None:
    """The smallest call: launches matter, img2col, groups and a Cast that it has not do not."""
    row = next(row for row in rows("910B2") if row.id == "L001")
    choices = [choice for choice in CHOICES if choice.chip == "910B2"]
    names = ("launch.core", "launch.tiling", "launches of a call with groups")
    chosen = [choice for choice in choices if choice.name in names]
    array = errors(row, chosen)
    assert array.shape == (POINTS, 2, 1)
    assert (np.diff(array, axis=0) > 0).all()
    assert (np.diff(array, axis=1) > 0).all()


def test_choices_hold_what_ships() -> None:
    """The last alternatives are those of the model but for lines, img2col and clearing."""
    row = next(row for row in rows("910B2") if row.id == "L019")
    names = ("weights in groups", "launches of a call with groups", "launch.tiling")
    shipped = [choice.alternatives[-1] for choice in CHOICES if choice.name in names]
    assert simulated(row, shipped) == pytest.approx(times()[row.id])
    first = [choice.alternatives[0] for choice in CHOICES if choice.name in names]
    assert simulated(row, first) < times()[row.id]
    assert simulated(row, shipped) == pytest.approx(times()[row.id]), "what was replaced is back"


def test_calls_of_a_power_of_ten_are_left_out_together() -> None:
    assert group_of(call("a", 10**9)) == group_of(call("b", 9 * 10**9)) == ("F", "910B2", 9)
    assert group_of(call("c", 10**10)) == ("F", "910B2", 10)
