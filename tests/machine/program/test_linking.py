"""Linking against an oracle that expands the whole program and compares every pair of accesses.

The oracle knows nothing of templates, loops or scoreboards: it numbers physical slots, looks at
all earlier instructions, and makes every conflict a wait. Both programs must run alike, cycle by
cycle. What loops unroll to is told by the same kernel with loops of Python and addresses of its
own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from npusim.base.dtypes import FP16
from npusim.base.errors import ProgramError
from npusim.base.reasons import DATA, FLAG, SPACE
from npusim.base.records import field_names, replace
from npusim.machine.isa.base import Instruction
from npusim.machine.isa.operands import GmRegion, Slot, SlotRegion, Tensor
from npusim.machine.isa.sync import CoreBarrier, PipeBarrier, SetFlag, WaitFlag
from npusim.machine.numerics.executor import execute
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.language import Language
from npusim.machine.program.link import _essential
from npusim.machine.program.lower import Lowered, Wait
from npusim.machine.program.program import CoreProgram, Program, Template, Variant, flow_of
from npusim.machine.timing.l2 import L2State
from npusim.machine.timing.run import time_program
from npusim.machine.timing.simpy_engine import SimpyEngine
from npusim.machine.timing.trace import KernelRun
from tests.machine.program.random_kernels import TINY, Plan, Random, Slots, plans
from tests.sampled import examples
from tests.scripts import Scripted, tasks_of
from tests.tables import rows

# -- the oracle --------------------------------------------------------------------------------


def expand(program: Program, core: CoreProgram) -> list[tuple[Instruction, dict[str, int], Slots]]:
    """All instructions of a core, each with its unit's bases and the turns before the unit."""
    turns = [0] * len(program.buffers)
    out = []
    for variant, bases in zip(core.variants, core.bases.tolist(), strict=True):
        template = program.templates[program.variants[variant].template]
        named = dict(zip(program.base_names, bases, strict=True))
        starts = template.lowered.starts
        before = {b.index: Slot(b, turns[b.index] - starts[b.index]) for b in program.buffers}
        out += [(i, named, before) for i in template.instructions]
        turns = [a + b for a, b in zip(turns, template.lowered.turns, strict=True)]
    return out


def places(regions: tuple[GmRegion | SlotRegion, ...], before: Slots) -> set[tuple[int, int]]:
    """Physical (buffer, slot) pairs of the regions in private memories."""
    found = set()
    for region in regions:
        if isinstance(region, SlotRegion):
            buffer = region.slot.buffer
            turn = before[buffer.index].turn + region.slot.turn
            found.add((buffer.index, turn % buffer.slots))
    return found


def must_precede(
    program: Program, core: CoreProgram
) -> tuple[list[Instruction], list[int], list[tuple[Wait, ...]]]:
    """Instructions, their pipes, and for each all waits that any earlier conflict demands."""
    index = {pipe: i for i, pipe in enumerate(program.pipes)}
    counts = [0] * len(index)
    past: list[tuple[Instruction, int, int, set[tuple[int, int]], set[tuple[int, int]]]] = []
    instructions, pipes, waits = [], [], []
    for instruction, bases, before in expand(program, core):
        pipe = index[instruction.pipe]
        reads = places(instruction.reads(), before)
        writes = places(instruction.writes(), before)
        need: dict[int, int] = {}
        for other, q, count, r, w in past:
            conflict = bool(reads & w or writes & (r | w))
            if isinstance(instruction, PipeBarrier | CoreBarrier):
                conflict = True
            if isinstance(instruction, WaitFlag) and isinstance(other, SetFlag):
                pair = (other.on, other.to, other.event)
                conflict = pair == (instruction.src, instruction.on, instruction.event)
            if conflict and q != pipe:
                need[q] = max(count, need.get(q, 0))
        counts[pipe] += 1
        past.append((instruction, pipe, counts[pipe], reads, writes))
        instructions.append(with_bases(instruction, bases))
        pipes.append(pipe)
        waits.append(tuple((q, n, DATA) for q, n in sorted(need.items())))
    return instructions, pipes, waits


