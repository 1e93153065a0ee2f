"""A time range holds the structural part of its class."""

from __future__ import annotations

import csv

import npusim
from npusim.base.resources import configs

TEXT = (configs() / "silicon" / "spreads.csv").read_text(encoding="utf-8")
SPREADS = {
    row["product"]: [float(row["low"]), float(row["high"])]
    for row in csv.DictReader(TEXT.splitlines())
    if row["of"] == "calls"
}


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
