"""Cores executed side by side give, to the bit, what they give one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import FP16, FP32, DType
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import Cost, Instruction, MemoryView
from npusim.machine.isa.cube import row_major
from npusim.machine.isa.operands import Region, SlotRegion, Tensor
from npusim.machine.numerics import executor
from npusim.machine.numerics.executor import Sharing, execute, sharing_of
from npusim.machine.program.build import build
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.language import BufferHandle, Language
from npusim.machine.program.program import Program
from tests.scripts import Scripted, tasks_of

Array = np.ndarray[Any, Any]
TINY, B2 = load_device("tiny"), load_device("ascend910b2")
N = 16
SIZE = N * 4
Body = Callable[["Script", Language, Any], None]


class Script(Scripted):
    """``body`` is one unit; unit u is on core u // per_core, and u is in its signature."""

    name = "script"
    role = "vector"

    def __init__(self, body: Body, cores: int, per_core: int = 1, *, alike: bool = False) -> None:
        self.body, self.alike, self.core = body, alike, np.repeat(np.arange(cores), per_core)
        self.x, self.y = Tensor("x", (8 * N,), FP32), Tensor("y", (8 * N,), FP32, "out")

    def tasks(self, cores: int) -> Tasks[Any]:
        u = np.arange(len(self.core))
        signature = {} if self.alike else {"u": u}
        return tasks_of(self.core, signature, {"at": u * SIZE})

    def buffers(self, k: Language) -> None:
        self.ub: BufferHandle = k.buffer("UB", (N,), FP32, slots=2, name="ub")

    def emit(self, k: Language, task: Any) -> None:
        self.body(self, k, task)


def run(script: Script) -> Array:
    """The y that the kernel leaves, as rows of N; row i of x is all i."""
    x, y = np.repeat(np.arange(8.0, dtype=np.float32), N), np.zeros(8 * N, np.float32)
    execute(build(script, TINY, (0, 1, 2, 3)), {"x": x, "y": y})
    return y.reshape(8, N)


def sharing(body: Body, cores: int = 2) -> Sharing:
    program = build(Script(body, cores, alike=True), TINY, (0, 1, 2, 3))
    return sharing_of(program, {t.name: np.zeros(t.size_bytes, np.uint8) for t in program.tensors})


def load(s: Script, k: Language) -> SlotRegion:
    region = s.ub.next().at(0, SIZE)
    k.data_move(region, s.x.at(0, SIZE, base="at"), FP32)
    return region


# -- what may run side by side -----------------------------------------------------------------


def test_cores_that_store_apart_need_no_order() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        k.data_move(s.y.at(0, SIZE, base="at"), load(s, k), FP32)

    assert sharing(body) == Sharing(True, frozenset("x"), frozenset())


