"""From slots to waits: who must have finished before an instruction may start.

A wait is a count: "pipe q has completed at least n instructions", n counted from the start of
the unit (zero or negative reaches into earlier units). Because pipes complete in order that is
all a correct set of flags enforces. A wait for ``FOLLOW`` lets the two instructions overlap:
it asks to stay behind the other's start, and behind its end, by the lags of its cost.

``lower`` looks at one template alone: each physical slot keeps a small scoreboard (last writes
and the reads since, per pipe). Where a slot's history lies before the unit, the need is recorded
as an ``Outside`` reference, which ``npusim.machine.program.link`` resolves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from npusim.base.errors import ProgramError
from npusim.base.reasons import BARRIER, DATA, FLAG, FOLLOW, SPACE
from npusim.machine.isa.base import Instruction, Told
from npusim.machine.isa.operands import Slot, SlotRegion
from npusim.machine.isa.sync import SetFlag, WaitFlag
from npusim.machine.program.units import Unit

#: (pipe index, count, reason) of one wait.
Wait = tuple[int, int, int]

#: What is wrong with a flag that is up when it is set.
SET_TWICE = "set twice without a wait; a flag is one bit, let its receiver wait in between"


class Outside(Struct, frozen=True):
    """A need that reaches before the unit: slot ``slot`` of ``resource``, for ``reason``."""

    resource: Hashable
    slot: int
    reads_too: bool
    reason: int


class SlotBoard(Struct):
    """Scoreboard of one physical slot inside a template."""

    inherited: bool = True  # nothing in this unit has written it yet
    writes: dict[int, int] = field(default_factory=dict)
    reads: dict[int, int] = field(default_factory=dict)


class Lowered(Struct, frozen=True):
    """A template's waits before linking, and what it leaves behind for the next unit."""

    lines: tuple[str, ...]  # kernel line per instruction
    pipes: tuple[int, ...]  # pipe index per instruction
    waits: tuple[tuple[Wait, ...], ...]
    outside: tuple[tuple[Outside, ...], ...]
    totals: tuple[int, ...]  # instructions per pipe
    starts: tuple[int, ...]  # from where turns of its slots count, per buffer
    turns: tuple[int, ...]  # slots taken per buffer
    exits: dict[Hashable, dict[int, SlotBoard]]


class _Scoreboard:
    """Collects the waits of one template, instruction by instruction."""

    def __init__(self, pipes: tuple[str, ...], starts: tuple[int, ...]) -> None:
        self.starts = starts
        self.index = {pipe: i for i, pipe in enumerate(pipes)}
        self.counts = [0] * len(pipes)
        self.slots: dict[Hashable, dict[int, SlotBoard]] = {}

    def waits_of(self, instruction: Instruction, facts: Told) -> tuple[list[Wait], list[Outside]]:
        """Waits of the next instruction in program order; updates the scoreboards."""
        pipe = self.index[facts.pipe]
        waits: list[Wait] = []
        outside: list[Outside] = []
        for region in facts.reads:
            if isinstance(region, SlotRegion):
                self._read(region.slot, pipe, waits, outside)
        for region in facts.writes:
            if isinstance(region, SlotRegion):
                self._write(region.slot, pipe, waits, outside)
        if not facts.writes:  # what orders others changes no memory
            self._order(instruction, facts, waits, outside)
        self.counts[pipe] += 1
        return waits, outside

    def _order(
        self, instruction: Instruction, told: Told, waits: list[Wait], outside: list[Outside]
    ) -> None:
        """Flags are boards of their own; a barrier waits for everything before it."""
        pipe = self.index[told.pipe]
        match instruction:
            case SetFlag():
                self._set_flag(instruction, pipe, outside)
            case WaitFlag():
                self._wait_flag(instruction, pipe, waits, outside)
            case _ if told.drains:
                waits += [(q, n, BARRIER) for q, n in enumerate(self.counts) if q != pipe]

    def _board(self, resource: Hashable, number: int) -> SlotBoard:
        boards = self.slots.setdefault(resource, {})
        if number not in boards:
            boards[number] = SlotBoard()
        return boards[number]

    def _read(self, slot: Slot, pipe: int, waits: list[Wait], outside: list[Outside]) -> None:
        buffer = slot.buffer
        number = (slot.turn - self.starts[buffer.index]) % buffer.slots
        board = self._board(buffer.index, number)
        reason = FOLLOW if buffer.unit_flag else DATA
        for q, n in board.writes.items():
            if q != pipe:
                waits.append((q, n, reason))
        if board.inherited and pipe not in board.reads:  # in order: once waited, always waited
            outside.append(Outside(buffer.index, number, False, reason))
        board.reads[pipe] = self.counts[pipe] + 1

    def _write(self, slot: Slot, pipe: int, waits: list[Wait], outside: list[Outside]) -> None:
        buffer = slot.buffer
        number = (slot.turn - self.starts[buffer.index]) % buffer.slots
        board = self._board(buffer.index, number)
        reason = FOLLOW if buffer.unit_flag else SPACE
        for before in (board.reads, board.writes):
            for q, n in before.items():
                if q != pipe:
                    waits.append((q, n, reason))
        if board.inherited:
            outside.append(Outside(buffer.index, number, True, reason))
            board.inherited = False
        board.writes = {pipe: self.counts[pipe] + 1}
        board.reads = {}

    def _set_flag(self, flag: SetFlag, pipe: int, outside: list[Outside]) -> None:
        key = ("flag", *flag.flag)
        board = self._board(key, 0)
        if board.writes and not board.reads:
            raise ProgramError(SET_TWICE)
        if board.inherited and not board.reads:
            outside.append(Outside(key, 0, True, FLAG))  # must not be up already
        board.inherited, board.reads = False, {}
        board.writes = {pipe: self.counts[pipe] + 1}

    def _wait_flag(
        self, flag: WaitFlag, pipe: int, waits: list[Wait], outside: list[Outside]
    ) -> None:
        key = ("flag", *flag.flag)
        board = self._board(key, 0)
        if board.reads:
            raise ProgramError("waited twice for one set_flag; pair every wait with its own set")
        waits += [(q, n, FLAG) for q, n in board.writes.items()]
        if board.inherited:
            outside.append(Outside(key, 0, False, FLAG))
        board.reads[pipe] = self.counts[pipe] + 1


def lower(unit: Unit, pipes: tuple[str, ...]) -> Lowered:
    """Waits of one unit, counted from its start."""
    board = _Scoreboard(pipes, unit.starts)
    waits, outside = [], []
    for i, instruction in enumerate(unit.instructions):
        try:
            own, needs = board.waits_of(instruction, unit.told[i])
        except ProgramError as error:
            raise at_line(error, unit.lines[i], instruction) from error
        waits.append(tuple(own))
        outside.append(tuple(needs))
    return Lowered(
        lines=unit.lines,
        pipes=tuple(board.index[one.pipe] for one in unit.told),
        waits=tuple(waits),
        outside=tuple(outside),
        totals=tuple(board.counts),
        starts=unit.starts,
        turns=unit.turns,
        exits=board.slots,
    )


def at_line(error: ProgramError, line: str, instruction: Instruction | None = None) -> ProgramError:
    """The error behind the kernel line it comes from, and the instruction if one is given."""
    what = f"{instruction}: " if instruction is not None else ""
    return ProgramError(f"{line}: {what}{error}")


@contextmanager
def located(line: str, instruction: Instruction | None = None) -> Iterator[None]:
    """Prefix a ``ProgramError`` with the kernel line, and the instruction if one is given."""
    try:
        yield
    except ProgramError as error:
        raise at_line(error, line, instruction) from error
