"""Operations of a step that take many times what any program needs, and the step tiled anew.

A public rule of a library, or a plain choice in its place, may leave one core to do all the work of
a layer that nobody tried it on. Operations that may matter and are far from their least are
simulated with automatic tilings too; each takes the better of the two, so that the step ``as
tuned`` is simulated like any other: its operations run one after another. Of operations that are
further still, the critical path of their kernels says why. All of this is computed when a report
first asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from npusim.base.records import replace
from npusim.base.workers import Workers
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.networks.plan.tasks import Task
from npusim.networks.rules.values import Training
from npusim.networks.run.all_reduce import all_reduce_of
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.networks.run.launches import OperationLauncher
from npusim.networks.run.simulated import SimulatedTasks
from npusim.networks.timed import Timed
from npusim.results.facts import metrics
from npusim.results.facts.advice import slow_kernels
from npusim.results.facts.fact import Fact, row_of
from npusim.results.facts.number_text import counts, percent_text, us_text

#: Operations are tried with automatic tilings from so many times their least on: these can save at
#: most what is beyond the least.
TRIED_FROM = 2

#: Operations are far from their least from so many times of it on.
FAR_FROM = 10

#: Operations whose kernels are traced for the reason, the longest: a trace takes as long as a run.
MOST_TRACED = 5

#: Excess of an operation, as a share of its step, below which nobody would look at it alone.
WORTH_A_LOOK = 0.005


class AutomaticTilings(Struct, frozen=True):
    """The operations of a step by their places, simulated with automatic tilings when asked for.

    ``tasks`` are those of all operations in the order of launch, ``launcher`` is the one that timed
    them; runs of kernels are kept in ``store``.
    """

    tasks: tuple[Task, ...]
    times: SimulatedTasks

    @classmethod
    def of(
        cls, tasks: Sequence[Task], launcher: OperationLauncher, store: str | Path | None
    ) -> AutomaticTilings | None:
        """The operations of a step; None where its tilings are not those of a library."""
        if launcher.options.tiling != "library":
            return None
        options = replace(launcher.options, tiling="auto", progress=None)
        return cls(tuple(tasks), SimulatedTasks(replace(launcher, options=options), store))

    def simulate(self, names: Mapping[int, str], jobs: int | None) -> None:
        """Time operations in ``jobs`` processes where that is worth it; ``names`` by place."""
        with Workers(jobs) as workers:
            times = replace(self.times, workers=workers)
            times.all((name, self.tasks[place]) for place, name in names.items())

    def timed(self, place: int) -> Timed:
        """The time of the operation at a place, or why it has none; equal ones are timed once."""
        return self.times[self.tasks[place]]


class LaunchedStep(Protocol):
    """A step as it was launched: what its plausibility rests on."""

    @property
    def device(self) -> Device:
        """Where it ran."""

    @property
    def cards(self) -> int:
        """Cards that exchange gradients."""

    @property
    def jobs(self) -> int | None:
        """Processes for what is asked of it; None is one per processor."""

    @property
    def step(self) -> Training:
        """Its operations and values."""

    @property
    def launched(self) -> tuple[LaunchedOperation, ...]:
        """Its operations in the order of launch."""

    @property
    def automatic(self) -> AutomaticTilings | None:
        """Its operations with automatic tilings; None where it has no others."""

    @property
    def compute_us(self) -> float:
        """Microseconds of all kernels and launches of one card."""

    @property
    def time_us(self) -> float:
        """``compute_us``, and what the exchange of gradients adds to it."""


#: The class of a step.
S = TypeVar("S", bound=LaunchedStep)


class RetiledOperation(Struct, frozen=True):
    """An operation of a step as the library's tiling has it, and ``tuned`` by an automatic one."""

    place: int
    launched: LaunchedOperation
    tuned: Timed

    @property
    def tuned_us(self) -> float:
        """Microseconds of all times that it runs, with the better of both tilings."""
        if self.tuned.result is None:
            return self.launched.us
        return min(self.launched.us, self.launched.us_of(self.tuned))


class FarOperation(Struct, frozen=True):
    """An operation that takes many times what any program for it needs; ``why`` in sentences.

    These are on kernels that matter to the step; others have none.
    """

    launched: LaunchedOperation
    why: tuple[str, ...] = ()

    @property
    def launch_us(self) -> float:
        """Microseconds of launches of all times that it runs."""
        timed = self.launched.timed
        if timed.result is None:
            return 0.0
        launches = sum(run.launch_cycles for run in timed.runs)
        return self.launched.count * timed.result.device.time_us(launches)


def extrapolated(launched: LaunchedOperation) -> str:
    """The reasons why no published rule covers the tilings of an operation, "" where one does.

    Of tilings that follow no published rule there is none either.
    """
    reasons = dict.fromkeys(run.extrapolated for run in launched.timed.runs)
    return "; ".join(reason for reason in reasons if reason)


def least_us(launched: LaunchedOperation) -> float:
    """Microseconds that any programs for all times that an operation runs need, 0 if unknown."""
    result = launched.timed.result
    least = launched.least
    return result.device.time_us(least.cycles) if result is not None and least is not None else 0.0


#: An operation that was tried with automatic tilings. Times are of all times that it runs.
RETILED: tuple[Fact[RetiledOperation], ...] = (
    Fact("operation", "operation", "", str, lambda row: row.launched.name),
    Fact("kind", "kind", "", str, lambda row: row.launched.kind),
    Fact("us", "as ruled", "\u00b5s", us_text, lambda row: row.launched.us),
    Fact("tuned_us", "as tuned", "\u00b5s", us_text, lambda row: row.tuned_us),
    Fact("least_us", "least", "\u00b5s", us_text, lambda row: least_us(row.launched)),
    Fact("extrapolated", "extrapolated", "", str, lambda row: extrapolated(row.launched)),
)

