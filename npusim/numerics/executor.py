"""Runs a program on arrays: what it computes, in the chip's arithmetic and its own order.

Fresh buffer slots are poisoned (every byte 0xFF: NaN in each float type, -1 in integers), so a
kernel that forgets a load gives a wrong number, not a lucky one. Cores run one after another in
core order as far as barriers and flags between cores let them; atomics therefore add in unit
order, never by time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa import CoreBarrier, CoreSetFlag, CoreWaitFlag
from npusim.isa.operands import GmRegion, Region, SlotRegion
from npusim.numerics.rounding import round_to
from npusim.program.lower import located
from npusim.program.program import CoreProgram, Program, Template

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

POISON = 0xFF


class CoreMemory:
    """Private memories of one core and the global tensors, as the running unit names them."""

    def __init__(self, program: Program, tensors: Mapping[str, Bytes]) -> None:
        self.tensors = tensors
        self.slots = [np.full((b.slots, b.slot_bytes), POISON, np.uint8) for b in program.buffers]
        self.turns = [0] * len(program.buffers)  # taken before this unit
        self.seen = [0] * len(program.buffers)  # taken so far, also inside this unit
        self.bases: dict[str, int] = {}

    def begin_unit(self, bases: dict[str, int], turns: tuple[int, ...]) -> None:
        """Enter a unit: its GM bases, and the turns the previous unit took."""
        self.bases = bases
        self.turns = [a + b for a, b in zip(self.turns, turns, strict=True)]

    def read(self, region: Region, dtype: DType) -> Array:
        """Elements of a region, shape (rows, elements per row)."""
        return np.ascontiguousarray(self._bytes(region)).view(dtype.numpy)

    def write(self, region: Region, values: Array, dtype: DType) -> None:
        """Store elements row by row."""
        target = self._bytes(region)
        data = np.ascontiguousarray(values, dtype=dtype.numpy)
        target[...] = data.reshape(region.rows, -1).view(np.uint8)

    def add(self, region: Region, values: Array, dtype: DType) -> None:
        """GM += values, rounded to ``dtype``; integers wrap around."""
        old = self.read(region, dtype)
        wide = np.dtype(np.float32) if dtype.kind == "float" else dtype.numpy
        total = old.astype(wide) + values.reshape(old.shape).astype(wide)
        self.write(region, round_to(total, dtype), dtype)

    def _bytes(self, region: Region) -> Bytes:
        """A writable (rows, bytes per row) view of a region."""
        if isinstance(region, GmRegion):
            data = self.tensors[region.tensor.name]
            offset = region.offset + (self.bases[region.base] if region.base else 0)
        else:
            data, offset = self._slot(region), region.offset
        end = offset + (region.rows - 1) * region.pitch + region.row_bytes
        if offset < 0 or end > data.size:
            raise ProgramError(
                f"bytes {offset}..{end} of {region} lie outside its {data.size} B; check the "
                "unit's base offset and extents"
            )
        if region.rows == 1:
            row: Bytes = data[offset:end].reshape(1, -1)
            return row
        shape, strides = (region.rows, region.row_bytes), (region.pitch, 1)
        rows: Bytes = np.lib.stride_tricks.as_strided(data[offset:end], shape, strides)
        return rows

    def _slot(self, region: SlotRegion) -> Bytes:
        buffer = region.slot.buffer
        turn = self.turns[buffer.index] + region.slot.turn
        slots = self.slots[buffer.index]
        while self.seen[buffer.index] <= turn:  # newly acquired: old content is gone
            slots[self.seen[buffer.index] % buffer.slots] = POISON
            self.seen[buffer.index] += 1
        slot: Bytes = slots[turn % buffer.slots]
        return slot


def execute(
    program: Program,
    arrays: Mapping[str, Array],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run ``program`` on the arrays of its tensors, in place.

    Arrays are C-contiguous with the tensors' sizes. Raises ``ProgramError`` with the kernel
    line for an access outside a tensor, and for programs whose barriers or flags never meet.
    """
    tensors = {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}
    sync = _CoreSync(program)
    running = {
        i: _run_core(program, core, CoreMemory(program, tensors), sync, progress)
        for i, core in enumerate(program.cores)
    }
    # An mmad is a small product: BLAS threads cost more in hand-over than they win.
    with threadpool_limits(1, user_api="blas"):
        while running:
            before = sync.events
            for i in list(running):
                if next(running[i], "end") == "end":
                    del running[i]
            if running and sync.events == before:
                names = ", ".join(program.cores[i].name for i in running)
                raise ProgramError(
                    f"{program.kernel} hangs: {names} wait for a barrier or flag that never comes"
                )


class _CoreSync:
    """Barriers and flags between cores, as counts; ``events`` counts any progress."""

    def __init__(self, program: Program) -> None:
        self.cores = program.cores
        self.arrived: dict[int, int] = {}
        self.flags: dict[tuple[str, int], int] = {}
        self.events = 0
        self.done = 0  # instructions of finished units, all cores

    def raise_flag(self, sender: CoreProgram, flag: CoreSetFlag) -> None:
        for core in self.cores:
            if core is not sender and (flag.scope == "all" or core.group == sender.group):
                key = (core.name, flag.event)
                self.flags[key] = self.flags.get(key, 0) + 1


def _run_core(
    program: Program,
    core: CoreProgram,
    memory: CoreMemory,
    sync: _CoreSync,
    progress: Callable[[int], None] | None,
) -> Iterator[str]:
    """One core; yields whenever it has to wait for another."""
    turns = (0,) * len(program.buffers)
    barriers, waited = 0, dict[int, int]()
    for variant, bases in zip(core.variants, core.bases, strict=True):
        template = program.templates[program.variants[variant].template]
        memory.begin_unit(dict(zip(program.base_names, bases.tolist(), strict=True)), turns)
        turns = template.lowered.turns
        for i, instruction in enumerate(template.instructions):
            if isinstance(instruction, CoreBarrier):
                sync.arrived[barriers] = sync.arrived.get(barriers, 0) + 1
                sync.events += 1
                while sync.arrived[barriers] < len(program.cores):
                    yield "barrier"
                barriers += 1
            elif isinstance(instruction, CoreWaitFlag):
                waited[instruction.event] = waited.get(instruction.event, 0) + instruction.count
                while sync.flags.get((core.name, instruction.event), 0) < waited[instruction.event]:
                    yield "flag"
            elif isinstance(instruction, CoreSetFlag):
                sync.raise_flag(core, instruction)
            else:
                _execute(template, i, memory)
            sync.events += 1
        sync.done += len(template.instructions)
        if progress is not None:
            progress(sync.done)


def _execute(template: Template, i: int, memory: CoreMemory) -> None:
    instruction = template.instructions[i]
    # Overflow and NaN are results on the chip, not accidents of the simulation.
    with located(template.lines[i], instruction), np.errstate(all="ignore"):
        instruction.execute(memory)
