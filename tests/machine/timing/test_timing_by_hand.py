"""Schedules on `tiny` worked out by hand, cycle by cycle.

`tiny` issues one instruction per cycle; a move between GM and UB takes 10 cycles and then 64 B
per cycle (main memory gives 64 B per cycle to all cores together, the L2 128); the vector unit
does 256 B per cycle. So 2560 B are loaded or stored in 10 + 40 = 50 cycles and computed in 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.records import replace
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel, Tasks
from npusim.machine.program.language import BufferHandle, Language
from tests.scripts import Scripted, tasks_of

PIECE = 2560

#: The engines that the test at hand runs.
ENGINES: tuple[str, ...] = ("simpy",)
Body = Callable[["Script", Language, Any], None]


class Script(Scripted):
    """A kernel from a body; every core runs one unit, with its number as ``task.core``."""

    name = "script"
    role = "vector"

    def __init__(self, body: Body, *, slots: int = 2, pieces: int = 16) -> None:
        self.body, self.slots = body, slots
        self.x = Tensor("x", (pieces * PIECE // 2,), FP16)
        self.y = Tensor("y", (pieces * PIECE // 2,), FP16, "out")

    def tasks(self, cores: int) -> Tasks[Any]:
        core = np.arange(cores)
        return tasks_of(core, {"core": core})

    def buffers(self, k: Language) -> None:
        self.a: BufferHandle = k.buffer("UB", (PIECE // 2,), FP16, slots=self.slots, name="a")
        self.b: BufferHandle = k.buffer("UB", (PIECE,), FP16, slots=min(self.slots, 2), name="b")

    def emit(self, k: Language, task: Any) -> None:
        self.body(self, k, task)


def load(s: Script, k: Language, piece: int, size: int = PIECE) -> None:
    k.data_move(s.a.next().at(0, size), s.x.at(piece * PIECE, size), FP16)


def compute(s: Script, k: Language) -> None:
    k.vec_scalar("muls", s.b.next().at(0, PIECE), s.a.last().at(0, PIECE), 2.0, FP16)


def store(s: Script, k: Language, piece: int) -> None:
    k.data_move(s.y.at(piece * PIECE, PIECE), s.b.last().at(0, PIECE), FP16)


def three_stages(s: Script, k: Language, task: Any) -> None:
    for piece in range(4):
        load(s, k, piece)
        compute(s, k)
        store(s, k, piece)


@pytest.fixture(autouse=True)
def each_engine(engine: str, request: pytest.FixtureRequest) -> None:
    """Every schedule is worked out once and holds for both engines."""
    request.module.ENGINES = ("simpy",) if engine == "simpy" else ("simpy", "fast")


def simulate(kernel: Kernel, device: str | Device = "tiny", cores: int = 0b1) -> npusim.Result:
    """The run of the last of ``ENGINES``, which must be the reference's."""
    runs = [
        npusim.simulate(kernel, device, cores=cores, timeline=True, engine=engine, check=False)
        for engine in ENGINES
    ]
    pd.testing.assert_frame_equal(runs[-1].timeline, runs[0].timeline)
    pd.testing.assert_frame_equal(runs[-1].pipes, runs[0].pipes)
    return runs[-1]


def run(body: Body, *, cores: int = 0b1, slots: int = 2) -> npusim.Result:
    return simulate(Script(body, slots=slots), cores=cores)


def spans(r: npusim.Result, pipe: str, core: str = "core0") -> list[tuple[int, int]]:
    launch = r.runs[0].launch_cycles
    rows = r.timeline[(r.timeline["pipe"] == pipe) & (r.timeline["core"] == core)]
    return [(int(a) - launch, int(b) - launch) for a, b in zip(rows.start, rows.end, strict=True)]


def reasons(r: npusim.Result, pipe: str, core: str = "core0") -> dict[str, int]:
    row = r.pipes[(r.pipes["pipe"] == pipe) & (r.pipes["core"] == core)].iloc[0]
    return {name: int(row[name]) for name in r.pipes.columns[3:] if row[name]}


