"""The result of one operator call: its arrays, its time, and every table and report of it."""

# Each way of showing a result is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from npusim.device.spec import Device
from npusim.errors import ArgumentError
from npusim.results import metrics, tables, uncertainty
from npusim.results.answer import Answer
from npusim.results.energy import ENERGY_COLUMNS, Energy, energy_of
from npusim.results.lines import counted
from npusim.results.uncertainty import Replay, TimeRange
from npusim.timing.trace import Bound, KernelRun
from npusim.written import write

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from npusim.results.explanation import Explanation
    from npusim.results.verdict import Report, Verdict

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Result(Answer):
    """What one call computed and how long its kernels took, one after another.

    ``outputs`` has one entry per name of ``output_names`` (None where it was masked out) and is
    None for a timing-only run. ``workspace_bytes`` is the global memory the kernels use between
    them. ``dtype`` names the cube rate that peaks are quoted for. ``problem_bounds`` are least
    cycles of the call, whatever programs compute it, longest first. ``sizes`` are those of the
    problem that the cube rounds up, by name, with what whole blocks make of them. ``replay`` times
    the call again for ``time_range`` and ``explain``; without it there are none. ``tilings`` are
    those the kernels ran with, by name: what the keyword ``tiling`` of a call takes.

    Plots drawn without ``ax`` are on a figure of pyplot, as those of ``plt.subplots()`` are: a
    notebook displays it, a script shows it with ``plt.show()`` or closes it with ``plt.close()``.
    """

    operator: str
    device: Device
    runs: tuple[KernelRun, ...]
    outputs: tuple[Array | None, ...] | None
    output_names: tuple[str, ...]
    notes: tuple[str, ...]
    problem: str
    version: str
    dtype: str | None = None
    workspace_bytes: int = 0
    problem_bounds: tuple[Bound, ...] = ()
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tilings: Mapping[str, Any] = field(default_factory=dict)
    replay: Replay | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Reject arrays that do not match their names."""
        if self.outputs is not None and len(self.outputs) != len(self.output_names):
            raise ArgumentError(
                f"{self.operator}: {len(self.outputs)} outputs for {len(self.output_names)} names "
                f"({', '.join(self.output_names)}); give one array or None per name"
            )

    def __repr__(self) -> str:
        """One line: operator, device, time and number of kernels."""
        return (
            f"<Result {self.operator} on {self.device.name}: {self.time_us:.3f} us, "
            f"{self.cycles} cycles, {counted(len(self.runs), 'kernel')}>"
        )

    @property
    def cycles(self) -> int:
        """Cycles of the device clock, summed over kernels, launches included."""
        return metrics.total_cycles(self.runs)

    @property
    def time_us(self) -> float:
        """``cycles`` in microseconds."""
        return self.device.time_us(self.cycles)

    @cached_property
    def spent(self) -> Energy:
        """The energy of the call by figure of the device, launches included."""
        return energy_of(self.device, self.runs, self.time_us)

    @property
    def energy_uj(self) -> float | None:
        """Microjoules of the call; None where the device lacks a figure (``spent.missing``)."""
        return self.spent.uj

    @cached_property
    def time_range(self) -> TimeRange:
        """The time with each assumed or fitted figure it rests on at the ends of its range.

        And with what measured kernels or calls on such chips differ from simulated ones.

        The kernels are timed twice per figure when this is first asked for; from then on reports
        show it. ``ArgumentError`` where the result does not know how.
        """
        return uncertainty.time_range(
            self.device, self.time_us, self._again(), kernels=len(self.runs)
        )

    def time_us_on(self, device: Device) -> float:
        """``time_us`` on a variant of the device, with the tilings and the cores of this call.

        It is many times as quick as a call, for programs are kept and costed anew. Raises
        ``ArgumentError`` where the result does not know how, or the variant has other numbers of
        core groups; ``ConfigError``, ``CapacityError`` or ``ProgramError`` where it lacks what a
        kernel needs.
        """
        if device.groups != self.device.groups:
            raise ArgumentError(
                f"{device.name} has {device.groups} core groups, {self.operator} was tiled for "
                f"{self.device.groups}; call it again on such a device"
            )
        return self._again().time_us(device.launching(self.device.launch_mode))

    def explain(self, *, what_if: bool = True, progress: Report | None = None) -> Explanation:
        """Why the call takes its time: the critical path of each kernel, and what figures do.

        Kernels are simulated again once, and with ``what_if`` twice for each figure of the device
        that the time rests on, at half and at twice its value. ``progress`` is called with the
        figures tried and how many there are. ``ArgumentError`` where the result does not know how,
        or where a kernel has too many instructions.
        """
        from npusim.results.explanation import Explanation, KernelExplanation
        from npusim.results.verdict import what_if as figures_tried

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

    def _again(self) -> Replay:
        """How to time the call again; ``ArgumentError`` where the result does not know."""
        if self.replay is None:
            raise ArgumentError(
                f"{self.operator}: this result was not made by a call, so it cannot be timed again "
                "with other figures; take the result of an operator or of npusim.simulate"
            )
        return self.replay

    @property
    def known_time_range(self) -> TimeRange | None:
        """``time_range`` if it has been computed."""
        return self.__dict__.get("time_range")

    @property
    def problem_us(self) -> float | None:
        """The largest of ``problem_bounds`` in microseconds, None where there is none."""
        if not self.problem_bounds:
            return None
        return self.device.time_us(self.problem_bounds[0].cycles)

    @property
    def useful_macs(self) -> dict[str, int]:
        """Multiply-adds the problem needs, by the name of the kernel that executes them.

        It executes more where it pads. Kernels of unknown use have no entry.
        """
        found: dict[str, int] = {}
        for run in self.runs:
            if run.macs and run.useful_macs:
                found[run.name] = found.get(run.name, 0) + run.useful_macs
        return found

    @cached_property
    def verdict(self) -> Verdict | None:
        """The part of the device that holds the call up most, and what it saves twice as fast.

        The kernels are timed a few times when this is first asked for. None where the result does
        not know how, or has too many instructions.
        """
        from npusim.results.verdict import verdict

        if self.replay is None:
            return None
        return verdict(self.device, self.time_us, self.runs, self.replay)

    @property
    def bottleneck(self) -> str:
        """The name of the ``verdict`` ("" where there is none)."""
        return "" if self.verdict is None else self.verdict.name

    @property
    def grad_input(self) -> Array | None:
        """The gradient of the input, None where the call has none."""
        return self._output("grad_input")

    @property
    def grad_weight(self) -> Array | None:
        """The gradient of the weight, None where the call has none."""
        return self._output("grad_weight")

    @property
    def grad_bias(self) -> Array | None:
        """The gradient of the bias, None where the call has none."""
        return self._output("grad_bias")

    def _output(self, name: str) -> Array | None:
        if self.outputs is None or name not in self.output_names:
            return None
        return self.outputs[self.output_names.index(name)]

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel; ``cycles`` and ``bound_us`` without the launch, ``time_us`` with.

        ``macs`` are executed, padding included, ``useful_macs`` those the problem needs.
        ``bound_us`` is the largest lower bound of the program, ``problem_us`` of its problem.
        """
        return tables.frame(self._kernel_rows(), tables.KERNEL_COLUMNS)

    @property
    def table(self) -> pd.DataFrame:
        """The kernels."""
        return self.kernels

    def _kernel_rows(self) -> list[tables.Row]:
        return tables.kernel_rows(self.device, self.runs)

    @cached_property
    def pipes(self) -> pd.DataFrame:
        """Cycles by reason per kernel, core and pipe; each row sums to the kernel's cycles."""
        return tables.frame(tables.pipe_rows(self.runs), tables.PIPE_COLUMNS)

    @cached_property
    def traffic(self) -> pd.DataFrame:
        """Bytes per kernel, path and operand, with L2 hits and misses for reads of GM."""
        return tables.frame(tables.traffic_rows(self.runs), tables.TRAFFIC_COLUMNS)

    @cached_property
    def bounds(self) -> pd.DataFrame:
        """Closed-form lower bounds in cycles per kernel and resource.

        ``of`` tells those of the "program" that ran from those of any for the same "problem".
        """
        return tables.frame(tables.bound_rows(self.runs), tables.BOUND_COLUMNS)

    @cached_property
    def energy(self) -> pd.DataFrame:
        """One row per figure of energy: bytes or multiply-adds, pJ ``each``, microjoules.

        No rows where the device lacks a figure that the call needs (``spent.missing``).
        """
        return tables.frame(self.spent.table(), ENERGY_COLUMNS)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row per instruction, in cycles from the start of the call."""
        return tables.timeline_frame(self.operator, self.runs)

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
            "problem_us": self.problem_us,
            "energy_uj": self.energy_uj,
            "energy": self.spent.table(),
            "energy_missing": list(self.spent.missing),
            "problem_bound": self.problem_bounds[0].resource if self.problem_bounds else "",
            "output_names": list(self.output_names),
            "notes": list(self.notes),
            "kernels": self._kernel_rows(),
            "pipes": tables.pipe_rows(self.runs),
            "traffic": tables.traffic_rows(self.runs),
            "bounds": tables.bound_rows(self.runs),
        }

    def text(self) -> str:
        """The report for people, at most 80 columns wide."""
        from npusim.results.text import render

        return render(self)

    def _repr_html_(self) -> str:
        """What a notebook shows at the end of a cell."""
        from npusim.results.web import summary

        return summary.call(self)

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
        from npusim.results import perfetto

        perfetto.save(self, Path(path), cores=cores, window=window)

    def report(self, path: str | Path) -> None:
        """Write one self-contained web page."""
        from npusim.results.web import run

        write(path, run.render(self))

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
        from npusim.results import plots

        return plots.plot_timeline(self, ax, cores=cores, window=window)

    plot = plot_timeline

    def plot_roofline(self, ax: Axes | None = None) -> Axes:
        """Draw each kernel's attained FLOP/s under the roofs of the cores it used."""
        from npusim.results import plots

        return plots.plot_roofline(self, ax)

    def plot_traffic(self, ax: Axes | None = None) -> Axes:
        """Draw the bytes of each path, reads of GM split into L2 hits and misses."""
        from npusim.results.bar_plots import plot_traffic

        return plot_traffic(self, ax)
