"""What cores have to do with each other in global memory: whether their order can matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npusim.integers import IntArray
from npusim.isa.operands import GmRegion
from npusim.program.program import Program


@dataclass(frozen=True)
class Sharing:
    """``apart``: no core can see what another does, so that only stores may have to be ordered.

    Tensors in ``constant`` are never stored to, those in ``ordered`` by several tasks in the
    same place.
    """

    apart: bool
    constant: frozenset[str]
    ordered: frozenset[str]


def sharing_of(program: Program, tensors: Mapping[str, npt.NDArray[np.uint8]]) -> Sharing:
    """How the cores of ``program`` share ``tensors``, its tensors as bytes."""
    loads: set[str] = set()
    stores: set[str] = set()
    meet = False
    for template in program.templates:
        for instruction in template.instructions:
            meet = meet or instruction.between_cores
            loads |= {r.tensor.name for r in instruction.reads() if isinstance(r, GmRegion)}
            stores |= {r.tensor.name for r in instruction.writes() if isinstance(r, GmRegion)}
    seen = any(np.may_share_memory(tensors[a], tensors[b]) for a in loads for b in stores)
    aliased = any(np.may_share_memory(tensors[a], tensors[b]) for a in stores for b in stores - {a})
    if meet or seen or aliased:
        return Sharing(False, frozenset(), frozenset())
    ordered = frozenset(name for name in stores if _overlap(program, name))
    return Sharing(True, frozenset(loads), ordered)


def _overlap(program: Program, name: str) -> bool:
    """Whether two stores into a tensor touch the same byte."""
    hulls, rows = [], []
    for region, offsets in _stores(program, name):
        starts = offsets[:, None] + np.arange(region.rows) * region.pitch
        rows.append((starts.reshape(-1), region.row_bytes))
        hulls.append((offsets, (region.rows - 1) * region.pitch + region.row_bytes))
    return not _disjoint(hulls) and not _disjoint(rows)


def _stores(program: Program, name: str) -> Iterator[tuple[GmRegion, IntArray]]:
    """Regions of a tensor that templates store to, with their byte offsets in every task."""
    of = np.array([v.template for v in program.variants], np.int64)
    template_of = np.concatenate([of[core.variants] for core in program.cores])
    table = np.concatenate([core.bases for core in program.cores])
    for t, template in enumerate(program.templates):
        bases = dict(zip(program.base_names, table[template_of == t].T, strict=True))
        zero = np.zeros(np.count_nonzero(template_of == t), np.int64)
        for instruction in template.instructions:
            for region in instruction.writes():
                if isinstance(region, GmRegion) and region.tensor.name == name:
                    yield region, region.offset + bases.get(region.base, zero)


def _disjoint(pieces: list[tuple[IntArray, int]]) -> bool:
    """Whether no two pieces (starts, length) of bytes overlap."""
    starts = np.concatenate([starts for starts, _ in pieces])
    ends = np.concatenate([starts + length for starts, length in pieces])
    order = np.argsort(starts)
    return bool((ends[order][:-1] <= starts[order][1:]).all())