def test_double_buffered_three_stage_loop() -> None:
    # The first load is issued in cycle 0 and starts at 1. With two slots the loads follow each
    # other: by the time load 2 wants slot 0 (cycle 101) compute 0 has left it (cycle 61).
    #   load     1-51   51-101   101-151   151-201
    #   compute  51-61  101-111  151-161   201-211     each right after its load
    #   store    61-111 111-161  161-211   211-261
    r = run(three_stages)
    assert spans(r, "MTE2") == [(1, 51), (51, 101), (101, 151), (151, 201)]
    assert spans(r, "V") == [(51, 61), (101, 111), (151, 161), (201, 211)]
    assert spans(r, "MTE3") == [(61, 111), (111, 161), (161, 211), (211, 261)]
    assert r.runs[0].cycles == 261
    assert reasons(r, "MTE2") == {"busy": 200, "not_started": 1, "done": 60}
    assert reasons(r, "V") == {"busy": 40, "data": 49 + 3 * 40, "not_started": 2, "done": 50}
    assert reasons(r, "MTE3") == {"busy": 200, "data": 58, "not_started": 3}


def test_one_slot_stops_the_overlap() -> None:
    # With one slot load i+1 must wait until compute i has read the slot, so each round takes
    # load 50 + compute 10 = 60. Store i overlaps load i+1; both end together, so compute i+1
    # gets its operand and its free output slot in the same cycle (the operand is blamed).
    #   load     1-51   61-111   121-171   181-231
    #   compute  51-61  111-121  171-181   231-241
    #   store    61-111 121-171  181-231   241-291
    r = run(three_stages, slots=1)
    assert spans(r, "MTE2") == [(1, 51), (61, 111), (121, 171), (181, 231)]
    assert spans(r, "V") == [(51, 61), (111, 121), (171, 181), (231, 241)]
    assert spans(r, "MTE3") == [(61, 111), (121, 171), (181, 231), (241, 291)]
    assert reasons(r, "MTE2") == {"busy": 200, "space": 30, "not_started": 1, "done": 60}
    assert reasons(r, "V") == {"busy": 40, "data": 199, "not_started": 2, "done": 50}


def test_two_cores_share_main_memory() -> None:
    # Both cores start loading at 1 and their first byte moves at 11. Main memory's 64 B/cycle
    # are shared: 32 each. Core 1 wants 1024 B: done at 11 + 1024/32 = 43. By then core 0 has
    # 2560 - 1024 = 1536 left and gets all 64: done at 43 + 24 = 67, 16 cycles later than alone.
    def body(s: Script, k: Language, task: Any) -> None:
        load(s, k, task.core, 1024 if task.core else PIECE)

    r = run(body, cores=0b11)
    assert spans(r, "MTE2", "core1") == [(1, 43)]
    assert spans(r, "MTE2", "core0") == [(1, 67)]
    assert reasons(r, "MTE2", "core0") == {"busy": 50, "bandwidth": 16, "not_started": 1}


def test_a_core_alone_reads_main_memory_slower_than_its_path() -> None:
    # 2560 B from main memory take 10 + 2560 / 32; loaded again they are in the L2, at 64 B a cycle.
    def body(s: Script, k: Language, task: Any) -> None:
        load(s, k, 0)
        load(s, k, 0)

    slow = npusim.load_device("tiny", {"paths.GM->UB.memory_rate": "32B/cycle"})
    r = simulate(Script(body), slow)
    assert spans(r, "MTE2") == [(1, 91), (91, 141)]
    assert reasons(r, "MTE2")["bandwidth"] == 40


def test_cores_together_read_main_memory_at_its_rate() -> None:
    # Each of 4 cores may have 32 B a cycle, and all have 64: 10 + 4 * 2560 / 64.
    slow = npusim.load_device("tiny", {"paths.GM->UB.memory_rate": "32B/cycle"})
    r = simulate(Script(lambda s, k, task: load(s, k, task.core)), slow, cores=0b1111)
    assert [spans(r, "MTE2", f"core{core}") for core in range(4)] == [[(1, 171)]] * 4


