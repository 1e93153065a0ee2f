"""A small synthetic call for the tests of results: two kernels on two cores, with timeline."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from matplotlib import pyplot

from npusim.base.reasons import REASONS
from npusim.base.records import replace
from npusim.machine.device.parts import (
    CoreKind,
    Cube,
    CubeRate,
    L2Cache,
    Launch,
    MainMemory,
    Memory,
    Pipe,
    Sync,
    Vector,
)
from npusim.machine.device.parts import Path as MovePath
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import Bound, KernelRun, PipeRow, Timeline, TrafficRow
from npusim.results import Result

#: A pipeline stage: pipe, instruction, cycles, bytes, multiply-adds.
Stage = tuple[str, str, int, int, int]

CUBE_STAGES: tuple[Stage, ...] = (
    ("S", "scalar", 6, 0, 0),
    ("MTE2", "data_move", 240, 16384, 0),
    ("MTE1", "load3d", 66, 16384, 0),
    ("M", "mmad", 256, 0, 1048576),
    ("FIX", "fixpipe", 90, 8192, 0),
)
VECTOR_STAGES: tuple[Stage, ...] = (
    ("S", "scalar", 4, 0, 0),
    ("MTE2", "data_move", 120, 8192, 0),
    ("V", "vec_conv", 70, 8192, 0),
    ("MTE3", "data_move", 110, 8192, 0),
)
CUBE = Cube(
    startup_cycles=2,
    idle_head_cycles=6,
    odd_block_conflict=False,
    rates={"float16": CubeRate(m=16, k=16, n=16, cycles=1)},
)
L2 = L2Cache(
    size_bytes=192 << 20,
    block_bytes=32768,
    sector_bytes=128,
    read_bytes_per_cycle=Fraction(2640),
    write_bytes_per_cycle=Fraction(2064),
    atomic_factor=2,
)
HBM = MainMemory(
    size_bytes=64 << 30,
    read_bytes_per_cycle=Fraction(889),
    write_bytes_per_cycle=Fraction(889),
)
LINES = ("conv.py:41", "conv.py:57")


class SmallDevice(Device):
    """A device whose digest does not depend on how devices are hashed."""

    def digest(self) -> str:
        """A fixed content hash."""
        return "0123456789ab"


@pytest.fixture(scope="session")
def device() -> Device:
    """Two groups at 1.8 GHz with round figures."""
    pipes = ("S", "MTE2", "MTE1", "M", "V", "FIX", "MTE3")
    moves = {"GM->L1": "MTE2", "L1->L0A": "MTE1", "L0C->GM": "FIX", "UB->GM": "MTE3"}
    return SmallDevice(
        name="small",
        description="two cores with round figures",
        clock_hz=1_800_000_000,
        groups=2,
        cores={
            "aic": CoreKind(name="aic", per_group=1, roles=("cube",), memories=("L1",), pipes=pipes)
        },
        memories={"L1": Memory(name="L1", size_bytes=1 << 19, align_bytes=32)},
        pipes={name: Pipe(name=name, queue_depth=32) for name in pipes},
        paths={
            name: MovePath(name=name, pipe=pipe, startup_cycles=2, bytes_per_cycle=Fraction(128))
            for name, pipe in moves.items()
        },
        cube=CUBE,
        vector=Vector(repeat_bytes=256, startup_cycles=2, idle_head_cycles=4, ops={}),
        sync=Sync(
            flag_cycles=1,
            pipe_barrier_cycles=1,
            core_barrier_cycles=1,
            core_flag_cycles=1,
            event_ids=8,
        ),
        l2=L2,
        main_memory=HBM,
        single=Launch(kernel_cycles=1800, first_access_cycles=900, tiling_cycles=0),
        dtypes=("float16",),
        sources={},
        provenance={},
        origin=cast("Any", None),
    )


class Simulated:
    """Rows of one kernel from a toy pipeline: each stage waits for its pipe, data and space."""

    def __init__(self, stages: tuple[Stage, ...], slots: int = 2) -> None:
        """A pipeline whose stages hand over through ``slots`` buffers."""
        self.stages = stages
        self.slots = slots
        self.rows: list[tuple[int, int, int, str, str, int, int, int, int, int]] = []

    def core(self, index: int, tiles: int, slow: int) -> None:
        """Run ``tiles`` tiles; the second stage takes ``slow`` extra cycles (shared bandwidth)."""
        depth = len(self.stages)
        ends = np.zeros((depth, tiles + 1), dtype=np.int64)
        for tile in range(tiles):
            for stage, (pipe, op, cycles, size, macs) in enumerate(self.stages):
                free = int(ends[stage, tile])
                data = int(ends[stage - 1, tile + 1]) if stage else 0
                held = tile + 1 - self.slots
                space = int(ends[stage + 1, held]) if stage + 1 < depth and held > 0 else 0
                start = max(free, data, space)
                end = start + cycles + (slow if stage == 1 else 0)
                ends[stage, tile + 1] = end
                reason = REASONS.index("space" if space > data else "data")
                waited = start - free if tile else 0
                self.rows.append((start, index, stage, pipe, op, end, size, macs, reason, waited))

    def pipe_rows(self, makespan: int, slow: int) -> tuple[PipeRow, ...]:
        """Cycles by reason of every track; they tile the makespan."""
        out = []
        for index in sorted({row[1] for row in self.rows}):
            for stage, (pipe, *_) in enumerate(self.stages):
                track = [row for row in self.rows if row[1] == index and row[2] == stage]
                cycles = dict.fromkeys(REASONS, 0)
                cycles["bandwidth"] = slow * len(track) if stage == 1 else 0
                cycles["busy"] = sum(row[5] - row[0] for row in track) - cycles["bandwidth"]
                for row in track:
                    cycles[REASONS[row[8]]] += row[9]
                cycles["not_started"] = track[0][0]
                cycles["done"] = makespan - track[-1][5]
                out.append(PipeRow(f"aic{index}", pipe, tuple(cycles.values())))
        return tuple(out)

    def timeline(self) -> Timeline:
        """The rows in the order the engine promises."""
        rows = sorted(self.rows)
        pipes = tuple(stage[0] for stage in self.stages)
        ops = tuple(dict.fromkeys(stage[1] for stage in self.stages))

        def column(values: list[int]) -> Any:
            return np.asarray(values, dtype=np.int64)

        return Timeline(
            cores=("aic0", "aic1"),
            pipes=pipes,
            ops=ops,
            lines=LINES,
            abouts=("x to a",),
            core=column([row[1] for row in rows]),
            pipe=column([row[2] for row in rows]),
            op=column([ops.index(row[4]) for row in rows]),
            line=column([int(row[2] >= 3) for row in rows]),
            about=column([0 for _ in rows]),
            start=column([row[0] for row in rows]),
            end=column([row[5] for row in rows]),
            bytes=column([row[6] for row in rows]),
            macs=column([row[7] for row in rows]),
            reason=column([row[8] for row in rows]),
            waited=column([row[9] for row in rows]),
        )


def kernel(name: str, stages: tuple[Stage, ...], tiles: int, slow: int) -> KernelRun:
    """One kernel of ``tiles`` tiles on core 0 and two thirds of them on core 1."""
    toy = Simulated(stages)
    toy.core(0, tiles, slow)
    toy.core(1, max(1, tiles * 2 // 3), slow)
    makespan = max(row[5] for row in toy.rows)
    macs = sum(row[7] for row in toy.rows)
    read = sum(row[6] for row in toy.rows if row[3] == "MTE2")
    written = sum(row[6] for row in toy.rows if row[3] in ("FIX", "MTE3"))
    on_chip = sum(row[6] for row in toy.rows if row[3] == "MTE1")
    hits = read // 4 // 128 * 128
    traffic = [TrafficRow("GM", "L1" if macs else "UB", "x", read, hits, read - hits)]
    if macs:
        traffic.append(TrafficRow("L1", "L0A", "", on_chip, 0, 0))
    traffic.append(TrafficRow("L0C" if macs else "UB", "GM", "y", written, 0, 0))
    bounds = [Bound("main memory", (read - hits) // 889, "misses over its read bandwidth")]
    if macs:
        bounds.append(Bound("cube", macs // 2 // 4096, "multiply-adds over two cubes at peak"))
    return KernelRun(
        name=name,
        tiling="m=64, k=128, n=128, slots=2",
        cores=2,
        cycles=makespan,
        launch_cycles=2700,
        instructions=len(toy.rows),
        macs=macs,
        gm_bytes=read + written,
        pipes=toy.pipe_rows(makespan, slow),
        traffic=tuple(traffic),
        bounds=tuple(bounds),
        timeline=toy.timeline(),
        useful_macs=64 * 64 * 9 * 28 * 28 if macs else 0,
        problem_bounds=(Bound("HBM read", read // 1778, "every operand once, with a cold L2"),),
    )


@pytest.fixture(scope="session")
def result(device: Device) -> Result:
    """A layout conversion and a convolution, with one output of two."""
    runs = (kernel("trans_data", VECTOR_STAGES, 24, 30), kernel("conv", CUBE_STAGES, 60, 44))
    return Result(
        operator="convolution_backward",
        device=device,
        runs=runs,
        outputs=(None, np.ones((2, 3), dtype=np.float32)),
        output_names=("grad_input", "grad_weight"),
        notes=("rates of <MTE2> & FIX are assumed",),
        problem="grad_weight of x 1x64x28x28, w 64x64x3x3, stride 1, padding 1, float16",
        version="1.2.3",
        problem_bounds=(Bound("cube", 14112, "useful multiply-adds on 2 cores", 14112),),
    )


@pytest.fixture(scope="session")
def bare_result(result: Result) -> Result:
    """The same call with no timeline kept."""
    return replace(result, runs=tuple(replace(run, timeline=None) for run in result.runs))


@pytest.fixture(scope="session")
def large_result(result: Result) -> Result:
    """A call with about a hundred thousand instructions."""
    return replace(result, runs=(kernel("conv", CUBE_STAGES, 12_000, 44),))


@pytest.fixture(autouse=True)
def no_figure_is_left() -> Iterator[None]:
    """Close the figures that a test left open in pyplot, which warns of many."""
    yield
    pyplot.close("all")
