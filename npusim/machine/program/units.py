"""Units: runs of instructions that are issued, checked, costed and lowered once.

A task without loops is one unit. Iterations of a loop that differ in addresses only are one unit
that a core runs again and again, and so is what ``once`` has met before. A task is thus a sequence
of units, each with the bytes by which it moves the bases of global memory; the simulation and the
executor go through these sequences and know no loops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from numbers import Integral
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.base.yamltree import suggest
from npusim.machine.isa.base import Instruction, InstructionFacts
from npusim.machine.isa.operands import Buffer, Slot, SlotRegion

#: Units that a task may run one after another: a table of them takes some hundred bytes each.
MOST_RUNS = 2_000_000


class BufferHandle:
    """A declared buffer as the kernel uses it: take the next turn, or look at the last."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.turns = 0  # taken in the task being emitted
        self.task = 0  # the number of the scope: a task, an iteration, or what is issued once
        self.began = 0  # that of the task

    def next(self) -> Slot:
        """Acquire the next slot; its previous content is lost."""
        self.turns += 1
        return Slot(self.buffer, self.turns - 1, task=self.task)

    def last(self, back: int = 0) -> Slot:
        """The slot acquired last (or ``back`` turns before it), also by an earlier task."""
        if back >= self.buffer.slots:
            raise ProgramError(
                f"{self.buffer.name} has {self.buffer.slots} slots; turn {back} back is "
                "overwritten already; declare more slots"
            )
        return Slot(self.buffer, self.turns - 1 - back, task=self.task)


class Unit(NamedTuple):
    """Instructions that a core runs as a whole, and what they tell.

    Turns of their slots count from the start of the task in which they were issued; there
    ``starts`` turns of each buffer were taken before them. They take ``turns`` more.
    """

    instructions: tuple[Instruction, ...]
    facts: tuple[InstructionFacts, ...]
    lines: tuple[str, ...]
    starts: tuple[int, ...]
    turns: tuple[int, ...]


class Runs(NamedTuple):
    """Units in the order in which a task runs them."""

    units: IntArray  # (runs,): their numbers
    iterations: IntArray  # (runs,): of the innermost loop, from 0; -1 outside of loops
    shifts: IntArray  # (runs, bases): bytes added to each base

    def repeated(self, numbers: IntArray, strides: IntArray) -> Runs:
        """The same for each of the iterations ``numbers``, ``strides`` bytes apart."""
        count, number = len(numbers), np.repeat(numbers, len(self.units))
        iterations = np.tile(self.iterations, count)
        shifts = np.tile(self.shifts, (count, 1)) + number[:, None] * strides
        return Runs(
            np.tile(self.units, count), np.where(iterations < 0, number, iterations), shifts
        )

    @staticmethod
    def joined(runs: list[Runs]) -> Runs:
        """Units that follow each other as one sequence; there is at least one."""
        if len(runs) == 1:
            return runs[0]
        return Runs(*(np.concatenate(column) for column in zip(*runs, strict=True)))


class Iteration:
    """An iteration of a loop, or several that are alike; what it is asked tells them apart."""

    def __init__(self, *, first: bool, last: bool) -> None:
        self._first = first
        self._last = last
        self.asked_first = self.asked_last = False

    @property
    def first(self) -> bool:
        """True for the first: asking makes the first one a unit of its own."""
        self.asked_first = True
        return self._first

    @property
    def last(self) -> bool:
        """True for the last: asking makes the last one a unit of its own."""
        self.asked_last = True
        return self._last


class _Scope(Struct):
    """An iteration, or what is issued once: where turns stood, and which slots were there."""

    turns: tuple[int, ...]
    since: tuple[int, ...]  # by buffer, the number of the scope
    outer: list[Runs]  # what the task ran before
    operands: frozenset[tuple[int, int]] | None  # (buffer, turn) of operands; None in loops
    line: str  # of the kernel
    used: dict[int, str] = field(default_factory=dict)  # by buffer, a slot of before, and its line


