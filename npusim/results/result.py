"""The result of one operator call: its arrays, its time, and every table and report of it."""

# Each way of showing a result is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.base.errors import ArgumentError
from npusim.results.bounded import Bounded
from npusim.results.facts import tables
from npusim.results.facts.call import CallFacts
from npusim.results.facts.energy import ENERGY_COLUMNS
from npusim.results.facts.least import program_ends
from npusim.results.facts.what_if import Progress as Tried
from npusim.results.facts.what_if import what_if as figures_tried
from npusim.results.saved import Reported
from npusim.results.shown.report import Report
from npusim.results.writers.plots import Axes, draw
from npusim.results.writers.text import report_text

if TYPE_CHECKING:
    from npusim.results.explanation import Explanation


class Result(CallFacts, Reported):
    """Results of one call and how long it took, with the tables and reports of it.

    Plots drawn without ``ax`` are on a figure of pyplot, as those of ``plt.subplots()`` are: a
    notebook displays it, a script shows it with ``plt.show()`` or closes it with ``plt.close()``.
    """

    @cached_property
    def kernels(self) -> tables.DataFrame:
        """One row per kernel; ``cycles`` and ``bound_us`` without the launch, ``time_us`` with.

        ``macs`` are executed, padding included, ``useful_macs`` those the problem needs.
        ``bound_us`` is the largest lower bound of the program, ``problem_us`` of its problem.
        """
        return tables.frame(tables.kernel_rows(self.device, self.runs), tables.KERNEL_COLUMNS)

    @property
    def table(self) -> tables.DataFrame:
        """The kernels."""
        return self.kernels

    @cached_property
    def pipes(self) -> tables.DataFrame:
        """Cycles by reason per kernel, core and pipe; each row sums to the kernel's cycles."""
        return tables.frame(tables.pipe_rows(self.runs), tables.PIPE_COLUMNS)

    @cached_property
    def traffic(self) -> tables.DataFrame:
        """Bytes per kernel, path and operand, with L2 hits and misses for reads of GM."""
        return tables.frame(tables.traffic_rows(self.runs), tables.TRAFFIC_COLUMNS)

    @cached_property
    def bounds(self) -> tables.DataFrame:
        """Closed-form lower bounds in cycles per kernel and resource.

        ``of`` tells those of the "program" that ran from those of any for the same "problem".
        """
        return tables.frame(tables.bound_rows(self.runs), tables.BOUND_COLUMNS)

    @cached_property
    def energy(self) -> tables.DataFrame:
        """One row per figure of energy: bytes or multiply-adds, pJ ``each``, microjoules.

        No rows where the device lacks a figure that the call needs (``spent.missing``).
        """
        return tables.frame(self.spent.table(), ENERGY_COLUMNS)

    @cached_property
    def timeline(self) -> tables.DataFrame:
        """One row per instruction, in cycles from the start of the call."""
        return tables.timeline_frame(self.operator, self.runs)

    def explain(self, *, what_if: bool = True, progress: Tried | None = None) -> Explanation:
        """Why the call takes its time: the critical path of each kernel, and what figures do.

        Kernels are simulated again once, and with ``what_if`` twice for each figure of the device
        that the time rests on, at half and at twice its value. ``progress`` is called with the
        figures tried and how many there are. ``ArgumentError`` where the result does not know how,
        or where a kernel has too many instructions.
        """
        from npusim.results.explanation import Explanation
        from npusim.results.facts.explanation import KernelExplanation

        replay = self._again()
        traces = replay.traces(self.device)
        kernels = tuple(
            KernelExplanation(run=run, trace=trace, sizes=self.sizes if run.macs else {})
            for run, trace in zip(self.runs, traces, strict=True)
        )
        effects = figures_tried(self.device, self.time_us, replay, progress) if what_if else None
        return Explanation(
            verdict=self.verdict,
            operator=self.operator,
            problem=self.problem,
            version=self.version,
            device=self.device,
            cycles=self.cycles,
            kernels=kernels,
            what_if=effects,
        )

    def bound(self, measured_us: float | None = None) -> Bounded:
        """The least time of the problem and of these kernels; ``measured_us`` is compared with it.

        Raises ``ArgumentError`` if that is no positive number.
        """
        if measured_us is not None and not 0 < measured_us < math.inf:
            raise ArgumentError(f"measured_us is {measured_us}; it must be a positive time")
        return Bounded(
            call=f"{self.operator}: {self.problem}",
            device=self.device.name,
            problem=self.at_least,
            program=program_ends(self.device, self.runs),
            time_us=self.time_us,
            launch_us=self.device.time_us(sum(run.launch_cycles for run in self.runs)),
            measured_us=measured_us,
        )

    def text(self) -> str:
        """The report for people, at most 80 columns wide."""
        return report_text(self.as_report())

    def as_report(self) -> Report:
        """The report as data; the page and what a notebook shows are made of it."""
        from npusim.results.shown import call

        return call.report(self)

    def save_trace(
        self,
        path: str | Path,
        *,
        cores: tuple[str, ...] | None = None,
        window: tuple[float, float] | None = None,
    ) -> None:
        """Write the timeline for ui.perfetto.dev; ``.json.gz`` compresses it.

        ``cores`` are those to show (all), ``window`` is in microseconds of the call (all of it).
        """
        from npusim.results.writers import perfetto

        perfetto.save(self, Path(path), cores=cores, window=window)

    def plot_timeline(
        self,
        ax: Axes | None = None,
        *,
        cores: tuple[str, ...] | None = None,
        window: tuple[float, float] | None = None,
    ) -> Axes:
        """Draw who worked and who waited; ``window`` is in microseconds of the call.

        Without ``cores``, the first and the slowest core of each kernel are shown.
        """
        from npusim.results.shown.figures import timeline

        return draw(timeline.plotted(self, cores, window), ax)

    plot = plot_timeline

    def plot_roofline(self, ax: Axes | None = None) -> Axes:
        """Draw each kernel's attained FLOP/s under the roofs of the cores it used."""
        from npusim.results.shown.figures import roofline

        return draw(roofline.of_call(self), ax)

    def plot_traffic(self, ax: Axes | None = None) -> Axes:
        """Draw the bytes of each path, reads of GM split into L2 hits and misses."""
        from npusim.results.shown.figures import stacks

        return draw(stacks.traffic(self), ax)
