"""Weighted sums along one axis whose weights repeat: maps enlarged by a large factor, and back.

    out[p, first + j * A + a, q] = sum over the terms of a: weight * read[p, i + j * B, q]

for each a < A and period j, with terms (i, weight); outputs before the first and behind the last
period have terms of their own. Layouts are those of ``npusim.kernels.vector.blend``, of which this
is the form for few planes and short rows: an instruction has one term of the same output in many
periods, where that one has a term of one output. Programs have the size of a period, not of the
outputs, and sums are the same.

for (periods of a plane, or planes at an end; part of the outputs of a period) of this core:  # task
    for part of the inputs that the outputs rest on:
        UB image <- the part in all periods of the task, as fp32   # MTE2, V
        for term in it:                                            # V
            UB term <- image * weight, in all periods; the first of an output is the sum
            UB sums += term
    GM out <- sums, rounded                                        # V, MTE3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import UbBuffer, converted, declare
from npusim.language import (
    FP32,
    ArgumentError,
    BufferHandle,
    CapacityError,
    Device,
    GmRegion,
    IntArray,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
)

#: The inputs that each output rests on, with their weights.
Terms = tuple[tuple[tuple[int, float], ...], ...]

#: Bytes of a piece in global memory from which rows of it move at full bandwidth.
_PIECE_BYTES = 512


class Periods(NamedTuple):
    """Weights that repeat: so many ``times`` a period of as many outputs as ``phases`` has.

    Inputs are numbered as in the first period; in each later one they lie ``inputs`` further.
    Outputs ``before`` and ``after`` the periods have terms of their own.
    """

    phases: Terms
    times: int
    inputs: int
    before: Terms = ()
    after: Terms = ()

    @property
    def outputs(self) -> int:
        """All outputs."""
        return len(self.before) + self.times * len(self.phases) + len(self.after)

    @property
    def listed(self) -> int:
        """Outputs whose terms are listed: those of a period, and those before and after."""
        return len(self.before) + len(self.phases) + len(self.after)


class Strip(NamedTuple):
    """Outputs with the same ``terms`` on many lines: periods of each plane, or planes.

    Inputs and outputs of neighbouring lines lie so many apart. There are ``planes`` times the
    lines, or one. Outputs begin at ``first``.
    """

    terms: Terms
    first: int
    lines: int
    inputs_apart: int
    outputs_apart: int
    planes: int


class Tile(NamedTuple):
    """``outputs`` from ``first`` on of a strip, by number, on so many ``lines``."""

    strip: int
    first: int
    outputs: int
    lines: int


class _Cut(NamedTuple):
    """Most lines, outputs and inputs that UB holds at once; inputs side by side are all loaded."""

    lines: int
    outputs: int
    inputs: int


@dataclass(frozen=True)
class BlendPeriods(Spread):
    """``read`` (planes, inputs, q) into ``out`` (planes, outputs, q), with these ``periods``.

    ``saturate`` keeps fp16 results finite (see ``Device.saturates``). Raises ``ArgumentError`` for
    other shapes or types.
    """

    read: Tensor
    out: Tensor
    periods: Periods
    saturate: bool = False

    name: ClassVar[str] = "blend_periods"

    def __post_init__(self) -> None:
        x = self.read
        y = self.out
        periods = self.periods
        planes, inputs, q = x.shape
        behind = (periods.times - 1) * periods.inputs
        reached = [i for terms in (*periods.before, *periods.after) for i, _ in terms]
        reached += [i + behind for terms in periods.phases for i, _ in terms]
        last = max(reached, default=0)
        if y.shape != (planes, periods.outputs, q) or last >= inputs or periods.times < 1:
            raise ArgumentError(
                f"blend_periods: {x.name} has shape {x.shape}, {y.name} {y.shape}; with "
                f"{periods.times} periods and {periods.outputs} outputs in all, of inputs up to "
                f"{last}, they must be (planes, inputs, q) and (planes, outputs, q)"
            )
        if x.dtype != y.dtype or x.dtype.kind != "float" or q * x.dtype.bytes % 32 or not planes:
            raise ArgumentError(
                f"blend_periods: {x.name} is {x.dtype}, {y.name} {y.dtype}, with {q} elements in a "
                "row; both must be of one float type, in rows of whole 32 B, not empty"
            )

    @property
    def tiling_text(self) -> str:
        periods = self.periods
        return f"{periods.times} periods of {periods.inputs} to {len(periods.phases)}"

    @cached_property
    def strips(self) -> tuple[Strip, ...]:
        """The outputs before the periods, of the periods and behind them."""
        periods = self.periods
        planes = self.read.shape[0]
        inputs = self.read.shape[1]
        outputs = self.out.shape[1]
        first = len(periods.before)
        behind = first + periods.times * len(periods.phases)
        period = len(periods.phases)
        strips = (
            Strip(periods.before, 0, planes, inputs, outputs, 1),
            Strip(periods.phases, first, periods.times, periods.inputs, period, planes),
            Strip(periods.after, behind, planes, inputs, outputs, 1),
        )
        return tuple(strip for strip in strips if strip.terms)

    def stream(self, device: Device, cores: int) -> Stream:
        q = self.read.shape[2]
        terms = sum(
            len(each) * strip.lines * strip.planes for strip in self.strips for each in strip.terms
        )
        size = terms * q * FP32.bytes
        tasks = np.maximum(np.arange(1, cores + 1), ceil_div(self.out.size_bytes, 32 * 1024))
        vector = (("muls", size), ("add", size))
        return Stream(self.read.size_bytes, self.out.size_bytes, tasks, vector)

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        cuts = [self._cut(k, strip, cores) for strip in self.strips]
        tiles = [self._tiles(number, cut) for number, cut in enumerate(cuts)]
        columns = {name: _joined(columns[name] for columns, _ in tiles) for name in Tile._fields}
        bases = {name: _joined(bases[name] for _, bases in tiles) for name in ("x", "y")}
        buffers = declare(k, self._largest(cuts))
        tasks = Tasks(in_runs(len(bases["x"]), cores), Tile, columns, bases)
        return Plan(tasks, lambda tile: self._emit(k, buffers, cuts, tile))

    def _largest(self, cuts: list[_Cut]) -> dict[str, UbBuffer]:
        """Buffers in UB that hold the tiles of every strip."""
        largest: dict[str, UbBuffer] = {}
        for strip, cut in zip(self.strips, cuts, strict=True):
            for name, buffer in self._buffers(strip, cut).items():
                elements = max(buffer.elements, largest.get(name, buffer).elements)
                largest[name] = buffer._replace(elements=elements)
        return largest

    def _cut(self, k: Language, strip: Strip, cores: int) -> _Cut:
        """Outputs and inputs that fill a piece of memory, and the most lines that fit with them.

        No fewer tasks than cores, as far as there are lines.
        """
        room = k.memory("UB").size_bytes
        piece = self.read.shape[2] * self.read.dtype.bytes
        side_by_side = max(1, _PIECE_BYTES // piece)
        outputs = min(len(strip.terms), side_by_side)
        parts = ceil_div(len(strip.terms), outputs)
        share = ceil_div(strip.lines, max(1, ceil_div(cores, parts * strip.planes)))
        widest = max(
            reach(strip, first, outputs)[1] for first in range(0, len(strip.terms), outputs)
        )
        cut = _Cut(share, outputs, min(widest, max(side_by_side, 2)))
        while self._takes(strip, cut) > room and cut.lines > 1:
            cut = cut._replace(lines=ceil_div(cut.lines, 2))
        if self._takes(strip, cut) > room:
            raise CapacityError(
                f"{self.name}: {k.device_name} has {room} B of UB (memories.UB.size), the smallest "
                f"tile takes {self._takes(strip, cut)} B; use a device with a larger UB"
            )
        return cut

    def _buffers(self, strip: Strip, cut: _Cut) -> dict[str, UbBuffer]:
        """The buffers in UB for tiles of a strip."""
        dtype = self.read.dtype
        q = self.read.shape[2]
        loaded = image_inputs(strip, cut.lines, cut.inputs) * q
        written = cut.lines * cut.outputs * q
        image = UbBuffer(dtype, loaded, 2)
        term = UbBuffer(FP32, cut.lines * q)
        if dtype == FP32:
            return {"image": image, "term": term, "sums": UbBuffer(FP32, written, 2)}
        return {
            "image": image,
            "term": term,
            "wide": UbBuffer(FP32, loaded),
            "narrow": UbBuffer(dtype, written, 2),
            "sums": UbBuffer(FP32, written),
        }

    def _takes(self, strip: Strip, cut: _Cut) -> int:
        """Bytes of UB that a tile takes."""
        return sum(buffer.size for buffer in self._buffers(strip, cut).values())

    def _tiles(self, number: int, cut: _Cut) -> tuple[dict[str, IntArray], dict[str, IntArray]]:
        """The tiles of a strip, and the first bytes that each reads and writes."""
        strip = self.strips[number]
        row = self.read.shape[2] * self.read.dtype.bytes
        (plane, line, first), (_, lines, outputs) = in_pieces(
            (strip.planes, 1), (strip.lines, cut.lines), (len(strip.terms), cut.outputs)
        )
        columns = {
            "strip": np.full(len(plane), number),
            "first": first,
            "outputs": outputs,
            "lines": lines,
        }
        read = plane * self.read.shape[1] + line * strip.inputs_apart
        written = plane * self.out.shape[1] + line * strip.outputs_apart + strip.first + first
        return columns, {"x": read * row, "y": written * row}

    def _emit(
        self, k: Language, buffers: Mapping[str, BufferHandle], cuts: list[_Cut], u: Tile
    ) -> None:
        """Load and widen part after part of the inputs, add term after term, store."""
        strip = self.strips[u.strip]
        dtype = self.read.dtype
        row = self.read.shape[2] * FP32.bytes
        sums = buffers["sums"].next()
        term = buffers["term"].next().at(0, u.lines * row)
        begun: set[int] = set()  # outputs that have a term already
        for output in range(u.outputs):
            if not strip.terms[u.first + output]:
                k.vec_dup(self._sum(sums, u, output), 0.0, FP32)
        for begin, count in parts(strip, u.first, u.outputs, cuts[u.strip].inputs):
            image = self._load(k, buffers["image"].next(), strip, u, begin, count)
            wide = converted(k, image, dtype, FP32, buffers.get("wide")).slot
            pitch = row * (strip.inputs_apart if overlaps(strip, count) else count)
            for output in range(u.outputs):
                total = self._sum(sums, u, output)
                for i, weight in strip.terms[u.first + output]:
                    if begin <= i < begin + count:
                        values = wide.at((i - begin) * row, row, rows=u.lines, pitch=pitch)
                        _add_term(k, total, term, values, weight, first=output not in begun)
                        begun.add(output)
        result = sums.at(0, u.lines * u.outputs * row)
        narrow = buffers.get("narrow")
        result = converted(k, result, FP32, dtype, narrow, saturate=self.saturate)
        k.data_move(self._written(strip, u), result, dtype)

    def _load(
        self, k: Language, slot: Slot, strip: Strip, u: Tile, begin: int, count: int
    ) -> SlotRegion:
        """Bring ``count`` inputs of every line from ``begin`` on; lines that overlap as one."""
        size = self.read.shape[2] * self.read.dtype.bytes
        inputs = image_inputs(strip, u.lines, count)
        if overlaps(strip, count):
            source = self.read.at(begin * size, inputs * size, base="x")
        else:
            pitch = strip.inputs_apart * size
            source = self.read.at(begin * size, count * size, base="x", rows=u.lines, pitch=pitch)
        image = slot.at(0, inputs * size)
        k.data_move(image, source, self.read.dtype)
        return image

    def _written(self, strip: Strip, u: Tile) -> GmRegion:
        """The outputs of a tile in global memory."""
        size = self.read.shape[2] * self.read.dtype.bytes
        if strip.outputs_apart == u.outputs:  # lines lie side by side
            return self.out.at(0, u.lines * u.outputs * size, base="y")
        pitch = strip.outputs_apart * size
        return self.out.at(0, u.outputs * size, base="y", rows=u.lines, pitch=pitch)

    def _sum(self, sums: Slot, u: Tile, output: int) -> SlotRegion:
        """The sums of an output on all lines of a tile."""
        row = self.read.shape[2] * FP32.bytes
        return sums.at(output * row, row, rows=u.lines, pitch=u.outputs * row)


def _add_term(
    k: Language,
    total: SlotRegion,
    term: SlotRegion,
    values: SlotRegion,
    weight: float,
    *,
    first: bool,
) -> None:
    """Total <- the weighted values if they are the ``first``, else total += these."""
    if first:
        k.vec_scalar("muls", total, values, weight, FP32)
        return
    k.vec_scalar("muls", term, values, weight, FP32)
    k.vec_binary("add", total, total, term, FP32)


def reach(strip: Strip, first: int, count: int) -> tuple[int, int]:
    """First of the inputs that so many outputs of a line rest on, and how many up to the last."""
    used = [i for terms in strip.terms[first : first + count] for i, _ in terms] or [0]
    return min(used), max(used) - min(used) + 1


def parts(strip: Strip, first: int, outputs: int, inputs: int) -> Iterator[tuple[int, int]]:
    """The inputs that some outputs rest on, at most so many together: first of each part, count.

    None where the outputs rest on no input.
    """
    if not any(strip.terms[first : first + outputs]):
        return
    begin, count = reach(strip, first, outputs)
    end = begin + count
    for start in range(begin, end, inputs):
        yield start, min(inputs, end - start)


def overlaps(strip: Strip, inputs: int) -> bool:
    """True if so many inputs of one line reach those of the next: they lie side by side."""
    return inputs >= strip.inputs_apart


def _joined(columns: Iterable[IntArray]) -> IntArray:
    """Columns of several strips as one."""
    joined: IntArray = np.concatenate([*columns])
    return joined


def image_inputs(strip: Strip, lines: int, inputs: int) -> int:
    """Inputs that are loaded for so many lines of ``inputs``."""
    if overlaps(strip, inputs):
        return strip.inputs_apart * (lines - 1) + inputs
    return lines * inputs