def test_rows_that_interleave_are_apart_and_rows_that_touch_are_not() -> None:
    def rows(pitch: int) -> Body:
        def body(s: Script, k: Language, u: Any) -> None:
            k.data_move(s.y.at(0, SIZE // 2, base="at", rows=2, pitch=pitch), load(s, k), FP32)

        return body

    assert sharing(rows(2 * SIZE)).ordered == frozenset()
    assert sharing(rows(SIZE + SIZE // 2)).ordered == frozenset()
    assert sharing(rows(SIZE + SIZE // 2 - 4)).ordered == frozenset("y")


def test_cores_that_read_what_is_stored_or_meet_run_in_turns() -> None:
    def reads(s: Script, k: Language, u: Any) -> None:
        k.data_move(s.ub.next().at(0, SIZE), s.y.at(0, SIZE), FP32)
        k.data_move(s.y.at(0, SIZE, base="at"), s.ub.last().at(0, SIZE), FP32)

    def meets(s: Script, k: Language, u: Any) -> None:
        k.core_barrier()

    assert not sharing(reads).apart
    assert not sharing(meets, cores=4).apart


def test_tensors_in_the_same_memory_are_not_apart() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        k.data_move(s.y.at(0, SIZE, base="at"), load(s, k), FP32)

    program = build(Script(body, 2, alike=True), TINY, (0, 1))
    data = np.zeros(8 * SIZE, np.uint8)
    assert not sharing_of(program, {"x": data, "y": data}).apart


# -- order -------------------------------------------------------------------------------------


def test_a_core_reads_what_an_earlier_one_stored() -> None:
    """Core after core passes the sum on: a chain that batches would break."""

    def body(s: Script, k: Language, u: Any) -> None:
        own, before = load(s, k), s.ub.next().at(0, SIZE)
        k.data_move(before, s.y.at(u.u * SIZE, SIZE), FP32)
        k.vec_binary("add", own, own, before, FP32)
        k.data_move(s.y.at((u.u + 1) * SIZE, SIZE), own, FP32)

    assert run(Script(body, 4))[:5, 0].tolist() == [0, 0, 1, 3, 6]


def test_of_stores_to_one_place_the_last_core_wins_whatever_its_units() -> None:
    """Core 0 stores in its second unit, core 1 in its first."""

    def body(s: Script, k: Language, u: Any) -> None:
        own = load(s, k)
        if u.u in (1, 2):
            k.data_move(s.y.at(0, SIZE), own, FP32)

    assert run(Script(body, 2, 2))[0, 0] == 2


class Turns(Script):
    """Cores with even and with odd numbers run different programs, so in different batches."""

    def tasks(self, cores: int) -> Tasks[Any]:
        u = np.arange(len(self.core))
        return tasks_of(self.core, {"odd": u % 2}, {"at": u * SIZE})


@pytest.mark.parametrize("threads", [False, True])
def test_sums_of_batches_are_in_the_order_of_cores(
    threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1e8 + 1 - 1e8 + 1 is 1 in fp32; the even cores before the odd ones would give 2."""

    def body(s: Script, k: Language, u: Any) -> None:
        own = load(s, k)
        if u.odd:
            k.vec_scalar("muls", own, own, 1.0, FP32)
        k.data_move(s.y.at(0, SIZE), own, FP32, atomic=True)

    if threads:
        monkeypatch.setattr(executor, "THREADED_MACS", 0)
    x = np.repeat(np.array([1e8, 1, -1e8, 1, 0, 0, 0, 0], np.float32), N)
    y = np.zeros(8 * N, np.float32)
    execute(build(Turns(body, 4), TINY, (0, 1, 2, 3)), {"x": x, "y": y})
    assert (y[:N] == 1).all()


def test_ordered_sums_overflow_and_make_nan_without_warnings() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        slot = s.ub.next().at(0, SIZE)
        k.vec_dup(slot, float("inf") if u.u else float("-inf"), FP32)
        k.data_move(s.y.at(0, SIZE), slot, FP32, atomic=True)

    assert np.isnan(run(Script(body, 2))[0]).all()


# -- contents ----------------------------------------------------------------------------------


def test_a_copy_keeps_what_its_source_held() -> None:
    """Contents are worked out late; stores in between must not show."""

    def body(s: Script, k: Language, u: Any) -> None:
        source, copy = load(s, k), s.ub.next().at(0, SIZE)
        k.vec_transpose(copy, source, 4, 4, FP32)
        k.vec_dup(SlotRegion(source.slot, 0, 1, SIZE // 2, 0), -1.0, FP32)  # half of it
        k.vec_dup(SlotRegion(source.slot, 0, 1, 4, 0), -2.0, FP32)
        k.data_move(s.y.at(0, SIZE, base="at"), copy, FP32)
        k.data_move(s.y.at(4 * SIZE, SIZE, base="at"), source, FP32)

    y = run(Script(body, 4, alike=True))
    for core in range(4):
        assert (y[core] == core).all()
        assert y[4 + core].tolist() == [-2.0] + 7 * [-1.0] + 8 * [core]


@dataclass(frozen=True)
class _Reverse(Instruction):
    """An instruction as a user writes it: dst = the elements of src from the end."""

    dst: SlotRegion
    src: SlotRegion

    @property
    def pipe(self) -> str:
        return "V"

    def reads(self) -> tuple[Region, ...]:
        return (self.src,)

    def writes(self) -> tuple[Region, ...]:
        return (self.dst,)

    def cost(self, device: Device) -> Cost:
        return Cost(cycles=1)

    def figures(self) -> tuple[str, ...]:
        return ()

    def execute(self, memory: MemoryView) -> None:
        rows = memory.read(self.src, FP32, (-1,))
        memory.write(self.dst, rows[:, ::-1], FP32)


def test_an_instruction_of_ones_own_runs_on_all_cores_of_a_batch() -> None:
    def body(s: Script, k: Language, u: Any) -> None:
        a, b = load(s, k), s.ub.next().at(0, SIZE)
        k.vec_dup(SlotRegion(a.slot, 0, 1, 4, 0), 9.0, FP32)
        k._issue(_Reverse(b, a))
        k.data_move(s.y.at(0, SIZE, base="at"), b, FP32)

    y = run(Script(body, 4, alike=True))
    assert [row.tolist() for row in y[:4]] == [15 * [float(i)] + [9.0] for i in range(4)]


# -- bits --------------------------------------------------------------------------------------


def matmul_program(dtype: DType, shape: tuple[int, int, int], device: Device) -> Program:
    m, k, n = shape
    tiling = Tiling(base_m=32, base_n=32, base_k=32, step_ka=2, step_kb=2)
    kernel = Matmul(
        tiling, Tensor("a", (m, k), dtype), Tensor("b", (k, n), dtype),
        Tensor("c", (m, n), FP32, "out"),
    )  # fmt: skip
    return build(kernel, device, tuple(range(device.groups)))


@pytest.mark.parametrize("device", [TINY, B2], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(256, 96, 128), (250, 100, 150), (40, 33, 17)])
@pytest.mark.parametrize("macs", [0, 1 << 60])
def test_products_have_the_same_bits_in_turns_side_by_side_and_in_threads(
    device: Device, shape: tuple[int, int, int], macs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    program = matmul_program(FP16, shape, device)
    together, alone = (np.full((m, n), np.nan, np.float32) for _ in range(2))
    monkeypatch.setattr(executor, "THREADED_MACS", macs)
    execute(program, {"a": a, "b": b, "c": together})
    in_turns = Sharing(False, frozenset(), frozenset())
    monkeypatch.setattr(executor, "sharing_of", lambda program, tensors: in_turns)
    execute(program, {"a": a, "b": b, "c": alone})
    np.testing.assert_array_equal(together.view(np.uint32), alone.view(np.uint32))
    np.testing.assert_allclose(together, a.astype(float) @ b.astype(float), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize(
    "shape", [(16, 16, 16), (128, 64, 256), (33, 18, 47), (2, 64, 2), (1, 40, 24), (24, 40, 1)]
)
def test_a_product_of_parts_of_rows_has_the_bits_of_one_of_copies(
    shape: tuple[int, int, int],
) -> None:
    (m, k, n), rng = shape, np.random.default_rng(0)
    a = rng.standard_normal((3, m, 2 * k + 5)).astype(np.float32)[:, :, 3 : 3 + k]
    b = rng.standard_normal((3, k, 2 * n + 7)).astype(np.float32)[:, :, 1 : 1 + n]
    product = np.matmul(row_major(a), row_major(b))
    np.testing.assert_array_equal(
        product.view(np.uint32), np.matmul(a.copy(), b.copy()).view(np.uint32)
    )
