"""The work each line of a kernel gives its pipe, by instruction of the source, unsimulated."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Cost, Instruction, InstructionFacts
from npusim.machine.isa.vector import VectorInstruction
from npusim.machine.program.program import Program
from npusim.machine.timing.critical import multiply_room
from npusim.machine.timing.trace import LineWork, PipeWork


def pressure(program: Program) -> tuple[LineWork, ...]:
    """The work of all cores by instruction of the source, that with most cycles first."""
    sums: dict[PipeWork, _Sum] = {}
    for units, template in zip(program.unit_counts.tolist(), program.templates, strict=True):
        if not units:
            continue
        rows = zip(
            template.instructions, template.facts, template.lines, template.costs, strict=True
        )
        for instruction, facts, line, cost in rows:
            work = PipeWork(facts.pipe, facts.op, line)
            sums.setdefault(work, _Sum()).add(units, instruction, facts, cost, program.device)
    by_pipe: dict[str, int] = {}
    for work, total in sums.items():
        by_pipe[work.pipe] = by_pipe.get(work.pipe, 0) + total.cycles
    lines = [total.line(work, by_pipe[work.pipe]) for work, total in sums.items()]
    return tuple(sorted(lines, key=lambda line: (-line.cycles, line.work)))


@dataclass
class _Sum:
    """The sum of the instructions of one line; fields as those of ``LineWork``."""

    count: int = 0
    cycles: int = 0
    bytes: int = 0
    used: int = 0
    room: int = 0
    lanes: int = 0
    row_bytes: int = 0
    again: bool = False

    def add(
        self,
        units: int,
        instruction: Instruction,
        facts: InstructionFacts,
        cost: Cost,
        device: Device,
    ) -> None:
        """Add an instruction that so many units of work have."""
        self.count += units
        self.cycles += units * cost.cycles
        if facts.move is not None:
            self.bytes += units * facts.move[3]
        if isinstance(instruction, VectorInstruction):
            lanes = instruction.lanes(device)
            self.bytes += units * sum(region.size for region in (*facts.reads, *facts.writes))
            self.used += units * lanes.elements
            self.room += units * lanes.repeats * lanes.each
            self.lanes = max(self.lanes, lanes.each)
            rows = [size for size in (self.row_bytes, lanes.row_bytes) if size]
            self.row_bytes = min(rows, default=0)
            self.again = self.again or lanes.again
        else:
            self.used += units * cost.macs
            self.room += units * multiply_room(instruction, device)

    def line(self, work: PipeWork, of_pipe: int) -> LineWork:
        """The sum as a row; the pipe of its line works ``of_pipe`` cycles in all."""
        return LineWork(
            work=work,
            count=self.count,
            cycles=self.cycles,
            share=self.cycles / of_pipe if of_pipe else 0.0,
            bytes=self.bytes,
            used=self.used,
            room=self.room,
            lanes=self.lanes,
            row_bytes=self.row_bytes,
            again=self.again,
        )
