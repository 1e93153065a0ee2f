"""The time of one core of a product on the cube, in closed steps: what tilings are ranked by.

A core's *items* are tiles of the result. For each, loads of a first and a second operand come to
L1, steps of them go to L0 and through the cube, and the tile is drained:

    for item:
        for first load:                # MTE2, into one of its slots
            for second load:           # MTE2, into one of its slots
                for step:              # MTE1 twice, then M; two slots of L0
        drain                          # FIX, or V and MTE3; slots of L0C, or the unit flag

Each pipe works in order and waits for data and for free slots, as in the simulator; what is left
out is that loads differ, and who else uses the shared memories at which moment: bandwidth is shared
by as many cores as are loading on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from npusim.device.spec import Device
from npusim.integers import IntArray
from npusim.timing.fast.jit import compiled

Floats = npt.NDArray[np.float64]

#: Steps of a core that are followed one by one; more are taken to go on at the same pace.
MOST_STEPS = 1500

#: How much cores load at the same time rather than at any time; fitted to simulated kernels.
TOGETHER = 0.8

#: So many times the candidates asked for are tried on fewer cores too.
_WIDELY = 8

#: Candidates estimated between two looks at what is left.
_AT_ONCE = 64

#: What a column of ``Work`` may be: one value for all candidates, or one for each.
Column = Floats | IntArray | float | int


class Work(NamedTuple):
    """What the cores do, one entry per candidate: counts, cycles and bytes.

    ``items`` of all cores take ``cores``; of an item ``firsts`` loads, of each ``seconds`` loads of
    the other operand, of each ``steps``. A load takes ``*_start`` cycles and ``*_bytes`` at the
    rate of its path, and comes anew every ``*_every`` items. A step takes ``a`` and ``b`` cycles to
    L0 and ``m`` on the cube, after a gap ``a_head`` and ``m_head`` more. ``issue`` are cycles of
    the scalar pipe per step, and ``ahead`` is how many steps it runs ahead of the cube.
    The ``drain`` holds the scalar pipe back for ``stall`` cycles, as its moves fill their queue.
    The next tile may begin ``lag`` cycles after the ``drain`` begins, -1: when it has ended.
    """

    cores: Column
    items: Column
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
    a: Column
    b: Column
    m: Column
    a_head: Column
    m_head: Column
    issue: Column
    ahead: Column
    drain: Column
    stall: Column
    drain_slots: Column
    lag: Column
    #: Bytes that one core can load per cycle, and that all together can, requests included.
    rate: Column
    shared: Column
    #: Cycles that the whole takes at least: of bytes from main memory, of stores.
    least: Column
    #: Cycles beside the cores' own: launch, and kernels on account of the tiling.
    beside: Column


def table(work: Work) -> Work:
    """Every column with one float per candidate."""
    columns = np.broadcast_arrays(*work)
    return Work(*(np.ascontiguousarray(column, np.float64) for column in columns))


def some(work: Work, which: npt.NDArray[Any]) -> Work:
    """A few of the candidates."""
    return Work(*(column[which] for column in work))  # type: ignore[index]


def bounds(work: Work) -> Floats:
    """Cycles of each candidate by its busiest pipe or memory alone."""
    w: Any = work
    items = np.ceil(w.items / w.cores)
    firsts = w.firsts * np.ceil(items / w.first_every)
    seconds = w.firsts * w.seconds * np.ceil(items / w.second_every)
    steps = items * w.firsts * w.seconds * w.steps
    size = firsts * w.first_bytes + seconds * w.second_bytes
    loads = firsts * w.first_start + seconds * w.second_start + size / w.rate
    pipes = (steps * (w.a + w.b), steps * w.m, steps * w.issue, loads, items * w.drain)
    most: Floats = np.max([*pipes, size * w.cores / w.shared, w.least], axis=0) + w.beside
    return most


def times(work: Work) -> Floats:
    """Estimated cycles of each candidate."""
    found = np.empty(len(np.asarray(work.items)))
    _times(work, found, np.empty(_SCRATCH))
    return found


@compiled
def _times(work: Any, found: Any, scratch: Any) -> None:
    for i in range(len(found)):
        found[i] = _time(work, i, scratch)


@compiled
def _time(w: Any, i: int, state: Any) -> float:
    """One candidate: alone at its path's rate, then at the rate that others leave."""
    cores, rate, shared = w.cores[i], w.rate[i], w.shared[i]
    now, total = rate, 0.0
    for _ in range(3):
        total = _core(w, i, now, state)
        loading = cores * (state[MOVED] / now) / total  # cores that are loading, on average
        loading += (cores - loading) * TOGETHER
        share = min(rate, shared / max(1.0, loading))
        if share >= now * 0.98:
            break
        now = share
    return float(max(total, state[MOVED] * cores / shared, w.least[i]) + w.beside[i])


