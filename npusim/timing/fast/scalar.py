"""The scalar pipe of a core, compiled: it issues in program order and runs what orders cores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.reasons import BARRIER, BUSY, FLAG, QUEUE
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
    ACCOUNT,
    AT,
    BEGAN,
    C_MEET,
    C_MEET_AT,
    C_TODO,
    CORE,
    COUNTS,
    CYCLES,
    ENDED,
    FREE,
    HEADER,
    ISSUED,
    KIND,
    MEET,
    MEET_AT,
    MEETING,
    PHASE,
    REACH,
    READY,
    S_HEADER,
    S_ISSUE,
    S_PIPE,
    SET_FLAG,
    START_WAITERS,
    STOP,
    WAIT_FLAG,
    WAITED,
    WAITS,
    WHAT,
    WHY,
    Code,
    Histories,
    Shape,
    State,
)

IntArray = npt.NDArray[np.int64]


@compiled
def meet(shape: Shape, state: State, core: int, when: int) -> int:
    """Arrive at a barrier at ``when``; returns the cycle it opens, -1 if not yet known."""
    scalars, cores = state.scalars, state.core
    if cores[core, C_MEET] == 0:
        cores[core, C_MEET] = 1
        scalars[MEETING] += 1
        scalars[MEET_AT] = max(scalars[MEET_AT], when)
        if scalars[MEETING] == shape.cores:
            for other in range(shape.cores):
                cores[other, C_MEET] = 2
                cores[other, C_MEET_AT] = scalars[MEET_AT]
                if other != core:
                    enlist(state, other, 1 << shape.scalar)
            scalars[MEETING] = 0
            scalars[MEET_AT] = 0
    if cores[core, C_MEET] == 1:
        return -1
    cores[core, C_MEET] = 0
    return int(cores[core, C_MEET_AT])


@compiled
def order(shape: Shape, code: Code, state: State, histories: Histories, row: int) -> bool:
    """Run an ordering instruction on the scalar pipe; False if it cannot go on yet."""
    ends, _, _, flagged = histories
    rows = state.rows
    core = rows[row, CORE]
    at = rows[row, AT] + S_HEADER
    kind, count = code.stream[at + KIND], code.stream[at + WAITS]
    index = rows[row, ENDED]
    if index >= rows[row, REACH] and not room(shape, code, state, ends, row, index):
        return False
    known, latest, _ = resolve(shape, code, state, histories, row, at)
    if not known:
        return False
    began = rows[row, FREE]
    start = max(began, latest)
    reason = code.stream[at + HEADER + 2] if count else BARRIER
    if kind == MEET:
        start = meet(shape, state, core, start)
    elif kind == WAIT_FLAG:
        reason = FLAG
        what = code.stream[at + WHAT]
        when = flag_time(state, flagged, core, shape.scalar, what, code.stream[at + COUNTS])
        start = -1 if when < 0 else max(start, when)
    if start < 0:
        return False
    rows[row, ACCOUNT + reason] += start - began
    rows[row, ACCOUNT + BUSY] += code.stream[at + CYCLES]
    rows[row, BEGAN] = start
    rows[row, WAITED] = start - began
    rows[row, WHY] = reason if start > began else BUSY
    rows[row, AT] = at
    end = start + code.stream[at + CYCLES]
    if kind == SET_FLAG:
        await_flag(state, row, end)
        return False
    leave(shape, code, state, ends, row, end)
    return bool(rows[row, PHASE] == READY)


@compiled
def issue(
    shape: Shape,
    code: Code,
    state: State,
    histories: Histories,
    core: int,
) -> None:
    """Advance the scalar pipe as far as it goes."""
    starts, issues = histories[1], histories[2]
    rows = state.rows
    row = core * shape.pipes + shape.scalar
    mask = issues.shape[1] - 1
    if rows[row, PHASE] != READY:
        return
    stream = code.stream
    free, at, stop = rows[row, FREE], rows[row, AT], rows[row, STOP]
    busy = queued = woken = 0
    while True:
        pipe = stream[at + S_PIPE]
        if pipe == shape.scalar:
            rows[row, FREE], rows[row, AT] = free, at
            going = order(shape, code, state, histories, row)
            free, at, stop = rows[row, FREE], rows[row, AT], rows[row, STOP]
            if going:
                continue
            break
        other = core * shape.pipes + pipe
        number = rows[other, ISSUED]
        need = number - code.depth[pipe] + 1
        if need > 0:
            if begun(rows, other) < need:
                rows[other, START_WAITERS] |= 1 << shape.scalar
                break
            when = starts[other, (need - 1) & (starts.shape[1] - 1)]
            if when > free:
                queued += when - free
                free = when
        cost = stream[at + S_ISSUE]
        free += cost
        busy += cost
        issues[other, number & mask] = free
        rows[other, ISSUED] = number + 1
        woken |= 1 << pipe
        at += S_HEADER
        if at >= stop:
            rows[row, AT] = at
            if not next_unit(shape, code, state, row):
                break
            at, stop = rows[row, AT], rows[row, STOP]
    rows[row, FREE], rows[row, AT] = free, at
    rows[row, ACCOUNT + BUSY] += busy
    rows[row, ACCOUNT + QUEUE] += queued
    state.core[core, C_TODO] |= woken
