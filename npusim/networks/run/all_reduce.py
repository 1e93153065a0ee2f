"""Gradients exchanged between cards: an all-reduce beside the backward pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

from npusim.base.errors import ArgumentError
from npusim.machine.device.all_reduce import Cards
from npusim.machine.device.spec import Device
from npusim.networks.rules.values import Training
from npusim.networks.run.launched_operation import LaunchedOperation

#: A section ``cards`` to begin with.
_TEMPLATE = "cards: {bus: 40GB/s, latency: 400us, node: 8}"


class Reduced(NamedTuple):
    """The all-reduce of a step: bytes of gradients, microseconds in all, hidden and exposed.

    ``slowed_us`` is what kernels take longer beside it, ``pieces`` how often it begins.
    """

    cards: int
    pieces: int
    bytes: int
    us: float
    hidden_us: float
    exposed_us: float
    slowed_us: float

    @property
    def added_us(self) -> float:
        """The time by which the step is longer."""
        return self.exposed_us + self.slowed_us


def figures_of(device: Device, cards: int) -> Cards:
    """The figures of an all-reduce among cards of a device.

    Raises ``ArgumentError`` where the device's file has none, and for more cards than its figures
    describe.
    """
    figures = device.cards
    if figures is None:
        raise ArgumentError(
            f"cards is {cards}; {device.name} has no figures of an exchange between cards: use 1, "
            f"or a device file of one line, with figures of your own: {{base: {device.shown_by}, "
            f"name: mine, description: my node, {_TEMPLATE}}} (configs/README.md, 'Several cards')"
        )
    if cards <= figures.node:
        return figures
    if not figures.network_bytes_per_cycle:
        raise ArgumentError(
            f"cards is {cards}; a node of {device.name} has {figures.node} (cards.node), and its "
            "file has no rate between nodes: use at most that many, or state the key network of "
            "its section cards, such as network: 25GB/s"
        )
    if cards % figures.node:
        nodes = cards // figures.node * figures.node
        raise ArgumentError(
            f"cards is {cards}; more than a node of {figures.node} (cards.node of {device.name}) "
            f"must be whole nodes, such as {nodes} or {nodes + figures.node}"
        )
    return figures


def all_reduce(
    device: Device, cards: int, ready: Sequence[tuple[float, int]], end_us: float
) -> Reduced:
    """The exchange of gradients that are ``ready`` (at a time, so many bytes), in this order.

    They are exchanged in equal pieces, each when its last gradient is there; the pass that makes
    them ends at ``end_us``. Raises ``ArgumentError`` where the device's file says nothing of so
    many cards.
    """
    figures = figures_of(device, cards)
    total = sum(size for _, size in ready)
    now = 0.0
    waiting_bytes = 0.0
    moved = 0.0
    for number, (us, size) in enumerate(ready):
        waiting_bytes += size
        if waiting_bytes < total / figures.pieces and number < len(ready) - 1:
            continue
        piece = device.time_us(figures.cycles(waiting_bytes, cards))
        now = max(now, us) + piece
        moved = moved + piece
        waiting_bytes = 0.0
    exposed = max(0.0, now - end_us)
    hidden = moved - exposed
    slowed = hidden * figures.slowdown_percent / 100
    return Reduced(cards, figures.pieces, total, moved, hidden, exposed, slowed)


def exchanged(
    device: Device,
    cards: int,
    parameters: Collection[str],
    launched: Sequence[LaunchedOperation],
    ends_us: Sequence[float],
) -> Reduced:
    """The all-reduce of the gradients of ``parameters``, in the order in which they are made.

    ``ends_us`` is when each of the operations ends. Raises as ``all_reduce`` does.
    """
    wanted = {f"{name}.gradient" for name in parameters}
    backward_us = 0.0
    ready = []
    for operation, end_us in zip(launched, ends_us, strict=True):
        if operation.phase != "optimizer":
            backward_us = end_us
        if operation.value:
            continue
        gradients = [stored for stored in operation.writes if stored.name in wanted]
        ready += [(end_us, operation.sizes[stored]) for stored in gradients]
    return all_reduce(device, cards, ready, backward_us)


def all_reduce_of(
    device: Device, cards: int, step: Training, launches: Sequence[LaunchedOperation]
) -> Reduced | None:
    """The exchange of the gradients of parameters, in the order in which the launches make them.

    None on a single card.
    """
    if cards == 1:
        return None
    ends = [device.time_us(end) for end in accumulate(launched.cycles for launched in launches)]
    return exchanged(device, cards, step.parameters, launches, ends)
