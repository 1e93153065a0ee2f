"""Kernel + device + cores -> Program: units of distinct tasks become templates, then linking.

What is laid out tells which tilings a kernel can have on a device, and what memory each takes.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from msgspec import Struct

from npusim.base.errors import ArgumentError, CapacityError, ProgramError, RoomError
from npusim.base.integers import IntArray
from npusim.base.records import growing
from npusim.base.yamltree import suggest
from npusim.machine.device.catalog import load_device
from npusim.machine.device.parts import CoreKind
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.isa.sync import SetFlag, WaitFlag
from npusim.machine.program.kernel import Kernel, Plan, Tasks, fields_of, require_table
from npusim.machine.program.language import Language
from npusim.machine.program.link import Linker
from npusim.machine.program.lower import lower
from npusim.machine.program.program import CoreProgram, Program, Template, pipes_of
from npusim.machine.program.recost import costed, placed, structure
from npusim.machine.program.units import Runs, Unit

_PACKAGE = FilePath(__file__).parent.parent
_OURS = tuple(_PACKAGE / part for part in ("program", "isa", "device"))


class _Part(Struct, frozen=True):
    """The work of the cores of one kind; ``lanes`` are their groups and their numbers in these."""

    k: Language
    lanes: tuple[tuple[int, int], ...]
    plan: Plan[Any]


class _Facts(Struct, frozen=True):
    """The statements of a kernel about itself that its program repeats."""

    tiling: str
    idle: str
    useful_macs: int
    needed_bytes: Mapping[str, int]


class _Issued(Struct, frozen=True):
    """The distinct units and tasks of a kernel, and by part the distinct task of each of its rows.

    ``places`` are those of tensors by name, ``bases`` the names of base columns.
    """

    places: Mapping[str, int]
    bases: list[str]
    templates: list[Template]
    tasks: list[Runs]
    chosen: list[IntArray]


@growing()
def build(
    kernel: Kernel, device: Device, groups: tuple[int, ...], *, evenly: bool = False
) -> Program:
    """Lay out ``kernel`` over the cores of ``groups`` (indices of the core mask).

    ``evenly`` deals the tasks out anew, in their order and as many to each core: that tells what it
    does to the time, but tasks that rest on those before them would compute other numbers. Raises
    ``CapacityError`` or ``ProgramError`` naming the kernel line at fault.
    """
    for name in (kernel.name, *(t.name for t in kernel.tensors)):
        if not name.isprintable():  # reports and traces could not show it
            raise ProgramError(f"kernel {kernel.name!a}: the name {name!a} is not printable")
    facts = _facts(kernel, len(_lanes(device.core_kind(kernel.role), groups)))
    parts = _parts(kernel, device, groups)
    if evenly:
        parts = [_Part(part.k, part.lanes, _dealt(kernel, part)) for part in parts]
    issued = _issued(kernel.name, kernel.tensors, parts, device)
    buffers = tuple(handle.buffer for handle in parts[0].k.handles)
    lowered = tuple(template.lowered for template in issued.templates)
    linker = Linker(buffers, lowered, [task.units for task in issued.tasks])
    cores: list[CoreProgram] = []
    for part, which in zip(parts, issued.chosen, strict=True):
        cores += _cores(part, which, issued, linker)
    count = len(issued.templates)
    names = (dict(issued.places), issued.bases)
    cores = placed(issued.templates, linker.variants, cores, device, names)
    # Where the kernel looked at all of the device, its shape follows from all of it; where units
    # are told apart by their addresses, from what moves look at.
    is_certain = len(issued.templates) == count and not any(part.k.device_seen for part in parts)
    program = Program(
        kernel=kernel.name,
        roles=kernel.roles,
        computes=kernel.computes,
        tiling=facts.tiling,
        idle=facts.idle,
        device=device,
        tensors=kernel.tensors,
        base_names=tuple(issued.bases),
        buffers=buffers,
        templates=tuple(issued.templates),
        variants=tuple(linker.variants),
        tasks=tuple(task.units for task in issued.tasks),
        cores=tuple(cores),
        useful_macs=facts.useful_macs,
        needed_bytes=facts.needed_bytes,
        structure=structure(device, kernel.roles) if is_certain else None,
        looked=frozenset().union(*(part.k.looked for part in parts)),
    )
    _check_barriers(program)
    _check_flags(program)
    return program


def _facts(kernel: Kernel, lanes: int) -> _Facts:
    """The statements of a kernel on so many cores of its role."""
    idle = kernel.idle(lanes)
    tiling = kernel.tiling_text
    return _Facts(
        tiling=f"{tiling}; {idle}" if idle else tiling,
        idle=idle,
        useful_macs=kernel.useful_macs,
        needed_bytes=kernel.needed_bytes,
    )


def _issued(
    kernel: str, tensors: Sequence[Tensor], parts: Sequence[_Part], device: Device
) -> _Issued:
    """Issue every distinct task of every part once.

    Raises ``ProgramError`` for a part without tasks, or with tasks on cores that are not there.
    """
    places = {tensor.name: place for place, tensor in enumerate(tensors)}
    bases = list(dict.fromkeys(base for part in parts for base in part.plan.tasks.bases))
    pipes = pipes_of(part.k.kind for part in parts)
    templates: list[Template] = []
    tasks: list[Runs] = []
    chosen: list[IntArray] = []
    for part in parts:
        _check_tasks(kernel, part.plan.tasks, len(part.lanes))
        records, which = _distinct(part.plan.tasks)
        chosen.append(which + len(tasks))
        part.k.bases = tuple(bases)
        for record in records:
            runs = _issue(part.k, partial(part.plan.emit, record))
            tasks.append(runs._replace(units=runs.units + len(templates)))
        templates += [_template(unit, device, (places, bases), pipes) for unit in part.k.units]
        part.k.close()
    return _Issued(places, bases, templates, tasks, chosen)


def _cores(part: _Part, which: IntArray, issued: _Issued, linker: Linker) -> Iterator[CoreProgram]:
    """The cores of a part, each with the linked units of its tasks; ``which`` are distinct ones."""
    kind = part.k.kind
    order = np.argsort(part.plan.tasks.core, kind="stable")
    ordered = which[order]
    bases = _table(part.plan.tasks, issued.bases)[order]
    counts = np.bincount(part.plan.tasks.core, minlength=len(part.lanes))
    shifted, iterations = _rows(issued.tasks, ordered, bases)
    first_task = first_row = 0
    for (group, number), count in zip(part.lanes, counts.tolist(), strict=True):
        variants = linker.link(ordered[first_task : first_task + count])
        rows = slice(first_row, first_row + len(variants))
        name = f"{kind.name}{group * kind.per_group + number}"
        yield CoreProgram(name, group, kind, variants, shifted[rows], iterations[rows], tasks=count)
        first_task += count
        first_row = rows.stop


@growing()
def lay_out(
    kernel: Kernel,
    device: Device,
    groups: tuple[int, ...],
    k: Language | None = None,
    *,
    issued: bool = True,
) -> None:
    """Find what ``device`` cannot hold or execute of ``kernel``, without making a program.

    Buffers are declared, on ``k`` if one is given; what a cube core does is ``issued`` once per
    distinct task. Kernels of the vector cores cut their moves to what instructions can do. Raises
    as ``build`` does.
    """
    for part in _parts(kernel, device, groups, k):
        if part.k.role == "cube" and issued:
            for record in _distinct(part.plan.tasks)[0]:
                _issue(part.k, partial(part.plan.emit, record))
            part.k.close()


def _parts(
    kernel: Kernel, device: Device, groups: tuple[int, ...], first: Language | None = None
) -> list[_Part]:
    """The plans of a kernel for every kind of core it runs on; buffers are declared on ``first``.

    Raises ``ProgramError`` where cores that have to work together are one kind of core here.
    """
    parts: list[_Part] = []
    for role in kernel.roles:
        kind = device.core_kind(role)
        if any(part.k.kind is kind for part in parts):
            raise ProgramError(
                f"kernel {kernel.name} runs on {' and '.join(kernel.roles)} cores that hand data "
                f"to each other, but {device.name} has one kind of core for both; run its parts as "
                "kernels of their own, or take a device with two"
            )
        handles = parts[0].k.handles if parts else None
        k = first if first is not None and not parts else Language(device, kind, role, handles)
        k.anywhere = kernel.anywhere
        lanes = _lanes(kind, groups)
        with _located():
            plan = kernel.plan(k, kernel.used(len(lanes)))
        if not isinstance(plan, Plan):
            raise ProgramError(
                f"plan of {type(kernel).__name__} returns {plan!r}; it returns a Plan(tasks, emit)"
            )
        k.bases = tuple(plan.tasks.bases)
        parts.append(_Part(k, lanes, plan))
    return parts


def _lanes(kind: CoreKind, groups: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The cores of a kind as their groups and their numbers in these."""
    return tuple((group, number) for group in groups for number in range(kind.per_group))


