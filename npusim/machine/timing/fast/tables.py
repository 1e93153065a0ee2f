"""A program as the fast engine's flat arrays."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from npusim.base.integers import IntArray
from npusim.base.reasons import FOLLOW
from npusim.base.records import growing
from npusim.machine.isa.base import Cost, Instruction
from npusim.machine.program.flags import setters
from npusim.machine.program.lower import Wait
from npusim.machine.program.program import ATOMIC, MOVE, READ, WRITE, Flow, Program, Template
from npusim.machine.timing.fast.l2 import FastL2
from npusim.machine.timing.fast.links import NEVER
from npusim.machine.timing.fast.state import (
    CLASS,
    FLOW,
    FLOWING,
    ISSUING,
    LINK,
    MEET,
    PLAIN,
    READS,
    SET_FLAG,
    STEP,
    TENSOR,
    USE,
    WAIT,
    WAIT_FLAG,
    WRITES,
    Code,
    Records,
    filled,
)
from npusim.machine.timing.links import Part, Uses, links_of, parts, waiting

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


class _Layout(NamedTuple):
    """The tables that follow from the shape of a program, whatever its instructions cost.

    Steps of all variants lie one variant after another, and in each pipe by pipe. For the scalar
    pipe ``first`` and ``stop`` are places in ``issuing``, which has every instruction.
    """

    templates: list[int]  # those that run
    orders: list[list[int]]  # by template: its instructions, pipe by pipe
    order: IntArray  # the same as places in all templates, one after another
    kinds: IntArray  # (kind, what, counts) of these where an instruction is no flow
    events: dict[int, int]  # flag event between cores -> its column
    rows: IntArray  # (steps,): of variants, as places in all templates, one after another
    steps: IntArray  # (steps, fields of STEP) without costs and kinds
    issuing: IntArray  # (steps, fields of ISSUING) without costs, in program order
    whole: dict[str, Any]  # fields of ``Code`` as they are


class _Costed:
    """The templates in a layout: steps with costs, and flows, numbered pipe by pipe."""

    def __init__(self, templates: tuple[Template, ...], layout: _Layout) -> None:
        self.templates = templates
        self.operands: dict[tuple[str, str], int] = {}  # (tensor, destination) -> row of hits
        self.parts: dict[Part, int] = {}
        self._rows: dict[tuple[int, ...], int] = {}
        self._seen: dict[int, int] = {}  # flow object, of which variants share many -> its row
        used = [templates[t] for t in layout.templates]
        each, kinds = zip(used, layout.orders, strict=True), layout.kinds.copy()
        for place, flow in enumerate(t.flows[i] for t, some in each for i in some):
            if flow is not None:
                kinds[place] = FLOW, self._flow(flow), 0
        cost = np.concatenate([template.cost_table for template in used])
        steps, issuing = layout.steps.copy(), layout.issuing.copy()
        steps[:, _OF_COST] = cost[layout.order[layout.rows]][:, _COSTS]
        steps[:, _KIND : _KIND + 3] = kinds[layout.rows]
        issuing[:, 1] = cost[layout.rows, _ISSUE]
        self.steps, self.issuing = filled(STEP, steps), filled(ISSUING, issuing)
        self.flows = filled(FLOWING, list(self._rows))

    def has(self, templates: tuple[Template, ...]) -> bool:
        """True if it was made of these very templates."""
        return all(own is other for own, other in zip(self.templates, templates, strict=True))

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
            *(own[0], *(own[min(place, len(own) - 1)] for place in (1, 2)), own[-1], flow.request),
            *(flow.regions, flow.apart),
        )
        return self._rows.setdefault(row, len(self._rows))


class Tables:
    """``code``, and the names behind the numbers in it."""

    @growing()
    def __init__(self, program: Program, l2: FastL2) -> None:
        self.program = program
        self.scalar = program.pipes.index("S")
        self.links = links_of(program.device, tuple(core.group for core in program.cores))
        self.waiting = waiting(program.device.l2)
        self.classes: dict[tuple[int, Uses], int] = {}
        if "layout" not in program.kept:
            program.kept["layout"] = _layout(program, self.scalar)
        layout: _Layout = program.kept["layout"]
        costed: _Costed | None = program.kept.get("costed")
        if costed is None or not costed.has(program.templates):
            costed = _Costed(program.templates, layout)
            program.kept.setdefault("costed", costed)
        self.events, self.operands, self.parts = layout.events, costed.operands, costed.parts
        self.code = Code(
            steps=costed.steps,
            issuing=costed.issuing,
            depth=np.array([program.device.pipe(p).queue_depth for p in program.pipes]),
            flows=costed.flows,
            classes=self._classes(),
            tensors=filled(
                TENSOR,
                [(l2.place(t.name, t.size_bytes), t.size_bytes) for t in program.tensors],
            ),
            **layout.whole,
        )

    def digest(self) -> str:
        """Of all that an engine sees of the program: equal digests mean equal times."""
        parts = (np.ascontiguousarray(part).tobytes() for part in self.code)
        return hashlib.sha1(b"|".join(parts), usedforsecurity=False).hexdigest()

    def shared(self) -> tuple[Records, Records, Records]:
        """The classes of traffic, none of them busy, the links they use, and the links."""
        classes: list[tuple[int, ...]] = []
        uses: list[tuple[int, ...]] = []
        for cap, used in self.classes:
            first = len(uses)
            uses += used
            classes.append((cap, 0, 0, 0, first, len(uses), 0))
        turning = self.links.turning
        directions = {turning.reads: READS, turning.writes: WRITES}
        capacities = zip(self.links.capacities, turning.capacities, strict=True)
        rows = [
            (capacity, left, directions.get(link, 0), 0, 0, 0)
            for link, (capacity, left) in enumerate(capacities)
        ]
        return filled(CLASS, classes), filled(USE, uses), filled(LINK, rows)

    def _classes(self) -> IntArray:
        """The class of each part on each core; those that use the same links are one."""
        cores = len(self.program.cores)
        table = np.zeros((max(1, len(self.parts)), cores), np.int64)
        for part, row in self.parts.items():
            for core in range(1 if self.links.alike else cores):
                key = part.cap_with(self.waiting), self.links.uses(part, core)
                table[row, core:] = self.classes.setdefault(key, len(self.classes))
        return table


def _layout(program: Program, scalar: int) -> _Layout:
    variants, cores = program.variants, program.cores
    used = list(dict.fromkeys(variant.template for variant in variants))
    templates = [program.templates[t] for t in used]
    lowered = [template.lowered for template in templates]
    sizes = [len(one.pipes) for one in lowered]
    owner = np.array([p for one in lowered for p in one.pipes], np.int64)
    begin = np.repeat(np.cumsum(sizes) - sizes, sizes)
    inside = np.arange(len(owner)) - begin
    order = np.lexsort((owner, begin))
    orders = [some.tolist() for some in np.split(inside[order], np.cumsum(sizes)[:-1])]
    events: dict[int, int] = {}
    each = zip(templates, orders, strict=True)
    kinds = [_kind(template.instructions[i], events) for template, some in each for i in some]
    totals = np.array([one.totals for one in lowered], np.int64)
    bounds = np.zeros((len(totals), totals.shape[1] + 1), np.int64)
    np.cumsum(totals, axis=1, out=bounds[:, 1:])

    place_of = {template: i for i, template in enumerate(used)}
    of = np.array([place_of[v.template] for v in variants], np.int64)
    lengths = bounds[of, -1]
    begins = np.cumsum(lengths) - lengths
    first_of = np.cumsum(bounds[:, -1]) - bounds[:, -1]
    rows = np.arange(lengths.sum()) + np.repeat(first_of[of] - begins, lengths)
    waits: list[Wait] = []
    counts: list[int] = []  # of waits, by step
    for variant, at in zip(variants, of.tolist(), strict=True):
        of_steps = [variant.waits[i] for i in orders[at]]
        counts += map(len, of_steps)
        waits += chain.from_iterable(of_steps)
    table = np.array(waits, np.int64).reshape(-1, 3)
    step_of = np.repeat(np.arange(len(rows)), counts)
    steps = np.zeros((len(rows), len(STEP.names or ())), np.int64)
    steps[:, _INSTRUCTION] = inside[order][rows]
    steps[:, _LAST] = np.cumsum(counts)
    steps[:, _FIRST] = steps[:, _LAST] - counts
    steps[step_of[table[:, 2] == FOLLOW], _FOLLOWS] = 1
    place = np.empty_like(order)
    place[order] = inside
    issuing = np.stack([owner, np.zeros_like(owner), place], axis=1)[rows]
    issuing[:, 2] += np.repeat(begins, lengths)
    within = begins[:, None] + bounds[of]
    first, stop = within[:, :-1].copy(), within[:, 1:].copy()
    first[:, scalar], stop[:, scalar] = within[:, 0], within[:, -1]
    oldest = np.full((first.shape[1],) * 2, NEVER, np.int64)
    np.minimum.at(oldest, (owner[order][rows][step_of], table[:, 0]), table[:, 1])
    whole = {
        "waits": filled(WAIT, table),
        "first": first,
        "stop": stop,
        "oldest": oldest,
        "setters": _setters(program, events),
        "totals": totals[of],
        "units": np.concatenate([core.variants for core in cores]),
        "bases": np.ascontiguousarray(np.concatenate([core.bases for core in cores])),
        "last": np.cumsum([len(core.variants) for core in cores]),
        "template": np.array([v.template for v in variants]),
        "groups": np.array([core.group for core in cores]),
    }
    table_of_kinds = np.array(kinds, np.int64)
    return _Layout(used, orders, order, table_of_kinds, events, rows, steps, issuing, whole)


def _kind(instruction: Instruction, events: dict[int, int]) -> tuple[int, int, int]:
    """(kind, what, counts) of an instruction that is no flow."""
    if not instruction.between_cores:
        return PLAIN, 0, 0
    if instruction.meets:
        return MEET, 0, 0
    if instruction.signals is not None:
        event, scope = instruction.signals
        return SET_FLAG, events.setdefault(event, len(events)), scope == "all"
    assert instruction.awaits is not None
    event, more = instruction.awaits
    return WAIT_FLAG, events.setdefault(event, len(events)), more


def _setters(program: Program, events: dict[int, int]) -> IntArray:
    """Which cores set which events for their groups, as ones."""
    table = np.zeros((len(program.cores), max(1, len(events))), np.int64)
    for event, cores in (setters(program) if events else {}).items():
        table[list(cores), events[event]] = 1
    return table
