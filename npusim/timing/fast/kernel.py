"""The fast engine's interpreter, compiled: cores, pipes and events on flat int64 arrays.

Inside a core everything is known as soon as its causes are, so pipes are advanced eagerly, far
ahead of the others if nothing holds them: a *row* per (core, pipe) walks its own stream of
instructions and looks up when others ended. Only three things happen in the order of time:
transfers that finish, flags between cores, and transfers that join the shared links. A pipe that
needs an event that has not happened leaves its bit with the row it waits for.

The rules are those of ``timing/simpy_engine.py``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.reasons import BANDWIDTH
from npusim.timing.fast.core import conclude, enlist, next_unit, work
from npusim.timing.fast.jit import compiled
from npusim.timing.fast.l2 import EVICTED, FETCHED, HIT, TOUCHED, touch
from npusim.timing.fast.links import COUNT, DRAINED, NEVER, RATE, join, next_finish, rerate, sink
from npusim.timing.fast.scalar import issue
from npusim.timing.fast.state import (
    ACCOUNT,
    AT,
    C_TODO,
    COMPLETED,
    CORE,
    COUNTS,
    E_COUNT,
    E_USED,
    E_WAITER,
    EARLIEST,
    EVICT,
    F_BASE,
    F_BYTES,
    F_CLASS,
    F_CLASS_2,
    F_EVICT,
    F_KIND,
    F_OFFSET,
    F_OPERAND,
    F_PITCH,
    F_ROWS,
    F_TENSOR,
    FETCH,
    FLAGS,
    JOINS,
    LIVE,
    NEXT,
    NOW,
    OUT_OF_BOUNDS,
    OVER,
    PARTS,
    PAUSED,
    PIPE,
    ROW_BITS,
    SHORT_FLAGS,
    SHORT_HISTORY,
    STATUS,
    STOP,
    TROUBLE,
    UNIT,
    UNSETTLED,
    WHAT,
    Cache,
    Code,
    Histories,
    Shape,
    State,
)

IntArray = npt.NDArray[np.int64]


@compiled
def advance_cores(
    shape: Shape,
    code: Code,
    state: State,
    histories: Histories,
) -> None:
    """Advance every core on the list until nothing inside any of them can move."""
    scalars = state.scalars
    while scalars[LIVE]:
        scalars[LIVE] -= 1
        core = state.todo[scalars[LIVE]]
        while state.core[core, C_TODO]:
            pipe, todo = 0, state.core[core, C_TODO]
            while not (todo >> pipe) & 1:
                pipe += 1
            state.core[core, C_TODO] = todo & ~(1 << pipe)
            if pipe == shape.scalar:
                issue(shape, code, state, histories, core)
            else:
                work(shape, code, state, histories, core * shape.pipes + pipe)
            if scalars[STATUS] == SHORT_HISTORY:  # more room, then the same again
                state.core[core, C_TODO] |= 1 << pipe
                state.todo[scalars[LIVE]] = core
                scalars[LIVE] += 1
                return


@compiled
def resume(shape: Shape, code: Code, state: State, ends: IntArray, row: int, end: int) -> None:
    """Complete an instruction that waited for an event, and put its core on the list."""
    core, pipe = state.rows[row, CORE], state.rows[row, PIPE]
    enlist(state, core, 1 << pipe)
    conclude(shape, code, state, ends, row, end)


@compiled
def finish_transfers(shape: Shape, code: Code, state: State, ends: IntArray, now: int) -> None:
    """Drain until ``now`` and complete the transfers whose every part is done."""
    rows, classes = state.rows, state.classes
    passed = now - state.scalars[NOW]
    for g in range(classes.shape[0]):
        count = classes[g, COUNT]
        if count == 0:
            continue
        classes[g, DRAINED] += classes[g, RATE] * passed
        keys, members = state.finish[g], state.member[g]
        while count and keys[0] <= classes[g, DRAINED]:
            row = members[0]
            count -= 1
            sink(keys, members, count, keys[count], members[count])
            rows[row, PARTS] -= 1
            if rows[row, PARTS] == 0:
                end = max(now, rows[row, EARLIEST])
                rows[row, ACCOUNT + BANDWIDTH] += end - rows[row, EARLIEST]
                resume(shape, code, state, ends, row, end)
        classes[g, COUNT] = count
    state.scalars[NOW] = now


@compiled
def reaches(code: Code, sender: int, core: int, everywhere: int) -> bool:
    """Whether a flag of ``sender`` counts on ``core``."""
    return core != sender and (everywhere == 1 or code.groups[core] == code.groups[sender])


@compiled
def raise_flag(
    shape: Shape, code: Code, state: State, ends: IntArray, flagged: IntArray, now: int
) -> None:
    """Count the next flag on the cores it is for, wake who waits for it, go on after it."""
    scalars, events = state.scalars, state.events
    row = state.raised[1, 0]
    sender, at = state.rows[row, CORE], state.rows[row, AT]
    event, everywhere = code.stream[at + WHAT], code.stream[at + COUNTS]
    for core in range(shape.cores):
        unused = events[core, event, E_COUNT] - events[core, event, E_USED]
        if reaches(code, sender, core, everywhere) and unused >= flagged.shape[2]:
            scalars[STATUS] = SHORT_FLAGS
            return
    scalars[FLAGS] -= 1
    last = scalars[FLAGS]
    sink(state.raised[0], state.raised[1], last, state.raised[0, last], state.raised[1, last])
    for core in range(shape.cores):
        if not reaches(code, sender, core, everywhere):
            continue
        number = events[core, event, E_COUNT]
        flagged[core, event, number & (flagged.shape[2] - 1)] = now
        events[core, event, E_COUNT] = number + 1
        if events[core, event, E_WAITER]:
            enlist(state, core, 1 << (events[core, event, E_WAITER] - 1))
            events[core, event, E_WAITER] = 0
    resume(shape, code, state, ends, row, now)


@compiled
def start_transfers(shape: Shape, code: Code, state: State, cache: Cache, now: int) -> None:
    """Begin the transfers of this cycle in order of core and pipe."""
    scalars, rows = state.scalars, state.rows
    while scalars[JOINS] and state.joining[0, 0] >> ROW_BITS == now:
        row = state.joining[1, 0]
        flow = code.flows[code.stream[rows[row, AT] + WHAT]]
        offset = flow[F_OFFSET]
        if flow[F_BASE] >= 0:
            offset += code.bases[rows[row, UNIT], flow[F_BASE]]
        end = offset + (flow[F_ROWS] - 1) * flow[F_PITCH] + flow[F_BYTES]
        tensor = code.tensors[flow[F_TENSOR]]
        if offset < 0 or end > tensor[1]:
            scalars[STATUS] = OUT_OF_BOUNDS
            scalars[TROUBLE] = row
            return
        scalars[JOINS] -= 1
        last = scalars[JOINS]
        sink(
            state.joining[0], state.joining[1], last, state.joining[0, last], state.joining[1, last]
        )
        place = (tensor[0], offset, flow[F_ROWS], flow[F_BYTES], flow[F_PITCH])
        cost = state.cost
        touch(cache.info, cache.lines, cache.aged, place, flow[F_KIND] != 0, cost)
        size = flow[F_ROWS] * flow[F_BYTES]
        if flow[F_KIND] == 0:
            state.hits[flow[F_OPERAND], 0] += cost[HIT]
            state.hits[flow[F_OPERAND], 1] += size - cost[HIT]
            scalars[FETCH] += cost[FETCHED]
            part(state, flow[F_CLASS], cost[TOUCHED] - cost[FETCHED], row)
            part(state, flow[F_CLASS_2], cost[FETCHED], row)
        else:
            part(state, flow[F_CLASS], size, row)
        scalars[EVICT] += cost[EVICTED]
        part(state, flow[F_EVICT], cost[EVICTED], row)


@compiled
def part(state: State, group: int, size: int, row: int) -> None:
    """Start draining a part of a row's transfer, if there is one."""
    if size:
        join(state.classes, state.finish, state.member, group, size, row)
        state.rows[row, PARTS] += 1


