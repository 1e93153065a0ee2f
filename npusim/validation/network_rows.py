"""Measured training steps of networks on a device."""

from __future__ import annotations

from typing import Any

from npusim.base.errors import ArgumentError
from npusim.device.spec import Device
from npusim.networks.step import step
from npusim.networks.step_result import CLEARING, CONVERSIONS
from npusim.validation.rows import PARTS, Declined, NetworkRow, Simulated, needed

#: Parts of a step by the kind of operation.
_CONVOLUTIONS = {
    "convolution output": "forward",
    "convolution weight": "filter_gradients",
    "convolution input": "input_gradients",
}


def simulate_network_row(row: NetworkRow, device: Device) -> Simulated:
    """The step of a row with the usual settings of its mode.

    Raises ``Declined`` for what a step cannot have here, and where some of it was not simulated.
    """
    mode, batch = needed(row, "mode", "batch")
    optional: dict[str, Any] = {}
    for name in ("dtype", "normalisation", "optimizer", "cards"):
        if getattr(row, name) is not None:
            optional[name] = getattr(row, name)
    try:
        found = step(row.network, device=device, mode=mode, batch=batch, **optional)
    except ArgumentError as error:
        raise Declined(str(error)) from error
    for failed in found.failed[:1]:
        raise Declined(
            f"{len(found.failed)} operations, such as {failed.name}: {failed.timed.error}"
        )
    parts = dict.fromkeys(PARTS, 0.0)
    for kinds in found.kind_rows():
        part = _part(kinds["phase"], kinds["kind"])
        if part is not None:
            parts[part] += kinds["us"]
    return Simulated(found.time_us, parts)


def _part(phase: str, kind: str) -> str | None:
    """The one of ``PARTS`` that operations of a kind belong to, None for others."""
    first = kind.partition(" + ")[0]  # of what one kernel computes together
    if first in (CLEARING, CONVERSIONS) or first.startswith("cast"):
        return "casts"
    if phase == "optimizer":
        return phase
    return "normalisation" if first.startswith("normalisation") else _CONVOLUTIONS.get(first)
