"""What a program promises about order holds in the simulated time of random programs."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.base.errors import ProgramError
from npusim.machine.program.order import ProgramOrder
from npusim.machine.program.program import Program
from npusim.machine.timing.run import new_l2, time_program
from npusim.machine.timing.trace import Timeline
from tests.machine.timing.random_programs import random_case
from tests.sampled import slow_if


def times(program: Program, timeline: Timeline) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(start, end) of the instructions of each core's pipes, in their order."""
    cores = [core.name for core in program.cores]
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    rows = zip(timeline.core, timeline.pipe, timeline.start, timeline.end, strict=True)
    for core, pipe, start, end in rows:
        key = cores.index(timeline.cores[core]), program.pipes.index(timeline.pipes[pipe])
        found.setdefault(key, []).append((int(start), int(end)))
    return {key: sorted(spans) for key, spans in found.items()}


def takes_turns(program: Program) -> bool:
    """Whether several cores count one flag of their group up, which rounds are assumed of."""
    sizes = np.bincount([core.group for core in program.cores])
    signals = (one.signals for t in program.templates for one in t.instructions)
    return bool(sizes.max() > 2 and any(s is not None and s.scope == "group" for s in signals))


def promises(program: Program) -> tuple[int, int, int]:
    """How many promises within cores and between them were kept, by how many instructions.

    Nothing is asked of programs that hang, and of those with rounds.
    """
    if takes_turns(program):
        return 0, 0, 0
    try:
        run = time_program(program, new_l2(program.device, "simpy"), timeline=True)
    except ProgramError:
        return 0, 0, 0
    assert run.timeline is not None
    spans, order = times(program, run.timeline), ProgramOrder(program)
    counts = {"own": 0, "others": 0, "rows": 0}
    for (core, pipe), own in spans.items():
        for number, (start, _) in enumerate(own, 1):
            known = order.meetings.counts(core, pipe, number)
            counts["rows"] += 1
            for other, q in np.argwhere(known > 0).tolist():
                if (other, q) != (core, pipe):
                    ended = spans[other, q][known[other, q] - 1][1]
                    assert ended <= start, (program.kernel, core, pipe, number, other, q)
                    counts["own" if other == core else "others"] += 1
    return counts["own"], counts["others"], counts["rows"]


@pytest.mark.parametrize("first", [slow_if(first > 20, first) for first in range(0, 120, 20)])
def test_promises_are_kept(first: int) -> None:
    kept = np.zeros(3, np.int64)
    for seed in range(first, first + 20):
        for program in random_case(seed).programs:
            if program.instructions < 500:
                kept += promises(program)
    assert kept[0] > 1000  # of pipes of one core
    assert kept[1] > 500  # of other cores
