"""A device file that states the fitted figures and inherits everything else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npusim.base.quantities import RANGED
from npusim.calibration.search import FITTED, Found
from npusim.device.spec import Device
from npusim.device.variant import Head, free_key, variant_text


def device_text(
    base: str, device: Device, target: Path, found: Sequence[Found], source: str
) -> str:
    """Return the text of the device file ``target``, built on ``base``, a name or a file.

    ``source`` says what the figures were fitted to.
    """
    key = free_key(device, "FIT")
    about = f"{device.description}, fitted to measurements"
    stated = {
        path: f"{text} ({_known(one, key)})"
        for one in found
        if one.moved
        for path, text in one.constant.figures(one.value).items()
    }
    text = variant_text(base, device, target, Head("npusim fit", about, key, source), stated)
    kept = [one for one in found if not one.moved]
    if kept:
        text += "# As in the base:\n"
        text += "".join(f"#   {one.constant.path}: {one.verdict}\n" for one in kept)
    return text


def _known(one: Found, key: str) -> str:
    """How well a figure is known, from where, and between which values it may lie."""
    confidence = "fitted" if one.verdict == FITTED else "hypothesis"
    if one.span is None or one.constant.kind not in RANGED:
        return f"{confidence}, {key}"
    low, high = map(one.constant.text, one.span)
    return f"{confidence}, {key}, {low}..{high}"
