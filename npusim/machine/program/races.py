"""Races: accesses to the same bytes of global memory, one of them a write, that nothing orders.

Whether a kernel's numbers depend on who comes first is found from its program, without time or
data. Bytes are looked at in pieces as large as all accesses to a tensor allow. A first pass marks
who writes each piece last, a pipe of a core, and looks whose accesses meet another's mark; only the
pieces where that happens are looked at access by access.

What a program does to global memory stands by tensor: the regions of its instructions in all tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from npusim.base.errors import RaceError
from npusim.base.integers import IntArray
from npusim.machine.isa.operands import GmRegion, Tensor
from npusim.machine.program.order import Place, ProgramOrder
from npusim.machine.program.program import ATOMIC, READ, WRITE, Program


class Use(Struct, frozen=True):
    """The access of one instruction of a template to a tensor, in all tasks of that template."""

    kind: int
    region: GmRegion
    pipe: int
    template: int
    index: int  # in the template
    tasks: IntArray  # numbers of the tasks, over all cores
    starts: IntArray  # first byte in each of them


class Accesses:
    """The accesses of a program; its tasks are numbered core by core.

    ``uses`` has those of each tensor, by its name. ``first`` is the number of each core's first
    task, ``cores`` the core of each task, ``templates`` its template.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        counts = [len(core.variants) for core in program.cores]
        self.first = np.concatenate([[0], np.cumsum(counts)])
        self.cores = np.repeat(np.arange(len(counts)), counts)
        of = np.array([v.template for v in program.variants], np.int64)
        self.templates = np.concatenate([of[core.variants] for core in program.cores])

    @cached_property
    def uses(self) -> dict[str, list[Use]]:
        """By tensor, what each instruction of each template does to it."""
        by_tensor: dict[str, list[Use]] = {}
        names = {name: i for i, name in enumerate(self.program.base_names)}
        bases = np.concatenate([core.bases for core in self.program.cores])
        for t, template in enumerate(self.program.templates):
            tasks = np.flatnonzero(self.templates == t)
            for i, facts in enumerate(template.facts):
                write = ATOMIC if template.instructions[i].atomic else WRITE
                touched = [(READ, region) for region in facts.reads]
                touched += [(write, region) for region in facts.writes]
                for kind, region in touched:
                    if isinstance(region, GmRegion):
                        base = bases[tasks, names[region.base]] if region.base else 0
                        starts = np.zeros(len(tasks), np.int64) + region.offset + base
                        pipe = template.lowered.pipes[i]
                        use = Use(kind, region, pipe, t, i, tasks, starts)
                        by_tensor.setdefault(region.tensor.name, []).append(use)
        return by_tensor


class Pieces:
    """A tensor in pieces of ``size`` bytes that no access cuts."""

    def __init__(self, tensor: Tensor, uses: list[Use]) -> None:
        numbers = [np.array([tensor.size_bytes])]
        for use in uses:
            pitch = use.region.pitch if use.region.rows > 1 else 0
            numbers += [use.starts, np.array([use.region.row_bytes, pitch])]
        self.size = int(np.gcd.reduce(np.concatenate(numbers)))
        self.count = tensor.size_bytes // self.size
        self.uses = uses

    def window(self, pieces: npt.NDArray[Any], use: Use) -> npt.NDArray[Any]:
        """The ``pieces`` of each access of a use: (accesses, rows, pieces per row)."""
        view, starts = self.view(pieces, use)
        return view[starts]

    def shared(self, lanes: list[IntArray]) -> npt.NDArray[np.bool_]:
        """The pieces that one lane, a pipe of a core, writes and another accesses.

        ``lanes`` has those of each access of each use.
        """
        writer = np.zeros(self.count, np.int32)
        for use, lane in zip(self.uses, lanes, strict=True):
            if use.kind != READ:
                view, starts = self.view(writer, use)
                view[starts] = lane[:, None, None]
        shared = np.zeros(self.count, np.bool_)
        for use, lane in zip(self.uses, lanes, strict=True):
            writers = self.window(writer, use)
            other = np.nonzero((writers != lane[:, None, None]) & (writers != 0))
            shared[self.number(use, *other)] = True
        return shared

    def number(self, use: Use, access: IntArray, row: IntArray, column: IntArray) -> IntArray:
        """The pieces at places in the windows of a use."""
        return (use.starts[access] + row * use.region.pitch) // self.size + column

    def view(self, pieces: npt.NDArray[Any], use: Use) -> tuple[npt.NDArray[Any], IntArray]:
        """All windows of the shape of a use, and which of them it accesses."""
        region = use.region
        pitch = region.pitch // self.size if region.rows > 1 else 0
        row = region.row_bytes // self.size
        item = pieces.itemsize
        count = self.count - (region.rows - 1) * pitch - row + 1
        shape = (count, region.rows, row)
        strides = (item, pitch * item, item)
        return np.ndarray(shape, pieces.dtype, pieces, 0, strides), use.starts // self.size