def with_bases(instruction: Instruction, bases: dict[str, int]) -> Instruction:
    """The instruction with its unit's GM bases added to its offsets."""
    changed = {
        name: replace(region, base="", offset=region.offset + bases[region.base])
        for name, region in (
            (name, getattr(instruction, name)) for name in field_names(instruction)
        )
        if isinstance(region, GmRegion) and region.base
    }
    return replace(instruction, **changed) if changed else instruction


def oracle(program: Program) -> Program:
    """The same work as one unit per core, with waits from first principles."""

    templates, variants, cores = [], [], []
    tensors = {t.name: i for i, t in enumerate(program.tensors)}
    for number, core in enumerate(program.cores):
        instructions, pipes, waits = must_precede(program, core)
        lines = tuple("oracle:0" for _ in instructions)
        totals = tuple(pipes.count(p) for p in range(len(program.pipes)))
        templates.append(
            Template(
                tuple(instructions),
                tuple(i.told() for i in instructions),
                lines,
                tuple(i.cost(program.device) for i in instructions),
                tuple(flow_of(i, i.told(), tensors, [], program.device) for i in instructions),
                Lowered(lines, tuple(pipes), (), (), totals, (), (), {}),
            )
        )
        variants.append(Variant(number, tuple(waits)))
        row, empty = np.array([number]), np.zeros((1, 0), np.int64)
        cores.append(CoreProgram(core.name, core.group, core.kind, row, empty, row))
    return replace(
        program, base_names=(), templates=tuple(templates), variants=tuple(variants),
        tasks=(), cores=tuple(cores),
    )  # fmt: skip


def run(program: Program) -> KernelRun:
    return time_program(program, L2State(program.device.l2), timeline=True)


def schedule(outcome: KernelRun) -> list[tuple[int, ...]]:
    """(core, pipe, start, end, bytes) of every instruction."""
    t = outcome.timeline
    assert t is not None
    return list(zip(*(c.tolist() for c in (t.core, t.pipe, t.start, t.end, t.bytes)), strict=True))


@examples(100)
@given(plans())
def test_linked_units_run_like_the_whole_program_scanned_for_conflicts(plan: Plan) -> None:
    program = build(Random(plan), TINY, tuple(range(len(plan.cores))))
    assert schedule(run(program)) == schedule(run(oracle(program)))


@examples(60)
@given(plans(looped=True))
def test_loops_run_like_what_they_unroll_to(plan: Plan) -> None:
    cores = tuple(range(len(plan.cores)))
    looped, unrolled = (build(Random(plan, unrolled=one), TINY, cores) for one in (False, True))
    assert looped.instructions == unrolled.instructions
    assert looped.emitted <= unrolled.emitted
    fast = schedule(run(looped))
    assert fast == schedule(run(unrolled)) == schedule(run(oracle(looped)))
    found = (
        SimpyEngine(looped, L2State(TINY.l2), np.zeros(len(cores), np.int64), keep_spans=True)
        .run()
        .spans
    )
    assert found is not None
    assert sorted(zip(found.start.tolist(), found.end.tolist(), strict=True)) == sorted(
        (start, end) for _, _, start, end, _ in fast
    )


@examples(80)
@given(plans(looped=True))
def test_loops_compute_what_they_unroll_to(plan: Plan) -> None:
    cores, results = tuple(range(len(plan.cores))), []
    for unrolled in (False, True):
        kernel = Random(plan, unrolled=unrolled)
        x = np.arange(kernel.x.shape[0], dtype=np.float32).astype(np.float16)
        arrays = {"x": x, "y": np.zeros(kernel.y.shape, np.float16)}
        execute(build(kernel, TINY, cores), arrays)
        results.append(arrays["y"])
    np.testing.assert_array_equal(results[0], results[1])


