"""Programs and machines the benchmarks share."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.integers import IntArray
from npusim.call.options import Options
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Plan, Tasks
from npusim.machine.program.language import Language
from npusim.machine.program.program import Program
from npusim.machine.timing.run import new_l2, time_program
from npusim.machine.timing.trace import KernelRun
from tools.bench.figures import Settings

DEVICE = "ascend910b2"

#: The base tile GEMM libraries use on a 910B: half of L0A, half of L0B, all of L0C.
BASE = Tiling(base_m=128, base_n=256, base_k=64)

#: What one ``pipe_barrier`` of a late core costs: the step in which cores can start late.
DELAY_STEP = 10


@dataclass(frozen=True)
class LateMatmul(Matmul):
    """A matmul whose core i first spends ``steps[i]`` pipe barriers of ``DELAY_STEP`` cycles.

    They are a task of their own, so the matmul's tasks are those of any other matmul.
    """

    steps: tuple[int, ...] = ()

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        work = super().plan(k, cores)
        tasks, none = work.tasks, np.zeros(cores, np.int64)
        record = namedtuple("Late", ("steps", *tasks.record._fields))  # type: ignore[misc]

        def emit(task: Any) -> None:
            if not task.steps:
                work.emit(tasks.record(*task[1:]))
            for _ in range(task.steps):
                k.pipe_barrier()

        def behind(lead: IntArray, column: Any) -> IntArray:
            return np.concatenate([lead, column])

        late = Tasks(
            behind(np.arange(cores), tasks.core),
            record,
            {
                "steps": behind(np.array(self.steps), np.zeros_like(tasks.core)),
                **{name: behind(none, column) for name, column in tasks.columns.items()},
            },
            {name: behind(none, column) for name, column in tasks.bases.items()},
        )
        return Plan(late, emit)


def operands(m: int, k: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """fp16 A (m, k) and B (k, n), and fp32 C."""
    return Tensor("a", (m, k), FP16), Tensor("b", (k, n), FP16), Tensor("c", (m, n), FP32, "out")


def late_matmul(size: int, steps: IntArray) -> LateMatmul:
    """A square product whose core i begins ``steps[i]`` steps late."""
    return LateMatmul(BASE, *operands(size, size, size), steps=tuple(steps.tolist()))


def matmul(m: int, k: int, n: int) -> Matmul:
    """A timing-only product in base tiles, double-buffered."""
    return Matmul(BASE, *operands(m, k, n))


def square_matmul(size: int) -> Matmul:
    """The same of two square matrices."""
    return matmul(size, size, size)


def wide_device(groups: int) -> Device:
    """A 910B2 with ``groups`` cube cores, the L2 and main memory of the shipped one.

    Pipe barriers cost ``DELAY_STEP`` cycles; a plain matmul has none.
    """
    overrides = {"groups": str(groups), "sync.pipe_barrier": f"{DELAY_STEP}cycle"}
    return npusim.load_device(DEVICE, overrides)


def on_all_cores(kernel: Matmul, device: Device) -> Program:
    """Build and lower ``kernel`` for every core group of ``device``."""
    return build(kernel, device, tuple(range(device.groups)))


def engine_name(settings: Settings) -> str:
    """The engine to measure."""
    return settings.engine or Options.engine


def run(program: Program, engine: str) -> KernelRun:
    """Time ``program`` from a cold L2, keeping no timeline."""
    return time_program(program, new_l2(program.device, engine), timeline=False)


def warm_up(engine: str, device: Device) -> None:
    """Run a small program, so that what is compiled or loaded once is not measured."""
    run(on_all_cores(square_matmul(512), device), engine)
