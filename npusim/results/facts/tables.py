"""Rows and data frames of a call; the column names here are a promise to users."""

# Only what needs a data frame imports pandas, which takes most of a second.
# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from npusim.base.errors import ArgumentError
from npusim.base.integers import IntArray
from npusim.base.reasons import REASONS
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import Bound, KernelRun, Timeline
from npusim.results.facts import metrics
from npusim.results.facts.fact import Fact, names_of, row_of
from npusim.results.facts.number_text import bytes_text, counts, us_text

if TYPE_CHECKING:
    import pandas as pd

#: Named here for all modules: only what makes one imports pandas.
DataFrame: TypeAlias = "pd.DataFrame"

Row = dict[str, Any]


class KernelColumns(NamedTuple):
    """A kernel of a call and where it ran."""

    device: Device
    run: KernelRun

    def us(self, cycles: int) -> float:
        """Cycles in microseconds."""
        return self.device.time_us(cycles)

    @property
    def bound(self) -> Bound | None:
        """The largest lower bound of the program."""
        return metrics.nearest_bound(self.run)

    @property
    def least(self) -> Bound | None:
        """The largest lower bound of any program for its problem."""
        return metrics.problem_bound(self.run)

    @property
    def useful_macs(self) -> int | None:
        """Multiply-adds that the problem needs; None where that is unknown."""
        return self.run.useful_macs if self.run.useful_macs or not self.run.macs else None

    def us_of(self, bound: Bound | None) -> float | None:
        """Microseconds of a bound, None where there is none."""
        return None if bound is None else self.us(bound.cycles)


def _resource(bound: Bound | None) -> str:
    """Resource of a bound, "" where there is none."""
    return "" if bound is None else bound.resource


#: A kernel of a call. ``macs`` are executed, padding included.
KERNELS: tuple[Fact[KernelColumns], ...] = (
    Fact("name", "kernel", "", str, lambda kernel: kernel.run.name),
    Fact("cycles", "cycles", "", counts, lambda kernel: kernel.run.cycles),
    Fact(
        "time_us",
        "time with launch",
        "\u00b5s",
        us_text,
        lambda kernel: kernel.us(kernel.run.cycles + kernel.run.launch_cycles),
        compared="time",
    ),
    Fact(
        "launch_us",
        "launch",
        "\u00b5s",
        us_text,
        lambda kernel: kernel.us(kernel.run.launch_cycles),
        compared="time",
    ),
    Fact(
        "bound_us",
        "least of the program",
        "\u00b5s",
        us_text,
        lambda kernel: kernel.us_of(kernel.bound),
        compared="time",
    ),
    Fact("bound", "bound by", "", str, lambda kernel: _resource(kernel.bound)),
    Fact("macs", "multiply-adds", "", counts, lambda kernel: kernel.run.macs),
    Fact("gm_bytes", "GM", "", bytes_text, lambda kernel: kernel.run.gm_bytes),
    Fact("cores", "cores", "", str, lambda kernel: kernel.run.cores),
    Fact("instructions", "instructions", "", counts, lambda kernel: kernel.run.instructions),
    Fact("tiling", "tiling", "", str, lambda kernel: kernel.run.tiling),
    Fact("useful_macs", "useful multiply-adds", "", counts, lambda kernel: kernel.useful_macs),
    Fact(
        "problem_us",
        "least of any program",
        "\u00b5s",
        us_text,
        lambda kernel: kernel.us_of(kernel.least),
        compared="time",
    ),
    Fact("problem_bound", "least by", "", str, lambda kernel: _resource(kernel.least)),
    Fact("extrapolated", "extrapolated", "", str, lambda kernel: kernel.run.extrapolated),
)


def least_share(row: Row) -> float | None:
    """The share of a kernel's time without its launch that any program for its problem needs.

    None where that is not known, or the kernel takes no time.
    """
    us = row["time_us"] - row["launch_us"]
    if not us or row["problem_us"] is None:
        return None
    share: float = row["problem_us"] / us
    return share


KERNEL_COLUMNS = names_of(KERNELS)
PIPE_COLUMNS = ("kernel", "core", "pipe", *REASONS)
TRAFFIC_COLUMNS = (
    "kernel",
    "src",
    "dst",
    "operand",
    "bytes",
    "hit_bytes",
    "miss_bytes",
    "fetched_bytes",
)
BOUND_COLUMNS = ("kernel", "resource", "cycles", "share", "why", "of")
TIMELINE_COLUMNS = (
    "kernel",
    "core",
    "pipe",
    "op",
    "start",
    "end",
    "bytes",
    "macs",
    "waited",
    "reason",
    "line",
)


def kernel_rows(device: Device, runs: Sequence[KernelRun]) -> list[Row]:
    """One row per kernel: ``cycles`` and ``bound_us`` without its launch, ``time_us`` with it.

    ``macs`` are executed, padding included; ``useful_macs`` are those the problem needs, missing
    where that is unknown. ``bound_us`` is of the program, ``problem_us`` of any for its problem.
    """
    return [row_of(KERNELS, KernelColumns(device, run)) for run in runs]


def pipe_rows(runs: Iterable[KernelRun]) -> list[Row]:
    """One row per kernel, core and pipe; the reasons are cycles and sum to the kernel's."""
    return [
        dict(zip(PIPE_COLUMNS, (run.name, row.core, row.pipe, *row.cycles), strict=True))
        for run in runs
        for row in sorted(
            run.pipes, key=lambda row: (metrics.core_key(row.core), metrics.pipe_key(row.pipe))
        )
    ]


