"""From slots to waits: who must have finished before an instruction may start.

A wait is a count: "pipe q has completed at least n instructions", n counted from the start of
the unit (zero or negative reaches into earlier units). Because pipes complete in order that is
all a correct set of flags enforces. Lowering runs in two steps:

* ``lower`` looks at one template alone. Each physical slot keeps a small scoreboard (last
  writes and the reads since, per pipe). Where a slot's history lies before the unit, the need
  is recorded as an ``Outside`` reference.
* ``Linker`` walks units in order. It carries the scoreboards across unit boundaries as a
  hashable state, so every distinct (template, state) pair is resolved once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from npusim.errors import ProgramError
from npusim.isa import CoreBarrier, Instruction, PipeBarrier, SetFlag, WaitFlag
from npusim.isa.operands import Buffer, SlotRegion
from npusim.reasons import BARRIER, DATA, FLAG, SPACE

#: Per pipe index, how many instructions must be complete, as sorted (pipe, count) pairs.
Counts = tuple[tuple[int, int], ...]
#: A physical slot: its last writes and the reads since.
Board = tuple[Counts, Counts]
#: Scoreboards of all slots at a unit boundary, counts relative to it.
State = tuple[tuple[Hashable, tuple[Board, ...]], ...]
#: (pipe index, count, reason) of one wait.
Wait = tuple[int, int, int]

EMPTY: Board = ((), ())

_SET_TWICE = "set twice without a wait; a flag is one bit, let its receiver wait in between"


@dataclass(frozen=True)
class Outside:
    """A need that reaches before the unit: slot ``slot`` of ``resource``, for ``reason``."""

    resource: Hashable
    slot: int
    reads_too: bool
    reason: int


@dataclass
class _Slot:
    """Scoreboard of one physical slot inside a template."""

    inherited: bool = True  # nothing in this unit has written it yet
    writes: dict[int, int] = field(default_factory=dict)
    reads: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lowered:
    """A template's waits before linking, and what it leaves behind for the next unit."""

    lines: tuple[str, ...]  # kernel line per instruction
    pipes: tuple[int, ...]  # pipe index per instruction
    waits: tuple[tuple[Wait, ...], ...]
    outside: tuple[tuple[Outside, ...], ...]
    totals: tuple[int, ...]  # instructions per pipe
    turns: tuple[int, ...]  # slots taken per buffer
    exits: dict[Hashable, dict[int, _Slot]]


