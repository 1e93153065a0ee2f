"""Parts that layout conversions share: the problem, strided moves, and cutting work into tasks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from npusim.language import ArgumentError, IntArray, Language, Slot, Tensor, ceil_div, round_up
from npusim.problem.layouts import group_plan

KINDS = ("to_blocked", "from_blocked", "to_fracz", "to_fracz_transposed", "from_fracz")

#: Tasks smaller than this cost more in start-ups than they win by overlapping, in bytes.
SMALL_TASK = 16 * 1024

#: Cores with less to convert take longer to start than to work, in bytes.
SMALL_SHARE = 4 * 1024


class Conversion(Struct, frozen=True, kw_only=True):
    """A conversion: one of ``KINDS``, with ``c0`` elements per block; groups of the weight."""

    kind: str
    c0: int
    groups: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArgumentError(
                f"conversion kind is {self.kind!r}; it is one of {', '.join(KINDS)}"
            )
        if self.c0 not in (8, 16):
            raise ArgumentError(f"conversion {self.kind}: c0 is {self.c0}; it must be 8 or 16")

    @property
    def loads_plain(self) -> bool:
        """True if the source is the plain tensor."""
        return self.kind.startswith("to_")

    @property
    def maps(self) -> bool:
        """True if feature maps are converted, not weights."""
        return self.kind.endswith("blocked")

    def __str__(self) -> str:
        return self.kind

    def blocked_shape(self, plain: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the blocked tensor that belongs to a plain one; 6HD, or FRACTAL_Z_3D's axes."""
        if not 3 <= len(plain) <= 5 or min(plain) < 1:
            raise ArgumentError(
                f"conversion {self.kind}: the plain tensor has shape {plain}; it needs 3 to 5 axes "
                "(two of channels and batch, then depth, height, width) of at least 1"
            )
        a, b, *rest = plain
        depth, height, width = (1,) * (3 - len(rest)) + tuple(rest)
        if self.maps:
            return (a, depth, ceil_div(b, self.c0), height, width, self.c0)
        plan = group_plan(b * self.groups, a, self.groups, self.c0)
        lanes = plan.real_groups * depth * height * width
        if self.kind == "to_fracz_transposed":
            rows = ceil_div(plan.cin1_g * self.c0, 16)
            return (lanes * (plan.cout_g // self.c0), rows, 16, self.c0)
        return (lanes * plan.cin1_g, plan.cout_g // 16, 16, self.c0)


class Pieces(NamedTuple):
    """One strided move: ``rows`` pieces of ``size`` bytes, at offsets and pitches in GM and UB."""

    rows: int
    size: int
    gm: int
    gm_pitch: int
    ub: int
    ub_pitch: int


def move(k: Language, tensor: Tensor, slot: Slot, p: Pieces, *, store: bool) -> None:
    """Load or store pieces; the tensor's offsets count from the task's base of its name."""
    rows, size = (1, p.rows * p.size) if p.gm_pitch == p.ub_pitch == p.size else (p.rows, p.size)
    gm = tensor.at(p.gm, size, base=tensor.name, rows=rows, pitch=p.gm_pitch)
    ub = slot.at(p.ub, size, rows=rows, pitch=p.ub_pitch)
    if store:
        k.data_move(gm, ub, tensor.dtype)
    else:
        k.data_move(ub, gm, tensor.dtype)


def most_in_task(size: int, total: int, slot_bytes: int, cores: int) -> int:
    """Pieces of ``size`` bytes in a task, of ``total`` bytes on so many cores; at least 1.

    Several tasks per core if that leaves them large, one if not.
    """
    share = max(SMALL_SHARE, ceil_div(total, cores))
    wanted = max(share // 4, min(share, SMALL_TASK))
    return max(1, min(slot_bytes // size, ceil_div(wanted, size)))


def unit_counts(total: int, slot_bytes: int, cores: int) -> IntArray:
    """About the number of such tasks of ``total`` bytes, for 1, 2, ... ``cores`` cores."""
    share = np.maximum(SMALL_SHARE, total // np.arange(1, cores + 1))
    wanted = np.maximum(share // 4, np.minimum(share, SMALL_TASK))
    counts: IntArray = -(-total // np.minimum(slot_bytes, wanted))
    return counts


def even(total: int, most: int, multiple: int = 1) -> int:
    """Largest of the equal parts of ``total``, none above ``most``; a multiple (so is most)."""
    size = ceil_div(total, ceil_div(total, most))
    return min(total, round_up(size, multiple))
