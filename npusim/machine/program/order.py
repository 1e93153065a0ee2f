"""The order a program promises of its instructions: which end before others begin.

Within a core a pipe works its instructions in order, waits hold them back, and whatever the scalar
unit executes ends before it issues the next. Between cores only barriers and flags order anything.
What has ended is known by counts, one per pipe: a vector clock. The clocks of a core follow from
its variants alone, so cores with the same variants share them; what they know of other cores
changes only where these meet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from npusim.base.integers import IntArray
from npusim.base.reasons import FOLLOW
from npusim.machine.isa.base import Instruction
from npusim.machine.program.flags import reached
from npusim.machine.program.lower import Wait
from npusim.machine.program.program import Program, Template, Variant

#: Per pipe, how many of its instructions have ended.
Clock = tuple[int, ...]
#: A core and an event, or a core and a pipe.
_Key = tuple[int, int]


class Place(NamedTuple):
    """An instruction of a program: number ``step`` of a core's task number ``task``."""

    core: int
    task: int
    step: int


class _Step(NamedTuple):
    """An instruction that waits, or that holds up what is issued behind it."""

    pipe: int
    rank: int  # its number on its pipe within the task, from 1
    waits: tuple[Wait, ...]
    issued: tuple[int, ...]  # per pipe, instructions of the task before it; of the scalar pipe only


class _Sync(NamedTuple):
    """An instruction that orders its core against others."""

    place: Place
    pipe: int
    nth: int  # its number on its pipe, from 1


class _Clocks:
    """The instructions known to have ended, by time, on cores that run ``variants``.

    ``history`` has for each pipe the positions at which its clock changed: 2 n is the start of its
    n-th instruction, 2 n + 1 its end.
    """

    def __init__(self, program: Program, steps: list[list[_Step]], variants: IntArray) -> None:
        self.pipes = len(program.pipes)
        self.scalar = program.pipes.index("S")
        of = np.array([v.template for v in program.variants])[variants]
        per_task = np.array([t.lowered.totals for t in program.templates])[of]
        self.totals = np.concatenate([np.zeros((1, self.pipes), np.int64), per_task.cumsum(axis=0)])
        none = (0,) * self.pipes
        self.history: list[tuple[list[int], list[Clock]]] = [
            ([-1], [none]) for _ in range(self.pipes)
        ]
        rows = zip(variants.tolist(), self.totals.tolist(), strict=False)
        for variant, before in rows:
            for step in steps[variant]:
                self._take(step, before)

    def starts(self, pipe: int, count: int) -> Clock:
        """The instructions that have ended when the pipe's number ``count`` starts."""
        return self._clock(pipe, 2 * count, count - 1)

    def ends(self, pipe: int, count: int) -> Clock:
        """The instructions that have ended when it ends, itself included."""
        return self._clock(pipe, 2 * count + 1, count)

    def _clock(self, pipe: int, position: int, count: int) -> Clock:
        places, clocks = self.history[pipe]
        clock = clocks[bisect_right(places, position) - 1]
        return (*clock[:pipe], count, *clock[pipe + 1 :])

    def _take(self, step: _Step, before: list[int]) -> None:
        """Learn from the waits of an instruction; a wait to follow asks for the other's start."""
        count = before[step.pipe] + step.rank
        start = end = self.history[step.pipe][1][-1]
        for pipe, number, reason in step.waits:
            reached = before[pipe] + number
            if reached > 0:
                ended = self.ends(pipe, reached)
                start = _both(start, self.starts(pipe, reached) if reason == FOLLOW else ended)
                end = _both(end, ended)
        end = _both(start, end)
        self._note(step.pipe, 2 * count, start)
        self._note(step.pipe, 2 * count + 1, end)
        if step.pipe == self.scalar:
            ended = self.ends(step.pipe, count)
            for pipe, issued in enumerate(step.issued):
                if pipe != step.pipe:
                    clock = _both(ended, self.history[pipe][1][-1])
                    self._note(pipe, 2 * (before[pipe] + issued + 1), clock)

    def _note(self, pipe: int, position: int, clock: Clock) -> None:
        places, clocks = self.history[pipe]
        if clock != clocks[-1]:
            places.append(position)
            clocks.append(clock)


def _both(a: Clock, b: Clock) -> Clock:
    return a if a == b else tuple(map(max, a, b))


