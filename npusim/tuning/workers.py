"""Candidates bounded and timed by several processes, and what is known of them already."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path

from npusim.base.errors import RoomError
from npusim.base.integers import ceil_div
from npusim.base.kept import MOST_BYTES, Opened
from npusim.base.processes import Lasting, pool, uninterrupted
from npusim.base.sources import own_modules
from npusim.tuning.problem import Changes, Found, Problem


class Workers(Lasting):
    """``jobs`` processes (1: this one alone) that look at candidates of a problem.

    What the store knows is not computed again; what is computed is kept there at once.
    """

    def __init__(self, problem: Problem, store: Store, jobs: int) -> None:
        self.problem, self.store, self.jobs = problem, store, jobs
        super().__init__(lambda: _pool(problem, jobs))
        #: Candidates found in the store so far, and computed.
        self.known = self.computed = 0

    def look(self, stage: str, candidates: Sequence[Changes]) -> list[Found]:
        """The "bound" or the "time" of each candidate, in order."""
        names = [repr(sorted(changes.items())) for changes in candidates]
        known = self.store.get(self.problem.key, stage, names)
        missing = {
            name: changes
            for name, changes in zip(names, candidates, strict=True)
            if name not in known
        }
        self.known += len(names) - len(missing)
        self.computed += len(missing)
        new = dict(zip(missing, self._compute(stage, list(missing.values())), strict=True))
        self.store.put(self.problem.key, stage, new.items())
        return [known[name] if name in known else new[name] for name in names]

    def _compute(self, stage: str, candidates: list[Changes]) -> list[Found]:
        if self.jobs == 1 or len(candidates) < 2:
            return [look(self.problem, stage, changes) for changes in candidates]
        stages = [stage] * len(candidates)
        chunk = ceil_div(len(candidates), 2 * self.jobs)
        try:
            with uninterrupted():
                found = self.pool.map(_look, stages, candidates, chunksize=chunk)
            return list(found)
        except BrokenProcessPool as error:
            raise RoomError(
                f"one of {self.jobs} processes died, out of memory, perhaps; what they found is "
                "kept: search again with fewer jobs"
            ) from error


def look(problem: Problem, stage: str, changes: Changes) -> Found:
    """What is asked of one candidate."""
    candidate = problem.candidate(changes)
    return problem.bound(candidate) if stage == "bound" else problem.time(candidate)


#: The problem of a process that looks at candidates.
_HELD: list[Problem] = []


def _look(stage: str, changes: Changes) -> Found:
    return look(_HELD[0], stage, changes)


@contextmanager
def _pool(problem: Problem, jobs: int) -> Iterator[Executor]:
    """Processes that hold the problem, with the kernel's code as it was imported here."""
    import cloudpickle  # noqa: PLC0415 - few searches need processes

    with ExitStack() as sent:
        for module in own_modules(type(problem.kernel)):
            cloudpickle.register_pickle_by_value(module)
            sent.callback(cloudpickle.unregister_pickle_by_value, module)
        yield sent.enter_context(pool(jobs, _begin, cloudpickle.dumps(problem)))


def _begin(pickled: bytes) -> None:
    """Make ready to look."""
    _HELD.append(pickle.loads(pickled))


class Store(Opened):
    """What was found by problem, stage ("bound" or "time") and candidate (``npusim.base.kept``).

    Several processes may have it open. None keeps it in memory; "" is a file of the user's cache.
    Raises ``ArgumentError`` if the file is no such store.
    """

    def __init__(self, file: str | Path | None = "", most_bytes: int = MOST_BYTES) -> None:
        super().__init__(file, "tuned", most_bytes)

    def get(self, problem: str, stage: str, candidates: Sequence[str]) -> dict[str, Found]:
        """What is known of some candidates."""
        held = {one: self._kept.get(_key(problem, stage, one)) for one in candidates}
        return {one: Found(*json.loads(row)) for one, row in held.items() if row is not None}

    def put(self, problem: str, stage: str, rows: Iterable[tuple[str, Found]]) -> None:
        """Keep what was found, all of it or nothing."""
        self._kept.put(
            (_key(problem, stage, candidate), json.dumps(found).encode())
            for candidate, found in rows
        )


def _key(problem: str, stage: str, candidate: str) -> str:
    return f"{problem} {stage} {candidate}"
