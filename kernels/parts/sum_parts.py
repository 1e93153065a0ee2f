"""Add the parts of a split accumulation in a fixed order: the deterministic end of a reduction.

out[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ...      fp32, part after part; rounded
                                                                once where out is narrower

for chunk of this core:                          # one task
    UB sum <- parts[0] chunk                     # MTE2
    for part in 1 ..:
        UB next <- parts[part] chunk             # MTE2
        UB sum += next                           # V
    UB narrow <- sum as the type of out          # V, where it is not fp32
    GM out chunk <- sum                          # MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

from npusim.kernels.estimate.streams import SUM_BYTES, Stream, summing
from npusim.kernels.parts.hand_over import with_meeting
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import converted, piece
from npusim.language import (
    FP32,
    ArgumentError,
    Device,
    Language,
    Plan,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
    round_up,
)


class Chunk(NamedTuple):
    """``size`` bytes of a part; none where the cores meet first."""

    size: int


class _Nest:
    """The program of a chunk, on buffers of ``count`` elements."""

    def __init__(self, kernel: SumParts, k: Language, count: int) -> None:
        self.kernel = kernel
        self.k = k
        self.part_bytes = prod(kernel.out.shape) * FP32.bytes
        self.dtype = kernel.out.dtype
        self.sums = k.buffer("UB", (count,), FP32, slots=2, name="sum")
        self.next_parts = k.buffer("UB", (count,), FP32, slots=2, name="part")
        self.narrow = None
        if self.dtype is not FP32:
            self.narrow = k.buffer("UB", (count,), self.dtype, slots=2, name="narrow")

    def emit(self, chunk: Chunk) -> None:
        """Add part after part, round, store; or let all cores meet."""
        k = self.k
        parts = self.kernel.parts
        if not chunk.size:
            k.core_barrier()
            return
        total = self.sums.next().at(0, chunk.size)
        k.data_move(total, parts.at(0, chunk.size, base="at"), FP32)
        for part in range(1, parts.shape[0]):
            addend = self.next_parts.next()
            k.data_move(addend, parts.at(part * self.part_bytes, chunk.size, base="at"), FP32)
            k.vec_binary("add", total, total, addend, FP32)
        total = converted(k, total, FP32, self.dtype, self.narrow)
        k.data_move(self.kernel.out.at(0, total.size, base="to"), total, self.dtype)


@dataclass(frozen=True)
class SumParts(Spread):
    """``parts`` (count, ...) fp32 summed over its first axis into ``out`` (...) of a float type.

    With ``meets`` all cores of the kernel that it is a part of meet before.
    """

    parts: Tensor
    out: Tensor
    meets: bool = False

    name: ClassVar[str] = "sum_parts"
    computes: ClassVar[str] = "weight"

    def __post_init__(self) -> None:
        parts = self.parts
        out = self.out
        if parts.shape[1:] != out.shape or parts.dtype is not FP32 or out.dtype.kind != "float":
            raise ArgumentError(
                f"sum_parts: {parts.name} is {parts.dtype} of {parts.shape}, {out.name} "
                f"{out.dtype} of {out.shape}; parts must be fp32 of (count, *out), out a float type"
            )

    @property
    def tiling_text(self) -> str:
        return f"{self.parts.shape[0]} parts, chunk {SUM_BYTES}"

    def stream(self, device: Device, cores: int) -> Stream:
        size = prod(self.out.shape) * FP32.bytes
        return summing(size, self.parts.shape[0], self.out.size_bytes, cores)

    def plan(self, k: Language, cores: int) -> Plan[Chunk]:
        part_bytes = prod(self.out.shape) * FP32.bytes
        dtype = self.out.dtype
        element = 4 * FP32.bytes
        if dtype is not FP32:
            element += 2 * dtype.bytes
        count = piece(k, self.name, SUM_BYTES // FP32.bytes, element, multiple=16)
        step = min(count * FP32.bytes, round_up(ceil_div(part_bytes, cores), 512))
        (start,), (sizes,) = in_pieces((part_bytes, step))
        tasks = Tasks(
            in_runs(len(start), cores),
            Chunk,
            {"size": sizes},
            {"at": start, "to": start // FP32.bytes * dtype.bytes},
        )
        if self.meets:
            tasks = with_meeting(tasks, cores, last=False)
        return Plan(tasks, _Nest(self, k, count).emit)
