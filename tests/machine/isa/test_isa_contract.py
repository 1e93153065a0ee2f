"""What every instruction owes: one example per row of the table, checked in the same ways."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from inspect import isabstract
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.base.records import replace
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa import ISA
from npusim.machine.isa.base import Await, Cost, Instruction, Signal
from npusim.machine.isa.col2img import Col2img
from npusim.machine.isa.cost_parts import cost_parts
from npusim.machine.isa.cube import Drain, Mmad
from npusim.machine.isa.dma import DataMove, Fetcher, Fill, Load2d, Load3d, Nd2nz, Window
from npusim.machine.isa.dsp import DspCast, DspGemm
from npusim.machine.isa.operands import Buffer, GmRegion, Region, Slot, SlotRegion, Tensor
from npusim.machine.isa.sync import (
    CoreBarrier,
    CoreSetFlag,
    CoreWaitFlag,
    PipeBarrier,
    SetFlag,
    WaitFlag,
)
from npusim.machine.isa.vector import VecBinary, VecCast, VecDup, VecReduce, VecScalar, VecTranspose
from npusim.machine.isa.vector_math import VecCompare, VecSelect, VecUnary
from npusim.machine.numerics.memory import CoreMemory, GlobalMemory
from npusim.machine.program.program import Program

TINY = load_device("tiny")
DSP = load_device("mt7004")
DEVICES = [load_device(name) for name in ("tiny", "ascend910", "ascend910b2")]
MEMORIES = ("L1", "L0A", "L0B", "L0C", "UB", "UB", "AM", "AM", "SM")
BUFFERS = tuple(Buffer(m.lower(), m, 1 << 15, 1, i) for i, m in enumerate(MEMORIES))
L1, L0A, L0B, L0C, UB, UB2, AM, AM2, SM = (Slot(buffer, 0) for buffer in BUFFERS)
X = Tensor("x", (1 << 15,), FP16)
Y = Tensor("y", (1 << 15,), FP32, "out")


def window(height: int) -> Window:
    return Window(h=height, w=16, pad_left=1, pad_right=1, pad_top=1, pad_bottom=1, kernel_h=3,
                  kernel_w=3)  # fmt: skip


def path(src: str, dst: str, variant: str = "") -> Any:
    return TINY.path(src, dst, variant)


#: One legal example per row of the table; its argument scales the work.
EXAMPLES: dict[str, Callable[[int], Instruction]] = {
    "data_move": lambda s: DataMove(
        UB.at(0, 640 * s), X.at(0, 64 * s, rows=10, pitch=1024), path("GM", "UB"), FP16
    ),
    "nd2nz": lambda s: Nd2nz(
        L1.at(0, 1024 * s), X.at(0, 64 * s, rows=15, pitch=1024), path("GM", "L1", "nd2nz"), FP16
    ),
    "load2d": lambda s: Load2d(
        L0A.at(0, 512 * s), L1.at(0, 512, rows=s, pitch=1024), path("L1", "L0A", "transpose"), FP16,
        transpose=True,
    ),
    "load3d": lambda s: Load3d(
        L0B.at(0, s * 9 * 512), L1.at(0, s * 512), path("L1", "L0B", "load3d"), FP16, window(s),
        0, 16 * s, 0, 144,
    ),
    "fill": lambda s: Fill(L1.at(0, 320 * s), 1.5, path("IMM", "L1"), FP16),
    "mmad": lambda s: Mmad(
        L0C.at(0, s * 1024), L0A.at(0, s * 1024), L0B.at(0, 1024), 16 * s, 30, 15, FP16, init=True
    ),
    "drain": lambda s: Drain(
        Y.at(0, 16 * s * 16 * 4, rows=2, pitch=16384), L0C.at(0, 2 * s * 1024), 16 * s, 32,
        path("L0C", "GM"), FP32,
    ),
    "vec_binary": lambda s: VecBinary("max", UB.at(0, 320 * s), UB.at(8192, 320 * s),
                                      UB2.at(0, 320 * s), FP16),
    "vec_scalar": lambda s: VecScalar("muls", UB.at(0, 320 * s), UB2.at(0, 320 * s), 2.5, FP16),
    "vec_cast": lambda s: VecCast(UB.at(0, 640 * s), UB2.at(0, 320 * s), FP16, FP32),
    "vec_reduce": lambda s: VecReduce("add", UB.at(0, 16), UB2.at(0, 512 * s), 4, 32 * s, FP32),
    "vec_dup": lambda s: VecDup(UB.at(0, 320 * s), -1.0, FP32),
    "vec_transpose": lambda s: VecTranspose(
        UB.at(0, 288 * s), UB2.at(0, 18 * s, rows=16, pitch=256), 8, 9 * s, FP16, count=2
    ),
    "vec_unary": lambda s: VecUnary("abs", UB.at(0, 320 * s), UB2.at(0, 320 * s), FP16),
    "vec_compare": lambda s: VecCompare(
        "lt", UB.at(0, 20 * s), UB.at(8192, 320 * s), UB2.at(0, 320 * s), FP16
    ),
    "vec_select": lambda s: VecSelect(
        UB.at(0, 640 * s), UB.at(16384, 20 * s), UB2.at(0, 640 * s), 1.5, FP32
    ),
    "col2img": lambda s: Col2img(
        UB.at(0, 8 * (8 * s) * 32),
        UB2.at(0, 4 * (4 * s) * 32),
        FP16,
        Window(8, 8 * s, kernel_h=2, kernel_w=2, stride_h=2, stride_w=2),
        3,
    ),
    "dsp_gemm": lambda s: DspGemm(
        AM.at(0, 24 * s * 4), SM.at(0, 36 * s * 2), AM2.at(0, 48), 6 * s, 6, 4, FP16, init=True
    ),
    "dsp_cast": lambda s: DspCast(AM.at(0, 640 * s), AM2.at(0, 320 * s), FP16, FP32),
    "set_flag": lambda s: SetFlag("MTE2", "V", s),
    "wait_flag": lambda s: WaitFlag("V", "MTE2", s),
    "pipe_barrier": lambda s: PipeBarrier("MTE2"),
    "core_barrier": lambda s: CoreBarrier("S"),
    "core_set_flag": lambda s: CoreSetFlag("MTE3", Signal(s, "all")),
    "core_wait_flag": lambda s: CoreWaitFlag("MTE2", Await(3, s)),
}  # fmt: skip

names = pytest.mark.parametrize("name", EXAMPLES)


def homes(name: str) -> list[Device]:
    """Devices that have the instruction."""
    if name == "col2img":
        return [device for device in DEVICES if name in device.vector.ops]
    return [DSP] if name.startswith("dsp_") else DEVICES


class Recorder:
    """A memory view that remembers which regions were touched, and passes everything on."""

    batch = 1

    def __init__(self, memory: CoreMemory) -> None:
        self.memory = memory
        self.read_regions: list[Region] = []
        self.written: list[Region] = []
        self.added: list[Region] = []

    def read(
        self, region: Region, dtype: DType, shape: tuple[int, ...] = (), *, wide: bool = False
    ) -> Any:
        self.read_regions.append(region)
        values = self.memory.read(region, dtype, shape, wide=wide).copy()
        values.flags.writeable = False  # what was read must not be changed
        return values

    def write(self, region: Region, values: Any, dtype: DType) -> None:
        self.written.append(region)
        self.memory.write(region, values, dtype)

    def move(
        self, dst: Region, src: Region, dtype: DType, shape: tuple[int, ...] = (),
        arrange: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.read_regions.append(src)
        self.written.append(dst)
        self.memory.move(dst, src, dtype, shape, arrange)

    def add(self, region: Region, values: Any, dtype: DType) -> None:
        self.added.append(region)
        self.memory.add(region, values, dtype)


def fresh_memory(seed: int = 0) -> CoreMemory:
    """Private memories and tensors full of small numbers of the type that lives in each."""
    rng = np.random.default_rng(seed)
    data = {t.name: rng.integers(-8, 8, t.shape).astype(t.dtype.numpy) for t in (X, Y)}
    program = cast(Program, SimpleNamespace(buffers=BUFFERS))
    tensors = {name: a.view(np.uint8).copy() for name, a in data.items()}
    memory = CoreMemory(program, GlobalMemory(tensors))
    for buffer in BUFFERS:
        kind = np.float32 if buffer.memory == "L0C" else np.float16
        count = buffer.slot_bytes // np.dtype(kind).itemsize
        values = rng.integers(-8, 8, count).astype(kind).view(np.int8)
        memory.write(Slot(buffer, 0).at(), values, INT8)
    return memory


def snapshot(memory: CoreMemory) -> dict[str, Any]:
    private = {
        f"{b.name}{b.index}": memory.read(Slot(b, 0).at(), INT8).reshape(-1).view(np.uint8).copy()
        for b in BUFFERS
    }
    return {**private, **{name: a.copy() for name, a in memory.gm.tensors.items()}}


def bytes_of(region: Region) -> tuple[str, set[int]]:
    """Where a region lies, and the offsets of all its bytes."""
    if isinstance(region, GmRegion):
        place = region.tensor.name
    else:
        place = f"{region.slot.buffer.name}{region.slot.buffer.index}"
    starts = (region.offset + row * region.pitch for row in range(region.rows))
    return place, {at for start in starts for at in range(start, start + region.row_bytes)}


# -- the table ---------------------------------------------------------------------------------


def test_there_is_an_example_of_every_row() -> None:
    assert set(EXAMPLES) == set(ISA)
    assert {name: type(make(1)) for name, make in EXAMPLES.items()} == ISA


def test_every_instruction_class_is_in_the_table_once() -> None:
    def below(cls: type) -> set[type]:
        direct: list[type] = cls.__subclasses__()
        return set(direct).union(*map(below, direct))

    own = {cls for cls in below(Instruction) if cls.__module__.startswith("npusim.machine.isa.")}
    concrete = {cls for cls in own if not isabstract(cls) and not cls.__name__.startswith("_")}
    assert concrete == set(ISA.values())
    assert len(ISA) == len(set(ISA.values()))


# -- every instruction -------------------------------------------------------------------------


@names
@pytest.mark.parametrize("scale", [1, 2, 4])
def test_examples_are_legal_and_run_on_a_pipe_that_exists(name: str, scale: int) -> None:
    instruction = EXAMPLES[name](scale)
    instruction.check(homes(name)[0])
    assert instruction.pipe in homes(name)[0].pipes
    route = getattr(instruction, "path", None)
    if route is not None:
        assert instruction.pipe == route.pipe
        assert {r.memory for r in instruction.writes()} == {route.dst}
        assert {r.memory for r in instruction.reads()} <= {route.src}


@names
def test_instructions_are_values(name: str) -> None:
    one, same = EXAMPLES[name](1), EXAMPLES[name](1)
    assert one == same
    assert hash(one) == hash(same)


@pytest.mark.parametrize(
    ("name", "device"),
    [pytest.param(name, d, id=f"{name}-{d.name}") for name in EXAMPLES for d in homes(name)],
)
def test_costs_are_positive_and_grow_with_the_work(name: str, device: Device) -> None:
    costs = [EXAMPLES[name](scale).cost(device) for scale in (1, 2, 3, 5, 7)]
    for small, large in pairwise(costs):
        assert 0 < small.cycles <= large.cycles
        assert small.macs <= large.macs
    assert all(c.issue >= 1 and c.idle_head >= 0 <= c.startup <= c.cycles for c in costs)
    if EXAMPLES[name](1).writes():
        assert costs[-1].cycles > costs[0].cycles  # seven times the work is never free


@names
def test_it_touches_what_it_declares_and_nothing_else(name: str) -> None:
    instruction = EXAMPLES[name](2)
    memory = fresh_memory()
    recorder = Recorder(memory)
    before = snapshot(memory)
    instruction.execute(recorder)
    # Part of a target may keep what was there; bytes beyond it may not change.
    for one, declared in zip(recorder.written, instruction.writes(), strict=True):
        assert bytes_of(one)[0] == bytes_of(declared)[0]
        assert bytes_of(one)[1] <= bytes_of(declared)[1]
    # A target may be read too: parts of its last fractals keep what was there.
    assert set(instruction.reads()) <= set(recorder.read_regions)
    assert set(recorder.read_regions) <= {*instruction.reads(), *instruction.writes()}
    after = snapshot(memory)
    allowed: dict[str, set[int]] = {}
    for place, offsets in map(bytes_of, instruction.writes()):
        allowed.setdefault(place, set()).update(offsets)
    for place, old in before.items():
        changed = set(np.flatnonzero(old != after[place]).tolist())
        assert changed <= allowed.get(place, set())


@names
def test_results_depend_on_declared_reads_only(name: str) -> None:
    """With every byte outside the declared reads different, the same comes out."""
    instruction = EXAMPLES[name](2)
    kept = [bytes_of(r) for r in instruction.reads()]
    first, second = fresh_memory(), fresh_memory()
    private = {f"{b.name}{b.index}": Slot(b, 0).at() for b in BUFFERS}
    for place, data in snapshot(second).items():
        other = np.ones(data.size, np.bool_)
        for where, offsets in kept:
            if where == place:
                other[list(offsets)] = False
        data[other] ^= 0x11
        if place in private:
            second.write(private[place], data.view(np.int8), INT8)
        else:
            second.gm.tensors[place][:] = data
    before, changed_before = snapshot(first), snapshot(second)
    instruction.execute(first)
    instruction.execute(second)
    after, changed_after = snapshot(first), snapshot(second)
    for place, _ in map(bytes_of, instruction.writes()):
        set_in_one = after[place] != before[place]
        set_in_other = changed_after[place] != changed_before[place]
        touched = set_in_one | set_in_other
        assert touched.any()
        np.testing.assert_array_equal(after[place][touched], changed_after[place][touched])


@names
def test_it_prints_as_one_readable_line(name: str) -> None:
    instruction = EXAMPLES[name](2)
    text = str(instruction)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 100
    assert text.startswith(instruction.op)
    for region in (*instruction.reads(), *instruction.writes()):
        assert str(region) in text


@names
def test_moves_count_their_bytes_once(name: str) -> None:
    instruction = EXAMPLES[name](2)
    move = instruction.facts().move
    if getattr(instruction, "path", None) is None:
        assert move is None
        return
    assert move is not None
    source, target, operand, size = move
    route = instruction.path  # type: ignore[attr-defined]
    assert (source, target) == (route.src, route.dst)
    gm = [r for r in (*instruction.reads(), *instruction.writes()) if isinstance(r, GmRegion)]
    assert operand == (gm[0].tensor.name if gm else "")
    assert size == (gm[0] if gm else instruction.writes()[0]).size


def test_only_gm_writes_are_atomic() -> None:
    move = DataMove(Y.at(0, 64), UB.at(0, 64), path("UB", "GM"), FP32, atomic=True)
    drain = Drain(Y.at(0, 1024), L0C.at(0, 1024), 16, 16, path("L0C", "GM"), FP32, atomic=True)
    assert move.atomic
    assert drain.atomic
    recorder = Recorder(fresh_memory())
    move.execute(recorder)
    drain.execute(recorder)
    assert recorder.added == [move.dst, drain.dst]
    assert not recorder.written
    assert [name for name, make in EXAMPLES.items() if make(1).atomic] == []


# -- costs worked out by hand on `tiny` --------------------------------------------------------


@pytest.mark.parametrize(
    ("instruction", "want"),
    [
        (EXAMPLES["data_move"](1), Cost(cycles=20, startup=10)),  # 10 + 640 B at 64 B/cycle
        (EXAMPLES["nd2nz"](1), Cost(cycles=40, startup=10)),  # 15 rows of 2 cycles each > 15
        (EXAMPLES["load2d"](3), Cost(cycles=24)),  # 1536 B at 64 B/cycle
        # 9 columns of 16 positions on one row of 16: one fetch each, but 4608 B at 64 B/cycle
        (EXAMPLES["load3d"](1), Cost(cycles=72)),
        (EXAMPLES["fill"](1), Cost(cycles=5)),
        # 2 x 2 x 1 blocks, one cycle each; 32 * 30 * 15 multiply-adds
        (EXAMPLES["mmad"](2), Cost(cycles=4, idle_head=4, macs=14400)),
        (EXAMPLES["drain"](1), Cost(cycles=42, startup=10)),  # 2 KiB
        (EXAMPLES["vec_binary"](1), Cost(cycles=2)),  # 320 B in repeats of 256 B
        (EXAMPLES["vec_cast"](1), Cost(cycles=3)),  # the wider side: 640 B
        (EXAMPLES["vec_reduce"](1), Cost(cycles=2)),  # 512 B read
        (EXAMPLES["vec_dup"](4), Cost(cycles=5)),
        # 2 x 8 rows of 18 B: whole 16 rows of 32 B; with 8 times the columns 144 B become 160 B
        (EXAMPLES["vec_transpose"](1), Cost(cycles=2)),
        (EXAMPLES["vec_transpose"](8), Cost(cycles=10)),
        (EXAMPLES["core_barrier"](1), Cost(cycles=10)),
        (EXAMPLES["set_flag"](1), Cost(cycles=1)),
    ],
    ids=lambda value: value.op if isinstance(value, Instruction) else "",
)
def test_costs_by_hand(instruction: Instruction, want: Cost) -> None:
    assert instruction.cost(TINY) == want


def test_img2col_fetches_by_hand() -> None:
    wide = replace(window(4), w=64, pad_left=0, pad_right=0)  # 62 positions a row
    assert wide.fetches(0, 16, Fetcher(512)) == 1  # 16 neighbours: 512 B
    assert wide.fetches(48, 16, Fetcher(512)) == 2  # 14 on this row, 2 on the next
    assert wide.fetches(0, 16, Fetcher(256)) == 2
    assert wide.fetches(0, 17, Fetcher(512)) == 2
    by_two = replace(wide, stride_w=2)  # 31 a row; 16 of them span 31 pixels
    assert by_two.fetches(0, 16, Fetcher(512)) == 2
    assert not wide.plain
    single = replace(wide, kernel_h=1, kernel_w=1)
    assert replace(single, pad_top=0, pad_bottom=0).plain
    assert not replace(single, stride_w=2).plain
    by_three = replace(wide, stride_w=3)  # positions alone
    assert by_three.fetches(0, 16, Fetcher(512)) == 16
    by_four = replace(wide, w=256, stride_w=4)  # 16 of them span 61 pixels: 1952 B
    assert by_four.fetches(0, 16, Fetcher(512)) == 4


def test_a_path_with_a_floor_takes_no_less() -> None:
    move = DataMove(UB.at(0, 64), X.at(0, 64), path("GM", "UB"), FP16)
    alone = move.cost(TINY).cycles
    floor = replace(move.path, floor_cycles=alone + 7)
    assert replace(move, path=floor).cost(TINY).cycles == alone + 7
    below = replace(move.path, floor_cycles=alone - 1)
    assert replace(move, path=below).cost(TINY).cycles == alone


@pytest.mark.parametrize(
    ("offset", "pitch", "aligned"), [(0, 64, True), (0, 48, False), (16, 64, False)]
)
def test_rows_that_lie_badly_cost_more(offset: int, pitch: int, aligned: bool) -> None:
    """Every row pays where it starts at no multiple of the path's alignment."""
    dear = replace(path("L0C", "GM"), align_bytes=32, unaligned_cycles=Fraction(5))

    def drain(offset: int, pitch: int) -> Drain:
        rows = Y.at(offset, 32, rows=10, pitch=pitch)
        return Drain(rows, L0C.at(0, 1024), 10, 8, dear, FP32)

    move, usual = drain(offset, pitch), drain(0, 64)
    assert move.cost(TINY).cycles - usual.cost(TINY).cycles == (0 if aligned else 50)


