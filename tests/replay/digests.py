"""What is compared of a call: cycles as a number, the rest as short digests."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from npusim.base.reasons import REASONS
from npusim.machine.timing.trace import KernelRun
from npusim.results import Result

DATA = Path(__file__).parents[1] / "data"
CALLS_FILE = DATA / "replay.csv"
ROWS_FILE = DATA / "replay_measured.csv"
SHOWN_FILE = DATA / "replay_shown.csv"
REFUSALS_FILE = DATA / "replay_refusals.csv"


class Digest(NamedTuple):
    """One line of the file: a call on a device, and what it gave."""

    call: str
    device: str
    cycles: int
    kernels: int
    reasons: str  # cycles of every pipe of every core by reason, kernel by kernel
    traffic: str  # bytes of every operand on every way, hits and misses
    bits: str  # the arrays, "-" where only time was asked for

    @property
    def key(self) -> tuple[str, ...]:
        """What names the line."""
        return self.call, self.device


class Timed(NamedTuple):
    """One line of the file of what was measured: a row of ``configs/silicon`` and its time."""

    row: str
    time_us: str
    busy: str  # busy times of its pipes; of a call the kernels that count, and notes

    @property
    def key(self) -> tuple[str, ...]:
        """What names the line."""
        return (self.row,)


class Shown(NamedTuple):
    """One line of the file of what is shown: a case, what of it, and with which library."""

    case: str
    kind: str
    made_with: str
    digest: str

    @property
    def key(self) -> tuple[str, ...]:
        """What names the line."""
        return self.case, self.kind


class Refusal(NamedTuple):
    """One line of the file of refusals: a call by the digest of its facts, and what is said."""

    operator: str
    device: str
    facts: str
    sentence: str

    @property
    def key(self) -> tuple[str, ...]:
        """What names the line."""
        return self.operator, self.device, self.facts


def digest(call: str, device: str, answer: Any) -> Digest:
    """Reduce a ``Result``, or the results of a network, to one line."""
    results: list[Result] = (
        [answer] if isinstance(answer, Result) else [one.result for one in answer.timed]
    )
    runs = [run for result in results for run in result.runs]
    arrays = [array for result in results for array in result.outputs or () if array is not None]
    bits = short(f"{a.dtype}{a.shape}".encode() + a.tobytes() for a in arrays) if arrays else "-"
    return Digest(
        call,
        device,
        cycles=sum(result.cycles for result in results),
        kernels=len(runs),
        reasons=short(_reasons(run) for run in runs),
        traffic=short(_traffic(run) for run in runs),
        bits=bits,
    )


def _reasons(run: KernelRun) -> bytes:
    rows = [(row.core, row.pipe, *zip(REASONS, row.cycles, strict=True)) for row in run.pipes]
    return repr((run.name, run.cycles, run.launch_cycles, rows)).encode()


def _traffic(run: KernelRun) -> bytes:
    return repr((run.name, run.gm_bytes, run.macs, sorted(map(tuple, run.traffic)))).encode()


def short(parts: Iterable[bytes]) -> str:
    """Digest of some digests."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()[:12]


Line = TypeVar("Line", Digest, Timed, Shown, Refusal)


@cache
def read(file: Path, kind: type[Line]) -> dict[tuple[str, ...], Line]:
    """The lines of a file by their keys."""
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    lines = [
        kind._make(int(v) if k in ("cycles", "kernels") else v for k, v in row.items())
        for row in rows
    ]
    return {line.key: line for line in lines}


def write(file: Path, kind: type[Line], lines: Iterable[Line]) -> None:
    """Write a file anew, in the order given."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(kind._fields)
        table.writerows(lines)
