"""Add the parts of a split accumulation in a fixed order: the deterministic end of a reduction.

out[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ...      fp32, part after part; rounded
                                                                once where out is narrower

for chunk of this core:                          # one *unit*
    UB sum <- parts[0] chunk                     # MTE2
    for part in 1 ..:
        UB next <- parts[part] chunk             # MTE2
        UB sum += next                           # V
    UB narrow <- sum as the type of out          # V, where it is not fp32
    GM out chunk <- sum                          # MTE3
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.dtypes import FP32
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import Tensor
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

#: Largest chunk: full bandwidth, and four of them fit the smallest UB.
CHUNK_BYTES = 8 * 1024


class SumParts(Kernel):
    """``parts`` (count, ...) fp32 summed over its first axis into ``out`` (...) of a float type."""

    name: ClassVar[str] = "sum_parts"
    role: ClassVar[str] = "vector"

    def __init__(self, parts: Tensor, out: Tensor) -> None:
        if parts.shape[1:] != out.shape or parts.dtype is not FP32 or out.dtype.kind != "float":
            raise ArgumentError(
                f"sum_parts: {parts.name} is {parts.dtype} of {parts.shape}, {out.name} "
                f"{out.dtype} of {out.shape}; parts must be fp32 of (count, *out), out a float type"
            )
        self.parts, self.out = parts, out
        self.size = prod(out.shape) * FP32.bytes  # of one part
        self.tiling_text = f"{parts.shape[0]} parts, chunk {CHUNK_BYTES}"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.parts, self.out)

    def units(self, cores: int) -> Units:
        size = self.size
        chunk = min(CHUNK_BYTES, ceil_div(ceil_div(size, cores), 512) * 512)
        start = np.arange(0, size, chunk)
        core = np.arange(len(start)) * min(cores, len(start)) // len(start)
        into = start // FP32.bytes * self.out.dtype.bytes
        return Units(core, {"size": np.minimum(chunk, size - start)}, {"at": start, "to": into})

    def buffers(self, k: Language) -> None:
        self.sums = k.buffer("UB", (CHUNK_BYTES // 4,), FP32, slots=2, name="sum")
        self.nexts = k.buffer("UB", (CHUNK_BYTES // 4,), FP32, slots=2, name="part")
        if self.out.dtype is not FP32:
            kind = self.out.dtype
            self.narrow = k.buffer("UB", (CHUNK_BYTES // 4,), kind, slots=2, name="narrow")

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        total = self.sums.next().at(0, unit.size)
        k.data_move(total, self.parts.at(0, unit.size, base="at"), FP32)
        for part in range(1, self.parts.shape[0]):
            more = self.nexts.next().at(0, unit.size)
            offset = part * self.size
            k.data_move(more, self.parts.at(offset, unit.size, base="at"), FP32)
            k.vec_binary("add", total, total, more, FP32)
        if self.out.dtype is not FP32:
            wide, size = total, unit.size // FP32.bytes * self.out.dtype.bytes
            total = self.narrow.next().at(0, size)
            k.vec_cast(total, wide, FP32, self.out.dtype)
        k.data_move(self.out.at(0, total.size, base="to"), total, self.out.dtype)