class _Scoreboard:
    """Collects the waits of one template, instruction by instruction."""

    def __init__(self, pipes: tuple[str, ...]) -> None:
        self.index = {pipe: i for i, pipe in enumerate(pipes)}
        self.counts = [0] * len(pipes)
        self.slots: dict[Hashable, dict[int, _Slot]] = {}

    def waits_of(self, instruction: Instruction) -> tuple[list[Wait], list[Outside]]:
        """Waits of the next instruction in program order; updates the scoreboards."""
        pipe = self.index[instruction.pipe]
        waits: list[Wait] = []
        outside: list[Outside] = []
        match instruction:
            case SetFlag():
                self._set_flag(instruction, pipe, outside)
            case WaitFlag():
                self._wait_flag(instruction, pipe, waits, outside)
            case CoreBarrier() | PipeBarrier(on="S"):
                waits += [(q, n, BARRIER) for q, n in enumerate(self.counts) if q != pipe]
            case _:
                for region in instruction.reads():
                    if isinstance(region, SlotRegion):
                        self._read(region, pipe, waits, outside)
                for region in instruction.writes():
                    if isinstance(region, SlotRegion):
                        self._write(region, pipe, waits, outside)
        self.counts[pipe] += 1
        return waits, outside

    def _slot(self, region: SlotRegion) -> tuple[Buffer, int, _Slot]:
        buffer = region.slot.buffer
        number = region.slot.turn % buffer.slots
        board = self.slots.setdefault(buffer.index, {}).setdefault(number, _Slot())
        return buffer, number, board

    def _read(
        self, region: SlotRegion, pipe: int, waits: list[Wait], outside: list[Outside]
    ) -> None:
        buffer, number, board = self._slot(region)
        waits += [(q, n, DATA) for q, n in board.writes.items() if q != pipe]
        if board.inherited and pipe not in board.reads:  # in order: once waited, always waited
            outside.append(Outside(buffer.index, number, False, DATA))
        board.reads[pipe] = self.counts[pipe] + 1

    def _write(
        self, region: SlotRegion, pipe: int, waits: list[Wait], outside: list[Outside]
    ) -> None:
        buffer, number, board = self._slot(region)
        for q, n in (*board.reads.items(), *board.writes.items()):
            if q != pipe:
                waits.append((q, n, SPACE))
        if board.inherited:
            outside.append(Outside(buffer.index, number, True, SPACE))
        board.inherited = False
        board.writes = {pipe: self.counts[pipe] + 1}
        board.reads = {}

    def _set_flag(self, flag: SetFlag, pipe: int, outside: list[Outside]) -> None:
        key = ("flag", flag.on, flag.to, flag.event)
        board = self.slots.setdefault(key, {}).setdefault(0, _Slot())
        if board.writes and not board.reads:
            raise ProgramError(_SET_TWICE)
        if board.inherited and not board.reads:
            outside.append(Outside(key, 0, True, FLAG))  # must not be up already
        board.inherited, board.reads = False, {}
        board.writes = {pipe: self.counts[pipe] + 1}

    def _wait_flag(
        self, flag: WaitFlag, pipe: int, waits: list[Wait], outside: list[Outside]
    ) -> None:
        key = ("flag", flag.src, flag.on, flag.event)
        board = self.slots.setdefault(key, {}).setdefault(0, _Slot())
        if board.reads:
            raise ProgramError("waited twice for one set_flag; pair every wait with its own set")
        waits += [(q, n, FLAG) for q, n in board.writes.items()]
        if board.inherited:
            outside.append(Outside(key, 0, False, FLAG))
        board.reads[pipe] = self.counts[pipe] + 1


def lower(
    instructions: tuple[Instruction, ...],
    lines: tuple[str, ...],
    turns: tuple[int, ...],
    pipes: tuple[str, ...],
) -> Lowered:
    """Waits of one template, counted from its start; ``turns`` are the slots taken per buffer.

    ``lines`` are the kernel lines of the instructions, for errors.
    """
    board = _Scoreboard(pipes)
    waits, outside = [], []
    for instruction, line in zip(instructions, lines, strict=True):
        with located(line, instruction):
            own, needs = board.waits_of(instruction)
        waits.append(tuple(own))
        outside.append(tuple(needs))
    return Lowered(
        lines=lines,
        pipes=tuple(board.index[i.pipe] for i in instructions),
        waits=tuple(waits),
        outside=tuple(outside),
        totals=tuple(board.counts),
        turns=turns,
        exits=board.slots,
    )


