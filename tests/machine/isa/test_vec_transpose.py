"""The transposing vector instruction: numbers, price and refused operands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.base.errors import ProgramError
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Buffer, Slot
from npusim.machine.isa.vector import VecTranspose
from npusim.machine.numerics.memory import CoreMemory, GlobalMemory
from npusim.machine.program.language import Language
from npusim.machine.program.program import Program
from tests.tables import rows

TINY = load_device("tiny")
UB, UB2 = (Slot(Buffer(f"ub{i}", "UB", 4096, 1, i), 0) for i in range(2))


def fresh_memory() -> CoreMemory:
    buffers = (UB.buffer, UB2.buffer)
    return CoreMemory(cast(Program, SimpleNamespace(buffers=buffers)), GlobalMemory({}))


@pytest.mark.parametrize("kind", [FP16, FP32])
def test_every_matrix_is_transposed_between_pitched_regions(kind: DType) -> None:
    memory, e = fresh_memory(), kind.bytes
    values = np.arange(3 * 5 * 7).reshape(3, 5, 7)
    source = UB.at(32, 7 * e, rows=15, pitch=8 * e)
    target = UB2.at(64, 7 * 5 * e, rows=3, pitch=7 * 5 * e + 32)
    memory.write(source, values.reshape(1, 15, 7), kind)
    VecTranspose(target, source, 5, 7, kind, count=3).execute(memory)
    want = values.transpose(0, 2, 1).reshape(3, 35)
    np.testing.assert_array_equal(memory.read(target, kind)[0], want.astype(kind.numpy))
    gap = UB2.at(64 + 35 * e, 32, rows=2, pitch=35 * e + 32)
    assert (memory.read(gap, INT8) == -1).all()  # as fresh memory is


@rows("tests/data/rows/isa.yaml", "cost_in_whole_blocks", "rows, columns, count, repeats")
def test_cost_in_whole_blocks(rows: int, columns: int, count: int, repeats: int) -> None:
    size = rows * columns * count * 2
    move = VecTranspose(UB2.at(0, size), UB.at(0, size), rows, columns, FP16, count)
    for name in ("tiny", "ascend910b2"):
        vector = load_device(name).vector
        want = vector.startup_cycles + repeats * vector.ops["transpose"]
        assert move.cost(load_device(name)).cycles == want


def test_refused_operands() -> None:
    k = Language(TINY, TINY.core_kind("vector"))
    ub = k.buffer("UB", (2048,), None, slots=2, name="ub")
    l1 = k.buffer("L1", (2048,), None, name="l1")
    a, b, far = ub.next(), ub.next(), l1.next()
    with pytest.raises(ProgramError, match="vec_transpose of int8: only 2- and 4-byte types"):
        k.vec_transpose(a.at(0, 64), b.at(0, 64), 8, 8, INT8)
    with pytest.raises(ProgramError, match=r"has 64 B, it must have 128 B"):
        k.vec_transpose(a.at(0, 128), b.at(0, 64), 8, 8, FP16)
    with pytest.raises(ProgramError, match=r"has 256 B, it must have 128 B"):
        k.vec_transpose(a.at(0, 256), b.at(0, 128), 8, 8, FP16)
    with pytest.raises(ProgramError, match=r"l1#0.* lies in L1, this operand must be in UB"):
        k.vec_transpose(a.at(0, 128), far.at(0, 128), 8, 8, FP16)
    with pytest.raises(ProgramError, match="rows of 1 B are not whole fp16 elements"):
        k.vec_transpose(a.at(0, 1, rows=128, pitch=2), b.at(0, 128), 8, 8, FP16)
    k.vec_transpose(a.at(0, 128), b.at(0, 128), 8, 8, FP16)
    assert [type(i) for i in k.instructions] == [VecTranspose]
