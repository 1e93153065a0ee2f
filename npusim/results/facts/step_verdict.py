"""Bottleneck of a step: the part of its device, the kind and the operation that save most.

Kinds of operations and operations follow one another, so that what half the time of one saves is
known. Parts of the device are tried. What a part saves at most of each call is known from its runs
(``verdict.savings_at_most``); calls are simulated with the part that could still save most, those
that could save most of it first, until a part is simulated on all calls that rest on it and no
other could save more. So most parts are tried on a few calls, or on none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from npusim.base.errors import NpusimError
from npusim.base.records import collecting_seldom
from npusim.machine.device.config import figures
from npusim.machine.device.resources import LAUNCHES, faster
from npusim.machine.device.spec import Device
from npusim.results.facts.number_text import counted, percent_text
from npusim.results.facts.step_replay import StepReplay
from npusim.results.facts.verdict import Trial, Verdict, busy_cycles, parts, savings_at_most

#: Microseconds by name and by place of launch: an operation may be of several kinds.
PlacedTimes = Mapping[str, Mapping[int, float]]

#: Instructions that trials simulate for a verdict, by those of the step's distinct calls: so it
#: takes less time than the step, which builds all of these, and more to choose formats by.
SIMULATED_AT_MOST = 6

#: What stays as it was where a step is simulated again.
SAME = "same tilings and formats"


class HalvedTime(NamedTuple):
    """Operations of a ``name`` that take ``us`` of a step, and the share that half of it saves."""

    name: str
    us: float
    saves: float

    def text(self) -> str:
        """``update: in half the time saves 2 %``."""
        return f"{self.name}: in half the time saves {percent_text(self.saves)}"


class StepVerdict(Verdict, frozen=True, kw_only=True):
    """The part of the device that holds a step up most, as of a call; with the same formats.

    ``kind`` and ``operation`` are those of which half the time saves most. So many parts were
    ``untried`` where trials would have taken longer than the step: one of them may save more.
    """

    kind: HalvedTime
    operation: HalvedTime
    untried: int = 0

    @property
    def how(self) -> str:
        """How it was found, in brackets behind the text."""
        return (
            f"({SAME}; {counted(self.untried, 'part')} not tried)" if self.untried else f"({SAME})"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **super().to_json(),
            "kind": self.kind._asdict(),
            "operation": self.operation._asdict(),
            "untried": self.untried,
        }


class _Candidate:
    """A part of the device while it is tried twice as fast.

    ``waiting`` are the calls it was not tried on, with the microseconds that it saves at most of
    all their launches, those that could save most last. ``times`` are microseconds of one of each
    call.
    """

    def __init__(
        self, name: str, paths: tuple[str, ...], device: Device, replay: StepReplay
    ) -> None:
        self.name = name
        self.paths = paths
        self.device = device
        self.times = [call.us for call in replay.calls]
        self.waiting: list[tuple[float, int]] = []
        self.most_us = 0.0  # that it can save of the step, as far as is known
        self.most_in = 0
        self.double_us: float | None = None

    def wait(self, place: int, us: float) -> None:
        """Take note of a call of which it can save so much."""
        self.waiting.append((us, place))
        self.most_us += us


class StepTrials:
    """Parts of the device tried twice as fast on the calls of a step, as far as it is asked for.

    What was simulated for one question is there for the next, and what changes of figures did too.
    """

    def __init__(self, replay: StepReplay, time_us: float) -> None:
        self.replay = replay
        self.time_us = time_us
        self.done: list[Trial] = []
        self.simulated = 0  # instructions of all that was simulated here
        instructions = sum(run.instructions for call in replay.calls for run in call.runs)
        self.limit = SIMULATED_AT_MOST * instructions
        self.untried = 0  # parts that could save something, and were not tried on all calls
        self._candidates = self._begun()

    @collecting_seldom()
    def next_best(self) -> Trial | None:
        """The part that saves most of those not yet told; None where none is left.

        Once the ``limit`` is reached, of those that are tried on all calls.
        """
        while self._candidates:
            if self.simulated > self.limit:
                self._drop_the_untried()
            candidate = max(self._candidates, key=lambda part: (part.most_us, part.name))
            if candidate.double_us is not None:
                self._candidates.remove(candidate)
                trial = Trial(
                    candidate.name, candidate.paths, candidate.double_us, candidate.most_in
                )
                self.done.append(trial)
                return trial
            self._try(candidate)
        return None

    def _drop_the_untried(self) -> None:
        """Leave the parts that are tried on all calls; of none such, try the most promising one."""
        tried = [part for part in self._candidates if part.double_us is not None]
        while self._candidates and not tried:
            candidate = max(self._candidates, key=lambda part: (part.most_us, part.name))
            while candidate.double_us is None and candidate in self._candidates:
                self._try(candidate)
            tried = [part for part in self._candidates if part.double_us is not None]
        self.untried += len(self._candidates) - len(tried)
        self._candidates = tried

    def first(self, count: int, least_us: float) -> list[Trial]:
        """The parts that save most, ``count`` at most, as far as they may save ``least_us``."""
        while len(self.done) < count and self.could_save_us() >= least_us:
            if self.next_best() is None:
                break
        return self.done[:count]

    def could_save_us(self) -> float:
        """The most that a part not yet told could save, in microseconds."""
        return max((candidate.most_us for candidate in self._candidates), default=0.0)

    def _begun(self) -> list[_Candidate]:
        """Every part of the device that the step rests on, as far as one can be twice as fast."""
        replay = self.replay
        device = replay.device
        current = figures(device)
        candidates = {}
        every = parts(device, replay.figures)
        for name, paths in every.items():
            try:
                doubled = device.origin.rebuild(device, faster(current, paths, Fraction(2)))
            except NpusimError:  # a figure that others bound
                continue
            candidates[name] = _Candidate(name, paths, doubled, replay)
        for place, call in enumerate(replay.calls):
            saved = dict.fromkeys(every, 0)
            for run in call.runs:
                for name, cycles in savings_at_most(device, run, every).items():
                    saved[name] = saved.get(name, 0) + cycles
            for name, candidate in candidates.items():
                if saved[name]:
                    candidate.wait(place, device.time_us(call.count * saved[name]))
        for candidate in candidates.values():
            self._prepare(candidate)
        return list(candidates.values())

    def _prepare(self, candidate: _Candidate) -> None:
        """Sort what waits; know at once what needs no simulation."""
        replay = self.replay
        candidate.waiting.sort()
        candidate.most_in = candidate.waiting[-1][1] if candidate.waiting else 0
        if candidate.name == LAUNCHES:  # which change nothing else
            for us, place in candidate.waiting:
                candidate.times[place] -= us / replay.calls[place].count
            candidate.waiting = []
        exchanged = set(candidate.paths) & {*replay.exchange_figures}
        if exchanged or not candidate.waiting:
            self._finish(candidate)

    def _try(self, candidate: _Candidate) -> None:
        """Simulate the call that the part could save most of."""
        most_us, place = candidate.waiting.pop()
        call = self.replay.calls[place]
        try:
            candidate.times[place] = self.replay.call_us(place, candidate.device)
        except NpusimError:  # a program that needs the figure as it is
            self._candidates.remove(candidate)
            return
        self.simulated += sum(run.instructions for run in call.runs)
        candidate.most_us += call.count * (call.us - candidate.times[place]) - most_us
        if not candidate.waiting:
            self._finish(candidate)

    def _finish(self, candidate: _Candidate) -> None:
        """Time the step with the part."""
        candidate.double_us = self.replay.total_us(candidate.device, candidate.times)
        candidate.most_us = self.time_us - candidate.double_us


def step_verdict(
    replay: StepReplay, trials: StepTrials, kinds: PlacedTimes, operations: PlacedTimes
) -> StepVerdict | None:
    """The verdict of a step; None of one that takes no time, or whose device states no speeds.

    ``kinds`` and ``operations`` are microseconds by name and by place of launch.
    """
    best = trials.next_best() if kinds else None
    if best is None:
        return None
    device = replay.device
    busy = Counter[str]()
    for call in replay.calls:
        for run in call.runs:
            for name, cycles in busy_cycles(device, run).items():
                busy[name] += call.count * cycles
    return StepVerdict(
        name=best.name,
        figures=best.figures,
        time_us=trials.time_us,
        double_us=best.double_us,
        busy=device.time_us(busy[best.name]) / trials.time_us,
        tried=(best,),
        untried=trials.untried,
        kind=halved_time(replay, trials.time_us, kinds),
        operation=halved_time(replay, trials.time_us, operations),
    )


def halved_time(replay: StepReplay, time_us: float, times: PlacedTimes) -> HalvedTime:
    """The entry of ``times`` of which half saves most: microseconds by place of launch.

    The exchange of gradients is timed again: it may be less hidden.
    """
    usual = replay.launch_times(replay.device, [call.us for call in replay.calls])
    name = max(times, key=lambda name: sum(times[name].values()))
    shorter = [us - times[name].get(place, 0.0) / 2 for place, us in enumerate(usual)]
    changed_us = replay.launched_us(replay.device, shorter)
    return HalvedTime(name, sum(times[name].values()), max(0.0, 1 - changed_us / time_us))