@pytest.mark.parametrize(("missed", "fetched"), [("128", 91), ("64", 91), ("32", 171)])
def test_reads_that_miss_take_of_the_bandwidth_of_the_l2(missed: str, fetched: int) -> None:
    # Two cores fetch 2560 B each. Main memory has 64 B a cycle: 10 + 5120 / 64. The L2 has 128, of
    # which misses alone would get 128, 64 or 32, so that the last takes 10 + 5120 / 32 cycles.
    # What is loaded again hits, and takes 10 + 2560 / 64 cycles however slow misses are.
    def body(s: Script, k: Language, task: Any) -> None:
        load(s, k, task.core)
        load(s, k, task.core)

    device = npusim.load_device("tiny", {"l2.missed": f"{missed}B/cycle"})
    r = simulate(Script(body), device, cores=0b11)
    expected = [(1, fetched), (fetched, fetched + 50)]
    assert spans(r, "MTE2", "core0") == spans(r, "MTE2", "core1") == expected


def test_an_l2_that_reads_slower_than_misses_take_waits_for_none() -> None:
    # Two cores fetch 2560 B each from an L2 of 32 B a cycle, and again: 10 + 5120 / 32 each time.
    # Misses that alone would get 64 take their bytes and no more, nor less.
    def body(s: Script, k: Language, task: Any) -> None:
        load(s, k, task.core)
        load(s, k, task.core)

    device = npusim.load_device("tiny", {"l2.read": "32B/cycle", "l2.missed": "64B/cycle"})
    r = simulate(Script(body), device, cores=0b11)
    expected = [(1, 171), (171, 341)]
    assert spans(r, "MTE2", "core0") == spans(r, "MTE2", "core1") == expected


@pytest.mark.parametrize("read", ["128", "256", "1280"])
def test_an_l2_that_reads_faster_keeps_no_core_waiting_longer(read: str) -> None:
    # One core fetches 2560 B: 10 + 2560 / 64, the rate of main memory. What the L2 could send in
    # the time that it waits is no time of the core's path.
    figures = {"l2.missed": "64B/cycle", "l2.read": f"{read}B/cycle"}
    script = Script(lambda s, k, task: load(s, k, task.core))
    r = simulate(script, npusim.load_device("tiny", figures), cores=0b1)
    assert spans(r, "MTE2", "core0") == [(1, 51)]


def test_hits_are_slower_while_others_miss() -> None:
    # Core 0 reads what is in the L2 by then, while three others bring piece after piece.
    def body(s: Script, k: Language, task: Any) -> None:
        for piece in (0, 0, 0) if task.core == 0 else range(4 * task.core, 4 * task.core + 4):
            load(s, k, piece)

    def hits(figures: dict[str, str]) -> int:
        r = simulate(Script(body), npusim.load_device("tiny", figures), cores=0b1111)
        (_, (begin, end), _) = spans(r, "MTE2", "core0")
        return end - begin

    assert hits({}) == 50
    assert hits({"l2.missed": "16B/cycle"}) > 60


def test_second_reader_of_a_block_in_flight_hits_the_l2() -> None:
    # Both cores read the same 2560 B. Core 0 comes first (same cycle, lower number) and fetches
    # from main memory at 64 B/cycle; core 1 finds the sectors in flight and is served by the L2,
    # which has 128 B/cycle for both: nobody is slowed down.
    r = run(lambda s, k, unit: load(s, k, 0), cores=0b11)
    assert spans(r, "MTE2", "core0") == spans(r, "MTE2", "core1") == [(1, 51)]
    row = r.traffic[r.traffic.operand == "x"].iloc[0]
    assert (row.bytes, row.hit_bytes, row.miss_bytes) == (2 * PIECE, PIECE, PIECE)


def test_a_reader_of_data_in_flight_ends_no_earlier_than_their_fetch() -> None:
    # Core 0 fetches 2560 B and core 1 as much of its own: main memory gives each 32 B/cycle, until
    # 11 + 80 = 91. Core 2 reads what core 0 fetches: the L2 would serve it until 51, but the last
    # bytes are there at 91 only. Core 0 loads them again at once: 10 + 40 cycles.
    def body(s: Script, k: Language, task: Any) -> None:
        load(s, k, 1 if task.core == 1 else 0)
        if task.core == 0:
            load(s, k, 0)

    r = run(body, cores=0b111)
    assert spans(r, "MTE2", "core0") == [(1, 91), (91, 141)]
    assert spans(r, "MTE2", "core2") == [(1, 91)]
    assert reasons(r, "MTE2", "core2") == {
        "busy": 50,
        "bandwidth": 40,
        "not_started": 1,
        "done": 50,
    }


