"""Candidates bounded and timed by several processes, and what is known of them already."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

from npusim.base.integers import ceil_div
from npusim.base.kept import MOST_BYTES, Opened
from npusim.base.sources import own_modules
from npusim.base.workers import Workers as Processes
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
