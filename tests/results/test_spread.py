"""How far measured times lie from simulated ones: by hand, of few rows, and of those that ship."""

from __future__ import annotations

from math import exp

import pytest

import npusim
from npusim.problem.work import (
    DEPTH_WISE,
    FILTER_GRADIENT,
    FORWARD,
    KERNEL,
    PRODUCT,
    STEPS,
    step_of,
)
from npusim.results.facts.spread import (
    ENOUGH_ROWS,
    NO_SPREAD,
    LeftOutRow,
    factor,
    left_out_rows,
    spread_among,
    spread_of,
)
from tools.scorecard.coverage import coverage


def rows(work: str, product: str, *ratios: float) -> list[LeftOutRow]:
    """Rows of a class, each a group of its own."""
    return [
        LeftOutRow(f"{work} {product} {place}", product, work, f"{work} {product} {place}", ratio)
        for place, ratio in enumerate(ratios)
    ]


@pytest.mark.parametrize(
    ("count", "place"),
    [(4, 4), (5, 5), (9, 8), (10, 9), (50, 41)],
)
def test_a_factor_is_the_deviation_that_the_next_row_exceeds_one_time_in_five(
    count: int, place: int
) -> None:
    """Of n deviations the next is below the k-th with k / (n + 1), which has to be 80 %."""
    deviations = [place / 100 for place in range(1, count + 1)]
    ratios = [exp(d if number % 2 else -d) for number, d in enumerate(deviations)]
    assert factor(ratios) == pytest.approx(exp(place / 100))
    assert place / (count + 1) >= 0.8 > (place - 1) / (count + 1)


def test_nine_rows_of_a_chip_speak_for_themselves() -> None:
    narrow = rows(FORWARD, "a2", *[1.01] * ENOUGH_ROWS)
    wide = rows(FORWARD, "950", *[1.5] * 4)
    spread = spread_among([*narrow, *wide], "a2", FORWARD)
    assert spread.factor == pytest.approx(1.01)
    assert spread.rows == ENOUGH_ROWS


def test_fewer_are_at_least_as_wide_as_the_class() -> None:
    """Five rows within 1 % are no proof where those of another chip are 20 % off."""
    few = rows(FORWARD, "950", *[1.01] * 5)
    others = rows(FORWARD, "a2", *[1.2] * ENOUGH_ROWS)
    spread = spread_among([*few, *others], "950", FORWARD)
    assert spread.factor == pytest.approx(1.2)
    assert spread.rows == 5
    assert spread_among(few, "950", FORWARD).factor == pytest.approx(1.01)


def test_where_no_row_is_a_chips_all_classes_of_the_sort_count() -> None:
    known = [*rows(FORWARD, "a2", *[1.1] * 10), *rows(FILTER_GRADIENT, "a2", *[1.6] * 30)]
    spread = spread_among(known, "910", FORWARD)
    assert spread.factor == pytest.approx(1.6)
    assert spread.rows == 0
    other_sorts = rows(KERNEL, "a2", *[3.0] * 60)
    assert spread_among([*known, *other_sorts], "910", FORWARD).factor == pytest.approx(1.6)


def test_two_rows_are_no_class() -> None:
    steps = [*rows(STEPS[0], "910", *[1.1] * 10), *rows(STEPS[1], "910", 2.0, 2.0)]
    spread = spread_among(steps, "910", STEPS[1])
    assert spread.factor == pytest.approx(2.0)
    assert spread.rows == 2


def test_a_device_without_a_product_has_none() -> None:
    assert spread_of("", KERNEL) == spread_of("a2", "") == NO_SPREAD
    a = npusim.spec((16, 16), "fp16")
    result = npusim.ops.matmul(a, a, device="tiny")
    assert result.time_range.spread == NO_SPREAD


# -- what ships --------------------------------------------------------------------------------


def test_ranges_hold_the_rows_of_their_class() -> None:
    """80 % are aimed at; classes of fewer rows cannot show it one by one."""
    found = coverage(left_out_rows())
    large = [entry for entry in found if entry.rows >= ENOUGH_ROWS]
    assert len(large) >= 5
    for entry in large:
        assert 0.7 <= entry.alone / entry.rows <= 0.9, entry
    calls = [entry for entry in found if entry.work in (PRODUCT, FORWARD, DEPTH_WISE)]
    inside = sum(entry.with_group for entry in calls)
    assert inside / sum(entry.rows for entry in calls) >= 0.7


def test_a_range_on_a_measured_chip_is_that_of_its_class() -> None:
    """Errors of measured rows are those of the figures, too: these do not widen it again."""
    x, dy, w = (npusim.spec(s, "fp16") for s in ((2, 64, 8, 8), (2, 64, 8, 8), (64, 64, 3, 3)))
    result = npusim.ops.convolution_backward(
        dy, x, w, padding=1, output_mask=(False, True, False), device="ascend910b2"
    )
    found = result.time_range
    assert result.work == FILTER_GRADIENT
    assert found.spread == spread_of("a2", FILTER_GRADIENT)
    assert found.high_us == pytest.approx(result.time_us * found.spread.factor)
    assert found.low_us == pytest.approx(result.time_us / found.spread.factor)
    assert f"({FILTER_GRADIENT}, {found.spread.rows} rows)" in " ".join(result.text().split())
    changed = npusim.ops.convolution_backward(
        dy,
        x,
        w,
        padding=1,
        output_mask=(False, True, False),
        device=result.device.replace("l2.size", "96MiB"),
    ).time_range
    assert changed.spread == (found.spread.factor, 0), "nobody measured such a chip"
    unmeasured = npusim.ops.convolution_backward(
        dy, x, w, padding=1, output_mask=(False, True, False), device="ascend310p"
    ).time_range
    assert unmeasured.spread.rows == 0
    assert unmeasured.high_us > unmeasured.time_us * unmeasured.spread.factor


def test_the_class_follows_from_what_runs_and_who_chose_its_tiling() -> None:
    a = npusim.spec((64, 64), "fp16")
    assert npusim.ops.matmul(a, a, device="ascend910b2").work == PRODUCT
    stated = npusim.ops.matmul(a, a, device="ascend910b2").tilings["matmul"]
    assert npusim.ops.matmul(a, a, device="ascend910b2", tiling=stated).work == KERNEL
    x, dy, w = (npusim.spec(s, "fp16") for s in ((1, 32, 8, 8), (1, 32, 8, 8), (32, 1, 3, 3)))
    depth_wise = npusim.ops.convolution_backward(
        dy, x, w, padding=1, groups=32, output_mask=(True, False, False), device="ascend910b2"
    )
    assert depth_wise.work == DEPTH_WISE


def test_a_step_has_the_range_of_its_kind_of_network() -> None:
    step = npusim.step("resnet18", device="ascend910", batch=1, mode="graph")
    found = step.time_range
    assert found.work == step_of("residual")
    assert found.spread == spread_of("910", step_of("residual"))
    assert found.spread.rows > 4
    assert f"({found.work}, {found.spread.rows} rows)" in " ".join(step.text().split())
    assert step.to_json()["time_range"] == found.to_json()