def test_parts_of_a_move_that_pays_twice_for_its_rows_add_up() -> None:
    """Ten rows of 32 B, each 9 cycles and 5 more for lying badly, are 140 cycles of rows."""
    figures: dict[str, Any] = {
        "row_cycles": Fraction(9),
        "align_bytes": 32,
        "unaligned_cycles": Fraction(5),
    }
    dear = replace(path("L0C", "GM"), floor_cycles=0, **figures)
    drain = Drain(Y.at(16, 32, rows=10, pitch=64), L0C.at(0, 1024), 10, 8, dear, FP32)
    assert cost_parts(drain, TINY) == {"start-up": dear.startup_cycles, "rows": 140}


def test_the_way_to_ub_is_charged_by_the_sums_read() -> None:
    """fp16 results of fp32 sums: 2 KiB of L0C for 1 KiB of UB; the way to GM by what is written."""
    way = path("L0C", "GM")
    to_ub = Drain(UB.at(0, 1024), L0C.at(0, 2048), 16, 32, way, FP16)
    to_gm = Drain(X.at(0, 1024), L0C.at(0, 2048), 16, 32, way, FP16)
    read = Drain(Y.at(0, 2048), L0C.at(0, 2048), 16, 32, way, FP32)
    assert to_ub.cost(TINY).cycles == read.cost(TINY).cycles > to_gm.cost(TINY).cycles


def test_slot_regions_of_one_slot_are_distinct_by_place() -> None:
    a, b = UB.at(0, 64), UB.at(0, 64, rows=1, pitch=0)
    assert isinstance(a, SlotRegion)
    assert a == b != UB.at(64, 64)
