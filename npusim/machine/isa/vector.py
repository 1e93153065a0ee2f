"""The vector unit: element-wise, reducing, converting and filling instructions on UB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npusim.base.dtypes import DType
from npusim.base.errors import ProgramError
from npusim.base.integers import ceil_div
from npusim.base.records import Record
from npusim.base.rounding import round_to
from npusim.machine.device.parts import Vector
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import (
    STARTUP,
    Cost,
    Instruction,
    InstructionFacts,
    MemoryView,
    Numbers,
    mean_cycles,
    whole_cycles,
)
from npusim.machine.isa.operands import Region, SlotRegion

#: What the operations of ``VecBinary`` do.
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "div": np.divide,
}

#: What those of ``VecBinary`` do that only integers have.
BITWISE: dict[str, Callable[[Any, Any], Any]] = {"and": np.bitwise_and, "or": np.bitwise_or}

#: What those of ``VecScalar`` do.
SCALAR = {f"{name}s": BINARY[name] for name in ("add", "mul", "max", "min")}

#: Operations of ``VecReduce``.
REDUCE = {"add": np.add, "max": np.maximum, "min": np.minimum}

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


def _leaves_gaps(region: SlotRegion) -> bool:
    """Tell whether rows of a region take blocks that they do not fill."""
    return region.pitch != region.row_bytes and region.row_bytes % BLOCK_BYTES != 0


class Lanes(NamedTuple):
    """Room of the repeats of a vector instruction, and the part of it that is used.

    ``elements`` are computed in ``repeats`` of ``each`` lanes. ``row_bytes`` are those of the
    shortest rows that do not fill the blocks they take, 0 where there are none; ``again`` is
    whether such rows are one operand read anew for each row, with pitch 0.
    """

    elements: int
    repeats: int
    each: int
    row_bytes: int
    again: bool


class VectorInstruction(Instruction):
    """Runs on the vector unit, on UB: reads ``inputs`` and writes ``dst`` in ``dtype``."""

    #: The memory that operands lie in.
    home: ClassVar[str] = "UB"
    pipe = "V"
    unit: ClassVar[str] = "vector"
    additions: ClassVar[tuple[tuple[str, str], ...]] = ((STARTUP, "startup_cycles"),)
    #: Names of the operands it reads.
    inputs: ClassVar[tuple[str, ...]] = ()
    #: What it is priced as; "" by its ``operation``.
    prices: ClassVar[str] = ""

    operation: str  # of those that have several
    dst: SlotRegion
    dtype: DType

    @staticmethod
    def cycles(
        vector: Vector,
        op: str,
        repeats: Numbers,
        *,
        instructions: Numbers = 1,
        repeated: bool = False,
    ) -> Numbers:
        """Cycles of ``repeats`` of an entry of ``vector.ops``; see ``Numbers``.

        They are of one instruction or several. Repeats of an operand that is ``repeated`` for each
        row take longer.
        """
        each = vector.ops[op]
        if repeated:
            each += vector.repeated_cycles
        work = whole_cycles if isinstance(repeats, int) else mean_cycles
        return instructions * vector.startup_cycles + work(repeats, each)

    @property
    def sources(self) -> tuple[SlotRegion, ...]:
        """The operands it reads."""
        return tuple(getattr(self, name) for name in self.inputs)

    @property
    def priced(self) -> str:
        """The entry of the device's ``vector.ops`` that says what a repeat costs."""
        return self.prices or self.operation

    @property
    def op(self) -> str:
        return f"vec_{self.priced}"

    @property
    def measured(self) -> tuple[SlotRegion, ...]:
        """The operands of which the longest decides how many repeats it takes."""
        return (self.dst, *self.sources)

    @property
    def walks(self) -> int:
        """Bytes it walks through, on which the number of repeats depends."""
        return walked(*self.measured)

    @property
    def elements(self) -> int:
        """Elements it computes on."""
        return max(region.size for region in self.measured) // self.dtype.bytes

    @property
    def lane_bytes(self) -> int:
        """Bytes of a repeat that an element takes."""
        return self.dtype.bytes

    @property
    def about(self) -> str:
        return f"{self.elements:,} x {self.dtype}"

    def repeats(self, device: Device) -> int:
        """Count its repeats."""
        return max(1, ceil_div(self.walks, device.vector.repeat_bytes))

    def lanes(self, device: Device) -> Lanes:
        """Return the part of its repeats that it uses."""
        narrow = [
            operand for operand in self.measured if operand.rows > 1 and _leaves_gaps(operand)
        ]
        return Lanes(
            elements=self.elements,
            repeats=self.repeats(device),
            each=device.vector.repeat_bytes // self.lane_bytes,
            row_bytes=min((operand.row_bytes for operand in narrow), default=0),
            again=any(not operand.pitch for operand in narrow),
        )

    def reads(self) -> tuple[Region, ...]:
        return self.sources

    def writes(self) -> tuple[Region, ...]:
        return (self.dst,)

    def check(self, device: Device) -> None:
        self._need_memory(self.home, self.dst, *self.sources)
        self._need_elements(self.dtype, *self.sources)

    def cost(self, device: Device) -> Cost:
        vector, op = device.vector, self.priced
        if op not in vector.ops:
            priced = ", ".join(vector.ops)
            raise ProgramError(f"{device.name} has no vector cost for {op!r} (it has: {priced})")
        repeated = any(source.rows > 1 and not source.pitch for source in self.sources)
        cycles = self.cycles(vector, op, self.repeats(device), repeated=repeated)
        return Cost(cycles, idle_head=vector.idle_head_cycles, issue=vector.issue_cycles)

    def figures(self) -> tuple[str, ...]:
        return ("vector", f"vector.ops.{self.priced}")


