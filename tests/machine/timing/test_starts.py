"""When cores start: one after another, or otherwise on request."""

from __future__ import annotations

import numpy as np

import npusim
from npusim.base.dtypes import FP16
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.tiling import Tiling
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.program import Program
from npusim.machine.timing.run import new_l2, time_program
from npusim.machine.timing.trace import core_starts, random_starts, starting

TILING = Tiling(base_m=128, base_n=128, base_k=64)


def program() -> Program:
    """A product of 16 tiles, on 16 of 24 cores."""
    a, b = Tensor("a", (512, 512), FP16), Tensor("b", (512, 512), FP16)
    kernel = Matmul(TILING, a, b, Tensor("c", (512, 512), FP16, "out"))
    return build(kernel, npusim.load_device("ascend910b2"), tuple(range(24)))


def test_cores_with_work_start_apart_and_idle_ones_do_not_count() -> None:
    made = program()
    starts, skew = core_starts(made), made.device.launch.skew_cycles
    busy = [len(core.variants) > 0 for core in made.cores]
    assert sum(busy) == 16
    assert starts[busy].tolist() == [skew * i for i in range(16)]
    assert not starts[np.logical_not(busy)].any()


def test_random_starts_are_those_of_their_seed_in_order_and_within_reach() -> None:
    made = program()
    most = made.device.launch.core_cycles
    first, again, other = (random_starts(seed)(made)[:16] for seed in (1, 1, 2))
    assert most > made.device.launch.skew_cycles
    assert first.tolist() == again.tolist() != other.tolist()
    gaps = np.diff(first)
    assert first[0] == 0
    assert 0 <= gaps.min() < gaps.max() <= most


def test_a_launch_ends_with_the_last_start_however_cores_start() -> None:
    made = program()
    plain = time_program(made, new_l2(made.device, "fast"))
    with starting(random_starts(3)):
        spread = time_program(made, new_l2(made.device, "fast"))
        last = int(core_starts(made).max())
    assert last > int(core_starts(made).max())
    launch = made.device.launch.cycles("cube", 16)
    assert spread.launch_cycles == launch - last
    assert plain.launch_cycles == launch - int(core_starts(made).max())
    assert spread.cycles > last
