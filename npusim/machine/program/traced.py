"""A kernel as the instructions its cores execute: written as JSON Lines, and read back to be timed.

The first line is an object with ``kernel``, ``tensors`` (shape, element type and role by name) and
``buffers`` (the arguments of ``k.buffer`` by name). Every other line is an instruction of a core
(``cube0``, ``vector5``), in the order in which the core issues them, with its ``pipe`` and ``op``
as msprof's simulator tells of each, and the fields that the operation has in
``npusim.machine.isa``. An operand is a list: tensor, first byte, bytes of a row, rows (1), bytes
between rows (0); or buffer, turn, first byte and so on. ``timed`` is any operation that is known by
its ``cycles`` alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np
from msgspec import NODEFAULT, structs

from npusim.base.atomic_files import replacing
from npusim.base.dtypes import DType, dtype
from npusim.base.errors import ArgumentError, NpusimError, ProgramError
from npusim.base.records import Record
from npusim.base.yamltree import suggest, unreadable
from npusim.machine.device.catalog import load_device, parse_core_mask
from npusim.machine.device.parts import Path
from npusim.machine.device.spec import Device
from npusim.machine.isa import ISA
from npusim.machine.isa.base import Await, Cost, Instruction, MemoryView, Signal, spelled
from npusim.machine.isa.dma import Window
from npusim.machine.isa.operands import GmRegion, Region, Slot, SlotRegion, Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel, Plan, Tasks
from npusim.machine.program.language import BufferHandle, Language
from npusim.machine.program.program import Program

#: The largest number of a file: bytes of a tensor, a turn of a buffer, cycles of one operation. The
#: sums over all instructions of a kernel are numbers of 64 bits.
MOST = 1 << 40


class TimedInstruction(Instruction, Record, frozen=True):
    """An operation of pipe ``on`` of which nothing is known but its time; flags order it."""

    on: str
    name: str
    cycles: int

    @property
    def pipe(self) -> str:
        return self.on

    @property
    def op(self) -> str:
        return self.name

    def cost(self, device: Device) -> Cost:
        return Cost(max(self.cycles, 1))  # an engine has none of 0 cycles

    def figures(self) -> tuple[str, ...]:
        return ()

    def execute(self, memory: MemoryView) -> None:
        raise ProgramError(f"{self.name} is known by its time alone; ask for timing only")


def save_instructions(
    kernel: Kernel, device: str | Device, file: str | FilePath, cores: Any = None
) -> None:
    """Write what every core executes of a kernel on ``device``, under a mask of ``cores``.

    Raises as ``npusim.simulate`` does.
    """
    machine = load_device(device)
    program = build(kernel, machine, parse_core_mask(cores, machine))
    with replacing(file) as part, part.open("w", encoding="utf-8") as out:
        out.writelines(f"{json.dumps(entry, default=int)}\n" for entry in _entries(kernel, program))


def _entries(kernel: Kernel, program: Program) -> Iterator[dict[str, Any]]:
    """The lines of a file."""
    alike = ("memory", "slots", "unit_flag", "own_banks")
    buffers = {
        item.name: {name: getattr(item, name) for name in alike}
        | {"dtype": item.dtype and item.dtype.name}
        | {"shape": [item.slot_bytes // (item.dtype.bytes if item.dtype else 1)]}
        for item in program.buffers
    }
    tensors = {item.name: [item.shape, item.dtype.name, item.role] for item in program.tensors}
    if len(buffers | tensors) < len(program.buffers) + len(program.tensors):
        raise ProgramError(f"{program.kernel} has a name for two buffers or tensors; rename one")
    placement = {"anywhere": True} if kernel.anywhere else {}
    yield {"kernel": program.kernel, **placement, "tensors": tensors, "buffers": buffers}
    roles = {program.device.core_kind(role).name: role for role in program.roles}
    numbers: Counter[str] = Counter()
    for core in program.cores:
        role = roles[core.kind.name]
        core_entry = {"core": f"{role}{numbers[role]}"}
        numbers[role] += 1
        turns = np.zeros(len(buffers), np.int64)
        for variant, row in zip(core.variants, core.bases.tolist(), strict=True):
            template = program.templates[program.variants[variant].template]
            before = turns - np.array(template.lowered.starts, np.int64)
            say = partial(_said, dict(zip(program.base_names, row, strict=True)), before)
            for item in template.instructions:
                said = {name: say(getattr(item, name)) for name in _fields(item.__class__)}
                yield core_entry | {"pipe": item.pipe, "op": spelled(type(item).__name__)} | said
            turns = turns + template.lowered.turns


def _said(bases: Mapping[str, int], turns: Any, value: Any) -> Any:
    """A field of an instruction as JSON has it, in a task with such bases and turns before it."""
    match value:
        case GmRegion():
            first = value.offset + bases.get(value.base, 0)
            return [value.tensor.name, first, value.row_bytes, value.rows, value.pitch]
        case SlotRegion():
            buffer = value.slot.buffer
            turn = turns[buffer.index] + value.slot.turn
            return [buffer.name, turn, value.offset, value.row_bytes, value.rows, value.pitch]
        case tuple():
            return [_said(bases, turns, item) for item in value]
        case Window():
            return structs.astuple(value)
    return value.name if isinstance(value, DType | Path) else value


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, Any]]:
    """By name of a field of an instruction what it is without being said, and its type."""
    return {field.name: (field.default, field.type) for field in structs.fields(kind)}


class _Core(NamedTuple):
    """The task of a core, which is all that it does."""

    lane: int


_WRONG = (NpusimError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Tell of anything wrong where it stands."""
    try:
        yield
    except (*_WRONG, RecursionError) as error:  # lists within lists
        what = f"it lacks {error}; add it" if isinstance(error, KeyError) else error
        raise ArgumentError(f"{where}: {what}") from error


