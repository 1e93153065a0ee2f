"""Weighted sums along one axis: maps enlarged between their elements, and the gradient of that.

    out[p, o, q] = sum over the terms (i, weight) of o: weight * read[p, i, q]

Layouts: any that are (planes, axis, q) of one float type, with q in whole blocks of 32 B. Sums are
in fp32, in the order of the terms, and rounded once. The terms are known when the program is made.

for (planes, part of the outputs, part of q) of this core:             # one task
    UB image <- the inputs that the outputs rest on, as fp32           # MTE2, V
    UB term <- image * weight, of outputs alike in one instruction     # V
    UB sums += term                                                    # V, but for the first term
    GM out <- sums, rounded                                            # V, MTE3
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npusim.kernels.parts.room import Held, converted, declare
from npusim.kernels.parts.spread import Spread
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    FP32,
    ArgumentError,
    Device,
    GmRegion,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
    round_up,
)

#: Most elements of a row that a task has of q, and bytes of a task: its load has full bandwidth.
_ROW, _LOAD = 2048, 32 * 1024


class Run(NamedTuple):
    """Outputs of one weight: the first, how far to the next and its input, and how many."""

    weight: float
    output: int
    input: int
    steps: tuple[int, int]
    count: int


class Tile(NamedTuple):
    """``planes`` of a part of the outputs, by number, and ``size`` elements of q."""

    planes: int
    part: int
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
        share = max(128, round_up(ceil_div(planes * q, cores), 16))
        wide, some, step = min(q, _ROW, share), outputs, 1
        room = k.memory("UB").size_bytes
        while self._takes(some, step, wide) > room and some > 1:
            some = ceil_div(some, 2)
        while self._takes(some, step, wide) > room and wide > 16:
            wide = round_up(ceil_div(wide, 2), 16)
        if some == outputs and wide == q:
            whole = max(1, min(ceil_div(planes, cores), _LOAD // (inputs * q * 2)))
            step = max(
                n for n in range(1, whole + 1) if self._takes(some, n, wide) <= room or n < 2
            )
        nest = _Nest(self, k, declare(k, self._held(some, step, wide)), some)
        (plane, first, at), (run, _, size) = in_pieces((planes, step), (outputs, some), (q, wide))
        part, e = first // some, self.read.dtype.bytes
        begins = np.array([nest.reach(number)[0] for number in range(ceil_div(outputs, some))])
        bases = {
            "x": ((plane * inputs + begins[part]) * q + at) * e,
            "y": ((plane * outputs + first) * q + at) * e,
        }
        columns = {"planes": run, "part": part, "size": size}
        return Plan(Tasks(in_runs(len(plane), cores), Tile, columns, bases), nest.emit)

    def reach(self, first: int, count: int) -> tuple[int, int]:
        """First of the inputs that so many outputs rest on, and how many up to the last; or all."""
        if count >= len(self.terms):
            return 0, self.read.shape[1]
        found = [i for terms in self.terms[first : first + count] for i, _ in terms] or [0]
        return min(found), max(found) - min(found) + 1

    def _held(self, outputs: int, planes: int, row: int) -> dict[str, Held]:
        """What UB holds by name, where a task has so many outputs, planes and elements of q."""
        parts = range(0, len(self.terms), outputs)
        inputs = max(self.reach(first, outputs)[1] for first in parts) * planes * row
        made, dtype = outputs * planes * row, self.read.dtype
        held = {"image": Held(dtype, inputs, 2), "term": Held(FP32, made)}
        held["sums"] = Held(FP32, made, 2 if dtype == FP32 else 1)
        if dtype != FP32:
            held |= {"wide": Held(FP32, inputs), "narrow": Held(dtype, made, 2)}
        return held

    def _takes(self, outputs: int, planes: int, row: int) -> int:
        return sum(one.size for one in self._held(outputs, planes, row).values())


class _Nest:
    """The program of a tile, on the buffers of one core."""

    def __init__(self, kernel: Blend, k: Language, held: dict[str, Any], outputs: int) -> None:
        self.kernel, self.k, self.held, self.outputs = kernel, k, held, outputs

    def reach(self, part: int) -> tuple[int, int]:
        """The inputs of a part of the outputs."""
        return self.kernel.reach(part * self.outputs, self.outputs)

    def emit(self, u: Tile) -> None:
        """Load and widen the inputs, add term after term, store."""
        k, kernel, held, dtype = self.k, self.kernel, self.held, self.kernel.read.dtype
        _, inputs = self.reach(u.part)
        outputs = min(self.outputs, len(kernel.terms) - u.part * self.outputs)
        image = held["image"].next().at(0, u.planes * inputs * u.size * dtype.bytes)
        k.data_move(image, self._outside(kernel.read, "x", u, inputs), dtype)
        source = converted(k, image, (dtype, FP32), held.get("wide")).slot
        sums, size = held["sums"].next(), u.planes * outputs * u.size * FP32.bytes
        for number, runs in enumerate(self._runs(u.part, outputs)):
            target = sums if not number else held["term"].next()
            if sum(run.count for run in runs) < outputs:
                k.vec_dup(target.at(0, size), 0.0, FP32)
            for run in runs:
                self._scale(u, run, (target, outputs), (source, inputs))
            if number:
                k.vec_binary("add", sums.at(0, size), sums.at(0, size), target.at(0, size), FP32)
        types = FP32, dtype
        made = converted(k, sums.at(0, size), types, held.get("narrow"), saturate=kernel.saturate)
        k.data_move(self._outside(kernel.out, "y", u, outputs), made, dtype)

    def _outside(self, tensor: Tensor, base: str, u: Tile, count: int) -> GmRegion:
        """So many inputs or outputs of a tile in global memory."""
        e, q = tensor.dtype.bytes, tensor.shape[2]
        return tensor.at(0, u.size * e, base=base, rows=u.planes * count, pitch=q * e)

    def _scale(self, u: Tile, run: Run, to: tuple[Slot, int], of: tuple[Slot, int]) -> None:
        """The outputs of a run: those of a plane in one instruction, or one of every plane."""
        row = u.size * FP32.bytes

        def region(side: int, plane: int, number: int, rows: int, apart: int) -> SlotRegion:
            slot, count = (to, of)[side]
            first = (run.output, run.input)[side] + number * run.steps[side]
            return slot.at((plane * count + first) * row, row, rows=rows, pitch=apart * row)

        places: list[list[SlotRegion]]
        if run.count >= u.planes:
            places = [
                [region(side, plane, 0, run.count, run.steps[side]) for side in (0, 1)]
                for plane in range(u.planes)
            ]
        else:
            places = [
                [region(side, 0, number, u.planes, (to, of)[side][1]) for side in (0, 1)]
                for number in range(run.count)
            ]
        for target, source in places:
            self.k.vec_scalar("muls", target, source, run.weight, FP32)

    def _runs(self, part: int, outputs: int) -> Iterator[list[Run]]:
        """For the first, second, ... input of each output, the outputs of a part in runs."""
        first, (begin, _) = part * self.outputs, self.reach(part)
        terms = self.kernel.terms[first : first + outputs]
        for number in range(max(1, *map(len, terms))):
            alike: dict[float, list[tuple[int, int]]] = defaultdict(list)
            for output, inputs in enumerate(terms):
                for i, weight in inputs[number : number + 1]:
                    alike[weight].append((output, i - begin))
            yield [run for weight, pairs in alike.items() for run in _in_steps(weight, pairs)]


def _in_steps(weight: float, pairs: list[tuple[int, int]]) -> Iterator[Run]:
    """Pairs of outputs and inputs in runs that go up by equal steps, both of at least one."""
    while pairs:
        steps, count = (1, 1), 1
        if len(pairs) > 1:
            steps = pairs[1][0] - pairs[0][0], pairs[1][1] - pairs[0][1]
        while (
            count < len(pairs)
            and min(steps) > 0
            and (pairs[count][0] - pairs[count - 1][0], pairs[count][1] - pairs[count - 1][1])
            == steps
        ):
            count += 1
        yield Run(weight, *pairs[0], steps if count > 1 else (1, 1), count)
        pairs = pairs[count:]