#: Places in the state of a core: when its pipes are free and its operands there, bytes it loaded,
#: steps and loads so far; then when slots are free and the latest products began.
SCALAR, LOAD, INTO, CUBE, OUT, FIRST, SECOND, MOVED, TURN, FIRSTS, SECONDS = range(11)
_L0, _FIRST_FREE, _SECOND_FREE, _C_FREE, _BEGUN, _SCRATCH = 12, 16, 24, 32, 40, 136


@compiled
def _core(w: Any, i: int, rate: float, s: Any) -> float:
    """Cycles of the busiest core, and in its state the bytes it loads."""
    s[:] = 0.0
    items = int(np.ceil(w.items[i] / w.cores[i]))
    first_time = w.first_start[i] + w.first_bytes[i] / rate
    half = half_moved = 0.0
    half_items = 0
    for item in range(items):
        new = item % int(w.first_every[i]) == 0
        every = int(w.second_every[i])
        again = item == 0 or (item + every // 2) % every == 0
        start = s[_C_FREE + item % int(w.drain_slots[i])]
        for _ in range(int(w.firsts[i])):
            if new:
                free = _FIRST_FREE + int(s[FIRSTS]) % int(w.first_slots[i])
                s[LOAD] = s[FIRST] = max(s[LOAD], s[SCALAR], s[free]) + first_time
                s[MOVED] += w.first_bytes[i]
                s[FIRSTS] += 1
            start = _seconds(w, i, rate, s, start, again)
            s[_FIRST_FREE + int(s[FIRSTS] - 1) % int(w.first_slots[i])] = s[INTO]
        _drain(w, i, s, _C_FREE + item % int(w.drain_slots[i]))
        if s[TURN] >= MOST_STEPS // 2 and not half_items:
            half, half_moved, half_items = max(s[OUT], s[CUBE]), s[MOVED], item + 1
        elif s[TURN] >= MOST_STEPS:  # the rest goes on at the pace of the second half
            part = (items - item - 1) / (item + 1 - half_items)
            s[MOVED] += (s[MOVED] - half_moved) * part
            return float(max(s[OUT], s[CUBE]) * (1 + part) - half * part)
    return float(max(s[OUT], s[CUBE]))


@compiled
def _seconds(w: Any, i: int, rate: float, s: Any, start: float, load: bool) -> float:
    """The loads of the second operand for one of the first, with their steps."""
    second_time = w.second_start[i] + w.second_bytes[i] / rate
    for _ in range(int(w.seconds[i])):
        if load:
            free = _SECOND_FREE + int(s[SECONDS]) % int(w.second_slots[i])
            s[LOAD] = s[SECOND] = max(s[LOAD], s[SCALAR], s[free]) + second_time
            s[MOVED] += w.second_bytes[i]
            s[SECONDS] += 1
        for _ in range(int(w.steps[i])):
            _step(w, i, s, start)
            start = 0.0
        s[_SECOND_FREE + int(s[SECONDS] - 1) % int(w.second_slots[i])] = s[INTO]
    return start


@compiled
def _step(w: Any, i: int, s: Any, start: float) -> None:
    """Both loads to L0 and a product, which waits for ``start`` too."""
    turn, ahead = int(s[TURN]), int(w.ahead[i])
    s[SCALAR] += w.issue[i]
    if turn >= ahead:  # the scalar pipe stops when queues are full
        s[SCALAR] = max(s[SCALAR], s[_BEGUN + (turn - ahead) % (_SCRATCH - _BEGUN)])
    ready = max(s[SCALAR], s[FIRST], s[SECOND], s[_L0 + turn % 2])
    if ready > s[INTO]:
        s[INTO] = ready + w.a_head[i]
    s[INTO] += w.a[i] + w.b[i]
    ready = max(s[INTO], start)
    if ready > s[CUBE]:
        s[CUBE] = ready + w.m_head[i]
    s[_BEGUN + turn % (_SCRATCH - _BEGUN)] = s[CUBE]
    s[CUBE] += w.m[i]
    s[_L0 + turn % 2] = s[CUBE]
    s[TURN] += 1


@compiled
def _drain(w: Any, i: int, s: Any, free: int) -> None:
    """The way out of a tile, and when its slot of L0C is ``free`` again."""
    if w.stall[i] > 0:
        s[SCALAR] = max(s[SCALAR], max(s[OUT], s[CUBE]) + w.stall[i])
    if w.lag[i] >= 0:  # the drain follows the last product piece by piece
        begin = max(s[OUT], s[CUBE] - w.m[i])
        s[free] = begin + w.lag[i]
        s[OUT] = max(begin + w.drain[i], s[CUBE] + w.lag[i])
    else:
        s[OUT] = s[free] = max(s[OUT], s[CUBE]) + w.drain[i]


def fastest(work: Work, few: int) -> list[tuple[float, int]]:
    """(estimate, candidate) of about ``few`` with the least estimate, best first.

    Candidates are estimated in the order of their bounds, until those left cannot win.
    """
    least = bounds(work)
    order = np.argsort(least, kind="stable")
    found = np.full(len(least), np.inf)
    for first in range(0, len(order), _AT_ONCE):
        best = np.partition(found, few - 1)[few - 1] if len(found) > few else np.inf
        if least[order[first]] > best:
            break
        which = order[first : first + _AT_ONCE]
        found[which] = times(some(work, which))
    leading = np.argsort(found, kind="stable")[:few]
    return [(float(found[i]), int(i)) for i in leading if np.isfinite(found[i])]


class Ranked(Protocol):
    """Candidates by the ``work`` they are and what turns one back into a tiling."""

    @property
    def device(self) -> Device: ...

    @property
    def work(self) -> Work: ...

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]: ...

    def tiling(self, i: int, cores: int) -> Any: ...

    def with_cores(self, which: Any, cores: Any) -> Work: ...


