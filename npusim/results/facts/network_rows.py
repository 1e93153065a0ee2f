"""Figures of a network's layers, and its layers as a file."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npusim.base.atomic_files import replacing
from npusim.machine.device.resources import LAUNCHES
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import Bound, KernelRun
from npusim.results.facts import metrics
from npusim.results.facts.fact import Fact, names_of, row_of
from npusim.results.facts.number_text import counts, percent_text, us_text
from npusim.workloads import Layer

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


class LayerColumns(NamedTuple):
    """A layer of a network of ``network_cycles``, all ``count`` of it taking ``cycles``.

    ``runs`` are the kernels of one, None where it has no time; ``error`` says why.
    """

    device: Device
    layer: Layer
    runs: tuple[KernelRun, ...] | None
    error: str
    cycles: int
    network_cycles: int
    problem_bounds: tuple[Bound, ...]

    def us(self, cycles: int) -> float:
        """Cycles in microseconds."""
        return self.device.time_us(cycles)

    @property
    def run_cycles(self) -> int | None:
        """Cycles of one layer, with launches."""
        return None if self.runs is None else metrics.total_cycles(self.runs)

    @property
    def split_us(self) -> dict[str, float]:
        """Microseconds of one layer by part, most first."""
        parts = split(self.runs or ())
        return {name: self.us(cycles) for name, cycles in parts.most_common()}

    def result_us(self, computes: str) -> float | None:
        """Microseconds of the kernels that compute a result, "" for all others."""
        if self.runs is None:
            return None
        return self.us(sum(_with_launch(run) for run in self.runs if run.computes == computes))

    def part_us(self, part: str) -> float | None:
        """Microseconds of a part of the ``split``."""
        return None if self.runs is None else self.split_us.get(part, 0.0)

    @property
    def multiplying(self) -> Sequence[KernelRun]:
        """The layer's own kernels, those that multiply.

        Conversions, clearing and casts have bounds of their own, which would hide the layer's.
        """
        runs = self.runs or ()
        return [run for run in runs if run.macs] or runs

    @property
    def own_bound(self) -> Bound | None:
        """The largest lower bound of these kernels as programs."""
        return metrics.call_bound(self.multiplying)

    @property
    def own_least(self) -> dict[str, int]:
        """Cycles that any programs for the problems of these kernels need, by resource."""
        return metrics.by_resource(map(metrics.problem_bound, self.multiplying))


def _size(name: str) -> Fact[LayerColumns]:
    """A size of a layer, None of layers that have no such size."""
    return Fact(name, name, "", str, lambda row: vars(row.layer).get(name))


def _us(
    name: str, title: str, of: Callable[[LayerColumns], float | None], compared: str = ""
) -> Fact[LayerColumns]:
    """A time of a layer in microseconds."""
    return Fact(name, title, "\u00b5s", us_text, of, compared=compared)


def _own_us(row: LayerColumns) -> float | None:
    if row.runs is None:
        return None
    return row.us(sum(run.cycles for run in row.multiplying))


def _own_bound_us(row: LayerColumns) -> float | None:
    bound = row.own_bound
    return None if row.runs is None or bound is None else row.us(bound.cycles)


def _own_bound(row: LayerColumns) -> str | None:
    if row.runs is None:
        return None
    return "" if row.own_bound is None else row.own_bound.resource


def _own_problem_us(row: LayerColumns) -> float | None:
    return row.us(sum(row.own_least.values())) if row.own_least else None


def _own_problem_bound(row: LayerColumns) -> str | None:
    if row.runs is None:
        return None
    least = row.own_least
    return max(least, key=lambda name: least[name], default="")


def _share(row: LayerColumns) -> float | None:
    if row.runs is None:
        return None
    return row.cycles / row.network_cycles if row.network_cycles else 0.0


def _problem_us(row: LayerColumns) -> float | None:
    return row.us(row.problem_bounds[0].cycles) if row.problem_bounds else None


def _problem_bound(row: LayerColumns) -> str | None:
    return row.problem_bounds[0].resource if row.problem_bounds else None


#: What compares two networks calls a layer.
LAYER = "layer"

#: A layer of a network: ``total_us`` of all ``count`` of it, every other time of one.
LAYERS: tuple[Fact[LayerColumns], ...] = (
    Fact("layer", "layer", "", str, lambda row: row.layer.name),
    Fact("count", "count", "", counts, lambda row: row.layer.count, compared=LAYER),
    _size("cin"),
    _size("cout"),
    _size("spatial"),
    _size("kernel"),
    _size("stride"),
    _size("padding"),
    _size("dilation"),
    _size("groups"),
    _size("transposed"),
    _size("rows"),
    _size("products"),
    _size("n"),
    _us("output_us", "output", lambda row: row.result_us("output"), LAYER),
    _us("input_us", "gradient of the input", lambda row: row.result_us("input"), LAYER),
    _us("weight_us", "gradient of the weight", lambda row: row.result_us("weight"), LAYER),
    _us("bias_us", "gradient of the bias", lambda row: row.result_us("bias"), LAYER),
    _us(
        "other_us", "layouts, clearing, casts, with launches", lambda row: row.result_us(""), LAYER
    ),
    _us("launch_us", "launches", lambda row: row.part_us(LAUNCHES)),
    _us("layout_us", "layouts, clearing, casts", lambda row: row.part_us(LAYOUTS)),
    _us(
        "one_us",
        "time of one",
        lambda row: None if row.run_cycles is None else row.us(row.run_cycles),
    ),
    Fact("cycles", "cycles of one", "", counts, lambda row: row.run_cycles),
    _us(
        "total_us",
        "time of all",
        lambda row: None if row.runs is None else row.us(row.cycles),
        LAYER,
    ),
    Fact("share", "share", "", percent_text, _share),
    Fact(
        "bottleneck",
        "bottleneck",
        "",
        str,
        lambda row: next(iter(row.split_us), ""),
        compared=LAYER,
    ),
    Fact("error", "error", "", str, lambda row: row.error, compared=LAYER),
    _us("problem_us", "least of any programs", _problem_us),
    Fact("problem_bound", "least by", "", str, _problem_bound),
    _us("own_us", "time of its own kernels", _own_us, LAYER),
    _us("own_bound_us", "least of these programs", _own_bound_us),
    Fact("own_bound", "bound by", "", str, _own_bound),
    _us("own_problem_us", "least of any for their problems", _own_problem_us, LAYER),
    Fact("own_problem_bound", "least of these by", "", str, _own_problem_bound),
)

#: Columns of ``NetworkResult.layers``; a promise to users.
LAYER_COLUMNS = names_of(LAYERS)


def layer_row(columns: LayerColumns) -> dict[str, Any]:
    """A layer as plain values, with the ``split`` of one."""
    return {**row_of(LAYERS, columns), "split": columns.split_us}


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
