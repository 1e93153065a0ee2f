"""The inside of a core, compiled: its pipes, each advanced as far as its causes are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.reasons import BUSY, FLAG, FOLLOW, ISSUE, NOT_STARTED
from npusim.timing.fast.jit import compiled
from npusim.timing.fast.links import NEVER, push
from npusim.timing.fast.state import (
    ACCOUNT,
    AT,
    BEGAN,
    C_TODO,
    COMPLETED,
    CORE,
    COUNTS,
    CYCLES,
    DRAINING,
    E_COUNT,
    E_USED,
    E_WAITER,
    EARLIEST,
    END_WAITERS,
    ENDED,
    ENDING,
    FINISHED,
    FLAGS,
    FLOW,
    FOLLOWS,
    FREE,
    HEAD,
    HEADER,
    INSTRUCTION,
    ISSUED,
    JOINS,
    KIND,
    LAG_END,
    LAG_START,
    LIVE,
    PHASE,
    PIPE,
    REACH,
    READY,
    ROW_BITS,
    SET_FLAG,
    SHORT_HISTORY,
    SPANS,
    START_WAITERS,
    STARTUP,
    STATUS,
    STOP,
    UNIT,
    WAIT_FIELDS,
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
def next_unit(shape: Shape, code: Code, state: State, row: int) -> bool:
    """Enter the next unit with instructions for this row; False if there is none."""
    rows = state.rows
    core, pipe = rows[row, CORE], rows[row, PIPE]
    unit, last = rows[row, UNIT], code.last[core]
    while unit < last:
        variant = code.units[unit]
        if rows[row, STOP] >= 0:  # leaving a unit
            for q in range(shape.pipes):
                state.before[row, q] += code.totals[variant, q]
            unit += 1
            if unit >= last:
                break
            variant = code.units[unit]
        rows[row, AT] = code.first[variant, pipe]
        rows[row, STOP] = code.first[variant, pipe + 1]
        if rows[row, AT] < rows[row, STOP]:
            rows[row, UNIT] = unit
            return True
    rows[row, UNIT] = last
    rows[row, PHASE] = FINISHED
    return False


@compiled
def wake(state: State, core: int, row: int) -> None:
    """Let the pipes that wait for starts or ends of ``row`` try again."""
    state.core[core, C_TODO] |= state.rows[row, END_WAITERS] | state.rows[row, START_WAITERS]
    state.rows[row, END_WAITERS] = state.rows[row, START_WAITERS] = 0


@compiled
def resolve(
    shape: Shape, code: Code, state: State, histories: Histories, row: int, at: int
) -> tuple[bool, int, int]:
    """(known, latest cycle, its reason) of what the instruction at ``at`` waits for to start.

    Leaves the pipe's bit with the row it waits for if one is not known.
    """
    ends, starts = histories[0], histories[1]
    rows, stream = state.rows, code.stream
    first, bit = rows[row, CORE] * shape.pipes, 1 << rows[row, PIPE]
    mask = ends.shape[1] - 1
    latest, why = -1, 0
    wait = at + HEADER
    for _ in range(stream[at + WAITS]):
        q = stream[wait]
        need = stream[wait + 1] + state.before[row, q]
        reason = stream[wait + 2]
        wait += WAIT_FIELDS
        if need <= 0:
            continue
        other = first + q
        if reason == FOLLOW:
            if begun(rows, other) < need:
                rows[other, START_WAITERS] |= bit
                return False, 0, 0
            when = starts[other, (need - 1) & mask] + stream[at + LAG_START]
        else:
            if rows[other, ENDED] < need:
                rows[other, END_WAITERS] |= bit
                return False, 0, 0
            when = ends[other, (need - 1) & mask]
        if when > latest or (when == latest and reason < why):
            latest, why = when, reason
    return True, latest, why


@compiled
def begun(rows: IntArray, row: int) -> int:
    """How many instructions of a row have started."""
    return int(rows[row, ENDED]) + (rows[row, PHASE] in (DRAINING, ENDING))


@compiled
def conclude(shape: Shape, code: Code, state: State, ends: IntArray, row: int, end: int) -> None:
    """End the instruction at work at ``end``, or as late as those it follows make it.

    If that is not known yet the row stays ``ENDING``.
    """
    rows, stream = state.rows, code.stream
    at = rows[row, AT]
    latest = end
    if stream[at + FOLLOWS]:
        wait = at + HEADER
        for _ in range(stream[at + WAITS]):
            q = stream[wait]
            need = stream[wait + 1] + state.before[row, q]
            if stream[wait + 2] == FOLLOW and need > 0:
                other = rows[row, CORE] * shape.pipes + q
                if rows[other, ENDED] < need:
                    rows[other, END_WAITERS] |= 1 << rows[row, PIPE]
                    rows[row, PHASE] = ENDING
                    rows[row, EARLIEST] = end
                    return
                when = ends[other, (need - 1) & (ends.shape[1] - 1)]
                latest = max(latest, when + stream[at + LAG_END])
            wait += WAIT_FIELDS
        rows[row, ACCOUNT + FOLLOW] += latest - end
    rows[row, PHASE] = READY
    leave(shape, code, state, ends, row, latest)


@compiled
def flag_time(state: State, flagged: IntArray, core: int, pipe: int, event: int, count: int) -> int:
    """When the flag had counted ``count`` more, -1 if it has not; uses them up."""
    need = state.events[core, event, E_USED] + count
    if state.events[core, event, E_COUNT] < need:
        state.events[core, event, E_WAITER] = pipe + 1
        return -1
    state.events[core, event, E_USED] = need
    return int(flagged[core, event, (need - 1) & (flagged.shape[2] - 1)])


@compiled
def record(
    shape: Shape, code: Code, state: State, row: int, facts: tuple[int, int, int, int, int, int]
) -> None:
    """Keep a span: place in the stream, index, start, end, reason and cycles of waiting."""
    column, spans = state.scalars[SPANS], state.spans
    state.scalars[SPANS] = column + 1
    spans[0, column] = state.rows[row, CORE]
    spans[1, column] = state.rows[row, PIPE]
    spans[2, column] = facts[1]
    spans[3, column] = code.template[code.units[state.rows[row, UNIT]]]
    spans[4, column] = code.stream[facts[0] + INSTRUCTION]
    for i in range(2, 6):
        spans[i + 3, column] = facts[i]


@compiled
def leave(shape: Shape, code: Code, state: State, ends: IntArray, row: int, end: int) -> None:
    """Complete the instruction at work on ``row`` at ``end``, and look at the next."""
    rows = state.rows
    at, index = rows[row, AT], rows[row, ENDED]
    ends[row, index & (ends.shape[1] - 1)] = end
    rows[row, ENDED] = index + 1
    rows[row, FREE] = end
    state.scalars[COMPLETED] += 1
    if shape.keep:
        why, waited = rows[row, WHY], rows[row, WAITED]
        record(shape, code, state, row, (at, index, rows[row, BEGAN], end, why, waited))
    wake(state, state.rows[row, CORE], row)
    rows[row, AT] = at + HEADER + WAIT_FIELDS * code.stream[at + WAITS]
    if rows[row, AT] >= rows[row, STOP]:
        next_unit(shape, code, state, row)


@compiled
def await_flag(state: State, row: int, end: int) -> None:
    """Let the flag that the row's instruction sets be raised at ``end``, in the order of time."""
    state.rows[row, PHASE] = DRAINING
    push(state.raised[0], state.raised[1], state.scalars[FLAGS], end, row)
    state.scalars[FLAGS] += 1


