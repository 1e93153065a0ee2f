"""The time of one core of a product on the cube, compiled: see ``tilings.pipeline``.

It is a module of its own so that Numba, where it is needed, is loaded when a tiling is chosen, and
not before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.machine.timing.fast.jit import compiled, entry

#: Steps of a core that are followed one by one; more are taken to go on at the same pace.
MOST_STEPS = 1500

#: After so many loads half of the cores that began together load at any time, where main memory
#: makes them wait and where the L2 does; fitted to simulated kernels.
DRIFT, DRIFT_OF_L2 = 400, 50

#: Of candidates for which memories take equally long one is better by so much of a core's own time.
_OWN = 1e-4

#: How often a core is followed at most, each time at the rates that others left the time before.
_TURNS = 3


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
    """One candidate: alone at its path's rate, then at the rates that others leave.

    Of what the L2 lacks cores take their shares of main memory while all of them lack it, as they
    begin together. More than ``limit`` may be less than it takes.
    """
    cores, rate, shared, main = w.cores[i], w.rate[i], w.shared[i], w.main[i]
    held, fresh, total, most = rate, rate, 0.0, limit - w.beside[i]
    loads = w.firsts[i] * np.ceil(np.ceil(w.items[i] / cores) / w.first_every[i])
    together = DRIFT / (DRIFT + loads)
    sooner = DRIFT_OF_L2 / (DRIFT_OF_L2 + loads)
    for _ in range(_TURNS):
        total = _core(w, i, held, fresh, most, state)
        if total > most:
            break
        of_l2 = min(held, shared / _at_once(cores, state[BUSY] / total, sooner))
        lacks = state[LACKS] / max(1.0, state[SPAN])
        of_main = min(fresh, main / _at_once(cores, lacks, together))
        if of_l2 >= held * 0.98 and of_main >= fresh * 0.98:
            break
        held, fresh = of_l2, of_main
    moved = state[MOVED] + w.missed[i] * state[FETCHED]
    least = max(moved / shared, state[FETCHED] / main) * cores
    return float(max(total, least, w.least[i]) + w.beside[i] + _OWN * total)


@compiled
def _at_once(cores: float, part: float, together: float) -> float:
    """How many of the cores load at a time, each of which loads for ``part`` of the time.

    So many of them load ``together`` rather than at any time, as far as they are not busy loading.
    """
    return float(max(1.0, cores * (part + (1.0 - part) ** 2 * together)))


#: Places in the state of a core: when its pipes are free and its operands there, bytes it loaded,
#: steps and loads so far; cycles in which it loads at all and what the L2 lacks, those of items for
#: which this lacks anything, and bytes from main memory on its account; then when slots are free
#: and the latest products began.
SCALAR, LOAD, INTO, CUBE, OUT, FIRST, SECOND, MOVED, TURN, FIRSTS, SECONDS = range(11)
BUSY, LACKS, SPAN, FETCHED = range(11, 15)
_L0, _FIRST_FREE, _SECOND_FREE, _C_FREE, _BEGUN, SCRATCH = 15, 19, 27, 35, 43, 139


@compiled
def _core(w: Any, i: int, held: float, fresh: float, most: float, s: Any) -> float:
    """Cycles of the busiest core, and in its state what it loads; no further than ``most``.

    What the L2 has ``held`` comes at another rate than what is ``fresh``. Steps after the first
    ``MOST_STEPS`` go on at their pace.
    """
    s.fill(0.0)
    half = half_moved = half_fetched = 0.0
    half_items, items = 0, np.ceil(w.items[i] / w.cores[i])
    for item in range(int(items)):
        begun = s[LOAD]
        if _item(w, i, item, held, fresh, s):
            s[SPAN] += s[LOAD] - begun
        _drain(w, i, s, _C_FREE + item % int(w.drain_slots[i]))
        if s[OUT] > most:
            break
        if s[TURN] >= MOST_STEPS // 2 and not half_items:
            half, half_items = max(s[OUT], s[CUBE]), item + 1
            half_moved, half_fetched = s[MOVED], s[FETCHED]
        elif s[TURN] >= MOST_STEPS:  # the rest goes on at the pace of the second half
            part = (items - item - 1) / (item + 1 - half_items)
            now = max(s[OUT], s[CUBE])
            more = (now - half) * part
            s[MOVED] += (s[MOVED] - half_moved) * part
            s[FETCHED] += (s[FETCHED] - half_fetched) * part
            for place in range(BUSY, SPAN + 1):
                s[place] *= (now + more) / now
            s[OUT] += more
            s[CUBE] += more
            break
    return float(max(s[OUT], s[CUBE]))


@compiled
def _item(w: Any, i: int, item: int, held: float, fresh: float, s: Any) -> bool:
    """The loads and steps of an ``item``; whether the L2 lacks any of its operands."""
    every = int(w.second_every[i])
    new = item % int(w.first_every[i]) == 0
    # Some cores go on to other second operands half-way through a run.
    again = item == 0 or (item + every // 2) % every == 0
    # As many cores ask for the same, or 0 where the L2 has it.
    first = second = 0.0
    if item < w.first_until[i] and item % int(w.first_period[i]) == 0:
        first = w.first_copies[i]
    if item < w.second_until[i] and item % int(w.second_period[i]) == 0:
        second = w.second_copies[i]
    rate = _rate(first, w.first_alone[i], w.missed[i], held, fresh)
    other = _rate(second, w.second_alone[i], w.missed[i], held, fresh)
    start = s[_C_FREE + item % int(w.drain_slots[i])]
    loaded = s[FIRSTS] if new else s[FIRSTS] - w.firsts[i]
    for turn in range(int(w.firsts[i])):
        free = _FIRST_FREE + int(loaded + turn) % int(w.first_slots[i])
        if new:
            s[FIRSTS] += 1
            begin = w.first_start[i] - _meanwhile(
                w.first_beside[i], w.first_bytes[i], rate, w.rate[i]
            )
            _load(s, FIRST, free, begin, w.first_bytes[i], rate, first)
        start = _seconds(w, i, other, s, start, again, second)
        s[free] = s[INTO]
    return bool(first + second > 0)


@compiled
def _meanwhile(beside: float, size: float, rate: float, most: float) -> float:
    """Cycles of those ``beside`` in which bytes come, as they take longer than at ``most``."""
    return min(beside, size / rate - size / most)


@compiled
def _rate(copies: float, alone: float, missed: float, held: float, fresh: float) -> float:
    """The rate of a load of which the L2 lacks so many cores' ``copies``, 0 if it has it.

    Whoever asks for the same waits for the one core that fetches it.
    """
    if copies == 0:
        return held
    return float(min(held / (1 + missed / copies), alone, fresh * copies))


@compiled
def _load(
    s: Any, to: int, free: int, start: float, size: float, rate: float, copies: float
) -> None:
    """A load to L1; of what the L2 lacks so many cores take ``copies``."""
    s[LOAD] = s[to] = max(s[LOAD], s[SCALAR], s[free]) + start + size / rate
    s[MOVED] += size
    s[BUSY] += size / rate
    if copies > 0:
        s[LACKS] += size / rate
        s[FETCHED] += size / copies


@compiled
def _seconds(w: Any, i: int, rate: float, s: Any, start: float, load: bool, copies: float) -> float:
    """The loads of the second operand for one of the first, with their steps."""
    for _ in range(int(w.seconds[i])):
        if load:
            s[SECONDS] += 1
            free = _SECOND_FREE + int(s[SECONDS] - 1) % int(w.second_slots[i])
            begin = w.second_start[i] - _meanwhile(
                w.second_beside[i], w.second_bytes[i], rate, w.rate[i]
            )
            _load(s, SECOND, free, begin, w.second_bytes[i], rate, copies)
        for step in range(1, int(w.steps[i]) + 1):
            if step % int(w.run[i]) > 0:
                _step(w, i, s, start, w.a[i] + w.b[i], w.m[i])
            else:
                _step(w, i, s, start, w.rest_l0[i], w.rest_m[i])
            start = 0.0
        s[_SECOND_FREE + int(s[SECONDS] - 1) % int(w.second_slots[i])] = s[INTO]
    return start


@compiled
def _step(w: Any, i: int, s: Any, start: float, into: float, product: float) -> None:
    """Both loads to L0 and a product of so many cycles, which waits for ``start`` too."""
    turn, ahead = int(s[TURN]), int(w.ahead[i])
    s[SCALAR] += w.issue[i]
    if turn >= ahead:  # the scalar pipe stops when queues are full
        s[SCALAR] = max(s[SCALAR], s[_BEGUN + (turn - ahead) % (SCRATCH - _BEGUN)])
    slot = _L0 + turn % int(w.step_slots[i])
    ready = max(s[SCALAR], s[FIRST], s[SECOND], s[slot])
    if ready > s[INTO]:
        s[INTO] = ready + w.a_head[i]
    s[INTO] += into
    ready = max(s[INTO], start)
    if ready > s[CUBE]:
        s[CUBE] = ready + w.m_head[i]
    s[_BEGUN + turn % (SCRATCH - _BEGUN)] = s[CUBE]
    s[CUBE] += product
    if start > 0 and w.lag[i] >= 0:  # it follows the drain before piece by piece
        s[CUBE] = max(s[CUBE], s[OUT])
    s[slot] = s[CUBE]
    s[TURN] += 1


@compiled
def _drain(w: Any, i: int, s: Any, free: int) -> None:
    """The way out of a tile, and when its slot of L0C is ``free`` again."""
    if w.stall[i] > 0:
        s[SCALAR] = max(s[SCALAR], max(s[OUT], s[CUBE]) + w.stall[i])
    if w.lag[i] >= 0:  # the drain follows the last product piece by piece
        begin = max(s[OUT], s[CUBE] - w.rest_m[i])
        s[free] = begin + w.lag[i]
        s[OUT] = max(begin + w.drain[i], s[CUBE] + w.lag[i])
    else:  # over UB, its second pipe may work on while the first takes the next tile
        s[OUT] += w.pace[i]
        if s[CUBE] + w.drain[i] > s[OUT]:
            s[OUT] = s[CUBE] + w.drain[i] + w.drain_head[i]
        s[free] = s[OUT] - (w.drain[i] - w.pace[i])
