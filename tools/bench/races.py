"""The cost of the search for races and other mistakes, beside the numbers it guards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.base.dtypes import FP16, FP32
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.mix import MatmulFinish
from npusim.kernels.parts.hand_over import HandOver
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.numerics.executor import execute
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Kernel
from npusim.machine.program.unwritten import check_mistakes
from tools.bench import programs
from tools.bench.figures import Figure, Settings, medians

CORES = 8


def races(settings: Settings) -> Iterator[Figure]:
    """A plain product, and one whose cube cores hand tiles to vector cores by flags."""
    size = 1024 // settings.divisor
    a, b = Tensor("a", (size, size), FP16), Tensor("b", (size, size), FP16)
    out = Tensor("c", (size, size), FP32, "out")
    blocks = Tensor("work", (CORES * 2, programs.BASE.base_m, programs.BASE.base_n), FP32, "out")
    handed = HandOver(size, size, 2, 2)
    for name, kernel in (
        ("plain", Matmul(programs.BASE, a, b, out)),
        ("handed", MatmulFinish(Matmul(programs.BASE, a, b, blocks, handed=handed), out)),
    ):
        yield _share(f"races.{name}", kernel, settings)


def _share(name: str, kernel: Kernel, settings: Settings) -> Figure:
    program = build(kernel, load_device(programs.DEVICE), tuple(range(CORES)))
    arrays = {tensor.name: np.ones(tensor.shape, tensor.dtype.numpy) for tensor in kernel.tensors}

    def numbers() -> None:
        execute(program, arrays)

    def search() -> None:
        check_mistakes(program)

    computed, searched = medians(settings.repeats, numbers, search)
    note = f"search for mistakes, {searched:.3f} s, over the numbers, {computed:.3f} s: "
    return Figure(name, searched / computed, "x", f"{note}{program.instructions:,} instructions")
