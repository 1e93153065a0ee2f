"""Many rows at once, in processes of their own; a process that dies costs one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from npusim.base.workers import Workers as Processes
from npusim.validation.rows import CallRow, NetworkRow, Unreadable
from npusim.validation.sheet import Row
from npusim.validation.simulate import Outcome, simulate_row

#: A row and the figures of its device that differ from the file.
Task = tuple[Row | Unreadable, Mapping[str, str]]

#: Called as progress(done, total) after every row.
Progress = Callable[[int, int], None]


class Workers(Processes):
    """Context manager that simulates rows in ``jobs`` processes; with 1, in this one."""

    def outcomes(self, tasks: Sequence[Task], progress: Progress | None = None) -> list[Outcome]:
        """Return the outcome of every task, in their order; long ones are simulated first."""
        order = sorted(range(len(tasks)), key=lambda place: effort(tasks[place][0]), reverse=True)
        found: dict[int, Outcome] = {}
        for place, outcome in self.each(_simulated, [tasks[place] for place in order], _dead):
            found[order[place]] = outcome
            if progress is not None:
                progress(len(found), len(tasks))
        return [found[place] for place in range(len(tasks))]


def _simulated(task: Task) -> Outcome:
    return simulate_row(*task)


def _dead(task: Task) -> Outcome:
    """What there is of a row whose process died."""
    reason = "the process that simulated it was ended from outside; is memory short?"
    return Outcome(task[0], reason=reason, failed=True)


def effort(row: Row | Unreadable) -> int:
    """Return roughly how many products of base blocks a simulation of the row issues."""
    if isinstance(row, Unreadable):
        return 0
    if isinstance(row, NetworkRow):
        return 10**6 * (row.batch or 1)
    if isinstance(row, CallRow):
        return (row.work or 0) // (2 * 128**3)
    blocks = row.batch or 1
    for size, base in ((row.M, row.base_m), (row.N, row.base_n), (row.K, row.base_k)):
        blocks *= -(-(size or 1) // (base or 128))
    return blocks
