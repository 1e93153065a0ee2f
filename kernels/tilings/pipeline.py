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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, reduce
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from npusim.base.integers import IntArray
from npusim.device.spec import Device
from npusim.kernels.tilings import costs
from npusim.kernels.tilings.work import Column, Floats, Work
from npusim.timing import standby
from npusim.timing.fast.jit import uncompiled

#: Fields of candidates by name, one entry for each.
Columns = dict[str, npt.NDArray[Any]]

#: So many times the candidates asked for are tried on fewer cores too.
_WIDELY = 2

#: The share of a kernel's time above which launches of half of its cores are worth a look.
_WEIGHTY = 0.1

#: Slots of L0, and in how many steps what fits in one is cut.
L0_WAYS = ((2, 1), (2, 2), (3, 1), (3, 2))

#: Candidates estimated before the first look at what is left; next are four times as many.
_AT_ONCE = 128

#: Instructions on the reference that take as long as one candidate that is not compiled.
_LIKE = 5

#: Cycles of each candidate before the first step of any core, and behind its last product.
Waits = tuple[Column, Column]


def table(work: Work) -> Work:
    """Every column with one float per candidate."""
    columns = np.broadcast_arrays(*work)
    # Copies: of one candidate the broadcast column itself, which is read-only, would go on.
    return Work(*(np.array(column, np.float64) for column in columns))


def as_columns(records: Sequence[Any], kind: type[Any]) -> Columns:
    """Named tuples of a kind as columns, but for a field ``form``, which is a word."""
    columns = zip(*records, strict=True) if records else [()] * len(kind._fields)
    named = zip(kind._fields, columns, strict=True)
    return {name: np.array(column) for name, column in named if name != "form"}


def chosen(columns: Columns, which: IntArray) -> Columns:
    """Some of the candidates whose fields are ``columns``."""
    return {name: column.take(which) for name, column in columns.items()}


def joined(*columns: Columns) -> Columns:
    """Candidates with the same fields, one list after another."""
    return {name: np.concatenate([some[name] for some in columns]) for name in columns[0]}


def with_l0(
    t: Columns,
    depths: Sequence[tuple[IntArray, npt.NDArray[np.bool_]]],
    sums: IntArray,
    device: Device,
) -> Columns:
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


def bounds(work: Work, waits: Waits | None = None) -> Floats:
    """Cycles of each candidate by its busiest pipe or memory alone, without what is beside.

    As the estimate counts them; or, of work that is sure, at least so many: cores then take their
    mean share, and what all of them ``wait`` for comes around it.
    """
    w: Any = work
    items = np.ceil(w.items / w.cores) if waits is None else w.items / w.cores
    before, after = waits or (0, 0)
    steps = items * w.firsts * w.seconds * w.steps
    rests = steps / w.run
    l0 = (steps - rests) * (w.a + w.b) + rests * w.rest_l0
    cube = (steps - rests) * w.m + rests * w.rest_m
    turns = (items / w.first_every, items / w.second_every)
    again, anew = map(np.ceil, turns) if waits is None else turns
    firsts, seconds = w.firsts * again, w.firsts * w.seconds * anew
    size = firsts * w.first_bytes + seconds * w.second_bytes
    loads = firsts * w.first_start + seconds * w.second_start + size / w.rate
    loads = np.maximum(loads, size * w.cores / w.shared) + after
    pipes = (np.maximum(l0, cube) + before + after, steps * w.issue, loads, items * w.pace + before)
    most: Floats = reduce(np.maximum, (*pipes, w.least))
    return most


def times(work: Work, few: int, *known: float, core: ModuleType | None = None) -> Floats:
    """Estimated cycles of the ``few`` candidates that take least; of others they may be infinite.

    Candidates are estimated in the order of their bounds, until those left cannot win. Times that
    are ``known`` count among the few. ``core`` is a form of ``pipeline_core``, by default the one
    that takes less time.
    """
    work = table(work)
    least = np.asarray(bounds(work) + work.beside)
    best = np.sort([*known, *[np.inf] * few])[:few]
    found, which = np.full(len(least), np.inf), np.argsort(least, kind="stable")
    first, count = 0, _AT_ONCE
    while first < len(which) and least[which[first]] <= best[-1]:
        some = which[first : first + count]
        form = core or _core(len(some))
        form.estimate(work, some, least, best, found, np.empty(form.SCRATCH))
        first, count = first + count, 4 * count
    return found


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
    def columns(self) -> Columns: ...

    @property
    def clears(self) -> npt.NDArray[np.bool_]:
        """Of which candidates the result is cleared before."""
        ...

    def tiling(self, i: int, cores: int) -> Any: ...

    def work(self, which: IntArray, cores: IntArray, *, sure: bool = False) -> Work:
        """What so many cores do under some of the candidates, or all of them do at least."""
        ...

    @property
    def waits(self) -> Waits: ...


def leading(space: Ranked, few: int, *known: float) -> list[tuple[float, Any]]:
    """(estimated cycles, tiling) of about ``few`` candidates with the least estimate, best first.

    Those that lead on as many cores as they have tiles for are also tried on fewer, which start
    sooner and leave more of the shared memories to each. Where launches weigh much, those of a
    device with half of the cores are among them. Times that are ``known`` count among the few.
    """
    items, cores = space.columns["items"], space.columns["cores"]
    some = few if known else _WIDELY * few
    first = times(space.work(np.arange(len(cores)), cores), some, *known)
    which = np.argsort(first, kind="stable")[:some]
    which = which[np.isfinite(first[which])]
    if not len(which):
        return []
    pairs = zip(which.tolist(), cores[which].tolist(), strict=True)
    found = dict(zip(pairs, first[which].tolist(), strict=True))
    items = items[which]
    rounds = -(-items // cores[which])
    fewer = [-(-items // (rounds * more)) for more in (2, 3, 4)]
    fewer.append(-(-items // (rounds + 1)))
    pairs = zip(np.tile(which, len(fewer)).tolist(), np.concatenate(fewer).tolist(), strict=True)
    new = [pair for pair in dict.fromkeys(pairs) if pair not in found]
    if new:
        of, on = np.array(new).T
        more = times(space.work(of, on), few, *found.values(), *known)
        found |= zip(new, more.tolist(), strict=True)
    best = sorted(found.items(), key=lambda one: one[1])[:few]
    tilings = {space.tiling(*one): time for one, time in best if time < np.inf}
    # With no more tiles than half of the cores both have the same candidates.
    same = {(time, replace(tiling, cores=0)) for tiling, time in tilings.items()}
    for time, tiling in _on_half(space, few, *tilings.values(), *known):
        if (time, replace(tiling, cores=0)) not in same:
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


def foreseen(space: Ranked) -> tuple[list[float], list[float]]:
    """Estimated cycles of every candidate, and those each takes at least, as of ``every``."""
    cores = space.columns["cores"]
    which = np.arange(len(cores))
    sure = bounds(table(space.work(which, cores, sure=True)), space.waits)
    return times(space.work(which, cores), len(cores)).tolist(), sure.tolist()


def every(space: Ranked) -> Iterator[tuple[Any, int, int, bool]]:
    """The tilings of all candidates, the least bound first.

    With each the cycles that it takes at least, its cores, and whether the result is cleared before
    it; neither that nor launches are among the cycles.
    """
    cores = space.columns["cores"]
    work = table(space.work(np.arange(len(cores)), cores, sure=True))
    least, clears = bounds(work, space.waits), space.clears
    for i in np.argsort(least + work.beside, kind="stable").tolist():
        yield space.tiling(i, int(cores[i])), int(least[i]), int(cores[i]), bool(clears[i])
