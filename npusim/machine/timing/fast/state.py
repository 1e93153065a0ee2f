"""The fast engine's data: arrays of int64 records, whose fields have names here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.integers import IntArray

#: An array whose elements have the fields of one of the types below.
Records = npt.NDArray[np.void]


def record(*names: str) -> np.dtype[np.void]:
    """Return the type of a record of int64 fields."""
    return np.dtype([(name, np.int64) for name in names], align=True)


def empty(kind: np.dtype[np.void], *shape: int) -> Records:
    """Return an array of records whose every field is 0."""
    return np.zeros(shape, kind)


def filled(kind: np.dtype[np.void], rows: Sequence[tuple[int, ...]] | IntArray) -> Records:
    """Return an array of records from rows with a value per field, at least one record long."""
    if not len(rows):
        return empty(kind, 1)
    return np.ascontiguousarray(rows, np.int64).view(kind).reshape(-1)


#: A row of the engine is a pipe of a core. ``unit``, ``at``, ``stop``: place in the program;
#: ``step``: the step at work; ``issued``, ``ended``: instructions; ``reach``: ends that can be
#: recorded before the ring must be looked at; ``free``: end of the last instruction;
#: ``end_waiters``, ``start_waiters``: pipes (bits) to wake; ``began``, ``why``, ``waited``,
#: ``earliest``: of the instruction at work; ``parts``: of its transfer.
ROW = record(
    *("unit", "at", "stop", "step", "issued", "ended", "free", "phase", "reach"),
    *("end_waiters", "start_waiters", "began", "why", "waited", "earliest", "parts"),
    *("core", "pipe"),
)

#: Joins are kept as one number, cycle << ROW_BITS | row, so that rows break ties.
ROW_BITS = 16

#: Phases of a row: looking at its next instruction; waiting for its transfer or flag; worked, but
#: not to end before the instruction it follows; all done.
READY, DRAINING, ENDING, FINISHED = range(4)

#: An instruction. ``what``: number of its flow or flag event; ``counts``: how often a flag waited
#: for counts, or 1 for a flag set in all groups; ``instruction``: place in the template;
#: ``follows``: whether any wait is for ``FOLLOW``; ``first``, ``last``: its waits.
STEP = record(
    *("cycles", "head", "startup", "kind", "what", "counts", "instruction"),
    *("follows", "lag_start", "lag_end", "first", "last"),
)
WAIT = record("pipe", "count", "why")

#: What the scalar pipe does with an instruction; ``step`` if it runs it itself.
ISSUING = record("pipe", "cost", "step")

#: Kinds of instruction to the engine.
PLAIN, FLOW, MEET, SET_FLAG, WAIT_FLAG = range(5)

#: A flow. ``local``: whether it stays inside its core; ``store``: whether it writes GM;
#: ``first``, ``missing``, ``second``, ``evict``: parts, as rows of ``Code.classes``; of a read
#: what occupies the L2 where it has all and where it has not, then what it lacks.
#: ``request``: bytes of the L2's bandwidth for each row besides its own; ``regions``, ``apart``:
#: how many places of this shape a store writes, and bytes from one to the next.
FLOWING = record(
    *("local", "store", "size", "tensor", "base", "offset", "rows", "bytes", "pitch", "operand"),
    *("first", "missing", "second", "evict", "request", "regions", "apart"),
)

#: A tensor: its first block in the L2, its bytes.
TENSOR = record("block", "bytes")

#: The engine's own state. ``next``: when a transfer finishes; ``unsettled``: whether links are to
#: be shared anew; ``live``: cores to advance; ``joins``, ``flags``: entries of heaps; ``meeting``,
#: ``meet_at``: cores at the barrier, and the latest arrival; ``trouble``: a row; ``flying``: how
#: many transfers are under way that fetch something.
RUN = record(
    *("begun", "now", "next", "unsettled", "live", "joins", "flags", "spans", "completed"),
    *("meeting", "meet_at", "fetched", "evicted", "status", "trouble", "flying"),
)

#: Why the interpreter returned.
OVER, PAUSED, SHORT_HISTORY, SHORT_FLAGS, OUT_OF_BOUNDS = range(5)

#: A core: at a barrier or not, when it may go on, its pipes (bits) to try.
CORE = record("meet", "meet_at", "todo")

#: A flag event of a core: times counted, counts used up, the pipe waiting plus one; how often the
#: core itself has set it for its group.
EVENT = record("count", "used", "waiter", "sets")

#: An entry of a heap: the smallest ``key`` is on top.
ENTRY = record("key", "who")

#: A class of transfers, and the uses of links it has from ``first`` to ``last``.
CLASS = record("cap", "count", "rate", "drained", "first", "last", "limit")
USE = record("link", "weight")
#: A link: ``turning`` is its capacity while main memory is read and written back at once,
#: ``direction`` READS or WRITES for the link of what is read from main memory or written to it.
LINK = record("capacity", "turning", "direction", "left", "demand", "fair")
READS, WRITES = 1, 2

#: An executed instruction, in the order of ``npusim.machine.timing.outcome.PipeSpans``.
SPAN = record("core", "pipe", "index", "template", "instruction", "start", "end", "why", "waited")

#: Bytes of operands read from the L2, of those that were not there, and of the sectors fetched.
HITS = record("hit", "miss", "fetched")

#: The L2. ``used``, ``capacity``: sectors; ``aged``, ``aged_end``: what is left of the sorted list;
#: ``waiting``: what a missed byte takes of its bandwidth besides its own, in fixed point.
L2_INFO = record(
    *("cached", "block_shift", "sector_shift", "capacity", "used", "clock", "aged", "aged_end"),
    "waiting",
)

#: What a transfer reads: rows of bytes of a tensor, from sector ``first`` to ``last``. Where the
#: pitch is in whole sectors and no row reaches into the next, ``line`` is the first row's number,
#: and each has sectors ``left`` to ``right``; else ``line`` is -1. ``at``: place among those under
#: way that fetch something, plus one.
FETCH = record(
    *("tensor", "offset", "rows", "bytes", "pitch", "first", "last", "line", "left", "right", "at")
)

#: What an access costs, in bytes: in the L2, from main memory, to it.
COST = record("hit", "fetched", "evicted")


class Shape(NamedTuple):
    """Sizes that do not change during a run."""

    cores: int
    working: int  # cores with tasks
    pipes: int
    scalar: int
    keep: bool  # spans
    most: int  # transfers of a class plus one, 0 if combinations of counts have no number


class Code(NamedTuple):
    """The program as flat arrays."""

    steps: Records  # STEP
    waits: Records  # WAIT
    issuing: Records  # ISSUING
    first: (
        IntArray  # (variants, pipes): where a pipe's steps begin, on the scalar pipe: ``issuing``
    )
    stop: IntArray  # (variants, pipes): where they end
    totals: IntArray  # (variants, pipes): instructions
    units: IntArray  # variant of every unit, core after core
    bases: IntArray  # (units, base columns)
    last: IntArray  # (cores,): where each core's units end
    depth: IntArray  # (pipes,): queue depths
    template: IntArray  # (variants,)
    flows: Records  # FLOWING
    classes: IntArray  # (parts of flows, cores): the class of a core's transfer
    tensors: Records  # TENSOR
    groups: IntArray  # (cores,)
    setters: IntArray  # (cores, events): whether a core sets the event for its group
    oldest: IntArray  # (pipes, pipes): least count, unit-relative, that p waits for of q; NEVER


class State(NamedTuple):
    """Everything that changes, but for histories and flag times, which may be replaced."""

    run: Records  # (1,) of RUN
    rows: Records  # ROW
    account: IntArray  # (rows, reasons)
    before: IntArray  # (rows, pipes): instructions in earlier units, by pipe
    cores: Records  # CORE
    events: Records  # (cores, events) of EVENT
    todo: IntArray  # cores on the list of those to advance
    joining: Records  # heap of joins
    raised: Records  # heap of flags to be raised
    classes: Records  # CLASS
    uses: Records  # USE
    links: Records  # LINK
    finish: Records  # (classes, rows + 1) of ENTRY: heaps of finishing points
    number: IntArray  # combinations of counts whose rates are known (see ``rerate``)
    rates: IntArray  # (combinations, classes)
    cost: Records  # (1,) of COST
    hits: Records  # (operands,) of HITS
    fetches: Records  # FETCH: by row
    flying: IntArray  # rows whose transfers fetch something, ``flying`` of ``run`` of them
    follower: IntArray  # rows: the first row that follows, plus one
    further: IntArray  # (rows, rows): of a row's followers, the one after each, plus one
    ending: IntArray  # rows whose parts end: a stack
    spans: Records  # (instructions kept,) of SPAN


class Histories(NamedTuple):
    """Rings by row, and by core and event; all have a power of two of columns."""

    ends: IntArray
    starts: IntArray
    issues: IntArray
    flagged: IntArray  # (cores, events, columns): times of flags


class Cache(NamedTuple):
    """The L2's arrays (see ``l2``)."""

    info: Records  # (1,) of L2_INFO
    stamp: IntArray  # clock of a block's last access, 0 if absent
    valid: IntArray  # masks of sectors
    dirty: IntArray
    aged: Records  # ENTRY: blocks by stamp, sorted
    spare: Records  # the same while sorting
    counts: IntArray  # of digits while sorting


class Cause(NamedTuple):
    """When an instruction could start, -1 if not known yet; its last cause, its issue."""

    when: int
    why: int
    issued: int
