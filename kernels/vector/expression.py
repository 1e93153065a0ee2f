"""Expressions as data: steps of the vector unit over a piece of some maps that lies in UB.

Maps have one number for each element, masks one bit, channel vectors a number for each channel.
Values are computed in one type and rounded once, when they are stored. A value that rests on
vectors and numbers alone is a vector itself: it is computed once, not for each element. Reductions
of rows leave a number for each row, which is spread over the row to be used with its elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from npusim.language import (
    FP16,
    FP32,
    ArgumentError,
    BufferHandle,
    DType,
    Language,
    Slot,
    SlotRegion,
    Tensor,
    ceil_div,
)
from npusim.machine.isa.vector import BINARY, SCALAR
from npusim.machine.isa.vector_math import COMPARE, UNARY

#: Reductions of rows, by what the vector unit calls them.
REDUCED = {"row_sum": "add", "row_max": "max"}

#: Operations whose number is the width of a row.
BY_ROW = (*REDUCED, "spread")

#: Rows of elements begin at multiples of so many: their masks fill blocks of 32 B.
GRAIN = 256


class Step(NamedTuple):
    """``result = operation(a, b)``: operands are names of values, ``b`` may be a number.

    Operations are those of the vector unit: add, sub, mul, div, max, min of two; adds, muls, maxs,
    mins with a number; relu, abs, exp, ln, rec, sqrt, rsqrt of one, and cast, which
    only converts; lt, le, gt, ge, eq, ne, which make a mask; and select, whose ``mask`` takes ``a``
    where it has a 1, else ``b``. Of rows of ``b`` elements row_sum and row_max leave a number each,
    and spread repeats it ``b`` times. A result may have the name of an earlier value: what follows
    sees the new one. It is computed in ``dtype`` (None: that of the expression), to which operands
    are converted; fp16 takes half the time.
    """

    result: str
    operation: str
    a: str
    b: str | float = ""
    mask: str = ""
    dtype: DType | None = None

    def __str__(self) -> str:
        operands = ", ".join(str(name) for name in (self.mask, self.a, self.b) if name != "")
        return f"{self.result} = {self.operation}({operands})"

    @property
    def reads(self) -> tuple[str, ...]:
        """The names among its operands."""
        operands = (self.a, self.b, self.mask)
        return tuple(name for name in operands if isinstance(name, str) and name)

    @property
    def fault(self) -> str:
        """The mistake in its form; "" if there is none."""
        has_b = self.b != ""
        named = isinstance(self.b, str) and has_b
        forms = (
            (BINARY.keys(), "two values", named),
            ({*SCALAR, *BY_ROW}, "a value and a number", has_b and not named),
            ({*UNARY, "cast"}, "one value", not has_b),
            (COMPARE.keys(), "a value and a value or number", has_b),
            ({"select"}, "a mask, a value, and a value or number", has_b and bool(self.mask)),
        )
        for operations, operands, right in forms:
            if self.operation in operations:
                fits = right and (self.operation == "select" or not self.mask)
                return "" if fits else f"{self.operation} takes {operands}"
        names = ", ".join(sorted(name for operations, *_ in forms for name in operations))
        return f"there is no operation {self.operation!r}; use one of {names}"


class Span(NamedTuple):
    """Elements in slots of UB: ``rows`` of ``row``, ``apart`` from one to the next.

    The first is element ``first``; masks begin at bit ``bit`` and lie ``bits_apart``.
    """

    rows: int
    row: int
    apart: int
    bits_apart: int
    first: int = 0
    bit: int = 0

    def of(self, slot: Slot, bits: int) -> SlotRegion:
        """The elements of so many bits each in a slot."""
        first = self.bit if bits == 1 else self.first
        apart = self.bits_apart if bits == 1 else self.apart
        row = ceil_div(self.row * bits, 8)
        return slot.at(first * bits // 8, row, rows=self.rows, pitch=apart * bits // 8)


def is_mask(tensor: Tensor) -> bool:
    """True if it holds bits."""
    return tensor.dtype.kind == "int"


def bits_of(tensor: Tensor) -> int:
    """Bits of an element."""
    return 1 if is_mask(tensor) else tensor.dtype.bytes * 8


class Value(NamedTuple):
    """A "map", "mask", "vector" of numbers for channels, or "row" of one for each row; its type."""

    kind: str
    dtype: DType


class Order(NamedTuple):
    """Steps in order, casts among them, each value with a name of its own.

    ``homes`` are the register of each value that has one, ``registers`` their bytes an element;
    ``last`` the value that a name means behind all steps. Values that are ``unrounded`` are written
    as they are, to the tensor of that name.
    """

    steps: tuple[Step, ...]
    values: Mapping[str, Value]
    homes: Mapping[str, int]
    registers: tuple[int, ...]
    last: Mapping[str, str]
    unrounded: Mapping[str, str]


@dataclass(frozen=True)
class Expression:
    """``steps`` over maps; a tensor is called in them by its own name.

    ``reads`` and ``writes`` are maps of floats, and masks of int8; a tensor may be both.
    ``vectors`` are floats and hold a number for each channel. ``summed`` names a value for each of
    ``sums``, to which it is added in fp32 over everything but channels. ``rows`` are written too:
    fp32, a number for each row. ``saturate`` keeps what is converted to fp16 finite (see
    ``Device.saturates``).
    """

    steps: tuple[Step, ...]
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    vectors: tuple[Tensor, ...] = ()
    sums: tuple[Tensor, ...] = ()
    summed: tuple[str, ...] = ()
    compute: DType = FP32
    saturate: bool = False
    rows: tuple[Tensor, ...] = ()

    def check(self, called: str) -> None:
        """Raise for names that nothing makes, operands of the wrong kind, and types."""
        defined = {tensor.name for tensor in (*self.reads, *self.vectors)}
        for step in self.steps:
            if step.fault:
                raise ArgumentError(f"{called}: {step}: {step.fault}")
            missing = sorted({*step.reads} - defined)
            if missing:
                raise ArgumentError(f"{called}: {step} reads {missing[0]}, which nothing made")
            defined.add(step.result)
        results = {step.result for step in self.steps}
        unmade = sorted({tensor.name for tensor in (*self.writes, *self.rows)} - results)
        unmade += sorted({*self.summed} - defined)
        if unmade:
            raise ArgumentError(f"{called}: no step makes {unmade[0]}")
        if len(self.summed) != len(self.sums):
            raise ArgumentError(
                f"{called}: {len(self.sums)} sums of {len(self.summed)} values; name one for each"
            )
        for dtype in (self.compute, *(step.dtype for step in self.steps)):
            if dtype not in (FP16, FP32, None):
                raise ArgumentError(f"{called}: it computes in {dtype}; use fp16 or fp32")
        self._check_converted(called)
        for step in self.order.steps:
            self._check_kinds(called, step)
        self._check_results(called)

    def _check_converted(self, called: str) -> None:
        """Raise for maps that are written as they were read."""
        for tensor in self.writes:
            same = {read.name for read in self.reads if read.dtype == tensor.dtype}
            if self.order.last[tensor.name] in same:
                raise ArgumentError(f"{called}: the steps convert nothing for {tensor.name}")

    def _check_kinds(self, called: str, step: Step) -> None:
        """Raise where a mask is needed and a value given, or the other way round."""
        values = self.order.values
        if step.mask and values[step.mask].kind != "mask":
            raise ArgumentError(f"{called}: {step} takes {step.mask} as a mask, which is none")
        operands = [name for name in step.reads if name != step.mask]
        kinds = {values[name].kind for name in operands}
        if "row" in kinds and (len(kinds) > 1 or step.mask or step.operation in REDUCED):
            raise ArgumentError(f"{called}: {step} takes numbers of rows; spread them before")
        masks = [name for name in operands if values[name].kind == "mask"]
        if masks:
            raise ArgumentError(f"{called}: {step} computes with the mask {masks[0]}")

    def _check_results(self, called: str) -> None:
        """Raise where a value of another kind is written or summed."""
        wants = {tensor.name: "mask" if is_mask(tensor) else "map" for tensor in self.writes}
        wants |= dict.fromkeys(self.summed, "map")
        wants |= {tensor.name: "row" for tensor in self.rows}
        for name, want in wants.items():
            kind = self.order.values[self.order.last[name]].kind
            if kind != want:
                raise ArgumentError(f"{called}: {name} is a {kind}, where a {want} is needed")

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every one that it touches, once."""
        tensors = (*self.reads, *self.rows, *self.writes, *self.vectors, *self.sums)
        return tuple(dict.fromkeys(tensors))

    @cached_property
    def width(self) -> int:
        """Elements of a row, 0 where none is reduced."""
        return next((int(step.b) for step in self.steps if step.operation in BY_ROW), 0)

    @property
    def each_bits(self) -> int:
        """Bits of UB that an element takes, without sums: two slots of maps and rows, registers."""
        maps = sum(2 * bits_of(tensor) for tensor in (*self.reads, *self.writes))
        rows = ceil_div(64 * len(self.rows), self.width) if self.rows else 0
        return maps + rows + sum(self.order.registers) * 8

    @cached_property
    def order(self) -> Order:
        """The steps with their casts, and the registers in which values stay."""
        naming = _Naming(self)
        for step in self.steps:
            naming.add(step)
        last = naming.current | {name: naming.as_type(name, FP32) for name in self.summed}
        steps = tuple(naming.steps)
        unrounded: dict[str, str] = {}
        for tensor in self.writes:
            value = last[tensor.name]
            if is_mask(tensor) or naming.values[value].dtype == tensor.dtype:
                unrounded[value] = tensor.name
        unrounded |= {last[tensor.name]: tensor.name for tensor in self.rows}
        homes, registers = self._registers(steps, naming.values, last, unrounded)
        return Order(steps, naming.values, homes, registers, last, unrounded)

    def _registers(
        self,
        steps: tuple[Step, ...],
        values: Mapping[str, Value],
        last: Mapping[str, str],
        unrounded: Mapping[str, str],
    ) -> tuple[dict[str, int], tuple[int, ...]]:
        """The register of each value that needs one, and bytes an element of each register."""
        results = (*self.summed, *(tensor.name for tensor in (*self.writes, *self.rows)))
        ends = {last[name]: len(steps) for name in results}  # the last step that reads a value
        for number, step in enumerate(steps):
            for name in step.reads:
                ends[name] = max(ends.get(name, 0), number)
        homes: dict[str, int] = {}
        busy: list[int] = []  # per register, the last step that reads it
        sizes: list[int] = []
        for number, step in enumerate(steps):
            value = values[step.result]
            if step.result in unrounded or value.kind == "vector":
                continue
            small = value.kind == "row" and self.width >= value.dtype.bytes
            size = 1 if small else value.dtype.bytes
            free = [i for i, end in enumerate(busy) if end < number]
            if free:
                home = _nearest(sizes, free, size)
                sizes[home] = max(size, sizes[home])
            else:
                home = len(busy)
                busy.append(number)
                sizes.append(size)
            homes[step.result] = home
            busy[home] = ends.get(step.result, number)
        return homes, tuple(sizes)