def _dealt(kernel: Kernel, part: _Part) -> Plan[Any]:
    """The plan of a part with as many successive tasks for each of the cores it may use."""
    tasks, cores = part.plan.tasks, kernel.used(len(part.lanes))
    count, order = len(tasks.core), np.argsort(tasks.core, kind="stable")
    core = np.empty(count, np.int64)
    core[order] = np.arange(count) * cores // max(1, count)
    return Plan(
        tasks=Tasks(core=core, record=tasks.record, columns=tasks.columns, bases=tasks.bases),
        emit=part.plan.emit,
    )


def _table(tasks: Tasks[Any], bases: list[str]) -> IntArray:
    """The GM bases of every task, 0 for those that only partners have."""
    none = np.zeros(len(tasks.core), np.int64)
    columns = [np.asarray(tasks.bases.get(base, none), np.int64) for base in bases]
    return np.stack(columns, axis=1) if columns else np.zeros((len(tasks.core), 0), np.int64)


def _rows(tasks: list[Runs], which: IntArray, bases: IntArray) -> tuple[IntArray, IntArray]:
    """The GM bases of every unit that tasks run, and the iteration that it is.

    ``which`` are distinct tasks, ``bases`` (tasks, base columns) theirs.
    """
    lengths = np.array([len(task.units) for task in tasks])
    begins = np.cumsum(lengths) - lengths
    runs = Runs.joined(tasks)
    count = lengths[which]
    require_table(int(count.sum()))
    rows = np.repeat(begins[which] - (np.cumsum(count) - count), count) + np.arange(count.sum())
    return np.repeat(bases, count, axis=0) + runs.shifts[rows], runs.iterations[rows]