@compiled
def room(shape: Shape, code: Code, state: State, ends: IntArray, row: int, index: int) -> bool:
    """Whether the row's end number ``index`` can be kept without losing one still needed.

    If not, the engine has to lengthen its histories.
    """
    rows = state.rows
    q = rows[row, PIPE]
    first = row - q
    oldest = index
    for p in range(shape.pipes):
        if code.oldest[p, q] != NEVER and rows[first + p, PHASE] != FINISHED:
            oldest = min(oldest, max(0, code.oldest[p, q] + state.before[first + p, q] - 1))
    rows[row, REACH] = oldest + ends.shape[1]
    if index >= rows[row, REACH]:
        state.scalars[STATUS] = SHORT_HISTORY
        return False
    return True


@compiled
def enlist(state: State, core: int, pipes: int) -> None:
    """Put a core on the list to try some of its pipes."""
    if state.core[core, C_TODO] == 0:
        state.todo[state.scalars[LIVE]] = core
        state.scalars[LIVE] += 1
    state.core[core, C_TODO] |= pipes


@compiled
def ready(
    shape: Shape, code: Code, state: State, histories: Histories, row: int, index: int, at: int
) -> tuple[int, int, int]:
    """(cycle, reason, issue): when a pipe's instruction could start, its last cause, its issue.

    The cycle is -1 if that is not known yet; then the pipe will be woken.
    """
    issues, flagged = histories[2], histories[3]
    core, pipe = state.rows[row, CORE], state.rows[row, PIPE]
    known, latest, why = resolve(shape, code, state, histories, row, at)
    if not known:
        return -1, 0, 0
    came = issues[row, index & (issues.shape[1] - 1)]
    if came >= latest:
        latest, why = came, ISSUE
    if code.stream[at + KIND] == WAIT_FLAG:
        what, more = code.stream[at + WHAT], code.stream[at + COUNTS]
        when = flag_time(state, flagged, core, pipe, what, more)
        if when < 0:
            return -1, 0, 0
        if when > latest:
            latest, why = when, FLAG
    return latest, why, came


