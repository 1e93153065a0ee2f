"""What is done to a tile of a product between L0C and global memory, on chips where it passes UB.

for piece (columns of 16 channels x positions) of the tile:    # as large as UB allows
    UB maps, masks, vectors <- GM                              # MTE2
    UB product <- L0C, rounded to the output's type            # V
    for run of positions that follow each other:
        UB values <- steps                                     # V
        UB sums <- values, halved until one position is left   # V
    GM output, maps and masks <- UB                            # MTE3
    GM sums += UB                                              # MTE3, atomic

Maps are bit-identical to those of a kernel that stores the product and an element-wise one behind
it, which would round at the same places; sums are added up in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from npusim.base.records import replace
from npusim.kernels.parts.ub_room import piece
from npusim.kernels.vector.expression import (
    GRAIN,
    Bench,
    Expression,
    Places,
    Span,
    bits_of,
    is_mask,
)
from npusim.language import (
    FP32,
    ArgumentError,
    GmRegion,
    Language,
    Line,
    Slot,
    SlotRegion,
    Tensor,
    ceil_div,
    round_up,
)

#: What steps call the tile of the product, in the type of the output.
PRODUCT = "product"


@dataclass(frozen=True)
class Epilogue(Expression):
    """An expression over the tiles of an output; steps call what was multiplied ``PRODUCT``.

    The step that makes the output's name says what is stored; without one it is the product.
    ``reads`` and ``writes`` are what it reads and writes besides: maps of the output's shape and
    type, and masks. ``sums`` of role "inout" have to be cleared before; those of channels that only
    fill up a block are what the steps make of zeros. Steps do not see output positions that no
    input reaches.
    """

    def over(self, y: Tensor) -> Expression:
        """The whole expression for the output ``y``."""
        stored = (y,) if any(step.result == y.name for step in self.steps) else ()
        reads = (Tensor(PRODUCT, y.shape, y.dtype), *self.reads)
        return replace(self, reads=reads, writes=(*stored, *self.writes))

    def check_over(self, called: str, y: Tensor, channels: int) -> None:
        """Raise ``ArgumentError`` unless it fits an output of so many channels, in whole blocks."""
        for one in (*self.reads, *self.writes):
            shape = (ceil_div(prod(y.shape), 8),) if is_mask(one) else y.shape
            if one.shape != shape or (not is_mask(one) and one.dtype != y.dtype):
                raise ArgumentError(
                    f"{called}: {one.name} is {one.dtype} of shape {one.shape}; beside "
                    f"{y.name} it is {y.dtype} of {y.shape}, or a mask of "
                    f"{ceil_div(prod(y.shape), 8)} bytes"
                )
        for one in (*self.vectors, *self.sums):
            if one.shape != (channels,) or one.dtype != FP32:
                raise ArgumentError(
                    f"{called}: {one.name} is {one.dtype} of shape {one.shape}; it has to be fp32 "
                    f"of shape {(channels,)}"
                )
        self.over(y).check(called)


class Target(NamedTuple):
    """Where a tile goes: bytes behind the base "y", and from one block of channels to the next.

    Its matrix rows go to ``lines``; ``channel`` is its first one, behind the base "channel".
    """

    at: int
    plane: int
    lines: Sequence[Line]
    channel: int


class _Piece(NamedTuple):
    """``columns`` of 16 channels from ``column`` on, ``rows`` of the matrix from ``row`` on."""

    column: int
    columns: int
    row: int
    rows: int

    @property
    def apart(self) -> int:
        """Elements from one column to the next in UB."""
        return round_up(self.rows, 16) * 16


class _Run(NamedTuple):
    """A line of a piece and where its elements lie in UB."""

    line: Line
    span: Span


class EpilogueStore:
    """Stores tiles of at most ``m`` rows, a multiple of 16, and so many ``columns`` of 16.

    ``runs`` is the most lines of a tile. Raises ``ArgumentError`` where a FIX pipe drains L0C.
    """

    def __init__(
        self, k: Language, epilogue: Epilogue, y: Tensor, size: tuple[int, int], runs: int
    ) -> None:
        if k.has_path("L0C", "GM"):
            raise ArgumentError(
                f"{k.device_name} drains L0C to GM by its FIX pipe, which computes no epilogue; "
                "launch it as an element-wise kernel, or use a device whose tiles leave through UB"
            )
        self.k, self.y, self.expression = k, y, epilogue.over(y)
        (m, columns), sums, order = size, len(epilogue.sums), self.expression.order
        maps = (*self.expression.reads, *self.expression.writes)
        self.masked = any(map(is_mask, maps))
        # Of sums half a piece, and their ends; masks of a line begin in a block of their own.
        each = ceil_div(self.expression.each_bits, 8) + 2 * sums
        vectors = sum(one.kind == "vector" for one in order.values.values())
        extra = runs * GRAIN if self.masked else 0
        besides = (2 * vectors + 3 * sums) * columns * 64 + len(maps) * columns * extra // 4 + 512
        most = piece(k, "epilogue", m * columns * 16, each, multiple=GRAIN, besides=besides)
        self.rows = round_up(ceil_div(m, ceil_div(m, most // 16)), 16)
        self.columns = ceil_div(columns, ceil_div(columns, most // (self.rows * 16)))
        elements = self.columns * self.rows * 16
        bits = elements + self.columns * extra
        self.bench = Bench(self.expression, k, elements, bits, self.columns * 16)
        if sums:
            channels = sums * self.columns * 16
            half = sums * elements // 2 + channels
            self.halves = k.buffer("UB", (half,), FP32, name="halves_ub")
            self.totals = k.buffer("UB", (channels,), FP32, slots=2, name="totals_ub")

    def store(self, target: Target, c: Slot, m: int, n: int) -> None:
        """Y <- an ``m`` x ``n`` tile, in pieces."""
        columns = ceil_div(n, 16)
        starts = product(range(0, columns, self.columns), range(0, m, self.rows))
        for (column, row), lines in product(starts, _passes(target.lines)):
            width, rows = min(self.columns, columns - column), min(self.rows, m - row)
            part = _Piece(column, width, row, rows)
            if runs := self._runs(part, lines):
                self._store(part, runs, target, c, m)

    def _store(self, part: _Piece, runs: Sequence[_Run], target: Target, c: Slot, m: int) -> None:
        """One piece: load, drain, compute, store."""
        k, bench, expression, e = self.k, self.bench, self.expression, self.y.dtype.bytes
        slots = {one.name: bench.reads[one.name].next() for one in expression.reads}
        for one in expression.reads[1:]:
            for outside, inside in self._places(one, slots[one.name], part, target, runs):
                k.data_move(inside, outside, one.dtype)
        for one in expression.vectors:
            size, at = part.columns * 64, target.channel + part.column * 64
            held = bench.vectors[one.name].next().at(0, size)
            k.data_move(held, one.at(at, size, base="channel"), FP32)
        bench.prepare(part.columns * 16)
        tile = ceil_div(m, 16) * 1024
        at, size = part.column * tile + part.row * 64, part.rows * 64
        held = slots[PRODUCT].at(0, part.rows * 16 * e, rows=part.columns, pitch=part.apart * e)
        source = c.at(at, size, rows=part.columns, pitch=tile)
        k.fixpipe_to_ub(held, source, part.rows, part.columns * 16, self.y.dtype)
        outputs = {name: buffer.next() for name, buffer in bench.writes.items()}
        self._compute(part, target, runs, slots, outputs)
        slots = {self.y.name: slots[PRODUCT], **outputs}
        for one in dict.fromkeys((self.y, *expression.writes)):
            for outside, inside in self._places(one, slots[one.name], part, target, runs):
                k.data_move(outside, inside, one.dtype)

    def _runs(self, part: _Piece, lines: Sequence[Line]) -> list[_Run]:
        """What the piece has of the lines; masks lie line behind line, in blocks of their own."""
        clipped = []
        for line in lines:
            first = max(line.first, part.row)
            end = min(line.first + line.rows, part.row + part.rows)
            if first < end:
                offset = line.offset + (first - line.first) * line.pitch
                clipped.append(Line(first - part.row, end - first, offset, line.pitch))
        bits = [round_up(line.rows * 16, GRAIN) for line in clipped]
        begins, total = [sum(bits[:i]) for i in range(len(bits))], sum(bits)
        spans = [
            Span(part.columns, line.rows * 16, part.apart, total, line.first * 16, bit)
            for line, bit in zip(clipped, begins, strict=True)
        ]
        return [_Run(line, span) for line, span in zip(clipped, spans, strict=True)]

    def _places(
        self, tensor: Tensor, slot: Slot, part: _Piece, target: Target, runs: Sequence[_Run]
    ) -> Iterator[tuple[GmRegion, SlotRegion]]:
        """The pieces of a map or mask in global memory, and where each lies in a slot."""
        bits, whole = bits_of(tensor), self.y.dtype.bytes * 8
        block, base = 2 * bits, "bits" if is_mask(tensor) else "y"
        plane = target.plane * bits // whole
        for line, span in runs:
            at = (target.at + line.offset) * bits // whole + part.column * plane
            if line.rows == 1 or line.pitch * bits // whole == block:
                size = line.rows * block
                outside = tensor.at(at, size, base=base, rows=part.columns, pitch=plane)
                yield outside, span.of(slot, bits)
                continue
            if is_mask(tensor):
                raise ArgumentError(
                    f"the bits of {tensor.name} lie apart, where positions of a strided gradient "
                    "are computed one phase at a time; read the map that they were made of, and "
                    "compare it"
                )
            for j in range(part.columns):
                first = span._replace(first=span.first + j * span.apart, rows=1).of(slot, bits)
                inside = slot.at(first.offset - slot.first, block, rows=line.rows, pitch=block)
                rows = {"rows": line.rows, "pitch": line.pitch}
                yield tensor.at(at + j * plane, block, base=base, **rows), inside

    def _compute(
        self,
        part: _Piece,
        target: Target,
        runs: Sequence[_Run],
        slots: Mapping[str, Slot],
        outputs: Mapping[str, Slot],
    ) -> None:
        """Steps and sums of all runs; with vectors column by column."""
        bench, sums, reads = self.bench, self.expression.sums, self.expression.reads
        spans = [run.span for run in runs] if self.masked else _joined(runs)
        totals = self.totals.next() if sums else None
        for i, whole in enumerate(spans):
            step = 1 if bench.vectors else part.columns
            for column in range(0, part.columns, step):
                span = whole._replace(
                    rows=step,
                    first=whole.first + column * whole.apart,
                    bit=whole.bit + column * whole.bits_apart,
                )
                places = {one.name: span.of(slots[one.name], bits_of(one)) for one in reads}
                places |= bench.repeated(column * 16, 16, span)
                bench.run(span, places, outputs)
                if totals is not None:
                    self._halve(span, places, totals.behind(column * 64), part, first=i == 0)
        if totals is not None:
            size, at = part.columns * 64, target.channel + part.column * 64
            for i, one in enumerate(sums):
                total = totals.at(i * size, size)
                self.k.data_move(one.at(at, size, base="channel"), total, FP32, atomic=True)

    def _halve(
        self, span: Span, places: Places, totals: Slot, part: _Piece, *, first: bool
    ) -> None:
        """Totals += the summed values, halved until a position is left; all sums at once."""
        k, expression = self.k, self.expression
        left, half = ceil_div(span.row, 32), span.row // 32
        pitch, count = left * 64, len(expression.sums) * span.rows
        held = self.halves.next()

        def some(position: int, positions: int, rows: int = count, row: int = 0) -> SlotRegion:
            at = row * pitch + position * 64
            return held.at(at, positions * 64, rows=rows, pitch=pitch)

        for i, name in enumerate(expression.summed):
            whole = places[expression.order.last[name]]
            value = whole.slot.behind(whole.offset - whole.slot.first)
            rows = {"rows": span.rows, "pitch": whole.pitch}
            row = i * span.rows
            if half:
                ahead = value.at(0, half * 64, **rows)
                behind = value.at(left * 64, half * 64, **rows)
                k.vec_binary("add", some(0, half, span.rows, row), ahead, behind, FP32)
            if left > half:
                odd = value.at(half * 64, 64, **rows)
                k.vec_scalar("adds", some(half, 1, span.rows, row), odd, 0.0, FP32)
        while left > 1:
            half = left // 2
            k.vec_binary("add", some(0, half), some(0, half), some(left - half, half), FP32)
            left -= half
        for i in range(len(expression.sums)):
            total = totals.at(i * part.columns * 64, span.rows * 64)
            ends = some(0, 1, span.rows, i * span.rows)
            if first:
                k.vec_scalar("adds", total, ends, 0.0, FP32)
            else:
                k.vec_binary("add", total, total, ends, FP32)


def _passes(lines: Sequence[Line]) -> list[list[Line]]:
    """Lines in groups that share no rows of the tile.

    Images that were stacked share outputs between them where these read nothing but padding.
    """
    passes: list[list[Line]] = []
    for line in lines:
        fit = (one for one in passes if one[-1].first + one[-1].rows <= line.first)
        if (one := next(fit, None)) is None:
            passes.append([line])
        else:
            one.append(line)
    return passes


def _joined(runs: Sequence[_Run]) -> list[Span]:
    """Spans of lines that follow each other in UB, each as one; masks are made and used within."""
    spans: list[Span] = []
    for _, span in runs:
        row, first = span.row, span.first
        if spans and spans[-1].first + spans[-1].row == first:
            before = spans.pop()
            row, first = before.row + row, before.first
        bits_apart = round_up(row, GRAIN)
        spans.append(span._replace(row=row, first=first, bit=0, bits_apart=bits_apart))
    return spans
