"""When the cores of a program start: as the device launches them, or otherwise for a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from npusim.base.integers import IntArray
from npusim.program.program import Program

#: The cycle in which each core of a program starts, 0 for those without work.
Starts = Callable[[Program], IntArray]


def launched(program: Program) -> IntArray:
    """Cores with work, or their groups, start one after another, ``launch.skew`` apart."""
    return program.device.launch.skew_cycles * _places(program)


def random_starts(seed: int) -> Starts:
    """Gaps between the starts of successive cores of 0 to ``launch.core``, evenly spread."""

    def starts(program: Program) -> IntArray:
        most = program.device.launch.core_cycles
        gaps = np.random.default_rng(seed).integers(0, most + 1, len(program.cores))
        gaps[0] = 0
        return np.cumsum(gaps)[_places(program)] * _at_work(program)

    return starts


_starts: ContextVar[Starts] = ContextVar("starts", default=launched)


@contextmanager
def starting(starts: Starts) -> Iterator[None]:
    """Let the cores of every program timed inside start so; launches still end with the last."""
    token = _starts.set(starts)
    try:
        yield
    finally:
        _starts.reset(token)


def are_usual() -> bool:
    """Whether cores start as the device launches them."""
    return _starts.get() is launched


def core_starts(program: Program) -> IntArray:
    """Return the cycle at which each core starts."""
    return _starts.get()(program)


def _at_work(program: Program) -> IntArray:
    return np.isin(np.arange(len(program.cores)), program.working).astype(np.int64)


def _places(program: Program) -> IntArray:
    """The place of each core among those with work, 0 for the others.

    Cores of several kinds that work together start group by group.
    """
    if "places" not in program.kept:
        busy = _at_work(program)
        places: IntArray = np.maximum(0, np.cumsum(busy) - 1) * busy
        if len(program.roles) > 1:
            groups = np.array([core.group for core in program.cores], np.int64)
            which = np.unique(groups[busy > 0], return_inverse=True)[1]
            places = which[np.cumsum(busy) - 1] * busy
        program.kept["places"] = places
    known: IntArray = program.kept["places"]
    return known
