"""Measures the automatic tilings of ResNet-50: ``python -m tools.tilings.tables`` writes the file.

``python -m tests.documents`` shows what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np

from npusim.base.dtypes import FP16
from npusim.base.errors import CapacityError
from npusim.base.records import replace
from npusim.call.tilings.choice import chosen
from npusim.kernels.layout.folding import can_fold, can_thin
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.program.kernel import Kernel
from npusim.ops.conv_ways import best_way
from npusim.ops.cube_math import CubeMath
from tests.documents.pages import ROOT
from tools.tilings.larger_machines import Gradient, cycles_of, kernel_of, layers, runs_of

FILE = ROOT / "docs" / "model" / "tilings.json"

#: Gradients that have a row of their own are of so many useful multiply-adds or more.
LARGE = 10**9

PERCENTILES = (5, 25, 50, 75, 95)

Row = dict[str, Any]


def gradients(batch: int) -> Iterator[Gradient]:
    """Both gradients of every convolution of ResNet-50."""
    for name, shape in layers("resnet50").items():
        for which in ("dx", "dw"):
            yield Gradient(name, replace(shape, n=batch), which)


def estimates(name: str, which: str) -> Row:
    """How far estimates are from the simulation: leading candidates, and some behind them."""
    device, rng, ratios = load_device(name), Random(f"{name} {which}"), list[float]()
    for batch in (1, 32):
        for gradient in gradients(batch):
            if gradient.which != which:
                continue
            ranked = kernel_of(gradient).ranked(device, device.count("cube"), 64)
            some = ranked[:2] + rng.sample(ranked[2:], min(2, len(ranked[2:])))
            for estimate, kernel in some:
                with suppress(CapacityError):  # closed forms do not see every byte
                    ratios.append(estimate / cycles_of(kernel, device))
    found = np.percentile(ratios, PERCENTILES)
    return {"device": name, "gradient": which, "count": len(ratios), "percentiles": list(found)}


def launched(gradient: Gradient, device: Device) -> Kernel:
    """The kernel with which a call computes a gradient, fp16, before a tiling is chosen."""
    shape, math = gradient.shape, CubeMath(FP16, hf32=False)
    if not (can_fold(shape) or can_thin(shape)):
        return kernel_of(gradient)
    return best_way(device, device.groups, shape, math, gradient=gradient.which == "dx").product


def bounds(name: str = "ascend910b2", batch: int = 32) -> list[Row]:
    """The problem's bound of each large gradient over the time of its kernel, tilings automatic."""
    device, rows = load_device(name), list[Row]()
    for gradient in gradients(batch):
        if gradient.shape.macs < LARGE:
            continue
        kernel = launched(gradient, device)
        run = runs_of(chosen(kernel, device, tuple(range(device.groups))), device)[-1]
        bound = max(run.problem_bounds, key=lambda bound: bound.cycles)
        limit = max(run.bounds, key=lambda bound: bound.cycles)
        rows.append(
            {
                "layer": gradient.layer,
                "gradient": gradient.which,
                "cycles": run.cycles,
                "bound": bound.cycles,
                "of": bound.resource,
                "program": limit.resource,
                "share": limit.cycles / run.cycles,
            }
        )
    return rows


def main() -> None:
    """Measure, and write the file."""
    pairs = (("ascend910b2", "dx"), ("ascend910b2", "dw"), ("ascend910", "dx"), ("ascend910", "dw"))
    found = {"estimates": [estimates(*pair) for pair in pairs], "bounds": bounds()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
