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
        operands = ", ".join(str(one) for one in (self.mask, self.a, self.b) if one != "")
        return f"{self.result} = {self.operation}({operands})"

    @property
    def reads(self) -> tuple[str, ...]:
        """The names among its operands."""
        return tuple(one for one in (self.a, self.b, self.mask) if isinstance(one, str) and one)

    @property
    def fault(self) -> str:
        """What is wrong with its form; "" if nothing is."""
        given, named = self.b != "", isinstance(self.b, str) and self.b != ""
        forms = (
            (BINARY.keys(), "two values", named),
            ({*SCALAR, *BY_ROW}, "a value and a number", given and not named),
            ({*UNARY, "cast"}, "one value", not given),
            (COMPARE.keys(), "a value and a value or number", given),
            ({"select"}, "a mask, a value, and a value or number", given and bool(self.mask)),
        )
        for operations, what, right in forms:
            if self.operation in operations:
                fits = right and (self.operation == "select" or not self.mask)
                return "" if fits else f"{self.operation} takes {what}"
        known = ", ".join(sorted(name for operations, *_ in forms for name in operations))
        return f"there is no operation {self.operation!r}; use one of {known}"


class Span(NamedTuple):
    """Where elements lie in slots of UB: ``rows`` of ``row``, ``apart`` from one to the next.

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
        first, apart = (self.bit, self.bits_apart) if bits == 1 else (self.first, self.apart)
        row = ceil_div(self.row * bits, 8)
        return slot.at(first * bits // 8, row, rows=self.rows, pitch=apart * bits // 8)


def is_mask(tensor: Tensor) -> bool:
    """Whether it holds bits."""
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
    ``last`` the value that a name means behind all steps. Values that are ``kept`` are written as
    they are, to the tensor of that name.
    """

    steps: tuple[Step, ...]
    values: Mapping[str, Value]
    homes: Mapping[str, int]
    registers: tuple[int, ...]
    last: Mapping[str, str]
    kept: Mapping[str, str]


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
        known = {one.name for one in (*self.reads, *self.vectors)}
        for step in self.steps:
            if step.fault:
                raise ArgumentError(f"{called}: {step}: {step.fault}")
            if missing := sorted({*step.reads} - known):
                raise ArgumentError(f"{called}: {step} reads {missing[0]}, which nothing made")
            known.add(step.result)
        made = {step.result for step in self.steps}
        unmade = sorted({one.name for one in (*self.writes, *self.rows)} - made)
        if missing := [*unmade, *sorted({*self.summed} - known)]:
            raise ArgumentError(f"{called}: no step makes {missing[0]}")
        if len(self.summed) != len(self.sums):
            raise ArgumentError(
                f"{called}: {len(self.sums)} sums of {len(self.summed)} values; name one for each"
            )
        for dtype in (self.compute, *(step.dtype for step in self.steps)):
            if dtype not in (FP16, FP32, None):
                raise ArgumentError(f"{called}: it computes in {dtype}; use fp16 or fp32")
        self._check_kinds(called)

    def _check_kinds(self, called: str) -> None:
        """Raise where a mask is needed and a value given, or the other way round."""
        values = self.order.values
        for one in self.writes:
            if self.order.last[one.name] in {x.name for x in self.reads if x.dtype == one.dtype}:
                raise ArgumentError(f"{called}: the steps convert nothing for {one.name}")
        for step in self.order.steps:
            if step.mask and values[step.mask].kind != "mask":
                raise ArgumentError(f"{called}: {step} takes {step.mask} as a mask, which is none")
            others = [one for one in step.reads if one != step.mask]
            kinds = {values[one].kind for one in others}
            if "row" in kinds and (len(kinds) > 1 or step.mask or step.operation in REDUCED):
                raise ArgumentError(f"{called}: {step} takes numbers of rows; spread them before")
            if masks := [one for one in others if values[one].kind == "mask"]:
                raise ArgumentError(f"{called}: {step} computes with the mask {masks[0]}")
        wants = {one.name: "mask" if is_mask(one) else "map" for one in self.writes}
        wants |= dict.fromkeys(self.summed, "map") | {one.name: "row" for one in self.rows}
        for name, want in wants.items():
            if (kind := values[self.order.last[name]].kind) != want:
                raise ArgumentError(f"{called}: {name} is a {kind}, where a {want} is needed")

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every one that it touches, once."""
        every = (*self.reads, *self.rows, *self.writes, *self.vectors, *self.sums)
        return tuple(dict.fromkeys(every))

    @cached_property
    def width(self) -> int:
        """Elements of a row, 0 where none is reduced."""
        return next((int(one.b) for one in self.steps if one.operation in BY_ROW), 0)

    @property
    def each_bits(self) -> int:
        """Bits of UB that an element takes, without sums: two slots of maps and rows, registers."""
        maps = sum(2 * bits_of(one) for one in (*self.reads, *self.writes))
        rows = ceil_div(64 * len(self.rows), self.width) if self.rows else 0
        return maps + rows + sum(self.order.registers) * 8

    @cached_property
    def order(self) -> Order:
        """What is done, and where values stay."""
        steps, values, last = self._named()
        kept = {
            last[one.name]: one.name
            for one in self.writes
            if is_mask(one) or values[last[one.name]].dtype == one.dtype
        } | {last[one.name]: one.name for one in self.rows}
        ends = {last[name]: len(steps) for name in self.summed}
        ends |= {last[one.name]: len(steps) for one in (*self.writes, *self.rows)}
        for number, step in enumerate(steps):
            for name in step.reads:
                ends[name] = max(ends.get(name, 0), number)
        homes: dict[str, int] = {}
        busy: list[int] = []  # per register, the last operation that reads it
        sizes: list[int] = []
        for number, step in enumerate(steps):
            value = values[step.result]
            if step.result in kept or value.kind == "vector":
                continue
            small = value.kind == "row" and self.width >= value.dtype.bytes
            size = 1 if small else value.dtype.bytes
            free = [i for i, end in enumerate(busy) if end < number]
            home = min(free, key=lambda i: abs(sizes[i] - size), default=len(busy))
            homes[step.result] = home
            busy[home : home + 1] = [ends.get(step.result, number)]
            sizes[home : home + 1] = [max([size, *sizes[home : home + 1]])]
        return Order(steps, values, homes, tuple(sizes), last, kept)

    def _named(self) -> tuple[tuple[Step, ...], dict[str, Value], dict[str, str]]:
        """Steps whose values have a name each, casts included; these; what names mean at last."""
        values = {
            one.name: Value("mask" if is_mask(one) else "map", one.dtype) for one in self.reads
        }
        values |= {one.name: Value("vector", one.dtype) for one in self.vectors}
        now = {name: name for name in values}
        steps: list[Step] = []

        def as_type(name: str, dtype: DType) -> str:
            value, cast = now[name], f"{now[name]} as {dtype}"
            if values[value].kind == "mask" or values[value].dtype == dtype:
                return value
            if cast not in values:
                values[cast] = values[value]._replace(dtype=dtype)
                steps.append(Step(cast, "cast", value, dtype=dtype))
            return cast

        for step in self.steps:
            dtype = step.dtype or self.compute
            if step.operation == "cast":
                now[step.result] = as_type(step.a, dtype)
                continue
            a, mask = as_type(step.a, dtype), step.mask and now[step.mask]
            b = as_type(step.b, dtype) if isinstance(step.b, str) and step.b else step.b
            result = step.result if step.result not in values else f"{step.result} {len(steps)}"
            operands = {values[one].kind for one in (a, b) if isinstance(one, str) and one}
            same = operands in ({"vector"}, {"row"}) and not step.mask
            kind = operands.pop() if same else "map"
            kind = "mask" if step.operation in COMPARE else kind
            kind = {**dict.fromkeys(REDUCED, "row"), "spread": "map"}.get(step.operation, kind)
            values[result] = Value(kind, dtype)
            now[step.result] = result
            steps.append(Step(result, step.operation, a, b, mask, dtype))
        last = now | {name: as_type(name, FP32) for name in self.summed}
        return tuple(steps), values, last


#: Operands of the steps over a span, by value; of vectors the channels of that span.
Places = dict[str, SlotRegion]


class Bench:
    """The buffers of an expression in UB: slots of ``elements`` for maps, ``bits`` for masks.

    A vector has ``channels`` numbers.
    """

    def __init__(
        self, expression: Expression, k: Language, elements: int, bits: int, channels: int
    ) -> None:
        self.expression, self.k, self.order = expression, k, expression.order

        def buffer(tensor: Tensor, suffix: str) -> BufferHandle:
            count = bits // 8 if is_mask(tensor) else elements
            count = elements // expression.width if tensor in expression.rows else count
            name = f"{tensor.name}_{suffix}"
            return k.buffer("UB", (count,), tensor.dtype, slots=2, name=name)

        self.reads = {one.name: buffer(one, "ub") for one in expression.reads}
        written = (*expression.writes, *expression.rows)
        self.writes = {one.name: buffer(one, "out_ub") for one in written}
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
            if values[step.result].kind == "vector":
                given = {
                    one: self.vectors[one].last().at(0, channels * values[one].dtype.bytes)
                    for one in step.reads
                }
                size = channels * values[step.result].dtype.bytes
                self._issue(step, self.vectors[step.result].next().at(0, size), given)

    def repeated(self, first: int, c0: int, span: Span) -> Places:
        """Every vector as an operand over a span: ``c0`` channels from ``first`` on, repeated."""
        count, places = span.rows * span.row // c0, {}
        for name, held in self.vectors.items():
            e = self.order.values[name].dtype.bytes
            places[name] = held.last().at(first * e, c0 * e, rows=count, pitch=0)
        return places

    def run(self, span: Span, places: Places, outputs: Mapping[str, Slot]) -> None:
        """Issue the steps over a span; ``places`` has what is read and gets what is made.

        ``outputs`` are slots of what is written, by name.
        """
        for step in self.order.steps:
            value = self.order.values[step.result]
            if value.kind == "vector":
                continue
            if name := self.order.kept.get(step.result):
                slot = outputs[name]
            else:
                slot = self.registers[self.order.homes[step.result]].next()
            bits = 1 if value.kind == "mask" else value.dtype.bytes * 8
            if value.kind == "row":
                places[step.result] = slot.at(0, span.row // self.expression.width * bits // 8)
            else:
                places[step.result] = span.of(slot, bits)
            self._issue(step, places[step.result], places)
        for one in self.expression.writes:
            name = self.order.last[one.name]
            if name not in self.order.kept:
                target = span.of(outputs[one.name], bits_of(one))
                self._cast(target, name, places, one.dtype)

    def _cast(self, target: SlotRegion, name: str, places: Places, to: DType) -> None:
        dtype, saturate = self.order.values[name].dtype, self.expression.saturate
        self.k.vec_cast(target, places[name], dtype, to, saturate=saturate)

    def _issue(self, step: Step, target: SlotRegion, places: Places) -> None:
        k, operation, a = self.k, step.operation, places[step.a]
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
