"""Figures derived from kernel runs; the one place where each is defined for all reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct

from npusim.base.reasons import BANDWIDTH, BUSY, REASONS
from npusim.machine.device.pipes import MATRIX_PIPES, PIPES
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import Bound, KernelRun, PipeRow, TrafficRow

#: Names of the place behind the L2 in ``TrafficRow.src`` and ``dst``.
MAIN_MEMORIES = ("HBM", "DDR", "private memory")


def core_key(name: str) -> tuple[tuple[str, int], ...]:
    """Sort key that puts ``aic2`` before ``aic10`` and cube cores before vector cores."""
    pieces = re.findall(r"(\D*)(\d*)", name)
    return tuple((text, int(digits or -1)) for text, digits in pieces if text or digits)


def pipe_key(name: str) -> tuple[int, str]:
    """Sort key of a pipe: hardware order, pipes of other machines after them by name."""
    order = tuple(PIPES)
    return order.index(name) if name in PIPES else len(order), name


def total_cycles(runs: Iterable[KernelRun]) -> int:
    """Cycles of kernels that run one after another, launches included."""
    return sum(run.cycles + run.launch_cycles for run in runs)


def kernel_starts(runs: Sequence[KernelRun]) -> tuple[int, ...]:
    """Cycle of the call at which each kernel's own cycle 0 lies: after its launch."""
    starts, now = [], 0
    for run in runs:
        starts.append(now + run.launch_cycles)
        now = starts[-1] + run.cycles
    return tuple(starts)


def titles(runs: Sequence[KernelRun]) -> tuple[str, ...]:
    """A name for each kernel of a call that no other has, such as ``trans_data weight``.

    A name that occurs more than once is followed by the tensors that the kernel reads from GM, or
    writes where it reads none, and by its place among those that are still alike.
    """
    often = Counter(run.name for run in runs)
    named = [_with_operands(run) if often[run.name] > 1 else run.name for run in runs]
    again, seen = Counter(named), Counter[str]()
    unique = []
    for name in named:
        seen[name] += 1
        unique.append(f"{name} {seen[name]}" if again[name] > 1 else name)
    return tuple(unique)


def _with_operands(run: KernelRun) -> str:
    """The name of a kernel and the tensors it moves."""
    read = [row.operand for row in run.traffic if row.src == "GM" and row.operand]
    written = [row.operand for row in run.traffic if row.dst == "GM" and row.operand]
    return " ".join((run.name, ", ".join(dict.fromkeys(read or written)))).rstrip()


def nearest_bound(run: KernelRun) -> Bound | None:
    """The largest lower bound of a kernel, the first among equals; None where it has none."""
    return max(run.bounds, key=lambda bound: bound.cycles, default=None)


def problem_bound(run: KernelRun) -> Bound | None:
    """The largest lower bound of a kernel's problem; None where nothing is known of it."""
    return max(run.problem_bounds, key=lambda bound: bound.cycles, default=None)


def by_resource(bounds: Iterable[Bound | None]) -> Counter[str]:
    """Cycles of bounds, added up by what they are of."""
    totals = Counter[str]()
    for bound in bounds:
        if bound is not None:
            totals[bound.resource] += bound.cycles
    return totals


def call_bound(runs: Iterable[KernelRun]) -> Bound | None:
    """The resource whose bounds, added up over the kernels of a call, are the largest."""
    totals = by_resource(bound for run in runs for bound in run.bounds)
    resource = max(totals, key=lambda name: totals[name], default="")
    formula = "sum over the kernels of the call"
    return Bound(resource, totals[resource], formula) if totals else None


def share(part: int, total: int) -> float:
    """``part / total``, 0 where there is no total."""
    return part / total if total else 0.0


class Peak(NamedTuple):
    """The cube's peak in 1e12 operations per second, with ``cores`` cores on ``dtype``."""

    tflops: float
    dtype: str
    cores: int


def cube_peak(device: Device, run: KernelRun, dtype: str | None) -> Peak | None:
    """Peak of the matrix units a kernel ran on; without ``dtype`` that of fp16, None without."""
    unit = device.cube or device.gemm
    if unit is None or not unit.rates:
        return None
    wanted = (dtype, "fp16", next(iter(unit.rates)))
    name = next(text for text in wanted if text in unit.rates and text is not None)
    busy = {row.core for row in run.pipes if row.pipe in MATRIX_PIPES and working(row)}
    cores = len(busy) or run.cores
    per_second = 2 * unit.macs_per_cycle(name) * device.clock_hz * cores
    return Peak(float(per_second) / 1e12, name, cores)


def tflops(device: Device, macs: int, cycles: int) -> float:
    """Two operations per multiply-add over ``cycles``, in 1e12 per second."""
    return 2 * macs * device.clock_hz / cycles / 1e12 if cycles else 0.0


def main_memory_bytes(run: KernelRun) -> tuple[int, int]:
    """Bytes that a kernel read from main memory and wrote to it.

    That is what crossed the L2: rows that name main memory, else the misses of reads from GM.
    """
    read = sum(row.bytes for row in run.traffic if row.src in MAIN_MEMORIES)
    written = sum(row.bytes for row in run.traffic if row.dst in MAIN_MEMORIES)
    if not read and not written:
        read = sum(row.miss_bytes for row in run.traffic)
    return read, written


