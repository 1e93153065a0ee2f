"""Benchmarks: ``python -m tests.bench`` (or ``make bench``) prints rates and ratios of one run.

Figures are medians of three. Nothing is asserted: machines differ, and noise is not a bug.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

import npusim
from npusim.dtypes import FP16, FP32
from npusim.isa.operands import Tensor
from npusim.kernels.matmul import Matmul, Tiling
from npusim.program.build import build
from npusim.timing.l2 import L2State
from npusim.timing.run import time_program

#: The base tile GEMM libraries use on a 910B: half of L0A, half of L0B, all of L0C.
BASE = Tiling(base_m=128, base_n=256, base_k=64, step_k=4)


def median_time(work: Callable[[], object]) -> float:
    """Seconds of one call, median of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def square_matmul(size: int) -> Matmul:
    """A timing-only fp16 product of two square matrices."""
    shape = (size, size)
    return Matmul(
        BASE, Tensor("a", shape, FP16), Tensor("b", shape, FP16), Tensor("c", shape, FP32, "out")
    )


def build_rate() -> str:
    """Building and lowering a program of 10^6 instructions."""
    device = npusim.load_device("ascend910b2")
    groups = tuple(range(device.groups))
    kernel = square_matmul(7168)
    seconds = median_time(lambda: build(kernel, device, groups))
    count = build(kernel, device, groups).instructions
    return f"build + lower: {count:,} instructions in {seconds:.3f} s ({count / seconds:,.0f}/s)"


def engine_rate() -> str:
    """The SimPy engine on 24 contending cores."""
    device = npusim.load_device("ascend910b2")
    program = build(square_matmul(2048), device, tuple(range(device.groups)))
    seconds = median_time(lambda: time_program(program, L2State(device.l2), timeline=False))
    rate = program.instructions / seconds
    return f"simpy engine: {program.instructions:,} instructions, {rate:,.0f} instructions/s"


def full_run_ratio() -> str:
    """Numbers and cycles of res4 3x3 (batch 4), against the same multiply-adds in NumPy."""
    x = np.ones((4, 16, 14, 14, 16), np.float16)
    para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    a, b = np.ones((256, 784), np.float32), np.ones((784, 2304), np.float32)
    run = median_time(
        lambda: npusim.ops.conv2d_backprop_filter(
            x, x, [256, 256, 3, 3], para, device="ascend910b2", timeline=False
        )
    )
    plain = median_time(lambda: a @ b)
    return f"full run of res4_3x3 batch 4: {run:.3f} s = {run / plain:.1f} x one fp32 matmul"


def main() -> None:
    """Print the machine, then one line per benchmark."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for benchmark in (build_rate, engine_rate, full_run_ratio):
        print(benchmark())


if __name__ == "__main__":
    main()