def traffic_rows(runs: Iterable[KernelRun]) -> list[Row]:
    """One row per kernel, path and operand, in bytes."""
    return [
        dict(zip(TRAFFIC_COLUMNS, (run.name, *row), strict=True))
        for run in runs
        for row in run.traffic
    ]


def bound_rows(runs: Iterable[KernelRun]) -> list[Row]:
    """One row per kernel and resource; ``share`` is the bound over the simulated cycles.

    ``of`` says whether it is a bound of the program that ran or of its problem.
    """
    return [
        {
            "kernel": run.name,
            "resource": bound.resource,
            "cycles": bound.cycles,
            "share": metrics.share(bound.cycles, run.cycles),
            "why": bound.why,
            "of": of,
        }
        for run in runs
        for of, bounds in (("program", run.bounds), ("problem", run.problem_bounds))
        for bound in bounds
    ]


def frame(rows: Sequence[Row], columns: Sequence[str]) -> DataFrame:
    """``rows`` as a data frame that has ``columns`` even when there are no rows."""
    import pandas as pd

    table: DataFrame = pd.DataFrame(rows, columns=list(columns))
    return table


class CallTimeline(NamedTuple):
    """The instructions of a whole call in cycles of the call, and the kernel each belongs to."""

    kernels: tuple[str, ...]
    kernel: IntArray
    rows: Timeline


#: Columns of codes, each with the table of names that it points into.
_NAMED = (
    ("core", "cores"),
    ("pipe", "pipes"),
    ("op", "ops"),
    ("line", "lines"),
    ("about", "abouts"),
)
_PLAIN = ("bytes", "macs", "reason", "waited")


def has_timeline(runs: Iterable[KernelRun]) -> bool:
    """True if every kernel of the call kept its instructions."""
    return all(run.timeline is not None for run in runs)


def call_timeline(operator: str, runs: Sequence[KernelRun]) -> CallTimeline:
    """The kernels' timelines one after another, launches between them.

    Raises ArgumentError where one was not kept.
    """
    timelines = [run.timeline for run in runs if run.timeline is not None]
    if len(timelines) != len(runs):
        missing = ", ".join(run.name for run in runs if run.timeline is None)
        raise ArgumentError(
            f"{operator}: the timeline of {missing} was not kept, and neither a table, a plot "
            "nor a trace can be made without it; run again with timeline=True"
        )
    starts = metrics.kernel_starts(runs)
    columns: dict[str, Any] = {}
    for name in _PLAIN:
        parts = [getattr(timeline, name) for timeline in timelines]
        columns[name] = np.concatenate([_EMPTY, *parts])
    for name in ("start", "end"):
        shifted = [
            getattr(timeline, name).astype(np.int64) + start
            for timeline, start in zip(timelines, starts, strict=True)
        ]
        columns[name] = np.concatenate([_EMPTY, *shifted])
    for code, names in _NAMED:
        columns[names], columns[code] = _joined_codes(timelines, code, names)
    lengths = [len(timeline.start) for timeline in timelines]
    kernel = np.repeat(np.arange(len(runs), dtype=np.int64), lengths)
    return CallTimeline(tuple(run.name for run in runs), kernel, Timeline(**columns))


def within(
    call: CallTimeline,
    device: Device,
    cores: Sequence[str] | None,
    window: tuple[float, float] | None,
) -> npt.NDArray[np.bool_]:
    """Which instructions run on ``cores`` (None: any) and reach into ``window``, in microseconds.

    Raises ArgumentError for a core without an instruction, and where there is no instruction.
    """
    rows = call.rows
    shown = np.ones(len(rows.start), np.bool_)
    if cores is not None:
        unknown = [core for core in cores if core not in rows.cores]
        if unknown:
            raise ArgumentError(
                f"the call has no core {', '.join(unknown)}; its cores are {', '.join(rows.cores)}"
            )
        shown &= np.isin(rows.core, [rows.cores.index(core) for core in cores])
    if window is not None:
        low, high = (edge * device.clock_hz / 1e6 for edge in window)
        shown &= (rows.start - rows.waited < high) & (rows.end > low)
    if not shown.any() and len(shown):
        raise ArgumentError(
            f"no instruction runs there: the call takes {device.time_us(int(rows.end.max()))} us"
        )
    return shown


_EMPTY: IntArray = np.zeros(0, dtype=np.int64)


def _joined_codes(
    timelines: Sequence[Timeline], code: str, names: str
) -> tuple[tuple[str, ...], IntArray]:
    """One table of names for all kernels, and the codes that point into it."""
    places: dict[str, int] = {}
    codes: list[IntArray] = [_EMPTY]
    for timeline in timelines:
        table = [places.setdefault(name, len(places)) for name in getattr(timeline, names)]
        codes.append(np.asarray(table, dtype=np.int64)[getattr(timeline, code)])
    return tuple(places), np.concatenate(codes)


def timeline_frame(operator: str, runs: Sequence[KernelRun]) -> DataFrame:
    """One row per instruction in cycles of the call; names are categories to stay small."""
    import pandas as pd

    call = call_timeline(operator, runs)
    rows = call.rows
    columns: dict[str, Any] = {
        "kernel": pd.Categorical(np.asarray(call.kernels, dtype=object)[call.kernel]),
        "reason": pd.Categorical.from_codes(rows.reason, pd.Index(REASONS)),
    }
    for code, names in _NAMED:
        columns[code] = pd.Categorical.from_codes(
            getattr(rows, code), pd.Index(getattr(rows, names))
        )
    for name in ("start", "end", "bytes", "macs", "waited"):
        columns[name] = getattr(rows, name)
    table: DataFrame = pd.DataFrame(columns, columns=list(TIMELINE_COLUMNS))
    return table