@compiled
def begin(shape: Shape, code: Code, state: State) -> None:
    """Put every row at its first instruction."""
    state.scalars[NEXT] = NEVER
    for core in range(shape.cores):
        for pipe in range(shape.pipes):
            row = core * shape.pipes + pipe
            state.rows[row, CORE], state.rows[row, PIPE] = core, pipe
            state.rows[row, STOP] = -1
            next_unit(shape, code, state, row)
        enlist(state, core, (1 << shape.pipes) - 1)


@compiled
def interpret(
    shape: Shape,
    code: Code,
    state: State,
    cache: Cache,
    histories: Histories,
    budget: int,
) -> None:
    """Go on until the end, ``budget`` more instructions, or trouble; STATUS says which."""
    scalars = state.scalars
    ends, flagged = histories[0], histories[3]
    stop = scalars[COMPLETED] + budget
    scalars[STATUS] = PAUSED
    while scalars[COMPLETED] < stop:
        advance_cores(shape, code, state, histories)
        now = scalars[NEXT]
        if scalars[JOINS]:
            now = min(now, state.joining[0, 0] >> ROW_BITS)
        if scalars[FLAGS]:
            now = min(now, state.raised[0, 0])
        if scalars[STATUS] != PAUSED:
            return
        if scalars[UNSETTLED] and now > scalars[NOW]:
            left, limit = state.scratch[0], state.scratch[1]
            rerate(state.classes, state.capacity, left, limit, state.known)
            scalars[NEXT] = next_finish(state.classes, state.finish, scalars[NOW])
            scalars[UNSETTLED] = 0
        elif now == NEVER:
            scalars[STATUS] = OVER
            return
        elif now == scalars[NEXT]:
            finish_transfers(shape, code, state, ends, now)
            scalars[NEXT] = NEVER
            scalars[UNSETTLED] = 1
        elif scalars[FLAGS] and now == state.raised[0, 0]:
            raise_flag(shape, code, state, ends, flagged, now)
        else:
            finish_transfers(shape, code, state, ends, now)  # none, but the clocks go on
            start_transfers(shape, code, state, cache, now)
            scalars[NEXT] = NEVER
            scalars[UNSETTLED] = 1
        if scalars[STATUS] != PAUSED:
            return
