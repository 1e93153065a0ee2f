"""A program as the fast engine's flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from npusim.integers import IntArray
from npusim.isa.base import Instruction
from npusim.objects import growing
from npusim.program.lower import Wait
from npusim.program.program import ATOMIC, MOVE, READ, WRITE, Flow, Program, Template
from npusim.reasons import FOLLOW
from npusim.timing.fast.l2 import FastL2
from npusim.timing.fast.links import NEVER
from npusim.timing.fast.state import (
    CLASS,
    FLOW,
    FLOWING,
    ISSUING,
    LINK,
    MEET,
    PLAIN,
    SET_FLAG,
    STEP,
    TENSOR,
    USE,
    WAIT,
    WAIT_FLAG,
    Code,
    Records,
    filled,
)
from npusim.timing.links import Part, Uses, links_of, parts

#: Columns of a step that follow from its waits.
_FOLLOWS, _FIRST, _LAST = map((STEP.names or ()).index, ("follows", "first", "last"))


class _Plan(NamedTuple):
    """The steps of a template without their waits."""

    order: list[int]  # instructions, pipe by pipe
    steps: IntArray  # (instructions, fields of STEP), in that order
    issuing: IntArray  # (instructions, fields of ISSUING), in program order
    bounds: list[int]  # where the steps of each pipe begin, and the end


class _Rows(NamedTuple):
    """What ``Code`` has of the variants."""

    steps: IntArray
    waits: IntArray
    issuing: IntArray
    first: IntArray
    stop: IntArray
    oldest: IntArray


class Tables:
    """``code``, and the names behind the numbers in it."""

    @growing()
    def __init__(self, program: Program, l2: FastL2) -> None:
        self.program = program
        self.scalar = program.pipes.index("S")
        self.operands: dict[tuple[str, str], int] = {}  # (tensor, destination) -> row of hits
        self.events: dict[int, int] = {}  # flag event between cores -> its column
        self.flows: dict[tuple[int, ...], int] = {}
        self.links = links_of(program.device, tuple(core.group for core in program.cores))
        self.classes: dict[tuple[int, Uses], int] = {}
        self.parts: dict[Part, int] = {}
        self._seen: dict[int, int] = {}  # flow object, of which variants share many -> its row
        rows = self._rows()
        self.code = Code(
            steps=filled(STEP, rows.steps),
            waits=filled(WAIT, rows.waits),
            issuing=filled(ISSUING, rows.issuing),
            first=rows.first,
            stop=rows.stop,
            totals=self._of_variants(t.lowered.totals for t in program.templates),
            units=np.concatenate([core.variants for core in program.cores]),
            bases=np.ascontiguousarray(np.concatenate([core.bases for core in program.cores])),
            last=np.cumsum([len(core.variants) for core in program.cores]),
            depth=np.array([program.device.pipes[p].queue_depth for p in program.pipes]),
            template=np.array([v.template for v in program.variants]),
            flows=filled(FLOWING, list(self.flows)),
            classes=self._classes(),
            tensors=filled(
                TENSOR,
                [(l2.place(t.name, t.size_bytes), t.size_bytes) for t in program.tensors],
            ),
            groups=np.array([core.group for core in program.cores]),
            oldest=rows.oldest,
        )

    def shared(self) -> tuple[Records, Records, Records]:
        """The classes of traffic, none of them busy, the links they use, and the links."""
        classes: list[tuple[int, ...]] = []
        uses: list[tuple[int, ...]] = []
        for cap, used in self.classes:
            first = len(uses)
            uses += used
            classes.append((cap, 0, 0, 0, first, len(uses), 0))
        rows = [(capacity, 0, 0, 0) for capacity in self.links.capacities]
        return filled(CLASS, classes), filled(USE, uses), filled(LINK, rows)

    def _classes(self) -> IntArray:
        """The class of each part on each core; those that use the same links are one."""
        cores = len(self.program.cores)
        table = np.zeros((max(1, len(self.parts)), cores), np.int64)
        for part, row in self.parts.items():
            for core in range(1 if self.links.alike else cores):
                key = part.cap, self.links.uses(part, core)
                table[row, core:] = self.classes.setdefault(key, len(self.classes))
        return table

    def _of_variants(self, rows: Iterable[tuple[int, ...]]) -> IntArray:
        """One row per template as one row per variant."""
        table = np.array(list(rows), np.int64)
        return table[[v.template for v in self.program.variants]]

    def _rows(self) -> _Rows:
        """The steps of all variants, one variant after another, and in each pipe by pipe.

        For the scalar pipe ``first`` and ``stop`` are places in ``issuing``, which has every
        instruction.
        """
        plans: dict[int, _Plan] = {}
        for variant in self.program.variants:
            if variant.template not in plans:
                plans[variant.template] = self._plan(self.program.templates[variant.template])
        own = [plans[variant.template] for variant in self.program.variants]
        waits: list[Wait] = []
        counts: list[int] = []  # of waits, by step
        for plan, variant in zip(own, self.program.variants, strict=True):
            for i in plan.order:
                of_step = variant.waits[i]
                counts.append(len(of_step))
                waits += of_step
        steps = np.concatenate([plan.steps for plan in own])
        issuing = np.concatenate([plan.issuing for plan in own])
        pipe_of = np.concatenate([plan.issuing[plan.order, 0] for plan in own])
        begins = np.cumsum([0, *(len(plan.order) for plan in own[:-1])])[:, None]
        issuing[:, 2] += np.repeat(begins, [len(plan.order) for plan in own])
        table = np.array(waits, np.int64).reshape(-1, 3)
        steps[:, _LAST] = np.cumsum(counts)
        steps[:, _FIRST] = steps[:, _LAST] - counts
        step_of = np.repeat(np.arange(len(steps)), counts)
        steps[step_of[table[:, 2] == FOLLOW], _FOLLOWS] = 1
        bounds = begins + np.array([plan.bounds for plan in own], np.int64)
        first, stop = bounds[:, :-1].copy(), bounds[:, 1:].copy()
        first[:, self.scalar], stop[:, self.scalar] = bounds[:, 0], bounds[:, -1]
        oldest = np.full((first.shape[1],) * 2, NEVER, np.int64)
        np.minimum.at(oldest, (pipe_of[step_of], table[:, 0]), table[:, 1])
        return _Rows(steps, table, issuing, first, stop, oldest)

    def _plan(self, template: Template) -> _Plan:
        """What all variants of a template have in common; flows are numbered pipe by pipe."""
        owners = template.lowered.pipes
        order = sorted(range(len(owners)), key=owners.__getitem__)
        place = {i: at for at, i in enumerate(order)}
        steps = []
        for i in order:
            cost = template.costs[i]
            kind, what, counts = self._kind(template.instructions[i], template.flows[i])
            steps.append(
                (
                    *(cost.cycles, cost.idle_head, cost.startup, kind, what, counts, i),
                    *(0, cost.lag_start, cost.lag_end, 0, 0),
                )
            )
        issuing = [(owner, template.costs[i].issue, place[i]) for i, owner in enumerate(owners)]
        return _Plan(
            order,
            np.array(steps, np.int64).reshape(-1, len(STEP.names or ())),
            np.array(issuing, np.int64).reshape(-1, len(ISSUING.names or ())),
            [0, *accumulate(template.lowered.totals)],
        )

    def _kind(self, instruction: Instruction, flow: Flow | None) -> tuple[int, int, int]:
        """(kind, what, counts) of an instruction."""
        if flow is not None:
            return FLOW, self._flow(flow), 0
        if instruction.meets:
            return MEET, 0, 0
        if instruction.signals is not None:
            event, scope = instruction.signals
            return SET_FLAG, self._event(event), scope == "all"
        if instruction.awaits is not None:
            event, more = instruction.awaits
            return WAIT_FLAG, self._event(event), more
        return PLAIN, 0, 0

    def _event(self, number: int) -> int:
        return self.events.setdefault(number, len(self.events))

    def _flow(self, flow: Flow) -> int:
        """The flow's row in the table."""
        if id(flow) not in self._seen:
            self._seen[id(flow)] = self._new_flow(flow)
        return self._seen[id(flow)]

    def _new_flow(self, flow: Flow) -> int:
        own = [self.parts.setdefault(part, len(self.parts)) for part in parts(flow)]
        region, operand, place = flow.region, 0, (0, 0, 0, 0)
        if region is not None:
            place = (region.offset, region.rows, region.row_bytes, region.pitch)
            if flow.kind == READ:
                name = region.tensor.name, flow.peer
                operand = self.operands.setdefault(name, len(self.operands))
        row = (
            *(flow.kind == MOVE, flow.kind in (WRITE, ATOMIC), flow.size),
            *(flow.tensor, flow.base, *place, operand),
            *(own[0], own[min(1, len(own) - 1)], own[-1], flow.request),
            *(flow.regions, flow.apart),
        )
        return self.flows.setdefault(row, len(self.flows))
