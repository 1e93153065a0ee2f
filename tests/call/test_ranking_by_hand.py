"""What a ranking keeps, of rows that are written by hand: nothing is estimated or simulated."""

from __future__ import annotations

import pytest

from npusim.call.rank import Ranked, Ranking
from npusim.compat.tuners import product
from npusim.machine.device.catalog import load_device

#: Cycles of each row: at least, low, as estimated, high, at most.
ROWS = {
    "first": (80, 90, 100, 110, 130),
    "behind": (105, 140, 150, 160, 200),
    "on the limit": (130, 150, 155, 170, 210),
    "slower": (131, 135, 160, 180, 220),
}


def ranking() -> Ranking:
    rows = tuple(
        Ranked(place=place, tiling=name, least=least, low=low, cycles=cycles, high=high, most=most)
        for place, (name, (least, low, cycles, high, most)) in enumerate(ROWS.items())
    )
    return Ranking(product(64, 64, 64), load_device("tiny"), rows, (), 0.9)


def test_certain_drops_only_what_takes_at_least_more_than_another_takes_at_most() -> None:
    """Intervals hold in nine of ten cases; least and most are never passed."""
    assert ranking().keep(certain=True) == ["first", "behind", "on the limit"]


@pytest.mark.parametrize(
    ("share", "kept"), [(0.25, ["first"]), (0.5, ["first", "behind"]), (1.0, [*ROWS])]
)
def test_a_share_is_kept_by_estimates(share: float, kept: list[str]) -> None:
    assert ranking().keep(share) == kept
