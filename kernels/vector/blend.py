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
_ROW, _LOAD = 2048, 32 * 1024


def widest_step(device: Device, cores: int, read: Tensor, outputs: int) -> int:
    """Planes of which UB holds all inputs and ``outputs``, at most the share of a core; 1 at least.

    An instruction has the rows of so many planes.
    """
    planes, inputs, q = read.shape
    row = min(q, _ROW)
    held = _held(read.dtype, inputs * row, outputs * row, row)
    each = sum(one.size for one in held.values())
    return max(1, min(device.memory("UB").size_bytes // each, ceil_div(planes, cores)))


def _held(dtype: DType, read: int, made: int, row: int) -> dict[str, UbBuffer]:
    """What UB holds by name: elements that are read and made in one type, and a term of a row."""
    held = {"image": UbBuffer(dtype, read, 2), "term": UbBuffer(FP32, row)}
    if dtype != FP32:
        held |= {"wide": UbBuffer(FP32, read), "narrow": UbBuffer(dtype, made, 2)}
    return held | {"sums": UbBuffer(FP32, made, 1 if dtype != FP32 else 2)}


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
        x, y = self.read, self.out
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
        (planes, inputs, q), outputs = self.read.shape, len(self.terms)
        room, e = k.memory("UB").size_bytes, self.read.dtype.bytes
        share = max(128, round_up(ceil_div(planes * q, cores), 16))
        wide, some, step = min(q, _ROW, share), outputs, 1
        while self._takes(some, step, wide) > room and some > 1:
            some = ceil_div(some, 2)
        while self._takes(some, step, wide) > room and wide > 16:
            wide = round_up(ceil_div(wide, 2), 16)
        if some == outputs and wide == q:
            steps = range(2, ceil_div(planes, cores) + 1)
            step = max((n for n in steps if self._takes(some, n, wide) <= room), default=1)
        (plane, first, at), (run, count, size) = in_pieces(
            (planes, step), (outputs, some), (q, wide)
        )
        begins = np.array([self.reach(one, some)[0] for one in range(0, outputs, some)])
        bases = {
            "x": ((plane * inputs + begins[first // some]) * q + at) * e,
            "y": ((plane * outputs + first) * q + at) * e,
        }
        columns = {"planes": run, "first": first, "outputs": count, "size": size}
        tasks = Tasks(in_runs(len(plane), cores), Tile, columns, bases)
        held = declare(k, self._held(some, step, wide))
        return Plan(tasks, lambda tile: self._emit(k, held, tile))

    def reach(self, first: int, count: int) -> tuple[int, int]:
        """First of the inputs that so many outputs rest on, and how many up to the last; or all."""
        if count >= len(self.terms):
            return 0, self.read.shape[1]
        found = [i for terms in self.terms[first : first + count] for i, _ in terms] or [0]
        return min(found), max(found) - min(found) + 1

    def _held(self, outputs: int, planes: int, row: int) -> dict[str, UbBuffer]:
        """What UB holds by name, where a task has so many outputs, planes and elements of q."""
        parts = range(0, len(self.terms), outputs)
        inputs = max(self.reach(first, outputs)[1] for first in parts) * planes * row
        return _held(self.read.dtype, inputs, outputs * planes * row, planes * row)

    def _takes(self, outputs: int, planes: int, row: int) -> int:
        return sum(one.size for one in self._held(outputs, planes, row).values())

    def _emit(self, k: Language, held: Mapping[str, BufferHandle], u: Tile) -> None:
        """Load and widen the inputs, add term after term, store."""
        dtype, row, saturate = self.read.dtype, u.size * FP32.bytes, self.saturate
        begin, inputs = self.reach(u.first, u.outputs)
        image = held["image"].next().at(0, u.planes * inputs * u.size * dtype.bytes)
        k.data_move(image, self._outside(self.read, "x", u, inputs), dtype)
        source = converted(k, image, dtype, FP32, held.get("wide")).slot
        sums, term = held["sums"].next(), held["term"].next().at(0, row, rows=u.planes, pitch=row)
        for output, terms in enumerate(self.terms[u.first : u.first + u.outputs]):
            total = sums.at(output * row, row, rows=u.planes, pitch=u.outputs * row)
            if not terms:
                k.vec_dup(total, 0.0, FP32)
            for i, weight in terms:
                given = source.at((i - begin) * row, row, rows=u.planes, pitch=inputs * row)
                k.vec_scalar("muls", total if i == terms[0][0] else term, given, weight, FP32)
                if i != terms[0][0]:
                    k.vec_binary("add", total, total, term, FP32)
        made = sums.at(0, u.planes * u.outputs * row)
        made = converted(k, made, FP32, dtype, held.get("narrow"), saturate=saturate)
        k.data_move(self._outside(self.out, "y", u, u.outputs), made, dtype)

    def _outside(self, tensor: Tensor, base: str, u: Tile, count: int) -> GmRegion:
        """So many inputs or outputs of a tile in global memory."""
        e, q = tensor.dtype.bytes, tensor.shape[2]
        return tensor.at(0, u.size * e, base=base, rows=u.planes * count, pitch=q * e)