class Units:
    """Records the units of one kind of core, and which of them a task runs.

    Kinds of cores that work together share the list of ``handles``, in which each knows its own.
    """

    def __init__(self, handles: list[BufferHandle] | None = None) -> None:
        self.handles: list[BufferHandle] = [] if handles is None else handles
        self.bases: tuple[str, ...] = ()  # of the table of tasks
        self.units: list[Unit] = []
        self.instructions: list[Instruction] = []  # of the unit being issued
        self.facts: list[InstructionFacts] = []
        self.lines: list[str] = []
        self._starts: tuple[int, ...] = ()
        self._runs: list[Runs] = []
        self._scopes: list[_Scope] = []
        self._recorded: dict[Hashable, tuple[Runs, tuple[int, ...]]] = {}
        self._empty: dict[tuple[int, ...], int] = {}
        self._issued = 0  # instructions of the task
        self._gone: set[tuple[int, int]] = set()  # (buffer, scope) of iterations run several times

    def begin_task(self) -> None:
        """Forget the instructions and turns of the previous task."""
        for handle in self.handles:
            handle.turns = 0
            handle.task += 1
            handle.began = handle.task
        self.instructions = []
        self.facts = []
        self.lines = []
        self._runs = []
        self._scopes = []
        self._issued = 0
        self._gone = set()
        self._starts = self._turns()

    def end_task(self) -> Runs:
        """The units of the task. Raises ``ProgramError`` if a loop was left before its end."""
        if self._scopes:
            raise ProgramError(
                f"{self._scopes[0].line}: a loop was left before its end; let it come to its end, "
                "of fewer iterations"
            )
        self._cut(always=not self._runs)
        return Runs.joined(self._runs)

    def close(self) -> None:
        """Forget what was issued once, behind the last task.

        Its keys hold methods of what emits the tasks, which holds this: as a circle all that was
        issued would stay until Python looks for such.
        """
        self._recorded.clear()

    def loop(self, count: int, **strides: int) -> Iterator[Iteration]:
        """Iterations that differ in addresses: in each, bases lie ``strides`` bytes further.

        The body is issued once for all that are alike, and once more for the first or the last if
        it asks whether it is that one; the rest of it may depend on nothing that changes. Slots of
        earlier iterations are taken with ``last``. Raises ``ProgramError`` for a base that the
        tasks lack, and for a slot of before the loop in a buffer that the body takes turns of.
        """
        step, number = self._strides(count, strides), 0
        if count == 1:
            yield Iteration(first=True, last=True)
        while number < count > 1:
            iteration = Iteration(first=not number, last=number == count - 1)
            scope = self._begin(None)
            yield iteration
            body = self._end(scope)
            alike = count - number - (iteration.asked_last and number < count - 1)
            if iteration.asked_first and not number:
                alike = 1
            if alike > 1:
                self._repeat(scope, alike, f"iteration {number + 2} of {count}")
            if alike * len(body.units) > MOST_RUNS:
                raise ProgramError(
                    f"{alike:,} iterations of {len(body.units)} units in one task, more than "
                    f"{MOST_RUNS:,}; cut the work into more tasks"
                )
            self._runs.append(body.repeated(np.arange(number, number + alike), step))
            number += alike

    def once(self, body: Callable[..., None], *operands: Any) -> None:
        """Issue ``body(*operands)``, or run again what it issued for equal operands.

        It may depend on nothing but these and what was fixed in ``plan``. Slots are equal if they
        were taken as many turns ago. Raises ``ProgramError`` for a slot of before that is no
        operand.
        """
        self._cut()
        slots: list[Slot] = []
        key = body, self._key(operands, slots)
        try:
            recorded = self._recorded.get(key)
        except TypeError as error:
            raise ProgramError(f"{error}: operands of once are compared; give a tuple") from error
        for slot in slots:
            self._use(slot.at())
        if recorded is None:
            scope = self._begin(frozenset((slot.buffer.index, slot.turn) for slot in slots))
            body(*operands)
            runs = self._end(scope)
            taken = tuple(h.turns - n for h, n in zip(self.handles, scope.turns, strict=True))
            self._recorded[key] = runs, taken
        else:
            runs, taken = recorded
            for handle, turns in zip(self.handles, taken, strict=True):
                handle.turns += turns
            self._starts = self._turns()
        self._runs.append(runs)

    # -- scopes ----------------------------------------------------------------------------

    def _begin(self, operands: frozenset[tuple[int, int]] | None) -> _Scope:
        self._cut()
        for handle in self.handles:
            handle.task += 1
        since = tuple(handle.task for handle in self.handles)
        self._scopes.append(_Scope(self._turns(), since, self._runs, operands, kernel_line()))
        self._runs = []
        return self._scopes[-1]

    def _end(self, scope: _Scope) -> Runs:
        """Leave a scope; what it ran, which may be a unit without instructions."""
        self._cut(always=not self._runs)
        self._scopes.pop()
        runs, self._runs = self._runs, scope.outer
        return Runs.joined(runs)

    def _repeat(self, scope: _Scope, count: int, second: str) -> None:
        """Take the turns of iterations that are not issued, the ``second`` and those behind it."""
        for handle, before, since in zip(self.handles, scope.turns, scope.since, strict=True):
            taken, index = handle.turns - before, handle.buffer.index
            if taken and index in scope.used:
                raise ProgramError(
                    f"{scope.used[index]} was taken before the iteration, which takes {taken} of "
                    f"the {handle.buffer.slots} slots of {handle.buffer.name}: in {second} it "
                    "would be another; take it with last() in the loop"
                )
            handle.turns += (count - 1) * taken
            self._gone.update((index, number) for number in range(since, handle.task + 1))
            handle.task += 1
        self._starts = self._turns()

    def _use(self, region: SlotRegion) -> None:
        """Note a slot that was taken before the scopes in which it is used."""
        slot, buffer = region.slot, region.slot.buffer.index
        if (buffer, slot.task) in self._gone:
            raise ProgramError(
                f"{region} was taken in an iteration that stands for several; take it with last() "
                "behind them"
            )
        for scope in reversed(self._scopes):
            if slot.task >= scope.since[buffer]:
                return
            if scope.operands is None:
                if buffer not in scope.used:
                    scope.used[buffer] = f"{region}, used at {kernel_line()},"
            elif (buffer, slot.turn) not in scope.operands:
                raise ProgramError(
                    f"{region} was taken before what is issued once, and is none of its operands; "
                    "give it as one, or take it with last()"
                )

    # -- units -----------------------------------------------------------------------------

    def _turns(self) -> tuple[int, ...]:
        return tuple([handle.turns for handle in self.handles])

    def _cut(self, *, always: bool = False) -> None:
        """End the unit being issued, if there is anything in it."""
        now = self._turns()
        self._starts += (0,) * (len(now) - len(self._starts))  # buffers declared since
        if not self.instructions and now == self._starts and not always:
            return
        taken = tuple([b - a for a, b in zip(self._starts, now, strict=True)])
        content = tuple(self.instructions), tuple(self.facts), tuple(self.lines)
        number = len(self.units)
        if not self.instructions:  # one that takes turns only
            number = self._empty.setdefault(taken, number)
        if number == len(self.units):
            self.units.append(Unit(*content, self._starts, taken))
        unmoved = np.zeros((1, len(self.bases)), np.int64)
        self._runs.append(Runs(np.array([number]), np.array([-1]), unmoved))
        self.instructions = []
        self.facts = []
        self.lines = []
        self._starts = now

    def _strides(self, count: object, strides: Mapping[str, object]) -> IntArray:
        for name, value in (("count", count), *strides.items()):
            if not isinstance(value, Integral):
                raise ProgramError(f"{name} of a loop is {value!r}; it must be a whole number")
        for name in strides:
            if name not in self.bases:
                raise ProgramError(
                    f"the task table has no base {name!r} for a loop to move"
                    f"{suggest(name, self.bases)} (it has: {', '.join(self.bases)})"
                )
        return np.array([strides.get(name, 0) for name in self.bases], np.int64)

    def _key(self, operand: Any, slots: list[Slot]) -> Hashable:
        """An operand with slots by their age instead of their turn; these go to ``slots``."""
        if isinstance(operand, Slot):
            slots.append(operand)
            age = self.handles[operand.buffer.index].turns - operand.turn
            return operand.buffer.index, age, operand.first
        if isinstance(operand, SlotRegion):
            place = operand.offset, operand.rows, operand.row_bytes, operand.pitch
            return self._key(operand.slot, slots), place
        if isinstance(operand, tuple):
            return tuple([self._key(part, slots) for part in operand])
        # To Python 0.0 is -0.0, and 1 is True.
        return type(operand), repr(operand) if isinstance(operand, float | np.floating) else operand


_PACKAGE = str(FilePath(__file__).parent.parent)
_OURS = tuple(f"{_PACKAGE}/{part}/" for part in ("program", "isa"))


def kernel_line() -> str:
    """``file.py:line`` of the innermost caller outside this layer."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not _kernel_file(frame.f_code.co_filename):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return f"{_kernel_file(file) or FilePath(file).name}:{frame.f_lineno}"


@cache
def _kernel_file(path: str) -> str:
    """Name of a file outside this layer, empty for one inside."""
    return "" if path.startswith(_OURS) else FilePath(path).name