class Elementwise(VectorInstruction):
    """A vector instruction whose operands have equally many elements of one type."""

    def check(self, device: Device) -> None:
        super().check(device)
        self._need_elements(self.dtype, self.dst)
        for region in self.sources:
            self._need_size(region, self.dst.size)


class VecBinary(Elementwise, Record, frozen=True):
    """dst = a ``operation`` b, element by element, in ``dtype`` (add, sub, mul, max, min, div).

    Integers also have the operations on bits (and, or). Operands may be cut into rows differently;
    rows of pitch 0 repeat an operand. ``saturate`` keeps 16-bit floats finite on overflow and makes
    NaN 0, where the chip knows no infinity mode.
    """

    inputs: ClassVar[tuple[str, ...]] = ("a", "b")

    operation: str
    dst: SlotRegion
    a: SlotRegion
    b: SlotRegion
    dtype: DType
    saturate: bool = False

    def check(self, device: Device) -> None:
        self._need_operation(self.operation, (*BINARY, *BITWISE))
        if self.operation == "div" and self.dtype.kind != "float":
            raise ProgramError(f"{self} in {self.dtype}; only floats are divided: use vec_cast")
        if self.operation in BITWISE and self.dtype.kind != "int":
            raise ProgramError(
                f"{self} in {self.dtype}; only integers have bits to join: name the type INT32"
            )
        super().check(device)

    def execute(self, memory: MemoryView) -> None:
        a = memory.read(self.a, self.dtype, (-1,))
        b = memory.read(self.b, self.dtype, (-1,))
        if self.saturate and self.dtype.kind == "float":  # fp32 holds what fp16 would overflow
            a = a.astype(np.float32)
            b = b.astype(np.float32)
        compute = BINARY.get(self.operation) or BITWISE[self.operation]
        result = compute(a, b)
        modes = {"saturate": self.saturate, "zero_nan": self.saturate}
        memory.write(self.dst, round_to(result, self.dtype, **modes), self.dtype)


class VecScalar(Elementwise, Record, frozen=True):
    """dst = a ``operation`` scalar, in ``dtype``; the operation is adds, muls, maxs or mins."""

    inputs: ClassVar[tuple[str, ...]] = ("a",)

    operation: str
    dst: SlotRegion
    a: SlotRegion
    scalar: float
    dtype: DType

    def check(self, device: Device) -> None:
        self._need_operation(self.operation, SCALAR)
        super().check(device)

    def execute(self, memory: MemoryView) -> None:
        a = memory.read(self.a, self.dtype)
        scalar = np.asarray(self.scalar).astype(self.dtype.numpy)
        result = SCALAR[self.operation](a, scalar)
        memory.write(self.dst, round_to(result, self.dtype, saturate=False), self.dtype)


