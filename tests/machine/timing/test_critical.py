"""The critical path: by hand on ``tiny``, and on random programs, whose cycles it adds up to."""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim.base.dtypes import FP16
from npusim.base.errors import ProgramError
from npusim.base.integers import ceil_div
from npusim.machine.device.spec import Device
from npusim.machine.isa.cost_parts import cost_parts
from npusim.machine.program.build import build
from npusim.machine.program.language import Language
from npusim.machine.program.program import Program
from npusim.machine.timing.run import new_l2, trace_program
from npusim.machine.timing.trace import Trace
from tests.machine.timing.random_programs import random_case
from tests.machine.timing.test_timing_by_hand import PIECE, Body, Script, load, store, three_stages
from tests.sampled import slow_if

#: Steps by pipe and instruction: cycles by part, and how often.
Found = dict[tuple[str, str], tuple[dict[str, int], int]]


def traced(program: Program, engine: str = "simpy") -> Trace:
    return trace_program(program, new_l2(program.device, engine))


def path(
    body: Body,
    engine: str,
    cores: int = 1,
    slots: int = 2,
    figures: dict[str, str] | None = None,
) -> Found:
    """The path of a script; figures of ``tiny`` may differ."""
    device: Device = npusim.load_device("tiny", figures)
    trace = traced(build(Script(body, slots=slots), device, tuple(range(cores))), engine)
    assert sum(step.cycles for step in trace.path) == trace.cycles
    return {(s.work.pipe, s.work.op): (s.parts, s.count) for s in trace.path}


def test_a_pipeline_rests_on_its_last_stage_and_the_way_there(engine: str) -> None:
    # load 1-51, compute 51-61, then stores 61-111, 111-161, 161-211, 211-261.
    assert path(three_stages, engine) == {
        ("MTE3", "data_move"): ({"start-up": 40, "bytes": 160}, 4),
        ("MTE2", "data_move"): ({"start-up": 10, "bytes": 40}, 1),
        ("V", "vec_muls"): ({"compute": 10}, 1),
        ("S", "issue data_move"): ({"issue": 1}, 1),
    }


def test_what_others_take_of_a_link_is_sharing(engine: str) -> None:
    # Two cores load 2560 B each at 64 B per cycle together: 10 + 80 cycles instead of 10 + 40.
    found = path(lambda s, k, task: load(s, k, task.core), engine, cores=2)
    assert found["MTE2", "data_move"] == ({"start-up": 10, "bytes": 40, "sharing": 40}, 1)


def test_one_slot_leads_back_through_the_reader_of_what_was_there(engine: str) -> None:
    # 1-51 load, 51-61 compute, and again from 61 on: the load waits for the slot.
    found = path(twice, engine, slots=1)
    assert found["MTE2", "data_move"] == ({"start-up": 20, "bytes": 80}, 2)
    assert found["V", "vec_muls"] == ({"compute": 20}, 2)


def twice(s: Script, k: Language, task: Any) -> None:
    for piece in range(2):
        load(s, k, piece)
        k.vec_scalar("muls", s.b.next().at(0, PIECE), s.a.last().at(0, PIECE), 2.0, FP16)


def test_issue_is_what_many_small_instructions_rest_on(engine: str) -> None:
    def many(s: Script, k: Language, task: Any) -> None:
        target = s.b.next()
        for _ in range(6):
            k.vec_dup(target.at(0, 256), 0.0, FP16)

    # Each is issued in 5 cycles and done in one.
    found = path(many, engine, figures={"vector.issue": "5cycle"})
    assert found == {
        ("S", "issue vec_dup"): ({"issue": 30}, 6),
        ("V", "vec_dup"): ({"compute": 1}, 1),
    }


def test_a_full_queue_leads_back_to_the_pipe_behind_it(engine: str) -> None:
    def stores(s: Script, k: Language, task: Any) -> None:
        k.vec_dup(s.b.next().at(0, PIECE), 0.0, FP16)
        for piece in range(6):
            store(s, k, piece)
        load(s, k, 0)

    # 4 stores wait in the queue, so that the load is issued when the second store starts, at 61;
    # with a start-up of 900 cycles it ends last.
    found = path(stores, engine, figures={"paths.GM->UB.startup": "900cycle"})
    assert found["MTE2", "data_move"] == ({"start-up": 900, "bytes": 40}, 1)
    assert found["MTE3", "data_move"][0] == {"start-up": 10, "bytes": 40}
    assert found["V", "vec_dup"] == ({"compute": 10}, 1)


def test_the_last_core_at_a_barrier_is_the_one_that_counts(engine: str) -> None:
    def meet(s: Script, k: Language, task: Any) -> None:
        for piece in range(1 + 2 * task.core):
            load(s, k, piece, size=64)
        k.core_barrier()
        load(s, k, 9, size=64)

    found = path(meet, engine, cores=2)
    # Core 1 loads three times 64 B in 11 cycles each, the barrier takes 10, and one load follows.
    assert found["MTE2", "data_move"][1] == 4
    assert found["S", "core_barrier"] == ({"order": 10}, 1)


def test_a_flag_leads_to_the_core_that_set_it(engine: str) -> None:
    def signal(s: Script, k: Language, task: Any) -> None:
        if task.core == 0:
            load(s, k, 0)
            k.core_set_flag("MTE2", 0)
        else:
            k.core_wait_flag("MTE2", 0)
            load(s, k, 1, size=64)

    found = path(signal, engine, cores=2)
    assert found["MTE2", "data_move"][1] == 2, "one on either core"
    assert found["MTE2", "core_set_flag"][0] == {"order": 1}
    assert found["MTE2", "core_wait_flag"][0] == {"order": 1}


@pytest.mark.parametrize("first", [slow_if(first > 0, first) for first in range(0, 120, 40)])
def test_the_path_of_random_programs_adds_up_to_their_cycles(first: int, engine: str) -> None:
    traced_some = 0
    for seed in range(first, first + 40):
        case = random_case(seed)
        l2 = new_l2(case.device, engine)
        for program in case.programs:
            try:
                trace = trace_program(program, l2)
            except ProgramError:  # it hangs
                break
            traced_some += 1
            assert sum(step.cycles for step in trace.path) == trace.cycles, f"seed {seed}"
            for step in trace.path:
                assert min(step.parts.values()) > 0, f"seed {seed}: {step}"
    assert traced_some > 30


@pytest.mark.parametrize("seed", range(40))
def test_parts_of_a_cost_add_up_to_it(seed: int) -> None:
    for program in random_case(seed).programs:
        for template in program.templates:
            priced = template.priced or template.instructions
            for instruction, cost in zip(priced, template.costs, strict=True):
                parts = cost_parts(instruction, program.device)
                assert sum(parts.values()) == cost.cycles
                assert min(parts.values(), default=0) >= 0


def test_what_takes_longest_of_bytes_rows_and_fetches_has_the_time(engine: str) -> None:
    def matrix(rows: int, row: int) -> Found:
        def nz(s: Script, k: Language, task: Any) -> None:
            l1 = k.buffer("L1", (ceil_div(rows, 16) * 16 * row,), FP16).next()
            source = s.x.at(0, 2 * row, rows=rows, pitch=2 * row)
            k.nd2nz(l1.at(0, ceil_div(rows, 16) * 16 * 2 * row), source, FP16)

        return path(nz, engine)

    # tiny takes 2 cycles a row, and 64 B per cycle.
    assert matrix(32, 16)["MTE2", "nd2nz"][0] == {"start-up": 10, "rows": 64}
    assert matrix(32, 128)["MTE2", "nd2nz"][0] == {"start-up": 10, "bytes": 128}