def test_a_later_reader_of_data_in_flight_waits_for_the_rest() -> None:
    # Core 1 asks at 21 for the last 512 B of what core 0 fetches until 51; alone it ends at 39.
    def body(s: Script, k: Language, task: Any) -> None:
        if task.core:
            for _ in range(20):
                k.vec_dup(s.b.next().at(0, 256), 0.0, FP16)
            k.data_move(s.a.next().at(0, 512), s.x.at(PIECE - 512, 512), FP16)
        else:
            load(s, k, 0)

    r = run(body, cores=0b11)
    assert spans(r, "MTE2", "core0") == [(1, 51)]
    assert spans(r, "MTE2", "core1") == [(21, 51)]


def test_cores_start_one_after_another() -> None:
    # Core i starts at 60 i: each load begins after the one before, and has the memory alone.
    device = (
        npusim.load_device("tiny").replace("launch.core", "80ns").replace("launch.skew", "60ns")
    )
    kernel = Script(lambda s, k, task: load(s, k, task.core))
    r = simulate(kernel, device, cores=0b111)
    assert device.clock_hz == 10**9
    assert [spans(r, "MTE2", f"core{i}") for i in range(3)] == [
        [(1, 51)],
        [(61, 111)],
        [(121, 171)],
    ]
    assert reasons(r, "S", "core2") == {"busy": 1, "not_started": 120, "done": 50}
    assert reasons(r, "MTE2", "core2") == {"busy": 50, "not_started": 121}
    launch = device.launch
    assert r.runs[0].launch_cycles == launch.cycles("vector", 3) - 120
    assert launch.cycles("vector", 3) - launch.cycles("vector", 2) == 80


def test_short_rows_cost_the_l2_their_bytes_and_a_request_each() -> None:
    # Four rows of 64 B, 512 B apart: the first load fetches four sectors, 2048 B at 64 B/cycle, and
    # ends at 1 + 10 + 32 = 43. The second finds its 256 B. Without a request they drain at the
    # path's 64 B/cycle: 43 + 10 + 4. With 192 B a row they take the L2's 128 B/cycle for 1024 B.
    def body(s: Script, k: Language, task: Any) -> None:
        for _ in range(2):
            rows = s.x.at(0, 64, rows=4, pitch=512)
            k.data_move(s.a.next().at(0, 64, rows=4, pitch=64), rows, FP16)

    tiny = npusim.load_device("tiny")
    assert tiny.l2 is not None
    busy = replace(tiny, l2=replace(tiny.l2, request_bytes=192))
    assert spans(run(body), "MTE2") == [(1, 43), (43, 57)]
    assert spans(simulate(Script(body), busy), "MTE2") == [(1, 43), (43, 61)]


def test_a_prefetch_is_not_held_back_by_another_pipe() -> None:
    # The vector unit is busy until cycle 1 + 20 (a dup of 5120 B), then waits for load 0 (51).
    # Loads 1 and 2 come later in program order and have slots of their own: they follow load 0
    # at 51 and 101 although the computes before them in the program still wait.
    def body(s: Script, k: Language, task: Any) -> None:
        k.vec_dup(s.b.next().at(), 0.0, FP16)
        for piece in range(3):
            load(s, k, piece)
            compute(s, k)

    r = run(body, slots=3)
    assert spans(r, "V")[:2] == [(1, 21), (52, 62)]
    assert spans(r, "MTE2") == [(2, 52), (52, 102), (102, 152)]


def test_scalar_pipe_waits_for_room_in_a_full_queue() -> None:
    # Queues hold 4 instructions not yet started. Issued 0-1: load 0 starts at 1. Loads 1 to 4
    # fill the queue by cycle 5. Load 5 needs room, which comes when load 1 starts at 51.
    def body(s: Script, k: Language, task: Any) -> None:
        for piece in range(6):
            load(s, k, piece)

    r = run(body, slots=6)
    assert spans(r, "MTE2")[-1] == (251, 301)
    assert reasons(r, "S") == {"busy": 6, "queue": 46, "done": 301 - 52}


