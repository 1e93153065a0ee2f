"""Automatic tilings beyond ResNet-50 on the 910B2: ``python -m tests.tuning.others``.

They are held against the best of all leading candidates, without a proof for the others: on the
910, for depth-wise layers of MobileNet-v2 and for 3-D layers of R(2+1)D-18. The command writes the
file that ``python -m tests.documents "other tilings"`` shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from npusim.call.choice import chosen
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.errors import CapacityError
from tests.documents.pages import ROOT
from tests.tuning.larger_machines import Gradient, kernel_of, layers
from tests.tuning.tables import cycles_of

FILE = ROOT / "docs" / "guide" / "tilings_others.json"

#: Candidates with the least estimates that are simulated, all of them.
LEADING = 32

#: Layers of ResNet-50 that are looked at on the 910.
RESNET = ("res2_3x3", "res3_1x1_out", "res4_3x3_down", "res5_shortcut")

#: 3-D layers: spatial and temporal parts, strides and a projection.
VOLUMES = (
    *("stem.0", "stem.3", "layer1.0.conv1.0.0", "layer2.0.conv1.0.0", "layer2.0.conv1.0.3"),
    *("layer2.0.downsample.0", "layer3.0.conv2.0.0", "layer3.1.conv1.0.3"),
    *("layer4.0.downsample.0", "layer4.1.conv1.0.0"),
)


def sample() -> Iterator[tuple[str, str, Gradient]]:
    """(device, network, gradient) of every row."""
    for name in RESNET:
        for batch in (1, 32):
            for which in ("dx", "dw"):
                shape = replace(layers("resnet50")[name], n=batch)
                yield "ascend910", "ResNet-50", Gradient(name, shape, which)
    for network, title, names, batch in (
        ("mobilenet_v2", "MobileNet-v2", None, 32),
        ("r2plus1d_18", "R(2+1)D-18", VOLUMES, 1),
    ):
        known = layers(network)
        for number, name in enumerate(names or [n for n, s in known.items() if s.groups > 1]):
            gradient = Gradient(name, replace(known[name], n=batch), ("dx", "dw")[number % 2])
            yield "ascend910b2", title, gradient


def measured(device: Device, network: str, gradient: Gradient) -> dict[str, Any]:
    """Cycles with launches and clearing of the automatic tiling and of the best that leads."""
    kernel = kernel_of(gradient)
    automatic = cycles_of(chosen(kernel, device, tuple(range(device.groups))), device)
    found = [automatic]
    for _, one in kernel.ranked(device, device.count("cube"), LEADING):
        with suppress(CapacityError):  # closed forms do not see every byte
            found.append(cycles_of(one, device))
    return {
        "device": device.name,
        "network": network,
        "layer": gradient.layer,
        "batch": gradient.shape.n,
        "gradient": gradient.which,
        "auto": automatic,
        "best": min(found),
        "simulated": len(found) - 1,
    }


def main() -> None:
    """Measure, and write the file."""
    rows = [measured(load_device(name), network, one) for name, network, one in sample()]
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
