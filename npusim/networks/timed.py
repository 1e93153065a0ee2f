"""A result of a simulation, or why there is none."""

from __future__ import annotations

from msgspec import Struct

from npusim.machine.timing.trace import KernelRun
from npusim.results import Result


class Timed(Struct, frozen=True):
    """A simulated call; ``result`` is None where ``error`` says why not."""

    result: Result | None
    error: str = ""

    @property
    def us(self) -> float:
        """Microseconds with launches, 0 where there is no result."""
        return self.result.time_us if self.result is not None else 0.0

    @property
    def cycles(self) -> int:
        """Cycles with launches, 0 where there is no result."""
        return self.result.cycles if self.result is not None else 0

    @property
    def runs(self) -> tuple[KernelRun, ...]:
        """Its kernels."""
        return self.result.runs if self.result is not None else ()
