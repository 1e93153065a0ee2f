"""Automatic tilings against the best of a search: ``python -m tools.tilings.others [SECONDS]``.

Both gradients of all layers of ResNet-50, batch 1 and 32, on a 910B2 and a 910; of ten depth-wise
layers of MobileNet-v2; of ten 3-D layers of R(2+1)D-18. Every search ends with a proof or after so
many seconds. The command writes the file that ``python -m tests.documents "other tilings"`` shows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import npusim
from npusim.base.records import replace
from npusim.call.tilings.choice import chosen
from npusim.machine.device.catalog import load_device
from tests.documents.pages import ROOT
from tools.tilings.larger_machines import Gradient, kernel_of, layers
from tools.tilings.tables import gradients

FILE = ROOT / "docs" / "guide" / "tilings_others.json"

#: 3-D layers: spatial and temporal parts, strides and a projection.
VOLUMES = (
    *("stem.0", "stem.3", "layer1.0.conv1.0.0", "layer2.0.conv1.0.0", "layer2.0.conv1.0.3"),
    *("layer2.0.downsample.0", "layer3.0.conv2.0.0", "layer3.1.conv1.0.3"),
    *("layer4.0.downsample.0", "layer4.1.conv1.0.0"),
)


def sample() -> Iterator[tuple[str, str, Gradient]]:
    """(device, network, gradient) of every row."""
    for device in ("ascend910b2", "ascend910"):
        for batch in (1, 32):
            for gradient in gradients(batch):
                yield device, f"ResNet-50, batch {batch}", gradient
    for network, title, names, batch in (
        ("mobilenet_v2", "MobileNet-v2, depth-wise", None, 32),
        ("r2plus1d_18", "R(2+1)D-18", VOLUMES, 1),
    ):
        known = layers(network)
        for name in names or [n for n, s in known.items() if s.groups > 1]:
            for which in ("dx", "dw"):
                gradient = Gradient(name, replace(known[name], n=batch), which)
                yield "ascend910b2", title, gradient


def measured(name: str, network: str, gradient: Gradient, seconds: int) -> dict[str, Any]:
    """Cycles with launches and clearing of the automatic and the best tiling, and the verdict."""
    device, kernel = load_device(name), kernel_of(gradient)
    automatic = chosen(kernel, device, tuple(range(device.groups)))
    tuned = npusim.tune(automatic, device=device, budget=f"{seconds}s", jobs=1, store=None)
    return {
        "network": network,
        "device": name,
        "layer": gradient.layer,
        "batch": gradient.shape.n,
        "gradient": gradient.which,
        "auto": tuned.problem.time(automatic).cycles,
        "tuned": tuned.cycles,
        "proved": tuned.proved,
    }


def main(seconds: int = 8) -> None:
    """Measure, and write the file."""
    rows = []
    for row in sample():
        rows.append(measured(*row, seconds))
        print(rows[-1], flush=True)
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
