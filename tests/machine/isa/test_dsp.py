"""The DSP's instructions: numbers against loops, costs by hand, and a device without an L2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.base.errors import ProgramError
from npusim.call.call import simulate
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.base import Cost
from npusim.machine.isa.dsp import DspCast, DspGemm
from npusim.machine.isa.operands import Buffer, Slot, Tensor
from npusim.machine.numerics.memory import CoreMemory, GlobalMemory
from npusim.machine.program.kernel import Tasks
from npusim.machine.program.language import Language
from npusim.machine.program.program import Program
from npusim.machine.timing.l2 import Access, L2State
from tests.sampled import examples
from tests.scripts import Scripted, tasks_of

Array = np.ndarray[Any, Any]
FT, MT = load_device("ft78ne"), load_device("mt7004")
BUFFERS = tuple(
    Buffer(f"{m.lower()}{i}", m, 1 << 14, 1, i) for i, m in enumerate(("SM", "AM", "AM"))
)
SM, AM, AM2 = (Slot(buffer, 0) for buffer in BUFFERS)


def memory_of(*contents: Array) -> CoreMemory:
    """Private memories whose slots begin with ``contents``, the rest poisoned."""
    program = cast(Program, SimpleNamespace(buffers=BUFFERS))
    memory = CoreMemory(program, GlobalMemory({}))
    for i, content in enumerate(contents):
        data = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        memory.write(Slot(BUFFERS[i], 0).at(0, data.size), data.view(np.int8), INT8)
    return memory


def gemm(m: int, k: int, n: int, dtype: DType = FP32, **options: Any) -> DspGemm:
    """acc and B in AM, A in SM, each at the start of its slot."""
    given_options = {"init": True, **options}
    return DspGemm(
        AM2.at(0, m * n * 4), SM.at(0, m * k * dtype.bytes), AM.at(0, k * n * dtype.bytes),
        m, k, n, dtype, **given_options,
    )  # fmt: skip


def fused(a: Array, b: Array, acc: Array) -> Array:
    """acc + A @ B, element by element: k in order, each multiply-add rounded once into fp32."""
    out = acc.astype(np.float32).copy()
    for i, j in np.ndindex(*out.shape):
        total = np.float32(out[i, j])
        for step in range(a.shape[1]):
            total = np.float32(float(total) + float(a[i, step]) * float(b[step, j]))
        out[i, j] = total
    return out


@examples(40)
@given(
    m=st.integers(1, 8), k=st.integers(1, 8), n=st.integers(1, 8), half=st.booleans(),
    init=st.booleans(), transpose=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_gemm_accumulates_in_order(
    m: int, k: int, n: int, half: bool, init: bool, transpose: bool, seed: int
) -> None:
    rng, kind = np.random.default_rng(seed), FP16 if half else FP32
    a, b = (rng.standard_normal(s).astype(kind.numpy) for s in ((m, k), (k, n)))
    acc = rng.standard_normal((m, n)).astype(np.float32)
    memory = memory_of(a.T if transpose else a, b, acc)
    instruction = gemm(m, k, n, kind, init=init, transpose_a=transpose)
    instruction.execute(memory)
    got = memory.read(instruction.acc, FP32).reshape(m, n)
    np.testing.assert_array_equal(got, fused(a, b, acc * 0 if init else acc))


def test_cutting_a_gemm_changes_no_bit() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((7, 9), (9, 5)))
    whole = memory_of(a, b)
    gemm(7, 9, 5).execute(whole)
    want = whole.read(gemm(7, 9, 5).acc, FP32).reshape(7, 5)
    acc = np.zeros((3, 2), np.float32)
    for first, size in ((0, 4), (4, 5)):
        part = memory_of(a[4:, first : first + size], b[first : first + size, 3:], acc)
        instruction = gemm(3, size, 2, init=first == 0)
        instruction.execute(part)
        acc = part.read(instruction.acc, FP32).reshape(3, 2).copy()
    np.testing.assert_array_equal(acc, want[4:, 3:])


def test_a_may_lie_in_am() -> None:
    a, b = np.full((2, 3), 2.0, np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
    memory = memory_of(np.zeros(1), np.concatenate([a.reshape(-1), b.reshape(-1)]))
    instruction = DspGemm(AM2.at(0, 16), AM.at(0, 24), AM.at(24, 24), 2, 3, 2, FP32, init=True)
    instruction.execute(memory)
    assert memory.read(instruction.acc, FP32).reshape(-1).tolist() == [12, 18, 12, 18]


def test_cast_rounds_to_even_and_overflows_to_infinity() -> None:
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, -1e6, np.nan], np.float32)
    memory = memory_of(np.zeros(1), values)
    cast_down = DspCast(AM2.at(0, 12), AM.at(0, 24), FP32, FP16)
    cast_down.execute(memory)
    got = memory.read(cast_down.dst, FP16).reshape(-1)
    np.testing.assert_array_equal(got, [1, 1 + 2**-9, 65504, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize(
    ("instruction", "device", "want"),
    [
        # one block of the published form: 14 + 6 k + 12
        (gemm(6, 10, 48), FT, Cost(cycles=86, macs=2880)),
        (gemm(6, 10, 96), MT, Cost(cycles=86, macs=5760)),
        (gemm(6, 10, 192, FP16), MT, Cost(cycles=86, macs=11520)),
        (gemm(1, 10, 1), FT, Cost(cycles=86, macs=10)),  # a block is paid whole
        (gemm(7, 10, 49), FT, Cost(cycles=4 * 86, macs=3430)),
        (DspCast(AM2.at(0, 100), AM.at(0, 200), FP32, FP16), MT, Cost(cycles=13 + 2)),
        (DspCast(AM2.at(0, 100), AM.at(0, 200), FP32, FP16), FT, Cost(cycles=13 + 4)),
    ],
)  # fmt: skip
def test_costs_by_hand(instruction: DspGemm | DspCast, device: Any, want: Cost) -> None:
    assert instruction.cost(device) == want


def test_what_a_device_cannot_multiply_is_named() -> None:
    with pytest.raises(ProgramError, match=r"ft78ne has no fp16 dsp_gemm \(it has: fp32\)"):
        gemm(6, 4, 48, FP16).cost(FT)
    with pytest.raises(ProgramError, match=r"tiny has no fp32 dsp_gemm \(it has: no micro-kernel"):
        gemm(6, 4, 48).cost(load_device("tiny"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DspGemm(AM2.at(0, 4), SM.at(0, 4), AM.at(0, 4), 0, 1, 1, FP32, init=True),
         "dsp_gemm of m 0, k 1, n 1: every extent must be at least 1"),
        (lambda: DspGemm(SM.at(0, 4), SM.at(0, 4), AM.at(0, 4), 1, 1, 1, FP32, init=True),
         "sm0#0[0:4B] lies in SM, this operand must be in AM"),
        (lambda: DspGemm(AM2.at(0, 4), SM.at(0, 4), SM.at(4, 4), 1, 1, 1, FP32, init=True),
         "sm0#0[4:4B] lies in SM, this operand must be in AM"),
        (lambda: DspGemm(AM2.at(0, 4), SM.at(0, 8), AM.at(0, 4), 1, 1, 1, FP32, init=True),
         "sm0#0[0:8B] has 8 B, it must have 4 B"),
        (lambda: DspCast(SM.at(0, 4), AM.at(0, 8), FP32, FP16), "this operand must be in AM"),
        (lambda: DspCast(AM2.at(0, 8), AM.at(0, 8), FP32, FP16), "has 8 B, it must have 4 B"),
        (lambda: DspCast(AM2.at(0, 3), AM.at(0, 6), FP32, FP16),
         "rows of 6 B are not whole fp32 elements"),
    ],
)  # fmt: skip
def test_illegal_operands_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        make().check(MT)
    assert message in str(caught.value)


# -- a kernel of one's own, and GM without an L2 -----------------------------------------------


class Product(Scripted):
    """c = a @ b on every core, by the DSL's own words."""

    name: ClassVar[str] = "product"
    role: ClassVar[str] = "dsp"
    m, k, n = 6, 8, 48

    def __init__(self) -> None:
        self.x = Tensor("a", (self.m, self.k), FP32)
        self.y = Tensor("b", (self.k, self.n), FP32)
        self.z = Tensor("c", (self.m, self.n), FP32, "out")

    def tasks(self, cores: int) -> Tasks[Any]:
        return tasks_of(np.arange(cores), {})

    def buffers(self, k: Language) -> None:
        self.a = k.buffer("SM", self.x.shape, FP32)
        self.b, self.c = (k.buffer("AM", t.shape, FP32) for t in (self.y, self.z))

    def emit(self, k: Language, task: Any) -> None:
        a, b, c = self.a.next(), self.b.next(), self.c.next()
        sizes = [t.size_bytes for t in self.tensors]
        k.data_move(a.at(0, sizes[0]), self.x.at(0, sizes[0]), FP32)
        k.data_move(b.at(0, sizes[1]), self.y.at(0, sizes[1]), FP32)
        k.dsp_gemm(c.at(0, sizes[2]), a.at(0, sizes[0]), b.at(0, sizes[1]), 6, 8, 48, FP32,
                   init=True)  # fmt: skip
        k.data_move(self.z.at(0, sizes[2]), c.at(0, sizes[2]), FP32)


