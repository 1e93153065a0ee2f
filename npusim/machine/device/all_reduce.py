"""Exchange of the gradients of a training step among several chips."""
# ruff: noqa: RUF009 - figure returns dataclass fields, which is what belongs there

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from npusim.machine.device.parts import figure


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Exchange of the gradients of a training step among several chips."""

    #: bytes that leave a card in an all-reduce over all of its links within a node
    bus_bytes_per_cycle: Fraction = figure("bus", "rate")
    #: links to single other cards that make up `bus`: an exchange of fewer cards has but so many
    #: of them; 1 where each card reaches all others at this rate
    links: int = figure("links", "count", 1)
    #: cards of a node
    node: int = figure("node", "count", 8)
    #: bytes that leave a card for other nodes; without it an exchange stays within a node
    network_bytes_per_cycle: Fraction = figure(
        "network", "rate", Fraction(0), digest="unless empty"
    )
    #: start of an all-reduce, whatever its size
    latency_cycles: int = figure("latency", "duration", 0)
    #: all-reduces that the gradients are cut into
    pieces: int = figure("pieces", "count", 1)
    #: percent that kernels take longer beside an all-reduce
    slowdown_percent: int = figure("slowdown", "count", 0)

    def cycles(self, size: float, cards: int) -> float:
        """Cycles of an all-reduce of ``size`` bytes among ``cards``, if several nodes whole ones.

        Within a node each byte crosses the links 2 (n - 1) / n times: parts are summed, each by one
        card, then sent to all. Between nodes each card does the same with the part that it summed.
        """
        within = min(cards, self.node)
        nodes = cards // within
        cycles: float = self.latency_cycles
        if within > 1:
            bus = self.bus_bytes_per_cycle * Fraction(min(within - 1, self.links), self.links)
            cycles += size * float(Fraction(2 * (within - 1), within) / bus)
        if nodes > 1:
            part = size / within
            cycles += part * float(Fraction(2 * (nodes - 1), nodes) / self.network_bytes_per_cycle)
        return cycles