def _integer(name: str, value: Any, least: int = 0) -> int:
    """A whole number of a file. Raises ``ArgumentError`` for anything else, and beyond ``MOST``."""
    if type(value) is not int or not least <= value <= MOST:
        raise ArgumentError(f"{name} is {value!r}; it must be a whole number, {least} to {MOST}")
    return value


def _is(name: str, value: Any, kind: type) -> Any:
    """A value of a file, which has to be of a ``kind``."""
    if not isinstance(value, kind):
        what = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}
        raise ArgumentError(f"{name} is {value!r}; it must be {what.get(kind, 'an operand')}")
    return value


@dataclass(frozen=True)
class Traced(Kernel):
    """The kernel that the ``lines`` of a ``file`` of instructions are.

    Raises ``ArgumentError`` with the line for one that cannot be read, or that the device for which
    the kernel is built cannot execute.
    """

    file: str
    lines: tuple[str, ...]

    @property
    def tiling_text(self) -> str:
        return f"the instructions of {self.file}"

    def __post_init__(self) -> None:
        role, *partners = dict.fromkeys(role for role, _ in self.cores)
        # Attributes of this trace, and not of all.
        object.__setattr__(self, "name", self.header["kernel"])
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "partners", tuple(partners))

    @cached_property
    def header(self) -> dict[str, Any]:
        """The statements of the first line, with its tensors."""
        with _located(f"{self.file}:1"):
            entry = json.loads("".join(self.lines[:1]))
            _is("kernel", entry["kernel"], str)
            _is("anywhere", entry.get("anywhere", False), bool)
            tensors = {
                name: Tensor(name, _shape(name, shape), dtype(kind), role)
                for name, (shape, kind, role) in _is("tensors", entry["tensors"], dict).items()
            }
            return {**entry, "buffers": _is("buffers", entry["buffers"], dict), "tensors": tensors}

    @cached_property
    def cores(self) -> dict[tuple[str, int], list[tuple[str, dict[str, Any]]]]:
        """By role and number of a core its instructions, each with where it stands."""
        by_core: dict[tuple[str, int], list[tuple[str, dict[str, Any]]]] = {}
        for place, text in enumerate(self.lines[1:], 2):
            with _located(f"{self.file}:{place}"):
                values = _is("the line", json.loads(text), dict)
                core = re.fullmatch(r"(cube|vector|dsp)(\d{1,5})", values["core"], re.ASCII)
                if core is None:
                    raise ArgumentError(f"core is {values['core']!r}; it is cube0, vector5 or dsp1")
                core_key = core[1], int(core[2])
                by_core.setdefault(core_key, []).append((f"{self.file}:{place}", values))
        if not by_core:
            raise ArgumentError(f"{self.file}: there is no instruction behind the first line")
        return by_core

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.header["tensors"].values())

    @property
    def anywhere(self) -> bool:
        return bool(self.header.get("anywhere"))

    def plan(self, k: Language, cores: int) -> Plan[_Core]:
        lanes = np.array(sorted(lane for role, lane in self.cores if role == k.role), np.int64)
        if lanes[-1] >= cores:
            raise ArgumentError(
                f"{self.file}: {k.role}{lanes[-1]} is not among the {cores} {k.role} cores of the "
                "call; take more cores, or a device that has them"
            )
        replay = _Replay(k, self)
        tasks = Tasks(lanes, _Core, {"lane": lanes})
        return Plan(tasks, lambda core: replay.issue(self.cores[k.role, core.lane]))


def _shape(name: str, said: Any) -> tuple[int, ...]:
    """The extents of a tensor or buffer, of 1 and more."""
    what = f"shape of {name}"
    return tuple(_integer(what, extent, 1) for extent in _is(what, said, list))


