"""Choices made again without the calls they are judged by.

Errors of measured calls do not follow a feature of the layer: else a mechanism is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from statistics import fmean

import numpy as np
import pytest

from npusim.silicon.rows import CallRow
from tests.silicon.replayed import ratios, times
from tools.scorecard.mechanisms import (
    CHOICES,
    FAMILIES,
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


#: By how much the mean errors of both halves of a family may differ.
MOST = 0.1


def _prod(sizes: tuple[int, ...] | None) -> int:
    assert sizes
    return prod(sizes)


def _weights(row: CallRow) -> int:
    size = 4 if row.dtype == "float32" else 2
    if row.call == "matmul":
        return size * (row.K or 0) * (row.Ncols or 0)
    return size * (row.Cout or 0) * (row.Cin or 0) // (row.groups or 1) * _prod(row.kernel)


def _channels(row: CallRow) -> int:
    return max((row.Cin or 0) % 16, (row.Cout or 0) % 16)


#: What kernels and conversions might treat otherwise than we do; from the second value on.
FEATURES: dict[str, Callable[[CallRow], int]] = {
    "odd planes": lambda row: _prod(row.spatial) % 16 > 0,
    "channels below a block": lambda row: _channels(row) > 0,
    "filter volume": lambda row: _prod(row.kernel),
    "bytes of weights": _weights,
}

#: Families and features whose errors differ today, and why; a reason is not an excuse.
KNOWN = {
    ("CONV2D-FWD", "910B2", "odd planes"): "L008 and L010 (+27, +24 %), kept in fp32, are aligned",
    ("CONV2D-FWD", "910B2", "channels below a block"): "the same two calls",
    ("DW3D", "950PR", "bytes of weights"): "their loads (DN2NZ) have no published rate",
    ("DW-CONV2D-FWD", "910B2", "bytes of weights"): "two small calls are 14 and 20 % too slow",
}  # fmt: skip

#: Calls that are beside all others of their family, each with its reason; no feature explains them.
BESIDE = {
    "L016": "measured at 39 us, four times the call before it: another tiling or kernel",
    "L035": "of 195 x 97 channels and dilation 2: its tiling is asked of a closed library",
    "L045": "the same layer on a 950",
    "L050": "a product of 1,040 columns, slower than that of 1,024 x 1,024 x 1,024",
}


def halves(
    calls: dict[CallRow, float], feature: Callable[[CallRow], int]
) -> tuple[list[float], list[float]] | None:
    """The errors of calls with less and with more of a feature; None where they do not differ."""
    values = sorted(map(feature, calls))
    cut = values[len(values) // 2]
    if cut == values[0]:  # most have the least
        cut = min((value for value in values if value > cut), default=cut + 1)
    low = [error for row, error in calls.items() if feature(row) < cut]
    high = [error for row, error in calls.items() if feature(row) >= cut]
    return (low, high) if min(len(low), len(high)) > 1 else None


def slope(family: str, chip: str, feature: str) -> float:
    """By how much the mean error rises from calls with less of a feature to those with more."""
    calls = {
        row: 1 / ratios()[row] - 1
        for row in rows(chip)
        if row.family == family and row.id not in BESIDE
    }
    if (family == "GEMM" and feature != "bytes of weights") or not calls:
        return 0.0
    found = halves(calls, FEATURES[feature])
    return fmean(found[1]) - fmean(found[0]) if found else 0.0


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("chip", ["910B2", "950PR"])
@pytest.mark.parametrize("family", FAMILIES)
def test_errors_do_not_follow_a_feature(family: str, chip: str, feature: str) -> None:
    """An exception that is none any more must go."""
    found = abs(slope(family, chip, feature))
    assert (found > MOST) == ((family, chip, feature) in KNOWN), f"{found:.3f}"


def test_halves_differ_by_the_feature() -> None:
    few = {CallRow(id=str(n), chip="c", call="m", M=n): n / 10 for n in range(4)}
    assert halves(few, lambda row: row.M or 0) == ([0.0, 0.1], [0.2, 0.3])
    assert halves(few, lambda row: (row.M or 0) > 1) == ([0.0, 0.1], [0.2, 0.3])
    assert halves(few, lambda row: 1) is None
    assert halves(few, lambda row: (row.M or 0) > 2) is None
