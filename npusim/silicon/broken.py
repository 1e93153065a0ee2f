"""Measured times that no silicon can have: a figure of the device is too slow, or a row wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from npusim.results.facts.least import LeastTime
from npusim.silicon.rows import KernelRow, Measured
from npusim.silicon.score import is_scored
from npusim.silicon.simulate import RowOutcome

#: A cube that is busy for 5 % less than any other of its chip and type needs is a fault of its row.
ALONE = 1.05

#: What is said of such a row.
ROW = "the row"

#: Parts of a device whose figures are in cycles, and as slow as its clock.
_CLOCKED = ("cube.", "gemm.", "paths.")

#: Multiply-adds from which on a product tells how near to its bound silicon comes.
_LARGE = 5 * 10**8


class Checked(NamedTuple):
    """A time that was measured, what it may not be below, and whether it is of the cube alone.

    Where it is below, ``faults`` says what may be wrong: figures, the likeliest first, or ``ROW``.
    """

    row: Measured
    measured_us: float
    least: LeastTime
    is_busy: bool
    faults: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[str, str]:
        """The chip and the figure that the bound rests on."""
        return self.row.chip, self.least.figure

    @property
    def share(self) -> float:
        """The bound over the measured time: above 1 it is broken."""
        return self.least.us / self.measured_us

    @property
    def suspects(self) -> tuple[str, ...]:
        """Figures that are too slow if it is broken, one or the other."""
        figure = self.least.figure
        return (figure, "clock") if figure.startswith(_CLOCKED) else (figure,)


def broken(outcomes: Iterable[RowOutcome]) -> list[Checked]:
    """Every bound that a row breaks, in the order of the rows.

    Those of trust C are left out, and those whose chip is open: they would say which it is not.

    Its time may not be below any bound, nor the mean busy time of its cube below what the
    multiply-adds take. A busy time that no other of the chip and type comes near is a fault of the
    row. Else a figure is too slow: the likelier, the more broken bounds of the chip rest on it; on
    the clock all do that are in cycles, and it comes last of equals.
    """
    checks = [check for outcome in outcomes for check in _checks(outcome)]
    failed = [check for check in checks if check.share > 1]
    counts = Counter((check.row.chip, name) for check in failed for name in check.suspects)
    explained = []
    for check in failed:
        others = [
            other.share
            for other in checks
            if other.is_busy and other.kind == check.kind and other is not check
        ]
        if check.is_busy and others and check.share > ALONE * max(others):
            explained.append(check._replace(faults=(ROW,)))
            continue
        chip = check.row.chip
        likely = sorted(check.suspects, key=lambda name: -counts[chip, name])
        explained.append(check._replace(faults=tuple(likely)))
    return explained


def _checks(outcome: RowOutcome) -> Iterator[Checked]:
    row, simulated = outcome.row, outcome.simulated
    untrusted = getattr(row, "trust", None) == "C" or row.possible_chips
    if simulated is None or not row.time_us or untrusted:
        return
    busy = row.busy_us.get("cube") if getattr(row, "busy_statistic", None) != "median" else None
    for least in simulated.bounds:
        yield Checked(row, row.time_us, least, is_busy=False)
        if busy and least.resource == "pipe M":
            yield Checked(row, busy, least, is_busy=True)


def _multiply_adds(row: Measured) -> int:
    """The multiply-adds of a product of matrices, 0 of other rows."""
    if not isinstance(row, KernelRow):
        return 0
    return (row.M or 0) * (row.N or 0) * (row.K or 0)


def over_least(outcomes: Iterable[RowOutcome]) -> list[float]:
    """Measured times over their bounds from main memory, of scored products of 1 GFLOP and more."""
    return [
        outcome.row.time_us / outcome.simulated.from_memory_us
        for outcome in outcomes
        if is_scored(outcome.row)
        and outcome.simulated is not None
        and outcome.simulated.from_memory_us
        if outcome.row.time_us and _multiply_adds(outcome.row) >= _LARGE
    ]
