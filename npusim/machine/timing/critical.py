"""The critical path of a simulated program: the chain of causes that its last cycle rests on.

From the end of the instruction that ends last, the walk goes back in time. What an instruction
works is its own; before its start comes whatever allowed it last: its predecessor in the pipe,
another pipe it waited for, a flag, the last core at a barrier, or the scalar pipe that issued it,
which itself may have waited for room in a queue, or for its core to start. Every cycle from the end
to 0 belongs to one instruction or start, so that the parts add up to the makespan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from npusim.base.integers import IntArray, ceil_div
from npusim.base.reasons import FOLLOW
from npusim.machine.device.parts import CubeRate
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Instruction
from npusim.machine.isa.cost_parts import cost_parts
from npusim.machine.isa.cube import Mmad
from npusim.machine.isa.dsp import DspGemm
from npusim.machine.program.lower import Wait
from npusim.machine.program.program import Program
from npusim.machine.timing.outcome import PipeSpans
from npusim.machine.timing.trace import (
    FOLLOWING,
    GAP,
    ISSUING,
    SHARING,
    STARTING,
    PipeWork,
    Step,
    core_starts,
)


class Place(NamedTuple):
    """An executed instruction: its core, its pipe, and its number among those of the pipe."""

    core: int
    pipe: int
    number: int


def critical_path(program: Program, spans: PipeSpans, cycles: int) -> tuple[Step, ...]:
    """The steps that the makespan of ``cycles`` rests on, most first; they add up to it."""
    by_work: dict[PipeWork, tuple[Counter[str], set[Place]]] = {}
    for work, part, length, place in CauseWalk(program, spans).back(cycles):
        parts, places = by_work.setdefault(work, (Counter(), set()))
        parts[part] += length
        places.add(place)
    steps = (Step(work, len(places), dict(parts)) for work, (parts, places) in by_work.items())
    return tuple(sorted(steps, key=lambda step: (-step.cycles, step.work)))


class _Core:
    """The executed instructions of a core by pipe, and in the order in which they were issued."""

    def __init__(self, program: Program, spans: PipeSpans, number: int, began: int) -> None:
        self.program = program
        self.number = number
        self.began = began
        self.scalar = program.pipes.index("S")
        self.variants = program.cores[number].variants
        template_of = np.array([variant.template for variant in program.variants], np.int64)
        self.templates = template_of[self.variants]
        #: Cycles in which instructions start and end, by pipe in the order of the pipe.
        self.start: list[IntArray] = []
        self.end: list[IntArray] = []
        rows = np.flatnonzero(spans.core == number)
        order = rows[np.lexsort((spans.index[rows], spans.pipe[rows]))]
        cuts = np.searchsorted(spans.pipe[order], np.arange(len(program.pipes) + 1))
        for begin, end in pairwise(cuts.tolist()):
            of_pipe = order[begin:end]
            self.start.append(spans.start[of_pipe])
            self.end.append(spans.end[of_pipe])
        totals = np.array([t.lowered.totals for t in program.templates], np.int64)
        counts = np.cumsum(totals[self.templates], axis=0)
        # By pipe, instructions before each task: rows, because whole ones are searched.
        self.before = np.ascontiguousarray(np.pad(counts, ((1, 0), (0, 0))).T)
        sizes = np.array([len(t.instructions) for t in program.templates], np.int64)
        self.first = np.concatenate([[0], np.cumsum(sizes[self.templates])])

    @cached_property
    def pipes(self) -> IntArray:
        """The pipe of every instruction in program order."""
        of = [np.array(t.lowered.pipes, np.int64) for t in self.program.templates]
        return np.concatenate([np.zeros(0, np.int64), *(of[t] for t in self.templates.tolist())])

    @cached_property
    def numbers(self) -> IntArray:
        """The number of every instruction among those of its pipe, in program order."""
        numbers = np.zeros(len(self.pipes), np.int64)
        for pipe in range(len(self.program.pipes)):
            on_pipe = self.pipes == pipe
            numbers[on_pipe] = np.arange(int(on_pipe.sum()))
        return numbers

    @cached_property
    def issue_cycles(self) -> IntArray:
        """Cycles of the scalar pipe to issue every instruction; 0 for those it executes itself."""
        of = [
            np.array(
                [
                    0 if pipe == self.scalar else cost.issue
                    for pipe, cost in zip(t.lowered.pipes, t.costs, strict=True)
                ],
                np.int64,
            )
            for t in self.program.templates
        ]
        return np.concatenate([np.zeros(0, np.int64), *(of[t] for t in self.templates.tolist())])

    @cached_property
    def issued(self) -> IntArray:
        """Cycles at which the scalar pipe has done with each instruction, in program order.

        That is when it has issued it, or has executed one of its own. It goes on when
        it is free and there is room in the queue: a running maximum.
        """
        earliest = np.full(len(self.pipes), self.began, np.int64)
        for pipe, name in enumerate(self.program.pipes):
            on_pipe = np.flatnonzero(self.pipes == pipe)
            if pipe == self.scalar:
                earliest[on_pipe] = self.end[pipe]
            else:
                depth = self.program.device.pipe(name).queue_depth
                earliest[on_pipe[depth:]] = self.start[pipe][: max(0, len(on_pipe) - depth)]
        spent = np.cumsum(self.issue_cycles)
        done: IntArray = spent + np.maximum.accumulate(earliest - spent + self.issue_cycles)
        return done

    def ended(self, pipe: int, count: int) -> int:
        """The cycle at which a pipe had completed ``count`` instructions, at least one."""
        return int(self.end[pipe][count - 1])

    def locate(self, pipe: int, index: int) -> tuple[int, int, int]:
        """Task, place in its template and place in program order of an instruction."""
        task = int(np.searchsorted(self.before[pipe], index, side="right")) - 1
        template = self.program.templates[self.templates[task]]
        places = _places(template.lowered.pipes, pipe)
        place = places[index - int(self.before[pipe, task])]
        return task, place, int(self.first[task]) + place

    def waits(self, task: int, place: int) -> list[Wait]:
        """Waits of an instruction, in counts from the start of the core."""
        counted = self.program.variants[self.variants[task]].waits[place]
        before = self.before[:, task]
        return [(q, n + int(before[q]), why) for q, n, why in counted]


@cache
def _places(pipes: tuple[int, ...], pipe: int) -> list[int]:
    """Places of the instructions of a pipe among those of a template."""
    return [i for i, other in enumerate(pipes) if other == pipe]


#: A stretch of the path: whose it is, the part of its cost, cycles, and which instruction it was.
Stretch = tuple[PipeWork, str, int, Place]


class CauseWalk:
    """Goes back from the end of a program."""

    def __init__(self, program: Program, spans: PipeSpans) -> None:
        self.program = program
        self.spans = spans
        self.device = program.device
        self.scalar = program.pipes.index("S")
        self.starts: list[int] = core_starts(program).tolist()
        self.cores: dict[int, _Core] = {}
        self.costs: dict[tuple[int, int], dict[str, int]] = {}
        self.barriers: dict[int, list[int]] = {}

    def back(self, cycles: int) -> Iterator[Stretch]:
        """Stretches from the end to cycle 0, none of them overlapping."""
        last = np.flatnonzero(self.spans.end == cycles)
        if not len(last):
            return
        row = int(last[0])
        place = Place(
            core=int(self.spans.core[row]),
            pipe=int(self.spans.pipe[row]),
            number=int(self.spans.index[row]),
        )
        ended = True
        now = cycles
        while now > 0:
            if ended:
                place, ended, stretches = self._work(place, now)
            else:
                place, ended, stretches = self._cause(place, now)
            for stretch in stretches:
                now -= stretch[2]
                yield stretch

    def core(self, number: int) -> _Core:
        """The tables of a core, made when the path first meets it."""
        if number not in self.cores:
            start = self.starts[number]
            self.cores[number] = _Core(self.program, self.spans, number, start)
        return self.cores[number]

    # -- from the end of an instruction to its start ---------------------------------------

    def _work(self, place: Place, now: int) -> tuple[Place, bool, list[Stretch]]:
        """The work of an instruction, and its start; or the end of what it lagged behind."""
        core = self.core(place.core)
        task, step, _ = core.locate(place.pipe, place.number)
        template = self.program.templates[core.templates[task]]
        start = int(core.start[place.pipe][place.number])
        cost = template.costs[step]
        work = self._named(place, task, step)
        gapless = place.pipe == self.scalar or (
            place.number > 0 and core.ended(place.pipe, place.number) == start
        )
        head = 0 if gapless else cost.idle_head
        if cost.lag_end and now > start + head + cost.cycles:
            for q, n, why in core.waits(task, step):
                if why == FOLLOW and n > 0 and core.ended(q, n) + cost.lag_end == now:
                    ahead = Place(place.core, q, n - 1)
                    return ahead, True, [(work, FOLLOWING, cost.lag_end, place)]
        parts = {**self._parts(core.templates[task], step), GAP: head}
        parts[SHARING] = now - start - head - cost.cycles
        return place, False, [(work, part, n, place) for part, n in parts.items() if n]

    def _parts(self, template: int, place: int) -> dict[str, int]:
        """The cost of an instruction of a template alone, by part."""
        key = int(template), place
        if key not in self.costs:
            of = self.program.templates[key[0]]
            instruction = (of.priced or of.instructions)[place]
            self.costs[key] = cost_parts(instruction, self.device)
        return self.costs[key]

    # -- from the start of an instruction to what allowed it last --------------------------

    def _cause(self, place: Place, now: int) -> tuple[Place, bool, list[Stretch]]:
        """The instruction that ended, or was issued, just when it started."""
        core = self.core(place.core)
        task, step, order = core.locate(place.pipe, place.number)
        if (
            place.pipe != self.scalar
            and place.number
            and core.ended(place.pipe, place.number) == now
        ):
            return Place(place.core, place.pipe, place.number - 1), True, []
        awaited = self._awaited(place, now, task, step)
        if awaited is not None:
            return awaited
        setter = self._signalled(place, now, task, step)
        if setter is not None:
            return setter, True, []
        before = order - (place.pipe == self.scalar)
        if place.pipe != self.scalar or (order and int(core.issued[before]) == now):
            return self._issue(place.core, before, now)
        if not order and core.began == now:
            return place, False, self._start(place)
        return self._meeting(place, now), False, []

    def _start(self, place: Place) -> list[Stretch]:
        """The cycles before a core starts: those in which the cores before it are started."""
        began = self.core(place.core).began
        return [(PipeWork("S", "start", "launch"), STARTING, began, place)] if began else []

    def awaited(self, place: Place, now: int) -> Place | None:
        """The instruction of another pipe or core that let one start at ``now``, if one did."""
        task, step, _ = self.core(place.core).locate(place.pipe, place.number)
        awaited = self._awaited(place, now, task, step)
        return self._signalled(place, now, task, step) if awaited is None else awaited[0]

    def _signalled(self, place: Place, now: int, task: int, step: int) -> Place | None:
        """The instruction that set the flag it waits for at ``now``; None if it waits for none."""
        template = self.program.templates[self.core(place.core).templates[task]]
        awaits = template.instructions[step].awaits
        return self._signal(place, awaits.event, now) if awaits is not None else None

    def _awaited(
        self, place: Place, now: int, task: int, step: int
    ) -> tuple[Place, bool, list[Stretch]] | None:
        """The instruction of another pipe whose end, or start, it waited for until ``now``."""
        core = self.core(place.core)
        template = self.program.templates[core.templates[task]]
        lag = template.costs[step].lag_start
        for q, n, why in core.waits(task, step):
            if n > 0 and why == FOLLOW and place.pipe != self.scalar:
                if int(core.start[q][n - 1]) + lag == now:
                    work = self._named(place, task, step)
                    behind = [(work, FOLLOWING, lag, place)] if lag else []
                    return Place(place.core, q, n - 1), False, behind
            elif n > 0 and core.ended(q, n) == now:
                return Place(place.core, q, n - 1), True, []
        return None

    def _named(self, place: Place, task: int, step: int) -> PipeWork:
        """The time the path spends on an instruction, besides issuing it."""
        template = self.program.templates[self.core(place.core).templates[task]]
        return PipeWork(
            self.program.pipes[place.pipe], template.facts[step].op, template.lines[step]
        )

    def _issue(self, number: int, order: int, now: int) -> tuple[Place, bool, list[Stretch]]:
        """Back through the scalar pipe, which was done with an instruction at ``now``."""
        core = self.core(number)
        stretches: list[Stretch] = []
        while True:
            pipe = int(core.pipes[order])
            index = int(core.numbers[order])
            if pipe == self.scalar:
                return Place(number, pipe, index), True, stretches
            task, place, _ = core.locate(pipe, index)
            template = self.program.templates[core.templates[task]]
            cost = int(core.issue_cycles[order])
            if cost:
                work = PipeWork("S", f"issue {template.facts[place].op}", template.lines[place])
                stretches.append((work, ISSUING, cost, Place(number, pipe, index)))
                now -= cost
            depth = self.device.pipe(self.program.pipes[pipe]).queue_depth
            before = int(core.issued[order - 1]) if order else core.began
            if before < now:  # it waited for room in the queue
                return Place(number, pipe, index - depth), False, stretches
            if not order:
                first = Place(number, pipe, index)
                return first, False, [*stretches, *self._start(first)]
            order -= 1

    # -- between cores ---------------------------------------------------------------------

    def _meeting(self, place: Place, now: int) -> Place:
        """The barrier of the core that came last, which was free to meet the others at ``now``."""
        which = self._barriers(place.core).index(place.number)
        for number in self.program.working:
            there = Place(number, self.scalar, self._barriers(number)[which])
            if number != place.core and self._arrived(there) == now:
                return there
        raise AssertionError(f"nothing allowed {place} to start at {now}")

    def _arrived(self, place: Place) -> int:
        """The cycle at which a core came to a barrier: free, its pipes done with all before."""
        core = self.core(place.core)
        task, step, order = core.locate(place.pipe, place.number)
        times = [core.ended(q, n) for q, n, _ in core.waits(task, step) if n > 0]
        return max([int(core.issued[order - 1]) if order else core.began, *times])

    def _barriers(self, number: int) -> list[int]:
        """Numbers of a core's barriers with others among its scalar instructions."""
        if number not in self.barriers:
            core = self.core(number)
            self.barriers[number] = [
                int(core.before[self.scalar, task]) + ordinal
                for task, template in enumerate(core.templates.tolist())
                for ordinal in self._meets(template)
            ]
        return self.barriers[number]

    def _meets(self, template: int) -> list[int]:
        """Numbers of a template's scalar instructions that are barriers of all cores."""
        instructions = self.program.templates[template].instructions
        scalar_steps = _places(self.program.templates[template].lowered.pipes, self.scalar)
        return [number for number, step in enumerate(scalar_steps) if instructions[step].meets]

    @cached_property
    def _by_end(self) -> tuple[IntArray, IntArray]:
        """Rows of instructions in the order of their ends, and these."""
        order = np.argsort(self.spans.end, kind="stable")
        return order, self.spans.end[order]

    def _signal(self, place: Place, event: int, now: int) -> Place | None:
        """The instruction of another core that set a flag at ``now``."""
        group = self.program.cores[place.core].group
        order, ends = self._by_end
        first, last = np.searchsorted(ends, [now, now + 1])
        for row in order[first:last].tolist():
            template = self.program.templates[int(self.spans.template[row])]
            signal = template.instructions[int(self.spans.instruction[row])].signals
            other = int(self.spans.core[row])
            same = self.program.cores[other].group == group
            if signal is None or other == place.core or signal.event != event:
                continue
            if same or signal.scope == "all":
                return Place(other, int(self.spans.pipe[row]), int(self.spans.index[row]))
        return None