def orderings(program: Program, core: CoreProgram) -> list[dict[int, int]]:
    """Per instruction, how many of every pipe are complete for certain when it starts."""
    totals: dict[int, int] = {}
    known: dict[tuple[int, int], dict[int, int]] = {}  # (pipe, count) -> what it starts after
    out = []
    for variant in core.variants:
        chosen = program.variants[variant]
        lowered = program.templates[chosen.template].lowered
        before = dict(totals)
        for pipe, waits in zip(lowered.pipes, chosen.waits, strict=True):
            reached = [(pipe, totals.get(pipe, 0))]
            reached += [(q, n + before.get(q, 0)) for q, n, _ in waits]
            certain: dict[int, int] = {}
            for q, n in (place for place in reached if place[1] > 0):
                for other, count in {**known[q, n], q: n}.items():
                    certain[other] = max(count, certain.get(other, 0))
            totals[pipe] = totals.get(pipe, 0) + 1
            known[pipe, totals[pipe]] = certain
            out.append(certain)
    return out


@examples(200)
@given(plans())
def test_linked_waits_imply_the_same_order_as_all_conflicts(plan: Plan) -> None:
    """Timing may hide a missing wait; the order that follows from the waits does not."""
    program = build(Random(plan), TINY, tuple(range(len(plan.cores))))
    expanded = oracle(program)
    for linked, whole in zip(program.cores, expanded.cores, strict=True):
        assert orderings(program, linked) == orderings(expanded, whole)


@examples(40)
@given(plans())
def test_a_template_is_emitted_once_however_many_units_use_it(plan: Plan) -> None:
    kernel = Random(plan)
    program = build(kernel, TINY, tuple(range(len(plan.cores))))
    signatures = {
        (t, i == 0, i == len(units) - 1) for units in plan.cores for i, t in enumerate(units)
    }
    assert kernel.emits == len(program.templates) == len(signatures)
    assert program.instructions == sum(len(expand(program, core)) for core in program.cores)


@pytest.mark.parametrize("waits", [[(1, 3, FLAG), (1, 3, DATA)], [(1, 3, DATA), (1, 3, FLAG)]])
def test_of_two_reasons_to_wait_as_long_the_first_in_order_is_told(waits: list[Wait]) -> None:
    waited: dict[int, int] = {}
    assert _essential([*waits, (1, 2, SPACE), (0, 1, FLAG)], waited) == ((0, 1, FLAG), (1, 3, DATA))
    assert waited == {0: 1, 1: 3}
    assert _essential([(1, 3, DATA), (0, 1, DATA)], waited) == ()


# -- flags across units ------------------------------------------------------------------------


class Flags(Scripted):
    """Units that set and wait as told, per unit a string such as "sw" or "-"."""

    name = "flags"
    role = "vector"

    def __init__(self, *units: str) -> None:
        self.texts = units
        self.x = Tensor("x", (64,), FP16)

    def tasks(self, cores: int) -> Tasks[Any]:
        return tasks_of(np.zeros(len(self.texts), np.int64), {"u": np.arange(len(self.texts))})

    def buffers(self, k: Language) -> None:
        self.ub = k.buffer("UB", (128,), None)

    def emit(self, k: Language, task: Any) -> None:
        for letter in self.texts[task.u]:
            if letter == "s":
                k.set_flag("MTE2", "V", 3)
            elif letter == "w":
                k.wait_flag("MTE2", "V", 3)
            else:
                k.vec_dup(self.ub.next().at(), 0.0, FP16)


@pytest.mark.parametrize("units", [("sw",), ("s", "w"), ("s", "-", "-", "w"), ("sws", "w", "sw")])
def test_flags_pair_inside_and_across_units(units: tuple[str, ...]) -> None:
    program = build(Flags(*units), TINY, (0,))
    assert run(program).cycles > 0
    assert schedule(run(program)) == schedule(run(oracle(program)))


@rows(
    "tests/data/mistakes/program.yaml",
    "unpaired_flags_are_errors_with_the_kernel_line",
    "units, message",
)
def test_unpaired_flags_are_errors_with_the_kernel_line(units: list[str], message: str) -> None:
    with pytest.raises(ProgramError, match=rf"^test_linking\.py:\d+: {message}"):
        build(Flags(*units), TINY, (0,))
