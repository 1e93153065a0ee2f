"""The result of a training step: what was launched, in order, and where the time goes."""

# Each way of showing it is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from npusim.call.in_turn import notes_of
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.vector.clear_blocks import ClearBlocks
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.networks.plan.formats import FormatPlan
from npusim.networks.rules.values import PHASES, Kinds, Training
from npusim.networks.run.all_reduce import Reduced
from npusim.networks.timed import Timed
from npusim.results.facts.energy import TOTAL_ENERGY, Energy, Spending, energy_of
from npusim.results.facts.fact import row_of
from npusim.results.facts.least import Ends, in_turn
from npusim.results.facts.tables import DataFrame, frame
from npusim.results.saved import Reported
from npusim.results.shown.network_words import TRAFFIC
from npusim.results.shown.report import Report
from npusim.results.writers.plots import Axes, draw
from npusim.results.writers.text import report_text
from npusim.version import __version__
from npusim.workloads import Workload

#: What the kernels that clear are counted as, and those that change layouts.
CLEARING, CONVERSIONS = "clearing", "layouts"

#: Columns of ``StepResult.kinds``; a promise to users.
KIND_COLUMNS = ("phase", "kind", "kernels", "us", "launch_us", "share", "bytes")

Row = dict[str, Any]


class Setting(Struct, frozen=True, kw_only=True):
    """How a step runs: see ``npusim.step`` for what each means."""

    mode: str
    layouts: str
    fusions: tuple[str, ...]
    optimizer: str
    passes: str
    kinds: Kinds
    cards: int = 1


class LaunchedOperation(Struct, frozen=True, kw_only=True):
    """An operation of a step, or a conversion of ``value`` to ``format``, as it was launched.

    ``sizes`` are the bytes of the values that it reads and writes. It runs ``count`` times in a
    row, each time on other numbers; ``timed`` is one of them. ``label`` is what the kind of its
    layer is called.
    """

    name: str
    kind: str
    phase: str
    layer: str
    timed: Timed
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: Mapping[str, int]
    value: str = ""
    format: str = ""
    count: int = 1
    label: str = ""

    @property
    def cycles(self) -> int:
        """Cycles of all times that it runs, with launches."""
        return self.count * self.timed.cycles

    @property
    def us(self) -> float:
        """Microseconds of all times that it runs, with launches."""
        return self.count * self.timed.us

    @property
    def runs(self) -> tuple[KernelRun, ...]:
        """The kernels of all times that it runs."""
        return self.count * self.timed.runs

    @property
    def read_bytes(self) -> int:
        """Bytes of all values that it reads."""
        return sum(self.sizes[name] for name in self.reads)

    @property
    def written_bytes(self) -> int:
        """Bytes of all values that it writes."""
        return sum(self.sizes[name] for name in self.writes)

    @property
    def parts(self) -> Iterator[tuple[str, KernelRun]]:
        """Its kernels by kind: what clears is counted apart."""
        for run in self.runs:
            yield (CLEARING if run.name in (MemSet.name, ClearBlocks.name) else self.kind), run