def _issue(k: Language, emit: Callable[[], None]) -> Runs:
    """Record the units of one task, and which of them it runs."""
    k.begin_task()
    with _located():
        emit()
        return k.end_task()


def _template(
    unit: Unit, device: Device, names: tuple[dict[str, int], list[str]], pipes: tuple[str, ...]
) -> Template:
    """A unit with what its instructions cost, lowered."""
    instructions, facts, lines, *_ = unit
    costs, flows = costed(instructions, facts, lines, device, names)
    return Template(instructions, facts, lines, costs, flows, lower(unit, pipes))


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
    kinds = _kinds(record)  # type: ignore[arg-type]  # classes are hashable
    rows = zip(*(column[first[order]].tolist() for column in columns), strict=True)
    distinct = [record(*(kind(v) for kind, v in zip(kinds, row, strict=True))) for row in rows]
    return distinct, rank[inverse.reshape(-1)]


@lru_cache(maxsize=256)
def _kinds(record: type) -> tuple[type, ...]:
    """The types of a record's fields."""
    types = get_type_hints(record)
    return tuple(types.get(name, int) for name in fields_of(record))


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


def _check_tasks(kernel: str, tasks: Tasks[Any], lanes: int) -> None:
    if not len(tasks.core):
        raise ProgramError(f"kernel {kernel} has no tasks; launch nothing instead")
    wrong = tasks.core[(tasks.core < 0) | (tasks.core >= lanes)]
    if len(wrong):
        raise ProgramError(
            f"kernel {kernel} places a task on core {int(wrong[0])} of {lanes}; "
            f"cores are numbered 0 to {lanes - 1}"
        )


def _check_barriers(program: Program) -> None:
    """Every core that works must meet every barrier, or the kernel hangs."""
    per_template = np.array([sum(i.meets for i in t.instructions) for t in program.templates])
    if not per_template.any():
        return
    of = np.array([v.template for v in program.variants])
    cores = [program.cores[i] for i in program.working]
    counts = {c.name: int(per_template[of[c.variants]].sum()) for c in cores}
    if len(set(counts.values())) > 1:
        low, high = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise ProgramError(
            f"kernel {program.kernel} would hang: {high} meets {counts[high]} core barriers, "
            f"{low} only {counts[low]}; give every core the same number"
        )


