"""One core of a candidate followed through its pipes, compiled: a bound that no simulation beats.

What a core does is a sequence of loads, products and drains. Each of them waits for the one before
on its pipe, for what it reads, and for a free slot. Here are the same waits of fewer or of the same
instructions, none of which takes longer than in the program, with all memories for itself: nothing
can end later than there. An instruction that is left out frees its slot sooner; so the sizes may be
the least of all tiles.
"""

from __future__ import annotations

from typing import Any

from npusim.machine.timing.fast.jit import compiled, entry

#: Steps of a core that are followed; what comes behind them is left out.
MOST_STEPS = 4000

#: Places in the state of a core: when its pipes are free, when the last ``a`` was read and the last
#: product began, when operands are there; loads and steps so far; under the unit flag, when the
#: next tile may begin and end its first product. Then what holds for a tile.
LOAD, INTO, CUBE, OUT, A_READ, BEGUN, X_READY, W_READY = range(8)
XS, WS, TURN, FOLLOWS, ENDS = range(8, 13)
ROW, COLUMN, NEW_X, NEW_W, ALONE, FEW, WIDE, FIRST, C_FREE = range(13, 22)
BEGIN, COUNT = range(22, 24)
_X, _W, _L0, _C, SLOTS = 24, 40, 56, 64, 72

#: Of fractional steps less than this is none.
_NONE = 1e-9


@entry
def follow(course: Any, most: Any, found: Any, state: Any) -> None:
    """Write the cycles of each candidate of a ``Course`` of tables to ``found``.

    They are followed until they take more than ``most`` has for them, and may take longer then.
    """
    for i in range(len(found)):
        state.fill(0.0)
        found[i] = _followed(course, i, most[i], state)


@compiled
def _followed(w: Any, i: int, most: float, s: Any) -> float:
    """Cycles of one candidate."""
    for number in range(int(w.items[i])):
        _place(w, i, number, s)
        plane = 0.0
        while plane < s[COUNT]:
            planes = min(w.planes[i], s[COUNT] - plane)
            last = w.slabs[i] > 1 and (s[BEGIN] + plane) % w.slabs[i] == w.slabs[i] - 1
            if s[NEW_X] > 0:
                _load_x(w, i, planes * w.small_x[i] if last else planes, s)
            _planes(w, i, plane, planes, w.small[i] if last else 1.0, s)
            plane += planes
            if s[TURN] > MOST_STEPS or max(s[CUBE], s[OUT]) > most:
                return float(max(s[CUBE], s[OUT]))
        _drain(w, i, s)
    return float(max(s[CUBE], s[OUT]))


@compiled
def _place(w: Any, i: int, number: int, s: Any) -> None:
    """What holds for a core's tile of that ``number``."""
    across, along, over = int(w.across[i]), int(w.along[i]), int(w.over[i])
    place = int(w.first[i]) + number
    row, column = place // across, place % across
    if w.slow[i] > 0:
        row, column = place % along, place // along
    s[NEW_X] = _comes(number, w.x_every[i], row != s[ROW])
    s[NEW_W] = _comes(number, w.w_every[i], column != s[COLUMN])
    s[ROW], s[COLUMN] = row, column
    s[FEW] = row % w.period[i] >= w.period[i] - w.rest[i]
    s[WIDE] = (column + 1) * over // across - column * over // across
    stop = w.first[i] + w.items[i]
    whole = w.slow[i] == 0 and column == 0 and place + across <= stop
    s[ALONE] = w.x_alone[i] > 1 or (w.x_alone[i] > 0 and whole)
    s[C_FREE] = _C + number % int(w.c_slots[i])
    s[FIRST] = 1.0
    s[BEGIN], s[COUNT] = 0.0, w.planes_in[i]
    if w.per[i] > 0:
        part = number // w.per[i] % w.parts[i]
        s[BEGIN] = w.planes_in[i] * part // w.parts[i]
        s[COUNT] = w.planes_in[i] * (part + 1) // w.parts[i] - s[BEGIN]


@compiled
def _comes(number: int, every: float, other: bool) -> bool:
    """Whether an operand is loaded for the tile of that ``number``.

    It comes anew ``every`` so many tiles, or for 0 where the tile needs another one than before.
    """
    if number == 0:
        return True
    return other if every == 0 else number % int(every) == 0


@compiled
def _load_x(w: Any, i: int, planes: float, s: Any) -> None:
    """A load of so many planes of x."""
    slot = _X + int(s[XS]) % int(w.x_slots[i])
    late = s[ALONE] > 0 or s[XS] == 0
    each = w.x_fresh[i] if late else w.x[i]
    if s[FEW] > 0:
        each = w.x_few_fresh[i] if late else w.x_few[i]
    s[XS] += 1
    s[LOAD] = s[X_READY] = max(s[LOAD], s[slot]) + w.x_start[i] + planes * each


