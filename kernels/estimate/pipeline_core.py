"""The time of one core of a product on the cube, compiled: see ``tilings.pipeline``.

It is a module of its own so that Numba, where it is needed, is loaded when a tiling is chosen, and
not before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.machine.timing.fast.jit import compiled, entry

#: Steps of a core that are followed; more are taken to go on at the same pace.
MOST_STEPS = 1500

#: Cycles by which two times that are the same may differ, of rounding.
_ROUNDING = 1e-6

#: Items after which what comes is like it was, at most; longer patterns are followed item by item.
_LONGEST_PERIOD = 16

#: An item that no core comes to.
_NEVER = 1 << 40

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
    held, fresh, total, left = rate, rate, 0.0, limit - w.beside[i]
    # Where a memory alone takes nearly as long, little of a core's own time is too much (a cycle
    # for what is rounded).
    most = min(left, (left - w.least[i]) / _OWN + 1.0)
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
_L0, _FIRST_FREE, _SECOND_FREE, _C_FREE, _BEGUN, _SIZE = 15, 19, 27, 35, 43, 139

#: Latest products whose beginning is known: longer queues count as queues of so many.
_RING = _SIZE - _BEGUN

#: Behind it is the state that was noted, or what a period adds to it; then where items began to be
#: alike and to which one they are, which one was noted, and whether the core only repeats itself.
_NOTED_STATE = _SIZE
_CHANGED, _UNTIL, _NOTED, _STEADY, SCRATCH = range(2 * _SIZE, 2 * _SIZE + 5)


@compiled
def _core(w: Any, i: int, held: float, fresh: float, most: float, s: Any) -> float:
    """Cycles of the busiest core, and in its state what it loads; no further than ``most``.

    What the L2 has ``held`` comes at another rate than what is ``fresh``. Items that only repeat
    what the core does already are skipped. Steps after the first ``MOST_STEPS`` go on at their
    pace.
    """
    s.fill(0.0)
    half = half_moved = half_fetched = 0.0
    items = int(np.ceil(w.items[i] / w.cores[i]))
    steps = w.firsts[i] * w.seconds[i] * w.steps[i]
    half_items = max(1, int(np.ceil(MOST_STEPS // 2 / steps)))
    most_items = max(half_items + 1, int(np.ceil(MOST_STEPS / steps)))
    cube, into, out, load, saved = _least_of_item(w, i, held)
    period = _period(w, i)
    item = 0
    while item < items:
        begun = s[LOAD]
        if _item(w, i, item, held, fresh, s):
            s[SPAN] += s[LOAD] - begun
        _drain(w, i, s, _C_FREE + item % int(w.drain_slots[i]))
        item += 1
        if period > 0:
            stop = half_items if item <= half_items else most_items
            item = _repeated(w, i, item, min(stop, items), period, s)
        left = items - item
        at_least = max(
            s[CUBE] + left * cube,
            s[INTO] + left * into,
            s[OUT] + left * out,
            s[LOAD] + left * load - saved,
        )
        if at_least > most:
            return float(at_least)
        if item == half_items:
            half = max(s[OUT], s[CUBE])
            half_moved, half_fetched = s[MOVED], s[FETCHED]
        elif item == most_items:  # the rest goes on at the pace of the second half
            part = left / (item - half_items)
            now = max(s[OUT], s[CUBE])
            more = max((now - half) * part, at_least - now)
            s[MOVED] += (s[MOVED] - half_moved) * part
            s[FETCHED] += (s[FETCHED] - half_fetched) * part
            for place in range(BUSY, SPAN + 1):
                s[place] *= (now + more) / now
            s[OUT] += more
            s[CUBE] += more
            break
    return float(max(s[OUT], s[CUBE]))


@compiled
def _least_of_item(w: Any, i: int, held: float) -> tuple[float, float, float, float, float]:
    """The least cycles of an item for the cube, loads to L0, drains and loads to L1.

    A load to L1 may serve several items: in that of some items it saves at most the last figure.
    """
    loads = w.firsts[i] * w.seconds[i]
    rests = w.steps[i] // w.run[i]
    whole = w.steps[i] - rests
    cube = loads * (whole * w.m[i] + rests * w.rest_m[i])
    into = loads * (whole * (w.a[i] + w.b[i]) + rests * w.rest_l0[i])
    out = w.drain[i] if w.lag[i] >= 0 else w.pace[i]
    first = w.firsts[i] * _cycles(
        w.first_start[i], w.first_beside[i], w.first_bytes[i], held, w.rate[i]
    )
    second = loads * _cycles(
        w.second_start[i], w.second_beside[i], w.second_bytes[i], held, w.rate[i]
    )
    load = first / w.first_every[i] + second / w.second_every[i]
    return cube, into, out, load, first + second - load


@compiled
def _repeated(w: Any, i: int, item: int, stop: int, period: int, s: Any) -> int:
    """The item to go on with after ``item`` are done: at most ``stop``, where it is steady.

    A core is compared with itself a ``period`` before, at ever longer intervals: what it does at
    first is like nothing else.
    """
    if item > s[_UNTIL]:  # the items from here on are others
        s[_CHANGED], s[_UNTIL], s[_NOTED], s[_STEADY] = item, _until(w, i, item), 0.0, 0.0
    age, noted = item - int(s[_CHANGED]), int(s[_NOTED])
    if noted > 0 and item == noted + period:
        s[_STEADY] = 1.0 if _is_steady(w, i, s) else 0.0
    elif s[_STEADY] == 0.0 and age & (age - 1) == 0 and item > noted + period:
        s[_NOTED] = item
        for place in range(_SIZE):
            s[_NOTED_STATE + place] = s[place]
    if s[_STEADY] == 0.0:
        return item
    return item + period * _repeat(s, max(0, min(stop, int(s[_UNTIL])) - item) // period)


@compiled
def _period(w: Any, i: int) -> int:
    """After how many items what they load and the slots they drain to are as before.

    0 where that are too many. What happens seldom is left to ``_until``.
    """
    period = int(w.drain_slots[i])
    for often in (
        int(w.first_every[i]),
        int(w.second_every[i]),
        int(w.first_period[i]) if w.first_copies[i] > 0 else 1,
        int(w.second_period[i]) if w.second_copies[i] > 0 else 1,
    ):
        if often <= _LONGEST_PERIOD:
            period *= often // _common(period, often)
    return period if period <= _LONGEST_PERIOD else 0


@compiled
def _common(a: int, b: int) -> int:
    """The greatest common divisor."""
    while b > 0:
        a, b = b, a % b
    return a


@compiled
def _until(w: Any, i: int, item: int) -> int:
    """The first item from ``item`` on that is no repetition of those a period before it."""
    until = _NEVER
    every = int(w.first_every[i])
    if every > _LONGEST_PERIOD:
        until = min(until, _next(item, every))
    every = int(w.second_every[i])
    if every > _LONGEST_PERIOD:
        until = min(until, _next(item + every // 2, every) - every // 2)
    if w.first_copies[i] > 0 and item < w.first_until[i]:
        until = min(until, _lacking(item, w.first_until[i], int(w.first_period[i])))
    if w.second_copies[i] > 0 and item < w.second_until[i]:
        until = min(until, _lacking(item, w.second_until[i], int(w.second_period[i])))
    return until


@compiled
def _lacking(item: int, until: float, period: int) -> int:
    """The next item that ends what the L2 lacks, or of few that it lacks."""
    end = int(np.ceil(min(until, float(_NEVER))))
    return min(end, _next(item, period)) if period > _LONGEST_PERIOD else end


@compiled
def _next(number: int, every: int) -> int:
    """The multiple of ``every`` that is no less than ``number``."""
    return (number + every - 1) // every * every


@compiled
def _is_steady(w: Any, i: int, s: Any) -> bool:
    """Whether a core is as it was noted, but for one difference of all times.

    Then it repeats itself. Where it is, what was noted becomes the difference.
    """
    later = s[CUBE] - s[_NOTED_STATE + CUBE]
    turn, turn_noted = int(s[TURN]), int(s[_NOTED_STATE + TURN])
    ahead = min(int(w.ahead[i]), _RING)
    same = turn_noted >= ahead
    for place in (SCALAR, LOAD, INTO, OUT, FIRST, SECOND):
        same = same and _is_same(s, place, place, later)
    for start, slots, count in (
        (_L0, int(w.step_slots[i]), TURN),
        (_FIRST_FREE, int(w.first_slots[i]), FIRSTS),
        (_SECOND_FREE, int(w.second_slots[i]), SECONDS),
    ):
        now, noted = int(s[count]), int(s[_NOTED_STATE + count])
        for slot in range(slots):
            same = same and _is_same(
                s, start + (now + slot) % slots, start + (noted + slot) % slots, later
            )
    for slot in range(int(w.drain_slots[i])):  # a period is a multiple of them
        same = same and _is_same(s, _C_FREE + slot, _C_FREE + slot, later)
    for back in range(1, ahead + 1):
        same = same and _is_same(
            s, _BEGUN + (turn - back) % _RING, _BEGUN + (turn_noted - back) % _RING, later
        )
    if same:
        for place in range(FETCHED + 1):
            s[_NOTED_STATE + place] = s[place] - s[_NOTED_STATE + place]
    return same


@compiled
def _is_same(s: Any, place: int, noted: int, later: float) -> bool:
    """Whether a time is so much ``later``, or is of old and nothing waits for it any more."""
    now, before = s[place], s[_NOTED_STATE + noted]
    return bool(abs(now - before - later) <= _ROUNDING or (now == before and now <= s[SCALAR]))


@compiled
def _repeat(s: Any, times: int) -> int:
    """Let a steady core do so many periods more, and return how many.

    Its slots stay in the turn they are in.
    """
    for place in (SCALAR, LOAD, INTO, CUBE, OUT, FIRST, SECOND, MOVED, BUSY, LACKS, SPAN, FETCHED):
        s[place] += times * s[_NOTED_STATE + place]
    for place in range(_L0, _SIZE):
        s[place] += times * s[_NOTED_STATE + CUBE]
    return times


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
def _cycles(start: float, beside: float, size: float, rate: float, most: float) -> float:
    """Cycles of a load at a rate, of which so many of its start are ``beside``."""
    return start - _meanwhile(beside, size, rate, most) + size / rate


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
    """The loads of the second operand for one of the first, with their steps.

    A step is both loads to L0 and a product; the first of all waits for ``start`` too. It is most
    of the work of an estimate, so that what it asks for stands in variables meanwhile.
    """
    steps, run = int(w.steps[i]), int(w.run[i])
    into, product = w.a[i] + w.b[i], w.m[i]
    rest_into, rest_product = w.rest_l0[i], w.rest_m[i]
    into_head, product_head = w.a_head[i], w.m_head[i]
    issue, ahead, slots = w.issue[i], min(int(w.ahead[i]), _RING), int(w.step_slots[i])
    scalar, in_l0, cube, turn = s[SCALAR], s[INTO], s[CUBE], int(s[TURN])
    slot = turn % slots
    for _ in range(int(w.seconds[i])):
        if load:
            s[SCALAR] = scalar
            s[SECONDS] += 1
            free = _SECOND_FREE + int(s[SECONDS] - 1) % int(w.second_slots[i])
            begin = w.second_start[i] - _meanwhile(
                w.second_beside[i], w.second_bytes[i], rate, w.rate[i]
            )
            _load(s, SECOND, free, begin, w.second_bytes[i], rate, copies)
        in_l1 = max(s[FIRST], s[SECOND])
        left = run
        for _ in range(steps):
            left -= 1
            scalar += issue
            if turn >= ahead:  # the scalar pipe stops when queues are full
                scalar = max(scalar, s[_BEGUN + (turn - ahead) % _RING])
            ready = max(scalar, in_l1, s[_L0 + slot])
            if ready > in_l0:
                in_l0 = ready + into_head
            in_l0 += into if left > 0 else rest_into
            ready = max(in_l0, start)
            if ready > cube:
                cube = ready + product_head
            s[_BEGUN + turn % _RING] = cube
            cube += product if left > 0 else rest_product
            if start > 0 and w.lag[i] >= 0:  # it follows the drain before piece by piece
                cube = max(cube, s[OUT])
            s[_L0 + slot] = cube
            start = 0.0
            turn += 1
            slot = slot + 1 if slot + 1 < slots else 0
            if left == 0:
                left = run
        s[_SECOND_FREE + int(s[SECONDS] - 1) % int(w.second_slots[i])] = in_l0
    s[SCALAR], s[INTO], s[CUBE], s[TURN] = scalar, in_l0, cube, turn
    return start


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
