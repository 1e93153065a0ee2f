"""Kernels whose time rests on how their cores start.

Cores that march in step ask for data at once, and nobody has published how far apart they start.
Every scored kernel is simulated again with random starts; one whose time moves gets a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.base.records import replace
from npusim.machine.timing.trace import random_starts, starting
from npusim.silicon.rows import Row, Unreadable
from npusim.silicon.score import is_scored
from npusim.silicon.simulate import RowOutcome, simulate_row

#: Seeds of the random starts, and the share of its time by which a kernel moves that rests on them.
SEEDS = (1, 2, 3)
MOVED = 0.02


@dataclass(frozen=True)
class Restarted:
    """A kernel, and its times with random starts of its cores in microseconds, by seed."""

    outcome: RowOutcome
    times_us: tuple[float, ...]

    @property
    def row(self) -> Row | Unreadable:
        """The measured row."""
        return self.outcome.row

    @property
    def moved(self) -> float:
        """The largest change of its time, as a share of it."""
        assert self.outcome.simulated is not None
        time = self.outcome.simulated.time_us
        return max((other / time - 1 for other in self.times_us), key=abs)

    @property
    def is_steady(self) -> bool:
        """True where its time moves by less than ``MOVED``."""
        return abs(self.moved) < MOVED


def restarted(
    outcomes: Sequence[RowOutcome], figures: Mapping[str, str], seeds: Sequence[int] = SEEDS
) -> list[Restarted]:
    """Simulate the scored kernels among ``outcomes`` again with random starts of their cores.

    ``figures`` are those of their devices that were changed.
    """
    kernels = [o for o in outcomes if o.simulated is not None and is_scored(o.row)]
    return [Restarted(kernel, _times_us(kernel.row, figures, seeds)) for kernel in kernels]


def _times_us(
    row: Row | Unreadable, figures: Mapping[str, str], seeds: Sequence[int]
) -> tuple[float, ...]:
    times = []
    for seed in seeds:
        with starting(random_starts(seed)):
            simulated = simulate_row(row, figures).simulated
        assert simulated is not None
        times.append(simulated.time_us)
    return tuple(times)


def with_notes(outcomes: Sequence[RowOutcome], kernels: Sequence[Restarted]) -> list[RowOutcome]:
    """Return the outcomes with a note where the time rests on how the cores start."""
    moved = {id(kernel.outcome): kernel.moved for kernel in kernels if not kernel.is_steady}
    return [_noted(o, moved[id(o)]) if id(o) in moved else o for o in outcomes]


def _noted(outcome: RowOutcome, moved: float) -> RowOutcome:
    simulated = outcome.simulated
    assert simulated is not None
    note = f"the time rests on how the cores start: random starts move it by {moved:+.1%}"
    return replace(outcome, simulated=replace(simulated, notes=(*simulated.notes, note)))
