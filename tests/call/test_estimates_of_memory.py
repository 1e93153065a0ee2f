"""Estimates know what the timing engine charges for misses, for a core alone and for gaps."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.kernels.estimate.costs import missed
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from tools.tilings.larger_machines import Product, cycles_of, kernel_of

pytestmark = pytest.mark.compiled


def estimate_of(kernel: Any, tiling: Any, device: Device) -> float:
    """The estimate of a candidate that leads."""
    ranked = kernel.ranked(device, device.count("cube"), 64)
    return float(next(time for time, one in ranked if one.tiling == tiling))


def test_a_miss_takes_more_of_the_l2_than_a_hit_where_the_device_says_so() -> None:
    """A 910B2 reads 5 TB/s of hits with 288 B for each row, and 1.8 TB/s of misses."""
    rows = 1000.0
    asked = rows * 2048
    per_row = 1 + 288 / 2048
    device = load_device("ascend910b2")
    assert missed(device, asked, rows) == pytest.approx(5.0 / 1.8 / per_row - 1, rel=0.01)
    assert missed(load_device("ascend910"), asked, rows) == 0


@pytest.mark.parametrize(
    ("name", "figure", "value", "side"),
    [
        ("ascend910b2", "paths.GM->L1.nd2nz.memory_rate", "77GB/s", 512),
        ("ascend910", "paths.UB->GM.idle_head", "1500cycle", 1024),
    ],
)
def test_estimates_follow_a_figure_as_the_simulation_does(
    name: str, figure: str, value: str, side: int
) -> None:
    """By two thirds to half as much again of what a figure adds to the time of a product."""
    usual = load_device(name)
    worse = usual.replace(figure, value)
    kernel: Any = kernel_of(Product(side, side, side))
    (_, best), *_ = kernel.ranked(usual, usual.count("cube"), 1)
    before = estimate_of(kernel, best.tiling, usual), cycles_of(best, usual)
    after = estimate_of(kernel, best.tiling, worse), cycles_of(best, worse)
    added = after[0] - before[0], after[1] - before[1]
    assert added[1] > 1000
    assert 0.66 * added[1] < added[0] < 1.5 * added[1]
