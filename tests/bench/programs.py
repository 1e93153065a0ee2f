"""Programs and machines the benchmarks share."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import npusim
from npusim.call.options import Options
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32
from npusim.isa.operands import Tensor
from npusim.kernels.matmul import Matmul, Tiling
from npusim.program.build import build
from npusim.program.kernel import IntArray, Units
from npusim.program.language import Language
from npusim.program.program import Program
from npusim.timing.run import new_l2, time_program
from npusim.timing.trace import KernelRun
from tests.bench.figures import Settings

DEVICE = "ascend910b2"

#: The base tile GEMM libraries use on a 910B: half of L0A, half of L0B, all of L0C.
BASE = Tiling(base_m=128, base_n=256, base_k=64)

#: What one ``pipe_barrier`` of a late core costs: the step in which cores can start late.
DELAY_STEP = 10


class LateMatmul(Matmul):
    """A matmul whose core i first spends ``steps[i]`` pipe barriers of ``DELAY_STEP`` cycles.

    They are a unit of their own, so the matmul's units are those of any other matmul.
    """

    def __init__(self, size: int, steps: IntArray) -> None:
        super().__init__(BASE, *operands(size, size, size))
        self.steps = steps

    def units(self, cores: int) -> Units:
        work = super().units(cores)
        none = np.zeros(cores, np.int64)

        def behind(lead: IntArray, column: IntArray) -> IntArray:
            return np.concatenate([lead, column])

        return Units(
            behind(np.arange(cores), work.core),
            {
                "steps": behind(self.steps, np.zeros_like(work.core)),
                **{name: behind(none, column) for name, column in work.signature.items()},
            },
            {name: behind(none, column) for name, column in work.bases.items()},
        )

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        if not unit.steps:
            super().emit(k, unit)
        for _ in range(unit.steps):
            k.pipe_barrier()


def operands(m: int, k: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """fp16 A (m, k) and B (k, n), and fp32 C."""
    return Tensor("a", (m, k), FP16), Tensor("b", (k, n), FP16), Tensor("c", (m, n), FP32, "out")


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
