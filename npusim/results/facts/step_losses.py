"""The operations of a step that lose most against the least time of their problems, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from npusim.base.errors import ArgumentError
from npusim.base.records import collecting_seldom
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import Bound
from npusim.results.facts.advice import path_text
from npusim.results.facts.fact import Fact
from npusim.results.facts.metrics import share
from npusim.results.facts.number_text import counts, percent_text, us_text
from npusim.results.facts.step_replay import StepCall

#: Operations that are told of.
MOST_LOSSES = 10


class AlikeOperations(Struct, frozen=True):
    """Operations of a step that are one call: their names, their kind, and their least time."""

    names: tuple[str, ...]
    kind: str
    phase: str
    call: StepCall
    least: Bound

    @property
    def count(self) -> int:
        """How often the step runs the call."""
        return self.call.count

    def least_us(self, device: Device) -> float:
        """Microseconds that any programs for all of them need."""
        return self.count * device.time_us(self.least.cycles)

    def lost_us(self, device: Device) -> float:
        """Microseconds that they take longer."""
        return self.count * self.call.us - self.least_us(device)


class Loss(NamedTuple):
    """Operations with what they lose on a device, and what their time is spent on."""

    device: Device
    alike: AlikeOperations
    reason: str

    @property
    def name(self) -> str:
        """The first of them, and how many more there are."""
        first, *others = self.alike.names
        return f"{first} and {len(others)} alike" if others else first


#: Operations that lose.
LOSSES: tuple[Fact[Loss], ...] = (
    Fact("operation", "operation", "", str, lambda loss: loss.name),
    Fact("kind", "kind", "", str, lambda loss: loss.alike.kind),
    Fact("phase", "phase", "", str, lambda loss: loss.alike.phase),
    Fact("count", "times", "", counts, lambda loss: loss.alike.count),
    Fact("us", "time", "\u00b5s", us_text, lambda loss: loss.alike.count * loss.alike.call.us),
    Fact("least_us", "least", "\u00b5s", us_text, lambda loss: loss.alike.least_us(loss.device)),
    Fact("least_by", "least by", "", str, lambda loss: loss.alike.least.resource),
    Fact("lost_us", "lost", "\u00b5s", us_text, lambda loss: loss.alike.lost_us(loss.device)),
    Fact("reason", "reason", "", str, lambda loss: loss.reason),
)


@collecting_seldom()
def largest_losses(device: Device, operations: Iterable[AlikeOperations]) -> tuple[Loss, ...]:
    """Operations that lose most, most first, each with the reason of one of them.

    Their kernels are simulated again once.
    """
    losing = [alike for alike in operations if alike.lost_us(device) > 0]
    losing.sort(key=lambda alike: -alike.lost_us(device))
    return tuple(Loss(device, alike, _reason(device, alike)) for alike in losing[:MOST_LOSSES])


def _reason(device: Device, alike: AlikeOperations) -> str:
    """What the time of one of the operations is spent on: launches, or its slowest kernel."""
    runs = alike.call.runs
    launch_cycles = sum(run.launch_cycles for run in runs)
    cycles = launch_cycles + sum(run.cycles for run in runs)
    if 2 * launch_cycles > cycles:
        return f"launches take {percent_text(share(launch_cycles, cycles))} of it"
    slowest = max(range(len(runs)), key=lambda place: runs[place].cycles)
    run = runs[slowest]
    try:
        traces = alike.call.replay.traces(device)
    except ArgumentError:  # too many instructions
        return ""
    if not traces:
        return f"{run.name}: there is no kernel, its bytes are at the rates of main memory"
    return f"{run.name}: {path_text(run, traces[slowest])}"
