"""The result of a training step: what was launched, in order, and where the time goes."""

# Each way of showing it is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from npusim.base.errors import ArgumentError
from npusim.base.records import collecting_seldom
from npusim.call.in_turn import notes_of
from npusim.machine.device.spec import Device
from npusim.networks.plan.formats import FormatPlan
from npusim.networks.plan.tasks import Task
from npusim.networks.rules.values import PHASES, Training
from npusim.networks.run.all_reduce import Reduced
from npusim.networks.run.implausible import PLAUSIBILITY, AutomaticTilings, Plausibility
from npusim.networks.run.launched_operation import LaunchedOperation
from npusim.networks.run.memory import StepMemory
from npusim.networks.run.only_plan import OnlyPlan
from npusim.networks.run.setting import Setting, StepRequest
from npusim.networks.run.step_again import alike_operations, replay_of
from npusim.networks.run.step_notes import notes_of_step
from npusim.networks.timed import Timed
from npusim.problem.work import step_of
from npusim.results.bounded import Bounded
from npusim.results.facts import metrics, step_rows, step_traffic
from npusim.results.facts.advice import Advice
from npusim.results.facts.energy import ENERGY_COLUMNS, TOTAL_ENERGY, Energy, Spending, energy_of
from npusim.results.facts.fact import Fact, row_of
from npusim.results.facts.least import Ends, in_turn, program_ends
from npusim.results.facts.memory_rows import HELD_COLUMNS, MAX_HELD, MEMORY_COLUMNS
from npusim.results.facts.number_text import (
    bytes_text,
    counts,
    percent_text,
    rate_text,
    us_text,
)
from npusim.results.facts.other_chips import other_chips_of
from npusim.results.facts.spread import spread_of
from npusim.results.facts.step_advice import advise_step
from npusim.results.facts.step_losses import LOSSES, Loss, largest_losses
from npusim.results.facts.step_replay import StepReplay
from npusim.results.facts.step_verdict import StepTrials, StepVerdict, step_verdict
from npusim.results.facts.tables import DataFrame, frame
from npusim.results.facts.time_range import TimeRange
from npusim.results.facts.what_if import Progress as Tried
from npusim.results.facts.what_if import WhatIf
from npusim.results.facts.what_if import what_if as figures_tried
from npusim.results.saved import Reported
from npusim.results.shown.network_words import asked, step_missing
from npusim.results.shown.report import Report
from npusim.results.writers.plots import Axes, draw
from npusim.results.writers.text import report_text
from npusim.version import __version__
from npusim.workloads import Workload
from npusim.workloads.kind_of_network import kind_of_network

if TYPE_CHECKING:
    from npusim.results.step_explanation import StepExplanation

Row = dict[str, Any]


