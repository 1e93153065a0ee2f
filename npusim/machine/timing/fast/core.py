"""The inside of a core, compiled: its pipes, each advanced as far as its causes are known."""

from __future__ import annotations

from npusim.base.integers import IntArray
from npusim.base.reasons import BUSY, FLAG, FOLLOW, ISSUE, NOT_STARTED
from npusim.machine.timing.fast.jit import compiled
from npusim.machine.timing.fast.links import NEVER, push
from npusim.machine.timing.fast.state import (
    DRAINING,
    ENDING,
    FINISHED,
    FLOW,
    READY,
    ROW_BITS,
    SET_FLAG,
    SHORT_HISTORY,
    WAIT_FLAG,
    Cause,
    Code,
    Histories,
    Records,
    Shape,
    State,
)


@compiled
def next_unit(shape: Shape, code: Code, state: State, row: int) -> bool:
    """Enter the next unit with instructions for this row; False if there is none."""
    me = state.rows[row]
    unit, last = me.unit, code.last[me.core]
    while unit < last:
        variant = code.units[unit]
        if me.stop >= 0:  # leaving a unit
            for q in range(shape.pipes):
                state.before[row, q] += code.totals[variant, q]
            unit += 1
            if unit >= last:
                break
            variant = code.units[unit]
        me.at = code.first[variant, me.pipe]
        me.stop = code.stop[variant, me.pipe]
        if me.at < me.stop:
            me.unit = unit
            return True
    me.unit = last
    me.phase = FINISHED
    return False


@compiled
def wake(state: State, core: int, row: int) -> None:
    """Let the pipes that wait for starts or ends of ``row`` try again."""
    me = state.rows[row]
    state.cores[core].todo |= me.end_waiters | me.start_waiters
    me.end_waiters = me.start_waiters = 0


@compiled
def resolve(
    shape: Shape, code: Code, state: State, histories: Histories, row: int, step: int
) -> tuple[bool, int, int]:
    """(known, latest cycle, its reason) of what ``step`` waits for to start.

    Leaves the pipe's bit with the row it waits for if one is not known.
    """
    ends, starts = histories.ends, histories.starts
    rows = state.rows
    first, bit = rows[row].core * shape.pipes, 1 << rows[row].pipe
    mask = ends.shape[1] - 1
    latest, why = -1, 0
    for w in range(code.steps[step].first, code.steps[step].last):
        wait = code.waits[w]
        need = wait.count + state.before[row, wait.pipe]
        if need <= 0:
            continue
        other = first + wait.pipe
        if wait.why == FOLLOW:
            if begun(rows, other) < need:
                rows[other].start_waiters |= bit
                return False, 0, 0
            when = starts[other, (need - 1) & mask] + code.steps[step].lag_start
        else:
            if rows[other].ended < need:
                rows[other].end_waiters |= bit
                return False, 0, 0
            when = ends[other, (need - 1) & mask]
        if when > latest or (when == latest and wait.why < why):
            latest, why = when, wait.why
    return True, latest, why


@compiled
def begun(rows: Records, row: int) -> int:
    """How many instructions of a row have started."""
    return int(rows[row].ended) + (rows[row].phase in (DRAINING, ENDING))


@compiled
def conclude(shape: Shape, code: Code, state: State, ends: IntArray, row: int, end: int) -> None:
    """End the instruction at work at ``end``, or as late as those it follows make it.

    If that is not known yet the row stays ``ENDING``.
    """
    rows, me = state.rows, state.rows[row]
    step = code.steps[me.step]
    latest = end
    if step.follows:
        for w in range(step.first, step.last):
            wait = code.waits[w]
            need = wait.count + state.before[row, wait.pipe]
            if wait.why == FOLLOW and need > 0:
                other = me.core * shape.pipes + wait.pipe
                if rows[other].ended < need:
                    rows[other].end_waiters |= 1 << me.pipe
                    me.phase = ENDING
                    me.earliest = end
                    return
                when = ends[other, (need - 1) & (ends.shape[1] - 1)]
                latest = max(latest, when + step.lag_end)
        state.account[row, FOLLOW] += latest - end
    me.phase = READY
    leave(shape, code, state, ends, row, latest)


@compiled
def flag_time(state: State, flagged: IntArray, core: int, pipe: int, event: int, count: int) -> int:
    """When the flag had counted ``count`` more, -1 if it has not; uses them up."""
    flag = state.events[core, event]
    need = flag.used + count
    if flag.count < need:
        flag.waiter = pipe + 1
        return -1
    flag.used = need
    return int(flagged[core, event, (need - 1) & (flagged.shape[2] - 1)])


@compiled
def keep_span(code: Code, state: State, row: int, index: int, end: int) -> None:
    """Keep the span of the row's step at work, its instruction number ``index``."""
    run, me = state.run[0], state.rows[row]
    span = state.spans[run.spans]
    run.spans += 1
    span.core, span.pipe, span.index = me.core, me.pipe, index
    span.template = code.template[code.units[me.unit]]
    span.instruction = code.steps[me.step].instruction
    span.start, span.end = me.began, end
    span.why, span.waited = me.why, me.waited


