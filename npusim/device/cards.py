"""How several chips exchange the gradients of a training step."""
# ruff: noqa: RUF009 - figure returns dataclass fields, which is what belongs there

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from npusim.device.parts import figure


@dataclass(frozen=True, kw_only=True)
class Cards:
    """How several chips exchange the gradients of a training step."""

    bus_bytes_per_cycle: Fraction = figure(
        "bus", "rate", "bytes that cross the links of a card in an all-reduce"
    )
    latency_cycles: int = figure("latency", "duration", "start of an all-reduce", 0)
    pieces: int = figure("pieces", "count", "all-reduces that the gradients are cut into", 1)
    slowdown_percent: int = figure(
        "slowdown", "count", "percent that kernels take longer beside an all-reduce", 0
    )
