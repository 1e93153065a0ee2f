"""Why a pipe spends a cycle: numbers of the names in ``REASONS``."""

from __future__ import annotations

#: Why a pipe spends a cycle, in the order that breaks ties between reasons of waiting.
#:
#: ``busy`` works at the speed it would have alone; ``bandwidth`` is a transfer's time beyond
#: that, because others share L2 or main memory; ``issue`` waits for the scalar pipe; ``queue``
#: (scalar pipe only) waits for room in another pipe's queue; ``data`` for an operand; ``space``
#: for a free buffer slot; ``flag`` for an explicit flag; ``barrier`` for a barrier;
#: ``follow`` for the unit flag, which lets it follow piece by piece;
#: ``not_started`` is before the pipe's first instruction was issued, ``done`` after its last.
REASONS = (
    "busy",
    "bandwidth",
    "issue",
    "queue",
    "data",
    "space",
    "flag",
    "barrier",
    "follow",
    "not_started",
    "done",
)

BUSY, BANDWIDTH, ISSUE, QUEUE, DATA, SPACE, FLAG, BARRIER, FOLLOW, NOT_STARTED, DONE = range(
    len(REASONS)
)
