"""The fast engine's interpreter, compiled: cores, pipes and events on flat int64 arrays.

Inside a core everything is known as soon as its causes are, so pipes are advanced eagerly, far
ahead of the others if nothing holds them: a *row* per (core, pipe) walks its own stream of
instructions and looks up when others ended. Only three things happen in the order of time:
transfers that finish, flags between cores, and transfers that join the shared links. A pipe that
needs an event that has not happened leaves its bit with the row it waits for.

The rules are those of ``timing/simpy_engine.py``.

The scalar pipe of a core comes first: it issues in program order and runs what orders cores.
"""

from __future__ import annotations

from npusim.base.integers import IntArray
from npusim.base.reasons import BANDWIDTH, BARRIER, BUSY, FLAG, QUEUE
from npusim.machine.timing.fast.core import (
    await_flag,
    begun,
    conclude,
    enlist,
    flag_time,
    leave,
    next_unit,
    resolve,
    room,
    work,
)
from npusim.machine.timing.fast.fetches import land, read
from npusim.machine.timing.fast.jit import compiled, entry
from npusim.machine.timing.fast.l2 import Place, touch
from npusim.machine.timing.fast.links import NEVER, join, next_finish, rerate, sink
from npusim.machine.timing.fast.state import (
    MEET,
    OUT_OF_BOUNDS,
    OVER,
    PAUSED,
    READY,
    ROW_BITS,
    SET_FLAG,
    SHORT_FLAGS,
    SHORT_HISTORY,
    WAIT_FLAG,
    Cache,
    Code,
    Histories,
    Shape,
    State,
)
from npusim.machine.timing.links import WEIGHT_BITS


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


# -- all cores -------------------------------------------------------------------------------------


@compiled
def advance_cores(shape: Shape, code: Code, state: State, histories: Histories) -> None:
    """Advance every core on the list until nothing inside any of them can move."""
    run = state.run[0]
    while run.live:
        run.live -= 1
        core = state.todo[run.live]
        me = state.cores[core]
        while me.todo:
            pipe = 0
            while not (me.todo >> pipe) & 1:
                pipe += 1
            me.todo &= ~(1 << pipe)
            if pipe == shape.scalar:
                issue(shape, code, state, histories, core)
            else:
                work(shape, code, state, histories, core * shape.pipes + pipe)
            if run.status == SHORT_HISTORY:  # more room, then the same again
                me.todo |= 1 << pipe
                state.todo[run.live] = core
                run.live += 1
                return


@compiled
def resume(shape: Shape, code: Code, state: State, ends: IntArray, row: int, end: int) -> None:
    """Complete an instruction that waited for an event, and put its core on the list."""
    enlist(state, state.rows[row].core, 1 << state.rows[row].pipe)
    conclude(shape, code, state, ends, row, end)


@compiled
def finish_transfers(shape: Shape, code: Code, state: State, ends: IntArray, now: int) -> None:
    """Drain until ``now`` and complete the transfers whose every part is done."""
    passed = now - state.run[0].now
    for g in range(state.classes.size):
        group, heap = state.classes[g], state.finish[g]
        count = group.count
        if count == 0:
            continue
        group.drained += group.rate * passed
        while count and heap[0].key <= group.drained:
            row = heap[0].who
            count -= 1
            sink(heap, count)
            end_part(shape, code, state, ends, row, now)
        group.count = count
    state.run[0].now = now


@compiled
def end_part(shape: Shape, code: Code, state: State, ends: IntArray, row: int, now: int) -> None:
    """A part of a row's transfer is done, and perhaps the transfer, and those that follow it."""
    ending = state.ending
    ending[0] = row
    count = 1
    while count:
        count -= 1
        row = ending[count]
        me = state.rows[row]
        me.parts -= 1
        if me.parts:
            continue
        land(state, row)
        other = state.follower[row]
        state.follower[row] = 0
        while other:
            ending[count] = other - 1
            count += 1
            other = state.further[row, other - 1]
        end = max(now, me.earliest)
        state.account[row, BANDWIDTH] += end - me.earliest
        resume(shape, code, state, ends, row, end)


@compiled
def reaches(code: Code, sender: int, core: int, everywhere: int) -> bool:
    """Whether a flag of ``sender`` counts on ``core``."""
    return core != sender and (everywhere == 1 or code.groups[core] == code.groups[sender])


@compiled
def counts(
    shape: Shape, code: Code, state: State, sender: int, core: int, event: int, everywhere: int
) -> bool:
    """Whether it counts now that ``sender`` has set it: in a group the last to set it decides."""
    if not reaches(code, sender, core, everywhere):
        return False
    if everywhere == 1:
        return True
    nth = state.events[sender, event].sets
    for other in range(shape.cores):
        near = other != core and code.groups[other] == code.groups[sender]
        if near and code.setters[other, event] and state.events[other, event].sets < nth:
            return False
    return True


