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
from npusim.program.builder import Builder
from npusim.program.kernel import Kernel, Units
from npusim.program.lower import Linker, State, located, lower
from npusim.program.program import CoreProgram, Program, Template, Variant, flow_of

IntArray = npt.NDArray[np.int64]

_PACKAGE = FilePath(__file__).parent.parent
_OURS = tuple(_PACKAGE / part for part in ("program", "isa", "device"))


def build(kernel: Kernel, device: Device, groups: tuple[int, ...]) -> Program:
    """Lay out ``kernel`` over the cores of ``groups`` (indices of the core mask).

    Raises ``CapacityError`` or ``ProgramError`` naming the kernel line at fault.
    """
    kind = device.core_kind(kernel.role)
    lanes = [(group, i) for group in groups for i in range(kind.per_group)]
    builder = Builder(device, kind)
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
    linker, found = Linker(tuple(h.buffer for h in builder.handles)), _Variants()
    cores = []
    for lane, (group, i) in enumerate(lanes):
        rows = np.flatnonzero(units.core == lane)
        variants = _link(linker, templates, which[rows], found)
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
        buffers=tuple(h.buffer for h in builder.handles),
        templates=templates,
        variants=tuple(found.rows),
        cores=tuple(cores),
    )
    _check_barriers(program)
    return program


class _Variants:
    """Distinct (template, resolved waits), in order of first use."""

    def __init__(self) -> None:
        self.rows: list[Variant] = []
        self.index: dict[Variant, int] = {}

    def add(self, variant: Variant) -> int:
        if variant not in self.index:
            self.index[variant] = len(self.rows)
            self.rows.append(variant)
        return self.index[variant]


def _link(
    linker: Linker, templates: tuple[Template, ...], which: IntArray, found: _Variants
) -> IntArray:
    """Variant of every unit of one core, walking its units in order."""
    out = np.empty(len(which), np.int64)
    state: State = linker.start
    known: dict[tuple[int, State], tuple[int, State]] = {}
    ends = np.append(np.flatnonzero(np.diff(which)) + 1, len(which))  # of runs of one template
    u = 0
    while u < len(which):
        template = int(which[u])
        key = (template, state)
        if key not in known:
            lowered = templates[template].lowered
            waits = linker.resolve(lowered, state)
            known[key] = (
                found.add(Variant(template, waits)),
                linker.after(template, lowered, state),
            )
        out[u], after = known[key]
        u += 1
        if after == state:  # a steady state: every repetition of this template resolves alike
            end = int(ends[np.searchsorted(ends, u - 1, side="right")])
            out[u:end] = out[u - 1]
            u = end
        state = after
    return out


def _template(
    kernel: Kernel, builder: Builder, unit: SimpleNamespace, bases: list[str]
) -> Template:
    """Run ``emit`` once and lower what it issued."""
    builder.begin_unit()
    with _located(kernel):
        kernel.emit(builder, unit)
    instructions, lines = tuple(builder.instructions), tuple(builder.lines)
    turns = tuple(h.turns for h in builder.handles)
    tensors = {t.name: i for i, t in enumerate(kernel.tensors)}
    costs, flows = [], []
    for instruction, line in zip(instructions, lines, strict=True):
        with located(line, instruction):
            costs.append(instruction.cost(builder.device))
            flows.append(flow_of(instruction, tensors, bases))
    lowered = lower(instructions, lines, turns, builder.kind.pipes)
    return Template(instructions, lines, tuple(costs), tuple(flows), lowered)


def _distinct(units: Units) -> tuple[list[dict[str, int]], IntArray]:
    """Distinct signatures in order of first use, and each unit's index among them."""
    if not units.signature:
        return ([{}] if len(units.core) else []), np.zeros(len(units.core), np.int64)
    names = list(units.signature)
    table = np.stack([units.signature[n] for n in names], axis=1)
    rows, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    distinct = [dict(zip(names, map(int, rows[i]), strict=True)) for i in order]
    return distinct, rank[inverse.reshape(-1)]


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
    per_template = np.array(
        [sum(i.op == "core_barrier" for i in t.instructions) for t in program.templates]
    )
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
