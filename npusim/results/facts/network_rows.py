"""Figures of a network's layers, and its layers as a file."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npusim.base.atomic_files import replacing
from npusim.machine.device.resources import LAUNCHES
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.facts import metrics
from npusim.results.facts.fact import Fact, names_of
from npusim.results.facts.number_text import counts, percent_text, us_text

#: The part of a network's time, besides ``LAUNCHES`` and the kernels of its outputs and gradients,
#: of kernels that change layouts, clear and cast.
LAYOUTS = "layouts"

#: What the kernels of each result are called.
PARTS = {
    "output": "outputs",
    "input": "input gradients",
    "weight": "weight gradients",
    "bias": "bias gradients",
    "": LAYOUTS,
}


def _with_launch(run: KernelRun) -> int:
    return run.cycles + run.launch_cycles


def _least(run: KernelRun) -> int:
    least = metrics.problem_bound(run)
    return least.cycles if least is not None else 0


#: What one run adds to the row of its kernel; what will be microseconds or a share is in cycles.
ADDED: tuple[Fact[KernelRun], ...] = (
    Fact("launches", "launches", "", counts, lambda _: 1, compared="kernel"),
    Fact("cycles", "cycles", "", counts, lambda run: run.cycles),
    Fact("time_us", "time with launches", "\u00b5s", us_text, _with_launch, compared="kernel"),
    Fact(
        "launch_us",
        "launches",
        "\u00b5s",
        us_text,
        lambda run: run.launch_cycles,
        compared="kernel",
    ),
    Fact("share", "share", "", percent_text, _with_launch),
    Fact("macs", "multiply-adds", "", counts, lambda run: run.macs, compared="kernel"),
    Fact("useful_macs", "useful multiply-adds", "", counts, lambda run: run.useful_macs),
    Fact("problem_us", "least of any program", "\u00b5s", us_text, _least, compared="kernel"),
)

#: Columns of ``NetworkResult.kernels``; a promise to users.
KERNEL_COLUMNS = ("kernel", *names_of(ADDED))


def least_us(layers: Iterable[Mapping[str, Any]]) -> float:
    """Microseconds of any programs for the rows of layers, at least; 0 for unknown ones."""
    us: float = sum(row["count"] * (row["problem_us"] or 0) for row in layers)
    return us


def split(runs: Iterable[KernelRun], times: int = 1) -> Counter[str]:
    """Cycles by part; kernels run one after another, so that they add up to all, ``times`` over."""
    cycles = Counter[str]()
    for run in runs:
        cycles[LAUNCHES] += times * run.launch_cycles
        cycles[PARTS[run.computes]] += times * run.cycles
    return cycles


def own_figures(device: Device, runs: Sequence[KernelRun]) -> dict[str, Any]:
    """Times of a layer's own kernels, those that multiply, and what bounds them.

    Conversions, clearing and casts have bounds of their own, which would hide the layer's.
    """
    multiplying = [run for run in runs if run.macs] or list(runs)
    bound = metrics.call_bound(multiplying)
    least = metrics.by_resource(map(metrics.problem_bound, multiplying))
    return {
        "own_bound": "" if bound is None else bound.resource,
        "own_us": device.time_us(sum(run.cycles for run in multiplying)),
        "own_bound_us": None if bound is None else device.time_us(bound.cycles),
        "own_problem_us": device.time_us(sum(least.values())) if least else None,
        "own_problem_bound": max(least, key=lambda name: least[name], default=""),
    }


def figures(device: Device, runs: Sequence[KernelRun]) -> dict[str, Any]:
    """Times of one layer by result and by part, and those of its own kernels, in microseconds."""
    times = {name or "other": 0 for name in PARTS}
    for run in runs:
        times[run.computes or "other"] += run.cycles + run.launch_cycles
    parts_us = {name: device.time_us(cycles) for name, cycles in split(runs).most_common()}
    return {
        **{f"{name}_us": device.time_us(cycles) for name, cycles in times.items()},
        "split": parts_us,
        "launch_us": parts_us.get(LAUNCHES, 0.0),
        "layout_us": parts_us.get(LAYOUTS, 0.0),
        "bottleneck": next(iter(parts_us), ""),
        **own_figures(device, runs),
    }


def kernel_rows(
    device: Device, runs: Iterable[tuple[int, KernelRun]], cycles: int
) -> list[dict[str, Any]]:
    """Kernels by name, the slowest first; each run counts so many times, of ``cycles`` in all."""
    sums: dict[str, Counter[str]] = {}
    for times, run in runs:
        added = {fact.name: times * fact.of(run) for fact in ADDED}
        sums.setdefault(run.name, Counter()).update(added)
    rows: list[dict[str, Any]] = []
    for name, counted in sums.items():
        row: dict[str, Any] = {"kernel": name}
        for fact in ADDED:
            value = counted[fact.name]
            row[fact.name] = device.time_us(value) if fact.unit == "\u00b5s" else value
        row["share"] = metrics.share(row["share"], cycles)
        rows.append(row)
    return sorted(rows, key=lambda row: -row["time_us"])


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows with a head; a list reads ``3x3``, one of lists ``1,1 1,1``."""
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_text(row[name]) for name in columns] for row in rows)


def _text(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    if value and isinstance(value[0], (list, tuple)):
        return " ".join(",".join(map(str, pair)) for pair in value)
    return "x".join(map(str, value))