@compiled
def raise_flag(
    shape: Shape, code: Code, state: State, ends: IntArray, flagged: IntArray, now: int
) -> None:
    """Count the next flag on the cores it is for, wake who waits for it, go on after it."""
    run, row = state.run[0], state.raised[0].who
    sender, step = state.rows[row].core, code.steps[state.rows[row].step]
    for core in range(shape.cores):
        event = state.events[core, step.what]
        unused = event.count - event.used
        if reaches(code, sender, core, step.counts) and unused >= flagged.shape[2]:
            run.status = SHORT_FLAGS
            return
    run.flags -= 1
    sink(state.raised, run.flags)
    state.events[sender, step.what].sets += 1
    for core in range(shape.cores):
        if not counts(shape, code, state, sender, core, step.what, step.counts):
            continue
        event = state.events[core, step.what]
        flagged[core, step.what, event.count & (flagged.shape[2] - 1)] = now
        event.count += 1
        if event.waiter:
            enlist(state, core, 1 << (event.waiter - 1))
            event.waiter = 0
    resume(shape, code, state, ends, row, now)


@compiled
def start_transfers(shape: Shape, code: Code, state: State, cache: Cache, now: int) -> None:
    """Begin the transfers of this cycle in order of core and pipe."""
    run, cost = state.run[0], state.cost[0]
    while run.joins and state.joining[0].key >> ROW_BITS == now:
        row = state.joining[0].who
        flow = code.flows[code.steps[state.rows[row].step].what]
        if flow.local:
            run.joins -= 1
            sink(state.joining, run.joins)
            part(code, state, flow.first, flow.size, row)
            continue
        offset = flow.offset
        if flow.base >= 0:
            offset += code.bases[state.rows[row].unit, flow.base]
        end = offset + (flow.rows - 1) * flow.pitch + flow.bytes
        end += (flow.regions - 1) * flow.apart
        tensor = code.tensors[flow.tensor]
        if offset < 0 or end > tensor.bytes:
            run.status, run.trouble = OUT_OF_BOUNDS, row
            return
        run.joins -= 1
        sink(state.joining, run.joins)
        place = Place(tensor.block, offset, flow.rows, flow.bytes, flow.pitch)
        touch(cache, place, flow.store != 0, state.cost)
        if flow.store:
            evicted = cost.evicted
            for _ in range(flow.regions - 1):
                offset += flow.apart
                place = Place(tensor.block, offset, flow.rows, flow.bytes, flow.pitch)
                touch(cache, place, True, state.cost)
                evicted += cost.evicted
            cost.evicted = evicted
            part(code, state, flow.first, flow.size, row)
        else:
            state.hits[flow.operand].hit += cost.hit
            state.hits[flow.operand].miss += flow.size - cost.hit
            state.hits[flow.operand].fetched += cost.fetched
            run.fetched += cost.fetched
            read(state, row, flow.tensor, place, cache.info[0].sector_shift)
            occupied = cost.hit + cost.hit * flow.request // flow.bytes
            occupied += (flow.size - cost.hit) * cache.info[0].waiting >> WEIGHT_BITS
            kind = flow.first if cost.hit == flow.size else flow.missing
            part(code, state, kind, occupied, row)
            part(code, state, flow.second, cost.fetched, row)
        run.evicted += cost.evicted
        part(code, state, flow.evict, cost.evicted, row)


@compiled
def part(code: Code, state: State, kind: int, size: int, row: int) -> None:
    """Start draining a part of a row's transfer, if there is one."""
    if size:
        group = code.classes[kind, state.rows[row].core]
        join(state.classes[group], state.finish[group], size, row)
        state.rows[row].parts += 1


@compiled
def begin(shape: Shape, code: Code, state: State) -> None:
    """Put every row at its first instruction, once."""
    if state.run[0].begun:
        return
    state.run[0].begun = 1
    state.run[0].next = NEVER
    for core in range(shape.cores):
        for pipe in range(shape.pipes):
            row = core * shape.pipes + pipe
            state.rows[row].core, state.rows[row].pipe = core, pipe
            state.rows[row].stop = -1
            next_unit(shape, code, state, row)
        enlist(state, core, (1 << shape.pipes) - 1)


@entry
def interpret(
    shape: Shape, code: Code, state: State, cache: Cache, histories: Histories, budget: int
) -> None:
    """Go on until the end, ``budget`` more instructions, or trouble; ``status`` says which."""
    run = state.run[0]
    ends, flagged = histories.ends, histories.flagged
    stop = run.completed + budget
    run.status = PAUSED
    begin(shape, code, state)
    while run.completed < stop:
        advance_cores(shape, code, state, histories)
        now = run.next
        if run.joins:
            now = min(now, state.joining[0].key >> ROW_BITS)
        if run.flags:
            now = min(now, state.raised[0].key)
        if run.status != PAUSED:
            return
        if run.unsettled and now > run.now:
            rerate(shape, state)
            run.next = next_finish(state, run.now)
            run.unsettled = 0
        elif now == NEVER:
            run.status = OVER
            return
        elif now == run.next:
            finish_transfers(shape, code, state, ends, now)
            run.next = NEVER
            run.unsettled = 1
        elif run.flags and now == state.raised[0].key:
            raise_flag(shape, code, state, ends, flagged, now)
        else:
            finish_transfers(shape, code, state, ends, now)  # none, but the clocks go on
            start_transfers(shape, code, state, cache, now)
            run.next = NEVER
            run.unsettled = 1
        if run.status != PAUSED:
            return
