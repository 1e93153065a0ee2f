"""What a call is held up by most: the part of its device that saves most if it is twice as fast.

The parts are tried, not read off shares of the time: a pipe that works for 70 % of a kernel saves
nothing where it would wait as long for what feeds it. A part can save no more than half of what it
works on the busiest core of each kernel, waits for shared bandwidth included, so that parts which
cannot win need not be tried.

The same figures tell how far the time of a call may be off, given how far they may be.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from math import hypot
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, structs

from npusim.base.errors import NpusimError
from npusim.base.integers import IntArray
from npusim.base.quantities import format_quantity
from npusim.base.reasons import BANDWIDTH, BUSY, NOT_STARTED, QUEUE
from npusim.base.resources import configs
from npusim.machine.device.catalog import ranges
from npusim.machine.device.config import figure_text, figures
from npusim.machine.device.resources import (
    LAUNCHES,
    QUEUES,
    faster,
    resource_of_link,
    resources,
    scaled,
    word_of,
)
from npusim.machine.device.spec import Device
from npusim.machine.program.program import Program
from npusim.machine.timing.run import TRACE_LIMIT
from npusim.machine.timing.trace import Bound, KernelRun, Trace
from npusim.results.facts import tables
from npusim.results.writers.text_layout import percent_text


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
        return told(self.name, self.saves, self.busy)

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


def told(name: str, saves: float | None, busy: float) -> str:
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
    by_run = [_most(device, run, every) for run in runs]
    gains = {name: device.time_us(sum(one[name] for one in by_run)) for name in every}
    known = {trial.name for trial in besides}
    tried: list[Trial] = []
    best_us = time_us - least_us
    for name in sorted(every, key=lambda name: (-gains[name], name)):
        if name in known:
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

    A pipe works on its busiest core, without what it waits for bandwidth; what cores share takes
    as long as its bound says. Kernels, and their launches, follow one another.
    """
    cycles = Counter[str]()
    for run in runs:
        own = Counter[str]()
        for _, pipe, reasons in run.pipes:
            own[f"pipe {pipe}"] = max(own[f"pipe {pipe}"], reasons[BUSY])
        shared = Counter[str]()
        for bound in run.bounds:
            if not bound.resource.startswith("pipe "):
                part = _whose(device, bound)
                shared[part] = max(shared[part], bound.cycles)
        cycles.update(own)
        cycles.update(shared)
        cycles[LAUNCHES] += run.launch_cycles
    whole = sum(run.cycles + run.launch_cycles for run in runs)
    return {name: count / whole for name, count in cycles.items() if count}


def doubled_us(device: Device, names: Iterable[str], replay: Replay) -> float | None:
    """The time with all of some figures twice as good; None where the device cannot have them."""
    return time_with(device, faster(figures(device), names, Fraction(2)), replay)


class _Work(Struct, frozen=True):
    """What a kernel does at most, in cycles: of a core by pipe, of its moves to what cores share.

    ``starts`` are those before its last core starts, ``queued`` those that wait for room in queues.
    """

    by_pipe: dict[str, int]
    moving: int
    starts: int
    queued: int


def _work(device: Device, run: KernelRun) -> _Work:
    reaching = {one.pipe for one in device.paths.values() if "GM" in (one.src, one.dst)}
    by_pipe, by_core, starts, queued = dict[str, int](), dict[str, int](), 0, 0
    for core, pipe, cycles in run.pipes:
        own = cycles[BUSY]
        if pipe in reaching:  # it may wait for what the same pipe of another core fetches
            own += cycles[BANDWIDTH]
            by_core[core] = by_core.get(core, 0) + own
        elif pipe == "S":
            starts, queued = max(starts, cycles[NOT_STARTED]), max(queued, cycles[QUEUE])
        by_pipe[pipe] = max(by_pipe.get(pipe, 0), own)
    return _Work(by_pipe, max(by_core.values(), default=0), starts, queued)


def _most(device: Device, run: KernelRun, names: Iterable[str]) -> dict[str, int]:
    """Cycles of a kernel and its launch that each part saves at most if it is twice as fast.

    Half of what it works, as long as the kernel does not take less than other parts need.
    """
    work, bounds = _work(device, run), dict[str, int]()
    needed = Counter[str]()
    for bound in run.bounds:
        part = _whose(device, bound)
        bounds[part] = max(bounds.get(part, 0), bound.cycles)
        needed[part] += bound.cycles
    found = {}
    for name in names:
        own = work.by_pipe.get(name.removeprefix("pipe "), work.moving)
        if name == device.main_memory_name:
            own = needed[name]
        own = (own + 1) // 2 if name != QUEUES else work.queued
        rest = max((cycles for part, cycles in bounds.items() if part != name), default=0)
        found[name] = min(own, run.cycles - rest)
    found[LAUNCHES] = (work.starts + run.launch_cycles) // 2
    return found