def test_core_barrier_makes_the_early_core_wait() -> None:
    # Core 1 loads nothing: it reaches the barrier at 0. Core 0 drains its load at 51. Both pay
    # 10 cycles for the barrier, then issue a load in cycle 61 that starts at 62; the two share
    # main memory: 10 + 2560 / 32 = 90 cycles.
    def body(s: Script, k: Language, task: Any) -> None:
        if task.core == 0:
            load(s, k, 0)
        k.core_barrier()
        load(s, k, 1 + task.core)

    r = run(body, cores=0b11)
    assert spans(r, "S", "core0") == spans(r, "S", "core1") == [(51, 61)]
    assert spans(r, "MTE2", "core0") == [(1, 51), (62, 152)]
    assert reasons(r, "S", "core1")["barrier"] == 51


def test_flag_between_cores() -> None:
    # Core 1's store waits (on MTE3) for core 0's load, done at 51; setting the flag on MTE2 takes
    # one cycle, so core 1 sees it at 52, spends a cycle on the wait, and stores 53-103.
    def body(s: Script, k: Language, task: Any) -> None:
        if task.core == 0:
            load(s, k, 0)
            k.core_set_flag("MTE2", 0)
        else:
            k.vec_dup(s.b.next().at(0, PIECE), 1.0, FP16)
            k.core_wait_flag("MTE3", 0)
            store(s, k, 1)

    r = run(body, cores=0b11)
    assert spans(r, "MTE3", "core1") == [(52, 53), (53, 103)]
    assert reasons(r, "MTE3", "core1")["flag"] == 50


def test_explicit_flag_orders_two_pipes() -> None:
    # Without the flag both would start at once: the store (of old data) depends on nothing.
    # set_flag follows the load on MTE2 (51-52), wait_flag ends at 53, the store runs 53-103.
    def body(s: Script, k: Language, task: Any) -> None:
        load(s, k, 0)
        k.set_flag("MTE2", "MTE3", 0)
        k.wait_flag("MTE2", "MTE3", 0)
        s.b.next()
        store(s, k, 0)

    r = run(body)
    assert spans(r, "MTE3") == [(52, 53), (53, 103)]
    assert reasons(r, "MTE3")["flag"] == 52 - 3


def test_pipe_barrier_all_drains_everything() -> None:
    # The barrier holds the scalar pipe until the load is done (51), takes a cycle, and only then
    # is the next load issued (53).
    def body(s: Script, k: Language, task: Any) -> None:
        load(s, k, 0)
        k.pipe_barrier("ALL")
        load(s, k, 1)

    r = run(body)
    assert spans(r, "MTE2") == [(1, 51), (53, 103)]
    assert spans(r, "S") == [(51, 52)]


def test_mmad_head_is_hidden_only_behind_a_predecessor() -> None:
    # 64x64x64 is 64 cycles of 16x16x16 blocks. The first mmad and any after a gap pay the head
    # of 4; the second follows directly because its operands were ready, and pays none.
    class TwoProducts(Script):
        role = "cube"

        def buffers(self, k: Language) -> None:
            self.l1 = k.buffer("L1", (64, 64), FP16, name="l1")
            self.l0a = k.buffer("L0A", (64, 32), FP16, slots=2)
            self.l0b = k.buffer("L0B", (32, 64), FP16, slots=2)
            self.l0c = k.buffer("L0C", (64, 64), FP32)

        def emit(self, k: Language, task: Any) -> None:
            l1, c = self.l1.next(), self.l0c.next()
            k.fill(l1.at(), 1.0, FP16)  # 8192 B at 64 B/cycle: 1-129
            a, b = self.l0a.next(), self.l0b.next()
            k.load2d(a, l1.fractals(0, 8), FP16)  # 4096 B: 129-193
            k.load2d(b, l1.fractals(8, 8), FP16)  # 193-257
            for i in range(2):
                k.mmad(c, a, b, 64, 32, 64, FP16, init=i == 0)  # 32 blocks each
            a = self.l0a.next()
            k.load2d(a, l1.fractals(0, 8), FP16)  # 257-321
            k.mmad(c, a, b, 64, 32, 64, FP16, init=False)

    r = simulate(TwoProducts(three_stages))
    # 257 + 4 + 32 = 293, then 293 + 32 = 325. The third operand came at 321, before 325: hidden.
    assert spans(r, "M") == [(257, 293), (293, 325), (325, 357)]


