"""A program as the fast engine's flat arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from npusim.integers import IntArray
from npusim.isa.base import Instruction
from npusim.objects import growing
from npusim.program.lower import Wait
from npusim.program.program import ATOMIC, MOVE, READ, WRITE, Flow, Program, Template, Variant
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
from npusim.timing.links import Links, Part, Uses, parts


class Tables:
    """``code``, and the names behind the numbers in it."""

    @growing()
    def __init__(self, program: Program, l2: FastL2) -> None:
        self.program = program
        self.scalar = program.pipes.index("S")
        self.operands: dict[tuple[str, str], int] = {}  # (tensor, destination) -> row of hits
        self.events: dict[int, int] = {}  # flag event between cores -> its column
        self.flows: dict[tuple[int, ...], int] = {}
        self.links = Links(program.device, [core.group for core in program.cores])
        self.classes: dict[tuple[int, Uses], int] = {}
        self.parts: dict[Part, int] = {}
        self._seen: dict[int, int] = {}  # flow object, of which variants share many -> its row
        self.steps: list[tuple[int, ...]] = []
        self.waits: list[tuple[int, ...]] = []
        self.issuing: list[tuple[int, ...]] = []
        places = np.array([self._variant(variant) for variant in program.variants], np.int64)
        self.code = Code(
            steps=filled(STEP, self.steps),
            waits=filled(WAIT, self.waits),
            issuing=filled(ISSUING, self.issuing),
            first=np.ascontiguousarray(places[:, 0]),
            stop=np.ascontiguousarray(places[:, 1]),
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
            oldest=self._oldest(),
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

    def _variant(self, variant: Variant) -> tuple[list[int], list[int]]:
        """Append the steps of a variant, pipe by pipe; returns where those of each begin and end.

        For the scalar pipe these are places in ``issuing``, which has every instruction.
        """
        template = self.program.templates[variant.template]
        owners = template.lowered.pipes
        first, stop, own = [], [], {}
        for pipe in range(len(self.program.pipes)):
            first.append(len(self.steps))
            for i, owner in enumerate(owners):
                if owner == pipe:
                    own[i] = len(self.steps)
                    self._append(template, i, variant.waits[i])
            stop.append(len(self.steps))
        first[self.scalar] = len(self.issuing)
        for i, owner in enumerate(owners):
            self.issuing.append((owner, template.costs[i].issue, own[i]))
        stop[self.scalar] = len(self.issuing)
        return first, stop

    def _append(self, template: Template, i: int, waits: tuple[Wait, ...]) -> None:
        cost, flow = template.costs[i], template.flows[i]
        kind, what, counts = self._kind(template.instructions[i], flow)
        follows = any(why == FOLLOW for _, _, why in waits)
        first = len(self.waits)
        self.waits += waits
        self.steps.append(
            (
                *(cost.cycles, cost.idle_head, cost.startup, kind, what, counts, i),
                *(follows, cost.lag_start, cost.lag_end, first, len(self.waits)),
            )
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
        )
        return self.flows.setdefault(row, len(self.flows))

    def _oldest(self) -> IntArray:
        """Least count, relative to the unit, that pipe p ever waits for of pipe q."""
        pipes = len(self.program.pipes)
        least = np.full((pipes, pipes), NEVER, np.int64)
        for variant in self.program.variants:
            template = self.program.templates[variant.template]
            for pipe, waits in zip(template.lowered.pipes, variant.waits, strict=True):
                for q, count, _ in waits:
                    least[pipe, q] = min(least[pipe, q], count)
        return least
