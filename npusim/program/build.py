"""Kernel + device + cores -> Program: one template run per distinct signature, then linking."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt

from npusim.device.spec import Device
from npusim.errors import ArgumentError, CapacityError, ProgramError
from npusim.isa.base import Cost
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language
from npusim.program.link import Linker
from npusim.program.lower import at_line, lower
from npusim.program.program import CoreProgram, Flow, Program, Template, flow_of

IntArray = npt.NDArray[np.int64]

_PACKAGE = FilePath(__file__).parent.parent
_OURS = tuple(_PACKAGE / part for part in ("program", "isa", "device"))


def build(kernel: Kernel, device: Device, groups: tuple[int, ...]) -> Program:
    """Lay out ``kernel`` over the cores of ``groups`` (indices of the core mask).

    Raises ``CapacityError`` or ``ProgramError`` naming the kernel line at fault.
    """
    kind = device.core_kind(kernel.role)
    lanes = [(group, i) for group in groups for i in range(kind.per_group)]
    builder = Language(device, kind)
    with _located(kernel):
        kernel.buffers(builder)
        units = kernel.units(len(lanes))
    _check_units(kernel, units, len(lanes))
    names, which = _distinct(units)
    bases = list(units.bases)
    templates = tuple(_template(kernel, builder, SimpleNamespace(**row), bases) for row in names)
    table = (
        np.stack([units.bases[b] for b in bases], axis=1)
        if bases
        else np.zeros((len(units.core), 0), np.int64)
    )
    buffers = tuple(h.buffer for h in builder.handles)
    linker = Linker(buffers, tuple(t.lowered for t in templates))
    cores = []
    for lane, (group, i) in enumerate(lanes):
        rows = np.flatnonzero(units.core == lane)
        variants = linker.link(which[rows])
        name = f"{kind.name}{group * kind.per_group + i}"
        cores.append(CoreProgram(name, group, variants, table[rows].astype(np.int64)))
    program = Program(
        kernel=kernel.name,
        role=kernel.role,
        tiling=kernel.tiling_text,
        device=device,
        kind=kind,
        tensors=kernel.tensors,
        base_names=tuple(bases),
        buffers=buffers,
        templates=templates,
        variants=tuple(linker.variants),
        cores=tuple(cores),
    )
    _check_barriers(program)
    _check_flag_receivers(program)
    return program


def lay_out(kernel: Kernel, device: Device, groups: tuple[int, ...]) -> None:
    """Find what ``device`` cannot hold or execute of ``kernel``, without making a program.

    Buffers are declared; what a cube core does is issued once per distinct signature. Kernels of
    the vector cores cut their moves to what instructions can do, and can have 10^7 units, whose
    table is not made. Raises as ``build`` does.
    """
    kind = device.core_kind(kernel.role)
    builder = Language(device, kind)
    with _located(kernel):
        kernel.buffers(builder)
        if kernel.role != "cube":
            return
        units = kernel.units(len(groups) * kind.per_group)
    for row in _distinct(units)[0]:
        builder.begin_unit()
        with _located(kernel):
            kernel.emit(builder, SimpleNamespace(**row))


def _template(
    kernel: Kernel, builder: Language, unit: SimpleNamespace, bases: list[str]
) -> Template:
    """Run ``emit`` once and lower what it issued."""
    builder.begin_unit()
    with _located(kernel):
        kernel.emit(builder, unit)
    instructions, lines = tuple(builder.instructions), tuple(builder.lines)
    turns = tuple(h.turns for h in builder.handles)
    tensors = {t.name: i for i, t in enumerate(kernel.tensors)}
    costs: list[Cost] = []
    flows: list[Flow | None] = []
    try:
        for instruction in instructions:
            costs.append(instruction.cost(builder.device))
            flows.append(flow_of(instruction, tensors, bases, builder.device))
    except ProgramError as error:
        at = len(flows)
        raise at_line(error, lines[at], instructions[at]) from error
    lowered = lower(instructions, lines, turns, builder.kind.pipes)
    return Template(instructions, lines, tuple(costs), tuple(flows), lowered)


def _distinct(units: Units) -> tuple[list[dict[str, int]], IntArray]:
    """Distinct signatures in order of first use, and each unit's index among them."""
    if not units.signature:
        return ([{}] if len(units.core) else []), np.zeros(len(units.core), np.int64)
    names = list(units.signature)
    key = _key(list(units.signature.values()))
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    distinct = [{n: int(units.signature[n][i]) for n in names} for i in first[order]]
    return distinct, rank[inverse.reshape(-1)]


def _key(columns: list[IntArray]) -> IntArray:
    """One number per row, equal where all columns are: the columns are digits of mixed radix."""
    key, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        digit, radix = column, int(column.max()) - int(column.min()) + 1
        if size * radix > 1 << 62:
            (key, size), (digit, radix) = _ranks(key), _ranks(digit)
        key = key * radix + (digit - digit.min())
        size *= radix
    return key


def _ranks(column: IntArray) -> tuple[IntArray, int]:
    """The place of each number among the distinct ones, and how many these are."""
    values, ranks = np.unique(column, return_inverse=True)
    return ranks.reshape(-1).astype(np.int64), len(values)


def _check_units(kernel: Kernel, units: Units, lanes: int) -> None:
    if not len(units.core):
        raise ProgramError(f"kernel {kernel.name} has no units of work; launch nothing instead")
    wrong = units.core[(units.core < 0) | (units.core >= lanes)]
    if len(wrong):
        raise ProgramError(
            f"kernel {kernel.name} places a unit on core {int(wrong[0])} of {lanes}; "
            f"cores are numbered 0 to {lanes - 1}"
        )


def _check_barriers(program: Program) -> None:
    """Every core must meet every barrier, or the kernel hangs."""
    per_template = np.array([sum(i.meets for i in t.instructions) for t in program.templates])
    if not per_template.any():
        return
    of = np.array([v.template for v in program.variants])
    counts = {c.name: int(per_template[of[c.variants]].sum()) for c in program.cores}
    if len(set(counts.values())) > 1:
        low, high = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise ProgramError(
            f"kernel {program.kernel} would hang: {high} meets {counts[high]} core barriers, "
            f"{low} only {counts[low]}; give every core the same number"
        )


def _check_flag_receivers(program: Program) -> None:
    """A flag between cores is waited for by one pipe, or its counts could go to either."""
    receiver: dict[int, str] = {}
    for template in program.templates:
        for instruction, line in zip(template.instructions, template.lines, strict=True):
            if instruction.awaits is None:
                continue
            event = instruction.awaits.event
            first = receiver.setdefault(event, instruction.pipe)
            if first != instruction.pipe:
                raise ProgramError(
                    f"{line}: {instruction}: flag #{event} is waited for on {first} too; give "
                    "each pipe a flag of its own"
                )


@contextmanager
def _located(kernel: Kernel) -> Iterator[None]:
    """Prefix errors with the kernel line they come from."""
    try:
        yield
    except (ProgramError, CapacityError, ArgumentError) as error:
        lines = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if FilePath(f.filename).parent not in _OURS
        ]
        if not lines:
            raise
        where = f"{FilePath(lines[-1].filename).name}:{lines[-1].lineno}"
        raise type(error)(f"{where}: {error}") from error
