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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from npusim.base.integers import IntArray
from npusim.device.spec import Device
from npusim.kernels.tilings import costs
from npusim.timing import standby
from npusim.timing.fast.jit import uncompiled

Floats = npt.NDArray[np.float64]

#: So many times the candidates asked for are tried on fewer cores too.
_WIDELY = 2

#: The share of a kernel's time above which launches of half of its cores are worth a look.
_WEIGHTY = 0.1

#: Slots of L0, and in how many steps what fits in one is cut.
L0_WAYS = ((2, 1), (2, 2), (3, 1), (3, 2))

#: Candidates estimated before the first look at what is left; next are four times as many.
_AT_ONCE = 128

#: Candidates of which it is found how long those take that others have to beat.
_PROMISING = 512

#: What is below bounds but for rounding, times this, is below them.
ALMOST = 1 - 1e-9

#: Instructions on the reference that take as long as one candidate that is not compiled.
_LIKE = 5

#: What a column of ``Work`` may be: one value for all candidates, or one for each.
Column = Floats | IntArray | float | int


class Work(NamedTuple):
    """What the cores do, one entry per candidate: counts, cycles and bytes.

    ``items`` of all cores take ``cores``, a share ``alike`` of which does as much as the busiest;
    of an item ``firsts`` loads, of each ``seconds`` loads of the other operand, of each ``steps``.
    A load takes ``*_start`` cycles and ``*_bytes`` at the rate of its path, and comes anew every
    ``*_every`` items. The L2 lacks an operand in each ``*_period``-th of the first ``*_until``
    items of a core, and ``*_copies`` cores ask for the same at once. A step waits for one of
    ``step_slots``, takes ``a`` and ``b`` cycles to L0 and ``m`` on the cube, after a gap ``a_head``
    and ``m_head`` more; each ``run``-th is what is left of a load, and takes ``rest_l0`` and
    ``rest_m``. ``issue`` are cycles of the scalar pipe per step, and ``ahead`` is how many steps it
    runs ahead of the cube.
    The ``drain`` holds the scalar pipe back for ``stall`` cycles, as its moves fill their queue;
    the next can follow after ``pace`` cycles, and its slot of L0C is free as long before its end
    as it takes longer than that.
    The next tile may begin ``lag`` cycles after the ``drain`` begins, -1: when it has ended.
    """

    cores: Column
    items: Column
    alike: Column
    firsts: Column
    seconds: Column
    steps: Column
    first_start: Column
    first_bytes: Column
    second_start: Column
    second_bytes: Column
    first_every: Column
    second_every: Column
    first_slots: Column
    second_slots: Column
    first_period: Column
    first_until: Column
    first_copies: Column
    second_period: Column
    second_until: Column
    second_copies: Column
    a: Column
    b: Column
    m: Column
    run: Column
    step_slots: Column
    rest_l0: Column
    rest_m: Column
    a_head: Column
    m_head: Column
    issue: Column
    ahead: Column
    drain: Column
    pace: Column
    stall: Column
    drain_slots: Column
    lag: Column
    #: Bytes that one core can load per cycle, and that all together can, requests included.
    rate: Column
    shared: Column
    #: The same of what the L2 lacks: bytes per cycle of main memory.
    main: Column
    #: Cycles that the whole takes at least: of bytes from main memory, of stores.
    least: Column
    #: Cycles beside the cores' own: launch, and kernels on account of the tiling.
    beside: Column


class Leg(NamedTuple):
    """Items of one kind that the busiest core goes through, where items are unlike each other.

    Columns of ``Work`` as they are for these: ``items`` of the core, ``l0`` cycles of both loads to
    L0. The scalar pipe, first loads and drains are those of all.
    """

    items: Floats
    seconds: Floats
    second_start: Floats
    second_bytes: Floats
    steps: Floats
    run: Floats
    l0: Floats
    m: Floats
    rest_l0: Floats
    rest_m: Floats


def no_legs(count: int, kinds: int = 0) -> Floats:
    """Those of so many candidates whose items are alike, where others have ``kinds`` of items."""
    return np.zeros((count, kinds, len(Leg._fields)))


