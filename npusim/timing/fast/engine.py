"""The fast engine: the reference's meaning, interpreted from flat arrays by compiled code."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from npusim.errors import ProgramError
from npusim.program.program import Program
from npusim.reasons import DONE, NOT_STARTED
from npusim.timing.fast.kernel import begin, interpret
from npusim.timing.fast.l2 import COSTS, FastL2
from npusim.timing.fast.links import combinations
from npusim.timing.fast.state import (
    ACCOUNT,
    COMPLETED,
    CORE_COLUMNS,
    E_COUNT,
    ENDED,
    EVENT_COLUMNS,
    EVICT,
    FETCH,
    FINISHED,
    FREE,
    OUT_OF_BOUNDS,
    OVER,
    PHASE,
    ROW_COLUMNS,
    SCALARS,
    SHORT_FLAGS,
    SHORT_HISTORY,
    SPANS,
    STATUS,
    TROUBLE,
    UNIT,
    Cache,
    Histories,
    Shape,
    State,
)
from npusim.timing.fast.tables import Tables
from npusim.timing.outcome import IntArray, Outcome, Progress, Spans, hangs, outside

#: Instructions between two reports of progress.
_SLICE = 2_000_000

#: Columns of a ring at first; it grows as the program needs.
_RING = 64


class FastEngine:
    """Runs a program once; ``run`` returns its outcome."""

    def __init__(
        self, program: Program, l2: FastL2, *, keep_spans: bool, progress: Progress | None = None
    ) -> None:
        self.program, self.l2, self.progress = program, l2, progress
        self.tables = Tables(program, l2)
        self.shape = Shape(len(program.cores), len(program.pipes), self.tables.scalar, keep_spans)
        self.state = self._state(program.instructions if keep_spans else 0)
        self.histories = self._histories()

    def run(self) -> Outcome:
        """Simulate to the end.

        Raises ``ProgramError`` naming the kernel line if the program hangs, or if an access
        leaves its tensor.
        """
        state = self.state
        cache = Cache(self.l2.info, self.l2.lines, self.l2.aged)
        begin(self.shape, self.tables.code, state)
        budget = sys.maxsize // 2 if self.progress is None else _SLICE
        status = -1
        while status != OVER:
            interpret(self.shape, self.tables.code, state, cache, self.histories, budget)
            status = int(state.scalars[STATUS])
            if status == SHORT_HISTORY:
                self._lengthen_ends()
            elif status == SHORT_FLAGS:
                self._lengthen_flags()
            elif status == OUT_OF_BOUNDS:
                raise self._outside(int(state.scalars[TROUBLE]))
            if self.progress is not None:
                self.progress(int(state.scalars[COMPLETED]))
        self._check_finished()
        return self._outcome()

    # -- before ----------------------------------------------------------------------------

    def _state(self, kept: int) -> State:
        cores, pipes = self.shape.cores, self.shape.pipes
        rows = cores * pipes
        classes = self.tables.class_table()
        state = State(
            scalars=np.zeros(SCALARS, np.int64),
            rows=np.zeros((rows, ROW_COLUMNS), np.int64),
            before=np.zeros((rows, pipes), np.int64),
            core=np.zeros((cores, CORE_COLUMNS), np.int64),
            events=np.zeros((cores, max(1, len(self.tables.events)), EVENT_COLUMNS), np.int64),
            todo=np.zeros(cores, np.int64),
            joining=np.zeros((2, rows + 1), np.int64),
            raised=np.zeros((2, rows + 1), np.int64),
            classes=classes,
            finish=np.zeros((len(classes), rows + 1), np.int64),
            member=np.zeros((len(classes), rows + 1), np.int64),
            capacity=np.array(self.tables.fabric.capacities, np.int64),
            scratch=np.zeros((2, max(4, len(classes))), np.int64),
            known=combinations(rows, len(classes)),
            cost=np.zeros(COSTS, np.int64),
            hits=np.zeros((max(1, len(self.tables.operands)), 2), np.int64),
            spans=np.zeros((9, kept), np.int64),
        )
        starts = np.append(0, self.tables.code.last[:-1])
        state.rows[:, UNIT] = np.repeat(starts, pipes)
        return state

    def _histories(self) -> Histories:
        rows, queue = len(self.state.rows), 1 << int(self.tables.code.depth.max()).bit_length()
        ring = max(_RING, queue)
        cores, events, _ = self.state.events.shape
        return (
            np.zeros((rows, ring), np.int64),
            np.zeros((rows, ring), np.int64),
            np.zeros((rows, queue), np.int64),
            np.zeros((cores, events, _RING), np.int64),
        )

    # -- on the way ------------------------------------------------------------------------

    def _lengthen_ends(self) -> None:
        ends, starts, issues, flagged = self.histories
        ends = _doubled(ends, self.state.rows[:, ENDED])
        starts = _doubled(starts, self.state.rows[:, ENDED] + 1)
        self.histories = (ends, starts, issues, flagged)

    def _lengthen_flags(self) -> None:
        ends, starts, issues, flagged = self.histories
        cores, events, ring = flagged.shape
        counts = self.state.events[:, :, E_COUNT].reshape(-1)
        longer = _doubled(flagged.reshape(-1, ring), counts)
        self.histories = (ends, starts, issues, longer.reshape(cores, events, 2 * ring))

    def _outside(self, row: int) -> ProgramError:
        """The error for the transfer that a row is about to begin."""
        pipe = row % self.shape.pipes
        code, unit = self.tables.code, int(self.state.rows[row, UNIT])
        template = self.program.templates[code.template[code.units[unit]]]
        nth = int(self.state.rows[row, ENDED] - self.state.before[row, pipe])
        place = [i for i, p in enumerate(template.lowered.pipes) if p == pipe][nth]
        flow = template.flows[place]
        assert flow is not None
        base = int(code.bases[unit, flow.base]) if flow.base >= 0 else 0
        return outside(template.lines[place], template.instructions[place], flow.region, base)

    # -- after -----------------------------------------------------------------------------

    def _check_finished(self) -> None:
        """Raise unless every row came to its end."""
        pipes, rows = self.shape.pipes, self.state.rows
        for core in range(self.shape.cores):
            for pipe in sorted(range(pipes), key=lambda p: p != self.tables.scalar):
                row = core * pipes + pipe
                if rows[row, PHASE] != FINISHED:
                    latest = int(rows[:, FREE].max())
                    raise hangs(self.program, core, pipe, int(rows[row, ENDED]), latest)

    def _outcome(self) -> Outcome:
        state, (cores, pipes, scalar, keep) = self.state, self.shape
        rows = state.rows.reshape(cores, pipes, -1)
        cycles = int(state.rows[:, FREE].max())
        reasons = rows[:, :, ACCOUNT:].copy()
        idle = rows[:, :, ENDED] == 0
        idle[:, scalar] = False
        reasons[:, :, DONE] = np.where(idle, 0, cycles - rows[:, :, FREE])
        reasons[:, :, NOT_STARTED] = np.where(idle, cycles, reasons[:, :, NOT_STARTED])
        count = int(state.scalars[SPANS])
        return Outcome(
            cycles,
            reasons,
            {k: (int(state.hits[i, 0]), int(state.hits[i, 1])) for k, i in self._operands()},
            int(state.scalars[FETCH]),
            int(state.scalars[EVICT]),
            Spans(*state.spans[:, :count]) if keep else None,
        )

    def _operands(self) -> Any:
        return self.tables.operands.items()


def _doubled(ring: IntArray, counts: IntArray) -> IntArray:
    """Rings of twice the columns that keep the last entries; ``counts`` were written so far."""
    rows, size = ring.shape
    longer = np.zeros((rows, 2 * size), np.int64)
    for row, count in enumerate(counts.tolist()):
        kept = np.arange(max(0, count - size), count)
        longer[row, kept % (2 * size)] = ring[row, kept % size]
    return longer
