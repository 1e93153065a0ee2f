"""A complete program: templates of flat arrays, and per core the table of units that use them.

Nothing here is symbolic and nothing depends on time or data. A program of 10^7 instructions is
a few dozen templates and two integer columns per core.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.machine.device.parts import ENERGY, CoreKind
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Cost, Instruction, InstructionFacts, Move
from npusim.machine.isa.operands import Buffer, GmRegion, Tensor
from npusim.machine.program.lower import Lowered, Wait
from npusim.machine.program.recorder import Decision

#: Columns of a table of costs.
_CYCLES, _ISSUE = map(Cost._fields.index, ("cycles", "issue"))

#: Kinds of transfer a flow can be: to or from GM, or a move inside a core along shared links.
READ, WRITE, ATOMIC, MOVE = range(4)


class Flow(Struct, frozen=True):
    """The part of an instruction that others slow: its GM side, or a move along shared links."""

    kind: int
    size: int  # bytes
    rate: int  # most it can get, fixed point
    memory_rate: int  # most that bytes from main memory can get of it, fixed point
    links: tuple[str, ...]  # that its path names
    region: GmRegion | None = None  # None for a move inside a core
    tensor: int = -1  # index into Program.tensors
    base: int = -1  # index into the task table's base columns, -1 for none
    peer: str = ""  # the memory at the core's end
    request: int = 0  # bytes of the L2's bandwidth that each row takes besides its own
    regions: int = 1  # that a store writes, of the shape of ``region``, which is the first
    apart: int = 0  # bytes from one of them to the next

    @property
    def extent(self) -> int:
        """Bytes from the first to behind the last that is touched of a tensor."""
        if self.region is None:
            return 0
        first = (self.region.rows - 1) * self.region.pitch + self.region.row_bytes
        return first + (self.regions - 1) * self.apart


class Template(Struct, frozen=True, dict=True):
    """The instructions of all units that are alike, with costs and kernel lines.

    ``priced`` are those whose costs these are, where their place in global memory matters.
    """

    instructions: tuple[Instruction, ...]
    facts: tuple[InstructionFacts, ...]
    lines: tuple[str, ...]
    costs: tuple[Cost, ...]
    flows: tuple[Flow | None, ...]
    lowered: Lowered
    priced: tuple[Instruction, ...] = ()

    @cached_property
    def figures(self) -> frozenset[str]:
        """The figures of a device that its costs rest on."""
        return frozenset(name for facts in self.facts for name in facts.figures)

    @cached_property
    def cost_table(self) -> IntArray:
        """The costs as numbers: a row per instruction, the fields of ``Cost`` as columns."""
        return np.array(self.costs, np.int64).reshape(-1, len(Cost._fields))

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of one unit."""
        return sum(cost.macs for cost in self.costs)

    @cached_property
    def activity(self) -> dict[str, int]:
        """The work of one unit, by the figure that says its energy (``Program.activity``)."""
        total: dict[str, int] = {}
        for facts, cost in zip(self.facts, self.costs, strict=True):
            if facts.move is not None:
                name, amount = facts.figures[0], facts.move[3]
            elif cost.macs:
                rate = next(name for name in facts.figures if ".rates." in name)
                name, amount = rate.replace(".rates.", f".{ENERGY}."), cost.macs
            elif "vector" in facts.figures:
                name = "vector"
                amount = sum(region.size for region in (*facts.reads, *facts.writes))
            else:
                continue
            total[name] = total.get(name, 0) + amount
        return {
            name if ENERGY in name.split(".") else f"{name}.{ENERGY}": amount
            for name, amount in total.items()
        }

    @cached_property
    def moves(self) -> dict[tuple[str, str, str], int]:
        """Bytes per (source, destination, operand) of one unit."""
        total: dict[tuple[str, str, str], int] = {}
        for facts in self.facts:
            move = facts.move
            if move is not None:
                total[move[:3]] = total.get(move[:3], 0) + move[3]
        return total


class Variant(Struct, frozen=True):
    """A template with its waits resolved against what ran before it."""

    template: int
    waits: tuple[tuple[Wait, ...], ...]


