"""The vendor's, automatic and best tilings: ``python -m tools.tilings.production`` measures them.

It writes the file that ``python -m tests.documents "tuned tilings"`` shows.
"""

from __future__ import annotations

import json
from typing import Any

import npusim
from npusim.base.records import replace
from npusim.call.call import planning
from npusim.call.tilings.choice import chosen
from npusim.machine.device.catalog import load_device
from npusim.machine.program.kernel import Kernel
from npusim.problem.convolution import Convolution
from tests.documents.pages import ROOT
from tools.tilings.larger_machines import cycles_of, layers

FILE = ROOT / "docs" / "guide" / "tuning.json"

DEVICE = "ascend910b2"

#: Time of a search; what is left open then is told.
BUDGET = "20s"

LAYERS = ("res3_3x3", "res4_3x3", "res4_3x3_down", "res5_3x3", "res5_shortcut")
BATCHES = (1, 32)

#: Kernel, and what the operator is asked for, by gradient.
GRADIENTS = {
    "input": ("conv_backprop_input", (True, False, False)),
    "filter": ("conv_backprop_filter", (False, True, False)),
}


def call(c: Convolution, gradient: str, tiling: Any = "auto") -> Kernel:
    """The kernel of a gradient as the operator launches it with such a tiling."""
    name, mask = GRADIENTS[gradient]
    with planning() as kernels:
        npusim.ops.convolution_backward(
            npusim.spec(c.dy_shape, "fp16"),
            npusim.spec(c.x_shape, "fp16"),
            npusim.spec(c.w_shape, "fp16"),
            stride=c.stride,
            padding=tuple(before for before, _ in c.padding),
            output_mask=mask,
            device=DEVICE,
            tiling=tiling,
        )
    return next(kernel for kernel in kernels if kernel.name == name)


def measured(layer: str, batch: int, gradient: str) -> dict[str, Any]:
    """Cycles with launches and clearing, and what the search says."""
    c, device = replace(layers("resnet50")[layer], n=batch), load_device(DEVICE)
    kernel = call(c, gradient)
    automatic = chosen(kernel, device, tuple(range(device.groups)))
    tuned = npusim.tune(automatic, device=device, budget=BUDGET, jobs=1, store=None)
    vendor = call(c, gradient, {kernel.name: "production"})
    counts = tuned.counts
    return {
        "layer": layer,
        "batch": batch,
        "gradient": gradient,
        "production": cycles_of(vendor, device),
        "auto": cycles_of(automatic, device),
        "tuned": cycles_of(tuned.best, device),
        "gap": tuned.gap,
        "simulated": counts["simulated"],
        "of": counts["candidates"],
    }


def main() -> None:
    """Measure, and write the file."""
    rows = [
        measured(layer, batch, gradient)
        for batch in BATCHES
        for layer in LAYERS
        for gradient in GRADIENTS
    ]
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
