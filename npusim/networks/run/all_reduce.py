"""Gradients exchanged between cards: an all-reduce beside the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from npusim.base.errors import ArgumentError
from npusim.machine.device.all_reduce import Cards
from npusim.machine.device.parts import key_of
from npusim.machine.device.spec import Device
from npusim.networks.rules.values import Training
from npusim.networks.run.launched_operation import LaunchedOperation


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
    """The figures of an all-reduce; ``ArgumentError`` where the device's file has none."""
    if device.cards is None:
        raise ArgumentError(
            f"cards is {cards}; {device.name} has no figures of an all-reduce: use 1, or a device "
            f"file with 'base: {device.shown_by}' and a section 'cards', whose keys, "
            f"{', '.join(key_of(field) for field in fields(Cards))}, configs/README.md explains "
            "('Keys of a device'; ascend910.yaml has such a section)"
        )
    return device.cards


def all_reduce(
    device: Device, cards: int, ready: Sequence[tuple[float, int]], end_us: float
) -> Reduced:
    """The exchange of gradients that are ``ready`` (at a time, so many bytes), in this order.

    A ring moves every byte 2 (cards - 1) / cards times over its bus, in equal pieces of all
    gradients, each when its last one is there; the pass that makes them ends at ``end_us``. Raises
    ``ArgumentError`` where the device's file says nothing of several cards.
    """
    figures = figures_of(device, cards)
    total = sum(size for _, size in ready)
    rate = 2 * (cards - 1) / cards / float(figures.bus_bytes_per_cycle)
    now = 0.0
    waiting_bytes = 0.0
    moved = 0.0
    for number, (us, size) in enumerate(ready):
        waiting_bytes += size
        if waiting_bytes < total / figures.pieces and number < len(ready) - 1:
            continue
        piece = device.time_us(figures.latency_cycles + waiting_bytes * rate)
        now = max(now, us) + piece
        moved = moved + piece
        waiting_bytes = 0.0
    exposed = max(0.0, now - end_us)
    hidden = moved - exposed
    slowed = hidden * figures.slowdown_percent / 100
    return Reduced(cards, figures.pieces, total, moved, hidden, exposed, slowed)


def all_reduce_of(
    device: Device, cards: int, step: Training, launches: Sequence[LaunchedOperation]
) -> Reduced | None:
    """The exchange of the gradients of parameters, in the order in which the launches make them.

    None on a single card.
    """
    if cards == 1:
        return None
    wanted = {f"{name}.gradient" for name in step.parameters}
    now = 0
    end = 0
    ready: list[tuple[float, int]] = []
    for launched in launches:
        now += launched.cycles
        end = now if launched.phase != "optimizer" else end
        if launched.value:  # a conversion
            continue
        ready += [
            (device.time_us(now), launched.sizes[value])
            for value in launched.writes
            if value.name in wanted
        ]
    return all_reduce(device, cards, ready, device.time_us(end))
