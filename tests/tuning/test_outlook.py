"""Which candidates are worth a simulation, by what simulations of others said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from npusim.call.choice import SLIGHT, WORTHWHILE
from npusim.call.outlook import APART, COMMON, OWN, RATES, Outlook


@dataclass(frozen=True)
class Tiling:
    base_n: int = 64
    unit_flag: bool = False
    form: str = "window"
    cores: int = 0


ALIKE, OTHER = Tiling(unit_flag=True), Tiling(base_n=16, form="phases")


def share_of_error(rate: float) -> float:
    """The part of an error that another candidate is expected to have."""
    return float((COMMON**2 + OWN**2 * np.exp(-rate)) / (COMMON**2 + OWN**2 * (1 + APART**2)))


def test_the_best_estimate_comes_first_and_nothing_is_left_in_the_end() -> None:
    outlook = Outlook([102.0, 100.0], [Tiling(), ALIKE])
    assert outlook.promising(1, 0.001, 0.0) == 1
    outlook.leave_out(1)
    assert outlook.promising(1, 0.001, 0.0) == 0
    outlook.learn(0, 101.0)
    assert outlook.promising(9, 0.0, 0.0) is None


def test_alike_tilings_have_more_of_an_error_in_common() -> None:
    outlook = Outlook([100.0, 101.0, 106.0], [Tiling(), ALIKE, OTHER])
    outlook.learn(0, 130.0)
    mean, spread = outlook.expected()
    near = share_of_error(RATES["unit_flag"])
    far = share_of_error(4 * RATES["base_n"] + RATES["form"])
    assert near > 0.98
    assert far < 0.7
    assert mean == pytest.approx(np.log([130, 101 * 1.3**near, 106 * 1.3**far]), abs=1e-3)
    assert spread[0] < spread[1] < spread[2]


def test_fewer_cores_are_not_alike_and_none_given_are_more_than_any() -> None:
    """All but "all" were taken as one: of six simulated for a product all had 11 cores, not 16."""
    outlook = Outlook([100.0] * 4, [Tiling(cores=cores) for cores in (11, 12, 16, 0)])
    outlook.learn(0, 115.0)
    mean, _ = outlook.expected()
    assert list(np.argsort(mean)[::-1]) == [0, 1, 2, 3]


def test_one_unlike_the_best_is_simulated_if_it_may_win() -> None:
    close = Outlook([100.0, 100.2, 101.0], [Tiling(), ALIKE, OTHER])
    close.learn(0, 100.0)
    assert close.promising(1, WORTHWHILE, SLIGHT) == 2, (
        "of the one much like the best little is unknown"
    )
    close.learn(2, 101.0)
    assert close.promising(1, WORTHWHILE, SLIGHT) is None
    assert close.promising(3, WORTHWHILE, SLIGHT) == 1  # so many in any case
    far = Outlook([100.0, 100.5, 112.0], [Tiling(), ALIKE, OTHER])
    far.learn(0, 100.0)
    assert far.promising(1, WORTHWHILE, SLIGHT) is None


def test_where_estimates_are_far_out_more_is_worth_a_look() -> None:
    found = []
    for time in (100.0, 150.0):
        outlook = Outlook([100.0, 101.0, 102.0], [Tiling(), ALIKE, OTHER])
        outlook.learn(0, time)
        found.append(outlook.expected()[1][2])
    assert found[1] > 3 * found[0]
