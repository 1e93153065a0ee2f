"""What a kernel reads before anything has written it, what of its outputs it leaves unwritten, and
where it takes bytes for elements.

Poison (NaN) shows either in the numbers; here it is found from the program, with the kernel's line.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.machine.isa.base import Instruction
from npusim.machine.isa.operands import Slot, SlotRegion, Tensor
from npusim.machine.isa.vector import BLOCK_BYTES, VectorInstruction
from npusim.machine.program.lower import located
from npusim.machine.program.program import READ, WRITE, Program, Template
from npusim.machine.program.races import Accesses, Pieces, Use, check_races

Mask = npt.NDArray[np.bool_]


def check_slots(program: Program) -> None:
    """Raise ``ProgramError`` where an instruction reads of a slot what nothing has written.

    That is all that it reads, or all behind the bytes that as many elements would have. Gaps
    between rows and padding are read by many instructions, which leave aside what comes of them. Of
    slots taken by earlier tasks it is known that there are such, not what they hold.
    """
    for units in program.tasks:
        _Written(program).go(units)
    _check_earlier(program)


class _Written:
    """The bytes a task has written to its slots, unit after unit."""

    def __init__(self, program: Program) -> None:
        self.bytes: dict[tuple[int, int], Mask] = {}  # by buffer and physical turn
        self.turns: dict[int, int] = {}  # taken before the unit, by buffer
        self.templates = program.templates
        # Iterations after which each slot was met, and one more leaves all as it finds it.
        self.settled = 1 + max((buffer.slots for buffer in program.buffers), default=0)

    def go(self, units: IntArray) -> None:
        """Go through units, of a loop through as many iterations as say all of the others."""
        at = 0
        while at < len(units):
            size, count = _repeated(units[at:], self.settled)
            body = units[at : at + size]
            if count > self.settled:
                self.go(np.tile(body, self.settled))
                for number in body.tolist():
                    self._pass_by(number, count - self.settled, alike=True)
            else:
                size = count = 1
                self._check(self.templates[body[0]])
                self._pass_by(body[0])
            at += size * count

    def _pass_by(self, number: int, times: int = 1, *, alike: bool = False) -> None:
        """Go on behind a unit, or several that leave in the last turns what is there before."""
        turns = self.templates[number].lowered.turns
        if alike:
            self.bytes = {(b, t + times * turns[b]): one for (b, t), one in self.bytes.items()}
        for buffer, taken in enumerate(turns):
            self.turns[buffer] = self.turns.get(buffer, 0) + times * taken

    def _check(self, template: Template) -> None:
        """Go through the instructions of a unit."""
        rows = zip(template.told, template.instructions, template.lines, strict=True)
        starts = template.lowered.starts
        for told, instruction, line in rows:
            for region in told.reads:
                if isinstance(region, SlotRegion) and self._turn(region.slot, starts) >= 0:
                    with located(line, instruction):
                        _check_read(region, self._view(region, starts), instruction)
            for region in told.writes:
                if isinstance(region, SlotRegion):
                    self._view(region, starts)[...] = True

    def _turn(self, slot: Slot, starts: tuple[int, ...]) -> int:
        """The turn of a slot in the task; negative for slots of earlier tasks."""
        buffer = slot.buffer.index
        return self.turns.get(buffer, 0) + slot.turn - starts[buffer]

    def _view(self, region: SlotRegion, starts: tuple[int, ...]) -> Mask:
        """Which bytes of a region are written, (rows, bytes per row)."""
        buffer = region.slot.buffer
        turn = self._turn(region.slot, starts)
        self.bytes.pop((buffer.index, turn - buffer.slots), None)  # it was overwritten
        key = buffer.index, turn
        if key not in self.bytes:
            self.bytes[key] = np.zeros(buffer.slot_bytes, np.bool_)
        shape = region.rows, region.row_bytes
        return np.ndarray(shape, np.bool_, self.bytes[key], region.offset, (region.pitch, 1))


#: Units that a body of a loop is looked for in, and how often the first of them may be in it.
_BODY, _OFTEN = 1 << 16, 8


def _repeated(units: IntArray, settled: int) -> tuple[int, int]:
    """How many units make a body that the first ones repeat more than ``settled`` times, and how
    often they do; (1, 1) if there is none."""
    for size in (1 + np.flatnonzero(units[1:_BODY] == units[0])[:_OFTEN]).tolist():
        few = units[: (settled + 1) * size]
        if len(few) > settled * size and np.array_equal(few[size:], few[:-size]):
            other = np.flatnonzero(units[size:] != units[:-size])
            return size, (int(other[0]) if len(other) else len(units) - size) // size + 1
    return 1, 1


def _check_read(region: SlotRegion, written: Mask, instruction: Instruction) -> None:
    """Raise unless the slot holds what is read."""
    if not written.any():
        raise ProgramError(
            f"nothing has written {region} since the slot was taken; load or fill it first, or "
            "name the slot that was with last()"
        )
    if isinstance(instruction, VectorInstruction):
        filled = region.size // instruction.dtype.bytes
        first = np.arange(region.size) < filled
        # Less than a block is the padding of a row.
        if region.size - filled >= BLOCK_BYTES and np.array_equal(written.reshape(-1), first):
            raise ProgramError(
                f"only the first {filled} B of {region} are written; sizes and offsets of at() are "
                f"bytes: {filled} elements of {instruction.dtype} are {region.size} B"
            )


def _check_earlier(program: Program) -> None:
    """Raise where a unit uses a slot of an earlier one, and there is none."""
    of = np.array([v.template for v in program.variants])
    turns = np.array([t.lowered.turns for t in program.templates], np.int64)
    oldest = np.zeros_like(turns)
    for number, template in enumerate(program.templates):
        for _, buffer, turn in _earlier(template):
            oldest[number, buffer] = min(oldest[number, buffer], turn)
    for core in program.cores:
        which = of[core.variants]
        taken = turns[which].cumsum(axis=0) - turns[which]
        missing = np.argwhere(taken + oldest[which] < 0)
        if len(missing):
            unit, buffer = missing[0].tolist()
            template = program.templates[which[unit]]
            name = program.buffers[buffer].name
            index = next(i for i, which, _ in _earlier(template) if which == buffer)
            with located(template.lines[index], template.instructions[index]):
                raise ProgramError(
                    f"reads a slot of {name} that no earlier task of core {core.name} has taken; "
                    "take one with next() in the first task"
                )


def _earlier(template: Template) -> Iterator[tuple[int, int, int]]:
    """Reads of slots taken before the unit: instruction, buffer, and the turn, counted from it."""
    for i, told in enumerate(template.told):
        for region in told.reads:
            if isinstance(region, SlotRegion):
                buffer = region.slot.buffer.index
                turn = region.slot.turn - template.lowered.starts[buffer]
                if turn < 0:
                    yield i, buffer, turn


def check_elements(accesses: Accesses) -> None:
    """Raise ``ProgramError`` where an access to a tensor begins inside one of its elements."""
    for use in (use for uses in accesses.uses.values() for use in uses):
        region, each = use.region, use.region.tensor.dtype.bytes
        pitch = region.pitch if region.rows > 1 else 0
        odd = use.starts[(use.starts | pitch) % each != 0]
        if len(odd):
            template = accesses.program.templates[use.template]
            raise ProgramError(
                f"{template.lines[use.index]}: {template.instructions[use.index]}: from byte "
                f"{int(odd[0])} of {region.tensor.name} on, rows {pitch} B apart, are no whole "
                f"elements of {region.tensor.dtype}; offsets, bases and pitches are bytes, "
                f"multiples of {each}"
            )


def check_outputs(accesses: Accesses, where: str) -> None:
    """Raise ``ProgramError`` unless every tensor of role "out" is written as a whole.

    One that the kernel reads, too, may be larger than what is used of it.
    ``where`` is the place of the kernel, for tensors that nothing stores to.
    """
    for tensor in accesses.program.tensors:
        if tensor.role == "out" and tensor.size_bytes:
            _check_output(accesses, tensor, where)


def _check_output(accesses: Accesses, tensor: Tensor, where: str) -> None:
    uses = accesses.uses.get(tensor.name, [])
    stores = [use for use in uses if use.kind != READ]
    if not stores:
        raise ProgramError(
            f"{where}nothing is written to {tensor.name}, a tensor of role 'out'; store it, or "
            "give it the role 'in' if it is only read"
        )
    if len(stores) < len(uses):
        return
    pieces = Pieces(tensor, stores)
    written, stored = (np.zeros(pieces.count, np.bool_) for _ in range(2))
    for use in stores:
        for marks in (written, stored) if use.kind == WRITE else (written,):
            view, starts = pieces.view(marks, use)
            view[starts] = True
    line = accesses.program.templates[stores[-1].template].lines[stores[-1].index]
    if not written.all():
        raise ProgramError(f"{line}: {_gap(tensor, pieces, written, stores)}")
    if not stored.all():
        start = int(np.argmin(stored)) * pieces.size
        raise ProgramError(
            f"{line}: {tensor.name}, a tensor of role 'out', is only added to from byte {start} "
            "on; store to it before, or give it the role 'inout' and an array to add to"
        )


def _gap(tensor: Tensor, pieces: Pieces, written: Mask, stores: list[Use]) -> str:
    """The message about an output with bytes that nothing writes."""
    start = int(np.argmin(written)) * pieces.size
    missing = int(np.count_nonzero(~written)) * pieces.size
    size, each = tensor.size_bytes, tensor.dtype.bytes
    text = (
        f"{missing} of {size} B of {tensor.name}, a tensor of role 'out', are not written, from "
        f"byte {start} on; store all of it, or give it the role 'inout' and an array to begin with"
    )
    if each > 1 and any(use.region.size * each == size for use in stores):
        text += f" (sizes are bytes: {size // each} elements of {tensor.dtype} are {size} B)"
    return text


def check_mistakes(program: Program, written_whole: str | None = None) -> None:
    """Raise ``ProgramError`` for the first mistake of a program whose accesses lie in its tensors.

    With ``written_whole``, where the kernel stands (``file.py:line: ``), it has to write all of its
    outputs.
    """
    accesses = Accesses(program)
    check_slots(program)
    check_elements(accesses)
    check_races(accesses)
    if written_whole is not None:
        check_outputs(accesses, written_whole)
