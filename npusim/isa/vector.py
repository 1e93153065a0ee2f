"""The vector unit: element-wise, reducing, converting and filling instructions on UB."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npusim.device.spec import Device
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.integers import ceil_div
from npusim.isa.base import Cost, Instruction, MemoryView, whole_cycles
from npusim.isa.operands import Region, SlotRegion
from npusim.rounding import round_to

#: What the operations of ``VecBinary`` and ``VecScalar`` do; scalar forms end in "s".
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


#: Bytes a vector instruction addresses at once; a strided row takes whole blocks.
BLOCK_BYTES = 32


def walked(*regions: SlotRegion) -> int:
    """Bytes of the whole blocks an instruction walks through, its longest operand counting."""
    return max(
        region.size
        if region.rows == 1 or region.pitch == region.row_bytes
        else region.rows * ceil_div(region.row_bytes, BLOCK_BYTES) * BLOCK_BYTES
        for region in regions
    )


def vector_cost(device: Device, op: str, size: int) -> Cost:
    """Cost of ``op`` over ``size`` bytes: startup + repeats * cycles per repeat."""
    vector = device.vector
    if op not in vector.ops:
        known = ", ".join(vector.ops)
        raise ProgramError(f"{device.name} has no vector cost for {op!r} (it has: {known})")
    repeats = max(1, ceil_div(size, vector.repeat_bytes))
    return Cost(
        cycles=vector.startup_cycles + whole_cycles(repeats, vector.ops[op]),
        idle_head=vector.idle_head_cycles,
        issue=vector.issue_cycles,
    )


class VectorInstruction(Instruction):
    """Runs on the vector unit and writes ``dst``."""

    batched: ClassVar[bool] = True

    dst: SlotRegion

    @property
    def pipe(self) -> str:
        return "V"

    def writes(self) -> tuple[Region, ...]:
        return (self.dst,)


@dataclass(frozen=True)
class VecBinary(VectorInstruction):
    """dst = a ``operation`` b, element by element, in ``dtype`` (add, sub, mul, max, min).

    Operands may be cut into rows differently; rows of pitch 0 repeat an operand. ``saturate``
    keeps 16-bit floats finite on overflow, where the chip knows no infinity mode.
    """

    operation: str
    dst: SlotRegion
    a: SlotRegion
    b: SlotRegion
    dtype: DType
    saturate: bool = False

    def reads(self) -> tuple[Region, ...]:
        return (self.a, self.b)

    def cost(self, device: Device) -> Cost:
        return vector_cost(device, self.operation, walked(self.dst, self.a, self.b))

    def execute(self, memory: MemoryView) -> None:
        a, b = (memory.read(part, self.dtype, (-1,)) for part in (self.a, self.b))
        if self.saturate and self.dtype.kind == "float":  # fp32 holds what fp16 would overflow
            a, b = a.astype(np.float32), b.astype(np.float32)
        result = BINARY[self.operation](a, b)
        memory.write(self.dst, round_to(result, self.dtype, saturate=self.saturate), self.dtype)

    @property
    def op(self) -> str:
        return f"vec_{self.operation}"


@dataclass(frozen=True)
class VecScalar(VectorInstruction):
    """dst = a ``operation`` scalar, in ``dtype``; the operation is adds, muls, maxs or mins."""

    operation: str
    dst: SlotRegion
    a: SlotRegion
    scalar: float
    dtype: DType

    def reads(self) -> tuple[Region, ...]:
        return (self.a,)

    def cost(self, device: Device) -> Cost:
        return vector_cost(device, self.operation, walked(self.dst, self.a))

    def execute(self, memory: MemoryView) -> None:
        a = memory.read(self.a, self.dtype)
        scalar = np.asarray(self.scalar).astype(self.dtype.numpy)
        result = BINARY[self.operation[:-1]](a, scalar)
        memory.write(self.dst, round_to(result, self.dtype, saturate=False), self.dtype)

    @property
    def op(self) -> str:
        return f"vec_{self.operation}"


@dataclass(frozen=True)
class VecCast(VectorInstruction):
    """dst (``to``) = src (``dtype``), rounded to nearest even; element counts agree.

    ``saturate`` keeps 16-bit floats finite on overflow, where the chip knows no infinity mode.
    """

    dst: SlotRegion
    src: SlotRegion
    dtype: DType
    to: DType
    saturate: bool = False

    def reads(self) -> tuple[Region, ...]:
        return (self.src,)

    def cost(self, device: Device) -> Cost:
        return vector_cost(device, "cast", walked(self.src, self.dst))

    def execute(self, memory: MemoryView) -> None:
        values = memory.read(self.src, self.dtype)
        memory.write(self.dst, round_to(values, self.to, saturate=self.saturate), self.to)


@dataclass(frozen=True)
class VecReduce(VectorInstruction):
    """dst[r] = sum or max of row r of src; src is ``rows`` x ``columns``, one result per row."""

    operation: str
    dst: SlotRegion
    src: SlotRegion
    rows: int
    columns: int
    dtype: DType

    def reads(self) -> tuple[Region, ...]:
        return (self.src,)

    def cost(self, device: Device) -> Cost:
        return vector_cost(device, f"reduce_{self.operation}", walked(self.src))

    def execute(self, memory: MemoryView) -> None:
        values = memory.read(self.src, self.dtype, (self.rows, self.columns))
        if self.operation == "add":  # in C order, on which the order of the sum depends
            result = values.astype(np.float32, order="C").sum(axis=2, dtype=np.float32)
        else:
            result = values.max(axis=2)
        memory.write(self.dst, round_to(result, self.dtype, saturate=False), self.dtype)

    @property
    def op(self) -> str:
        return f"vec_reduce_{self.operation}"


@dataclass(frozen=True)
class VecDup(VectorInstruction):
    """dst = value in every element."""

    dst: SlotRegion
    value: float
    dtype: DType

    def cost(self, device: Device) -> Cost:
        return vector_cost(device, "dup", walked(self.dst))

    def execute(self, memory: MemoryView) -> None:
        shape = (memory.units, self.dst.size // self.dtype.bytes)
        memory.write(self.dst, np.full(shape, self.value).astype(self.dtype.numpy), self.dtype)


@dataclass(frozen=True)
class VecTranspose(VectorInstruction):
    """dst = ``count`` matrices of src, ``rows`` x ``columns`` each, every one transposed.

    Either side is its elements in order: region rows may be matrix rows, several or parts of
    them. The unit turns 16 rows of 32 B at a time, so short last ones are charged in full;
    where a matrix is a single row or column nothing turns and it is a copy.
    """

    dst: SlotRegion
    src: SlotRegion
    rows: int
    columns: int
    dtype: DType
    count: int = 1

    def reads(self) -> tuple[Region, ...]:
        return (self.src,)

    def cost(self, device: Device) -> Cost:
        size = self.src.size
        if min(self.rows, self.columns) > 1:
            blocks = ceil_div(self.count * self.rows, 16)
            size = blocks * 16 * ceil_div(self.columns * self.dtype.bytes, 32) * 32
        return vector_cost(device, "transpose", size)

    def execute(self, memory: MemoryView) -> None:
        shape = (self.count, self.rows, self.columns)
        memory.move(self.dst, self.src, self.dtype, shape, lambda x: x.swapaxes(2, 3))
