"""A program as the fast engine's flat arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from npusim.isa import CoreBarrier, CoreSetFlag, CoreWaitFlag, Instruction
from npusim.program.lower import Wait
from npusim.program.program import ATOMIC, READ, Flow, Program, Template, Variant
from npusim.reasons import FOLLOW
from npusim.timing import fabric as links
from npusim.timing.fast.l2 import FastL2
from npusim.timing.fast.links import CAP, CLASS_COLUMNS, NEVER, USES
from npusim.timing.fast.state import FLOW, FLOW_COLUMNS, MEET, PLAIN, SET_FLAG, WAIT_FLAG, Code

#: Traffic of a flow's first part, by its kind.
_TRAFFIC = {READ: links.READ_HIT, ATOMIC: links.ATOMIC}


class Tables:
    """``code``, and the names behind the numbers in it."""

    def __init__(self, program: Program, l2: FastL2) -> None:
        self.program = program
        self.scalar = program.pipes.index("S")
        self.operands: dict[tuple[str, str], int] = {}  # (tensor, destination) -> row of hits
        self.events: dict[int, int] = {}  # flag event between cores -> its column
        self.flows: dict[tuple[int, ...], int] = {}
        self.fabric = links.Fabric(program.device)
        self.classes = self._classes()
        self.stream: list[int] = []
        first = [self._variant(variant) for variant in program.variants]
        self.code = Code(
            stream=np.array(self.stream or [0], np.int64),
            first=np.array(first, np.int64),
            totals=self._of_variants(t.lowered.totals for t in program.templates),
            units=np.concatenate([core.variants for core in program.cores]),
            bases=np.ascontiguousarray(np.concatenate([core.bases for core in program.cores])),
            last=np.cumsum([len(core.variants) for core in program.cores]),
            depth=np.array([program.device.pipes[p].queue_depth for p in program.pipes]),
            template=np.array([v.template for v in program.variants]),
            flows=np.array(list(self.flows) or [(0,) * FLOW_COLUMNS], np.int64),
            tensors=np.array([(l2.place(t.name, t.size_bytes), t.size_bytes) for t in tensors])
            if (tensors := program.tensors)
            else np.zeros((0, 2), np.int64),
            groups=np.array([core.group for core in program.cores]),
            oldest=self._oldest(),
        )

    def class_table(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """The classes of traffic, none of them busy."""
        table = np.zeros((max(1, len(self.classes)), CLASS_COLUMNS), np.int64)
        for (kind, cap), row in self.classes.items():
            table[row, CAP] = cap
            for link, weight in self.fabric.uses[kind]:
                table[row, USES + link] = weight
        return table

    def _classes(self) -> dict[tuple[int, int], int]:
        """(traffic, cap) -> class, in the reference's order."""
        found = set()
        for template in self.program.templates:
            for flow in template.flows:
                if flow is not None:
                    found |= {(kind, flow.rate) for kind in _parts(flow)}
        return {key: row for row, key in enumerate(sorted(found))}

    def _of_variants(
        self, rows: Iterable[tuple[int, ...]]
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """One row per template as one row per variant."""
        table = np.array(list(rows), np.int64)
        return table[[v.template for v in self.program.variants]]

    def _variant(self, variant: Variant) -> list[int]:
        """Append the streams of a variant, one per pipe; returns where they begin."""
        template = self.program.templates[variant.template]
        first = []
        for pipe in range(len(self.program.pipes)):
            first.append(len(self.stream))
            for i, owner in enumerate(template.lowered.pipes):
                if pipe == self.scalar:
                    self.stream += (owner, template.costs[i].issue)
                if owner == pipe:
                    self._append(template, i, variant.waits[i])
        return [*first, len(self.stream)]

    def _append(self, template: Template, i: int, waits: tuple[Wait, ...]) -> None:
        cost, flow = template.costs[i], template.flows[i]
        kind, what, counts = self._kind(template.instructions[i], flow)
        self.stream += (cost.cycles, cost.idle_head, cost.startup, kind, what, counts)
        follows = any(why == FOLLOW for _, _, why in waits)
        self.stream += (i, follows, cost.lag_start, cost.lag_end, len(waits))
        for wait in waits:
            self.stream += wait

    def _kind(self, instruction: Instruction, flow: Flow | None) -> tuple[int, int, int]:
        """(kind, what, counts) of an instruction."""
        if flow is not None:
            return FLOW, self._flow(flow), 0
        match instruction:
            case CoreBarrier():
                return MEET, 0, 0
            case CoreSetFlag():
                return SET_FLAG, self._event(instruction.event), instruction.scope == "all"
            case CoreWaitFlag():
                return WAIT_FLAG, self._event(instruction.event), instruction.count
        return PLAIN, 0, 0

    def _event(self, number: int) -> int:
        return self.events.setdefault(number, len(self.events))

    def _flow(self, flow: Flow) -> int:
        """The flow's row in the table."""
        region = flow.region
        operand = (region.tensor.name, flow.peer)
        classes = [self.classes[kind, flow.rate] for kind in _parts(flow)]
        row = (
            flow.kind != READ,
            flow.tensor,
            flow.base,
            region.offset,
            region.rows,
            region.row_bytes,
            region.pitch,
            self.operands.setdefault(operand, len(self.operands)) if flow.kind == READ else 0,
            classes[0],
            classes[1],
            classes[-1],
        )
        return self.flows.setdefault(row, len(self.flows))

    def _oldest(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Least count, relative to the unit, that pipe p ever waits for of pipe q."""
        pipes = len(self.program.pipes)
        least = np.full((pipes, pipes), NEVER, np.int64)
        for variant in self.program.variants:
            template = self.program.templates[variant.template]
            for pipe, waits in zip(template.lowered.pipes, variant.waits, strict=True):
                for q, count, _ in waits:
                    least[pipe, q] = min(least[pipe, q], count)
        return least


def _parts(flow: Flow) -> tuple[int, ...]:
    """Traffic a flow can turn into; dirty evictions are the last."""
    if flow.kind == READ:
        return links.READ_HIT, links.READ_MISS, links.EVICT
    return _TRAFFIC.get(flow.kind, links.WRITE), links.EVICT