class ProgramOrder:
    """Order of a program: tells if an instruction has ended before another starts.

    The answer holds whatever time anything takes.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._ranks = [_ranks(t.lowered.pipes) for t in program.templates]
        self._clocks: dict[bytes, _Clocks] = {}

    def before(self, a: Place, b: Place) -> bool:
        """True if ``a`` ends before ``b`` starts."""
        pipe_a, count_a = self._number(a)
        pipe_b, count_b = self._number(b)
        if a.core != b.core:
            return bool(self.meetings.counts(b.core, pipe_b, count_b)[a.core, pipe_a] >= count_a)
        return self.clocks(b.core).starts(pipe_b, count_b)[pipe_a] >= count_a

    def clocks(self, core: int) -> _Clocks:
        """The clocks of a core."""
        variants = self.program.cores[core].variants
        key = variants.tobytes()
        if key not in self._clocks:
            self._clocks[key] = _Clocks(self.program, self._steps, variants)
        return self._clocks[key]

    def template(self, place: Place) -> Template:
        """The template of an instruction's task."""
        variant = int(self.program.cores[place.core].variants[place.task])
        return self.program.templates[self.program.variants[variant].template]

    def _number(self, place: Place) -> tuple[int, int]:
        """The pipe of an instruction, and its number on it from 1."""
        variant = int(self.program.cores[place.core].variants[place.task])
        template = self.program.variants[variant].template
        pipe = self.program.templates[template].lowered.pipes[place.step]
        before = self.clocks(place.core).totals[place.task, pipe]
        return pipe, int(before) + self._ranks[template][place.step]

    @cached_property
    def _steps(self) -> list[list[_Step]]:
        return [_steps_of(self.program, variant) for variant in self.program.variants]

    @cached_property
    def meetings(self) -> _Meetings:
        """The knowledge of cores about each other."""
        return _Meetings(self)

    def syncs(self, core: int) -> list[_Sync]:
        """The instructions that order a core against others, in program order."""
        places = [
            [i for i, instruction in enumerate(template.instructions) if instruction.between_cores]
            for template in self.program.templates
        ]
        syncs = []
        for task, variant in enumerate(self.program.cores[core].variants.tolist()):
            for index in places[self.program.variants[variant].template]:
                place = Place(core, task, index)
                syncs.append(_Sync(place, *self._number(place)))
        return syncs


def _ranks(pipes: tuple[int, ...]) -> list[int]:
    """The number of each instruction on its pipe, from 1."""
    counts: dict[int, int] = {}
    ranks = []
    for pipe in pipes:
        counts[pipe] = counts.get(pipe, 0) + 1
        ranks.append(counts[pipe])
    return ranks


def _steps_of(program: Program, variant: Variant) -> list[_Step]:
    """The steps of a variant."""
    scalar = program.pipes.index("S")
    counts = [0] * len(program.pipes)
    steps = []
    pipes = program.templates[variant.template].lowered.pipes
    for pipe, waits in zip(pipes, variant.waits, strict=True):
        counts[pipe] += 1
        if waits or pipe == scalar:
            issued = tuple(counts) if pipe == scalar else ()
            steps.append(_Step(pipe, counts[pipe], waits, issued))
    return steps


