"""The largest batch of a training step that a card's memory holds."""

# Each way of showing it is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.records import collecting_seldom
from npusim.call.options import Options
from npusim.networks.run.fitting import MAX_BATCH, largest_fitting
from npusim.networks.run.memory import StepMemory
from npusim.networks.run.setting import Setting
from npusim.networks.run.step import (
    options_of,
    planned_memory,
    setting,
    smallest_network,
    step,
)
from npusim.networks.run.step_result import StepResult
from npusim.results.facts.fact import Fact, row_of
from npusim.results.facts.number_text import bytes_text, counts, rate_text
from npusim.results.facts.tables import DataFrame
from npusim.results.saved import Answer
from npusim.results.shown.network_words import peak_text
from npusim.results.shown.report import Report
from npusim.results.writers.plots import Axes
from npusim.results.writers.text import report_text
from npusim.version import __version__
from npusim.workloads import Workload
from npusim.workloads.repetition import for_batch

Row = dict[str, Any]

#: What the progress of a search calls its plans.
PLANNING = "planned batches"


class NextBatch(Struct, frozen=True, kw_only=True):
    """The next batch, which does not fit: the memory that it needs, ``simulated`` or planned.

    A plan has no workspace, so that it needs at least as much.
    """

    batch: int
    peak_bytes: int
    peak: Row
    held: Row
    simulated: bool


