"""Bottleneck of a call: the part of its device that saves most if it is twice as fast.

The parts are tried, not read off shares of the time: a pipe that works for 70 % of a kernel saves
nothing where it would wait as long for what feeds it. A part can save no more than half of what it
works on the busiest core of each kernel, waits for shared bandwidth included, so that parts which
cannot win need not be tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec import Struct

from npusim.base.reasons import BANDWIDTH, BUSY, NOT_STARTED, QUEUE
from npusim.machine.device.config import figures
from npusim.machine.device.resources import (
    LAUNCHES,
    QUEUES,
    faster,
    resource_of_link,
    resources,
    word_of,
)
from npusim.machine.device.spec import Device
from npusim.machine.timing.run import TRACE_LIMIT
from npusim.machine.timing.trace import Bound, KernelRun
from npusim.results.facts.number_text import percent_text
from npusim.results.facts.replay import Replay, Retimed, time_with


class Trial(NamedTuple):
    """A part of the device that was tried: with its ``figures`` twice as good a call takes so long.

    ``kernel`` is that whose time rests most on the part, by its place in the call.
    """

    name: str
    figures: tuple[str, ...]
    double_us: float
    kernel: int


class Verdict(Struct, frozen=True, kw_only=True):
    """The part of the device that a call of ``time_us`` is held up by most.

    With all its ``figures`` twice as good, and the same tilings, the call takes ``double_us``. No
    other part saves more. ``tried`` are the parts that were simulated so, this one first. Of a call
    that is too long to be simulated a few times, or that cannot be timed again, nothing is tried:
    ``double_us`` is None, and the part is that which is busy for the largest share of the time,
    ``busy``.
    """

    name: str
    figures: tuple[str, ...]
    time_us: float
    double_us: float | None
    busy: float
    tried: tuple[Trial, ...] = ()

    @property
    def saves(self) -> float | None:
        """Share of the time that goes; None where it was not tried."""
        if self.double_us is None:
            return None
        return max(0.0, 1 - self.double_us / self.time_us) if self.time_us else 0.0

    def text(self) -> str:
        """``L2: twice as fast saves 26 %``, or ``pipe M: busy for 93 % of the time``."""
        return saving_text(self.name, self.saves, self.busy)

    @property
    def how(self) -> str:
        """How it was found, in brackets behind the text."""
        return "(same tilings)" if self.tried else "(by shares of the time, not tried)"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "word": word_of(self.name),
            "figures": list(self.figures),
            "time_us": self.time_us,
            "double_us": self.double_us,
            "busy": self.busy,
            "saves": self.saves,
        }


#: What half the time of a part is called, where it is not twice as fast.
_HALVED = {LAUNCHES: "in half the time", QUEUES: "twice as deep"}


def saving_text(name: str, saves: float | None, busy: float) -> str:
    """A part by name, and the share of the time that goes with it twice as good.

    Where that was not tried, the share for which it is busy.
    """
    if saves is None:
        return f"{name}: busy for {percent_text(busy)} of the time"
    return f"{name}: {halved(name)} {percent_text(saves)}"


def halved(name: str) -> str:
    """``twice as fast saves``, in the words that fit a part."""
    return f"{_HALVED[name]} they save" if name in _HALVED else "twice as fast saves"


def parts(device: Device, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The figures among ``names`` that are speeds, by the part of the device they are of."""
    return resources(device, figures(device), names)


def verdict(
    device: Device, time_us: float, runs: Sequence[KernelRun], replay: Replay | None
) -> Verdict | None:
    """The part that saves most; None of a call that takes no time.

    Parts are tried in the order of what they save at most, until no other can save more. Of a call
    that is too long for that, or has no ``replay``, the busiest part.
    """
    if replay is None or sum(run.instructions for run in runs) > TRACE_LIMIT:
        return busiest(device, time_us, runs)
    tried = trials(device, time_us, runs, replay)
    if not tried:
        return busiest(device, time_us, runs)
    return Verdict(
        name=tried[0].name,
        figures=tried[0].figures,
        time_us=time_us,
        double_us=tried[0].double_us,
        busy=busy_shares(device, runs).get(tried[0].name, 0.0),
        tried=tried,
    )


def trials(
    device: Device,
    time_us: float,
    runs: Sequence[KernelRun],
    replay: Replay,
    *,
    besides: Sequence[Trial] = (),
    least_us: float = 0.0,
    most: int | None = None,
) -> tuple[Trial, ...]:
    """Parts of the device tried twice as fast, that which saves most first.

    They are tried in the order of what they save at most, until no other can save more than the
    best, nor ``least_us``, and not more than so many. Those ``besides`` were tried before, and are
    not what others are compared with.
    """
    every = parts(device, replay.figures)
    by_run = [savings_at_most(device, run, every) for run in runs]
    gains = {name: device.time_us(sum(most[name] for most in by_run)) for name in every}
    tried_before = {trial.name for trial in besides}
    tried: list[Trial] = []
    best_us = time_us - least_us
    for name in sorted(every, key=lambda name: (-gains[name], name)):
        if name in tried_before:
            continue
        if (tried or least_us) and time_us - best_us >= gains[name]:
            break
        if len(tried) == most:
            break
        if name == LAUNCHES:  # which change nothing else
            us: float | None = time_us - gains[name]
        else:
            us = doubled_us(device, every[name], replay)
        if us is not None:
            kernel = max(range(len(runs)), key=lambda place: by_run[place][name])
            tried.append(Trial(name, every[name], us, kernel))
            best_us = min(best_us, us)
    return tuple(sorted(tried, key=lambda trial: trial.double_us))  # of equals the first tried


