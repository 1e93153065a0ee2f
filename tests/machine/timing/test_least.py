"""A lower bound from the built program is one: no simulation is faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.base.errors import ProgramError
from npusim.call.tilings.problem import least_of_program
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.language import FP16, FP32, Language
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.program import Program
from npusim.machine.timing.links import link_rows
from npusim.machine.timing.run import new_l2, time_program
from tests.machine.timing.random_programs import random_case
from tests.sampled import slow_if
from tests.scripts import Scripted, tasks_of

pytestmark = pytest.mark.compiled

CHUNK = 25

#: A link of fewer units of 2^-16 B/cycle is shared in units too coarse for any bound.
COARSE = 1000


def least_cycles(program: Program, *, cold: bool = True) -> int:
    return least_of_program(program, cold=cold)


@pytest.mark.parametrize("chunk", [slow_if(chunk > 1, chunk) for chunk in range(8)])
def test_no_random_program_is_faster(chunk: int) -> None:
    """Cold for the first program of a case, in whatever L2 it leaves for the others."""
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        case = random_case(seed)
        if min(row.capacity for row in link_rows(case.device)) < COARSE:
            continue
        l2 = new_l2(case.device, "fast")
        for number, program in enumerate(case.programs):
            least = least_cycles(program, cold=not number)
            try:
                run = time_program(program, l2, timeline=False)
            except ProgramError:  # hangs, or leaves its tensor
                break
            assert least <= run.cycles, f"seed {seed}, program {number}"


def matmul(m: int, k: int, n: int, tiling: Tiling) -> Matmul:
    a, b = Tensor("a", (m, k), FP16), Tensor("b", (k, n), FP16)
    return Matmul(tiling, a, b, Tensor("c", (m, n), FP16, "out"))


@pytest.mark.parametrize("device", ["tiny", "ascend910", "ascend910b2", "ascend310p"])
def test_one_core_alone_takes_what_the_bound_says_but_for_gaps(device: str) -> None:
    """With one core nothing is shared: what is missing are the heads that gaps cost."""
    machine = load_device(device)
    program = build(matmul(64, 96, 32, Tiling(base_m=32, base_n=16, base_k=32)), machine, (0,))
    run = time_program(program, new_l2(machine, "fast"), timeline=False)
    least = least_cycles(program)
    heads = machine.cube.idle_head_cycles if machine.cube else 0
    heads += sum(path.idle_head_cycles for path in machine.paths.values())
    assert least <= run.cycles
    assert heads or least == run.cycles
    assert least >= 0.8 * run.cycles


class Adds(Scripted):
    """Every core adds ``pieces`` pieces of 1 KiB to places of its own in GM."""

    name = "adds"
    role = "vector"

    def __init__(self, cores: int, pieces: int) -> None:
        self.core = np.repeat(np.arange(cores), pieces)
        self.y = Tensor("y", (len(self.core) * 256,), FP32, "out")

    def tasks(self, cores: int) -> Tasks[Any]:
        return tasks_of(self.core, {}, {"at": np.arange(len(self.core)) * 1024})

    def buffers(self, k: Language) -> None:
        self.ub = k.buffer("UB", (256,), FP32, slots=2, name="ub")

    def emit(self, k: Language, task: Any) -> None:
        one = self.ub.next().at(0, 1024)
        k.vec_dup(one, 1.0, FP32)
        k.data_move(self.y.at(0, 1024, base="at"), one, FP32, atomic=True)


def test_atomic_adds_occupy_the_l2_more_than_once() -> None:
    """Both bounds count ``l2.atomic_factor`` times the bytes that are added."""
    machine = load_device("ascend910b2").replace("l2.write", "64B/cycle")
    assert machine.l2 is not None
    assert machine.l2.atomic_factor > 1
    cores, pieces = 8, 16
    program = build(Adds(cores, pieces), machine, tuple(range(cores // 2)))
    run = time_program(program, new_l2(machine, "fast"), timeline=False)
    due = cores * pieces * 1024 * machine.l2.atomic_factor // 64
    bounds = {bound.resource: bound.cycles for bound in run.bounds}
    assert bounds["L2 write"] == due
    assert due < least_cycles(program) <= run.cycles  # later than the first write begins
