"""Bytes that a training step moves between memories, and the least time that its parts need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from npusim.machine.device.spec import Device
from npusim.machine.timing.bounds import longest_first, main_memory_bounds
from npusim.machine.timing.trace import Bound, TrafficRow
from npusim.results.facts import metrics
from npusim.results.facts.fact import Fact, names_of, row_of
from npusim.results.facts.metrics import MAIN_MEMORIES, PathTotal
from npusim.results.facts.number_text import bytes_text, counts, percent_text, us_text
from npusim.results.facts.step_rows import StepOperation

Row = dict[str, Any]


class PathColumns(NamedTuple):
    """The bytes that a phase of a step moved on a path."""

    phase: str
    total: PathTotal


#: A path between two memories in a phase of a step.
PATHS: tuple[Fact[PathColumns], ...] = (
    Fact("phase", "phase", "", str, lambda path: path.phase),
    Fact("src", "from", "", str, lambda path: path.total.src),
    Fact("dst", "to", "", str, lambda path: path.total.dst),
    Fact("bytes", "bytes", "", bytes_text, lambda path: path.total.bytes),
    Fact("hit_bytes", "L2 hits", "", bytes_text, lambda path: path.total.hit_bytes),
    Fact("miss_bytes", "L2 misses", "", bytes_text, lambda path: path.total.miss_bytes),
    Fact("fetched_bytes", "fetched", "", bytes_text, lambda path: path.total.fetched_bytes),
)

#: Columns of ``StepResult.traffic``; a promise to users.
PATH_COLUMNS = names_of(PATHS)


class BoundColumns(NamedTuple):
    """A bound of a step that takes ``step_cycles``: ``of`` the whole step, or of its kernels."""

    device: Device
    bound: Bound
    step_cycles: int
    of: str


#: What a bound is of that counts the bytes of all launches together, which is one of main memory.
WHOLE_STEP = "step"

#: The least time that a resource needs for the kernels of a step, one after another.
BOUNDS: tuple[Fact[BoundColumns], ...] = (
    Fact("resource", "resource", "", str, lambda row: row.bound.resource),
    Fact("cycles", "cycles", "", counts, lambda row: row.bound.cycles),
    Fact("us", "time", "\u00b5s", us_text, lambda row: row.device.time_us(row.bound.cycles)),
    Fact(
        "share",
        "share",
        "",
        percent_text,
        lambda row: metrics.share(row.bound.cycles, row.step_cycles),
    ),
    Fact("why", "why", "", str, lambda row: row.bound.why),
    Fact("of", "of the", "", str, lambda row: row.of),
)

#: Columns of ``StepResult.bounds``; a promise to users.
BOUND_COLUMNS = names_of(BOUNDS)


def path_rows(
    device: Device, operations: Iterable[StepOperation], phases: Iterable[str]
) -> list[Row]:
    """One row per phase and path that moved bytes.

    On chip they are those of the kernels. What leaves the L2 is not what kernels by themselves
    wrote back: it is what the launches of the step did, one after another.
    """
    by_phase: dict[str, list[StepOperation]] = {}
    for operation in operations:
        by_phase.setdefault(operation.phase, []).append(operation)
    return [
        row_of(PATHS, PathColumns(phase, total))
        for phase in phases
        for total in _totals_of(device, by_phase.get(phase, []))
    ]


def _totals_of(device: Device, operations: Sequence[StepOperation]) -> tuple[PathTotal, ...]:
    """Bytes by path of some operations."""
    runs = (run for operation in operations for run in operation.runs)
    main = device.main_memory_name
    front = "L2" if device.l2 is not None else "GM"
    fetched = sum(operation.fetched_bytes for operation in operations)
    written_back = sum(operation.written_back_bytes for operation in operations)
    rows = [row for row in metrics.path_totals(runs, operands=False) if not _crosses(row)]
    rows.append(PathTotal(main, front, "", fetched, 0, 0))
    rows.append(PathTotal(front, main, "", written_back, 0, 0))
    return metrics.added_up(rows)


def _crosses(row: TrafficRow) -> bool:
    """Return whether the bytes come from main memory or go there."""
    return row.src in MAIN_MEMORIES or row.dst in MAIN_MEMORIES


def path_totals(rows: Iterable[Mapping[str, Any]]) -> tuple[PathTotal, ...]:
    """Totals by path of ``rows`` of all phases."""
    return metrics.added_up(
        TrafficRow(
            row["src"],
            row["dst"],
            "",
            row["bytes"],
            row["hit_bytes"],
            row["miss_bytes"],
            row["fetched_bytes"],
        )
        for row in rows
    )


def bound_rows(device: Device, operations: Sequence[StepOperation], step_cycles: int) -> list[Row]:
    """One row per resource, the longest first: sums over the kernels, of main memory over the step.

    Times of kernels do not count all that the step writes back (``StepResult.notes``), so that the
    share of main memory can be above 1.
    """
    fetched = sum(operation.fetched_bytes for operation in operations)
    written_back = sum(operation.written_back_bytes for operation in operations)
    crossing = main_memory_bounds(device, fetched, written_back)
    of_main_memory = {bound.resource for bound in main_memory_bounds(device, 1, 1)}
    totals = metrics.by_resource(
        bound for operation in operations for run in operation.runs for bound in run.bounds
    )
    why = "sum over the kernels of the step"
    of_kernels = [
        Bound(resource, cycles, why)
        for resource, cycles in totals.items()
        if cycles and resource not in of_main_memory
    ]
    rows = []
    for bound in longest_first([*crossing, *of_kernels]):
        of = WHOLE_STEP if bound in crossing else "kernels"
        rows.append(row_of(BOUNDS, BoundColumns(device, bound, step_cycles, of)))
    return rows