# -- what nothing orders ---------------------------------------------------------------------------


#: Adjacent accesses of a piece: those of one group need no order among each other.
_Pair = tuple[int, int]

_MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd number far from any pattern of addresses


class _Race(NamedTuple):
    """Two accesses that nothing orders, by number, and a byte range that both touch."""

    tensor: Tensor
    first: int
    second: int
    start: int
    end: int


def check_races(accesses: Accesses) -> None:
    """Raise ``RaceError`` if a kernel's cores or pipes access bytes of GM in no certain order.

    The error names both kernel lines, cores, pipes and bytes, and what would order them. Atomic
    adds need no order among each other. Accesses must lie inside their tensors.
    """
    search = _Search(accesses)
    races = [race for tensor in accesses.program.tensors for race in search.races(tensor)]
    if races:
        raise RaceError(search.message(races))


class _Search:
    """The accesses of a program, and who comes before whom."""

    def __init__(self, accesses: Accesses) -> None:
        self.program = accesses.program
        self.accesses = accesses
        program = accesses.program
        self.width = max(len(t.instructions) for t in program.templates)
        self.cores = accesses.cores
        self.first = accesses.first
        self.meets = any(i.between_cores for t in program.templates for i in t.instructions)

    @cached_property
    def order(self) -> ProgramOrder:
        """Who comes before whom; asked for only where several pipes touch the same bytes."""
        return ProgramOrder(self.program)

    def races(self, tensor: Tensor) -> Iterator[_Race]:
        """Pairs of accesses to a tensor that nothing orders, one for each pair of lines."""
        uses = self.accesses.uses.get(tensor.name, [])
        kinds = {use.kind for use in uses}
        if WRITE not in kinds and kinds != {READ, ATOMIC}:
            return  # nothing is written, or everything is added
        pieces = Pieces(tensor, uses)
        shared = pieces.shared([self._lanes(use) for use in uses])
        if not shared.any():
            return
        pieces_touched, access, kind = self._accesses(pieces, uses, shared)
        seen = set()
        for a, b in _adjacent(pieces_touched, access, kind):
            first, second = self._place(a), self._place(b)
            if not self.order.before(first, second):
                lines = frozenset((self._line(first), self._line(second)))
                if lines not in seen:
                    seen.add(lines)
                    start, end = _common(pieces_touched, access, a, b)
                    yield _Race(tensor, a, b, start * pieces.size, end * pieces.size)

    def _lanes(self, use: Use) -> IntArray:
        """The pipe of a core that makes each access, from 1."""
        return self.cores[use.tasks] * len(self.program.pipes) + use.pipe + 1

    def _accesses(
        self, pieces: Pieces, uses: list[Use], shared: npt.NDArray[np.bool_]
    ) -> tuple[IntArray, IntArray, IntArray]:
        """(piece, access, kind) of all that touch shared pieces, by piece and then in an order
        in which they may happen."""
        places = []
        access = []
        kind = []
        for use in uses:
            which, row, column = np.nonzero(pieces.window(shared, use))
            places.append(pieces.number(use, which, row, column))
            access.append(use.tasks[which] * self.width + use.index)
            kind.append(np.full(len(which), use.kind))
        all_places = np.concatenate(places)
        all_access = np.concatenate(access)
        all_kinds = np.concatenate(kind)
        order = np.lexsort((all_access, self._rounds(all_access), all_places))
        return all_places[order], all_access[order], all_kinds[order]

    def _rounds(self, access: IntArray) -> IntArray:
        """The round of each access; the tasks of a core follow on those of the cores before."""
        rounds = np.zeros(len(access), np.int64)
        if self.meets:
            task, index = np.divmod(access, self.width)
            core = self.cores[task]
            first = self.first
            for number in np.unique(core).tolist():
                of_core = core == number
                rounds[of_core] = self.order.meetings.rounds(
                    number, task[of_core] - first[number], index[of_core]
                )
        return rounds

    def _place(self, access: int) -> Place:
        task, index = divmod(access, self.width)
        core = int(self.cores[task])
        return Place(core, task - int(self.first[core]), index)

    def _line(self, place: Place) -> str:
        return self.order.template(place).lines[place.step]

    # -- what is said ----------------------------------------------------------------------

    def message(self, races: list[_Race]) -> str:
        """The first race in words, and how many more there are."""
        earliest = min(races, key=lambda race: (race.second, race.first))
        first, second = self._place(earliest.first), self._place(earliest.second)
        more = f"; of such pairs of lines there are {len(races)}" if len(races) > 1 else ""
        return (
            f"{self._line(second)}: {self._access(second)} and {self._line(first)}: "
            f"{self._access(first)} both access bytes {earliest.start}..{earliest.end} of "
            f"{earliest.tensor.name} in kernel {self.program.kernel}, and nothing orders them: "
            f"{self._way_out(first, second)}{more}"
        )

    def _access(self, place: Place) -> str:
        instruction = self.order.template(place).instructions[place.step]
        core = self.program.cores[place.core].name
        return f"{instruction} (core {core}, pipe {self._pipe(place)}, its unit {place.task})"

    def _way_out(self, a: Place, b: Place) -> str:
        p, q = self._pipe(a), self._pipe(b)
        if a.core == b.core:
            return (
                f'let k.set_flag("{p}", "{q}", EVENT) follow the latter in the kernel and '
                f'k.wait_flag("{p}", "{q}", EVENT) precede the former, or k.pipe_barrier() stand '
                "between them"
            )
        return (
            "let all cores meet in between with k.core_barrier(), or let k.core_set_flag follow "
            f"the one that has to come first, on its pipe {p if p == q else f'({p} or {q})'}, and "
            "k.core_wait_flag precede the other on its own"
            + (", or write to places of their own" if self._writes(a, b) else "")
        )

    def _pipe(self, place: Place) -> str:
        return self.program.pipes[self.order.template(place).lowered.pipes[place.step]]

    def _writes(self, *places: Place) -> bool:
        facts = (self.order.template(place).facts[place.step] for place in places)
        return all(isinstance(region, GmRegion) for access in facts for region in access.writes)


