"""Many rows at once, in processes of their own; a process that dies costs one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool

from npusim.base.processes import Lasting, pool, uninterrupted
from npusim.validation.rows import CallRow
from npusim.validation.sheet import Row, Unreadable
from npusim.validation.simulate import Outcome, simulate_row

#: A row and the figures of its device that differ from the file.
Task = tuple[Row | Unreadable, Mapping[str, str]]

#: Called as progress(done, total) after every row.
Progress = Callable[[int, int], None]


class Workers(Lasting):
    """Context manager that simulates rows in ``jobs`` processes; with 1, in this one.

    Processes start when first needed and stay until the end.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        super().__init__(lambda: pool(jobs))

    def outcomes(self, tasks: Sequence[Task], progress: Progress | None = None) -> list[Outcome]:
        """Return the outcome of every task, in their order."""
        found: dict[int, Outcome] = {}

        def note(place: int, outcome: Outcome) -> None:
            found[place] = outcome
            if progress is not None:
                progress(len(found), len(tasks))

        if self._jobs > 1 and len(tasks) > 1:
            self._together(tasks, note)
            for place in set(range(len(tasks))) - set(found):  # whose process died under them
                note(place, self._alone(tasks[place]))
        else:
            for place, task in enumerate(tasks):
                note(place, simulate_row(*task))
        return [found[place] for place in range(len(tasks))]

    def _together(self, tasks: Sequence[Task], note: Callable[[int, Outcome], None]) -> None:
        """Run all tasks, long ones first; returns early if a process dies."""
        order = sorted(range(len(tasks)), key=lambda place: effort(tasks[place][0]), reverse=True)
        try:
            with uninterrupted():
                futures = {self.pool.submit(simulate_row, *tasks[place]): place for place in order}
            for future in as_completed(futures):
                note(futures[future], future.result())
        except BrokenProcessPool:
            self.__exit__(None, None, None)
        except BaseException as error:  # what it leaves waiting must not keep the next task
            self.__exit__(type(error), error, None)
            raise

    def _alone(self, task: Task) -> Outcome:
        """Run one task in a process that nothing else depends on."""
        try:
            with pool(1) as one:
                return one.submit(simulate_row, *task).result()
        except BrokenProcessPool:
            reason = "the process that simulated it was ended from outside; is memory short?"
            return Outcome(task[0], reason=reason, failed=True)


def effort(row: Row | Unreadable) -> int:
    """Return roughly how many products of base blocks a simulation of the row issues."""
    if isinstance(row, Unreadable):
        return 0
    if isinstance(row, CallRow):
        return (row.work or 0) // (2 * 128**3)
    blocks = row.batch or 1
    for size, base in ((row.M, row.base_m), (row.N, row.base_n), (row.K, row.base_k)):
        blocks *= -(-(size or 1) // (base or 128))
    return blocks