def busiest(device: Device, time_us: float, runs: Sequence[KernelRun]) -> Verdict | None:
    """The part that is busy for the largest share of the time, by bounds and pipes alone."""
    shares = busy_shares(device, runs)
    if not shares:
        return None
    name = max(shares, key=lambda part: shares[part])
    stated = parts(device, device.provenance).get(name, ())
    return Verdict(name=name, figures=stated, time_us=time_us, double_us=None, busy=shares[name])


def busy_shares(device: Device, runs: Sequence[KernelRun]) -> dict[str, float]:
    """The share of a call's time for which each part of the device is busy, 0 parts left out.

    Kernels, and their launches, follow one another.
    """
    cycles = Counter[str]()
    for run in runs:
        cycles.update(busy_cycles(device, run))
    total = sum(run.cycles + run.launch_cycles for run in runs)
    return {name: count / total for name, count in cycles.items() if count}


def busy_cycles(device: Device, run: KernelRun) -> Counter[str]:
    """The cycles for which a kernel and its launch keep each part of the device busy.

    A pipe works on its busiest core, without what it waits for bandwidth; what cores share takes
    as long as its bound says.
    """
    by_pipe = Counter[str]()
    for _, pipe, reasons in run.pipes:
        by_pipe[f"pipe {pipe}"] = max(by_pipe[f"pipe {pipe}"], reasons[BUSY])
    shared = Counter[str]()
    for bound in run.bounds:
        if not bound.resource.startswith("pipe "):
            part = _whose(device, bound)
            shared[part] = max(shared[part], bound.cycles)
    cycles = Counter[str](by_pipe)
    cycles.update(shared)
    cycles[LAUNCHES] += run.launch_cycles
    return cycles


def doubled_us(device: Device, names: Iterable[str], replay: Retimed) -> float | None:
    """The time with all of some figures twice as good; None where the device cannot have them."""
    return time_with(device, faster(figures(device), names, Fraction(2)), replay)


class _Work(Struct, frozen=True):
    """Most work of a kernel, in cycles: of a core by pipe, of its moves to what cores share.

    ``starts`` are those before its last core starts, ``queued`` those that wait for room in queues.
    """

    by_pipe: dict[str, int]
    moving: int
    starts: int
    queued: int


def _work(device: Device, run: KernelRun) -> _Work:
    reaching = {path.pipe for path in device.paths.values() if "GM" in (path.src, path.dst)}
    by_pipe, by_core, starts, queued = dict[str, int](), dict[str, int](), 0, 0
    for core, pipe, cycles in run.pipes:
        busy = cycles[BUSY]
        if pipe in reaching:  # it may wait for what the same pipe of another core fetches
            busy += cycles[BANDWIDTH]
            by_core[core] = by_core.get(core, 0) + busy
        elif pipe == "S":
            starts, queued = max(starts, cycles[NOT_STARTED]), max(queued, cycles[QUEUE])
        by_pipe[pipe] = max(by_pipe.get(pipe, 0), busy)
    return _Work(by_pipe, max(by_core.values(), default=0), starts, queued)


def savings_at_most(device: Device, run: KernelRun, names: Iterable[str]) -> dict[str, int]:
    """Cycles of a kernel and its launch that each part saves at most if it is twice as fast.

    Half of what it works, as long as the kernel does not take less than other parts need.
    """
    work, bounds = _work(device, run), dict[str, int]()
    needed = Counter[str]()
    for bound in run.bounds:
        part = _whose(device, bound)
        bounds[part] = max(bounds.get(part, 0), bound.cycles)
        needed[part] += bound.cycles
    savings = {}
    for name in names:
        worked = work.by_pipe.get(name.removeprefix("pipe "), work.moving)
        if name == device.main_memory_name:
            worked = needed[name]
        worked = (worked + 1) // 2 if name != QUEUES else work.queued
        rest = max((cycles for part, cycles in bounds.items() if part != name), default=0)
        savings[name] = min(worked, run.cycles - rest)
    savings[LAUNCHES] = (work.starts + run.launch_cycles) // 2
    return savings


def _whose(device: Device, bound: Bound) -> str:
    """The part of the device that a bound of a program is of."""
    kind, _, name = bound.resource.partition(" ")
    if kind == "link":
        return resource_of_link(device, name)
    return bound.resource if kind == "pipe" else kind