class VecCast(VectorInstruction, Record, frozen=True):
    """dst (``to``) = src (``dtype``), rounded to nearest even; element counts agree.

    ``saturate`` keeps 16-bit floats finite on overflow and makes NaN 0, where the chip knows no
    infinity mode.
    """

    inputs: ClassVar[tuple[str, ...]] = ("src",)
    prices: ClassVar[str] = "cast"

    dst: SlotRegion
    src: SlotRegion
    dtype: DType
    to: DType
    saturate: bool = False

    @property
    def elements(self) -> int:
        return self.src.size // self.dtype.bytes

    @property
    def lane_bytes(self) -> int:
        return max(self.dtype.bytes, self.to.bytes)

    def typed(self, facts: InstructionFacts) -> list[tuple[Region, DType]]:
        return [(self.src, self.dtype), (self.dst, self.to)]

    def check(self, device: Device) -> None:
        super().check(device)
        self._need_elements(self.to, self.dst)
        self._need_size(self.dst, self.src.size // self.dtype.bytes * self.to.bytes)

    def execute(self, memory: MemoryView) -> None:
        values = memory.read(self.src, self.dtype)
        modes = {"saturate": self.saturate, "zero_nan": self.saturate}
        memory.write(self.dst, round_to(values, self.to, **modes), self.to)


class VecReduce(VectorInstruction, Record, frozen=True):
    """dst[r] = sum, max or min of row r of src, which has ``rows`` rows of ``columns``."""

    inputs: ClassVar[tuple[str, ...]] = ("src",)

    operation: str
    dst: SlotRegion
    src: SlotRegion
    rows: int
    columns: int
    dtype: DType

    @property
    def priced(self) -> str:
        return f"reduce_{self.operation}"

    @property
    def measured(self) -> tuple[SlotRegion, ...]:
        return (self.src,)

    def check(self, device: Device) -> None:
        self._need_operation(self.operation, REDUCE)
        super().check(device)
        self._need_elements(self.dtype, self.dst)
        self._need_size(self.src, self.rows * self.columns * self.dtype.bytes)
        self._need_size(self.dst, self.rows * self.dtype.bytes)

    def execute(self, memory: MemoryView) -> None:
        values = memory.read(self.src, self.dtype, (self.rows, self.columns))
        if self.operation == "add":  # in C order, on which the order of the sum depends
            result = values.astype(np.float32, order="C").sum(axis=2, dtype=np.float32)
        else:
            result = REDUCE[self.operation].reduce(values, axis=2)
        memory.write(self.dst, round_to(result, self.dtype, saturate=False), self.dtype)


class VecDup(Elementwise, Record, frozen=True):
    """dst = value in every element.

    ``masked`` rows lie inside a repeat each; a mask leaves out the other lanes of their blocks.
    """

    prices: ClassVar[str] = "dup"

    dst: SlotRegion
    value: float
    dtype: DType
    masked: bool = False

    @property
    def begins(self) -> Mapping[str, int]:  # type: ignore[override]
        return {"UB": self.dtype.bytes} if self.masked else {}

    def execute(self, memory: MemoryView) -> None:
        shape = (memory.batch, self.dst.size // self.dtype.bytes)
        memory.write(self.dst, np.full(shape, self.value).astype(self.dtype.numpy), self.dtype)


class VecTranspose(VectorInstruction, Record, frozen=True):
    """dst = ``count`` matrices of src, ``rows`` x ``columns`` each, every one transposed.

    Either side is its elements in order: region rows may be matrix rows, several or parts of
    them. The unit turns 16 rows of 32 B at a time, so short last ones are charged in full;
    where a matrix is a single row or column nothing turns and it is a copy.
    """

    inputs: ClassVar[tuple[str, ...]] = ("src",)
    prices: ClassVar[str] = "transpose"

    dst: SlotRegion
    src: SlotRegion
    rows: int
    columns: int
    dtype: DType
    count: int = 1

    @property
    def measured(self) -> tuple[SlotRegion, ...]:
        return (self.src,)

    @property
    def walks(self) -> int:
        if min(self.rows, self.columns) == 1:
            return self.src.size
        blocks = ceil_div(self.count * self.rows, 16)
        return blocks * 16 * ceil_div(self.columns * self.dtype.bytes, BLOCK_BYTES) * BLOCK_BYTES

    def check(self, device: Device) -> None:
        if self.dtype.bytes not in (2, 4):
            raise ProgramError(
                f"vec_transpose of {self.dtype}: only 2- and 4-byte types are transposed"
            )
        super().check(device)
        self._need_elements(self.dtype, self.dst)
        size = self.count * self.rows * self.columns * self.dtype.bytes
        for region in (self.dst, self.src):
            self._need_size(region, size)

    def execute(self, memory: MemoryView) -> None:
        shape = (self.count, self.rows, self.columns)
        memory.move(self.dst, self.src, self.dtype, shape, lambda x: x.swapaxes(2, 3))
