"""Candidates bounded and timed by several processes, and what is known of them already."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import cast

from npusim.base.integers import ceil_div
from npusim.base.sources import own_modules
from npusim.base.workers import Workers as Processes
from npusim.reuse.store import Store
from npusim.tuning.problem import Changes, Found, Problem


class Workers(Processes):
    """``jobs`` processes (1: this one alone) that look at candidates of a problem.

    What the store knows is not computed again; what is computed is kept there at once.
    """

    def __init__(self, problem: Problem, store: Store, jobs: int) -> None:
        super().__init__(jobs)
        self.problem, self.store = problem, store
        #: Candidates found in the store so far, and computed.
        self.known = self.computed = 0
        if jobs > 1:
            self._begin = partial(_begin, _sent(problem))

    def look(self, stage: str, candidates: Sequence[Changes]) -> list[Found]:
        """The "bound" or the "time" of each candidate, in order."""
        names = [
            f"{self.problem.key} {stage} {sorted(changes.items())!r}" for changes in candidates
        ]
        rows = {name: self.store.get(name) for name in names}
        known = {name: Found(*row) for name, row in rows.items() if row is not None}
        missing = {
            name: changes
            for name, changes in zip(names, candidates, strict=True)
            if name not in known
        }
        self.known += len(names) - len(missing)
        self.computed += len(missing)
        new = dict(zip(missing, self._compute(stage, list(missing.values())), strict=True))
        self.store.put(new.items())
        return [known[name] if name in known else new[name] for name in names]

    def _compute(self, stage: str, candidates: list[Changes]) -> list[Found]:
        if self.jobs == 1 or len(candidates) < 2:
            return [look(self.problem, stage, changes) for changes in candidates]
        size = ceil_div(len(candidates), 2 * self.jobs)
        chunks = [candidates[at : at + size] for at in range(0, len(candidates), size)]
        found = dict(self.each(partial(_look, stage), chunks))
        return [one for place in range(len(chunks)) for one in found[place]]


def look(problem: Problem, stage: str, changes: Changes) -> Found:
    """What is asked of one candidate."""
    candidate = problem.candidate(changes)
    return problem.bound(candidate) if stage == "bound" else problem.time(candidate)


#: The problem of a process that looks at candidates.
_HELD: list[Problem] = []


def _look(stage: str, candidates: list[Changes]) -> list[Found]:
    return [look(_HELD[0], stage, changes) for changes in candidates]


def _begin(pickled: bytes) -> None:
    """Make ready to look."""
    _HELD.append(pickle.loads(pickled))


def _sent(problem: Problem) -> bytes:
    """The problem for other processes, with the kernel's code as it was imported here."""
    import cloudpickle  # noqa: PLC0415 - few searches need processes

    with ExitStack() as registered:
        for module in own_modules(type(problem.kernel)):
            cloudpickle.register_pickle_by_value(module)
            registered.callback(cloudpickle.unregister_pickle_by_value, module)
        return cast(bytes, cloudpickle.dumps(problem))
