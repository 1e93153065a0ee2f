"""The fast engine: the reference's meaning, interpreted from flat arrays by compiled code."""

from __future__ import annotations

import sys

import numpy as np

from npusim.base.errors import ProgramError
from npusim.base.integers import IntArray
from npusim.base.reasons import DONE, NOT_STARTED, REASONS
from npusim.machine.program.program import Program
from npusim.machine.timing.fast.kernel import interpret
from npusim.machine.timing.fast.l2 import FastL2
from npusim.machine.timing.fast.links import numbered, unknown
from npusim.machine.timing.fast.state import (
    CORE,
    COST,
    ENTRY,
    EVENT,
    FETCH,
    FINISHED,
    HITS,
    OUT_OF_BOUNDS,
    OVER,
    ROW,
    RUN,
    SHORT_FLAGS,
    SHORT_HISTORY,
    SPAN,
    Histories,
    Shape,
    State,
    empty,
)
from npusim.machine.timing.fast.tables import Tables
from npusim.machine.timing.outcome import Outcome, PipeSpans, Progress, hangs, outside

#: Instructions between two reports of progress.
_SLICE = 2_000_000

#: Columns of a ring at first; it grows as the program needs.
_RING = 64


class FastEngine:
    """Runs a program once; ``run`` returns its outcome."""

    def __init__(
        self,
        program: Program,
        l2: FastL2,
        starts: IntArray,
        *,
        keep_spans: bool,
        progress: Progress | None = None,
    ) -> None:
        self.program, self.l2, self.progress = program, l2, progress
        self.tables = Tables(program, l2)
        cores, pipes = len(program.cores), len(program.pipes)
        most = numbered(cores * pipes, len(self.tables.classes))
        self.shape = Shape(cores, len(program.working), pipes, self.tables.scalar, keep_spans, most)
        self.state = self._state(program.instructions if keep_spans else 0)
        scalars = np.arange(cores) * pipes + self.tables.scalar
        self.state.rows["free"][scalars] = starts
        self.state.account[scalars, NOT_STARTED] = starts
        self.histories = self._histories()

    def run(self) -> Outcome:
        """Simulate to the end.

        Raises ``ProgramError`` naming the kernel line if the program hangs, or if an access
        leaves its tensor.
        """
        state, code, cache = self.state, self.tables.code, self.l2.cache
        run = state.run[0]
        budget = sys.maxsize // 2 if self.progress is None else _SLICE
        while True:
            interpret(self.shape, code, state, cache, self.histories, budget)
            if self.progress is not None:
                self.progress(int(run["completed"]))
            if run["status"] == OVER:
                break
            if run["status"] == SHORT_HISTORY:
                self._lengthen_ends()
            elif run["status"] == SHORT_FLAGS:
                self._lengthen_flags()
            elif run["status"] == OUT_OF_BOUNDS:
                raise self._outside(int(run["trouble"]))
        self._check_finished()
        return self._outcome()

    # -- before ----------------------------------------------------------------------------

    def _state(self, kept: int) -> State:
        cores, pipes = self.shape.cores, self.shape.pipes
        rows = cores * pipes
        classes, uses, links = self.tables.shared()
        number, rates = unknown(len(classes))
        state = State(
            run=empty(RUN, 1),
            rows=empty(ROW, rows),
            account=np.zeros((rows, len(REASONS)), np.int64),
            before=np.zeros((rows, pipes), np.int64),
            cores=empty(CORE, cores),
            events=empty(EVENT, cores, max(1, len(self.tables.events))),
            todo=np.zeros(cores, np.int64),
            joining=empty(ENTRY, rows + 1),
            raised=empty(ENTRY, rows + 1),
            classes=classes,
            uses=uses,
            links=links,
            finish=empty(ENTRY, len(classes), rows + 1),
            number=number,
            rates=rates,
            cost=empty(COST, 1),
            hits=empty(HITS, max(1, len(self.tables.operands))),
            fetches=empty(FETCH, rows),
            flying=np.zeros(rows, np.int64),
            follower=np.zeros(rows, np.int64),
            further=np.empty((rows, rows), np.int64),  # written before it is read, as the next
            ending=np.empty(rows * rows + 1, np.int64),
            spans=empty(SPAN, kept),
        )
        starts = np.append(0, self.tables.code.last[:-1])
        state.rows["unit"] = np.repeat(starts, pipes)
        return state

    def _histories(self) -> Histories:
        rows, queue = len(self.state.rows), 1 << int(self.tables.code.depth.max()).bit_length()
        ring = max(_RING, queue, self.program.kept.get("ring", 0))
        cores, events = self.state.events.shape
        return Histories(
            ends=np.zeros((rows, ring), np.int64),
            starts=np.zeros((rows, ring), np.int64),
            issues=np.zeros((rows, queue), np.int64),
            flagged=np.zeros((cores, events, _RING), np.int64),
        )

    # -- on the way ------------------------------------------------------------------------

    def _lengthen_ends(self) -> None:
        ended = self.state.rows["ended"]
        ends = _doubled(self.histories.ends, ended)
        starts = _doubled(self.histories.starts, ended + 1)
        self.program.kept["ring"] = ends.shape[1]  # for variants of the program
        self.histories = self.histories._replace(ends=ends, starts=starts)

    def _lengthen_flags(self) -> None:
        cores, events, ring = self.histories.flagged.shape
        counts = self.state.events["count"].reshape(-1)
        longer = _doubled(self.histories.flagged.reshape(-1, ring), counts)
        self.histories = self.histories._replace(flagged=longer.reshape(cores, events, 2 * ring))

    def _outside(self, row: int) -> ProgramError:
        """The error for the transfer that a row is about to begin."""
        pipe = row % self.shape.pipes
        code, unit = self.tables.code, int(self.state.rows["unit"][row])
        template = self.program.templates[code.template[code.units[unit]]]
        nth = int(self.state.rows["ended"][row] - self.state.before[row, pipe])
        place = [i for i, p in enumerate(template.lowered.pipes) if p == pipe][nth]
        flow = template.flows[place]
        assert flow is not None
        base = int(code.bases[unit, flow.base]) if flow.base >= 0 else 0
        iteration = np.concatenate([core.iterations for core in self.program.cores])[unit]
        what = template.lines[place], template.instructions[place], flow
        return outside(*what, base, int(iteration))

    # -- after -----------------------------------------------------------------------------

    def _check_finished(self) -> None:
        """Raise unless every row came to its end."""
        pipes, rows = self.shape.pipes, self.state.rows
        if (rows["phase"] == FINISHED).all():
            return
        for core in range(self.shape.cores):
            for pipe in sorted(range(pipes), key=lambda p: p != self.tables.scalar):
                row = core * pipes + pipe
                if rows["phase"][row] != FINISHED:
                    latest = int(rows["free"].max())
                    raise hangs(self.program, core, pipe, int(rows["ended"][row]), latest)

    def _outcome(self) -> Outcome:
        state, run = self.state, self.state.run[0]
        cores, pipes, scalar = self.shape.cores, self.shape.pipes, self.shape.scalar
        free = state.rows["free"].reshape(cores, pipes)
        cycles = int(free.max())
        reasons = state.account.reshape(cores, pipes, -1)
        idle = state.rows["ended"].reshape(cores, pipes) == 0
        idle[:, scalar] = False
        reasons[:, :, DONE] = np.where(idle, 0, cycles - free)
        reasons[:, :, NOT_STARTED] = np.where(idle, cycles, reasons[:, :, NOT_STARTED])
        spans = state.spans[: run["spans"]]
        hits = state.hits.tolist()
        return Outcome(
            cycles,
            reasons,
            {operand: hits[i] for operand, i in self.tables.operands.items()},
            int(run["fetched"]),
            int(run["evicted"]),
            PipeSpans(*(spans[name] for name in SPAN.names or ())) if self.shape.keep else None,
        )


def _doubled(ring: IntArray, counts: IntArray) -> IntArray:
    """Rings of twice the columns that keep the last entries; ``counts`` were written so far."""
    rows, size = ring.shape
    longer = np.zeros((rows, 2 * size), np.int64)
    last = counts[:, None] - 1
    entry = last - (last - np.arange(size)) % size  # the last that each column was written for
    row, column = np.nonzero(entry >= 0)
    longer[row, entry[row, column] % (2 * size)] = ring[row, column]
    return longer