def _whose(device: Device, bound: Bound) -> str:
    """The part of the device that a bound of a program is of."""
    kind, _, name = bound.resource.partition(" ")
    if kind == "link":
        return resource_of_link(device, name)
    return bound.resource if kind == "pipe" else kind


#: Called with the figures tried so far and how many there are.
Report = Callable[[int, int], None]


class WhatIf(Struct, frozen=True, kw_only=True):
    """The time of a call with one figure at half and at twice its value; None where it cannot be.

    ``figure`` may be the word of a part of the device, ``hbm`` for one: then all its speeds, which
    ``together`` names, are half or twice as good. Kernels keep their tilings, so
    that what is told is what the program makes of the change.
    """

    figure: str
    value: str
    time_us: float
    half_us: float | None
    double_us: float | None
    together: tuple[str, ...] = ()

    @property
    def gain_us(self) -> float:
        """How much time the better of the two takes away, 0 if neither does."""
        return max(0.0, *(self.time_us - us for us in self._ends))

    @property
    def effect_us(self) -> float:
        """How much the time moves at most, either way."""
        return max((abs(self.time_us - us) for us in self._ends), default=0.0)

    @property
    def _ends(self) -> tuple[float, ...]:
        return tuple(us for us in (self.half_us, self.double_us) if us is not None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = {name: value for name, value in structs.asdict(self).items() if name != "time_us"}
        return {**values, "together": list(self.together)}


def what_if(
    device: Device, time_us: float, replay: Replay, report: Report | None = None
) -> tuple[WhatIf, ...]:
    """Each figure the time rests on, and each part of the device that has several of them.

    That which could save most comes first. Two runs each, of programs that are built once. A part
    that saves no more than one of its figures does is left out.
    """
    known = figures(device)
    together = {
        word_of(name): paths
        for name, paths in resources(device, known, replay.figures).items()
        if len(paths) > 1
    }
    changes: dict[str, list[dict[str, str]]] = {}
    values: dict[str, str] = {}
    for path in known:
        if path in replay.figures:
            texts = [scaled(known[path], factor) for factor in _FACTORS]
            changes[path] = [{path: text} if text else {} for text in texts]
            values[path] = figure_text(known[path], device.clock_hz)
    for word, paths in together.items():
        changes[word] = [faster(known, paths, factor) for factor in _FACTORS]
        values[word] = f"{len(paths)} together"
    found: dict[str, WhatIf] = {}
    for done, (name, ends) in enumerate(changes.items()):
        if report is not None:
            report(done, len(changes))
        half, double = (time_with(device, end, replay) if end else None for end in ends)
        if half is None and double is None:
            continue
        paths = together.get(name, ())
        row = WhatIf(
            figure=name,
            value=values[name],
            time_us=time_us,
            half_us=half,
            double_us=double,
            together=paths,
        )
        single = [found[path].gain_us for path in paths if path in found]
        if row.gain_us > max(single, default=-1.0):
            found[name] = row
    return tuple(sorted(found.values(), key=lambda row: (-row.gain_us, -row.effect_us, row.figure)))


_FACTORS = (Fraction(1, 2), Fraction(2))


def time_with(device: Device, changed: Mapping[str, str], replay: Replay) -> float | None:
    """The time with other figures, in microseconds; None where the device cannot have them."""
    try:
        return replay.time_us(device.origin.rebuild(device, changed))
    except NpusimError:  # a figure that others bound, or a program that needs it
        return None


# -- how far the time may be off -------------------------------------------------------------------


class Replay(Protocol):
    """How to time a call again."""

    @property
    def figures(self) -> tuple[str, ...]:
        """Dotted paths of the figures its time rests on."""

    def time_us(self, device: Device) -> float:
        """The time of the same kernels, tiled as they were, on the same cores of a variant."""

    def traces(self, device: Device) -> tuple[Trace, ...]:
        """What the time of each of these kernels rests on, in the order of launches."""

    def programs(self, device: Device) -> tuple[Program, ...]:
        """The programs of these kernels, in the order of launches."""

    def spread_us(self, device: Device) -> float | None:
        """The time with vector kernels on the cores that ``device`` favours.

        None where these are those they run on.
        """

    def on_all_cores_us(self, place: int) -> float | None:
        """The time with kernel ``place`` on all the cores of its groups.

        None where nothing but its own plan limits them.
        """

    def evenly_us(self, place: int) -> float | None:
        """The time with the tasks of kernel ``place`` dealt out evenly to its cores.

        None where cores of several kinds work together, or a tiling limits them.
        """

    def causes(self, device: Device) -> tuple[IntArray, ...]:
        """By kernel, the row that each row of its timeline waited for, -1 where it did not."""


class Effect(NamedTuple):
    """The time of a call with one figure at the ends of its range and all others as they are."""

    figure: str
    low: str
    high: str
    low_us: float  # with the figure at ``low``, which need not be the shorter time
    high_us: float

    def faster_us(self, time_us: float) -> float:
        """How much shorter than ``time_us`` the time is at either end, 0 if it is not."""
        return max(0.0, time_us - min(self.low_us, self.high_us))

    def slower_us(self, time_us: float) -> float:
        """How much longer than ``time_us`` the time is at either end, 0 if it is not."""
        return max(0.0, max(self.low_us, self.high_us) - time_us)


class TimeRange(Struct, frozen=True, kw_only=True):
    """The time of a call with its uncertainty: ``low_us`` to ``high_us`` around ``time_us``.

    Figures are varied one at a time and taken to be independent, so what each adds to the time
    combines as the root of the sum of squares, and so does what each takes from it. ``effects``
    are sorted, the figure that moves the time most first. What the model leaves out, library
    tilings above all, combines in the same way: 80 % of the measured rows of the class lie between
    ``spread`` times the simulated time (``configs/silicon/spreads.csv``).
    """

    time_us: float
    effects: tuple[Effect, ...]
    spread: tuple[float, float] = (1.0, 1.0)

    def __repr__(self) -> str:
        """One line: the time and its ends."""
        ends = f"{self.low_us:.3f} to {self.high_us:.3f} us"
        return f"<TimeRange {self.time_us:.3f} us, {ends}, of {len(self.effects)} figures>"

    @property
    def low_us(self) -> float:
        """The time less what figures and the model take from it."""
        left_out = self.time_us * max(0.0, 1 - self.spread[0])
        figures = (one.faster_us(self.time_us) for one in self.effects)
        return self.time_us - hypot(left_out, *figures)

    @property
    def high_us(self) -> float:
        """The time plus what figures and the model add to it."""
        left_out = self.time_us * max(0.0, self.spread[1] - 1)
        figures = (one.slower_us(self.time_us) for one in self.effects)
        return self.time_us + hypot(left_out, *figures)

    @property
    def table(self) -> tables.DataFrame:
        """One row per effect: figure, both ends of its range, the time at each."""
        return tables.frame(self._rows(), Effect._fields)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        ends = {"low_us": self.low_us, "high_us": self.high_us, "spread": list(self.spread)}
        return {**ends, "figures": self._rows()}

    def _rows(self) -> list[dict[str, Any]]:
        return [effect._asdict() for effect in self.effects]


@cache
def _spreads() -> dict[tuple[str, str], tuple[float, float]]:
    """Measured over simulated time by product, of ``kernels`` and of ``calls``."""
    text = (configs() / "silicon" / "spreads.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {(row["product"], row["of"]): (float(row["low"]), float(row["high"])) for row in rows}


def time_range(device: Device, time_us: float, replay: Replay, *, kernels: int) -> TimeRange:
    """Vary each figure that has a range and that the time of so many ``kernels`` rests on."""
    effects = []
    for path, ends in ranges(device).items():
        if path in replay.figures:
            low, high = (
                replay.time_us(device.replace(path, format_quantity(end.value, end.kind)))
                for end in ends
            )
            texts = [figure_text(end, device.clock_hz) for end in ends]
            effects.append(Effect(path, texts[0], texts[1], low, high))
    effects.sort(key=lambda one: -max(one.faster_us(time_us), one.slower_us(time_us)))
    # Nothing is known of invented devices.
    spread = _spreads().get((device.product, "calls" if kernels > 1 else "kernels"), (1.0, 1.0))
    return TimeRange(time_us=time_us, effects=tuple(effects), spread=spread)