class CoreProgram(Struct, frozen=True):
    """The units of one core: of each the variant and the byte offsets of the GM bases.

    Each of its ``tasks`` is one unit or several; ``iterations`` says of which iteration of the
    innermost loop a unit is, from 0, and has -1 outside of loops.
    """

    name: str  # "aic3"
    group: int
    kind: CoreKind
    variants: IntArray  # (units,)
    bases: IntArray  # (units, base columns)
    iterations: IntArray  # (units,)
    tasks: int = 0


@dataclass(frozen=True)
class Program:
    """A kernel laid out for a device; immutable, and all the engines and the executor need."""

    kernel: str
    roles: tuple[str, ...]  # "cube", "vector" or "dsp", that of the launch first
    computes: str  # the result it contributes to; see ``Kernel``
    tiling: str
    device: Device
    tensors: tuple[Tensor, ...]
    base_names: tuple[str, ...]  # columns of every core's ``bases``
    buffers: tuple[Buffer, ...]
    templates: tuple[Template, ...]
    variants: tuple[Variant, ...]
    tasks: tuple[IntArray, ...]  # of each distinct task, the templates it runs one after another
    cores: tuple[CoreProgram, ...]
    #: What the problem needs of multiply-adds, and of tensors it needs in part; see ``Kernel``.
    useful_macs: int = 0
    needed_bytes: Mapping[str, int] = field(default_factory=dict)
    #: How many of the cores under the mask work, and why not all; "" where the kernel does not say.
    idle: str = ""
    #: What of the device its shape follows from, None where it may be more than can be told.
    structure: Hashable = None
    #: Figures that what it does rests on, besides what it costs.
    looked: frozenset[str] = frozenset()
    #: What its kernel decided by figures, and so what it does.
    decisions: tuple[Decision, ...] = field(default=(), compare=False, repr=False)
    #: What others worked out that follows from its shape alone, by their names for it: programs
    #: that differ in costs only have one between them.
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def on(self, device: Device, structure: Hashable = None) -> Program:
        """This program for a device on which it would be built alike, with all worked out of it.

        ``structure`` is that of the device, where the program is to have it.
        """
        program = copy(self)
        object.__setattr__(program, "device", device)  # of a copy that nobody else has yet
        if structure is not None:
            object.__setattr__(program, "structure", structure)
        return program

    @cached_property
    def figures(self) -> frozenset[str]:
        """The figures of a device that costs of its instructions rest on."""
        return frozenset().union(*(t.figures for t in self.templates))

    @cached_property
    def pipes(self) -> tuple[str, ...]:
        """Pipes of the cores that run it; a pipe's index everywhere is its place here.

        Where several kinds of cores work together a core may lack some of them.
        """
        return pipes_of(core.kind for core in self.cores)

    @cached_property
    def working(self) -> tuple[int, ...]:
        """Numbers of the cores with tasks; the others are not launched, and meet nobody."""
        return tuple(i for i, core in enumerate(self.cores) if len(core.variants))

    @cached_property
    def unit_counts(self) -> IntArray:
        """Number of units of each template, over all cores."""
        counts: IntArray = self.core_counts.sum(axis=0)
        return counts

    @cached_property
    def core_counts(self) -> IntArray:
        """Number of units of each core of each template: shape (cores, templates)."""
        of = np.array([v.template for v in self.variants], dtype=np.int64)
        size = len(self.templates)
        return np.stack([np.bincount(of[c.variants], minlength=size) for c in self.cores])

    @cached_property
    def instructions(self) -> int:
        """Instructions over all tasks and cores."""
        sizes = np.array([len(t.instructions) for t in self.templates], dtype=np.int64)
        return int(self.unit_counts @ sizes)

    @property
    def emitted(self) -> int:
        """Instructions that were issued: those of all distinct units."""
        return sum(len(template.instructions) for template in self.templates)

    @cached_property
    def macs(self) -> int:
        """Multiply-adds over all tasks and cores."""
        return int(
            sum(int(n) * t.macs for n, t in zip(self.unit_counts, self.templates, strict=True))
        )

    @cached_property
    def moves(self) -> dict[tuple[str, str, str], int]:
        """Bytes per (source, destination, operand) over all tasks and cores."""
        total: dict[tuple[str, str, str], int] = {}
        for count, template in zip(self.unit_counts, self.templates, strict=True):
            for key, size in template.moves.items():
                total[key] = total.get(key, 0) + int(count) * size
        return dict(sorted(total.items()))

    @cached_property
    def activity(self) -> dict[str, int]:
        """The work of all tasks, by the figure that says its energy.

        That is bytes by path (``paths.GM->L1.nd2nz.energy``), multiply-adds by unit and type
        (``cube.energy.fp16``), and bytes of the vector unit's operands (``vector.energy``).
        """
        total: dict[str, int] = {}
        for count, template in zip(self.unit_counts, self.templates, strict=True):
            for key, amount in template.activity.items():
                total[key] = total.get(key, 0) + int(count) * amount
        return dict(sorted(total.items()))

    def pipe_work(self) -> IntArray:
        """Cycles each core's pipes need alone, heads excluded: shape (cores, pipes).

        The scalar pipe also pays for issuing every instruction of the others.
        """
        scalar = self.pipes.index("S")
        per_template = np.zeros((len(self.templates), len(self.pipes)), np.int64)
        template = np.repeat(np.arange(len(self.templates)), [len(t.costs) for t in self.templates])
        pipe = np.array([p for t in self.templates for p in t.lowered.pipes], np.int64)
        cost = np.concatenate([t.cost_table for t in self.templates])
        np.add.at(per_template, (template, pipe), cost[:, _CYCLES])
        np.add.at(per_template[:, scalar], template, np.where(pipe != scalar, cost[:, _ISSUE], 0))
        return self.core_counts @ per_template

    def text(self, limit: int = 200) -> Iterator[str]:
        """The program as readable lines: each template once, with waits, costs and source."""
        for v, variant in enumerate(self.variants[:limit]):
            template = self.templates[variant.template]
            yield f"variant {v} (template {variant.template}, {len(template.lines)} instructions)"
            rows = zip(
                template.instructions, variant.waits, template.costs, template.lines, strict=True
            )
            for instruction, waits, cost, line in rows:
                need = " ".join(f"{self.pipes[q]}>={n}" for q, n, _ in waits)
                yield (
                    f"  {instruction.pipe:5}{cost.cycles:6}  {instruction!s:70} {need:24} {line}"
                )


