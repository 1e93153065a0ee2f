"""The time of one core of a product on the cube, compiled: see ``tilings.pipeline``.

It is a module of its own so that Numba, where it is needed, is loaded when a tiling is chosen, and
not before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.timing.fast.jit import compiled, entry

#: Steps of a core that are followed one by one; more are taken to go on at the same pace.
MOST_STEPS = 1500

#: How much cores load at the same time rather than at any time; fitted to simulated kernels.
TOGETHER = 0.35


@entry
def estimate(work: Any, order: Any, least: Any, best: Any, found: Any, scratch: Any) -> None:
    """Write the cycles of candidates of ``work`` (a ``Work`` of tables) to ``found``.

    They are looked at in this ``order``, in which their ``least`` cycles ascend, until those left
    cannot be among the ``best``, which hold the least times so far, ascending. What turns out not
    to be among them is left as it is in ``found``.
    """
    for i in order:
        limit = best[len(best) - 1]
        if least[i] > limit:
            break
        cycles = _time(work, i, limit, scratch)
        if cycles <= limit:
            found[i] = cycles
            _among(best, cycles)


@compiled
def _among(best: Any, cycles: float) -> None:
    """Put ``cycles`` in their place, and drop the longest."""
    place = len(best) - 1
    while place > 0 and best[place - 1] > cycles:
        best[place] = best[place - 1]
        place -= 1
    best[place] = cycles


@compiled
def _time(w: Any, i: int, limit: float, state: Any) -> float:
    """One candidate: alone at its path's rate, then at the rate that others leave.

    More than ``limit`` may be less than it takes.
    """
    cores, rate, shared = w.cores[i], w.rate[i], w.shared[i]
    now, total, most = rate, 0.0, limit - w.beside[i]
    for _ in range(3):
        total = _core(w, i, now, most, state)
        if total > most:
            break
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
_L0, _FIRST_FREE, _SECOND_FREE, _C_FREE, _BEGUN, SCRATCH = 12, 16, 24, 32, 40, 136


@compiled
def _core(w: Any, i: int, rate: float, most: float, s: Any) -> float:
    """Cycles of the busiest core, and in its state the bytes it loads; no further than ``most``."""
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
        if s[OUT] > most:
            break
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
        s[SCALAR] = max(s[SCALAR], s[_BEGUN + (turn - ahead) % (SCRATCH - _BEGUN)])
    ready = max(s[SCALAR], s[FIRST], s[SECOND], s[_L0 + turn % 2])
    if ready > s[INTO]:
        s[INTO] = ready + w.a_head[i]
    s[INTO] += w.a[i] + w.b[i]
    ready = max(s[INTO], start)
    if ready > s[CUBE]:
        s[CUBE] = ready + w.m_head[i]
    s[_BEGUN + turn % (SCRATCH - _BEGUN)] = s[CUBE]
    s[CUBE] += w.m[i]
    if start > 0 and w.lag[i] >= 0:  # it follows the drain before piece by piece
        s[CUBE] = max(s[CUBE], s[OUT])
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
    else:  # over UB, its second pipe may work on while the first takes the next tile
        s[OUT] = max(s[OUT] + w.pace[i], s[CUBE] + w.drain[i])
        s[free] = s[OUT] - (w.drain[i] - w.pace[i])
