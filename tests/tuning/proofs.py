"""Searches the best tiling of every large gradient of ResNet-50, batch 32, on the 910B2.

``python -m tests.tuning.proofs [SECONDS] [JOBS]`` begins each search with the automatic tiling, and
ends it with a proof or after so many seconds. It writes the file whose verdicts ``python -m
tests.documents "bounds of tilings"`` shows beside the automatic tilings.
"""

from __future__ import annotations

import json
import sys

import npusim
from npusim.call.choice import chosen
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from tests.documents.tilings_table import PROOFS
from tests.tuning.larger_machines import Gradient
from tests.tuning.tables import LARGE, Row, gradients, launched


def searched(gradient: Gradient, device: Device, seconds: int, jobs: int) -> Row:
    """The verdict of a search, and cycles of the kernel alone before and after it."""
    kernel = chosen(launched(gradient, device), device, tuple(range(device.groups)))
    tuned = npusim.tune(kernel, device=device, budget=f"{seconds}s", jobs=jobs, store=None)
    return {
        "layer": gradient.layer,
        "gradient": gradient.which,
        "auto": tuned.problem.run(kernel).cycles,
        "tuned": tuned.problem.run(tuned.best).cycles,
        "gap": tuned.gap,
        "simulated": tuned.counts["simulated"],
        "of": tuned.counts["candidates"] - tuned.counts["illegal"],
    }


def main(seconds: int = 60, jobs: int = 2) -> None:
    """Search all, and write the file."""
    device, rows = load_device("ascend910b2"), list[Row]()
    for gradient in gradients(32):
        if gradient.shape.macs >= LARGE:
            rows.append(searched(gradient, device, seconds, jobs))
            print(rows[-1], flush=True)
    PROOFS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