class _Meetings:
    """The knowledge of cores about each other: counts by core and pipe, where cores meet."""

    def __init__(self, order: ProgramOrder) -> None:
        self.order = order
        self.shape = (len(order.program.cores), len(order.program.pipes))
        #: Per core and pipe, after which instruction of the pipe what is known.
        self.learnt: list[list[tuple[list[int], list[IntArray]]]] = [
            [([], []) for _ in range(self.shape[1])] for _ in range(self.shape[0])
        ]
        #: Per core, the places (task, index) from which on a round counts, and the round.
        self.began: list[tuple[list[tuple[int, int]], list[int]]] = [
            ([(-1, -1)], [0]) for _ in range(self.shape[0])
        ]
        self.arrived: dict[int, list[IntArray]] = {}
        #: What is known with each count of a flag: by receiver and event, then by sender.
        self.sent: dict[_Key, dict[_Key, list[IntArray]]] = {}
        self.round = 0
        syncs = [order.syncs(core) for core in range(self.shape[0])]
        self.wide: set[_Key] = set()  # flags, by receiver and event, of scope "all"
        self.senders = self._senders(syncs)
        running = [self._run(core, of_core) for core, of_core in enumerate(syncs) if of_core]
        before = -1
        while running and self.round != before:
            before = self.round
            running = [core_run for core_run in running if next(core_run, None) is not None]

    def counts(self, core: int, pipe: int, count: int, *, ended: bool = False) -> IntArray:
        """Counts by core and pipe of what has ended when an instruction starts, or when it ends."""
        clocks = self.order.clocks(core)
        clock = clocks.ends(pipe, count) if ended else clocks.starts(pipe, count)
        counts_known = np.zeros(self.shape, np.int64)
        for (counts, learnt), done in zip(self.learnt[core], clock, strict=True):
            last = bisect_right(counts, done)
            if last:
                np.maximum(counts_known, learnt[last - 1], out=counts_known)
        counts_known[core] = clock
        return counts_known

    def rounds(self, core: int, tasks: IntArray, index: IntArray) -> IntArray:
        """Numbers of instructions of a core that grow in the order in which cores can meet.

        What another core does before it meets this one has a smaller number than what this one
        does afterwards. 0 throughout where cores never meet.
        """
        places, rounds = self.began[core]
        if len(places) == 1:
            return np.zeros(len(tasks), np.int64)
        width = 1 + max(int(index.max(initial=0)), *(i for _, i in places))
        begins = np.array([task * width + i for task, i in places])
        intervals = np.searchsorted(begins, tasks * width + index, side="right") - 1
        return np.array(rounds, np.int64)[intervals]

    def _senders(self, syncs: list[list[_Sync]]) -> dict[_Key, dict[_Key, int]]:
        """Counts of how often each core and pipe counts a flag up: by receiver and event."""
        by_flag: dict[_Key, dict[_Key, int]] = {}
        for core, of_core in enumerate(syncs):
            for sync in of_core:
                signal = self._instruction(sync).signals
                for key in self._receivers(core, sync):
                    if signal is not None and signal.scope == "all":
                        self.wide.add(key)
                    counts = by_flag.setdefault(key, {})
                    counts[core, sync.pipe] = counts.get((core, sync.pipe), 0) + 1
        return by_flag

    def _receivers(self, core: int, sync: _Sync) -> Iterator[_Key]:
        """The cores that an instruction tells something, with the event."""
        signal = self._instruction(sync).signals
        if signal is not None:
            for other in reached(self.order.program, core, signal):
                yield other, signal.event

    def _shares(self, flag: _Key, need: int) -> dict[_Key, int]:
        """Times that each sender has set a flag for certain once it has counted ``need``."""
        senders = self.senders.get(flag, {})
        if flag in self.wide:
            return _certain(senders, need)
        cores = dict.fromkeys(core for core, _ in senders)
        each = [{sender: n for sender, n in senders.items() if sender[0] == core} for core in cores]
        return {sender: n for of_core in each for sender, n in _certain(of_core, need).items()}

    def _run(self, core: int, syncs: list[_Sync]) -> Iterator[str]:
        """Go through what orders a core against others; yields where it has to wait."""
        met = 0
        waited: dict[int, int] = {}
        for sync in syncs:
            place = sync.place
            instruction = self._instruction(sync)
            knows = self.counts(core, sync.pipe, sync.nth, ended=True)
            if instruction.meets:
                here = self.arrived.setdefault(met, [])
                here.append(knows)
                self.round += 1
                while len(here) < len(self.order.program.working):
                    yield "barrier"
                self._learn(core, sync, here)
                met += 1
            if instruction.awaits is not None:
                event, more = instruction.awaits
                waited[event] = waited.get(event, 0) + more
                shares = self._shares((core, event), waited[event])
                sent = self.sent.setdefault((core, event), {})
                while any(len(sent.get(sender, ())) < share for sender, share in shares.items()):
                    yield "flag"
                self._learn(core, sync, [sent[sender][n - 1] for sender, n in shares.items() if n])
            for key in self._receivers(core, sync):
                self.sent.setdefault(key, {}).setdefault((core, sync.pipe), []).append(knows)
            self.round += 1
            self.began[core][0].append((place.task, place.step))
            self.began[core][1].append(self.round)

    def _instruction(self, sync: _Sync) -> Instruction:
        return self.order.template(sync.place).instructions[sync.place.step]

    def _learn(self, core: int, sync: _Sync, sources: list[IntArray]) -> None:
        """Take over what others know, and what the same pipe has known before."""
        counts, learnt = self.learnt[core][sync.pipe]
        known_now = np.maximum.reduce([*sources, *learnt[-1:], np.zeros(self.shape, np.int64)])
        counts.append(sync.nth)
        learnt.append(known_now)


def _certain(senders: dict[_Key, int], need: int) -> dict[_Key, int]:
    """Times that each sender has set a flag once it was set ``need`` times, at least.

    The others may have set it first.
    """
    every = sum(senders.values())
    return {sender: max(0, need - (every - count)) for sender, count in senders.items()}