class StepResult(Reported, Spending, Struct, frozen=True, kw_only=True, dict=True):
    """A step of a network on one card of ``setting.cards``, in the order of launch.

    ``fused`` says how often each fusion was made, ``plan`` how formats were chosen, and ``reduced``
    what exchanging the gradients between cards takes.
    """

    workload: Workload
    device: Device
    batch: int
    setting: Setting
    step: Training
    launched: tuple[LaunchedOperation, ...]
    fused: Mapping[str, int]
    plan: FormatPlan | None
    reduced: Reduced | None = None

    def __repr__(self) -> str:
        """One line: network, device, mode, time, and how much of it is missing."""
        missing = f", {len(self.failed)} not simulated" if self.failed else ""
        missing += ", partial" if self.workload.unknown_products else ""
        return (
            f"<StepResult {self.workload.name} on {self.device.name}, {self.setting.mode} mode: "
            f"{self.time_us:.3f} us, {len(self.launched)} operations{missing}>"
        )

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
        """Cycles of all kernels and launches of one card."""
        return sum(one.cycles for one in self.launched)

    @property
    def compute_us(self) -> float:
        """Microseconds of all kernels and launches of one card."""
        return self.device.time_us(self.cycles)

    @property
    def time_us(self) -> float:
        """``compute_us``, and what the exchange of gradients adds to it."""
        return self.compute_us + (self.reduced.added_us if self.reduced else 0.0)

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

    @property
    def images_per_second(self) -> float:
        """Images of all cards a second."""
        return self.batch * self.setting.cards / self.time_us * 1e6

    @property
    def conversions(self) -> tuple[LaunchedOperation, ...]:
        """The conversions of layouts that remain."""
        return tuple(one for one in self.launched if one.value)

    @cached_property
    def kept_bytes(self) -> int:
        """The most bytes that values take at once: parameters, state, and what is still read."""
        last: dict[str, int] = {}
        for at, one in enumerate(self.launched):
            last |= dict.fromkeys((*one.reads, *one.writes), at)
        made = {name for one in self.launched for name in one.writes}
        sizes = {name: size for one in self.launched for name, size in one.sizes.items()}
        now = sum(size for name, size in sizes.items() if name not in made)
        most = now
        for at, one in enumerate(self.launched):
            now += sum(sizes[name] for name in dict.fromkeys(one.writes))
            most = max(most, now)
            gone = [n for n, end in last.items() if end == at and n in made]
            now -= sum(sizes[name] for name in gone)
        return most

    @cached_property
    def spent(self) -> Energy:
        """The energy of one card by figure of the device."""
        runs = (run for one in self.launched for run in one.runs)
        return energy_of(self.device, runs, self.time_us)

    # -- tables ------------------------------------------------------------------------------

    def operation_rows(self) -> list[Row]:
        """``operations`` as plain values."""
        rows, now = [], 0
        for one in self.launched:
            launch = sum(run.launch_cycles for run in one.runs)
            start, now = now, now + one.cycles
            rows.append(
                {
                    "operation": one.name,
                    "kind": one.kind,
                    "phase": one.phase,
                    "layer": one.layer,
                    "kernels": [run.name for run in one.timed.runs],
                    "count": one.count,
                    "start_us": self.device.time_us(start),
                    "us": self.device.time_us(one.cycles),
                    "launch_us": self.device.time_us(launch),
                    "read_bytes": one.read_bytes,
                    "written_bytes": one.written_bytes,
                    "converts": one.value,
                    "to": one.format,
                    "error": one.timed.error,
                }
            )
        return rows

    def kind_rows(self) -> list[Row]:
        """``kinds`` as plain values."""
        sums: dict[tuple[str, str], Counter[str]] = {}
        for one in self.launched:
            for kind, run in one.parts:
                found = sums.setdefault((one.phase, kind), Counter())
                found["kernels"] += 1
                found["cycles"] += run.cycles + run.launch_cycles
                found["launch"] += run.launch_cycles
                found["bytes"] += run.gm_bytes
        rows = [
            {
                "phase": phase,
                "kind": kind,
                "kernels": n["kernels"],
                "us": self.device.time_us(n["cycles"]),
                "launch_us": self.device.time_us(n["launch"]),
                "share": n["cycles"] / self.cycles if self.cycles else 0.0,
                "bytes": n["bytes"],
            }
            for (phase, kind), n in sums.items()
        ]
        return sorted(rows, key=lambda row: (PHASES.index(row["phase"]), -row["us"]))

    @cached_property
    def operations(self) -> DataFrame:
        """One row per operation and conversion in the order of launch.

        ``kernels`` are all that it launches, ``us`` includes ``launch_us``; bytes are those of the
        values it reads and writes. ``converts`` and ``to`` name a value and its new format.
        """
        rows = self.operation_rows()
        return frame(rows, tuple(rows[0]))

    @property
    def table(self) -> DataFrame:
        """The operations."""
        return self.operations

    @cached_property
    def kinds(self) -> DataFrame:
        """One row per phase and kind of operation, longest first in each phase."""
        return frame(self.kind_rows(), KIND_COLUMNS)

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
        return (*self._own_notes(), *seen, *figures)

    def _own_notes(self) -> Iterator[str]:
        from npusim.results.facts.number_text import times_text, us_text

        if self.setting.layouts != "each_call" and self.plan is not None:
            yield (
                "formats are chosen by the times of kernels that start with a cold L2; the step's "
                "own time counts what the kernels before leave there"
            )
        only = [one for one in self.launched if any(r.name == TRAFFIC for r in one.timed.runs)]
        if only:
            us = sum(one.us for one in only)
            counts: Counter[str] = Counter()
            for one in only:
                counts[one.label] += one.count
            yield (
                f"{us_text(us)} us are traffic only, bytes at the rates of main memory, because "
                f"there is no kernel: {times_text(counts.items())}"
            )

    def to_json(self) -> Row:
        """Everything as plain values, ready for ``json.dumps``."""
        setting, reduced = self.setting, self.reduced
        return {
            "workload": self.workload.name,
            "description": self.workload.description,
            "npusim_version": __version__,
            "device": self.device.name,
            "device_digest": self.device.digest(),
            "clock_hz": self.device.clock_hz,
            "launch": self.device.launch_mode,
            "batch": self.batch,
            "dtype": setting.kinds.maps.name,
            "normalisation_dtype": setting.kinds.norm.name,
            "pass": setting.passes,
            "mode": setting.mode,
            "layouts": setting.layouts,
            "fusions": list(setting.fusions),
            "fused": dict(self.fused),
            "optimizer": setting.optimizer,
            "cards": setting.cards,
            "complete": self.complete,
            "unknown_products": dict(self.workload.unknown_products),
            "cycles": self.cycles,
            "compute_us": self.compute_us,
            "time_us": self.time_us,
            "at_least_us": [one.us for one in self.at_least],
            "images_per_second": self.images_per_second,
            "all_reduce": None if reduced is None else reduced._asdict(),
            "plan": None
            if self.plan is None
            else {
                "us": self.plan.us,
                "bound_us": self.plan.bound_us,
                "proved": self.plan.proved,
                "framework_us": self.plan.framework_us,
            },
            "kept_bytes": self.kept_bytes,
            **row_of((TOTAL_ENERGY,), self),
            "split": self.split,
            "kinds": self.kind_rows(),
            "operations": self.operation_rows(),
            "notes": list(self.notes),
        }

    # -- views -------------------------------------------------------------------------------

    def text(self) -> str:
        """The report for people: totals, phases and kinds, conversions that remain, notes."""
        return report_text(self.as_report())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the time of each phase by kind of operation."""
        from npusim.results.shown.figures import stacks

        return draw(stacks.phases(self.to_json()), ax)

    def perfetto(self, path: str | Path) -> None:
        """Write phases, operations and kernels for ui.perfetto.dev; ``.json.gz`` compresses it."""
        from npusim.results.writers.perfetto import save_step

        save_step(self, Path(path))

    def as_report(self) -> Report:
        """The report as data; the page and what a notebook shows are made of it."""
        from npusim.results.shown import step

        return step.report(self.to_json(), self.device, self.launched)