def _nearest(sizes: list[int], free: list[int], size: int) -> int:
    """The ``free`` register whose size is nearest."""
    return min(free, key=lambda register: abs(sizes[register] - size))


class _Naming:
    """Gives each value of an expression a name of its own, and casts what has another type.

    ``current`` is what a name means after the ``steps`` so far.
    """

    def __init__(self, expression: Expression) -> None:
        self.compute = expression.compute
        self.values = {
            tensor.name: Value("mask" if is_mask(tensor) else "map", tensor.dtype)
            for tensor in expression.reads
        }
        for tensor in expression.vectors:
            self.values[tensor.name] = Value("vector", tensor.dtype)
        self.current = {name: name for name in self.values}
        self.steps: list[Step] = []

    def as_type(self, name: str, dtype: DType) -> str:
        """The value of a name as ``dtype``, converted where it is of another type and no mask."""
        value = self.current[name]
        if self.values[value].kind == "mask" or self.values[value].dtype == dtype:
            return value
        cast = f"{value} as {dtype}"
        if cast not in self.values:
            self.values[cast] = self.values[value]._replace(dtype=dtype)
            self.steps.append(Step(cast, "cast", value, dtype=dtype))
        return cast

    def add(self, step: Step) -> None:
        """Add a step, with casts of its operands before it."""
        dtype = step.dtype or self.compute
        if step.operation == "cast":
            self.current[step.result] = self.as_type(step.a, dtype)
            return
        a = self.as_type(step.a, dtype)
        mask = step.mask and self.current[step.mask]
        b = step.b
        if isinstance(b, str) and b:
            b = self.as_type(b, dtype)
        result = step.result
        if result in self.values:
            result = f"{step.result} {len(self.steps)}"
        self.values[result] = Value(self._kind(step, a, b), dtype)
        self.current[step.result] = result
        self.steps.append(Step(result, step.operation, a, b, mask, dtype))

    def _kind(self, step: Step, a: str, b: str | float) -> str:
        """The kind of a step's result."""
        if step.operation in REDUCED:
            return "row"
        if step.operation in COMPARE:
            return "mask"
        operands = {self.values[a].kind}
        if isinstance(b, str) and b:
            operands.add(self.values[b].kind)
        if operands in ({"vector"}, {"row"}) and not step.mask and step.operation != "spread":
            return operands.pop()
        return "map"


