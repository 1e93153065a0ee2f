"""Functions of one operand, comparisons and selection on the vector unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import FP16, FP32, INT8, DType
from npusim.base.errors import ProgramError
from npusim.base.integers import ceil_div
from npusim.base.records import Record
from npusim.base.rounding import round_to
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import InstructionFacts, MemoryView
from npusim.machine.isa.operands import Region, SlotRegion
from npusim.machine.isa.vector import Elementwise, VectorInstruction

#: What the operations of ``VecUnary`` do.
UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "exp": np.exp,
    "ln": np.log,
    "rec": lambda x: 1 / x,
    "relu": lambda x: np.maximum(x, 0),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
}

#: The operation of ``VecUnary`` that turns the bits of integers.
NOT = "not"

#: Those that take the same time for an element of either type.
_BY_ELEMENT = ("exp", "ln", "sqrt")

#: What the operations of ``VecCompare`` do.
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def mask_bytes(elements: int) -> int:
    """Bytes of a mask: a bit for each element, from the lowest bit of the first byte on."""
    return ceil_div(elements, 8)


def _need_float(instruction: VectorInstruction) -> None:
    if instruction.dtype not in (FP16, FP32):
        raise ProgramError(
            f"{instruction} in {instruction.dtype}; the vector unit computes it in fp16 and fp32: "
            "convert with vec_cast"
        )


class VecUnary(Elementwise, Record, frozen=True):
    """dst = ``operation`` of a, element by element, in fp16 or fp32, rounded once to nearest.

    "not" turns the bits of integers.
    The chip's own exp, ln, sqrt and reciprocals may be off by some units in the last place; how
    many is not published.
    """

    inputs: ClassVar[tuple[str, ...]] = ("a",)

    operation: str
    dst: SlotRegion
    a: SlotRegion
    dtype: DType

    @property
    def walks(self) -> int:
        return super().walks // self.dtype.bytes * self.lane_bytes

    @property
    def lane_bytes(self) -> int:
        return 4 if self.operation in _BY_ELEMENT else self.dtype.bytes

    def check(self, device: Device) -> None:
        self._need_operation(self.operation, (*UNARY, NOT))
        if self.operation != NOT:
            _need_float(self)
        elif self.dtype.kind != "int":
            raise ProgramError(
                f"{self} in {self.dtype}; only integers have bits to turn: name the type INT32"
            )
        super().check(device)

    def execute(self, memory: MemoryView) -> None:
        if self.operation == NOT:
            memory.write(self.dst, np.invert(memory.read(self.a, self.dtype, (-1,))), self.dtype)
            return
        a = memory.read(self.a, self.dtype, (-1,)).astype(np.float64)
        result = UNARY[self.operation](a)
        memory.write(self.dst, round_to(result, self.dtype, saturate=False), self.dtype)


class _Masked(VectorInstruction):
    """A vector instruction with a mask; of ``a`` and ``b`` the latter may be a number."""

    a: SlotRegion
    b: SlotRegion | float

    @property
    def compared(self) -> tuple[SlotRegion, ...]:
        """The operands of elements."""
        return (self.a, self.b) if isinstance(self.b, SlotRegion) else (self.a,)

    def typed(self, facts: InstructionFacts) -> list[tuple[Region, DType]]:
        return [(region, self.dtype) for region in self.compared]

    def values(self, memory: MemoryView) -> tuple[npt.NDArray[Any], Any]:
        """Both operands, (batch, elements); a number in the type of the elements."""
        a = memory.read(self.a, self.dtype, (-1,))
        if isinstance(self.b, SlotRegion):
            return a, memory.read(self.b, self.dtype, (-1,))
        return a, np.asarray(self.b).astype(self.dtype.numpy)

    def check_sizes(self, mask: SlotRegion) -> None:
        """Raise unless a mask has a bit for each element, and operands have equally many."""
        _need_float(self)
        self._need_elements(self.dtype, *self.compared)
        for region in self.compared[1:]:
            self._need_size(region, self.a.size)
        self._need_size(mask, mask_bytes(self.a.size // self.dtype.bytes))


class VecCompare(_Masked, Record, frozen=True):
    """dst = a bit for each element: a ``operation`` b (lt, le, gt, ge, eq, ne); NaN is "ne"."""

    operation: str
    dst: SlotRegion
    a: SlotRegion
    b: SlotRegion | float
    dtype: DType

    @property
    def priced(self) -> str:
        return "compares" if isinstance(self.b, int | float) else "compare"

    @property
    def sources(self) -> tuple[SlotRegion, ...]:
        return self.compared

    @property
    def measured(self) -> tuple[SlotRegion, ...]:
        return self.compared

    def check(self, device: Device) -> None:
        self._need_operation(self.operation, COMPARE)
        self._need_memory("UB", self.dst, *self.compared)
        self.check_sizes(self.dst)

    def execute(self, memory: MemoryView) -> None:
        a, b = self.values(memory)
        bits = np.packbits(COMPARE[self.operation](a, b), axis=-1, bitorder="little")
        memory.write(self.dst, bits.view(np.int8), INT8)


class VecSelect(_Masked, Record, frozen=True):
    """dst = a where the mask has a 1, b elsewhere; b may be a number."""

    prices: ClassVar[str] = "select"

    dst: SlotRegion
    mask: SlotRegion
    a: SlotRegion
    b: SlotRegion | float
    dtype: DType

    @property
    def sources(self) -> tuple[SlotRegion, ...]:
        return (self.mask, *self.compared)

    def typed(self, facts: InstructionFacts) -> list[tuple[Region, DType]]:
        return [*super().typed(facts), (self.dst, self.dtype)]

    @property
    def measured(self) -> tuple[SlotRegion, ...]:
        return (self.dst, *self.compared)

    def check(self, device: Device) -> None:
        self._need_memory("UB", self.dst, *self.sources)
        self._need_size(self.dst, self.a.size)
        self.check_sizes(self.mask)

    def execute(self, memory: MemoryView) -> None:
        a, b = self.values(memory)
        bits = memory.read(self.mask, INT8, (-1,)).view(np.uint8)
        chosen = np.unpackbits(bits, axis=-1, count=a.shape[-1], bitorder="little")
        memory.write(self.dst, np.where(chosen, a, b), self.dtype)