class Tiles(Script):
    """Two tiles of 16 x 64 (4096 B), each of four mmads, through one accumulator."""

    role = "cube"

    def __init__(self, *, unit_flag: bool) -> None:
        self.unit_flag = unit_flag
        self.y = Tensor("y", (2, 16, 64), FP32, "out")

    def tasks(self, cores: int) -> Tasks[Any]:
        return tasks_of(np.arange(1), {})

    def buffers(self, k: Language) -> None:
        self.a0 = k.buffer("L0A", (16, 64), FP16)
        self.b0 = k.buffer("L0B", (64, 64), FP16)
        self.c0 = k.buffer("L0C", (16, 64), FP32, unit_flag=self.unit_flag)

    def emit(self, k: Language, task: Any) -> None:
        a, b = self.a0.next(), self.b0.next()
        for tile in range(2):
            c = self.c0.next()
            for i in range(4):
                k.mmad(c, a, b, 16, 64, 64, FP16, init=i == 0)
            k.fixpipe(
                self.y.at(tile * 4096, 1024, rows=4, pitch=1024), c, 16, 64, FP32, staging=None
            )


def test_without_the_unit_flag_mmad_and_drain_take_turns() -> None:
    # An mmad of 4 x 4 blocks takes 16, after a gap 4 more; a drain 10 + 4096 / 64 = 74.
    r = simulate(Tiles(unit_flag=False))
    assert spans(r, "M")[3:5] == [(53, 69), (143, 163)]
    assert spans(r, "FIX") == [(69, 143), (211, 285)]


def test_unit_flag_lets_mmad_and_drain_overlap_by_pieces() -> None:
    # The drain follows the start of the tile's last mmad (53) and needs 74. The next tile's
    # first mmad follows the drain's start by 18 (10 + 512 / 64): 71. Its last fractal (4 cycles)
    # comes after the drain's end: 131, where it would be done at 71 + 4 + 16 = 91.
    r = simulate(Tiles(unit_flag=True), npusim.load_device("tiny", {"cube.unit_flag": "yes"}))
    assert spans(r, "M")[2:] == [
        (37, 53), (53, 69), (71, 131), (131, 147), (147, 163), (163, 179),
    ]  # fmt: skip
    assert spans(r, "FIX") == [(53, 127), (163, 237)]
    assert reasons(r, "M") == {"busy": 136, "follow": 2 + 40, "not_started": 1, "done": 58}
    assert reasons(r, "FIX") == {"busy": 148, "follow": 48 + 36, "not_started": 5}


def test_a_drain_does_not_outrun_the_mmad_it_follows() -> None:
    # At 1024 B/cycle a drain needs 10 + 4 = 14 and would end at 53 + 14 = 67: before the mmad
    # (69) and its last piece (1 cycle). The next tile may follow from 53 + 10 + 1: no gap, no head.
    fast = {"cube.unit_flag": "yes", "paths.L0C->GM.rate": "1024B/cycle", "l2.write": "1024B/cycle"}
    r = simulate(Tiles(unit_flag=True), npusim.load_device("tiny", fast))
    assert spans(r, "FIX")[0] == (53, 70)
    assert spans(r, "M")[4] == (69, 85)


def test_a_program_that_hangs_says_where() -> None:
    def body(s: Script, k: Language, task: Any) -> None:
        load(s, k, 0)
        k.core_wait_flag("MTE3", 3)

    with pytest.raises(
        npusim.ProgramError,
        match=r"script hangs.*core0 pipe MTE3 .*"
        r"test_timing_by_hand.py:\d+: core_wait_flag #3",
    ):
        run(body)
