"""The kernel language: capacity, slots and turns, legal paths, and every refused operand."""

from __future__ import annotations

import pytest

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32
from npusim.base.errors import CapacityError, ProgramError
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.cube import Drain
from npusim.machine.isa.dma import DataMove
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.language import Language
from tests.machine.program.conftest import Bench
from tests.tables import rows

TINY, A910, B2 = (load_device(name) for name in ("tiny", "ascend910", "ascend910b2"))
X = Tensor("x", (4096,), FP16, "inout")
# -- buffers -----------------------------------------------------------------------------------


def test_a_memory_may_be_filled_to_the_last_byte_and_not_beyond() -> None:
    k = Language(TINY, TINY.core_kind("cube"))
    k.buffer("L1", (16, 1024), FP16, slots=2, name="half")  # all 64 KiB
    with pytest.raises(CapacityError) as error:
        k.buffer("L1", (1,), INT8, name="straw")
    assert str(error.value) == (
        "tiny: buffer straw: L1 holds 65536 B but half 2x32768 + straw 1x32 = 65568 B; "
        "use smaller tiles or fewer slots (over by 32 B)"
    )


def test_slots_are_padded_to_the_alignment_of_their_memory() -> None:
    k = Language(TINY, TINY.core_kind("cube"))
    sizes = {m: k.buffer(m, (3,), FP16).buffer.slot_bytes for m in ("L1", "L0A", "L0C", "UB")}
    assert sizes == {"L1": 32, "L0A": 512, "L0C": 1024, "UB": 32}


@pytest.mark.parametrize(
    ("memory", "shape", "slots", "message"),
    [
        ("L9", (1,), 1, r"core kind 'core' of tiny has no L9 \(it has: L1, L0A, L0B, L0C, UB\)"),
        ("UB", (0,), 1, r"buffer z has shape \(0,\) and 1 slots; both must be at least 1"),
        ("UB", (4,), 0, r"buffer z has shape \(4,\) and 0 slots; both must be at least 1"),
    ],
)
def test_impossible_buffers_are_refused(
    memory: str, shape: tuple[int, ...], slots: int, message: str
) -> None:
    k = Language(TINY, TINY.core_kind("cube"))
    with pytest.raises(ProgramError, match=f"^{message}$"):
        k.buffer(memory, shape, FP16, slots=slots, name="z")


def test_cube_cores_of_the_910b_have_no_unified_buffer() -> None:
    k = Language(B2, B2.core_kind("cube"))
    with pytest.raises(ProgramError, match=r"core kind 'aic' of ascend910b2 has no UB"):
        k.buffer("UB", (16,), FP16)


# -- slots and turns ---------------------------------------------------------------------------


def test_turns_count_from_zero_and_last_looks_back(bench: Bench) -> None:
    ub = bench.ub
    assert ub.last().turn == -1  # what an earlier unit left
    assert ub.next().turn == 0
    assert ub.next().turn == 1
    assert (ub.last().turn, ub.last(1).turn) == (1, 0)
    with pytest.raises(ProgramError, match=r"ub has 2 slots; turn 2 back is overwritten already"):
        ub.last(2)
    bench.k.begin_task()
    assert (ub.turns, ub.last(1).turn) == (0, -2)


def test_a_stale_slot_is_refused(bench: Bench) -> None:
    first = bench.ub.next()
    bench.ub.next()
    bench.k.vec_dup(first.at(), 0.0)  # two slots: still there
    bench.ub.next()
    with pytest.raises(ProgramError, match=r"ub#0.* was overwritten 1 turn ago: ub has 2 slots"):
        bench.k.vec_dup(first.at(), 0.0)


def test_a_slot_kept_from_another_unit_is_refused(bench: Bench) -> None:
    kept = bench.ub.next()
    bench.k.begin_task()
    with pytest.raises(ProgramError, match=r"ub#0.* belongs to another task; take slots with"):
        bench.k.vec_dup(kept.at(), 0.0)


@rows("tests/data/rows/program.yaml", "leaving_a_slot_is_refused", "offset, size, rows, pitch, end")
def test_leaving_a_slot_is_refused(
    bench: Bench, offset: int, size: int, rows: int, pitch: int, end: int
) -> None:
    with pytest.raises(ProgramError) as error:
        bench.ub.next().at(offset, size, rows=rows, pitch=pitch)
    assert str(error.value).startswith(
        f"bytes {offset}..{end} of ub lie outside its slot of 4096 B in UB; declare a larger"
    )