class Linker:
    """Resolves templates against what came before them on the same core."""

    def __init__(self, buffers: tuple[Buffer, ...]) -> None:
        self.slots = {b.index: b.slots for b in buffers}
        self.start: State = ()
        self._after: dict[tuple[int, State], State] = {}

    def resolve(self, lowered: Lowered, state: State) -> tuple[tuple[Wait, ...], ...]:
        """Waits of every instruction of the unit, given the state at its start."""
        boards = dict(state)
        waited: dict[tuple[int, int], int] = {}  # (pipe, other pipe) -> count waited for already
        out = []
        rows = zip(lowered.pipes, lowered.waits, lowered.outside, lowered.lines, strict=True)
        for pipe, own, needs, line in rows:
            found = list(own)
            with located(line):
                for need in needs:
                    found += self._inherited(need, boards, pipe)
            out.append(_essential(found, pipe, waited))
        return tuple(out)

    def _inherited(
        self, need: Outside, boards: dict[Hashable, tuple[Board, ...]], pipe: int
    ) -> list[Wait]:
        rows = boards.get(need.resource)
        if need.reason == FLAG:
            _check_flag(need, rows is not None and bool(rows[0][0]) and not rows[0][1])
        if rows is None or (need.reason == FLAG and need.reads_too):  # a set waits for nothing
            return []
        writes, reads = rows[need.slot]
        counts = (*writes, *reads) if need.reads_too else writes
        return [(q, n, need.reason) for q, n in counts if q != pipe]

    def after(self, template: int, lowered: Lowered, state: State) -> State:
        """The state at the end of the unit."""
        key = (template, state)
        if key not in self._after:
            self._after[key] = self._advance(lowered, state)
        return self._after[key]

    def _advance(self, lowered: Lowered, state: State) -> State:
        before = dict(state)
        after: dict[Hashable, tuple[Board, ...]] = {}
        for resource in {**before, **lowered.exits}:
            count = self.slots.get(resource, 1) if isinstance(resource, int) else 1
            turned = lowered.turns[resource] if isinstance(resource, int) else 0
            old = before.get(resource, (EMPTY,) * count)
            local = lowered.exits.get(resource, {})
            boards = [_merge(old[i], local.get(i), lowered.totals) for i in range(count)]
            # Slot i holds turn i of this unit; the next unit counts its turns from zero again.
            after[resource] = tuple(boards[(i + turned) % count] for i in range(count))
        return tuple(sorted(after.items(), key=lambda item: str(item[0])))


def _check_flag(need: Outside, up: bool) -> None:
    """Raise unless a flag inherited from earlier units is up to be waited for, down to be set."""
    if need.reads_too == up:
        assert isinstance(need.resource, tuple)
        _, src, dst, event = need.resource
        if up:
            raise ProgramError(f"set_flag {src}->{dst} #{event}: {_SET_TWICE}")
        raise ProgramError(
            f"wait_flag {src}->{dst} #{event} comes without a set_flag before it; set it first, "
            "in this unit or an earlier one"
        )


@contextmanager
def located(line: str, instruction: Instruction | None = None) -> Iterator[None]:
    """Prefix a ``ProgramError`` with the kernel line, and the instruction if one is given."""
    try:
        yield
    except ProgramError as error:
        what = f"{instruction}: " if instruction is not None else ""
        raise ProgramError(f"{line}: {what}{error}") from error


def _merge(old: Board, local: _Slot | None, totals: tuple[int, ...]) -> Board:
    """A slot's scoreboard after the unit, counts relative to the unit's end."""

    def shift(counts: Counts | dict[int, int]) -> dict[int, int]:
        pairs = counts.items() if isinstance(counts, dict) else counts
        return {q: n - totals[q] for q, n in pairs}

    if local is None:
        writes, reads = shift(old[0]), shift(old[1])
    elif local.inherited:
        writes = shift(old[0])
        reads = shift(old[1]) | shift(local.reads)
    else:
        writes, reads = shift(local.writes), shift(local.reads)
    return tuple(sorted(writes.items())), tuple(sorted(reads.items()))


def _essential(
    waits: list[Wait], pipe: int, waited: dict[tuple[int, int], int]
) -> tuple[Wait, ...]:
    """Drop waits that another one, or an earlier instruction of the pipe, implies."""
    best: dict[int, tuple[int, int]] = {}
    for q, n, reason in waits:
        if q not in best or (n, -reason) > (best[q][0], -best[q][1]):
            best[q] = (n, reason)
    kept = []
    for q, (n, reason) in sorted(best.items()):
        if n > waited.get((pipe, q), -(1 << 62)):
            waited[pipe, q] = n
            kept.append((q, n, reason))
    return tuple(kept)
