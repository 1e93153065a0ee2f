"""Readers of data in flight, compiled: a read ends no earlier than those that fetch what it hits.

A read that hits something follows every transfer under way that fetches something and reads one of
the same sectors. The rule is that of ``timing/l2.py``.
"""

from __future__ import annotations

from typing import Any

from npusim.machine.timing.fast.jit import compiled
from npusim.machine.timing.fast.l2 import Place
from npusim.machine.timing.fast.state import State


@compiled
def read(state: State, row: int, tensor: int, place: Place, small: int) -> None:
    """Note what a row's transfer reads, in sectors of 2**small bytes, and let it follow others."""
    run, me, cost = state.run[0], state.fetches[row], state.cost[0]
    if cost.fetched == 0 and run.flying == 0:
        return
    describe(me, tensor, place, small)
    if cost.hit:
        for i in range(run.flying):
            other = state.flying[i]
            if meet(me, state.fetches[other], small):
                follow(state, row, other)
    if cost.fetched:
        state.flying[run.flying] = row
        run.flying += 1
        me.at = run.flying


@compiled
def describe(me: Any, tensor: int, place: Place, small: int) -> None:
    """Write down what is read, in sectors of 2**small bytes."""
    up = (1 << small) - 1
    pitch = place.pitch if place.rows > 1 else 0
    me.tensor, me.offset, me.rows = tensor, place.offset, place.rows
    me.bytes, me.pitch, me.line = place.row_bytes, pitch, -1
    me.first = me.offset >> small
    me.last = (me.offset + (me.rows - 1) * pitch + me.bytes + up) >> small
    if pitch and pitch & up == 0:
        within = me.offset % pitch
        if within + me.bytes <= pitch:
            me.line = me.offset // pitch
            me.left, me.right = within >> small, (within + me.bytes + up) >> small


@compiled
def land(state: State, row: int) -> None:
    """A row's transfer has ended."""
    run, me = state.run[0], state.fetches[row]
    if me.at:
        run.flying -= 1
        last = state.flying[run.flying]
        state.flying[me.at - 1] = last
        state.fetches[last].at = me.at
        me.at = 0


@compiled
def follow(state: State, row: int, other: int) -> None:
    """Let a row's transfer not end before that of another row."""
    state.further[other, row] = state.follower[other]
    state.follower[other] = row + 1
    state.rows[row].parts += 1


@compiled
def meet(one: Any, other: Any, small: int) -> bool:
    """Whether two transfers read one of the same sectors."""
    if one.tensor != other.tensor or one.first >= other.last or other.first >= one.last:
        return False
    if one.pitch == 0 and other.pitch == 0:
        return True
    if one.pitch == other.pitch and one.line >= 0 and other.line >= 0:
        rows = one.line < other.line + other.rows and other.line < one.line + one.rows
        return bool(rows and one.left < other.right and other.left < one.right)
    if one.rows <= other.rows:
        return crosses(one, other, small)
    return crosses(other, one, small)


@compiled
def crosses(few: Any, many: Any, small: int) -> bool:
    """The same, row by row of ``few``: whether a row of ``many`` reaches into its sectors."""
    up = (1 << small) - 1
    for row in range(few.rows):
        begin = few.offset + row * few.pitch
        end = (begin + few.bytes + up) >> small << small
        begin = begin >> small << small
        first = 0  # of the rows of ``many`` that end behind ``begin``
        if many.pitch:
            first = max(0, (begin - many.bytes - many.offset) // many.pitch + 1)
        start = many.offset + first * many.pitch
        if first < many.rows and start < end and start + many.bytes > begin:
            return True
    return False