class LargestBatch(Answer, Struct, frozen=True, kw_only=True):
    """The largest batch that a card holds: the ``step`` of it as simulated, and the ``next_batch``.

    ``planned`` are the batches that were planned on the way, with the bytes of their values.
    """

    step: StepResult
    next_batch: NextBatch
    planned: tuple[tuple[int, int], ...]

    def __repr__(self) -> str:
        """One line: network, device, batch, memory and speed."""
        step = self.step
        return (
            f"<LargestBatch {step.workload.name} on {step.device.name}, {step.setting.mode} mode: "
            f"{self.batch:,} images, {bytes_text(step.peak_bytes)} of "
            f"{bytes_text(step.card_bytes)}, {rate_text(self.images_per_second)} images/s>"
        )

    @property
    def batch(self) -> int:
        """Images of a card."""
        return self.step.batch

    @property
    def images_per_second(self) -> float:
        """Images of all cards a second, in a step of this batch."""
        return self.step.images_per_second

    @property
    def table(self) -> DataFrame:
        """The memory of the step: see ``StepResult.memory``."""
        return self.step.memory

    def to_json(self) -> Row:
        """Everything as plain values, ready for ``json.dumps``."""
        return row_of(LARGEST_BATCH, self)

    def text(self) -> str:
        """The answer for people: the batch, what it and the next one need, and the speed."""
        return report_text(self.as_report())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the memory of the step over its time."""
        return self.step.plot_memory(ax)

    def as_report(self) -> Report:
        """The report as data: the batch, what it and the next one need, and its speed."""
        from npusim.results.shown import largest_batch as shown

        return shown.report(self.to_json(), self.step.to_json(), self.step.device)


#: The largest batch in JSON.
LARGEST_BATCH: tuple[Fact[LargestBatch], ...] = (
    Fact("workload", "network", "", str, lambda answer: answer.step.workload.name),
    Fact("npusim_version", "npusim", "", str, lambda _: __version__),
    Fact("device", "device", "", str, lambda answer: answer.step.device.name),
    Fact("mode", "mode", "", str, lambda answer: answer.step.setting.mode),
    Fact("card_bytes", "memory of the card", "", bytes_text, lambda answer: answer.step.card_bytes),
    Fact("batch", "largest batch", "", counts, lambda answer: answer.batch),
    Fact("peak_bytes", "memory at most", "", bytes_text, lambda answer: answer.step.peak_bytes),
    Fact(
        "peak",
        "when memory is at its peak",
        "",
        str,
        lambda answer: answer.step.memory_over_time.peak_row(),
    ),
    Fact(
        "held",
        "largest value at the peak",
        "",
        str,
        lambda answer: answer.step.memory_over_time.held_rows(1)[0],
    ),
    Fact("next_batch", "next batch", "", counts, lambda answer: answer.next_batch.batch),
    Fact(
        "next_peak_bytes",
        "memory that it needs",
        "",
        bytes_text,
        lambda answer: answer.next_batch.peak_bytes,
    ),
    Fact("next_peak", "when", "", str, lambda answer: answer.next_batch.peak),
    Fact("next_held", "largest value then", "", str, lambda answer: answer.next_batch.held),
    Fact("next_simulated", "simulated", "", str, lambda answer: answer.next_batch.simulated),
    Fact("time_us", "time", "\u00b5s", rate_text, lambda answer: answer.step.time_us),
    Fact(
        "images_per_second",
        "speed",
        "images/s",
        rate_text,
        lambda answer: answer.images_per_second,
    ),
    Fact("planned", "planned batches", "", str, lambda answer: [list(p) for p in answer.planned]),
)


@collecting_seldom()
def largest_batch(
    workload: Any,
    input_shape: Sequence[int] | None = None,
    *,
    inputs: Any = None,
    loss: Any = None,
    targets: Any = None,
    mode: str = "graph",
    passes: str = "training",
    layouts: str | None = None,
    fusions: str | Collection[str] | None = None,
    optimizer: str = "momentum",
    dtype: Any = "fp16",
    normalisation: Any = None,
    cards: int = 1,
    jobs: int | None = None,
    store: str | Path | None = None,
    **options: Any,
) -> LargestBatch:
    """The largest batch whose training step fits the main memory of ``device``.

    Arguments are those of ``npusim.step``, without a batch. Batches are planned, which gives the
    bytes of all values over time, until one fits and the next does not; the step of that one is
    simulated, which adds the workspace of its kernels, and so is the next where its values alone
    would fit. What the framework takes of the card is not counted: its context, rounding and
    fragmentation of its allocator.

    Raises ``CapacityError`` where not even the smallest batch fits, and ``ArgumentError`` as
    ``npusim.step`` does.
    """
    if "batch" in options:
        raise ArgumentError("batch is what is looked for; leave it out")
    smallest = smallest_network(workload, input_shape, inputs=inputs, loss=loss, targets=targets)
    machine_options = options_of(largest_batch, mode, options)
    how = setting(
        machine_options.machine,
        mode=mode,
        layouts=layouts,
        fusions=fusions,
        optimizer=optimizer,
        passes=passes,
        dtype=dtype,
        norm=normalisation,
        cards=cards,
    )

    def simulated(network: Workload) -> StepResult:
        return step(
            network,
            batch=network.batch,
            mode=mode,
            passes=passes,
            layouts=layouts,
            fusions=fusions,
            optimizer=optimizer,
            dtype=dtype,
            normalisation=normalisation,
            cards=cards,
            jobs=jobs,
            store=store,
            **options,
        )

    return _Search(smallest, machine_options, how, simulated).answer()


class _Search:
    """Batches of a network by their counts, multiples of the smallest, planned and simulated."""

    def __init__(
        self,
        smallest: Workload,
        options: Options,
        how: Setting,
        simulate: Callable[[Workload], StepResult],
    ) -> None:
        self.smallest = smallest
        self.options = options
        self.how = how
        self.simulate = simulate
        self.room = options.machine.main_memory.size_bytes
        self.plans: dict[int, StepMemory] = {}
        self.steps: dict[int, StepResult] = {}

    def answer(self) -> LargestBatch:
        """The largest batch, with the proof that the next one does not fit."""
        count = largest_fitting(self._values_bytes, self.room)
        while True:
            if count == 0:
                raise self._too_small()
            if count == MAX_BATCH:
                raise ArgumentError(
                    f"{self.smallest.name}: batch {self.smallest.batch * count:,} fits "
                    f"{self.options.machine.name} too, and larger ones are not tried; ask for a "
                    "step of the batch that you need"
                )
            result = self._simulated(count)
            if not result.fits:
                workspace = result.peak_bytes - self._values_bytes(count)
                fitting = largest_fitting(self._values_bytes, self.room - workspace, count)
                count = min(fitting, count - 1)
                continue
            following = self._next(count, result)
            if following.peak_bytes > self.room:
                break
            count += 1
        planned = {self.smallest.batch * n: plan.values_bytes for n, plan in self.plans.items()}
        return LargestBatch(
            step=result, next_batch=following, planned=tuple(sorted(planned.items()))
        )

    def _next(self, count: int, result: StepResult) -> NextBatch:
        """The next batch, as planned where that is enough to know that it does not fit.

        A plan is taken for a step where it has as many bytes of values at the batch before.
        """
        batch = self.smallest.batch * (count + 1)
        agree = result.kept_bytes == self._values_bytes(count)
        simulated = not agree or self._values_bytes(count + 1) <= self.room
        memory = self._simulated(count + 1).memory_over_time if simulated else self.plans[count + 1]
        return NextBatch(
            batch=batch,
            peak_bytes=memory.peak_bytes,
            peak=memory.peak_row(),
            held=memory.held_rows(1)[0],
            simulated=simulated,
        )

    def _values_bytes(self, count: int) -> int:
        """The most bytes that values take at once, as planned."""
        if count not in self.plans:
            progress = self.options.progress
            if progress is not None:
                name = f"batch {count * self.smallest.batch:,}"
                progress(name, PLANNING, len(self.plans), len(self.plans) + 1)
            self.plans[count] = planned_memory(self._network(count), self.options, self.how)
        return self.plans[count].values_bytes

    def _simulated(self, count: int) -> StepResult:
        """The step of a batch."""
        if count not in self.steps:
            self.steps[count] = self.simulate(self._network(count))
        return self.steps[count]

    def _network(self, count: int) -> Workload:
        return for_batch(self.smallest, count * self.smallest.batch)

    def _too_small(self) -> CapacityError:
        """The error of a card that does not hold the smallest batch."""
        device = self.options.machine
        step_of_it = self.steps.get(1)
        memory = self.plans[1] if step_of_it is None else step_of_it.memory_over_time
        return CapacityError(
            f"{self.smallest.name}: batch {self.smallest.batch} needs "
            f"{peak_text(memory.peak_row())}, and {device.name} has {bytes_text(self.room)} of "
            "main memory; use a device with more (--set main_memory.size=64GiB), a smaller "
            "network, or an optimizer with less state"
        )
