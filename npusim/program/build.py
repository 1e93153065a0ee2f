"""Kernel + device + cores -> Program: one template per distinct task, then linking."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path as FilePath
from typing import Any, get_type_hints

import numpy as np

from npusim.device.spec import Device
from npusim.errors import ArgumentError, CapacityError, ProgramError
from npusim.integers import IntArray
from npusim.objects import growing
from npusim.program.kernel import Kernel, Tasks, fields_of
from npusim.program.language import Language
from npusim.program.link import Linker
from npusim.program.lower import lower
from npusim.program.program import CoreProgram, Program, Template
from npusim.program.recost import costed, structure
from npusim.yamltree import suggest

_PACKAGE = FilePath(__file__).parent.parent
_OURS = tuple(_PACKAGE / part for part in ("program", "isa", "device"))


@growing()
def build(kernel: Kernel, device: Device, groups: tuple[int, ...]) -> Program:
    """Lay out ``kernel`` over the cores of ``groups`` (indices of the core mask).

    Raises ``CapacityError`` or ``ProgramError`` naming the kernel line at fault.
    """
    kind = device.core_kind(kernel.role)
    lanes = [(group, i) for group in groups for i in range(kind.per_group)]
    k = Language(device, kind)
    with _located():
        plan = kernel.plan(k, len(lanes))
    tasks = plan.tasks
    _check_tasks(kernel, tasks, len(lanes))
    records, which = _distinct(tasks)
    bases = list(tasks.bases)
    names = {t.name: i for i, t in enumerate(kernel.tensors)}
    templates = tuple(_template(k, device, partial(plan.emit, r), (names, bases)) for r in records)
    table = (
        np.stack([tasks.bases[b] for b in bases], axis=1)
        if bases
        else np.zeros((len(tasks.core), 0), np.int64)
    )
    buffers = tuple(h.buffer for h in k.handles)
    linker = Linker(buffers, tuple(t.lowered for t in templates))
    cores = []
    for lane, (group, i) in enumerate(lanes):
        rows = np.flatnonzero(tasks.core == lane)
        variants = linker.link(which[rows])
        name = f"{kind.name}{group * kind.per_group + i}"
        cores.append(CoreProgram(name, group, variants, table[rows].astype(np.int64)))
    program = Program(
        kernel=kernel.name,
        role=kernel.role,
        computes=kernel.computes,
        tiling=kernel.tiling_text,
        device=device,
        kind=kind,
        tensors=kernel.tensors,
        base_names=tuple(bases),
        buffers=buffers,
        templates=templates,
        variants=tuple(linker.variants),
        cores=tuple(cores),
        useful_macs=kernel.useful_macs,
        needed_bytes=kernel.needed_bytes,
        structure=None if k.device_seen else structure(device, kind),
        looked=frozenset(k.looked),
    )
    _check_barriers(program)
    _check_flag_receivers(program)
    return program


@growing()
def lay_out(
    kernel: Kernel, device: Device, groups: tuple[int, ...], k: Language | None = None
) -> None:
    """Find what ``device`` cannot hold or execute of ``kernel``, without making a program.

    Buffers are declared, on ``k`` if one is given; what a cube core does is issued once per
    distinct task. Kernels of the vector cores cut their moves to what instructions can do. Raises
    as ``build`` does.
    """
    kind = device.core_kind(kernel.role)
    k = Language(device, kind) if k is None else k
    with _located():
        plan = kernel.plan(k, len(groups) * kind.per_group)
    if kernel.role == "cube":
        for record in _distinct(plan.tasks)[0]:
            _issue(k, partial(plan.emit, record))


def _issue(k: Language, emit: Callable[[], None]) -> None:
    """Record the instructions of one task."""
    k.begin_task()
    with _located():
        emit()


def _template(
    k: Language,
    device: Device,
    emit: Callable[[], None],
    names: tuple[dict[str, int], list[str]],
) -> Template:
    """Issue the instructions of one task and lower them."""
    _issue(k, emit)
    instructions, told, lines = tuple(k.instructions), tuple(k.told), tuple(k.lines)
    turns = tuple(h.turns for h in k.handles)
    costs, flows = costed(instructions, told, lines, device, names)
    lowered = lower(instructions, told, lines, turns, k.kind.pipes)
    return Template(instructions, told, lines, costs, flows, lowered)


def _distinct(tasks: Tasks[Any]) -> tuple[list[tuple[Any, ...]], IntArray]:
    """Distinct tasks in order of first use, and each row's index among them."""
    record, count = tasks.record, len(tasks.core)
    if not tasks.columns:
        return ([record()] if count else []), np.zeros(count, np.int64)
    columns = [np.asarray(tasks.columns[name], np.int64) for name in fields_of(record)]
    _, first, inverse = np.unique(_key(columns), return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    types = get_type_hints(record)
    kinds = [types.get(name, int) for name in fields_of(record)]
    rows = zip(*(column[first[order]].tolist() for column in columns), strict=True)
    distinct = [record(*(kind(v) for kind, v in zip(kinds, row, strict=True))) for row in rows]
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


def _check_tasks(kernel: Kernel, tasks: Tasks[Any], lanes: int) -> None:
    if not len(tasks.core):
        raise ProgramError(f"kernel {kernel.name} has no tasks; launch nothing instead")
    wrong = tasks.core[(tasks.core < 0) | (tasks.core >= lanes)]
    if len(wrong):
        raise ProgramError(
            f"kernel {kernel.name} places a task on core {int(wrong[0])} of {lanes}; "
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
        rows = zip(template.instructions, template.told, template.lines, strict=True)
        for instruction, told, line in rows:
            if instruction.awaits is None:
                continue
            event = instruction.awaits.event
            first = receiver.setdefault(event, told.pipe)
            if first != told.pipe:
                raise ProgramError(
                    f"{line}: {instruction}: flag #{event} is waited for on {first} too; give "
                    "each pipe a flag of its own"
                )


@contextmanager
def _located() -> Iterator[None]:
    """Prefix errors with the kernel line they come from."""
    try:
        yield
    except (ProgramError, CapacityError, ArgumentError) as error:
        raise type(error)(f"{_kernel_line(error)}{error}") from error
    except AttributeError as error:
        if error.name is None:
            raise
        fields = fields_of(type(error.obj))
        if fields:
            what = f"a {type(error.obj).__name__} has no field {error.name!r} (it has: "
            what += f"{', '.join(fields)})"
        elif isinstance(error.obj, Language):
            words = [name for name in dir(error.obj) if not name.startswith("_")]
            what = f"the kernel language has no {error.name!r}{suggest(error.name, words)}"
        else:
            raise
        raise ProgramError(f"{_kernel_line(error)}{what}") from error


def _kernel_line(error: Exception) -> str:
    """``file.py:line: `` of the innermost frame outside this layer, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f for f in frames if FilePath(f.filename).parent not in _OURS]
    return f"{FilePath(lines[-1].filename).name}:{lines[-1].lineno}: " if lines else ""