def causes(program: Program, spans: PipeSpans) -> IntArray:
    """For each row of the timeline the row whose instruction let it start, -1 where none did.

    Rows are those of ``Timeline``. An instruction that did not wait, that waited to be issued or at
    a barrier of all cores has no cause among them.
    """
    order = np.lexsort((spans.index, spans.pipe, spans.core, spans.start))
    columns = (spans.core, spans.pipe, spans.index, spans.start, spans.waited)
    rows = [tuple(row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]
    place_of = {row[:3]: number for number, row in enumerate(rows)}
    walk = CauseWalk(program, spans)
    cause_rows = np.full(len(rows), -1, np.int64)
    for number, (core, pipe, index, start, waited) in enumerate(rows):
        if waited:
            cause = walk.awaited(Place(core, pipe, index), start)
            if cause is not None:
                cause_rows[number] = place_of[tuple(cause)]
    return cause_rows


def cube_room(program: Program) -> int:
    """Multiply-adds for which the blocks of all ``mmad``s and ``dsp_gemm``s of a program have room.

    Those executed are fewer where an extent is no multiple of a block, those useful fewer still.
    """
    return sum(
        int(count)
        * sum(multiply_room(instruction, program.device) for instruction in template.instructions)
        for count, template in zip(program.unit_counts, program.templates, strict=True)
    )


def multiply_room(instruction: Instruction, device: Device) -> int:
    """Multiply-adds for which the blocks of an instruction have room, 0 of no matrix product."""
    rate = _rate(instruction, device)
    if rate is None or not isinstance(instruction, Mmad | DspGemm):
        return 0
    extents = instruction.m, instruction.k * instruction.dtype.values, instruction.n
    blocks = zip(extents, (rate.m, rate.k, rate.n), strict=True)
    return prod(ceil_div(extent, block) * block for extent, block in blocks)


def _rate(instruction: Instruction, device: Device) -> CubeRate | None:
    """The block that the instruction's unit multiplies at once."""
    if isinstance(instruction, Mmad) and device.cube is not None:
        return device.cube.rates[instruction.math]
    if isinstance(instruction, DspGemm) and device.gemm is not None:
        return device.gemm.rates[instruction.dtype.name]
    return None