class StepResult(Reported, Spending, Struct, frozen=True, kw_only=True, dict=True):
    """A step of a network on one card of ``setting.cards``, in the order of launch.

    ``fused`` says how often each fusion was made, ``planned`` how formats were, and ``reduced``
    what exchanging the gradients between cards takes. ``automatic`` times its operations with other
    tilings, where these are the library's. ``fitting_batch`` is a batch that the card's memory
    holds, where it does not hold this one and that is known. ``request`` says how the step was
    asked for, and ``simulated`` are the tasks that were timed for it: what ``npusim.alternatives``
    begins with.
    """

    workload: Workload
    device: Device
    batch: int
    setting: Setting
    step: Training
    launched: tuple[LaunchedOperation, ...]
    fused: Mapping[str, int]
    planned: FormatPlan | OnlyPlan | None
    reduced: Reduced | None = None
    automatic: AutomaticTilings | None = None
    fitting_batch: int | None = None
    request: StepRequest | None = None
    simulated: Mapping[Task, Timed] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: network, device, mode, time, and how much of it is missing."""
        missing = f", {len(self.failed)} not simulated" if self.failed else ""
        missing += ", partial" if self.workload.unknown_products else ""
        if not self.fits:
            missing += f", needs {bytes_text(self.peak_bytes)} of {bytes_text(self.card_bytes)}"
        return (
            f"<StepResult {self.workload.name} on {self.device.name}, {self.setting.mode} mode: "
            f"{self.time_us:.3f} us, {len(self.launched)} operations{missing}>"
        )

    @property
    def jobs(self) -> int | None:
        """Processes for what is asked of the step: those it was asked for with, else this one."""
        return 1 if self.request is None else self.request.jobs

    @cached_property
    def plan(self) -> FormatPlan | None:
        """How formats were chosen, and its times; None where every operation converts.

        Where nothing was open its kernels are simulated, with a cold L2, when this is first asked
        for; ``StoreError`` where the step's store cannot be used.
        """
        if isinstance(self.planned, OnlyPlan):
            return self.planned.timed(self.simulated, self.jobs)
        return self.planned

    @property
    def cards(self) -> int:
        """Cards that exchange their gradients."""
        return self.setting.cards

    @property
    def failed(self) -> tuple[LaunchedOperation, ...]:
        """Operations without a time; the totals lack them."""
        return tuple(one for one in self.launched if one.timed.result is None)

    @property
    def complete(self) -> bool:
        """Whether the totals lack no operation, and none that multiplies is known by name alone."""
        return not self.failed and not self.workload.unknown_products

    @cached_property
    def cycles(self) -> int:
        """Cycles of all kernels and launches of one card, and of waits for main memory."""
        return sum(one.cycles for one in self.launched)

    @property
    def compute_us(self) -> float:
        """Microseconds of ``cycles``."""
        return self.device.time_us(self.cycles)

    @property
    def time_us(self) -> float:
        """``compute_us``, and what the exchange of gradients adds to it."""
        return self.compute_us + (self.reduced.added_us if self.reduced else 0.0)

    @property
    def network_kind(self) -> str:
        """The kind of network by its graph: residual, plain, pooled or concatenated, ..."""
        return kind_of_network(self.workload)

    @property
    def time_range(self) -> TimeRange:
        """The range within which 80 % of measured steps of such networks lie.

        No figure of the device is varied, whose effects are therefore empty.
        """
        kind = self.network_kind
        work = step_of(kind) if kind else ""
        spread = spread_of(self.device.product, work)
        return TimeRange(time_us=self.time_us, effects=(), spread=spread, work=work)

    @property
    def at_least(self) -> Ends:
        """What no programs for its operations, one after another, are faster than.

        Conversions of layouts and the exchange of gradients are none of them.
        """
        operations = (one for one in self.launched if not one.value)
        return in_turn(
            one.timed.result.at_least
            for one in operations
            if one.timed.result is not None
            for _ in range(one.count)
        )

    @cached_property
    def plausibility(self) -> Plausibility[StepResult]:
        """The step held against the least of its operations; simulates what is asked of it."""
        return Plausibility(self)

    @property
    def tuned(self) -> StepResult:
        """The step in which operations far from their least have the better of two tilings.

        These are the library's and an automatic one. Some operations are simulated when this is
        first asked for.
        """
        return self.plausibility.tuned

    @property
    def images_per_second(self) -> float:
        """Images of all cards a second."""
        return self.batch * self.setting.cards / self.time_us * 1e6

    @property
    def conversions(self) -> tuple[LaunchedOperation, ...]:
        """The conversions of layouts that remain."""
        return tuple(one for one in self.launched if one.value)

    @cached_property
    def memory_over_time(self) -> StepMemory:
        """The lives of all values, and what is in memory while each launch runs."""
        return StepMemory(self.device, self.launched, self.step)

    @property
    def kept_bytes(self) -> int:
        """The most bytes that values take at once: parameters, state, and what is still read."""
        return self.memory_over_time.values_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes that values and workspace take at once."""
        return self.memory_over_time.peak_bytes

    @property
    def card_bytes(self) -> int:
        """Bytes of the card's main memory."""
        return self.device.main_memory.size_bytes

    @property
    def fits(self) -> bool:
        """Whether the card's main memory holds the step."""
        return self.peak_bytes <= self.card_bytes

    @cached_property
    def spent(self) -> Energy:
        """The energy of one card by figure of the device."""
        runs = (run for one in self.launched for run in one.runs)
        crossing_bytes = self.fetched_bytes + self.written_back_bytes
        return energy_of(self.device, runs, self.time_us, main_memory_bytes=crossing_bytes)

    # -- main memory -------------------------------------------------------------------------

    @property
    def fetched_bytes(self) -> int:
        """Bytes that main memory sends in the step."""
        return sum(operation.fetched_bytes for operation in self.launched)

    @property
    def written_back_bytes(self) -> int:
        """Bytes that go to main memory in the step: dirty lines whose room others need."""
        return sum(operation.written_back_bytes for operation in self.launched)

    @property
    def fetched_again_bytes(self) -> int:
        """Bytes of ``fetched_bytes`` that kernels fetch once more after they lost them."""
        return sum(max(0, each.fetched_bytes - each.l2.fetched) for each in self.launched)

    @property
    def unread_bytes(self) -> int:
        """Bytes of ``written_back_bytes`` that are of values nothing reads any more."""
        return sum(operation.l2.unread for operation in self.launched)

    @property
    def dirty_bytes(self) -> int:
        """Bytes that are dirty in the L2 when the step ends, and are not written back."""
        return self.launched[-1].l2.dirty if self.launched else 0

    @property
    def waiting_us(self) -> float:
        """Microseconds that operations wait for main memory beyond their kernels and launches.

        No operation is shorter than main memory takes for its bytes, dirty lines of others among
        them.
        """
        return self.device.time_us(sum(operation.waiting_cycles for operation in self.launched))

    # -- where the time goes ------------------------------------------------------------------

    @cached_property
    def replay(self) -> StepReplay | None:
        """How to time the step again; None where one of its results does not know how."""
        return replay_of(self.device, self.launched, self.setting.cards, self.step.parameters)

    def time_us_on(self, device: Device) -> float:
        """``time_us`` on a variant of the device, with the tilings and formats of this step.

        Which operands operations find in the L2 stays, too. Raises as ``Result.time_us_on`` does.
        """
        if device.groups != self.device.groups:
            raise ArgumentError(
                f"{device.name} has {device.groups} core groups, the operations of "
                f"{self.workload.name} were tiled for {self.device.groups}; call npusim.step again "
                "on such a device"
            )
        return self._again().time_us(device.launching(self.device.launch_mode))

    def _again(self) -> StepReplay:
        """How to time the step again; ``ArgumentError`` where the result does not know."""
        if self.replay is None:
            raise ArgumentError(
                f"{self.workload.name}: this result was not made by npusim.step, so it cannot be "
                "timed again with other figures"
            )
        return self.replay

    @cached_property
    @collecting_seldom()
    def trials(self) -> StepTrials:
        """The parts of the device that were tried twice as fast so far."""
        return StepTrials(self._again(), self.time_us)

    @cached_property
    @collecting_seldom()
    def verdict(self) -> StepVerdict | None:
        """The part of the device, the kind and the operation that hold the step up most.

        Distinct operations are timed a few times when this is first asked for. None where nothing
        took time, or where the result does not know how.
        """
        if self.replay is None or not self.time_us:
            return None
        kinds: dict[str, dict[int, float]] = {}
        operations: dict[str, dict[int, float]] = {}
        for place, operation in enumerate(self.launched):
            for kind, run in operation.parts:
                us = self.device.time_us(run.cycles + run.launch_cycles)
                times = kinds.setdefault(kind, {})
                times[place] = times.get(place, 0.0) + us
            if operation.waiting_cycles:
                times = kinds.setdefault(operation.waiting_kind, {})
                times[place] = times.get(place, 0.0) + operation.waiting_us
            operations.setdefault(f"{operation.name} ({operation.kind})", {})[place] = operation.us
        return step_verdict(self.replay, self.trials, kinds, operations)

    @property
    def bottleneck(self) -> str:
        """The name of the part of the device of the ``verdict``, "" where there is none."""
        return "" if self.verdict is None else self.verdict.name

    @cached_property
    def losses(self) -> tuple[Loss, ...]:
        """The operations that lose most against their least time, and why.

        Their kernels are timed again once when this is first asked for.
        """
        return largest_losses(self.device, alike_operations(self.launched))

    @cached_property
    @collecting_seldom()
    def advice(self) -> tuple[Advice, ...]:
        """Changes that would make the step faster, each with the time it was simulated at.

        Tilings and formats stay. Distinct operations are timed again a few times when this is first
        asked for.
        """
        if self.replay is None or not self.time_us:
            return ()
        return advise_step(self.replay, self.trials)

    def what_if(self, progress: Tried | None = None) -> tuple[WhatIf, ...]:
        """The time with each figure it rests on, and each part, at half and at twice its value.

        Tilings and formats stay. ``progress`` is called with the distinct operations that were
        timed with all of them, and how many there are. ``ArgumentError`` where the result does not
        know how.
        """
        replay = self._again()
        ahead = partial(replay.simulate, jobs=self.jobs, progress=progress)
        return figures_tried(self.device, self.time_us, replay, ahead=ahead)

    def explain(self, *, what_if: bool = True, progress: Tried | None = None) -> StepExplanation:
        """Why the step takes its time: its verdict, what loses most, and what figures do.

        With ``what_if`` the distinct operations are timed twice for each figure of the device that
        their time rests on. ``ArgumentError`` where the result does not know how.
        """
        from npusim.results.step_explanation import StepExplanation

        self._again()
        # The parts that a verdict and advice try are among the changes: they find those times.
        changes = self.what_if(progress) if what_if else None
        return StepExplanation(
            workload=self.workload.name,
            description=self.workload.description,
            asked=f"batch {self.batch}, {self.setting.passes}, {asked(self.asked())}",
            missing=self._missing(),
            version=__version__,
            device=self.device,
            time_us=self.time_us,
            least_us=self.at_least.cold.us,
            kinds=self.kind_rows(),
            verdict=self.verdict,
            losses=self.losses,
            advice=self.advice,
            what_if=changes,
        )

    def _missing(self) -> str:
        """What the time lacks, "" where it lacks nothing."""
        names = ("operations", "unknown_products")
        return step_missing(row_of([fact for fact in STEP if fact.name in names], self))

    def asked(self) -> Row:
        """Facts on how the step runs."""
        return row_of([fact for fact in STEP if fact.name in ("mode", "layouts", "fused")], self)

    def bound(self, measured_us: float | None = None) -> Bounded:
        """The least time of the operations and of their kernels; ``measured_us`` is compared.

        Conversions of layouts are none of the operations. Raises ``ArgumentError`` if
        ``measured_us`` is no positive number.
        """
        if measured_us is not None and not 0 < measured_us < math.inf:
            raise ArgumentError(f"measured_us is {measured_us}; it must be a positive time")
        launch_cycles = sum(run.launch_cycles for one in self.launched for run in one.runs)
        return Bounded(
            call=f"step of {self.workload.name}: batch {self.batch}, {asked(self.asked())}",
            device=self.device.name,
            problem=self.at_least,
            program=program_ends(
                self.device, [run for operation in self.launched for run in operation.runs]
            ),
            time_us=self.time_us,
            launch_us=self.device.time_us(launch_cycles),
            measured_us=measured_us,
        )

    @property
    def useful_macs(self) -> int:
        """Multiply-adds that the problems of all operations need."""
        return sum(run.useful_macs for operation in self.launched for run in operation.runs)

    @property
    def peak_share(self) -> float | None:
        """MFU: useful multiply-adds over those of all cubes at full speed on the type of the step.

        None where the device has no cube.
        """
        cube = self.device.cube
        if cube is None or not self.time_us:
            return None
        each = cube.macs_per_cycle(self.setting.kinds.cube.name) * self.device.count("cube")
        cycles = self.time_us * self.device.clock_hz / 1e6
        return self.useful_macs / (float(each) * cycles)

    @property
    def main_memory_share(self) -> float | None:
        """The share of the time that main memory needs for the bytes it reads and writes."""
        if not self.time_us:
            return None
        cycles = metrics.main_memory_cycles(
            self.device, self.fetched_bytes, self.written_back_bytes
        )
        return self.device.time_us(float(cycles)) / self.time_us

    # -- tables ------------------------------------------------------------------------------

    def operation_rows(self) -> list[Row]:
        """``operations`` as plain values."""
        return step_rows.operation_rows(self.device, self.launched)

    def kind_rows(self) -> list[Row]:
        """``kinds`` as plain values."""
        return step_rows.kind_rows(self.device, self.launched, self.cycles, PHASES)

    def traffic_rows(self) -> list[Row]:
        """``traffic`` as plain values."""
        return step_traffic.path_rows(self.device, self.launched, PHASES)

    def bound_rows(self) -> list[Row]:
        """``bounds`` as plain values."""
        return step_traffic.bound_rows(self.device, self.launched, self.cycles)

    @cached_property
    def operations(self) -> DataFrame:
        """One row per operation and conversion in the order of launch.

        ``kernels`` are all that it launches, ``us`` includes ``launch_us``; ``read_bytes`` and
        ``written_bytes`` are those of its values, ``fetched_bytes`` come from main memory and
        ``written_back_bytes`` go there. ``converts`` and ``to`` name a value and its new format.
        """
        return frame(self.operation_rows(), step_rows.OPERATION_COLUMNS)

    @property
    def table(self) -> DataFrame:
        """The operations."""
        return self.operations

    @cached_property
    def energy(self) -> DataFrame:
        """One row per figure of energy: bytes or multiply-adds, pJ ``each``, microjoules.

        No rows where the device lacks a figure that the step needs (``spent.missing``).
        """
        return frame(self.spent.table(), ENERGY_COLUMNS)

    @cached_property
    def kinds(self) -> DataFrame:
        """One row per phase and kind of operation, longest first in each phase."""
        return frame(self.kind_rows(), step_rows.KIND_COLUMNS)

    @cached_property
    def traffic(self) -> DataFrame:
        """Bytes per phase and path, main memory's as the launches move them after one another."""
        return frame(self.traffic_rows(), step_traffic.PATH_COLUMNS)

    @cached_property
    def bounds(self) -> DataFrame:
        """Least time of each resource for these kernels, the longest first.

        That of main memory also counts bytes of which ``time_us`` does not count the time.
        """
        return frame(self.bound_rows(), step_traffic.BOUND_COLUMNS)

    @cached_property
    def memory(self) -> DataFrame:
        """One row per launch: the bytes in memory while it runs, in all and by what they hold.

        ``after_bytes`` are left once it is done. ``start_us`` is that of ``operations``.
        """
        return frame(self.memory_over_time.rows(), MEMORY_COLUMNS)

    @cached_property
    def held(self) -> DataFrame:
        """One row per value that is there when memory is at its peak, the largest first."""
        return frame(self.memory_over_time.held_rows(), HELD_COLUMNS)

    @property
    def split(self) -> dict[str, float]:
        """Microseconds by kind of operation over all phases, most first; they add up."""
        found: dict[str, float] = {}
        for row in self.kind_rows():
            found[row["kind"]] = found.get(row["kind"], 0.0) + row["us"]
        if self.reduced:
            found["all-reduce"] = self.reduced.added_us
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the time does not say by itself."""
        results = [one.timed.result for one in self.launched if one.timed.result]
        seen, figures = notes_of(self.device, results)
        return (*notes_of_step(self), *seen, *figures)

    def to_json(self) -> Row:
        """Everything as plain values, ready for ``json.dumps``."""
        return row_of(STEP, self) | row_of(PLAUSIBILITY, self.plausibility)

    # -- views -------------------------------------------------------------------------------

    def text(self) -> str:
        """The report for people: totals, phases and kinds, conversions that remain, notes."""
        return report_text(self.as_report())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the time of each phase by kind of operation."""
        from npusim.results.shown.figures import stacks

        facts = row_of([fact for fact in STEP if fact.name in _DRAWN], self)
        return draw(stacks.phases(facts), ax)

    def plot_memory(self, ax: Axes | None = None) -> Axes:
        """Draw the memory of the step over its time, by what it holds."""
        from npusim.results.shown.figures import step_memory

        facts = row_of([fact for fact in STEP if fact.name in _DRAWN_OF_MEMORY], self)
        return draw(step_memory.over_time(facts), ax)

    def save_trace(self, path: str | Path) -> None:
        """Write phases, operations and kernels for ui.perfetto.dev; ``.json.gz`` compresses it."""
        from npusim.results.writers.perfetto import save_step

        save_step(self, Path(path))

    def as_report(self) -> Report:
        """The report as data; the page and what a notebook shows are made of it."""
        from npusim.results.shown import step

        return step.report(self.to_json(), self.device, self.launched)


