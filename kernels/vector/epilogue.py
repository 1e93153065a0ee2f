"""Epilogues: work on a tile of a product between L0C and global memory, where it passes UB.

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

#: The name that steps have for the tile of the product, in the type of the output.
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
        mask = (ceil_div(prod(y.shape), 8),)
        for tensor in (*self.reads, *self.writes):
            shape = mask if is_mask(tensor) else y.shape
            if tensor.shape != shape or (not is_mask(tensor) and tensor.dtype != y.dtype):
                raise ArgumentError(
                    f"{called}: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; beside "
                    f"{y.name} it is {y.dtype} of {y.shape}, or a mask of {mask[0]} bytes"
                )
        for tensor in (*self.vectors, *self.sums):
            if tensor.shape != (channels,) or tensor.dtype != FP32:
                raise ArgumentError(
                    f"{called}: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; it has to "
                    f"be fp32 of shape {(channels,)}"
                )
        self.over(y).check(called)


class Target(NamedTuple):
    """The place of a tile: ``offset`` behind the base "y", ``plane`` between channel blocks; bytes.

    Its matrix rows go to ``lines``; ``channel`` is its first one, behind the base "channel".
    """

    offset: int
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
    """A line of a piece, and its elements in UB."""

    line: Line
    span: Span


class _Halves(NamedTuple):
    """Rows of positions of 16 fp32 channels in a slot, ``pitch`` bytes from one to the next."""

    slot: Slot
    pitch: int

    def part(self, position: int, positions: int, rows: int, row: int = 0) -> SlotRegion:
        """Some positions of some rows, from ``row`` on."""
        first = row * self.pitch + position * 64
        return self.slot.at(first, positions * 64, rows=rows, pitch=self.pitch)


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
        self.k = k
        self.y = y
        self.expression = epilogue.over(y)
        self.masked = any(map(is_mask, (*self.expression.reads, *self.expression.writes)))
        m, columns = size
        sums = len(epilogue.sums)
        mask_bits = runs * GRAIN if self.masked else 0
        most = self._most(m, columns, sums, mask_bits)
        self.rows = round_up(ceil_div(m, ceil_div(m, most // 16)), 16)
        self.columns = ceil_div(columns, ceil_div(columns, most // (self.rows * 16)))
        elements = self.columns * self.rows * 16
        bits = elements + self.columns * mask_bits
        self.bench = Bench(self.expression, k, elements, bits, self.columns * 16)
        if sums:
            channels = sums * self.columns * 16
            half = sums * elements // 2 + channels
            self.halves = k.buffer("UB", (half,), FP32, name="halves_ub")
            self.totals = k.buffer("UB", (channels,), FP32, slots=2, name="totals_ub")

    def _most(self, m: int, columns: int, sums: int, mask_bits: int) -> int:
        """Elements of the largest piece; masks of a line begin in a block of their own."""
        # Of sums half a piece, and their ends.
        element = ceil_div(self.expression.each_bits, 8) + 2 * sums
        values = self.expression.order.values.values()
        vectors = sum(value.kind == "vector" for value in values)
        maps = len(self.expression.reads) + len(self.expression.writes)
        besides = (2 * vectors + 3 * sums) * columns * 64
        besides += maps * columns * mask_bits // 4 + 512
        return piece(self.k, "epilogue", m * columns * 16, element, multiple=GRAIN, besides=besides)

    def store(self, target: Target, c: Slot, m: int, n: int) -> None:
        """Y <- an ``m`` x ``n`` tile, in pieces."""
        columns = ceil_div(n, 16)
        starts = product(range(0, columns, self.columns), range(0, m, self.rows))
        for (column, row), lines in product(starts, _passes(target.lines)):
            part = _Piece(column, min(self.columns, columns - column), row, min(self.rows, m - row))
            runs = self._runs(part, lines)
            if runs:
                self._store(part, runs, target, c, m)

    def _store(self, part: _Piece, runs: Sequence[_Run], target: Target, c: Slot, m: int) -> None:
        """One piece: load, drain, compute, store."""
        bench = self.bench
        expression = self.expression
        slots = {tensor.name: bench.reads[tensor.name].next() for tensor in expression.reads}
        for tensor in expression.reads[1:]:
            places = self._places(tensor, slots[tensor.name], part, target, runs)
            for outside, inside in places:
                self.k.data_move(inside, outside, tensor.dtype)
        self._load_vectors(part, target)
        self._drain(part, slots[PRODUCT], c, m)
        outputs = {name: buffer.next() for name, buffer in bench.writes.items()}
        self._compute(part, target, runs, slots, outputs)
        stored = {self.y.name: slots[PRODUCT], **outputs}
        for tensor in dict.fromkeys((self.y, *expression.writes)):
            places = self._places(tensor, stored[tensor.name], part, target, runs)
            for outside, inside in places:
                self.k.data_move(outside, inside, tensor.dtype)

    def _load_vectors(self, part: _Piece, target: Target) -> None:
        """Bring the vectors of a piece's channels, and make those that rest on them."""
        size = part.columns * 64
        first = target.channel + part.column * 64
        for tensor in self.expression.vectors:
            vector = self.bench.vectors[tensor.name].next().at(0, size)
            self.k.data_move(vector, tensor.at(first, size, base="channel"), FP32)
        self.bench.prepare(part.columns * 16)

    def _drain(self, part: _Piece, slot: Slot, c: Slot, m: int) -> None:
        """UB product <- a piece of the tile in L0C, in the output's type."""
        element = self.y.dtype.bytes
        column = ceil_div(m, 16) * 1024
        values = slot.at(0, part.rows * 16 * element, rows=part.columns, pitch=part.apart * element)
        sums = c.at(
            part.column * column + part.row * 64, part.rows * 64, rows=part.columns, pitch=column
        )
        self.k.fixpipe_to_ub(values, sums, part.rows, part.columns * 16, self.y.dtype)

    def _runs(self, part: _Piece, lines: Sequence[Line]) -> list[_Run]:
        """The runs of lines in a piece; masks lie line behind line, in blocks of their own."""
        clipped = []
        for line in lines:
            first = max(line.first, part.row)
            end = min(line.first + line.rows, part.row + part.rows)
            if first < end:
                offset = line.offset + (first - line.first) * line.pitch
                clipped.append(Line(first - part.row, end - first, offset, line.pitch))
        all_bits = sum(round_up(line.rows * 16, GRAIN) for line in clipped)
        runs = []
        bit = 0
        for line in clipped:
            row = line.rows * 16
            span = Span(part.columns, row, part.apart, all_bits, line.first * 16, bit)
            runs.append(_Run(line, span))
            bit += round_up(row, GRAIN)
        return runs

    def _places(
        self, tensor: Tensor, slot: Slot, part: _Piece, target: Target, runs: Sequence[_Run]
    ) -> Iterator[tuple[GmRegion, SlotRegion]]:
        """The pieces of a map or mask in global memory, each with its place in a slot."""
        bits = bits_of(tensor)
        of_y = self.y.dtype.bytes * 8
        block = 2 * bits
        base = "bits" if is_mask(tensor) else "y"
        plane = target.plane * bits // of_y
        for line, span in runs:
            first = (target.offset + line.offset) * bits // of_y + part.column * plane
            pitch = line.pitch * bits // of_y
            if line.rows == 1 or pitch == block:
                size = line.rows * block
                outside = tensor.at(first, size, base=base, rows=part.columns, pitch=plane)
                yield outside, span.of(slot, bits)
                continue
            if is_mask(tensor):
                raise ArgumentError(
                    f"the bits of {tensor.name} lie apart, where positions of a strided gradient "
                    "are computed one phase at a time; read the map that they were made of, and "
                    "compare it"
                )
            for j in range(part.columns):
                column = span._replace(first=span.first + j * span.apart, rows=1).of(slot, bits)
                start = column.offset - slot.first
                inside = slot.at(start, block, rows=line.rows, pitch=block)
                outside = tensor.at(
                    first + j * plane, block, base=base, rows=line.rows, pitch=line.pitch
                )
                yield outside, inside

    def _compute(
        self,
        part: _Piece,
        target: Target,
        runs: Sequence[_Run],
        slots: Mapping[str, Slot],
        outputs: Mapping[str, Slot],
    ) -> None:
        """Steps and sums of all runs; with vectors column by column."""
        bench = self.bench
        reads = self.expression.reads
        spans = [run.span for run in runs] if self.masked else _joined(runs)
        totals = self.totals.next() if self.expression.sums else None
        step = 1 if bench.vectors else part.columns
        for run, column in product(range(len(spans)), range(0, part.columns, step)):
            run_span = spans[run]
            span = run_span._replace(
                rows=step,
                first=run_span.first + column * run_span.apart,
                bit=run_span.bit + column * run_span.bits_apart,
            )
            places = {t.name: span.of(slots[t.name], bits_of(t)) for t in reads}
            places |= bench.repeated(column * 16, 16, span)
            bench.run(span, places, outputs)
            if totals is not None:
                self._halve(span, places, totals.behind(column * 64), part, first=run == 0)
        if totals is not None:
            self._add_totals(part, target, totals)

    def _add_totals(self, part: _Piece, target: Target, totals: Slot) -> None:
        """GM sums += the totals of a piece."""
        size = part.columns * 64
        first = target.channel + part.column * 64
        for i, tensor in enumerate(self.expression.sums):
            total = totals.at(i * size, size)
            self.k.data_move(tensor.at(first, size, base="channel"), total, FP32, atomic=True)

    def _halve(
        self, span: Span, places: Places, totals: Slot, part: _Piece, *, first: bool
    ) -> None:
        """Totals += the summed values, halved until a position is left; all sums at once."""
        k = self.k
        expression = self.expression
        positions = ceil_div(span.row, 32)
        count = len(expression.sums)
        halves = _Halves(self.halves.next(), positions * 64)
        for i, name in enumerate(expression.summed):
            values = places[expression.order.last[name]]
            self._first_half(values, span, halves, i * span.rows)
        every = count * span.rows
        while positions > 1:
            half = positions // 2
            target = halves.part(0, half, every)
            k.vec_binary("add", target, target, halves.part(positions - half, half, every), FP32)
            positions -= half
        for i in range(count):
            total = totals.at(i * part.columns * 64, span.rows * 64)
            ends = halves.part(0, 1, span.rows, i * span.rows)
            if first:
                k.vec_scalar("adds", total, ends, 0.0, FP32)
            else:
                k.vec_binary("add", total, total, ends, FP32)

    def _first_half(self, values: SlotRegion, span: Span, halves: _Halves, row: int) -> None:
        """Halve the values of one sum into its ``halves``, from ``row`` on."""
        k = self.k
        half = span.row // 32
        positions = ceil_div(span.row, 32)
        slot = values.slot.behind(values.offset - values.slot.first)
        pitch = values.pitch
        if half:
            ahead = slot.at(0, half * 64, rows=span.rows, pitch=pitch)
            behind = slot.at(positions * 64, half * 64, rows=span.rows, pitch=pitch)
            k.vec_binary("add", halves.part(0, half, span.rows, row), ahead, behind, FP32)
        if positions > half:
            odd = slot.at(half * 64, 64, rows=span.rows, pitch=pitch)
            k.vec_scalar("adds", halves.part(half, 1, span.rows, row), odd, 0.0, FP32)


def _passes(lines: Sequence[Line]) -> list[list[Line]]:
    """Lines in groups that share no rows of the tile.

    Images that were stacked share outputs between them where these read nothing but padding.
    """
    passes: list[list[Line]] = []
    for line in lines:
        for group in passes:
            if group[-1].first + group[-1].rows <= line.first:
                group.append(line)
                break
        else:
            passes.append([line])
    return passes


def _joined(runs: Sequence[_Run]) -> list[Span]:
    """Spans of lines that follow each other in UB, each as one; masks are made and used within."""
    spans: list[Span] = []
    for _, span in runs:
        row = span.row
        first = span.first
        if spans and spans[-1].first + spans[-1].row == first:
            before = spans.pop()
            row += before.row
            first = before.first
        bits_apart = round_up(row, GRAIN)
        spans.append(span._replace(row=row, first=first, bit=0, bits_apart=bits_apart))
    return spans