def exact_memory() -> Any:
    """ft78ne with a main memory of 32 B a cycle, as fast as one DMA engine."""
    return FT.replace("main_memory.read", 32).replace("main_memory.write", 32)


def test_a_kernel_timed_by_hand(engine: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, s).astype(np.float32) for s in ((6, 8), (8, 48)))
    result = simulate(Product(), exact_memory(), a, b, cores=1, engine=engine)
    assert result.outputs is not None
    np.testing.assert_array_equal(result.outputs[0], a @ b)
    # issue 1, A 60 + 192/32, B 60 + 1536/32, gemm 26 + 6*8, C 60 + 1152/32
    assert result.runs[0].cycles == 1 + 66 + 108 + 74 + 96


def test_nothing_stays_without_an_l2() -> None:
    state = L2State(None)
    state.preload("x", 1000)
    for _ in range(2):
        assert state.touch("x", 3, 4, 10, 100, write=False) == Access(0, 40, 0)
        assert state.touch("x", 3, 4, 10, 100, write=True) == Access(0, 0, 40)


@pytest.mark.compiled
def test_cube_kernels_are_refused_on_a_dsp() -> None:
    a = np.ones((16, 16), np.float16)
    with pytest.raises(
        npusim.ArgumentError, match="mt7004 cannot multiply fp16: it has no cube unit"
    ):
        npusim.ops.matmul(a, a, device="mt7004", engine="simpy")
