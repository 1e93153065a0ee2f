"""What a kernel reads before anything has written it, what of its outputs it leaves unwritten, and
where it takes bytes for elements.

Poison (NaN) shows either in the numbers; here it is found from the program, with the kernel's line.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.base.errors import ProgramError
from npusim.isa.base import Instruction
from npusim.isa.operands import SlotRegion, Tensor
from npusim.isa.vector import BLOCK_BYTES, VectorInstruction
from npusim.program.accesses import Accesses, Pieces, Use
from npusim.program.lower import located
from npusim.program.program import READ, WRITE, Program, Template
from npusim.program.races import check_races

Mask = npt.NDArray[np.bool_]


def check_slots(program: Program) -> None:
    """Raise ``ProgramError`` where an instruction reads of a slot what nothing has written.

    That is all that it reads, or all behind the bytes that as many elements would have. Gaps
    between rows and padding are read by many instructions, which leave aside what comes of them. Of
    slots taken by earlier tasks it is known that there are such, not what they hold.
    """
    for template in program.templates:
        written: dict[tuple[int, int], Mask] = {}
        rows = zip(template.told, template.instructions, template.lines, strict=True)
        for told, instruction, line in rows:
            for region in told.reads:
                if isinstance(region, SlotRegion) and region.slot.turn >= 0:
                    with located(line, instruction):
                        _check_read(region, _bytes(written, region), instruction)
            for region in told.writes:
                if isinstance(region, SlotRegion):
                    _bytes(written, region)[...] = True
    _check_earlier(program)


def _bytes(written: dict[tuple[int, int], Mask], region: SlotRegion) -> Mask:
    """Which bytes of a region are written, (rows, bytes per row), a view."""
    slot = region.slot
    key = slot.buffer.index, slot.turn
    if key not in written:
        written[key] = np.zeros(slot.buffer.slot_bytes, np.bool_)
    shape = region.rows, region.row_bytes
    return np.ndarray(shape, np.bool_, written[key], region.offset, (region.pitch, 1))


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
    """Raise where a task uses a slot of an earlier task, and there is none."""
    of = np.array([v.template for v in program.variants])
    turns = np.array([t.lowered.turns for t in program.templates], np.int64)
    oldest = np.array([_oldest(t, turns.shape[1]) for t in program.templates], np.int64)
    for core in program.cores:
        which = of[core.variants]
        taken = turns[which].cumsum(axis=0) - turns[which]
        missing = np.argwhere(taken + oldest[which] < 0)
        if len(missing):
            task, buffer = missing[0].tolist()
            template = program.templates[which[task]]
            name = program.buffers[buffer].name
            index = _reader(template, buffer)
            with located(template.lines[index], template.instructions[index]):
                raise ProgramError(
                    f"reads a slot of {name} that no earlier task of core {core.name} has taken; "
                    "take one with next() in the first task"
                )


def _oldest(template: Template, buffers: int) -> list[int]:
    """Per buffer, the oldest turn that is read; 0 for none before the task."""
    least = [0] * buffers
    for told in template.told:
        for region in told.reads:
            if isinstance(region, SlotRegion):
                buffer = region.slot.buffer.index
                least[buffer] = min(least[buffer], region.slot.turn)
    return least


def _reader(template: Template, buffer: int) -> int:
    """The first instruction that reads a slot of a buffer taken before the task."""
    return next(
        i
        for i, told in enumerate(template.told)
        for region in told.reads
        if isinstance(region, SlotRegion)
        and region.slot.buffer.index == buffer
        and region.slot.turn < 0
    )


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
    """What is said of an output with bytes that nothing writes."""
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


def check_mistakes(program: Program, whole: str | None = None) -> None:
    """Raise ``ProgramError`` for the first mistake of a program whose accesses lie in its tensors.

    With ``whole``, where the kernel stands (``file.py:line: ``), it has to write all its outputs.
    """
    accesses = Accesses(program)
    check_slots(program)
    check_elements(accesses)
    check_races(accesses)
    if whole is not None:
        check_outputs(accesses, whole)