@compiled
def leave(shape: Shape, code: Code, state: State, ends: IntArray, row: int, end: int) -> None:
    """Complete the instruction at work on ``row`` at ``end``, and look at the next."""
    me = state.rows[row]
    index = me.ended
    ends[row, index & (ends.shape[1] - 1)] = end
    me.ended = index + 1
    me.free = end
    state.run[0].completed += 1
    if shape.keep:
        keep_span(code, state, row, index, end)
    wake(state, me.core, row)
    me.at += 1
    if me.at >= me.stop:
        next_unit(shape, code, state, row)


@compiled
def await_flag(state: State, row: int, end: int) -> None:
    """Let the flag that the row's instruction sets be raised at ``end``, in the order of time."""
    state.rows[row].phase = DRAINING
    push(state.raised, state.run[0].flags, end, row)
    state.run[0].flags += 1


@compiled
def room(shape: Shape, code: Code, state: State, ends: IntArray, row: int, index: int) -> bool:
    """Whether the row's end number ``index`` can be kept without losing one still needed.

    If not, the engine has to lengthen its histories.
    """
    me = state.rows[row]
    q = me.pipe
    first = row - q
    oldest = index
    for p in range(shape.pipes):
        if code.oldest[p, q] != NEVER and state.rows[first + p].phase != FINISHED:
            oldest = min(oldest, max(0, code.oldest[p, q] + state.before[first + p, q] - 1))
    me.reach = oldest + ends.shape[1]
    if index >= me.reach:
        state.run[0].status = SHORT_HISTORY
        return False
    return True


@compiled
def enlist(state: State, core: int, pipes: int) -> None:
    """Put a core on the list to try some of its pipes."""
    if state.cores[core].todo == 0:
        state.todo[state.run[0].live] = core
        state.run[0].live += 1
    state.cores[core].todo |= pipes


@compiled
def ready(
    shape: Shape, code: Code, state: State, histories: Histories, row: int, index: int, at: int
) -> Cause:
    """When a pipe's instruction could start; if that is not known, the pipe will be woken."""
    issues, flagged = histories.issues, histories.flagged
    me = state.rows[row]
    known, latest, why = resolve(shape, code, state, histories, row, at)
    if not known:
        return Cause(-1, 0, 0)
    came = issues[row, index & (issues.shape[1] - 1)]
    if came >= latest:
        latest, why = came, ISSUE
    step = code.steps[at]
    if step.kind == WAIT_FLAG:
        when = flag_time(state, flagged, me.core, me.pipe, step.what, step.counts)
        if when < 0:
            return Cause(-1, 0, 0)
        if when > latest:
            latest, why = when, FLAG
    return Cause(latest, why, came)


@compiled
def depart(code: Code, state: State, row: int, head: int) -> None:
    """Let the instruction at work, which has begun, wait for its event."""
    run, me = state.run[0], state.rows[row]
    step = code.steps[me.step]
    me.phase = DRAINING
    me.earliest = me.began + head + step.cycles
    if step.kind == SET_FLAG:
        await_flag(state, row, me.earliest)
        return
    if step.kind != FLOW:
        me.phase = ENDING
        state.cores[me.core].todo |= 1 << me.pipe
        return
    key = ((me.began + head + step.startup) << ROW_BITS) + row
    push(state.joining, run.joins, key, row)
    run.joins += 1


@compiled
def take(code: Code, state: State, row: int, at: int, index: int, cause: Cause) -> int:
    """Begin an instruction whose causes are known: ``began``, ``why`` and ``waited`` of its row.

    Returns the cycles of its head.
    """
    me = state.rows[row]
    free = me.free
    if index == 0:
        state.account[row, NOT_STARTED] = cause.issued
        free = cause.issued
    me.step = at
    if cause.when <= free:
        me.began, me.why, me.waited = free, BUSY, 0
        return int(code.steps[at].head if index == 0 else 0)
    late = cause.why == FOLLOW and cause.issued > free
    issued = cause.issued if late else free
    state.account[row, ISSUE] += issued - free  # at the head of its queue it holds the pipe
    state.account[row, cause.why] += cause.when - issued
    me.began, me.why, me.waited = cause.when, cause.why, cause.when - free
    return int(code.steps[at].head)


@compiled
def work(shape: Shape, code: Code, state: State, histories: Histories, row: int) -> None:
    """Advance a pipe as far as it goes: until it waits, or its transfer is on the way.

    Whoever waits for this pipe is woken once, at the end.
    """
    ends, starts = histories.ends, histories.starts
    me = state.rows[row]
    if me.phase == ENDING:
        conclude(shape, code, state, ends, row, me.earliest)
    index, at, stop, busy, moved = me.ended, me.at, me.stop, 0, False
    while me.phase == READY and index < me.issued:
        if index >= me.reach and not room(shape, code, state, ends, row, index):
            break
        cause = ready(shape, code, state, histories, row, index, at)
        if cause.when < 0:
            break
        head = take(code, state, row, at, index, cause)
        step = code.steps[at]
        end = me.began + head + step.cycles
        starts[row, index & (starts.shape[1] - 1)] = me.began
        busy += end - me.began
        moved = True
        if step.kind in (FLOW, SET_FLAG) or step.follows:
            depart(code, state, row, head)
            break
        ends[row, index & (ends.shape[1] - 1)] = me.free = end
        if shape.keep:
            keep_span(code, state, row, index, end)
        index += 1
        at += 1
        if at >= stop:
            next_unit(shape, code, state, row)
            at, stop = me.at, me.stop
    if moved:
        state.run[0].completed += index - me.ended
        me.ended, me.at = index, at
        state.account[row, BUSY] += busy
        wake(state, me.core, row)
