"""Best-first search among candidates: what has the least bound is looked at more closely.

A candidate first has a bound in closed form, then its simulated time. The one with the least bound
is simulated next. When no bound is below the best time, no other candidate can be faster: the
tiling is proved best among the candidates, on simulated time. In this order no candidate is built
whose bound is above the best time, but for those of the last step. A search that may end before can
be led to some that may be good first. There is no bound between the two: one from the program takes
as long as the simulation, and both take less than to build it.

The order, and so the table, depends neither on how many processes look nor on what a store knows.

Candidates are timed by several processes, which do not look at what a store knows.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from npusim.base.digests import own_modules
from npusim.base.errors import ArgumentError, naming
from npusim.base.integers import ceil_div
from npusim.base.records import growing
from npusim.base.workers import Workers as Processes
from npusim.call.tilings.problem import Changes, Found, TuningProblem, neighbours
from npusim.machine.program.build import changes
from npusim.machine.program.kernel import Kernel
from npusim.reuse.store import Store

#: States of a candidate. "pruned": its bound is above the best time; "open": the budget ended.
#: "same" was simulated and runs like another candidate, and counts for none.
SIMULATED = "simulated"
PRUNED = "pruned"
ILLEGAL = "illegal"
OPEN = "open"
SAME = "same"

#: Candidates simulated in one step, which is the same for any number of processes.
_AT_ONCE = 8


class Budget(NamedTuple):
    """Limits at which to stop before the proof: simulations, or seconds (None: never)."""

    runs: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, value: int | str | None) -> Budget:
        """ "30s", "2min", "200" or "200 runs" as text; a number is one of runs."""
        if value is None or isinstance(value, Budget):
            return value or cls()
        text = str(value).strip().lower()
        units = {"min": 60.0, "s": 1.0, "h": 3600.0}
        number, unit = text.removesuffix("runs").strip(), ""
        if number == text:
            unit = next((unit for unit in units if text.endswith(unit)), "")
            number = text.removesuffix(unit).strip()
        try:
            amount = float(number) if unit else int(number)
        except ValueError:
            amount = -1
        if isinstance(value, bool) or amount < (0 if unit else 1):
            raise ArgumentError(
                f"budget is {value!r}; it is a number of simulations such as 200, or a time such "
                "as 30s or 2min"
            )
        return cls(seconds=amount * units[unit]) if unit else cls(int(amount))


@dataclass
class TilingRow:
    """One candidate: its bound and time in cycles with every launch, and what became of it."""

    kernel: Kernel
    least: int
    cycles: int = 0
    state: str = OPEN
    reason: str = ""
    gm_bytes: int = 0  # once its program was built

    @property
    def lower_bound(self) -> int:
        """The best bound there is; of a simulated candidate its time."""
        return self.cycles or self.least


@dataclass
class Progress:
    """Counts of a search: candidates, those ``settled``, and of these the simulated ones.

    Settled are those simulated, illegal, or with a bound above the best. ``best`` is the best time,
    ``least`` the least that any other can take.
    """

    candidates: int
    settled: int
    simulated: int
    best: float
    least: float


@dataclass
class BestFirstSearch:
    """The candidates of a problem, and a search that can be stopped and looked at any time."""

    problem: TuningProblem
    candidates: Iterable[tuple[Kernel, int]]
    seeds: tuple[Kernel, ...]
    budget: Budget
    report: Callable[[Progress], None] | None = None
    rows: list[TilingRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._heap: list[tuple[int, int]] = []  # bound, row
        self._places: dict[Kernel, int] = {}  # of rows, by what is left of their tilings
        self._runs_like: dict[str, int] = {}  # rows by what an engine sees
        self._best: int | float = inf
        self.simulated = 0
        self.begun = time.monotonic()

    def begin(self, workers: SearchWorkers) -> None:
        """Simulate the seeds in any case, and list the candidates."""
        seeds = [self._place(seed) for seed in self.seeds]
        self._time(list(dict.fromkeys(seeds)), workers)
        for candidate, least in self.candidates:
            self._admit(candidate, least)

    def lead(self, kernels: Iterable[Kernel], workers: SearchWorkers) -> bool:
        """Simulate what may be the best of these, in order, as far as the budget goes; whether the
        best became better."""
        before, candidates = self._best, list(kernels)
        for begin in range(0, len(candidates), _AT_ONCE):
            if self._over():
                break
            places = {self._place(kernel) for kernel in candidates[begin : begin + _AT_ONCE]}
            hopeful = [(self.rows[i].least, i) for i in places if self._may_be_best(i)]
            runs = self.budget.runs
            most = None if runs is None else runs - self.simulated
            self._time([i for _, i in sorted(hopeful)][:most], workers)
        return self._best < before

    def around(self, workers: SearchWorkers) -> None:
        """Lead on with what is one step from the best, until none of these is better."""
        while self.best is not None and self.lead(neighbours(self.best), workers):
            pass

    def run(self, workers: SearchWorkers) -> None:
        """Look at what has the least bound, until the proof or the end of the budget."""
        while not self._over() and (next_rows := self._take()):
            self._time(next_rows, workers)

    def end(self) -> None:
        """Say of what is left whether it may still be faster than the best."""
        for row in self.rows:
            if row.state == OPEN and row.lower_bound >= self._best:
                row.state = PRUNED

    def _may_be_best(self, place: int) -> bool:
        """True of a row that was not looked at, and may be faster than the best."""
        row = self.rows[place]
        return row.state == OPEN and row.least < self._best

    @property
    def best(self) -> Kernel | None:
        """The fastest simulated so far, the first of those that take the same time."""
        done = [row for row in self.rows if row.state == SIMULATED]
        return min(done, key=lambda row: row.cycles).kernel if done else None

    def _place(self, kernel: Kernel) -> int:
        """The row of a kernel, which it gets if it has none."""
        place = self._places.get(kernel.clipped)
        return self._admit(kernel, self.problem.least(kernel)) if place is None else place

    def _admit(self, kernel: Kernel, least: int) -> int:
        """The row of a candidate with such a bound; what runs like another has the row of this."""
        place = self._places.setdefault(kernel.clipped, len(self.rows))
        if place == len(self.rows):
            heapq.heappush(self._heap, (least, place))
            self.rows.append(TilingRow(kernel, least))
        return place

    def _over(self) -> bool:
        runs, seconds = self.budget
        if runs is not None and self.simulated >= runs:
            return True
        return seconds is not None and time.monotonic() - self.begun >= seconds

    def _take(self) -> list[int]:
        """The next rows, as long as none may be faster than the best."""
        most, heap = _AT_ONCE, self._heap
        if self.budget.runs is not None:
            most = min(most, self.budget.runs - self.simulated)
        taken: list[int] = []
        while heap and heap[0][0] < self._best and len(taken) < most:
            _, place = heapq.heappop(heap)
            if self.rows[place].state == OPEN:
                taken.append(place)
        return taken

    def _time(self, places: Iterable[int], workers: SearchWorkers) -> None:
        """Times of rows, which leave the search; of what cannot run the reason."""
        chosen = list(places)
        kernel = self.problem.kernel
        findings = workers.look([changes(kernel, self.rows[i].kernel) for i in chosen])
        for i, finding in zip(chosen, findings, strict=True):
            row = self.rows[i]
            if finding.reason:
                row.state = ILLEGAL
                row.reason = finding.reason
                continue
            row.cycles = finding.cycles
            row.gm_bytes = finding.gm_bytes
            row.state = SIMULATED if self._runs_like.setdefault(finding.alike, i) == i else SAME
            self._best = min(self._best, finding.cycles)
            self.simulated += 1
        self._tell()

    def _tell(self) -> None:
        if self.report is not None:
            undecided = [self.rows[i].least for _, i in self._heap if self._may_be_best(i)]
            least = min(undecided, default=inf)
            settled = len(self.rows) - len(undecided)
            self.report(Progress(len(self.rows), settled, self.simulated, self._best, least))


# -- processes ----------------------------------------------------------------------------------


class SearchWorkers(Processes):
    """``jobs`` processes (1: this one alone) that look at candidates of a problem.

    What the store knows is not computed again; what is computed is kept there, but for what took
    the last half second.
    """

    def __init__(self, problem: TuningProblem, store: Store, jobs: int | None) -> None:
        super().__init__(jobs, partial(_begin, problem), own_modules(type(problem.kernel)))
        self.problem = problem
        self.store = store
        #: Candidates found in the store so far, and computed.
        self.from_store = self.computed = 0
        #: Candidates looked at in this process alone, and the seconds that this took.
        self._alone, self._alone_s = 0, 0.0

    def look(self, candidates: Sequence[Changes]) -> list[Found]:
        """The time of each candidate, in order."""
        names = [f"{self.problem.key} {sorted(changes.items())!r}" for changes in candidates]
        rows = {name: self.store.get(name) for name in names}
        stored = {name: Found(*row) for name, row in rows.items() if row is not None}
        missing = {
            name: changes
            for name, changes in zip(names, candidates, strict=True)
            if name not in stored
        }
        self.from_store += len(names) - len(missing)
        self.computed += len(missing)
        new = dict(zip(missing, self._compute(list(missing.values())), strict=True))
        self.store.put_soon(*new.items())
        return [stored[name] if name in stored else new[name] for name in names]

    def _compute(self, candidates: list[Changes]) -> list[Found]:
        if self.jobs == 1 or len(candidates) < 2 or self.waits(self._alone_s, self._alone):
            begin = time.perf_counter()
            findings = _looked(self.problem, candidates)
            self._alone_s += time.perf_counter() - begin
            self._alone += len(candidates)
            return findings
        size = ceil_div(len(candidates), 2 * self.jobs)
        chunks = [candidates[begin : begin + size] for begin in range(0, len(candidates), size)]
        by_chunk = dict(self.each(_look, chunks, self._chunk_name))
        return [finding for place in range(len(chunks)) for finding in by_chunk[place]]

    def _chunk_name(self, chunk: Sequence[Changes]) -> str:
        """The name of candidates that are looked at together."""
        first = _candidate_name(self.problem.candidate(chunk[0]))
        return f"{first} and {len(chunk) - 1} more" if len(chunk) > 1 else first


def look(problem: TuningProblem, changes: Changes) -> Found:
    """Time one candidate; an error names it."""
    candidate = problem.candidate(changes)
    with naming(partial(_candidate_name, candidate)):
        return problem.time(candidate)


def _candidate_name(candidate: Kernel) -> str:
    """The name of a candidate in errors, with its tiling as reports show it."""
    return f"candidate {candidate.name} {candidate.tiling_text}".rstrip()


#: The problem of a process that looks at candidates.
_HELD: list[TuningProblem] = []


def _look(candidates: list[Changes]) -> list[Found]:
    return _looked(_HELD[0], candidates)


@growing()
def _looked(problem: TuningProblem, candidates: Iterable[Changes]) -> list[Found]:
    """The time of each, with no search for cycles after each program."""
    return [look(problem, changes) for changes in candidates]


def _begin(problem: TuningProblem) -> None:
    """Make ready to look."""
    _HELD.append(problem)