@compiled
def depart(
    shape: Shape, code: Code, state: State, row: int, at: int, facts: tuple[int, int, int, int, int]
) -> None:
    """Let an instruction wait for its event: start, head, cycles alone, reason, waited."""
    rows, scalars = state.rows, state.scalars
    start, head, alone, why, waited = facts
    rows[row, PHASE] = DRAINING
    rows[row, BEGAN], rows[row, WHY], rows[row, WAITED] = start, why, waited
    rows[row, EARLIEST] = start + alone
    if code.stream[at + KIND] == SET_FLAG:
        await_flag(state, row, start + alone)
        return
    if code.stream[at + KIND] != FLOW:
        rows[row, PHASE] = ENDING
        state.core[rows[row, CORE], C_TODO] |= 1 << rows[row, PIPE]
        return
    key = ((start + head + code.stream[at + STARTUP]) << ROW_BITS) + row
    push(state.joining[0], state.joining[1], scalars[JOINS], key, row)
    scalars[JOINS] += 1


@compiled
def take(
    code: Code, state: State, row: int, at: int, index: int, cause: tuple[int, int, int]
) -> tuple[int, int, int, int]:
    """(start, head, reason, cycles waited) of an instruction whose causes are known."""
    rows = state.rows
    latest, why, came = cause
    free = rows[row, FREE]
    if index == 0:
        rows[row, ACCOUNT + NOT_STARTED] = came
        free = came
    if latest <= free:
        return free, code.stream[at + HEAD] if index == 0 else 0, BUSY, 0
    issued = came if why == FOLLOW and came > free else free
    rows[row, ACCOUNT + ISSUE] += issued - free  # at the head of its queue it holds the pipe
    rows[row, ACCOUNT + why] += latest - issued
    return latest, code.stream[at + HEAD], why, latest - free


@compiled
def work(shape: Shape, code: Code, state: State, histories: Histories, row: int) -> None:
    """Advance a pipe as far as it goes: until it waits, or its transfer is on the way.

    Whoever waits for this pipe is woken once, at the end.
    """
    ends, starts, _, _ = histories
    rows, stream = state.rows, code.stream
    if rows[row, PHASE] == ENDING:
        conclude(shape, code, state, ends, row, rows[row, EARLIEST])
    index, at, stop, busy, moved = rows[row, ENDED], rows[row, AT], rows[row, STOP], 0, False
    while rows[row, PHASE] == READY and index < rows[row, ISSUED]:
        if index >= rows[row, REACH] and not room(shape, code, state, ends, row, index):
            break
        cause = ready(shape, code, state, histories, row, index, at)
        if cause[0] < 0:
            break
        start, head, why, waited = take(code, state, row, at, index, cause)
        alone = head + stream[at + CYCLES]
        starts[row, index & (starts.shape[1] - 1)] = start
        busy += alone
        moved = True
        if stream[at + KIND] in (FLOW, SET_FLAG) or stream[at + FOLLOWS]:
            depart(shape, code, state, row, at, (start, head, alone, why, waited))
            break
        ends[row, index & (ends.shape[1] - 1)] = rows[row, FREE] = start + alone
        if shape.keep:
            record(shape, code, state, row, (at, index, start, start + alone, why, waited))
        index += 1
        at += HEADER + WAIT_FIELDS * stream[at + WAITS]
        if at >= stop:
            next_unit(shape, code, state, row)
            at, stop = rows[row, AT], rows[row, STOP]
    if moved:
        state.scalars[COMPLETED] += index - rows[row, ENDED]
        rows[row, ENDED], rows[row, AT] = index, at
        rows[row, ACCOUNT + BUSY] += busy
        wake(state, rows[row, CORE], row)
