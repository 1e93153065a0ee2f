"""Searches the best tiling of every large gradient of ResNet-50, batch 32, on the 910B2.

``python -m tools.tilings.proofs [SECONDS] [JOBS] [BELOW]`` begins each search with the automatic
tiling, and ends it with a proof or after so many seconds. It writes the file whose verdicts
``python -m tests.documents "bounds of tilings"`` shows beside the automatic tilings.
"""

from __future__ import annotations

import json
import sys

import npusim
from npusim.call.tilings.choice import chosen
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.program.build import build
from npusim.machine.timing.run import new_l2, time_program
from tests.documents.tilings_table import PROOFS
from tools.tilings.larger_machines import Gradient
from tools.tilings.tables import FILE, Row, gradients, launched


def searched(gradient: Gradient, device: Device, seconds: int, jobs: int) -> Row:
    """The verdict of a search, and cycles of the kernel alone before and after it."""
    groups = tuple(range(device.groups))
    kernel = chosen(launched(gradient, device), device, groups)
    tuned = npusim.tune(kernel, device=device, budget=f"{seconds}s", jobs=jobs, store=None)
    return {
        "layer": gradient.layer,
        "gradient": gradient.which,
        "auto": time_program(build(kernel, device, groups), new_l2(device, "fast")).cycles,
        "tuned": time_program(build(tuned.best, device, groups), new_l2(device, "fast")).cycles,
        "gap": tuned.gap,
        "simulated": tuned.counts["simulated"],
        "of": tuned.counts["candidates"] - tuned.counts["illegal"],
    }


def main(seconds: int = 60, jobs: int = 2, below: float = 1.0) -> None:
    """Search those whose bound is ``below`` that share of their time, and keep the others' rows."""
    device = load_device("ascend910b2")
    known = {place(row): row for row in json.loads(PROOFS.read_text(encoding="utf-8"))}
    measured = {place(row): row for row in json.loads(FILE.read_text(encoding="utf-8"))["bounds"]}
    rows = list[Row]()
    for gradient in gradients(32):
        here = (gradient.layer, gradient.which)
        if here in measured and measured[here]["bound"] < below * measured[here]["cycles"]:
            rows.append(searched(gradient, device, seconds, jobs))
            print(rows[-1], flush=True)
        elif here in known:
            rows.append(known[here])
    PROOFS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def place(row: Row) -> tuple[str, str]:
    """Which gradient a row is of."""
    return row["layer"], row["gradient"]


if __name__ == "__main__":
    texts = sys.argv[1:]
    main(*(int(text) for text in texts[:2]), *(float(text) for text in texts[2:3]))
