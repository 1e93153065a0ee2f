"""Clear a tensor: every vector core stores zeros from UB over its share.

UB <- 0                                          # V, once per core
for chunk of this core:  GM chunk <- UB          # MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import CLEAR_BYTES, clearing, working_cores
from npusim.kernels.parts.ub_room import piece
from npusim.language import Kernel, Language, Plan, Tasks, Tensor, ceil_div, in_runs, round_up


class Chunk(NamedTuple):
    """``size`` bytes of a target, the ``first`` of its core or a later one."""

    size: int
    first: bool
    target: int


@dataclass(frozen=True)
class MemSet(Kernel):
    """Fill ``target``, and ``more``, with zero bytes, on all cores or on ``few``: the fastest.

    Each core takes time to launch, in which others store.
    """

    target: Tensor
    few: bool = False
    more: tuple[Tensor, ...] = ()

    name: ClassVar[str] = "mem_set"
    library: ClassVar[tuple[str, ...]] = ("MemSet",)
    role: ClassVar[str] = "vector"

    tiling_text = f"chunk {CLEAR_BYTES}"

    def plan(self, k: Language, cores: int) -> Plan[Chunk]:
        most = piece(k, self.name, CLEAR_BYTES, 1, multiple=k.memory("UB").align_bytes)
        targets = self.target, *self.more

        def emit(chunk: Chunk) -> None:
            if chunk.first:
                k.vec_dup(zeros.next(), 0.0, self.target.dtype)
            target = targets[chunk.target]
            k.data_move(target.at(0, chunk.size, base="target"), zeros.last(), target.dtype)

        sizes = [target.size_bytes for target in targets]
        total = sum(sizes)
        # Small tensors are spread over all cores in pieces of whole 512 B, the GM granule.
        step = min(most, round_up(ceil_div(total, cores), 512))
        if self.few:  # equal pieces, as many for each core
            cores = k.decided(working_cores, cores, clearing(total, cores, most))
            each = ceil_div(total, cores)
            step = round_up(ceil_div(each, ceil_div(each, most)), 512)
        step = min(most, step)
        zeros = k.buffer("UB", (step,), None, name="zeros")
        start = np.concatenate([np.arange(0, size, step) for size in sizes])
        target = np.repeat(np.arange(len(sizes)), [ceil_div(size, step) for size in sizes])
        core = in_runs(len(start), cores)
        columns = {
            "size": np.minimum(step, np.array(sizes)[target] - start),
            "first": np.diff(core, prepend=-1) != 0,
            "target": target,
        }
        return Plan(Tasks(core, Chunk, columns, {"target": start}), emit)
