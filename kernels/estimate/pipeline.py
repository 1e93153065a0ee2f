"""The time of one core of a product on the cube, in closed steps: what tilings are ranked by.

A core's *items* are tiles of the result. For each, loads of a first and a second operand come to
L1, steps of them go to L0 and through the cube, and the tile is drained:

    for item:
        for first load:                # MTE2, into one of its slots
            for second load:           # MTE2, into one of its slots
                for step:              # MTE1 twice, then M; slots of L0
        drain                          # FIX, or V and MTE3; slots of L0C, or the unit flag

Each pipe works in order and waits for data and for free slots, as in the simulator; what is left
out is that loads differ, and who else uses the shared memories at which moment: bandwidth is shared
by as many cores as are loading on average, that of main memory by those that load what is not in
the L2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from operator import itemgetter
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from npusim.base.records import replace
from npusim.kernels.estimate import costs
from npusim.kernels.estimate.tile import Tiles, TileWork, bound, busy_cycles, estimate
from npusim.kernels.estimate.work import Course, Floats, Work
from npusim.language import Device, IntArray
from npusim.machine.timing import compile_once
from npusim.machine.timing.fast.jit import uncompiled

T = TypeVar("T", bound=tuple[Any, ...])

#: Fields of candidates by name, one entry for each.
Columns = dict[str, npt.NDArray[Any]]

#: So many times the candidates asked for are tried on fewer cores too.
_WIDELY = 2

#: Rows that are spread before the first look at what is left.
_FIRST_ROWS = 32

#: The share of a kernel's time above which launches of half of its cores are worth a look.
_WEIGHTY = 0.1

#: Candidates of a search whose bound is so many times another's are left out of it.
_HOPELESS = 2

#: Cores are followed, for a bound, to so many times the least bound in closed form.
_FOLLOWED = 1.5

#: Slots of L0, and in how many steps what fits in one is cut.
L0_WAYS = ((2, 1), (2, 2), (3, 1), (3, 2))

#: Candidates estimated before the first look at what is left; next are four times as many.
_AT_ONCE = 128


def table(work: T) -> T:
    """Every column with one float per candidate; ``work`` itself if it is so already."""
    shapes = {column.shape if isinstance(column, np.ndarray) else () for column in work}
    if len(shapes) == 1 and () not in shapes and all(column.dtype == np.float64 for column in work):
        return work
    columns = np.empty((len(work), *np.broadcast_shapes((1,), *map(np.shape, work))))
    for place, column in enumerate(work):
        columns[place] = column
    return type(work)(*columns)


def as_columns(records: Sequence[Any], kind: type[Any]) -> Columns:
    """Named tuples of a kind as columns, but for a field ``form``, which is a word."""
    columns = zip(*records, strict=True) if records else [()] * len(kind._fields)
    named = zip(kind._fields, columns, strict=True)
    return {name: np.array(column) for name, column in named if name != "form"}


def distinct(*values: IntArray) -> IntArray:
    """Distinct numbers among some, or distinct columns of numbers, in order.

    They are found by a sort: for what NumPy finds by hashes it first imports ``numpy.ma``, which
    takes a twentieth of the smallest run.
    """
    return np.unique(np.concatenate(values, axis=-1), axis=-1, return_index=True)[0]


def chosen(columns: Columns, which: IntArray) -> Columns:
    """Some of the candidates whose fields are ``columns``."""
    return {name: column.take(which) for name, column in columns.items()}


def taken(work: T, which: IntArray) -> T:
    """The rows of a table of some of its candidates."""
    columns = cast(tuple[Floats, ...], work)
    return type(work)(*(column.take(which) for column in columns))


def joined(*columns: Columns) -> Columns:
    """Candidates with the same fields, one list after another."""
    return {
        name: np.concatenate([candidates[name] for candidates in columns]) for name in columns[0]
    }


def deepest(rows: Columns, k: IntArray) -> Columns:
    """Rows as candidates with steps of so much: no choice that L0 leaves takes fewer."""
    ones = np.ones_like(k)
    return rows | {"k": k, "l0_slots": 2 * ones, "l0c_slots": ones, "unit_flag": 0 * ones}


def uneven(mean: Floats, most: Floats, size: Floats, steps: Floats) -> tuple[Floats, Floats]:
    """Sizes of so many steps through loads of ``mean`` elements: of all but the last, and of that.

    Steps are of a ``size``, and the last is what is left. The largest loads, of ``most`` elements,
    say how much: others are taken to be cut in the same ratio.
    """
    remainder = most - (steps - 1) * size
    remainder = (
        np.where((remainder > 0) & (remainder <= size), remainder, most / steps) * mean / most
    )
    return (mean - np.where(steps > 1, remainder, 0)) / np.maximum(1, steps - 1), remainder


def times(work: Work, few: int, *reached: float, core: ModuleType | None = None) -> Floats:
    """Whole cycles of the ``few`` candidates that take least; of others they may be infinite.

    Candidates are estimated in the order of their bounds, until those left cannot win. Times that
    are ``reached`` already count among the few. ``core`` is a form of ``pipeline_core``, by
    default the compiled one.
    """
    work = table(work)
    least = np.asarray(busy_cycles(work) + work.beside)
    best = np.sort([*reached, *[np.inf] * few])[:few]
    cycles = np.full(len(least), np.inf)
    order = np.argsort(least, kind="stable")
    first, count = 0, _AT_ONCE
    while first < len(order) and least[order[first]] <= best[-1]:
        looked_at = order[first : first + count]
        form = core or _compiled_core()
        form.estimate(work, looked_at, least, best, cycles, np.empty(form.SCRATCH))
        first += count
        count *= 4
    return np.round(cycles)


def followed(
    course: Course, most: Floats | float = np.inf, core: ModuleType | None = None
) -> Floats:
    """Cycles that cores take at least on each ``course``; no further than ``most`` cycles.

    ``core`` is a form of ``course_core``, by default the compiled one.
    """
    course = table(course)
    form = core or _compiled_core("course_core")
    found = np.zeros(np.shape(course.items))
    limit = np.ascontiguousarray(np.broadcast_to(most, found.shape), np.float64)
    form.follow(course, limit, found, np.empty(form.SLOTS))
    return found


def _compiled_core(name: str = "pipeline_core") -> ModuleType:
    compile_once.require()
    return import_module(f"npusim.kernels.estimate.{name}")  # which may load Numba


@cache
def plain_core(name: str = "pipeline_core") -> ModuleType:
    """A module of compiled code as it stands, which nobody compiles: it computes the same."""
    with uncompiled():
        spec = find_spec(f"npusim.kernels.estimate.{name}")
        assert spec is not None
        assert spec.loader is not None
        core = module_from_spec(spec)
        spec.loader.exec_module(core)
    return core


@dataclass(frozen=True)
class Space(ABC):
    """Candidates for one kernel on one device, and what turns them into work and tilings.

    ``held`` says of which operands the L2 has all at the beginning.
    """

    device: Device
    cores: int
    held: tuple[bool, ...]

    @property
    @abstractmethod
    def rows(self) -> Columns:
        """All that fits the device's buffers, but for the choices that ``spread`` makes.

        One entry for each; they have the deepest steps.
        """

    @cached_property
    def of_rows(self) -> Work:
        """The work of all ``rows``, a table."""
        return table(self.estimate(self.rows))

    def spread(self, t: Columns) -> Columns:
        """The candidates of some rows: by default these."""
        return t

    @abstractmethod
    def depth(
        self, t: Columns, l0_slots: int, split: int
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """K of a step with so many slots of L0, in how many steps what fits is cut, and whether
        there is room."""

    def with_l0(self, t: Columns, m: IntArray) -> Columns:
        """Candidates with the choices that L0 leaves: depths of a step, and how the next tile
        begins; ``m`` are the rows of each one's tile in L0C."""
        size = self.device.memory("L0C").size_bytes
        unit_flag = costs.unit_flag_lag(self.device) >= 0
        sums, depths = m * t["n"] * 4, [self.depth(t, *way) for way in L0_WAYS]
        which = []
        steps = []
        ways = []
        for slots, flag in ((2, False), (1, unit_flag)):
            for (l0_slots, _), (k, room) in zip(L0_WAYS, depths, strict=True):
                fits = room & (slots * sums <= size)
                if not flag and slots == 1:  # where two fit there is no reason for one
                    fits &= 2 * sums > size
                which.append(np.flatnonzero(fits))
                steps.append(k[which[-1]])
                ways.append((slots, flag, l0_slots))
        candidates = chosen(t, np.concatenate(which)) | {"k": np.concatenate(steps)}
        counts = [len(places) for places in which]
        slot, flags, l0_slots = np.repeat(np.array(ways, np.int64), counts, axis=0).T
        return candidates | {"l0c_slots": slot, "unit_flag": flags, "l0_slots": l0_slots}

    @abstractmethod
    def clears(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Tell of each candidate whether a kernel before this one clears the result."""

    @abstractmethod
    def tiling(self, t: dict[str, int]) -> Any:
        """The tiling of the candidate with these fields."""

    @property
    @abstractmethod
    def math(self) -> str:
        """The rate of the cube at which it multiplies."""

    @abstractmethod
    def busiest(self, t: Columns) -> Any:
        """Sizes of the tiles of the busiest core, for ``tile``."""

    @abstractmethod
    def mean(self, t: Columns) -> Any:
        """Mean sizes of the tiles of all cores, for ``tile``, with delays that all have."""

    @abstractmethod
    def largest(self, t: Columns) -> Any:
        """Sizes of a largest tile, for ``tile``, which has no less of K than the mean."""

    @abstractmethod
    def least(self, t: Columns) -> Any:
        """Sizes of which no tile, load or product of any core has less, for ``tile``.

        Where all tiles are alike they are theirs.
        """

    def course(self, t: Columns) -> Course | None:
        """What some core does at least; no items where that is not known, None if of none."""
        return None

    @abstractmethod
    def tile(self, t: Columns, sizes: Any) -> TileWork:
        """The loads, products and drain of tiles of such sizes."""

    def way_out(self, t: Columns) -> dict[str, Any]:
        """The columns of a ``Course`` that tell how tiles leave, and what follows them."""
        device = self.device
        flag = np.where(t["unit_flag"] > 0, costs.unit_flag_lag(device), -1)
        return {
            "direct": device.has_path("L0C", "GM"),
            "product_start": device.cube.startup_cycles if device.cube else 0,
            "lag": flag,
        }

    def mean_product(self, m: Floats, k: Floats, n: Floats) -> Floats:
        """Cycles of an mmad of mean sizes, at least."""
        return np.asarray(costs.mean_product_cycles(self.device, m, k, n, self.math))

    def product(self, m: Floats, k: Floats, n: Floats) -> Floats:
        """Cycles of an mmad of such sizes."""
        return np.asarray(costs.product_cycles(self.device, m, k, n, self.math))

    def estimate(self, t: Columns) -> Work:
        """The work of the busiest core under each candidate."""
        return estimate(self.device, self.tile(t, self.busiest(t)), self.math)

    def bound(self, t: Columns) -> tuple[Floats, Floats]:
        """Cycles that each candidate takes at least, and those of launches and kernels beside."""
        mean, largest, least = (
            self.tile(t, sizes) for sizes in (self.mean(t), self.largest(t), self.least(t))
        )
        shape = np.shape(t["cores"])
        tiles = Tiles(mean, largest, least)
        cycles = np.array(
            np.broadcast_to(bound(self.device, tiles, (self.mean_product, self.product)), shape)
        )
        course, beside = self.course(t), np.broadcast_to(mean.beside, shape)
        if course is not None and cycles.size:
            course = table(course)
            most = _FOLLOWED * np.min(cycles + beside) - beside
            near = np.flatnonzero(cycles < most)
            cycles[near] = np.maximum(cycles[near], followed(taken(course, near), most[near]))
        return cycles, beside

    def missing(self, *once: Any) -> Any:
        """Bytes of the operands that the L2 does not hold, of those that each has."""
        return sum(size for size, in_l2 in zip(once, self.held, strict=True) if not in_l2)


def leading(space: Space, few: int, *reached: float) -> list[tuple[float, Any]]:
    """(estimated cycles, tiling) of about ``few`` candidates with the least estimate, best first.

    Where launches weigh much, those of a device with half of the cores are among them. Times that
    are ``reached`` already count among the few.
    """
    leaders = leading_here(space, few, *reached)
    if not leaders:
        return _on_half(space, few, *reached) if reached else []
    half = _on_half(space, few, *(time for time, _ in leaders), *reached)
    # With no more tiles than half of the cores both have the same candidates.
    same = {(time, replace(tiling, cores=0)) for time, tiling in leaders if half}
    tilings = {tiling: time for time, tiling in leaders}
    for time, tiling in half:
        if (time, replace(tiling, cores=0)) not in same:
            tilings.setdefault(tiling, time)
    return sorted(((time, tiling) for tiling, time in tilings.items()), key=itemgetter(0))[:few]


def leading_here(space: Space, few: int, *reached: float) -> list[tuple[float, Any]]:
    """Candidates as of ``leading``, of the device as it is.

    Those that lead on as many cores as they have tiles for are also tried on fewer, which start
    sooner and leave more of the shared memories to each.
    """
    t, first = _best(space, few if reached else _WIDELY * few, reached)
    if not len(first):
        return []
    rounds = -(-t["items"] // t["cores"])
    fewer = [-(-t["items"] // (rounds * more)) for more in (2, 3, 4)]
    fewer.append(-(-t["items"] // (rounds + 1)))
    places = np.arange(len(first))
    pairs = np.array([np.tile(places, len(fewer)), np.concatenate(fewer)])
    new = distinct(pairs[:, pairs[1] != np.tile(t["cores"], len(fewer))])
    if new.size:
        on = chosen(t, new[0]) | {"cores": new[1]}
        more = times(space.estimate(on), few, *first, *reached)
        t, first = joined(t, on), np.concatenate([first, more])
    best = np.argsort(first, kind="stable")[:few]
    tilings = {
        space.tiling(fields): time
        for fields, time in zip(records(chosen(t, best)), first[best].tolist(), strict=True)
        if time < np.inf
    }
    return sorted(((time, fields) for fields, time in tilings.items()), key=itemgetter(0))


def _best(space: Space, few: int, reached: Sequence[float]) -> tuple[Columns, Floats]:
    """The ``few`` candidates with the least estimates, and these.

    Times that are ``reached`` already count among the few. Of equal estimates, as where all wait
    for a memory, those of fewest steps lead. Rows whose bound is above what candidates of others
    take are never spread.
    """
    rows = space.rows
    least = busy_cycles(space.of_rows) + space.of_rows.beside
    remaining = np.argsort(least, kind="stable")
    count = max(few, _FIRST_ROWS)
    t = chosen(rows, remaining[:0])
    estimates, steps = np.zeros(0), np.zeros(0)
    while len(remaining):
        looked_at = np.sort(remaining[:count])
        as_they_are = chosen(rows, looked_at)
        spread = space.spread(as_they_are)
        if spread is as_they_are:  # a row that makes one candidate has the work of this
            work = taken(space.of_rows, looked_at)
        else:
            work = table(space.estimate(spread))
        cycles = times(work, few, *estimates, *reached)
        leading_ones = np.flatnonzero(np.isfinite(cycles))
        new = chosen(spread, leading_ones)
        t = joined(t, new) if len(estimates) else new
        estimates = np.concatenate([estimates, cycles[leading_ones]])
        of_all = np.asarray(work.items * work.firsts * work.seconds * work.steps)
        steps = np.append(steps, of_all[leading_ones])
        limit = np.sort([*reached, *estimates, *[np.inf] * few])[few - 1]
        remaining, count = remaining[count:], len(remaining)
        remaining = remaining[least[remaining] <= limit]
    best = np.lexsort((steps, estimates))[:few]
    return chosen(t, best), estimates[best]


def records(t: Columns) -> list[dict[str, int]]:
    """Candidates one by one, as fields by name."""
    columns = (column.tolist() for column in t.values())
    return [dict(zip(t, map(int, row), strict=True)) for row in zip(*columns, strict=True)]


def _on_half(space: Space, few: int, *reached: float) -> list[tuple[float, Any]]:
    """Candidates that lead on half of the cores, where launches of the others weigh as much.

    A tiling for which few cores are enough is not among those that lead on all of them.
    """
    saved = space.device.launch.core_cycles * space.cores / 2
    if space.cores < 2 or saved < _WEIGHTY * min(reached):
        return []
    half = replace(space, cores=space.cores // 2)
    return [
        (time, replace(tiling, cores=tiling.cores or half.cores))
        for time, tiling in leading(half, few, *reached)
    ]


def foreseen(space: Space, t: Columns) -> tuple[list[float], list[float]]:
    """Estimated cycles of candidates, and those each takes at least, as of ``every``."""
    least, _ = space.bound(t)
    return times(space.estimate(t), len(least)).tolist(), least.tolist()


def every(space: Space) -> Iterator[tuple[Any, int, int, bool]]:
    """The tilings of all candidates, the least bound first.

    With each the cycles that it takes at least, its cores, and whether the result is cleared before
    it; neither that nor launches are among the cycles.
    """
    t = space.spread(space.rows)
    least, beside = space.bound(t)
    clears = space.clears(t)
    total = least + beside
    order = np.argsort(total, kind="stable")
    order = order[total[order] <= _HOPELESS * np.min(total, initial=np.inf)]
    for i, candidate in zip(order.tolist(), records(chosen(t, order)), strict=True):
        yield space.tiling(candidate), int(least[i]), candidate["cores"], bool(clears[i])
