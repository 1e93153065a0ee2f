"""The input of a benchmark and its report. Imports nothing heavy: see ``__main__``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Catalogue of benchmarks: name -> (module, function of ``Settings`` that yields figures).
CATALOGUE = {
    "engine": ("tools.bench.simulator", "engine"),
    "reference": ("tools.bench.simulator", "reference"),
    "build": ("tools.bench.simulator", "build_and_run"),
    "scaling": ("tools.bench.simulator", "scaling"),
    "full": ("tools.bench.simulator", "full"),
    "full_product": ("tools.bench.simulator", "full_product"),
    "races": ("tools.bench.races", "races"),
    "auto": ("tools.bench.choices", "automatic"),
    "designs": ("tools.bench.designs", "designs"),
    "network": ("tools.bench.processes", "network"),
    "startup": ("tools.bench.processes", "startup"),
    "networks": ("tools.bench.commands", "networks"),
    "studies": ("tools.bench.commands", "studies"),
    "validation": ("tools.bench.commands", "validation"),
    "starts": ("tools.bench.commands", "starts"),
    "proofs": ("tools.bench.commands", "proofs"),
    "gradient_proofs": ("tools.bench.commands", "gradient_proofs"),
    "accelforge": ("tools.bench.peer_accelforge", "accelforge"),
    "scalesim": ("tools.bench.peer_scalesim", "scalesim"),
    "zigzag": ("tools.bench.peer_zigzag", "zigzag"),
}

#: Benchmarks that run other people's simulators: only on request, they take minutes.
PEERS = ("accelforge", "scalesim", "zigzag")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure.

    ``engine`` is what ``npusim`` calls it ("": its default); figures are medians of ``repeats``;
    ``divisor`` shrinks the sizes of large products, to try the benchmarks themselves.
    """

    engine: str = ""
    repeats: int = 3
    divisor: int = 1


@dataclass(frozen=True)
class Figure:
    """One measured value with its unit ("x" for a ratio); ``note`` says what was run."""

    name: str
    value: float
    unit: str
    note: str = ""

    def __str__(self) -> str:
        digits = 0 if abs(self.value) >= 1000 else 3
        value = f"{self.value:,.{digits}f} {self.unit}"
        return f"{self.name:32} {value:28} {self.note}".rstrip()


class NotAvailableError(Exception):
    """The benchmark cannot run here; its text says what is missing."""


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call, of all threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def medians(repeats: int, *works: Callable[[], object]) -> list[float]:
    """Median seconds of each of ``works``, called in turns so that noise meets all alike."""
    rounds = [[timed(work) for work in works] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]
