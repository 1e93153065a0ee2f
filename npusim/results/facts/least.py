"""Bounds in microseconds: of any program for a problem, of any schedule of the one that ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import Bound, KernelRun
from npusim.results.facts.number_text import us_text

#: Who is bounded, and from where the operands come.
PROBLEM, PROGRAM = "any program", "any schedule of this one"
IN_L2, FROM_MEMORY = "operands in the L2", "from main memory"

#: Why a pipe needs its time in any schedule.
_ALONE = "its bytes and multiply-adds at their rates, on all cores"


class LeastTime(NamedTuple):
    """The longest of some bounds: microseconds, the resource, why, and the device's figure."""

    us: float
    resource: str
    why: str
    figure: str

    @property
    def reason(self) -> str:
        """Cause of the bound, in words."""
        return ", ".join(word for word in (self.resource, self.why) if word)


class Ends(NamedTuple):
    """The least time with all operands in the L2 that fit it, and with them in main memory."""

    cached: LeastTime
    cold: LeastTime

    def first(self, of: str) -> str:
        """The one for the call as it was made, which found in the L2 what it found."""
        return f"{us_text(self.cold.us)} us for {of} ({self.cold.reason})"

    def text(self, of: str) -> str:
        """Both, or one where they are the same."""
        if self.cached[:2] == self.cold[:2]:
            return self.first(of)
        places = zip((IN_L2, FROM_MEMORY), self, strict=True)
        both = (f"{us_text(least.us)} us ({place}: {least.reason})" for place, least in places)
        return f"{', '.join(both)} for {of}"


def ends(device: Device, bounds: Iterable[Bound], beside: Iterable[Bound] = ()) -> Ends:
    """The ends of ``bounds``; those ``beside`` them are ones that another schedule may avoid."""
    every = [*bounds, Bound("", 0, "")]
    for bound in beside:
        why = _ALONE if bound.resource.startswith("pipe ") else bound.why
        every.append(bound._replace(cycles=bound.least, why=why))
    cached = max(every, key=attrgetter("least"))
    cold = max(every, key=attrgetter("cycles"))
    return Ends(_least(device, cached, cached.least), _least(device, cold, cold.cycles))


def _least(device: Device, bound: Bound, cycles: int) -> LeastTime:
    return LeastTime(device.time_us(cycles), bound.resource, bound.why, bound.figure)


def on_silicon(device: Device, bounds: Iterable[Bound]) -> tuple[LeastTime, ...]:
    """Every bound that holds whatever the L2 held."""
    return tuple(_least(device, bound, bound.least) for bound in bounds if bound.least)


def program_ends(device: Device, runs: Sequence[KernelRun]) -> Ends:
    """Those of kernels one after another."""
    return in_turn(ends(device, run.problem_bounds, run.bounds) for run in runs)


def in_turn(in_order: Iterable[Ends]) -> Ends:
    """Those of what follows each other, with the reason of the one that needs most."""
    both = list(zip(*in_order, strict=True)) or [(LeastTime(0.0, "", "", ""),)] * 2
    return Ends(*(max(bounds)._replace(us=sum(least.us for least in bounds)) for bounds in both))