# -- instructions ------------------------------------------------------------------------------


def test_every_instruction_remembers_the_line_that_issued_it(bench: Bench) -> None:
    bench.k.vec_dup(bench.ub.next().at(), 0.0)
    bench.k.vec_dup(bench.ub.next().at(), 0.0)
    first, second = (int(line.removeprefix("test_builder.py:")) for line in bench.k.lines)
    assert second == first + 1


def test_fill_and_paths_follow_the_device(bench: Bench) -> None:
    bench.k.fill(bench.l1.next().at(0, 64), 1.5, BF16)
    (fill,) = bench.k.instructions
    assert str(fill) == "fill l1#0[0:64B]"
    assert fill.pipe == "MTE2"
    assert bench.k.has_path("L0C", "GM", "nz2nd")
    assert not Language(A910, A910.core_kind("cube")).has_path("L0C", "GM")


# -- fixpipe: one word, two machines -----------------------------------------------------------


def test_fixpipe_is_one_drain_where_the_device_has_one(bench: Bench) -> None:
    assert bench.k.fixpipe_staging(32, FP16) is None
    bench.k.fixpipe(X.at(0, 1024, rows=2, pitch=4096), bench.c.next(), 32, 32, FP16, staging=None)
    (drain,) = bench.k.instructions
    assert isinstance(drain, Drain)
    assert (drain.pipe, drain.src.size, drain.dst.size) == ("FIX", 4096, 2048)


@pytest.mark.parametrize("nd", [False, True])
def test_fixpipe_goes_through_ub_in_pieces_that_cover_the_tile_once(nd: bool) -> None:
    k = Language(A910, A910.core_kind("cube"))
    c = k.buffer("L0C", (32, 80), FP32)
    staging = k.fixpipe_staging(32, FP32, slots=2, columns=2)
    assert staging is not None
    assert staging.buffer.slot_bytes == 2 * 32 * 16 * 4
    tile = c.next()
    y = Tensor("y", (4096,), FP32, "out")
    dst = y.at(0, 72 * 4, rows=20, pitch=4096) if nd else y.at(0, 1280, rows=5, pitch=4096)
    k.fixpipe(dst, tile, 20, 72, FP32, staging=staging, nd=nd)
    drains = [i for i in k.instructions if isinstance(i, Drain)]
    stores = [i for i in k.instructions if isinstance(i, DataMove)]
    assert {i.pipe for i in drains} == {"V"}
    assert {i.pipe for i in stores} == {"MTE3"}
    assert sum(i.src.size for i in drains) == 5 * 32 * 64
    seen = [
        (store.dst.offset + row * store.dst.pitch, store.dst.row_bytes)
        for store in stores
        for row in range(store.dst.rows)
    ]
    starts = [set(range(at, at + size, 4)) for at, size in seen]
    assert sum(map(len, starts)) == len(set.union(*starts))  # nothing twice
    want = {row * 4096 + i * 4 for row in range(dst.rows) for i in range(dst.row_bytes // 4)}
    assert set.union(*starts) == want


def test_staging_for_another_tile_height_is_refused() -> None:
    k = Language(A910, A910.core_kind("cube"))
    c = k.buffer("L0C", (64, 16), FP32)
    staging = k.fixpipe_staging(16, FP32, columns=1)
    with pytest.raises(ProgramError, match=r"fixpipe_ub holds 1024 B, a column of 64 x 16 fp32 ne"):
        k.fixpipe(X.at(0, 4096), c.next(), 64, 16, FP32, staging=staging)


def test_a_cube_without_the_type_says_what_it_has(bench: Bench) -> None:
    c = bench.k.buffer("L0C", (16, 16), INT32)
    bench.k.mmad(c.next(), bench.a.last(), bench.b.last(), 16, 16, 16, INT32, init=True)
    with pytest.raises(ProgramError, match=r"tiny has no int32 mmad \(it has: fp16, fp32"):
        bench.k.instructions[0].cost(TINY)
