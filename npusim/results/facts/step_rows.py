"""Facts of the operations of a training step, and of their kinds: columns, JSON and pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import Bound, KernelRun
from npusim.results.facts.fact import Fact, names_of, row_of
from npusim.results.facts.number_text import bytes_text, counts, percent_text, us_text

Row = dict[str, Any]

#: What compares two steps calls these rows.
KIND, OPERATION = "kind", "operation"


class StepOperation(Protocol):
    """An operation of a step, or a conversion of a value, as it was launched."""

    @property
    def name(self) -> str:
        """Its name in the network."""

    @property
    def kind(self) -> str:
        """The kind of operation, as reports call it."""

    @property
    def phase(self) -> str:
        """The part of the step: forward, backward or optimizer."""

    @property
    def layer(self) -> str:
        """The layer that it is of, "" for conversions."""

    @property
    def kernel_names(self) -> list[str]:
        """The kernels of one time that it runs."""

    @property
    def count(self) -> int:
        """How often it runs in a row."""

    @property
    def cycles(self) -> int:
        """Cycles of all times that it runs, with launches and ``waiting_cycles``."""

    @property
    def waiting_cycles(self) -> int:
        """Cycles that it waits for main memory beyond its kernels and launches."""

    @property
    def waiting_kind(self) -> str:
        """The kind among ``parts`` that these are counted as."""

    @property
    def runs(self) -> tuple[KernelRun, ...]:
        """The kernels of all times that it runs."""

    @property
    def parts(self) -> Iterator[tuple[str, KernelRun]]:
        """Its kernels by kind: what clears is counted apart."""

    @property
    def least(self) -> Bound | None:
        """What any programs need for all times that it runs; None where it has no time."""

    @property
    def read_bytes(self) -> int:
        """Bytes of all values that it reads."""

    @property
    def written_bytes(self) -> int:
        """Bytes of all values that it writes."""

    @property
    def fetched_bytes(self) -> int:
        """Bytes that main memory sends."""

    @property
    def written_back_bytes(self) -> int:
        """Bytes that go to main memory, of whatever launch."""

    @property
    def value(self) -> str:
        """The value that it converts, "" for what is no conversion."""

    @property
    def format(self) -> str:
        """The format that it converts to."""

    @property
    def error(self) -> str:
        """Why it has no time, "" where it has one."""


class OperationColumns(NamedTuple):
    """An operation of a step on a device, which begins after so many cycles."""

    device: Device
    operation: StepOperation
    start_cycles: int

    @property
    def launch_cycles(self) -> int:
        """Cycles of its launches."""
        return sum(run.launch_cycles for run in self.operation.runs)

    @property
    def least_us(self) -> float:
        """Microseconds that any programs need for it, 0 where it has no time."""
        least = self.operation.least
        return 0.0 if least is None else self.device.time_us(least.cycles)

    @property
    def least_by(self) -> str:
        """The part of the device that needs so long."""
        least = self.operation.least
        return "" if least is None else least.resource


#: An operation of a step.
OPERATIONS: tuple[Fact[OperationColumns], ...] = (
    Fact("operation", "operation", "", str, lambda row: row.operation.name),
    Fact("kind", "kind", "", str, lambda row: row.operation.kind, compared=OPERATION),
    Fact("phase", "phase", "", str, lambda row: row.operation.phase),
    Fact("layer", "layer", "", str, lambda row: row.operation.layer),
    Fact("kernels", "kernels", "", ", ".join, lambda row: row.operation.kernel_names),
    Fact("count", "times", "", counts, lambda row: row.operation.count),
    Fact("start_us", "start", "\u00b5s", us_text, lambda row: row.device.time_us(row.start_cycles)),
    Fact(
        "us",
        "time",
        "\u00b5s",
        us_text,
        lambda row: row.device.time_us(row.operation.cycles),
        compared=OPERATION,
    ),
    Fact(
        "launch_us",
        "launch",
        "\u00b5s",
        us_text,
        lambda row: row.device.time_us(row.launch_cycles),
        compared=OPERATION,
    ),
    Fact(
        "waiting_us",
        "wait",
        "\u00b5s",
        us_text,
        lambda row: row.device.time_us(row.operation.waiting_cycles),
    ),
    Fact("least_us", "least", "\u00b5s", us_text, lambda row: row.least_us),
    Fact("least_by", "least by", "", str, lambda row: row.least_by),
    Fact("read_bytes", "read", "", bytes_text, lambda row: row.operation.read_bytes),
    Fact("written_bytes", "written", "", bytes_text, lambda row: row.operation.written_bytes),
    Fact("fetched_bytes", "fetched", "", bytes_text, lambda row: row.operation.fetched_bytes),
    Fact(
        "written_back_bytes",
        "written back",
        "",
        bytes_text,
        lambda row: row.operation.written_back_bytes,
    ),
    Fact("converts", "converts", "", str, lambda row: row.operation.value),
    Fact("to", "to", "", str, lambda row: row.operation.format),
    Fact("error", "error", "", str, lambda row: row.operation.error, compared=OPERATION),
)

#: Columns of ``StepResult.operations``; a promise to users.
OPERATION_COLUMNS = names_of(OPERATIONS)


class KindColumns(NamedTuple):
    """The kernels of a kind of operation in a phase of a step that takes ``step_cycles``."""

    device: Device
    phase: str
    kind: str
    kernels: int
    cycles: int
    launch_cycles: int
    least_cycles: int
    bytes: int
    step_cycles: int


#: A kind of operation in a phase.
KINDS: tuple[Fact[KindColumns], ...] = (
    Fact("phase", "phase", "", str, lambda row: row.phase),
    Fact("kind", "kind", "", str, lambda row: row.kind),
    Fact("kernels", "kernels", "", counts, lambda row: row.kernels, compared=KIND),
    Fact(
        "us", "time", "\u00b5s", us_text, lambda row: row.device.time_us(row.cycles), compared=KIND
    ),
    Fact(
        "launch_us",
        "launch",
        "\u00b5s",
        us_text,
        lambda row: row.device.time_us(row.launch_cycles),
        compared=KIND,
    ),
    Fact(
        "share",
        "share",
        "",
        percent_text,
        lambda row: row.cycles / row.step_cycles if row.step_cycles else 0.0,
    ),
    Fact("least_us", "least", "\u00b5s", us_text, lambda row: row.device.time_us(row.least_cycles)),
    Fact("bytes", "bytes", "", bytes_text, lambda row: row.bytes, compared=KIND),
)

#: Columns of ``StepResult.kinds``; a promise to users.
KIND_COLUMNS = names_of(KINDS)


def operation_rows(device: Device, operations: Iterable[StepOperation]) -> list[Row]:
    """Operations as plain values, in the order of launch."""
    rows = []
    start_cycles = 0
    for operation in operations:
        rows.append(row_of(OPERATIONS, OperationColumns(device, operation, start_cycles)))
        start_cycles += operation.cycles
    return rows


def kind_rows(
    device: Device, operations: Iterable[StepOperation], step_cycles: int, phases: Iterable[str]
) -> list[Row]:
    """Kinds of operations as plain values, by phase in this order, longest first in each."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    for operation in operations:
        kinds = dict.fromkeys(kind for kind, _ in operation.parts)
        for kind, run in operation.parts:
            counter = sums.setdefault((operation.phase, kind), Counter())
            counter["kernels"] += 1
            counter["cycles"] += run.cycles + run.launch_cycles
            counter["launch_cycles"] += run.launch_cycles
            counter["bytes"] += run.gm_bytes
        if operation.waiting_cycles:
            counter = sums.setdefault((operation.phase, operation.waiting_kind), Counter())
            counter["cycles"] += operation.waiting_cycles
        if operation.least is not None:
            # The least time is that of the operation, which alone makes what is cleared necessary.
            kind = operation.kind if operation.kind in kinds else next(iter(kinds))
            sums[operation.phase, kind]["least_cycles"] += operation.least.cycles
    rows = [
        row_of(
            KINDS,
            KindColumns(
                device=device,
                phase=phase,
                kind=kind,
                kernels=counter["kernels"],
                cycles=counter["cycles"],
                launch_cycles=counter["launch_cycles"],
                least_cycles=counter["least_cycles"],
                bytes=counter["bytes"],
                step_cycles=step_cycles,
            ),
        )
        for (phase, kind), counter in sums.items()
    ]
    order = {phase: place for place, phase in enumerate(phases)}
    return sorted(rows, key=lambda row: (order[row["phase"]], -row["us"]))
