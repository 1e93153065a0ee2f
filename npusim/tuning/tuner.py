"""A search from beginning to end: candidates, processes and what is kept on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from npusim.base.errors import ArgumentError, CapacityError
from npusim.program.kernel import Kernel
from npusim.results.progress import in_notebooks
from npusim.reuse.store import opened
from npusim.tuning.problem import Problem
from npusim.tuning.search import Budget, Progress, Search
from npusim.tuning.tuned import Tuned
from npusim.tuning.workers import Workers


def search(
    problem: Problem,
    seeds: tuple[Kernel, ...],
    among: Iterable[Kernel] | None = None,
    budget: Budget = Budget(),  # noqa: B008 - immutable
    jobs: int = 1,
    store: str | Path | None = "",
    progress: Callable[[Progress], None] | None = None,
) -> Tuned:
    """The search itself; ``seeds`` are simulated whatever their bounds.

    Where candidates are the kernel's own, those one step from the best are looked at too, until
    none of them is better.
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ArgumentError(f"jobs is {jobs!r}; it is a number of processes, at least 1")
    begun = time.monotonic()
    candidates = problem.candidates()
    if among is not None:
        candidates = ((one, problem.least(one)) for one in among)
    with (
        in_notebooks(progress, _of_tilings) as report,
        opened(store, "tuned") as kept,
        Workers(problem, kept, jobs) as workers,
    ):
        looking = Search(problem, candidates, seeds, budget, report)
        looking.begin(workers)
        if among is None:
            looking.lead(_leaders(problem), workers)
            looking.around(workers)
        looking.run(workers)
        if among is None:
            looking.around(workers)
        looking.end()
    spent = time.monotonic() - begun
    return Tuned(problem, tuple(looking.rows), looking.bounded, spent, workers.known)


#: Candidates with the best estimates that a search with a budget looks at before all others.
_LEADING = 32


def _leaders(problem: Problem) -> list[Kernel]:
    """Those of the problem's kernel, the best first; none where no tiling is known to fit."""
    kernel = problem.kernel
    warm = [t.name for t in kernel.tensors if t.role != "out"] if problem.l2 is not None else []
    with suppress(CapacityError):
        return [one for _, one in kernel.ranked(problem.device, problem.cores, _LEADING, warm)]
    return []


def _of_tilings(far: Progress) -> tuple[str, int, int]:
    """How far a search is, for a bar."""
    return "tilings ruled out", far.settled, far.candidates
