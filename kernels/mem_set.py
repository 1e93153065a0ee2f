"""Clear a tensor: every vector core stores zeros from UB over its share.

UB <- 0                                          # V, once per core
for chunk of this core:  GM chunk <- UB          # MTE3
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.dtypes import INT8
from npusim.integers import ceil_div
from npusim.isa.operands import Tensor
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

#: Largest store; long enough for full bandwidth (16 KiB and more) and small beside any UB.
CHUNK_BYTES = 16 * 1024


class MemSet(Kernel):
    """Fill ``target`` with zero bytes."""

    name: ClassVar[str] = "mem_set"
    role: ClassVar[str] = "vector"

    def __init__(self, target: Tensor) -> None:
        self.target = target
        self.tiling_text = f"chunk {CHUNK_BYTES}"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.target,)

    def units(self, cores: int) -> Units:
        size = self.target.size_bytes
        # Small tensors are spread over all cores in pieces of whole 512 B, the GM granule.
        chunk = min(CHUNK_BYTES, ceil_div(ceil_div(size, cores), 512) * 512)
        start = np.arange(0, size, chunk)
        core = np.arange(len(start)) * min(cores, len(start)) // len(start)
        first = np.diff(core, prepend=-1) != 0
        return Units(
            core,
            {"size": np.minimum(chunk, size - start), "first": first.astype(np.int64)},
            {"target": start},
        )

    def buffers(self, k: Language) -> None:
        self.zeros = k.buffer("UB", (CHUNK_BYTES,), INT8, name="zeros")

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        zeros = self.zeros.next() if unit.first else self.zeros.last()
        if unit.first:
            k.vec_dup(zeros.at(), 0.0, INT8)
        k.data_move(self.target.at(0, unit.size, base="target"), zeros.at(0, unit.size), INT8)
