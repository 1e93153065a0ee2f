"""The tile sizes of the matmul kernel, and what a product's tiling is made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from npusim.kernels.estimate.checks import check_tiling
from npusim.kernels.parts.tile_order import ORDERS, Order
from npusim.language import FP16, FP32, ArgumentError, Device, DType


class Shape(NamedTuple):
    """A product: sizes, types of operands and result, the cube's rate, and how often it occurs.

    It ``splits`` where parts of K may add up in its result, which one without parts stores in the
    type ``single`` if that is another; the bias of one that is ``biased`` has room in BT for the
    columns of a tile. ``turned``: whether A is stored K x M, and B N x K;
    ``blocked``: both as NZ.
    """

    m: int
    k: int
    n: int
    dtype: DType = FP16
    out: DType = FP32
    math: str = "fp16"
    groups: int = 1
    splits: bool = False
    biased: bool = False
    single: DType | None = None
    turned: tuple[bool, bool] = (False, False)
    blocked: bool = False

    @property
    def unit(self) -> int:
        """Elements of which tiles are multiples: whole fractals, and whole columns of NZ."""
        return max(16, 32 // self.dtype.bytes)


@dataclass(frozen=True, kw_only=True)
class Tiling(Order):
    """One mmad is base_m x base_k x base_n; a slab brings step_ka (B: step_kb) blocks to L1.

    ``unit_flag`` overlaps a tile's last mmad with its drain, and the drain with the next tile.
    ``preload`` asks for each slab one slab ahead; ``b_before_a`` copies B first; ``full_load_a``
    keeps all of K of A in L1 while the rows stay the same. ``stagger_k`` lets every core begin its
    walk along K elsewhere. ``barrier`` drains all pipes after each tile. ``through_ub`` stores over
    UB. ``l1_halves`` puts the slots of an operand into different halves of L1. One copy of scales
    serves ``step_scale`` base blocks (0: as many as a slab of A). ``paired`` puts the slabs of A
    and B into one slot, handed over as one. At most so many ``cores`` work (0: all).
    """

    base_m: int
    base_n: int
    base_k: int
    step_ka: int = 4
    step_kb: int = 4
    l1a_slots: int = 2
    l1b_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    unit_flag: bool = False
    preload: bool = False
    b_before_a: bool = False
    full_load_a: bool = False
    stagger_k: bool = False
    barrier: bool = False
    through_ub: bool = False
    l1_halves: bool = False
    step_scale: int = 0
    paired: bool = False
    cores: int = 0

    def __post_init__(self) -> None:
        check_tiling(
            self,
            sixteens=("base_m", "base_n", "base_k"),
            positive=(
                *("step_ka", "step_kb", "l1a_slots", "l1b_slots", "l0_slots", "l0c_slots"),
                *("tail_m", "tail_n"),
            ),
        )
        self.check_order("step_scale")
        if self.preload and min(self.l1a_slots, self.l1b_slots) < 2:
            raise ArgumentError(
                f"tiling preload with {self.l1a_slots} slots for A and {self.l1b_slots} for B: the "
                "slab in use would be overwritten; give both 2 slots"
            )
        if self.paired and (self.step_ka, self.l1a_slots) != (self.step_kb, self.l1b_slots):
            raise ArgumentError(
                f"tiling paired with steps {self.step_ka}+{self.step_kb} and slots "
                f"{self.l1a_slots}+{self.l1b_slots}: A and B share slots; give both the same"
            )
        alone = self.preload or self.stagger_k or self.paired or self.single_core_k
        if self.full_load_a and alone:
            raise ArgumentError(
                "tiling full_load_a keeps all of K of A in one slab: it goes with none of preload, "
                "stagger_k, paired and single_core_k"
            )

    def __str__(self) -> str:
        switches = (
            *("unit_flag", "preload", "b_before_a", "full_load_a", "stagger_k", "barrier"),
            *("through_ub", "l1_halves", "paired"),
        )
        on = "".join(f", {name.replace('_', ' ')}" for name in switches if getattr(self, name))
        on += f", K in parts of {self.single_core_k}" if self.single_core_k else ""
        return (
            f"base {self.base_m}x{self.base_n}x{self.base_k}, step {self.step_ka}+{self.step_kb}, "
            f"slots L1 {self.l1a_slots}+{self.l1b_slots} L0 {self.l0_slots} L0C {self.l0c_slots}"
            f"{on}"
        )


def order_of(shape: Shape, device: Device, share: float = 1) -> Mapping[str, Any]:
    """Order of tiles: by windows where a ``share`` of the L2 lacks room for both operands."""
    size = shape.groups * (shape.m + shape.n) * shape.k * shape.dtype.bytes
    return {} if device.l2 is None or device.l2.has_room(size / share) else ORDERS[-1]