class _Replay:
    """Issues the instructions of a trace on one kind of core."""

    def __init__(self, k: Language, trace: Traced) -> None:
        self.k = k
        self.tensors = trace.header["tensors"]
        there = {handle.buffer.name for handle in k.handles}
        with _located(f"{trace.file}:1: buffers"):
            for name, said in trace.header["buffers"].items():
                if name not in there and said["memory"] in k.kind.memories:
                    kind = said["dtype"] and dtype(said["dtype"])
                    for flag in ("unit_flag", "own_banks"):
                        _is(f"{flag} of {name}", said.get(flag, False), bool)
                    _integer(f"slots of {name}", said.get("slots", 1), 1)
                    shape = _shape(name, said["shape"])
                    k.buffer(**{**said, "dtype": kind, "name": name, "shape": shape})
        self.handles = {handle.buffer.name: handle for handle in k.handles}

    def issue(self, lines: list[tuple[str, dict[str, Any]]]) -> None:
        """Issue the instructions of one core."""
        for where, values in lines:
            with _located(where):
                instruction = self._instruction({"on": values["pipe"], **values})
                if instruction.pipe != values["pipe"]:
                    raise ArgumentError(
                        f"pipe is {values['pipe']}; {instruction} is for {instruction.pipe} here"
                    )
                self.k._issue(instruction)
                self.k.lines[-1] = where

    def _instruction(self, values: dict[str, Any]) -> Instruction:
        kinds: dict[str, type[Instruction]] = {**ISA, "timed": TimedInstruction}
        op = values["op"]
        kind = kinds.get(op)
        if kind is None:
            raise ArgumentError(f"unknown op {op!r}{suggest(str(op), kinds)}")
        known_fields = _fields(kind)
        for name in values:
            if name not in (*known_fields, "core", "pipe", "op", "on"):
                raise ArgumentError(f"{op} has no {name!r}{suggest(name, known_fields)}")
        present = [
            name for name in known_fields if name in values or known_fields[name][0] is NODEFAULT
        ]
        return kind(
            **{name: self._value(name, known_fields[name][1], values[name]) for name in present}
        )

    def _value(self, name: str, hint: Any, value: Any) -> Any:
        """A field of an instruction, of the type that is its ``hint``."""
        if hint in (Window, Signal, Await):
            scope = 1 if hint is Signal else len(value)  # a text behind the event
            return hint(
                *(_integer(name, number_read) for number_read in value[:scope]), *value[scope:]
            )
        if isinstance(value, list) and "Region" in str(hint):
            many = not value or isinstance(value[0], list)
            return tuple(map(self._region, value)) if many else self._region(value)
        if hint is Path:
            ends, _, variant = value.partition(".")
            origin, _, goal = ends.partition("->")
            return self.k._path(origin, goal, variant)
        if hint is DType:
            return dtype(value)
        if hint is int:
            return _integer(name, value)
        number = hint is float and type(value) in (int, float)
        return float(value) if number else _is(name, value, hint)

    def _region(self, said: list[Any]) -> Region:
        """The operand of a list."""
        name, *place = said
        are_integers = all(type(number) is int and abs(number) <= MOST for number in place)
        if not isinstance(name, str) or not are_integers or not 2 <= len(place) <= 5:
            raise ArgumentError(f"{said} is no operand: a name, 2 to 5 whole numbers up to {MOST}")
        if name in self.tensors:
            return _in_tensor(self.tensors[name], *place)
        if name not in self.handles:
            raise ArgumentError(f"no tensor or buffer of these cores is called {name!r}")
        return _in_slot(self.handles[name], *place)


def _in_tensor(tensor: Tensor, first: int, size: int, rows: int = 1, pitch: int = 0) -> Region:
    if not 0 <= first <= tensor.size_bytes - (rows - 1) * pitch - size:
        raise ArgumentError(f"an operand leaves {tensor.name}, which has {tensor.size_bytes} B")
    return tensor.at(first, size, rows=rows, pitch=pitch)


def _in_slot(
    handle: BufferHandle, turn: int, first: int, size: int, rows: int = 1, pitch: int = 0
) -> Region:
    """Bytes of a turn of a buffer; turns are taken as they come."""
    handle.turns = max(handle.turns, turn + 1)
    return Slot(handle.buffer, turn, task=handle.task).at(first, size, rows=rows, pitch=pitch)


def load_instructions(file: str | FilePath) -> Traced:
    """The kernel of a file of instructions, for ``npusim.simulate``.

    Raises ``ArgumentError`` with the line for what cannot be read.
    """
    try:
        return Traced(str(file), tuple(FilePath(file).read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{file}: {unreadable(error)}") from error
