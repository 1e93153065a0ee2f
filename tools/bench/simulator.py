"""Speed of the simulator inside one process: building, engines, numbers."""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import npusim
from npusim.call.tilings.choice import CHOICES, TRIED
from npusim.machine.timing.trace import KernelRun
from npusim.reuse.answers import Answers
from npusim.reuse.launches import RUNS
from npusim.reuse.programs import LONG_PROGRAMS, PROGRAMS
from tools.bench import programs
from tools.bench.figures import Figure, Settings, cpu_seconds, medians

#: Cores, and the longest time one of them starts late, cycles.
CORES, SKEW = 32, 5000

#: (m, k, n) of a product of about 10^7 instructions.
TEN_MILLION = (22400, 16384, 16384)

#: Plain products per timing: one takes a few milliseconds, too little to time alone.
PLAIN = 10


def engine(settings: Settings) -> Iterator[Figure]:
    """The engine alone, with cores in step and with cores that start at random times."""
    size, name = 8192 // settings.divisor, programs.engine_name(settings)
    device = programs.wide_device(CORES)
    steps = np.random.default_rng(0).integers(1, SKEW // programs.DELAY_STEP + 1, CORES)
    in_step = programs.on_all_cores(programs.square_matmul(size), device)
    skewed = programs.on_all_cores(programs.late_matmul(size, steps), device)
    programs.warm_up(name, device)
    times = medians(
        settings.repeats,
        lambda: programs.run(in_step, name),
        lambda: programs.run(skewed, name),
    )
    starts = (
        "all at cycle 0",
        f"{steps.min() * programs.DELAY_STEP} to {steps.max() * programs.DELAY_STEP} cycles late",
    )
    for label, program, seconds, start in zip(
        ("in_step", "skewed"), (in_step, skewed), times, starts, strict=True
    ):
        count = program.instructions
        note = f"{name}: {size}^3, {CORES} cores, {start}: {count:,} in {seconds:.3f} s"
        yield Figure(f"engine.{label}", count / seconds, "instructions/s", note)


def reference(settings: Settings) -> Iterator[Figure]:
    """The SimPy engine on 24 contending cores, and how much faster the engine measured is."""
    size, name = 4096 // settings.divisor, programs.engine_name(settings)
    device = npusim.load_device(programs.DEVICE)
    program = programs.on_all_cores(programs.square_matmul(size), device)
    names = list(dict.fromkeys(("simpy", name)))
    for each in names:
        programs.warm_up(each, device)
    times = medians(settings.repeats, *(partial(programs.run, program, each) for each in names))
    note = f"{size}^3, {device.groups} cores, {program.instructions:,} instructions"
    yield Figure("reference.simpy", program.instructions / times[0], "instructions/s", note)
    if len(times) > 1:
        yield Figure(
            "reference.ratio", times[0] / times[1], "x", f"{name} over simpy, same program"
        )


def build_and_run(settings: Settings) -> Iterator[Figure]:
    """Building and lowering 10^7 instructions, then running them too; peak memory of that.

    The peak is read after the first run: it is that of a process which does nothing else.
    """
    shape, name = [size // settings.divisor for size in TEN_MILLION], programs.engine_name(settings)
    device = npusim.load_device(programs.DEVICE)
    kernel = programs.matmul(*shape)

    def both() -> KernelRun:
        return programs.run(programs.on_all_cores(kernel, device), name)

    programs.warm_up(name, device)
    before = _peak_mib()
    count = both().instructions
    peak = _peak_mib()
    built, ran = medians(settings.repeats, lambda: programs.on_all_cores(kernel, device), both)
    note = f"{'x'.join(map(str, shape))}, {count:,} instructions"
    yield Figure("build.lower", count / built, "instructions/s", f"{note} in {built:.3f} s")
    yield Figure("build.run", count / ran, "instructions/s", f"{name}: {note} in {ran:.3f} s")
    yield Figure("build.peak_memory", peak, "MiB", f"{name}: {before:.0f} MiB of it before")


def forget(*kept: Answers[Any]) -> None:
    """Forget what a second call would only find."""
    for one in kept:
        one.clear()


def scaling(settings: Settings) -> Iterator[Figure]:
    """How wall time grows from a product of 1024^3 to one of 16384^3: 4096 times the work."""
    name = programs.engine_name(settings)
    small, large = 1024 // settings.divisor, 16384 // settings.divisor

    def call(size: int) -> None:
        forget(CHOICES, TRIED, PROGRAMS, LONG_PROGRAMS, RUNS)
        x = npusim.spec((size, size), "fp16")
        npusim.ops.matmul(x, x, device=programs.DEVICE, engine=name, timeline=False)

    call(small)  # start-up, compilation and the device file are not what grows
    times = medians(settings.repeats, lambda: call(small), lambda: call(large))
    for size, seconds in zip((small, large), times, strict=True):
        yield Figure(
            f"scaling.{size}", seconds, "s", f"{name}: ops.matmul {size}^3, automatic tiling"
        )
    yield Figure("scaling.ratio", times[1] / times[0], "x", f"{large}^3 over {small}^3")


def full(settings: Settings) -> Iterator[Figure]:
    """Numbers and cycles of a filter gradient against the same multiply-adds in NumPy."""
    name = programs.engine_name(settings)
    x = np.ones((4, 16, 14, 14, 16), np.float16)
    para = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
    a, b = np.ones((256, 784), np.float32), np.ones((784, 2304), np.float32)

    def simulate() -> None:
        npusim.ops.conv2d_backprop_filter(
            x, x, [256, 256, 3, 3], para, device=programs.DEVICE, engine=name, timeline=False
        )

    def multiply() -> None:
        for _ in range(PLAIN):
            a @ b

    def multiply_alone() -> None:
        with threadpool_limits(1, user_api="blas"):
            multiply()

    works = (simulate, multiply, multiply_alone)
    for work in works:
        work()
    run, threaded, alone = medians(settings.repeats, *works)
    yield Figure("full.time", run, "s", f"{name}: resnet50/res4_3x3 batch 4, filter gradient")
    for label, seconds, threads in (
        ("ratio", threaded / PLAIN, "as many BLAS threads as it likes"),
        ("ratio_one_thread", alone / PLAIN, "one BLAS thread"),
    ):
        note = f"over one fp32 NumPy product with {threads}: {seconds * 1e3:.2f} ms"
        yield Figure(f"full.{label}", run / seconds, "x", note)


def full_product(settings: Settings) -> Iterator[Figure]:
    """Numbers and cycles of a matmul against the NumPy product it is, in CPU time."""
    name, size = programs.engine_name(settings), 2048 // settings.divisor
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float16) for _ in range(2))
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)

    def simulate() -> None:
        npusim.ops.matmul(a, b, device=programs.DEVICE, engine=name, timeline=False)

    def multiply() -> None:
        for _ in range(PLAIN):
            wide_a @ wide_b

    for limit, label in ((None, "ratio"), (1, "ratio_one_thread")):
        with threadpool_limits(limit, user_api="blas"):
            simulate()
            rounds = [
                (cpu_seconds(simulate), cpu_seconds(multiply)) for _ in range(settings.repeats)
            ]
        run = statistics.median(run for run, _ in rounds)
        product = statistics.median(product for _, product in rounds) / PLAIN
        note = f"{name}: matmul {size}^3, {run:.3f} CPU s over {product:.3f} of one fp32 product"
        yield Figure(f"full_product.{label}", run / product, "x", note)


def _peak_mib() -> float:
    """The most memory this process has held so far, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
