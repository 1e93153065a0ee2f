"""The structural part of a time range covers what was measured."""

from __future__ import annotations

import csv
import math
import statistics

import pytest

import npusim
from npusim.resources import configs
from npusim.validation.rows import CallRow
from npusim.validation.sheet import shipped_sheets
from npusim.validation.simulate import simulate_row

TEXT = (configs() / "silicon" / "spreads.csv").read_text(encoding="utf-8")
SPREADS = {
    row["product"]: [float(row["low"]), float(row["high"])]
    for row in csv.DictReader(TEXT.splitlines())
    if row["of"] == "calls"
}
#: Families of calls that stand for layers.
LAYERS = ("CONV2D-FWD", "DW-CONV2D-FWD", "DW3D")


@pytest.mark.parametrize(("chip", "product"), [("910B2", "a2"), ("950PR", "950")])
def test_spreads_of_calls_are_those_of_the_measured_rows(chip: str, product: str) -> None:
    """10th and 90th percentile, so that 80 % of the rows lie between them."""
    rows = [
        row
        for sheet in shipped_sheets()
        for row in sheet.rows
        if isinstance(row, CallRow) and row.chip == chip and row.family in LAYERS
    ]
    logs = []
    for row in rows:
        outcome = simulate_row(row, {}).simulated
        assert outcome is not None
        assert row.time_us is not None
        logs.append(math.log(row.time_us / outcome.time_us))
    tenths = statistics.quantiles(logs, n=10, method="inclusive")
    assert SPREADS[product] == pytest.approx([math.exp(tenths[0]), math.exp(tenths[-1])], abs=0.02)


def test_a_range_holds_the_spread_of_its_class() -> None:
    """At least: figures widen it. An invented device has none."""
    x, dy, w = (npusim.spec(s, "fp16") for s in ((2, 64, 8, 8), (2, 64, 8, 8), (64, 64, 3, 3)))
    for device, spread in (("ascend910b2", SPREADS["a2"]), ("tiny", [1.0, 1.0])):
        result = npusim.ops.convolution_backward(dy, x, w, padding=1, device=device)
        found = result.time_range
        assert list(found.spread) == spread
        assert found.low_us <= result.time_us * spread[0]
        assert found.high_us >= result.time_us * spread[1]
        assert ("measured calls" in result.text()) == (device != "tiny")
