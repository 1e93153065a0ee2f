"""Kernels of ResNet-50, batch 32, on a 910 against a measured step, by tiling; ``make steps``.

``python -m tests.documents.kernels_910`` simulates them, in minutes, and keeps their times; the
section of the document is made of these.
"""

from __future__ import annotations

import json

import npusim
from npusim.results.facts.network_rows import PARTS
from npusim.silicon.sheet import shipped_steps
from tests.documents.pages import ROOT

KEPT = ROOT / "docs" / "model" / "kernels_910.json"
#: The result of each pass, as measured rows call the pass.
PASSES = {
    "forward": PARTS["output"],
    "filter_gradients": PARTS["weight"],
    "input_gradients": PARTS["input"],
}
TILINGS = ("auto", "library")
#: What the dispatch of a kernel takes, which measured times have and simulated ones have not.
DISPATCH_US = 1.5


def simulated(tiling: str) -> dict[str, float]:
    """Microseconds of the convolutions of each pass, without launches."""
    made = npusim.network(
        "resnet50", device="ascend910", batch=32, passes="training", launch="graph", tiling=tiling
    )
    layers = made.layer_rows()
    return {
        part: sum(one["count"] * one["split"].get(result, 0) for one in layers if one["kernel"])
        for part, result in PASSES.items()
    }


def table_rows() -> list[tuple[str, ...]]:
    """Each pass, measured, and what was simulated with its share of that."""
    (row,) = (row for row in shipped_steps().rows if row.busy_us)
    counts = {"forward": 53, "filter_gradients": 53, "input_gradients": 52}
    kept, rows = json.loads(KEPT.read_text(encoding="utf-8")), []
    for part in PASSES:
        measured = row.busy_us[part] - DISPATCH_US * counts[part]
        found = (kept[tiling][part] for tiling in TILINGS)
        shown = (f"{us:,.0f} us ({us / measured:.2f})" for us in found)
        rows.append((part.replace("_", " "), f"{measured:,.0f} us", *shown))
    return rows


if __name__ == "__main__":
    found = {tiling: simulated(tiling) for tiling in TILINGS}
    rounded = {
        at: {part: round(us, 3) for part, us in parts.items()} for at, parts in found.items()
    }
    KEPT.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