#: An operation that is far from its least.
FAR: tuple[Fact[FarOperation], ...] = (
    Fact("operation", "operation", "", str, lambda row: row.launched.name),
    Fact("kind", "kind", "", str, lambda row: row.launched.kind),
    Fact("count", "count", "", counts, lambda row: row.launched.count),
    Fact("us", "time", "\u00b5s", us_text, lambda row: row.launched.us),
    Fact("launch_us", "launches", "\u00b5s", us_text, lambda row: row.launch_us),
    Fact("least_us", "least", "\u00b5s", us_text, lambda row: least_us(row.launched)),
    Fact("why", "why", "", str, lambda row: list(row.why)),
)


class Plausibility(Struct, Generic[S], frozen=True, dict=True):
    """A step held against the least of its operations."""

    step: S

    @cached_property
    def retiled(self) -> tuple[RetiledOperation, ...]:
        """Operations that were tried with automatic tilings, those with the largest excess first.

        Their excess over ``TRIED_FROM`` times their least is worth a look in the step as it is
        tuned so far.
        """
        automatic = self.step.automatic
        if automatic is None:
            return ()
        excesses = sorted(
            (
                (TRIED_FROM * least_us(launched) - launched.us, place)
                for place, launched in enumerate(self.step.launched)
                if launched.us > TRIED_FROM * least_us(launched)
            ),
        )
        total_us = self.step.compute_us
        names = {
            place: self.step.launched[place].name
            for excess, place in excesses
            if -excess >= WORTH_A_LOOK * total_us
        }
        automatic.simulate(names, self.step.jobs)
        tried = []
        for excess, place in excesses:
            if -excess < WORTH_A_LOOK * total_us:
                break
            launched = self.step.launched[place]
            operation = RetiledOperation(place, launched, automatic.timed(place))
            total_us -= launched.us - operation.tuned_us
            tried.append(operation)
        return tuple(tried)

    @cached_property
    def tuned(self) -> S:
        """The step whose ``retiled`` operations have the better of both tilings.

        Formats of values are those of the step; the step itself where nothing gets faster.
        """
        step = self.step
        faster = {each.place: each for each in self.retiled if each.tuned_us < each.launched.us}
        if not faster:
            return step
        launched = tuple(
            replace(operation, timed=faster[place].tuned) if place in faster else operation
            for place, operation in enumerate(step.launched)
        )
        reduced = all_reduce_of(step.device, step.cards, step.step, launched)
        return replace(step, launched=launched, reduced=reduced, automatic=None)

    @property
    def extrapolated(self) -> dict[str, list[str]]:
        """Operations whose tilings no published rule covers, by the reasons."""
        names: dict[str, list[str]] = {}
        for launched in self.step.launched:
            reason = extrapolated(launched)
            if reason:
                names.setdefault(reason, []).append(launched.name)
        return names

    @cached_property
    def far(self) -> tuple[FarOperation, ...]:
        """Operations that take more than ``FAR_FROM`` times their least, the longest first.

        Kernels of those whose excess is worth a look have reasons, equal ones once; the longest are
        traced for these.
        """
        reasons: dict[int, tuple[str, ...]] = {}
        rows = []
        for launched in sorted(self.step.launched, key=lambda launched: -launched.us):
            least = least_us(launched)
            if not launched.us > FAR_FROM * least > 0:
                continue
            why: tuple[str, ...] = ()
            if launched.us - least >= WORTH_A_LOOK * self.step.compute_us:
                key = id(launched.timed)
                if key not in reasons:
                    traced = len(reasons) < MOST_TRACED
                    reasons[key] = tuple(_reasons(launched, traced=traced))
                why = reasons[key]
            rows.append(FarOperation(launched, why))
        return tuple(rows)


def _reasons(launched: LaunchedOperation, *, traced: bool) -> Iterator[str]:
    """Reasons why an operation is far from its least, in sentences.

    They are on the critical path of kernels that are ``traced``, on the largest bound of others.
    """
    result = launched.timed.result
    assert result is not None
    sentences = slow_kernels(result, 0) if traced else tuple(_bounds_of(result.runs))
    yield from sentences
    launches = sum(run.launch_cycles for run in result.runs)
    if not sentences or 2 * launches > result.cycles:
        share = percent_text(launches / result.cycles)
        yield f"{share} of its time are launches, of {counts(len(result.runs))} kernels"


def _bounds_of(runs: Sequence[KernelRun]) -> Iterator[str]:
    """Sentences on the largest bound of the program of kernels that are far from their least."""
    for run in runs:
        least = metrics.problem_bound(run)
        bound = metrics.nearest_bound(run)
        if least is None or bound is None or run.cycles <= FAR_FROM * least.cycles:
            continue
        share = percent_text(metrics.share(bound.cycles, run.cycles))
        yield (
            f"{run.name} takes {run.cycles / max(1, least.cycles):.0f} times what any program for "
            f"its problem needs ({least.resource}): {bound.resource} alone needs {share} of it"
        )


def _rows(facts: Sequence[Fact[Any]], subjects: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Facts of several subjects, as plain values."""
    return [row_of(facts, subject) for subject in subjects]


#: A step held against the least of its operations, in JSON.
PLAUSIBILITY: tuple[Fact[Plausibility[Any]], ...] = (
    Fact("tuned_us", "as tuned", "\u00b5s", us_text, lambda step: step.tuned.time_us),
    Fact("retiled", "tried with automatic tilings", "", str, lambda s: _rows(RETILED, s.retiled)),
    Fact("extrapolated", "extrapolated", "", str, lambda step: step.extrapolated),
    Fact("far_from_least", "far from the least", "", str, lambda step: _rows(FAR, step.far)),
)