def _check_flags(program: Program) -> None:
    """Refuse a flag between cores that two pipes wait for, or that is for groups and all cores.

    Its counts could go to either pipe, and a core could not tell whom it has to wait for. A flag
    between pipes that is left up would let the next kernel's wait pass. Raises ``ProgramError``
    with the kernel line.
    """
    pipes: dict[int, str] = {}
    scopes: dict[int, str] = {}
    set_minus_waited: dict[tuple[str, str, int], Counter[int]] = {}
    set_at: dict[tuple[str, str, int], str] = {}
    for number, template in enumerate(program.templates):
        for instruction, line in zip(template.instructions, template.lines, strict=True):
            if isinstance(instruction, SetFlag | WaitFlag):
                up = isinstance(instruction, SetFlag)
                flag = instruction.flag
                set_minus_waited.setdefault(flag, Counter())[number] += 1 if up else -1
                set_at |= {flag: f"{line}: {instruction}"} if up else {}
            if instruction.awaits is not None:
                event, pipe = instruction.awaits.event, instruction.pipe
                if pipes.setdefault(event, pipe) != pipe:
                    raise ProgramError(
                        f"{line}: {instruction}: flag #{event} is waited for on {pipes[event]} "
                        "too; give each pipe a flag of its own"
                    )
            if instruction.signals is not None:
                event, scope = instruction.signals
                if scopes.setdefault(event, scope) != scope:
                    raise ProgramError(
                        f"{line}: {instruction}: flag #{event} is set with scope "
                        f"{scopes[event]!r} too; give each scope a flag of its own"
                    )
    for flag, counts in set_minus_waited.items():
        sets = program.core_counts[:, list(counts)] @ np.array(list(counts.values()), np.int64)
        if sets.any():
            core = program.cores[int(np.argmax(sets))].name
            raise ProgramError(
                f"{set_at[flag]}: core {core} leaves the flag up, so that the first wait of the "
                f'next kernel would not hold; follow it by k.wait_flag("{flag[0]}", "{flag[1]}", '
                f"{flag[2]}), behind the last task too"
            )


@contextmanager
def _located() -> Iterator[None]:
    """Prefix errors with the kernel line they come from."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{_kernel_line(stop)}the kernel was being built") from stop
    except RoomError:  # no line of a kernel is to blame for the memory of this computer
        raise
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


def _kernel_line(error: BaseException) -> str:
    """``file.py:line: `` of the innermost frame outside this layer, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    by_dataclass = ("<string>", "__init__")  # by dataclass, for Tasks
    written = [f for f in frames if (f.filename, f.name) != by_dataclass]
    lines = [f for f in written if FilePath(f.filename).parent not in _OURS]
    return f"{FilePath(lines[-1].filename).name}:{lines[-1].lineno}: " if lines else ""


# -- the tilings that fit --------------------------------------------------------------------------


K = TypeVar("K", bound=Kernel)


class Fit(Struct, frozen=True):
    """The room a kernel has on a device: bytes of its buffers by memory, or why it has none.

    ``sizes`` are those of the memories. True where it fits.
    """

    bytes: dict[str, int]
    sizes: dict[str, int]
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    @property
    def share(self) -> dict[str, float]:
        """Share of each memory that the buffers take, 0 to 1."""
        return {name: self.bytes[name] / self.sizes[name] for name in self.bytes}


def is_tunable(kind: type[Kernel]) -> bool:
    """True if kernels of a kind have candidates of their own."""
    return bool(kind.choices) or kind.candidates is not Kernel.candidates


def candidates(kernel: K, device: str | Device, cores: int | None = None) -> Iterator[K]:
    """The legal tilings of a kernel: the same kernel with each, none that runs like another.

    ``cores`` are the cores it may use, all of its role by default.
    """
    machine = load_device(device)
    seen = set()
    for candidate in kernel.candidates(machine, cores or machine.count(kernel.role)):
        if fits(candidate, machine) and (alike := candidate.clipped) not in seen:
            seen.add(alike)
            yield cast(K, candidate)


def changes(kernel: Kernel, candidate: Kernel) -> dict[str, Any]:
    """The fields in which a candidate differs from the kernel."""
    names = [f.name for f in fields(candidate)]  # type: ignore[arg-type]
    values = {name: (getattr(kernel, name), getattr(candidate, name)) for name in names}
    return {name: new for name, (old, new) in values.items() if new != old}


def fits(kernel: Kernel, device: str | Device, *, issued: bool = True) -> Fit:
    """The bytes of a kernel's buffers in the memories of a core, and why a device cannot run it.

    ``reason`` is that of the kernel, of a memory too small, or of an instruction: the last only
    where these are ``issued``, which takes most of the time.
    """
    machine = load_device(device)
    k, reason = Language(machine, machine.core_kind(kernel.role), kernel.role), ""
    try:
        lay_out(kernel, machine, tuple(range(machine.groups)), k, issued=issued)
    except (ArgumentError, CapacityError, ProgramError) as error:
        reason = str(error)
    used: dict[str, int] = {}
    for handle in k.handles:
        memory = handle.buffer.memory
        used[memory] = used.get(memory, 0) + handle.buffer.slots * handle.buffer.slot_bytes
    return Fit(used, {name: machine.memory(name).size_bytes for name in used}, reason)