#: Operands of the steps over a span, by value; of vectors the channels of that span.
Places = dict[str, SlotRegion]


class Bench:
    """The buffers of an expression in UB: slots of ``elements`` for maps, ``bits`` for masks.

    A vector has ``channels`` numbers.
    """

    def __init__(
        self, expression: Expression, k: Language, elements: int, bits: int, channels: int
    ) -> None:
        self.expression = expression
        self.k = k
        self.order = expression.order

        def buffer(tensor: Tensor, suffix: str) -> BufferHandle:
            count = elements
            if tensor in expression.rows:
                count = elements // expression.width
            elif is_mask(tensor):
                count = bits // 8
            name = f"{tensor.name}_{suffix}"
            return k.buffer("UB", (count,), tensor.dtype, slots=2, name=name)

        self.reads = {tensor.name: buffer(tensor, "ub") for tensor in expression.reads}
        written = (*expression.writes, *expression.rows)
        self.writes = {tensor.name: buffer(tensor, "out_ub") for tensor in written}
        self.registers = [
            k.buffer("UB", (max(elements * size, bits // 8),), None, name=f"value{i}_ub")
            for i, size in enumerate(self.order.registers)
        ]
        self.vectors = {
            name: k.buffer("UB", (channels,), value.dtype, slots=2, name=f"{name}_ub")
            for name, value in self.order.values.items()
            if value.kind == "vector"
        }

    def prepare(self, channels: int) -> None:
        """Compute the vectors that are made of others."""
        values = self.order.values
        for step in self.order.steps:
            if values[step.result].kind != "vector":
                continue
            operands = {
                name: self.vectors[name].last().at(0, channels * values[name].dtype.bytes)
                for name in step.reads
            }
            size = channels * values[step.result].dtype.bytes
            self._issue(step, self.vectors[step.result].next().at(0, size), operands)

    def repeated(self, first: int, c0: int, span: Span) -> Places:
        """Every vector as an operand over a span: ``c0`` channels from ``first`` on, repeated."""
        count = span.rows * span.row // c0
        places: Places = {}
        for name, buffer in self.vectors.items():
            size = self.order.values[name].dtype.bytes
            places[name] = buffer.last().at(first * size, c0 * size, rows=count, pitch=0)
        return places

    def run(self, span: Span, places: Places, outputs: Mapping[str, Slot]) -> None:
        """Issue the steps over a span; ``places`` has what is read and gets what is made.

        ``outputs`` are slots of what is written, by name.
        """
        for step in self.order.steps:
            value = self.order.values[step.result]
            if value.kind == "vector":
                continue
            if step.result in self.order.unrounded:
                slot = outputs[self.order.unrounded[step.result]]
            else:
                slot = self.registers[self.order.homes[step.result]].next()
            bits = 1 if value.kind == "mask" else value.dtype.bytes * 8
            if value.kind == "row":
                place = slot.at(0, span.row // self.expression.width * bits // 8)
            else:
                place = span.of(slot, bits)
            places[step.result] = place
            self._issue(step, place, places)
        for tensor in self.expression.writes:
            name = self.order.last[tensor.name]
            if name not in self.order.unrounded:
                target = span.of(outputs[tensor.name], bits_of(tensor))
                self._cast(target, name, places, tensor.dtype)

    def _cast(self, target: SlotRegion, name: str, places: Places, to: DType) -> None:
        dtype = self.order.values[name].dtype
        self.k.vec_cast(target, places[name], dtype, to, saturate=self.expression.saturate)

    def _issue(self, step: Step, target: SlotRegion, places: Places) -> None:
        k = self.k
        operation = step.operation
        a = places[step.a]
        dtype = step.dtype or self.expression.compute
        b = places[step.b] if isinstance(step.b, str) and step.b else step.b
        if operation == "cast":
            self._cast(target, step.a, places, dtype)
        elif operation in BY_ROW and isinstance(b, float | int):
            self._by_row(operation, target, a, int(b), dtype)
        elif operation in UNARY:
            k.vec_unary(operation, target, a, dtype)
        elif isinstance(b, SlotRegion) and operation in BINARY:
            k.vec_binary(operation, target, a, b, dtype)
        elif isinstance(b, float | int) and operation in SCALAR:
            k.vec_scalar(operation, target, a, b, dtype)
        elif not isinstance(b, str) and operation in COMPARE:
            k.vec_compare(operation, target, a, b, dtype)
        elif not isinstance(b, str):
            k.vec_select(target, places[step.mask], a, b, dtype)

    def _by_row(
        self, operation: str, target: SlotRegion, a: SlotRegion, width: int, dtype: DType
    ) -> None:
        """Reduce rows, or repeat the number of each: as equal rows of a matrix, turned."""
        if operation in REDUCED:
            sizes = target.size // dtype.bytes, width
            self.k.vec_reduce(REDUCED[operation], target, a, *sizes, dtype)
        else:
            again = a.slot.at(a.offset - a.slot.first, a.size, rows=width, pitch=0)
            self.k.vec_transpose(target, again, width, a.size // dtype.bytes, dtype)