def pipes_of(kinds: Iterable[CoreKind]) -> tuple[str, ...]:
    """Return the pipes of kinds of cores, each once."""
    return tuple(dict.fromkeys(pipe for kind in kinds for pipe in kind.pipes))


def flow_of(
    instruction: Instruction,
    facts: InstructionFacts,
    tensors: dict[str, int],
    bases: list[str],
    device: Device,
) -> Flow | None:
    """The GM side of an instruction, or its use of shared links; None if it has neither."""
    if facts.move is None or not isinstance(instruction, Move):
        return None
    path, (origin, goal, _, _) = instruction.path, facts.move
    sources, targets = facts.reads, facts.writes
    if "GM" not in (origin, goal):
        rate = path.fixed_rate
        return Flow(MOVE, targets[0].size, rate, rate, path.links) if path.links else None
    if origin == "GM":
        kind = READ
        region = sources[0]
        peer = goal
    else:
        kind = ATOMIC if instruction.atomic else WRITE
        region = targets[0]
        peer = origin
    assert isinstance(region, GmRegion)
    if region.base and region.base not in bases:
        raise ProgramError(
            f"the task table has no base {region.base!r} (it has: {', '.join(bases)})"
        )
    if region.tensor.name not in tensors:
        raise ProgramError(
            f"{region.tensor.name} is not among the kernel's tensors {', '.join(tensors)}"
        )
    base = bases.index(region.base) if region.base else -1
    tensor, rate = tensors[region.tensor.name], path.fixed_rate
    request = device.l2.request_bytes if device.l2 else 0
    if path.piece_bytes:
        pieces = path.pieces(region.rows, region.row_bytes, region.offset, region.pitch)
        request = request * pieces // region.rows
    many = 1 if kind == READ else len(targets)  # regions that a store writes
    apart = targets[1].offset - targets[0].offset if many > 1 else 0
    return Flow(
        kind=kind,
        size=many * region.size,
        rate=rate,
        memory_rate=path.fixed_memory_rate,
        links=path.links,
        region=region,
        tensor=tensor,
        base=base,
        peer=peer,
        request=request,
        regions=many,
        apart=apart,
    )
