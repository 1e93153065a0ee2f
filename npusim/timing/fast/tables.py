"""A program as the fast engine's flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np

from npusim.integers import IntArray
from npusim.isa.base import Cost, Instruction
from npusim.objects import growing
from npusim.program.flags import setters
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
#: Those of its kind, and that of its place.
_KIND, _INSTRUCTION = map((STEP.names or ()).index, ("kind", "instruction"))
#: Those that its cost gives, and what they are called there.
_OF_COST = [
    *map((STEP.names or ()).index, ("cycles", "head", "startup", "lag_start", "lag_end")),
]
_COSTS = [
    *map(Cost._fields.index, ("cycles", "idle_head", "startup", "lag_start", "lag_end")),
]
_ISSUE = Cost._fields.index("issue")


class _Plan(NamedTuple):
    """The steps of templates without their waits, one template after another."""

    orders: list[list[int]]  # by template: its instructions, pipe by pipe
    steps: IntArray  # (instructions, fields of STEP), in that order
    issuing: IntArray  # (instructions, fields of ISSUING), in program order
    pipe: IntArray  # (instructions,), in the order of steps
    bounds: IntArray  # (templates, pipes + 1): where the steps of each pipe begin, and the end


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
            setters=self._setters(),
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

    def _setters(self) -> IntArray:
        """Which cores set which events for their groups, as ones."""
        table = np.zeros((len(self.program.cores), max(1, len(self.events))), np.int64)
        for event, cores in (setters(self.program) if self.events else {}).items():
            table[list(cores), self.events[event]] = 1
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
        variants = self.program.variants
        used = list(dict.fromkeys(variant.template for variant in variants))
        of = np.array([used.index(v.template) for v in variants], np.int64)
        plan = self._plan([self.program.templates[t] for t in used])
        sizes = plan.bounds[of, -1]
        begins = np.cumsum(sizes) - sizes
        first_of = np.cumsum(plan.bounds[:, -1]) - plan.bounds[:, -1]
        rows = np.arange(sizes.sum()) + np.repeat(first_of[of] - begins, sizes)
        waits: list[Wait] = []
        counts: list[int] = []  # of waits, by step
        for variant, at in zip(variants, of.tolist(), strict=True):
            of_steps = [variant.waits[i] for i in plan.orders[at]]
            counts += map(len, of_steps)
            waits += chain.from_iterable(of_steps)
        steps, issuing, pipe_of = plan.steps[rows], plan.issuing[rows], plan.pipe[rows]
        issuing[:, 2] += np.repeat(begins, sizes)
        table = np.array(waits, np.int64).reshape(-1, 3)
        steps[:, _LAST] = np.cumsum(counts)
        steps[:, _FIRST] = steps[:, _LAST] - counts
        step_of = np.repeat(np.arange(len(steps)), counts)
        steps[step_of[table[:, 2] == FOLLOW], _FOLLOWS] = 1
        bounds = begins[:, None] + plan.bounds[of]
        first, stop = bounds[:, :-1].copy(), bounds[:, 1:].copy()
        first[:, self.scalar], stop[:, self.scalar] = bounds[:, 0], bounds[:, -1]
        oldest = np.full((first.shape[1],) * 2, NEVER, np.int64)
        np.minimum.at(oldest, (pipe_of[step_of], table[:, 0]), table[:, 1])
        return _Rows(steps, table, issuing, first, stop, oldest)

    def _plan(self, templates: list[Template]) -> _Plan:
        """What all variants of templates have in common; flows are numbered pipe by pipe."""
        sizes = [len(template.costs) for template in templates]
        owner = np.array([p for t in templates for p in t.lowered.pipes], np.int64)
        begin = np.repeat(np.cumsum(sizes) - sizes, sizes)
        inside = np.arange(len(owner)) - begin
        order = np.lexsort((owner, begin))
        orders = [some.tolist() for some in np.split(inside[order], np.cumsum(sizes)[:-1])]
        kinds = [
            self._kind(template.instructions[i], template.flows[i])
            for template, places in zip(templates, orders, strict=True)
            for i in places
        ]
        cost = np.concatenate([template.cost_table for template in templates])
        steps = np.zeros((len(owner), len(STEP.names or ())), np.int64)
        steps[:, _OF_COST] = cost[order][:, _COSTS]
        steps[:, _KIND : _KIND + 3] = kinds
        steps[:, _INSTRUCTION] = inside[order]
        place = np.empty_like(order)
        place[order] = inside
        issuing = np.stack([owner, cost[:, _ISSUE], place], axis=1)
        totals = np.array([template.lowered.totals for template in templates], np.int64)
        bounds = np.zeros((len(totals), totals.shape[1] + 1), np.int64)
        np.cumsum(totals, axis=1, out=bounds[:, 1:])
        return _Plan(orders, steps, issuing, owner[order], bounds)

    def _kind(self, instruction: Instruction, flow: Flow | None) -> tuple[int, int, int]:
        """(kind, what, counts) of an instruction."""
        if flow is not None:
            return FLOW, self._flow(flow), 0
        if not instruction.between_cores:
            return PLAIN, 0, 0
        if instruction.meets:
            return MEET, 0, 0
        if instruction.signals is not None:
            event, scope = instruction.signals
            return SET_FLAG, self._event(event), scope == "all"
        assert instruction.awaits is not None
        event, more = instruction.awaits
        return WAIT_FLAG, self._event(event), more

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