def table(work: Work) -> Work:
    """Every column with one float per candidate."""
    columns = np.broadcast_arrays(*work)
    # Copies: of one candidate the broadcast column itself, which is read-only, would go on.
    return Work(*(np.array(column, np.float64) for column in columns))


def chosen(columns: Mapping[str, npt.NDArray[Any]], which: IntArray) -> dict[str, npt.NDArray[Any]]:
    """Some of the candidates whose fields are ``columns``."""
    return {name: column.take(which) for name, column in columns.items()}


def joined(*columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Candidates with the same fields, one list after another."""
    return {name: np.concatenate([some[name] for some in columns]) for name in columns[0]}


def with_l0(
    t: Mapping[str, npt.NDArray[Any]],
    depths: Sequence[tuple[IntArray, npt.NDArray[np.bool_]]],
    sums: IntArray,
    device: Device,
) -> dict[str, npt.NDArray[Any]]:
    """Candidates with the choices that L0 leaves: depths of a step, and how the next tile begins.

    ``depths`` are for each of ``L0_WAYS`` the depth and whether there is room; ``sums`` the bytes
    of a tile in L0C.
    """
    size, unit_flag = device.memory("L0C").size_bytes, costs.unit_flag_lag(device) >= 0
    which, steps, ways = [], [], []
    for slots, flag in ((2, False), (1, unit_flag)):
        for (l0_slots, _), (k, room) in zip(L0_WAYS, depths, strict=True):
            fits = room & (slots * sums <= size)
            if not flag and slots == 1:  # where two fit there is no reason for one
                fits &= 2 * sums > size
            which.append(np.flatnonzero(fits))
            steps.append(k[which[-1]])
            ways.append((slots, flag, l0_slots))
    found = chosen(t, np.concatenate(which)) | {"k": np.concatenate(steps)}
    counts = [len(some) for some in which]
    slot, flags, l0_slots = np.repeat(np.array(ways, np.int64), counts, axis=0).T
    return found | {"l0c_slots": slot, "unit_flag": flags, "l0_slots": l0_slots}


def uneven(mean: Floats, most: Floats, size: Floats, steps: Floats) -> tuple[Floats, Floats]:
    """Sizes of so many steps through loads of ``mean`` elements: of all but the last, and of that.

    Steps are of a ``size``, and the last is what is left. The largest loads, of ``most`` elements,
    say how much: others are taken to be cut in the same ratio.
    """
    left = most - (steps - 1) * size
    left = np.where((left > 0) & (left <= size), left, most / steps) * mean / most
    return (mean - np.where(steps > 1, left, 0)) / np.maximum(1, steps - 1), left


def full(
    loads: Floats, of_plane: Floats, sizes: tuple[Floats, Floats], step: IntArray
) -> tuple[Floats, Floats]:
    """As how many full loads so many count, by their steps of a size, and elements of each.

    ``sizes`` are the mean and the most of the loads ``of_plane``, of which the last is what is
    left: little in some cuts.
    """
    mean, most = sizes
    planes = np.floor(loads / of_plane)
    total = loads * most - planes * of_plane * (most - mean)
    last = np.clip(most - of_plane * (most - mean), 1, most)
    count = loads - planes * (1 - np.ceil(last / step) / np.ceil(most / step))
    count = np.maximum(1, np.rint(count))
    return count, total / count


class Loads(NamedTuple):
    """What comes to L1: the columns of ``Work`` that say how long the busiest core loads."""

    cores: Column
    items: Column
    firsts: Column
    seconds: Column
    first_start: Column
    first_bytes: Column
    second_start: Column
    second_bytes: Column
    first_every: Column
    second_every: Column
    rate: Column

    def moved(self) -> tuple[Floats, Floats]:
        """Cycles in which the busiest core loads, and how many bytes."""
        w: Any = self
        items = np.ceil(w.items / w.cores)
        firsts = w.firsts * np.ceil(items / w.first_every)
        seconds = w.firsts * w.seconds * np.ceil(items / w.second_every)
        size = firsts * w.first_bytes + seconds * w.second_bytes
        return firsts * w.first_start + seconds * w.second_start + size / w.rate, size


def bounds(work: Work) -> Floats:
    """Cycles of each candidate by its busiest pipe or memory alone."""
    w: Any = work
    items = np.ceil(w.items / w.cores)
    steps = items * w.firsts * w.seconds * w.steps
    rests = steps / w.run
    l0 = (steps - rests) * (w.a + w.b) + rests * w.rest_l0
    cube = (steps - rests) * w.m + rests * w.rest_m
    loads, size = Loads(*(getattr(w, name) for name in Loads._fields)).moved()
    pipes = (l0, cube, steps * w.issue, loads, items * w.pace)
    most: Floats = reduce(np.maximum, (*pipes, size * w.cores / w.shared, w.least)) + w.beside
    return most


def times(
    work: Work,
    few: int,
    *known: float,
    legs: Floats | None = None,
    core: ModuleType | None = None,
) -> Floats:
    """Estimated cycles of the ``few`` candidates that take least; of others they may be infinite.

    Candidates are estimated in the order of their bounds, until those left cannot win. Times that
    are ``known`` count among the few. Of each candidate ``legs`` are any number of kinds of items,
    each a ``Leg`` of numbers. ``core`` is a form of ``pipeline_core``, by default the one that
    takes less time.
    """
    least, best = bounds(work), _least(few, known)
    found, every_one = np.full(len(least), np.inf), np.arange(len(least))
    legs = no_legs(len(least)) if legs is None else legs
    _estimate((work, legs), every_one, least, best, found, core)
    return found


def _least(few: int, known: Sequence[float]) -> Floats:
    """The few least times of those known, ascending; infinite where fewer are known."""
    return np.sort([*known, *[np.inf] * few])[:few]


def _estimate(
    work: tuple[Work, Floats],
    which: IntArray,
    least: Floats,
    best: Floats,
    found: Floats,
    core: ModuleType | None = None,
) -> None:
    """Estimate ``which`` candidates as ``times`` does, whose bounds are ``least``; with their legs.

    The times are written to ``found``, and those that are among the ``best`` to these.
    """
    which = which[least[which] <= best[-1]]
    which = which[np.argsort(least[which], kind="stable")]
    first, count = 0, _AT_ONCE
    while first < len(which) and least[which[first]] <= best[-1]:
        some = which[first : first + count]
        form = core or _core(len(some))
        form.estimate(*work, some, least, best, found, np.empty(form.SCRATCH))
        first, count = first + count, 4 * count


def _core(candidates: int) -> ModuleType:
    """The form of ``pipeline_core`` for so many candidates: compiled if that takes less time."""
    if standby.allows(candidates * _LIKE):
        return plain_core()
    from npusim.kernels.tilings import pipeline_core  # noqa: PLC0415 - it may load Numba

    return pipeline_core


@cache
def plain_core() -> ModuleType:
    """The module ``pipeline_core`` as it stands, which nobody compiles: the same estimates."""
    with uncompiled():
        spec = find_spec("npusim.kernels.tilings.pipeline_core")
        assert spec is not None
        assert spec.loader is not None
        core = module_from_spec(spec)
        spec.loader.exec_module(core)
    return core


class Ranked(Protocol):
    """Candidates, and what turns them into work and one back into a tiling."""

    @property
    def device(self) -> Device: ...

    @property
    def cores(self) -> int: ...

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]: ...

    def tiling(self, i: int, cores: int) -> Any: ...

    def work(self, which: IntArray, cores: IntArray) -> Work:
        """What so many cores do under some of the candidates."""
        ...

    def legs(self, which: IntArray, cores: IntArray) -> Floats:
        """The legs of some of the candidates on so many cores: see ``times``."""
        ...

    def least(self, cores: IntArray) -> Floats:
        """Cycles of all candidates on so many cores, by their loads: not above ``bounds``."""
        ...


def fastest(
    space: Ranked, which: IntArray, cores: IntArray, few: int, *known: float
) -> list[tuple[float, int]]:
    """(estimate, candidate) of the ``few`` of ``which`` that take least, best first.

    ``cores`` are those of all candidates. Times that are ``known`` count among the few. They are
    estimated as ``times`` does it, but what the cores do is worked out for those alone whose bounds
    may come in time, by what ``space`` knows of them at once.
    """
    least, best = space.least(cores), _least(few, known)
    found = np.full(len(least), np.inf)
    waiting, ready = np.zeros((2, len(least)), np.bool_)
    waiting[which] = True
    columns = np.empty((len(Work._fields), len(least)))
    legs = np.zeros((len(least), *space.legs(which[:0], cores[:0]).shape[1:]))

    def work_out(some: IntArray) -> None:
        made, legs[some] = space.work(some, cores[some]), space.legs(some, cores[some])
        least[some], ready[some] = bounds(made), True
        for column, values in zip(columns, made, strict=True):
            column[some] = values

    most = best[-1]
    if np.isinf(most) and len(which) > _PROMISING:
        some = which[np.argpartition(least[which], _PROMISING)[:_PROMISING]]
        work_out(some)
        most = np.sort(least[some])[:few][-1]
    while len(which := np.flatnonzero(waiting & (least <= most))):
        if len(more := which[~ready[which]]):
            work_out(more)
        which = which[least[which] <= most]  # of bounds so far none is missing
        _estimate((Work(*columns), legs), which, least, best, found)
        waiting[which] = False
        most = best[-1]
    finite = np.flatnonzero(np.isfinite(found))
    leading = finite[np.argsort(found[finite], kind="stable")[:few]]
    return [*zip(found[leading].tolist(), leading.tolist(), strict=True)]


def leading(space: Ranked, few: int, *known: float) -> list[tuple[float, Any]]:
    """(estimated cycles, tiling) of about ``few`` candidates with the least estimate, best first.

    Those that lead on as many cores as they have tiles for are also tried on fewer, which start
    sooner and leave more of the shared memories to each. Where launches weigh much, those of a
    device with half of the cores are among them. Times that are ``known`` count among the few.
    """
    items, cores = space.columns["items"], space.columns["cores"]
    some = few if known else _WIDELY * few
    first = fastest(space, np.arange(len(cores)), cores, some, *known)
    which = np.array([i for _, i in first])
    if not len(which):
        return []
    found = {(i, n): time for (time, i), n in zip(first, cores[which].tolist(), strict=True)}
    items = items[which]
    rounds = -(-items // cores[which])
    fewer = [-(-items // (rounds * more)) for more in (2, 3, 4)]
    fewer.append(-(-items // (rounds + 1)))
    pairs = zip(np.tile(which, len(fewer)).tolist(), np.concatenate(fewer).tolist(), strict=True)
    new = [pair for pair in dict.fromkeys(pairs) if pair not in found]
    if new:
        of, on = np.array(new).T
        work, legs = table(space.work(of, on)), space.legs(of, on)
        more = times(work, few, *found.values(), *known, legs=legs)
        found |= zip(new, more.tolist(), strict=True)
    best = sorted(found.items(), key=lambda one: one[1])[:few]
    tilings = {space.tiling(*one): time for one, time in best if time < np.inf}
    for time, tiling in _on_half(space, few, *tilings.values(), *known):
        tilings.setdefault(tiling, time)
    return sorted(((time, one) for one, time in tilings.items()), key=lambda pair: pair[0])[:few]


def _on_half(space: Ranked, few: int, *known: float) -> list[tuple[float, Any]]:
    """Those that lead on half of the cores, where launches of the others weigh as much.

    A tiling for which few cores are enough is not among those that lead on all of them.
    """
    saved = space.device.launch.core_cycles * space.cores / 2
    if space.cores < 2 or saved < _WEIGHTY * min(known):
        return []
    half = replace(cast(Any, space), cores=space.cores // 2)
    found = leading(half, few, *known)
    return [(time, replace(one, cores=one.cores or half.cores)) for time, one in found]


def every(space: Ranked) -> Iterator[Any]:
    """The tilings of all candidates, the least bound first."""
    cores = space.columns["cores"]
    least = bounds(space.work(np.arange(len(cores)), cores))
    for i in np.argsort(least, kind="stable").tolist():
        yield space.tiling(i, int(cores[i]))
