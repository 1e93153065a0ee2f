"""The scalar pipe of a core, compiled: it issues in program order and runs what orders cores."""

from __future__ import annotations

from npusim.base.reasons import BARRIER, BUSY, FLAG, QUEUE
from npusim.timing.fast.core import (
    await_flag,
    begun,
    enlist,
    flag_time,
    leave,
    next_unit,
    resolve,
    room,
)
from npusim.timing.fast.jit import compiled
from npusim.timing.fast.state import (
    MEET,
    READY,
    SET_FLAG,
    WAIT_FLAG,
    Code,
    Histories,
    Shape,
    State,
)


@compiled
def meet(shape: Shape, state: State, core: int, when: int) -> int:
    """Arrive at a barrier at ``when``; returns the cycle it opens, -1 if not yet known."""
    run, me = state.run[0], state.cores[core]
    if me.meet == 0:
        me.meet = 1
        run.meeting += 1
        run.meet_at = max(run.meet_at, when)
        if run.meeting == shape.working:
            for other in range(shape.cores):
                state.cores[other].meet = 2
                state.cores[other].meet_at = run.meet_at
                if other != core:
                    enlist(state, other, 1 << shape.scalar)
            run.meeting = 0
            run.meet_at = 0
    if me.meet == 1:
        return -1
    me.meet = 0
    return int(me.meet_at)


@compiled
def order(shape: Shape, code: Code, state: State, histories: Histories, row: int) -> bool:
    """Run an ordering instruction on the scalar pipe; False if it cannot go on yet."""
    ends, flagged = histories.ends, histories.flagged
    me = state.rows[row]
    number = code.issuing[me.at].step
    step = code.steps[number]
    if me.ended >= me.reach and not room(shape, code, state, ends, row, me.ended):
        return False
    known, latest, _ = resolve(shape, code, state, histories, row, number)
    if not known:
        return False
    start = max(me.free, latest)
    reason = code.waits[step.first].why if step.last > step.first else BARRIER
    if step.kind == MEET:
        start = meet(shape, state, me.core, start)
    elif step.kind == WAIT_FLAG:
        reason = FLAG
        when = flag_time(state, flagged, me.core, shape.scalar, step.what, step.counts)
        start = -1 if when < 0 else max(start, when)
    if start < 0:
        return False
    me.step = number
    me.began, me.waited = start, start - me.free
    me.why = reason if me.waited else BUSY
    state.account[row, reason] += me.waited
    state.account[row, BUSY] += step.cycles
    end = start + step.cycles
    if step.kind == SET_FLAG:
        await_flag(state, row, end)
        return False
    leave(shape, code, state, ends, row, end)
    return bool(me.phase == READY)


@compiled
def issue(shape: Shape, code: Code, state: State, histories: Histories, core: int) -> None:
    """Advance the scalar pipe as far as it goes."""
    starts, issues = histories.starts, histories.issues
    rows = state.rows
    row = core * shape.pipes + shape.scalar
    me = rows[row]
    mask = issues.shape[1] - 1
    if me.phase != READY:
        return
    free, at, stop = me.free, me.at, me.stop
    busy = queued = woken = 0
    while True:
        issuing = code.issuing[at]
        pipe = issuing.pipe
        if pipe == shape.scalar:
            me.free, me.at = free, at
            going = order(shape, code, state, histories, row)
            free, at, stop = me.free, me.at, me.stop
            if going:
                continue
            break
        other = core * shape.pipes + pipe
        number = rows[other].issued
        need = number - code.depth[pipe] + 1
        if need > 0:
            if begun(rows, other) < need:
                rows[other].start_waiters |= 1 << shape.scalar
                break
            when = starts[other, (need - 1) & (starts.shape[1] - 1)]
            if when > free:
                queued += when - free
                free = when
        free += issuing.cost
        busy += issuing.cost
        issues[other, number & mask] = free
        rows[other].issued = number + 1
        woken |= 1 << pipe
        at += 1
        if at >= stop:
            me.at = at
            if not next_unit(shape, code, state, row):
                break
            at, stop = me.at, me.stop
    me.free, me.at = free, at
    state.account[row, BUSY] += busy
    state.account[row, QUEUE] += queued
    state.cores[core].todo |= woken