def leading(space: Ranked, few: int) -> list[tuple[float, Any]]:
    """(estimated cycles, tiling) of about ``few`` candidates with the least estimate, best first.

    Those that lead on as many cores as they have tiles for are also tried on fewer, which start
    sooner and leave more of the shared memories to each.
    """
    first = fastest(space.work, _WIDELY * few)
    which = np.array([i for _, i in first])
    if not len(which):
        return []
    items, cores = (space.columns[name][which] for name in ("items", "cores"))
    rounds = -(-items // cores)
    fewer = [
        cores,
        *(-(-items // (rounds * more)) for more in (2, 3, 4)),
        -(-items // (rounds + 1)),
    ]
    time = np.stack([times(space.with_cores(which, count)) for count in fewer[1:]])
    time = np.concatenate([[[estimate for estimate, _ in first]], time])
    best = np.argmin(time, axis=0)
    at = np.arange(len(which))
    order = np.argsort(time[best, at], kind="stable")[:few]
    return [
        (float(time[best[i], i]), space.tiling(int(which[i]), int(fewer[best[i]][i])))
        for i in order.tolist()
    ]


def every(space: Ranked) -> Iterator[Any]:
    """The tilings of all candidates, the least bound first."""
    for i in np.argsort(bounds(space.work), kind="stable").tolist():
        yield space.tiling(i, int(space.columns["cores"][i]))