def main_memory_cycles(device: Device, read: int, written: int) -> Fraction:
    """Cycles that main memory takes at least for so many bytes, over its rates and links."""
    main = device.main_memory
    needed = [
        Fraction(read) / main.read_bytes_per_cycle,
        Fraction(written) / main.write_bytes_per_cycle,
    ]
    for link in device.links.values():  # a bus that reads and writes share
        through = read * ("read_miss" in link.traffic) + written * ("evict" in link.traffic)
        if link.scope == "chip":
            needed.append(Fraction(through) / link.bytes_per_cycle)
    return max(needed)


class PipeShare(Struct, frozen=True, kw_only=True):
    """Where one pipe's time went: shares of the kernel's cycles in the order of ``REASONS``."""

    pipe: str
    mean: tuple[float, ...]
    busiest: tuple[float, ...]
    busiest_core: str


def working(row: PipeRow) -> int:
    """Cycles in which the pipe holds an instruction: at full speed or slowed by others."""
    return row.cycles[BUSY] + row.cycles[BANDWIDTH]


def reasons_of(run: KernelRun, core: str, pipe: str) -> dict[str, int]:
    """Cycles of a pipe of a core by reason; nothing where the kernel has no such pipe."""
    rows = [row.cycles for row in run.pipes if (row.core, row.pipe) == (core, pipe)]
    return dict(zip(REASONS, rows[0], strict=True)) if rows else {}


def pipe_shares(run: KernelRun) -> tuple[PipeShare, ...]:
    """One entry per pipe that did anything, in hardware order."""
    by_pipe: dict[str, list[PipeRow]] = {}
    for row in run.pipes:
        by_pipe.setdefault(row.pipe, []).append(row)
    return tuple(
        _pipe_share(run, pipe, by_pipe[pipe])
        for pipe in sorted(by_pipe, key=pipe_key)
        if any(working(row) for row in by_pipe[pipe])
    )


def _pipe_share(run: KernelRun, pipe: str, rows: Sequence[PipeRow]) -> PipeShare:
    """Mean over the cores that run and have the pipe, and its busiest core (lowest on a tie)."""
    busiest = max(sorted(rows, key=lambda row: core_key(row.core)), key=working)
    at_work = {row.core for row in run.pipes if working(row)}
    cycles_of_cores = [row.cycles for row in rows if row.core in at_work]
    sums = [sum(column) for column in zip(*cycles_of_cores, strict=True)]
    return PipeShare(
        pipe=pipe,
        mean=tuple(share(cycles, run.cycles * len(cycles_of_cores)) for cycles in sums),
        busiest=tuple(share(cycles, run.cycles) for cycles in busiest.cycles),
        busiest_core=busiest.core,
    )


def critical_pipe(shares: Sequence[PipeShare]) -> PipeShare | None:
    """The pipe whose busiest core works longest: the one to shorten or to keep fed."""
    return max(shares, key=lambda row: row.busiest[BUSY] + row.busiest[BANDWIDTH], default=None)


class PathTotal(TrafficRow):
    """Traffic of one path and operand, summed over the kernels of a call, in bytes."""

    @property
    def label(self) -> str:
        """``GM->L1 x`` or, on chip, ``L1->L0A``."""
        return f"{self.src}->{self.dst} {self.operand}".rstrip()

    @property
    def kind(self) -> str:
        """Which of ``palette.MOVES`` the bytes are that are no reads through an L2."""
        if {self.src, self.dst} & {*MAIN_MEMORIES}:
            return "off chip"
        return "written" if self.dst == "GM" else "on chip"

    @property
    def hit_share(self) -> float | None:
        """Share of the bytes that main memory did not send; None where no cache is on the way."""
        cached = self.bytes and (self.hit_bytes or self.miss_bytes)
        return 1 - self.missed_bytes / self.bytes if cached else None

    @property
    def missed_bytes(self) -> int:
        """Bytes that main memory sent, the rest of a sector that one read for others too."""
        return min(max(self.miss_bytes, self.fetched_bytes), self.bytes)

    @property
    def kept_bytes(self) -> int:
        """Bytes read that the L2 had for another reason, 0 of moves that read no cache."""
        cached = self.hit_bytes or self.miss_bytes
        return self.bytes - self.missed_bytes if cached else 0


def path_totals(runs: Iterable[KernelRun], *, operands: bool = True) -> tuple[PathTotal, ...]:
    """Every path used: reads of GM, moves on chip, writes to GM, main memory; large ones first.

    A path has a total for each of its ``operands``, or without them one for all.
    """
    return added_up((row for run in runs for row in run.traffic), operands=operands)


def added_up(rows: Iterable[TrafficRow], *, operands: bool = True) -> tuple[PathTotal, ...]:
    """Totals of ``rows``, as ``path_totals`` of kernels."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        entry = totals.setdefault((row.src, row.dst, row.operand * operands), [0, 0, 0, 0])
        counts = row.bytes, row.hit_bytes, row.miss_bytes, row.fetched_bytes
        for place, count in enumerate(counts):
            entry[place] += count
    paths = [PathTotal(*key, *counts) for key, counts in totals.items()]
    return tuple(sorted((path for path in paths if path.bytes), key=_path_key))


def _path_key(path: PathTotal) -> tuple[int, str, str, int, str]:
    """Place in the flow from main memory inwards and back, then size within a path."""
    if path.src in MAIN_MEMORIES or path.dst in MAIN_MEMORIES:
        stage = 3
    elif path.src == "GM":
        stage = 0
    else:
        stage = 2 if path.dst == "GM" else 1
    return stage, path.src, path.dst, -path.bytes, path.operand
