"""Errors and scores, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from npusim.silicon.rows import CallRow, KernelRow, Unreadable
from npusim.silicon.score import (
    RowPair,
    busy_errors,
    family_scores,
    is_scored,
    mean_time_error,
    pairs,
    rank_correlation,
    score,
    time_error,
)
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import RowOutcome
from tests.tables import rows

Make = Callable[..., RowOutcome]


def test_an_error_is_simulated_over_measured_less_one(make: Make) -> None:
    assert time_error(make("a", 100, 110)) == pytest.approx(0.1)
    assert time_error(make("a", 100, 80)) == pytest.approx(-0.2)
    assert time_error(make("a", None, 80)) is None
    assert time_error(make("a", 0, 80)) is None
    assert time_error(make("a", 100, None)) is None
    assert (
        time_error(
            RowOutcome(Unreadable(id="a", family="F", chip="A3", reason="why"), reason="why")
        )
        is None
    )


def test_busy_times_are_compared_where_both_are_known(make: Make) -> None:
    one = make("a", 1, 1, {"cube": 9.0, "mte1": 3.0}, cube_us=10.0, mte2_us=5.0, mte1_us=0.0)
    assert busy_errors(one) == {"cube": pytest.approx(-0.1)}
    assert busy_errors(make("a", 1, None, cube_us=10.0)) == {}


def test_the_scored_kernels_of_what_ships() -> None:
    kernels, calls = shipped_sheets()
    assert sum(map(is_scored, kernels.rows)) == 53
    assert not any(map(is_scored, calls.rows))


@rows("tests/data/rows/validation.yaml", "what_keeps_a_kernel_from_being_scored", "change")
def test_what_keeps_a_kernel_from_being_scored(
    make: Make, change: dict[str, str | list[str] | None]
) -> None:
    assert is_scored(make("a", 1, 1).row)
    assert not is_scored(make("a", 1, 1, **change).row)
    assert not is_scored(CallRow(id="a", chip="910B1", call="matmul"))


def test_the_score_is_of_scored_kernels_and_tells_drains_that_wait(make: Make) -> None:
    outcomes = [
        make("a", 100, 110, {"fixpipe": 12.0, "cube": 10.0}, fixpipe_us=10.0, cube_us=10.0),
        make("b", 100, 98, {"fixpipe": 5.0}, fixpipe_us=10.0, switches=("norm_template",)),
        make("c", 100, 130),
        make("d", 100, None),
        make("e", 100, 900, op="add"),
    ]
    found = score(outcomes)
    assert [pytest.approx(x) for x in found["time"]] == [3, (0.1 + 0.02 + 0.3) / 3, 0.1]
    means = {"fixpipe": [2, 0.35], "cube": [1, 0.0], "mte1": [0, None], "drains": [1, 0.2]}
    for name, mean in means.items():
        assert [pytest.approx(x) for x in found[name][:2]] == mean, name


def test_every_shape_counts_once_and_loads_where_they_are_the_longest(make: Make) -> None:
    facts = {"op": "gemm", "base_m": 16, "trust": "A", "chip": "A3", "N": 64, "K": 64}
    outcomes = [
        make("a", 100, 110, {"mte2": 80.0}, M=1, cube_us=50.0, mte2_us=100.0, **facts),
        make("b", 100, 130, {"mte2": 90.0}, M=1, cube_us=90.0, mte2_us=80.0, **facts),
        make("c", 100, 100, M=2, **facts),
    ]
    found = score(outcomes)
    assert [pytest.approx(x) for x in found["shapes"]] == [2, 0.1, 0.1]
    assert [pytest.approx(x) for x in found["loads"]] == [1, 0.2, 0.2]
    assert score([])["shapes"] == (0, None, None)


def test_families_count_what_was_compared_declined_and_failed(make: Make) -> None:
    outcomes = [
        make("a", 10, 12),
        make("b", 20, 21),
        make("c", 30, 60),
        make("d", None, 5),
        make("e", 10, None),
        RowOutcome(KernelRow(id="f", chip="A3", op="x", family="G"), reason="r", failed=True),
    ]
    first, second, everything = family_scores(outcomes)
    assert (first.family, first.rows, first.compared, first.declined, first.failed) == (
        "F", 5, 3, 1, 0,
    )  # fmt: skip
    assert first.mean == pytest.approx((0.2 + 0.05 + 1.0) / 3)
    assert first.median == pytest.approx(0.2)
    assert first.rank == pytest.approx(1.0)
    assert (second.family, second.failed, second.mean, second.rank) == ("G", 1, None, None)
    assert (everything.family, everything.rows, everything.failed) == ("all", 6, 1)
    assert mean_time_error(outcomes) == everything.mean == first.mean


@rows(
    "tests/data/rows/validation.yaml",
    "rank_correlation_against_worked_examples",
    "left, right, expected",
)
def test_rank_correlation_against_worked_examples(
    left: list[float], right: list[float], expected: float | None
) -> None:
    found = rank_correlation(left, right)
    assert found == (None if expected is None else pytest.approx(expected))


def test_pairs_are_all_twos_of_a_group_on_one_chip(make: Make) -> None:
    outcomes = [
        make("a", 100, 50, pair="p"),
        make("b", 90, 55, pair="p"),
        make("c", 101, 40, pair="p"),
        make("d", 50, 50, pair="p", chip="A3"),
        make("e", 50, 50, pair="q"),
        make("f", 25, None, pair="q"),
        make("g", None, 1, pair="q"),
        make("h", 1, 1),
    ]
    ab, ac, bc, ef = pairs(outcomes)
    assert ab == RowPair("p", "a", "b", 0.9, 1.1, decisive=True, right=False)
    assert (ac.first, ac.second, ac.decisive, ac.right) == ("a", "c", False, None)
    assert bc == RowPair("p", "b", "c", 101 / 90, 40 / 55, decisive=True, right=False)
    assert ef == RowPair("q", "e", "f", 0.5, None, decisive=True, right=None)


def test_a_pair_that_does_not_move_is_wrong_and_one_that_does_is_right(make: Make) -> None:
    still = pairs([make("a", 100, 50, pair="p"), make("b", 90, 50, pair="p")])
    moved = pairs([make("a", 100, 50, pair="p"), make("b", 90, 49.9, pair="p")])
    assert [pair.right for pair in (*still, *moved)] == [False, True]
