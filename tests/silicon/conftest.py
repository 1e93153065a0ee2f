"""Rows and outcomes made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from npusim.silicon.rows import KernelRow, SimulatedRow
from npusim.silicon.simulate import RowOutcome

Make = Callable[..., RowOutcome]


@pytest.fixture
def make() -> Make:
    """Makes the outcome of a scored kernel; ``simulated_us`` None for one that was declined."""

    def outcome(
        name: str,
        time_us: float | None,
        simulated_us: float | None,
        busy: dict[str, float] | None = None,
        **columns: Any,
    ) -> RowOutcome:
        settings = {"chip": "910B1", "op": "gemm", "family": "F", "base_m": 128, "trust": "A"}
        row = KernelRow(id=name, time_us=time_us, **{**settings, **columns})
        if simulated_us is None:
            return RowOutcome(row, reason="no such word")
        return RowOutcome(row, SimulatedRow(simulated_us, busy or {}, ("k",), ("n",)))

    return outcome
