"""What every instruction that waited had waited for: arrows between instructions in a trace."""

from __future__ import annotations

import numpy as np

from npusim.base.integers import IntArray
from npusim.program.program import Program
from npusim.timing.critical import Place, Walk
from npusim.timing.outcome import Spans


def causes(program: Program, spans: Spans) -> IntArray:
    """For each row of the timeline the row whose instruction let it start, -1 where none did.

    Rows are those of ``Timeline``. An instruction that did not wait, that waited to be issued or at
    a barrier of all cores has no cause among them.
    """
    order = np.lexsort((spans.index, spans.pipe, spans.core, spans.start))
    columns = (spans.core, spans.pipe, spans.index, spans.start, spans.waited)
    rows = [tuple(row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]
    place_of = {row[:3]: number for number, row in enumerate(rows)}
    walk = Walk(program, spans)
    found = np.full(len(rows), -1, np.int64)
    for number, (core, pipe, index, start, waited) in enumerate(rows):
        if waited:
            cause = walk.awaited(Place(core, pipe, index), start)
            if cause is not None:
                found[number] = place_of[tuple(cause)]
    return found
