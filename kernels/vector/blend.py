"""Weighted sums along one axis: maps enlarged between their elements, and the gradient of that.

    out[p, o, q] = sum over the terms (i, weight) of o: weight * read[p, i, q]

Layouts: any that are (planes, axis, q) of one float type, with q in whole blocks of 32 B. Sums are
in fp32, in the order of the terms, and rounded once. The terms are known when the program is made.

for (planes, part of the outputs, part of q) of this core:             # one task
    UB image <- the inputs that the outputs rest on, as fp32           # MTE2, V
    for output of the part, for its terms:                             # V
        UB term <- image * weight, in all planes; the first is the sum
        UB sums += term
    GM out <- sums, rounded                                            # V, MTE3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import UbBuffer, converted, declare
from npusim.language import (
    FP32,
    ArgumentError,
    BufferHandle,
    Device,
    DType,
    GmRegion,
    Language,
    Plan,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
    round_up,
)

#: Most elements of a row that a task has of q, and bytes of a task: its load has full bandwidth.
_ROW = 2048
_LOAD = 32 * 1024


def widest_step(device: Device, cores: int, read: Tensor, outputs: int) -> int:
    """Planes of which UB holds all inputs and ``outputs``, at most the share of a core; 1 at least.

    An instruction has the rows of so many planes.
    """
    planes, inputs, q = read.shape
    row = min(q, _ROW)
    buffers = _buffers(read.dtype, inputs * row, outputs * row, row)
    plane = sum(buffer.size for buffer in buffers.values())
    return max(1, min(device.memory("UB").size_bytes // plane, ceil_div(planes, cores)))


def _buffers(dtype: DType, read: int, written: int, row: int) -> dict[str, UbBuffer]:
    """The buffers in UB for so many elements that are read and written, and a term of a row."""
    image = UbBuffer(dtype, read, 2)
    term = UbBuffer(FP32, row)
    if dtype == FP32:
        return {"image": image, "term": term, "sums": UbBuffer(FP32, written, 2)}
    return {
        "image": image,
        "term": term,
        "wide": UbBuffer(FP32, read),
        "narrow": UbBuffer(dtype, written, 2),
        "sums": UbBuffer(FP32, written),
    }


class _Cut(NamedTuple):
    """Planes, outputs and elements of q in a tile."""

    planes: int
    outputs: int
    row: int


class Tile(NamedTuple):
    """``planes`` of so many ``outputs`` from the ``first`` on, and ``size`` elements of q."""

    planes: int
    first: int
    outputs: int
    size: int


@dataclass(frozen=True)
class Blend(Spread):
    """``read`` (planes, inputs, q) into ``out`` (planes, outputs, q).

    ``terms`` are the inputs that each output rests on, with their weights. ``saturate`` keeps fp16
    results finite (see ``Device.saturates``). Raises ``ArgumentError`` for other shapes or types.
    """

    read: Tensor
    out: Tensor
    terms: tuple[tuple[tuple[int, float], ...], ...]
    saturate: bool = False

    name: ClassVar[str] = "blend"

    def __post_init__(self) -> None:
        x = self.read
        y = self.out
        planes, inputs, q = x.shape
        last = max((i for terms in self.terms for i, _ in terms), default=0)
        if y.shape != (planes, len(self.terms), q) or last >= inputs:
            raise ArgumentError(
                f"blend: {x.name} has shape {x.shape}, {y.name} {y.shape}; with terms of "
                f"{len(self.terms)} outputs, of inputs up to {last}, they must be "
                "(planes, inputs, q) and (planes, outputs, q)"
            )
        if x.dtype != y.dtype or x.dtype.kind != "float" or q * x.dtype.bytes % 32 or not planes:
            raise ArgumentError(
                f"blend: {x.name} is {x.dtype}, {y.name} {y.dtype}, with {q} elements in a row; "
                "both must be of one float type, in rows of whole 32 B, not empty"
            )

    @property
    def tiling_text(self) -> str:
        return f"{self.read.shape[1]} to {len(self.terms)}"

    def stream(self, device: Device, cores: int) -> Stream:
        size = sum(map(len, self.terms)) * self.read.shape[0] * self.read.shape[2] * FP32.bytes
        tasks = np.maximum(np.arange(1, cores + 1), ceil_div(self.out.size_bytes, _LOAD))
        vector = (("muls", size), ("add", size))
        return Stream(self.read.size_bytes, self.out.size_bytes, tasks, vector)

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        planes, inputs, q = self.read.shape
        outputs = len(self.terms)
        element = self.read.dtype.bytes
        cut = self._cut(k.memory("UB").size_bytes, cores)
        (plane, first, column), (run, count, size) = in_pieces(
            (planes, cut.planes), (outputs, cut.outputs), (q, cut.row)
        )
        begins = [self.reach(start, cut.outputs)[0] for start in range(0, outputs, cut.outputs)]
        begin = np.array(begins)[first // cut.outputs]
        columns = {"planes": run, "first": first, "outputs": count, "size": size}
        bases = {
            "x": ((plane * inputs + begin) * q + column) * element,
            "y": ((plane * outputs + first) * q + column) * element,
        }
        tasks = Tasks(in_runs(len(plane), cores), Tile, columns, bases)
        buffers = declare(k, self._buffers(cut))
        return Plan(tasks, lambda tile: self._emit(k, buffers, tile))

    def _cut(self, room: int, cores: int) -> _Cut:
        """The largest tiles that fit so many bytes: all outputs and long rows before planes."""
        planes, _, q = self.read.shape
        share = max(128, round_up(ceil_div(planes * q, cores), 16))
        cut = _Cut(1, len(self.terms), min(q, _ROW, share))
        while self._takes(cut) > room and cut.outputs > 1:
            cut = cut._replace(outputs=ceil_div(cut.outputs, 2))
        while self._takes(cut) > room and cut.row > 16:
            cut = cut._replace(row=round_up(ceil_div(cut.row, 2), 16))
        if cut.outputs < len(self.terms) or cut.row < q:
            return cut
        larger = (cut._replace(planes=n) for n in range(2, ceil_div(planes, cores) + 1))
        return max((each for each in larger if self._takes(each) <= room), default=cut)

    def reach(self, first: int, count: int) -> tuple[int, int]:
        """First of the inputs that so many outputs rest on, and how many up to the last; or all."""
        if count >= len(self.terms):
            return 0, self.read.shape[1]
        inputs = [i for terms in self.terms[first : first + count] for i, _ in terms] or [0]
        return min(inputs), max(inputs) - min(inputs) + 1

    def _buffers(self, cut: _Cut) -> dict[str, UbBuffer]:
        """The buffers in UB of a task."""
        starts = range(0, len(self.terms), cut.outputs)
        inputs = max(self.reach(first, cut.outputs)[1] for first in starts)
        row = cut.planes * cut.row
        return _buffers(self.read.dtype, inputs * row, cut.outputs * row, row)

    def _takes(self, cut: _Cut) -> int:
        """Bytes of UB that a task takes."""
        return sum(buffer.size for buffer in self._buffers(cut).values())

    def _emit(self, k: Language, buffers: Mapping[str, BufferHandle], u: Tile) -> None:
        """Load and widen the inputs, add term after term, store."""
        dtype = self.read.dtype
        row = u.size * FP32.bytes
        begin, inputs = self.reach(u.first, u.outputs)
        image = buffers["image"].next().at(0, u.planes * inputs * u.size * dtype.bytes)
        k.data_move(image, self._outside(self.read, "x", u, inputs), dtype)
        source = converted(k, image, dtype, FP32, buffers.get("wide")).slot
        sums = buffers["sums"].next()
        term = buffers["term"].next().at(0, row, rows=u.planes, pitch=row)
        for output, terms in enumerate(self.terms[u.first : u.first + u.outputs]):
            total = sums.at(output * row, row, rows=u.planes, pitch=u.outputs * row)
            if not terms:
                k.vec_dup(total, 0.0, FP32)
            for i, weight in terms:
                values = source.at((i - begin) * row, row, rows=u.planes, pitch=inputs * row)
                if i == terms[0][0]:
                    k.vec_scalar("muls", total, values, weight, FP32)
                else:
                    k.vec_scalar("muls", term, values, weight, FP32)
                    k.vec_binary("add", total, total, term, FP32)
        result = sums.at(0, u.planes * u.outputs * row)
        narrow = buffers.get("narrow")
        result = converted(k, result, FP32, dtype, narrow, saturate=self.saturate)
        k.data_move(self._outside(self.out, "y", u, u.outputs), result, dtype)

    def _outside(self, tensor: Tensor, base: str, u: Tile, count: int) -> GmRegion:
        """So many inputs or outputs of a tile in global memory."""
        element = tensor.dtype.bytes
        pitch = tensor.shape[2] * element
        return tensor.at(0, u.size * element, base=base, rows=u.planes * count, pitch=pitch)
