"""The result of one operator call: its arrays, its time, and every table and report of it."""

# Each way of showing a result is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.results.facts import tables
from npusim.results.facts.energy import ENERGY_COLUMNS
from npusim.results.facts.record import Record
from npusim.results.facts.saved import Reported
from npusim.results.facts.verdict import Report as Tried
from npusim.results.facts.verdict import what_if as figures_tried
from npusim.results.shown.report import Report
from npusim.results.shown.text import render
from npusim.results.writers.plots import Axes, draw

if TYPE_CHECKING:
    from npusim.results.facts.explanation import Explanation


class Result(Record, Reported):
    """What one call computed and how long it took, with the tables and reports of it.

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
        from npusim.results.facts.explanation import Explanation, KernelExplanation

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

    def to_json(self) -> dict[str, Any]:
        """Everything but arrays and timeline as plain values, ready for ``json.dumps``."""
        return {
            "operator": self.operator,
            "problem": self.problem,
            "workspace_bytes": self.workspace_bytes,
            "npusim_version": self.version,
            "device": self.device.name,
            "device_digest": self.device.digest(),
            "launch": self.device.launch_mode,
            "cycles": self.cycles,
            "time_us": self.time_us,
            "bottleneck": self.bottleneck,
            "verdict": None if self.verdict is None else self.verdict.to_json(),
            "advice": [one.to_json() for one in self.advice],
            "problem_us": self.problem_us,
            "energy_uj": self.energy_uj,
            "energy": self.spent.table(),
            "energy_missing": list(self.spent.missing),
            "problem_bound": self.problem_bounds[0].resource if self.problem_bounds else "",
            "output_names": list(self.output_names),
            "notes": list(self.notes),
            "kernels": tables.kernel_rows(self.device, self.runs),
            "pipes": tables.pipe_rows(self.runs),
            "traffic": tables.traffic_rows(self.runs),
            "bounds": tables.bound_rows(self.runs),
        }

    def text(self) -> str:
        """The report for people, at most 80 columns wide."""
        return render(self)

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