def _adjacent(pieces: IntArray, access: IntArray, kind: IntArray) -> Iterator[_Pair]:
    """Accesses of a piece that have to be ordered; if all of them are, every access is.

    Reads next to each other form a group, and so do atomic adds; a write is a group of its own.
    Each access of a group has to come before each of the next. Pieces with the same accesses are
    looked at once.
    """
    first = np.flatnonzero(np.diff(pieces, prepend=-1))
    with np.errstate(over="ignore"):
        place = np.arange(len(pieces)) - np.repeat(first, np.diff(first, append=len(pieces)))
        mixed = (access.astype(np.uint64) * np.uint64(4) + kind.astype(np.uint64)) * _MIX
        mixed = (mixed ^ (mixed >> np.uint64(29))) * (place.astype(np.uint64) * _MIX | np.uint64(1))
        distinct = np.sort(np.unique(np.add.reduceat(mixed, first), return_index=True)[1])
    ends = np.append(first[1:], len(pieces))
    seen: set[_Pair] = set()
    for begin, end in zip(first[distinct].tolist(), ends[distinct].tolist(), strict=True):
        rows = list(zip(access[begin:end].tolist(), kind[begin:end].tolist(), strict=True))
        groups: list[list[int]] = []
        before = None
        for number, what in rows:
            if what == before != WRITE:
                groups[-1].append(number)
            else:
                groups.append([number])
            before = what
        for group, next_group in pairwise(groups):
            for pair in ((a, b) for a in group for b in next_group if a != b):
                if pair not in seen:
                    seen.add(pair)
                    yield pair


def _common(pieces: IntArray, access: IntArray, a: int, b: int) -> tuple[int, int]:
    """The first run of pieces that two accesses share: its begin and end."""
    both = np.intersect1d(pieces[access == a], pieces[access == b])
    breaks = np.flatnonzero(np.diff(both) != 1)
    last = both[breaks[0]] if len(breaks) else both[-1]
    return int(both[0]), int(last) + 1
