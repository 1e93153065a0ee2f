"""Units in order: the waits of a template for what ran before it on the same core.

``Linker`` carries the scoreboards of all slots across the bounds of units as a hashable state, so
every distinct (template, state) pair is resolved once for all cores. Counts in a state are
relative to where a unit begins: zero or negative, where counts inside a unit start from one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import groupby

import numpy as np
from msgspec import Struct

from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.base.reasons import FLAG
from npusim.machine.isa.operands import Buffer
from npusim.machine.program.lower import SET_TWICE, Lowered, Outside, SlotBoard, Wait, located
from npusim.machine.program.program import Variant

#: Per pipe index, how many instructions must be complete, as sorted (pipe, count) pairs.
Counts = tuple[tuple[int, int], ...]
#: A physical slot: its last writes and the reads since.
Board = tuple[Counts, Counts]
#: Boards of all slots of every resource, between two units.
State = tuple[tuple[Board, ...], ...]

#: The pipes that ever ask for a resource's writes, and for its reads, of earlier tasks.
Observers = tuple[frozenset[int], frozenset[int]]
#: What pipes have waited for: by pipe, of other pipes the highest count.
Waited = dict[int, dict[int, int]]

_EMPTY: Board = ((), ())

#: Numbers of which Python finds runs sooner than NumPy.
_FEW = 32


class _Row(Struct, frozen=True):
    """An instruction whose waits depend on the state.

    ``inside`` are waits that hold in any state, ``zero`` those that ask only for what ran before
    the task, ``sealed`` the pipes whose earlier instructions are all waited for already.
    """

    index: int
    pipe: int
    line: str
    inside: tuple[Wait, ...]
    zero: tuple[Wait, ...]
    needs: tuple[tuple[int, Outside], ...]  # with the resource's place in a state
    sealed: frozenset[int]


class _Exit(Struct, frozen=True):
    """The state a template leaves a resource in: boards by slot, counts relative to its end."""

    boards: dict[int, tuple[bool, Counts, Counts]]  # (older writes still count, writes, reads)
    turned: int
    observers: Observers | None


class _Plan:
    """The facts of a template that linking needs, worked out once."""

    def __init__(self, lowered: Lowered, places: dict[Hashable, int]) -> None:
        self.totals = lowered.totals
        self.rows: list[_Row] = []
        waits: list[tuple[Wait, ...]] = []
        waited: Waited = {}
        for i, (pipe, lowered_waits) in enumerate(zip(lowered.pipes, lowered.waits, strict=True)):
            needs = lowered.outside[i]
            if not lowered_waits and not needs:
                waits.append(())
                continue
            counts = waited.setdefault(pipe, {})
            inside = [w for w in lowered_waits if w[1] > 0]
            essential = _essential(inside, counts)
            waits.append(essential)
            zero = (
                tuple(w for w in lowered_waits if w[1] <= 0)
                if len(inside) < len(lowered_waits)
                else ()
            )
            if needs or zero:
                placed_needs = tuple((places[need.resource], need) for need in needs)
                line = lowered.lines[i]
                self.rows.append(
                    _Row(i, pipe, line, essential, zero, placed_needs, frozenset(counts))
                )
        self.waits = tuple(waits)
        self.waited = waited


class Linker:
    """Resolves templates against what came before them on the same core.

    ``tasks`` are the templates that each distinct task runs one after another. ``variants`` are
    the distinct (template, waits) met so far, in order of first use.
    """

    def __init__(
        self, buffers: tuple[Buffer, ...], lowered: tuple[Lowered, ...], tasks: list[IntArray]
    ) -> None:
        resources = list(dict.fromkeys(key for template in lowered for key in template.exits))
        places = {resource: i for i, resource in enumerate(resources)}
        slots = {b.index: b.slots for b in buffers}
        counts = [slots[r] if isinstance(r, int) else 1 for r in resources]
        self.variants: list[Variant] = []
        self._plans = [_Plan(template, places) for template in lowered]
        observers = [_observers(self._plans, i, resource) for i, resource in enumerate(resources)]
        self._exits = [
            [
                _exit(template, plan.waited, r, seen)
                for r, seen in zip(resources, observers, strict=True)
            ]
            for template, plan in zip(lowered, self._plans, strict=True)
        ]
        self._states: list[State] = []
        self._numbers: dict[State, int] = {}
        self._start = self._number(tuple((_EMPTY,) * count for count in counts))
        self._steps: dict[tuple[int, int], tuple[IntArray, int]] = {}
        self._by_waits: dict[tuple[int, tuple[tuple[Wait, ...], ...]], int] = {}
        self._cores: dict[bytes, IntArray] = {}
        self._tasks = tasks
        self._linked: dict[tuple[int, int], tuple[IntArray, int]] = {}

    def link(self, which: IntArray) -> IntArray:
        """Index into ``variants`` of every unit of a core, whose tasks are ``which``."""
        key = which.tobytes()
        if not key:
            return which
        if key not in self._cores:
            self._cores[key] = self._walk(which, self._start, self._task)[0]
        return self._cores[key]

    def _walk(
        self, which: IntArray, state: int, step: Callable[[int, int], tuple[IntArray, int]]
    ) -> tuple[IntArray, int]:
        """(variants, state afterwards) of what ``which`` numbers, each resolved by ``step``."""
        variants: list[IntArray] = []
        for number, length in runs_of(which):
            done = 0
            while done < length:
                before, (resolved, state) = state, step(number, state)
                # In a steady state every repetition resolves alike.
                count = length - done if state == before else 1
                variants.append(resolved if count == 1 else np.tile(resolved, count))
                done += count
        return variants[0] if len(variants) == 1 else np.concatenate(variants), state

    def _task(self, task: int, state: int) -> tuple[IntArray, int]:
        """(variants, state afterwards) of a task that starts in a state."""
        linked = self._linked.get((task, state))
        if linked is None:
            linked = self._linked[task, state] = self._walk(self._tasks[task], state, self._step)
        return linked

    def _step(self, template: int, state: int) -> tuple[IntArray, int]:
        """(variant, state afterwards) of a template that runs in a state."""
        step = self._steps.get((template, state))
        if step is None:
            boards = self._states[state]
            variant, waited = self._resolve(template, boards)
            exits, totals = self._exits[template], self._plans[template].totals
            after = self._number(_advance(totals, exits, waited, boards))
            step = self._steps[template, state] = (np.array([variant]), after)
        return step

    def _number(self, state: State) -> int:
        """States as small numbers, because hashing one takes as long as resolving it."""
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def _resolve(self, template: int, state: State) -> tuple[int, Waited]:
        """The variant of a template that starts in ``state``, and what pipes wait for in it."""
        plan = self._plans[template]
        waited: Waited = {}
        waits_before = tuple(
            _essential(_before(row, state), waited.setdefault(row.pipe, {})) for row in plan.rows
        )
        key = (template, waits_before)
        if key not in self._by_waits:
            waits = list(plan.waits)
            for row, more in zip(plan.rows, waits_before, strict=True):
                if more:
                    waits[row.index] = tuple(sorted((*row.inside, *more)))
            self._by_waits[key] = len(self.variants)
            self.variants.append(Variant(template, tuple(waits)))
        for pipe, counts in plan.waited.items():  # those of the unit itself are higher
            waited[pipe] = {**waited.get(pipe, {}), **counts}
        return self._by_waits[key], waited


def runs_of(which: IntArray) -> list[tuple[int, int]]:
    """Numbers and how often each comes one after another."""
    if len(which) <= _FEW:
        return [(number, len([*alike])) for number, alike in groupby(which.tolist())]
    begins = np.flatnonzero(np.concatenate([[True], which[1:] != which[:-1]]))
    lengths = np.concatenate([begins[1:], [len(which)]]) - begins
    return list(zip(which[begins].tolist(), lengths.tolist(), strict=True))


def _before(row: _Row, state: State) -> list[Wait]:
    """Waits of a row for what ran before the task.

    None for sealed pipes: a count from inside the task implies every count from before it.
    """
    waits = [w for w in row.zero if w[0] not in row.sealed]
    for place, need in row.needs:
        writes, reads = state[place][need.slot]
        if need.reason == FLAG:
            with located(row.line):
                _check_flag(need, up=bool(writes) and not reads)
            if need.reads_too:  # a set waits for nothing
                continue
        for q, n in (*writes, *reads) if need.reads_too else writes:
            if q != row.pipe and q not in row.sealed:
                waits.append((q, n, need.reason))
    return waits


def _check_flag(need: Outside, *, up: bool) -> None:
    """Raise unless a flag inherited from earlier tasks is up to be waited for, down to be set."""
    if need.reads_too == up:
        assert isinstance(need.resource, tuple)
        _, src, dst, event = need.resource
        if up:
            raise ProgramError(f"set_flag {src}->{dst} #{event}: {SET_TWICE}")
        raise ProgramError(
            f"wait_flag {src}->{dst} #{event} comes without a set_flag before it; set it first, "
            "in this task or an earlier one"
        )


def _essential(waits: Iterable[Wait], waited: dict[int, int]) -> tuple[Wait, ...]:
    """Drop waits that another one, or an earlier instruction of the pipe, implies.

    ``waited`` is the highest count of each other pipe the pipe has waited for.
    """
    best: dict[int, Wait] = {}
    for wait in waits:
        q, n, reason = wait
        highest = best.get(q)
        if highest is None or n > highest[1] or (n == highest[1] and reason < highest[2]):
            best[q] = wait
    essential = []
    for q in sorted(best):
        n = best[q][1]
        if q not in waited or n > waited[q]:
            essential.append(best[q])
            waited[q] = n
    return tuple(essential)


def _observers(plans: list[_Plan], place: int, resource: Hashable) -> Observers | None:
    """Who asks for a resource; None for a flag, of which the presence of counts says it is up."""
    if not isinstance(resource, int):
        return None
    writes: set[int] = set()
    reads: set[int] = set()
    for plan in plans:
        for row in plan.rows:
            for where, need in row.needs:
                if where == place:
                    writes.add(row.pipe)
                    reads |= {row.pipe} if need.reads_too else set()
    return frozenset(writes), frozenset(reads)


def _exit(
    lowered: Lowered, waited: Waited, resource: Hashable, observers: Observers | None
) -> _Exit:
    """The boards a template leaves of a resource, whose pipes have ``waited`` for others.

    Without counts that nobody can ask for (``_asked``).
    """
    turned = lowered.turns[resource] if isinstance(resource, int) else 0

    def counts(needs_by_pipe: dict[int, int], seen: frozenset[int] | None) -> Counts:
        pairs = sorted(needs_by_pipe.items())
        return tuple(
            (q, n - lowered.totals[q])
            for q, n in pairs
            if seen is None or _asked(q, n, seen, waited)
        )

    writes, reads = observers or (None, None)
    local: dict[int, SlotBoard] = lowered.exits.get(resource, {})
    return _Exit(
        {
            slot: (board.inherited, counts(board.writes, writes), counts(board.reads, reads))
            for slot, board in local.items()
        },
        turned,
        observers,
    )


def _asked(q: int, n: int, observers: frozenset[int], waited: Waited) -> bool:
    """Tell whether a pipe may wait for count ``n`` of pipe ``q`` behind a unit.

    A pipe never waits for itself, so the count matters only if another one asks for earlier writes
    (or reads) of the resource; and a pipe works in order, so what it has waited for holds for all
    that it does after. This keeps the states of long runs equal: a write to an accumulator not in
    use grows older, and so does that of an operand that stays where it is.
    """
    return any(p != q and waited.get(p, {}).get(q, n - 1) < n for p in observers)


def _advance(totals: tuple[int, ...], exits: list[_Exit], waited: Waited, state: State) -> State:
    """The state at the end of a unit of so many instructions, whose pipes have ``waited``."""

    def aged(counts: Counts, seen: frozenset[int] | None) -> Counts:
        return tuple([
            (q, n - totals[q]) for q, n in counts if seen is None or _asked(q, n, seen, waited)
        ])  # fmt: skip

    after = []
    for old, leaves in zip(state, exits, strict=True):
        writes, reads = leaves.observers or (None, None)
        boards = []
        for slot, board in enumerate(old):
            exit_board = leaves.boards.get(slot)
            if exit_board is not None and not exit_board[0]:
                boards.append(exit_board[1:])
            elif board == _EMPTY and exit_board is None:
                boards.append(board)
            else:  # what was there before still counts
                read = aged(board[1], reads)
                if exit_board is not None:
                    read = tuple(sorted({**dict(read), **dict(exit_board[2])}.items()))
                boards.append((aged(board[0], writes), read))
        # Slot i holds turn i of this unit; the next unit counts its turns from zero again.
        first = leaves.turned % len(boards)
        after.append((*boards[first:], *boards[:first]))
    return tuple(after)
