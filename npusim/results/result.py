"""The result of one operator call: its arrays, its time, and every table and report of it."""

# Each way of showing a result is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from npusim.device.spec import Device
from npusim.errors import ArgumentError
from npusim.results import metrics, tables, uncertainty
from npusim.results.uncertainty import Replay, TimeRange
from npusim.timing.trace import KernelRun

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one call computed and how long its kernels took, one after another.

    ``outputs`` has one entry per name of ``output_names`` (None where it was masked out) and is
    None for a timing-only run. ``workspace_bytes`` is the global memory the kernels use between
    them. ``dtype`` names the cube rate that peaks are quoted for. ``replay`` times the call again
    for ``time_range``; without it there is none.
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
            f"{self.cycles} cycles, {len(self.runs)} kernels>"
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
    def time_range(self) -> TimeRange:
        """The time with each assumed or fitted figure it rests on at the ends of its range.

        The kernels are timed twice per figure when this is first asked for; from then on reports
        show it. ``ArgumentError`` where the result does not know how.
        """
        if self.replay is None:
            raise ArgumentError(
                f"{self.operator}: this result was not made by a call, so it cannot be timed again "
                "with other figures; take the result of an operator or of npusim.simulate"
            )
        return uncertainty.time_range(self.device, self.time_us, self.replay)

    @property
    def known_time_range(self) -> TimeRange | None:
        """``time_range`` if it has been computed."""
        return self.__dict__.get("time_range")

    @property
    def bottleneck(self) -> str:
        """The resource with the largest lower bound over the call ("" where none is known)."""
        bound = metrics.call_bound(self.runs)
        return "" if bound is None else bound.resource

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
        """One row per kernel; ``cycles`` and ``bound_us`` without the launch, ``time_us`` with."""
        return tables.frame(tables.kernel_rows(self.device, self.runs), tables.KERNEL_COLUMNS)

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
        """Closed-form lower bounds in cycles per kernel and resource."""
        return tables.frame(tables.bound_rows(self.runs), tables.BOUND_COLUMNS)

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
            "cycles": self.cycles,
            "time_us": self.time_us,
            "bottleneck": self.bottleneck,
            "output_names": list(self.output_names),
            "notes": list(self.notes),
            "kernels": tables.kernel_rows(self.device, self.runs),
            "pipes": tables.pipe_rows(self.runs),
            "traffic": tables.traffic_rows(self.runs),
            "bounds": tables.bound_rows(self.runs),
        }

    def text(self) -> str:
        """The report for people, at most 100 columns wide."""
        from npusim.results.text import render

        return render(self)

    def save_trace(self, path: str | Path) -> None:
        """Write the timeline for ui.perfetto.dev; ``.json.gz`` compresses it."""
        from npusim.results import perfetto

        perfetto.save(self, Path(path))

    def report(self, path: str | Path) -> None:
        """Write one self-contained web page."""
        from npusim.results import html

        html.save(self, Path(path))

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

    def plot_roofline(self, ax: Axes | None = None) -> Axes:
        """Draw each kernel's attained FLOP/s under the roofs of the cores it used."""
        from npusim.results import plots

        return plots.plot_roofline(self, ax)

    def plot_traffic(self, ax: Axes | None = None) -> Axes:
        """Draw the bytes of each path, reads of GM split into L2 hits and misses."""
        from npusim.results import plots

        return plots.plot_traffic(self, ax)
