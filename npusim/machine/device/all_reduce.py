"""Exchange of the gradients of a training step among several chips."""
# ruff: noqa: RUF009 - figure returns dataclass fields, which is what belongs there

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from npusim.machine.device.parts import figure


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Exchange of the gradients of a training step among several chips."""

    #: bytes that cross the links of a card in an all-reduce
    bus_bytes_per_cycle: Fraction = figure("bus", "rate")
    #: start of an all-reduce
    latency_cycles: int = figure("latency", "duration", 0)
    #: all-reduces that the gradients are cut into
    pieces: int = figure("pieces", "count", 1)
    #: percent that kernels take longer beside an all-reduce
    slowdown_percent: int = figure("slowdown", "count", 0)
