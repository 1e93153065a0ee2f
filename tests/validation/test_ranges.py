"""Constants that lie near the end of their range say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.validation.constants import Constant, load_constants

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