def _plan(step: StepResult) -> Row | None:
    """How formats were chosen, None where every operation converts."""
    if step.plan is None:
        return None
    return {
        "us": step.plan.us,
        "bound_us": step.plan.bound_us,
        "proved": step.plan.proved,
        "framework_us": step.plan.framework_us,
    }


def _verdict(step: StepResult) -> Row | None:
    """The verdict in figures, None where there is none."""
    return None if step.verdict is None else step.verdict.to_json()


def _all_reduce(step: StepResult) -> Row | None:
    """The exchange of gradients, None of one card."""
    return None if step.reduced is None else step.reduced._asdict()


#: Facts that the figure of phases shows, which waits for no verdict.
_DRAWN = (
    "workload",
    "device",
    "batch",
    "pass",
    "mode",
    "compute_us",
    "time_us",
    "all_reduce",
    "kinds",
)

#: Facts that the figure of memory shows, which waits for no verdict either.
_DRAWN_OF_MEMORY = (
    "workload",
    "device",
    "batch",
    "pass",
    "mode",
    "compute_us",
    "memory",
    "peak",
    "peak_bytes",
    "card_bytes",
)

#: A step in JSON.
STEP: tuple[Fact[StepResult], ...] = (
    Fact("workload", "network", "", str, lambda step: step.workload.name),
    Fact("description", "description", "", str, lambda step: step.workload.description),
    Fact("npusim_version", "npusim", "", str, lambda _: __version__),
    Fact("device", "device", "", str, lambda step: step.device.name),
    Fact("device_digest", "digest", "", str, lambda step: step.device.digest()),
    Fact("clock_hz", "clock", "Hz", counts, lambda step: step.device.clock_hz),
    other_chips_of(lambda step: step.device),
    Fact("launch", "launch mode", "", str, lambda step: step.device.launch_mode),
    Fact("network_kind", "kind of network", "", str, lambda step: step.network_kind),
    Fact("batch", "batch", "", counts, lambda step: step.batch),
    Fact("dtype", "type of maps", "", str, lambda step: step.setting.kinds.maps.name),
    Fact(
        "normalisation_dtype",
        "type of normalisations",
        "",
        str,
        lambda step: step.setting.kinds.norm.name,
    ),
    Fact("pass", "pass", "", str, lambda step: step.setting.passes),
    Fact("mode", "mode", "", str, lambda step: step.setting.mode),
    Fact("layouts", "layouts", "", str, lambda step: step.setting.layouts),
    Fact("fusions", "fusions", "", ", ".join, lambda step: list(step.setting.fusions)),
    Fact("fused", "how often each was made", "", str, lambda step: dict(step.fused)),
    Fact("optimizer", "optimizer", "", str, lambda step: step.setting.optimizer),
    Fact("cards", "cards", "", counts, lambda step: step.setting.cards),
    Fact("complete", "complete", "", str, lambda step: step.complete),
    Fact(
        "unknown_products",
        "unknown products",
        "",
        str,
        lambda step: dict(step.workload.unknown_products),
    ),
    Fact("cycles", "cycles", "", counts, lambda step: step.cycles),
    Fact("compute_us", "time of kernels", "\u00b5s", us_text, lambda step: step.compute_us),
    Fact("time_us", "time", "\u00b5s", us_text, lambda step: step.time_us),
    Fact(
        "time_range",
        "range of the time",
        "\u00b5s",
        str,
        lambda step: step.time_range.to_json(),
    ),
    Fact(
        "at_least_us",
        "least of any programs",
        "\u00b5s",
        str,
        lambda step: [least.us for least in step.at_least],
    ),
    Fact("images_per_second", "speed", "images/s", rate_text, lambda step: step.images_per_second),
    Fact(
        "peak_share",
        "useful multiply-adds of the peak",
        "",
        percent_text,
        lambda step: step.peak_share,
    ),
    Fact(
        "main_memory_share",
        "main memory of the peak",
        "",
        percent_text,
        lambda step: step.main_memory_share,
    ),
    Fact("bottleneck", "bottleneck", "", str, lambda step: step.bottleneck),
    Fact("verdict", "bottleneck in figures", "", str, _verdict),
    Fact(
        "losses",
        "operations that lose most",
        "",
        str,
        lambda step: [row_of(LOSSES, loss) for loss in step.losses],
    ),
    Fact("all_reduce", "all-reduce", "", str, _all_reduce),
    Fact("plan", "plan of formats", "", str, _plan),
    Fact("fetched_bytes", "read", "", bytes_text, lambda step: step.fetched_bytes),
    Fact("written_back_bytes", "written", "", bytes_text, lambda step: step.written_back_bytes),
    Fact(
        "fetched_again_bytes", "read again", "", bytes_text, lambda step: step.fetched_again_bytes
    ),
    Fact("unread_bytes", "of no more use", "", bytes_text, lambda step: step.unread_bytes),
    Fact("dirty_bytes", "dirty at the end", "", bytes_text, lambda step: step.dirty_bytes),
    Fact("waiting_us", "wait for main memory", "\u00b5s", us_text, lambda step: step.waiting_us),
    Fact("kept_bytes", "memory of values", "", bytes_text, lambda step: step.kept_bytes),
    Fact("peak_bytes", "memory at most", "", bytes_text, lambda step: step.peak_bytes),
    Fact("card_bytes", "memory of the card", "", bytes_text, lambda step: step.card_bytes),
    Fact("fits", "fits the card", "", str, lambda step: step.fits),
    Fact("fitting_batch", "a batch that fits", "", str, lambda step: step.fitting_batch),
    Fact(
        "peak", "when memory is at its peak", "", str, lambda step: step.memory_over_time.peak_row()
    ),
    Fact(
        "held",
        "values at the peak",
        "",
        str,
        lambda step: step.memory_over_time.held_rows(MAX_HELD),
    ),
    Fact("memory", "memory over time", "", str, lambda step: step.memory_over_time.rows()),
    TOTAL_ENERGY,
    Fact("split", "time by kind", "", str, lambda step: step.split),
    Fact("kinds", "kinds", "", str, lambda step: step.kind_rows()),
    Fact("operations", "operations", "", str, lambda step: step.operation_rows()),
    Fact("traffic", "traffic", "", str, lambda step: step.traffic_rows()),
    Fact("bounds", "bounds", "", str, lambda step: step.bound_rows()),
    Fact("notes", "notes", "", str, lambda step: list(step.notes)),
)
