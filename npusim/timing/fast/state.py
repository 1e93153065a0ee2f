"""The fast engine's data: flat int64 arrays, and what their columns mean."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.reasons import REASONS

IntArray = npt.NDArray[np.int64]

#: Columns of a row's state. UNIT, AT, STOP: place in the stream. ISSUED, ENDED: counts.
#: REACH: ends that can be recorded before the ring must be looked at.
#: FREE: end of the last instruction. PHASE: below. END_WAITERS, START_WAITERS: pipes (bits) to
#: wake. BEGAN, REASON, WAITED, EARLIEST: of the instruction at work. PARTS: of its transfer.
UNIT, AT, STOP, ISSUED, ENDED, FREE, PHASE, REACH = range(8)
END_WAITERS, START_WAITERS, BEGAN, WHY, WAITED, EARLIEST, PARTS = range(8, 15)
CORE, PIPE = range(15, 17)
ACCOUNT = 17
ROW_COLUMNS = ACCOUNT + len(REASONS)

#: Joins are kept as one number, cycle << ROW_BITS | row, so that rows break ties.
ROW_BITS = 16

#: Phases of a row: looking at its next instruction; waiting for its transfer or flag; worked, but
#: not to end before the instruction it follows; all done.
READY, DRAINING, ENDING, FINISHED = range(4)

#: A pipe instruction in the stream: fields, then (pipe, count, reason) per wait.
#: On the scalar pipe's stream all instructions appear: PIPE and COST alone if another pipe's.
#: COUNTS: how often a flag waited for counts, or 1 for a flag set in all groups. FOLLOWS: whether
#: any wait is for ``FOLLOW``.
CYCLES, HEAD, STARTUP, KIND, WHAT, COUNTS, INSTRUCTION = range(7)
FOLLOWS, LAG_START, LAG_END, WAITS = range(7, 11)
HEADER = 11
WAIT_FIELDS = 3
S_PIPE, S_ISSUE = range(2)
S_HEADER = 2

#: Kinds of instruction to the engine; WHAT is the flow's or the flag event's number.
PLAIN, FLOW, MEET, SET_FLAG, WAIT_FLAG = range(5)

#: Columns of the table of flows.
F_KIND, F_TENSOR, F_BASE, F_OFFSET, F_ROWS, F_BYTES, F_PITCH, F_OPERAND, F_CLASS, F_CLASS_2 = range(
    10
)
F_EVICT = 10
FLOW_COLUMNS = 11

#: Scalars of the engine.
NOW, LIVE, JOINS, FLAGS, SPANS, COMPLETED, MEETING, MEET_AT, FETCH, EVICT, STATUS, TROUBLE = range(
    12
)
NEXT, UNSETTLED = range(12, 14)
SCALARS = 14

#: Why the interpreter returned.
OVER, PAUSED, SHORT_HISTORY, SHORT_FLAGS, OUT_OF_BOUNDS = range(5)

#: Columns of a core: at a barrier or not, when it may go on; pipes to try; cores on the list.
C_MEET, C_MEET_AT, C_TODO = range(3)
CORE_COLUMNS = 3

#: Columns of a core's flag event: times counted, counts used up, the pipe waiting plus one.
E_COUNT, E_USED, E_WAITER = range(3)
EVENT_COLUMNS = 3


class Shape(NamedTuple):
    """Sizes that do not change during a run."""

    cores: int
    pipes: int
    scalar: int
    keep: bool  # spans


class Code(NamedTuple):
    """The program as flat arrays."""

    stream: IntArray
    first: IntArray  # (variants, pipes + 1): where each pipe's stream begins; the last is the end
    totals: IntArray  # (variants, pipes): instructions
    units: IntArray  # variant of every unit, core after core
    bases: IntArray  # (units, base columns)
    last: IntArray  # (cores,): where each core's units end
    depth: IntArray  # (pipes,): queue depths
    template: IntArray  # (variants,)
    flows: IntArray
    tensors: IntArray  # (tensors, 2): first block in the L2, bytes
    groups: IntArray  # (cores,)
    oldest: IntArray  # (pipes, pipes): least count, unit-relative, that p waits for of q; NEVER


class State(NamedTuple):
    """Everything that changes, but for histories and flag times, which may be replaced."""

    scalars: IntArray
    rows: IntArray
    before: IntArray  # (rows, pipes): instructions in earlier units, by pipe
    core: IntArray
    events: IntArray  # (cores, events, EVENT_COLUMNS)
    todo: IntArray  # cores on the list of those to advance
    joining: IntArray  # heap of joins: (2, rows)
    raised: IntArray  # heap of flags to be raised: (2, rows)
    classes: IntArray
    finish: IntArray
    member: IntArray
    capacity: IntArray
    scratch: IntArray  # (2, many)
    known: IntArray  # rates by counts (see ``rerate``)
    cost: IntArray
    hits: IntArray  # (operands, 2)
    spans: IntArray  # (9, instructions kept)


#: Rings by row: ends of instructions, starts, times of issue; and by core and event, times of
#: flags. All have a power of two of columns.
Histories = tuple[IntArray, IntArray, IntArray, IntArray]


class Cache(NamedTuple):
    """The L2's arrays (see ``l2``)."""

    info: IntArray
    lines: IntArray
    aged: IntArray