@compiled
def _load_w(w: Any, i: int, columns: float, s: Any) -> None:
    """A load of so many columns of weights."""
    slot = _W + int(s[WS]) % int(w.w_slots[i])
    fast, late = w.w[i], w.w_fresh[i]
    if s[WIDE] > 0:
        fast, late = w.w_wide[i], w.w_wide_fresh[i]
    each = late if w.w_alone[i] > 0 else fast
    s[LOAD] = max(s[LOAD], s[slot]) + w.w_start[i] + columns * each
    if s[WS] == 0:  # another core may have come to the same sooner, behind fewer images
        sooner = w.x_start[i] + min(w.planes[i], w.planes_in[i]) * min(
            w.x_fresh[i], w.x_few_fresh[i]
        )
        s[LOAD] = max(s[LOAD], sooner + w.w_start[i] + columns * late)
    s[W_READY] = s[LOAD]
    s[WS] += 1


@compiled
def _planes(w: Any, i: int, plane: float, planes: float, share: float, s: Any) -> None:
    """Weights for so many planes of x in L1, from number ``plane`` on, and their steps.

    They have just this ``share`` of the columns of others.
    """
    taps, columns = w.taps[i], w.columns[i]
    chunk, total = w.planes[i] * taps, s[COUNT] * taps
    together = columns >= min(total, 2 * chunk)  # weights of several loads of x
    size = columns // taps * taps
    if together:
        size = total if columns >= total else columns // chunk * chunk
    done = 0.0
    while done < share * planes * taps - _NONE:
        used = min(size, share * planes * taps - done)
        if together:
            if s[NEW_W] > 0 and plane * taps % size == 0:
                _load_w(w, i, share * min(size, total - plane * taps), s)
        else:
            if columns < taps:
                used = min(columns, taps - done % taps)
            if s[NEW_W] > 0:
                _load_w(w, i, used, s)
        for _ in range(int(w.runs[i])):
            _steps(w, i, used, s)
        s[_W + int(max(0.0, s[WS] - 1)) % int(w.w_slots[i])] = (
            s[A_READ] if w.a_waits[i] > 0 else s[INTO]
        )
        done += used
    s[_X + int(max(0.0, s[XS] - 1)) % int(w.x_slots[i])] = (
        s[INTO] if w.a_waits[i] > 0 else s[A_READ]
    )


@compiled
def _steps(w: Any, i: int, columns: float, s: Any) -> None:
    """Both loads to L0 and the products of so many columns."""
    a = w.a_few[i] if s[FEW] > 0 else w.a[i]
    b = w.b_wide[i] if s[WIDE] > 0 else w.b[i]
    m = w.m_wide[i] if s[WIDE] > 0 else w.m[i]
    if s[FEW] > 0:
        m = w.m_few_wide[i] if s[WIDE] > 0 else w.m_few[i]
    both = max(s[X_READY], s[W_READY])
    ready = s[W_READY] if w.a_waits[i] > 0 else s[X_READY]
    while columns > _NONE:
        share = min(1.0, columns / w.k[i])
        slot = _L0 + int(s[TURN]) % int(w.l0_slots[i])
        s[A_READ] = max(s[INTO], s[slot], ready) + share * a
        s[INTO] = max(s[A_READ], both) + share * b
        s[BEGUN] = max(s[CUBE], s[INTO])
        if s[FIRST] > 0:
            s[BEGUN] = max(s[BEGUN], s[int(s[C_FREE])], s[FOLLOWS])
        s[CUBE] = s[BEGUN] + share * m
        if s[FIRST] > 0:
            s[CUBE] = max(s[CUBE], s[ENDS])
        s[slot] = s[CUBE]
        s[FIRST] = 0.0
        s[TURN] += 1
        columns -= w.k[i]


@compiled
def _drain(w: Any, i: int, s: Any) -> None:
    """The way out of a tile, and when the next one may follow."""
    drain = w.drain_wide[i] if s[WIDE] > 0 else w.drain[i]
    if s[FEW] > 0:
        drain = w.drain_few_wide[i] if s[WIDE] > 0 else w.drain_few[i]
    if w.lag[i] >= 0:
        begin = max(s[OUT], s[BEGUN] + w.product_start[i])
        s[OUT] = s[ENDS] = max(begin + drain, s[CUBE])
        s[FOLLOWS] = begin + drain - drain / w.moves[i] + w.lag[i]
        return
    s[OUT] = max(s[OUT], s[CUBE]) + drain
    if w.direct[i] > 0:
        s[int(s[C_FREE])] = s[OUT]
