"""The tile sizes of the matmul kernel, and sizes that are good at once.

Every base tile that fits gets a closed-form estimate of the kernel's time: rounds of tiles over
the cores, each the slowest of cube, MTE1 and MTE2 plus the drain; the least wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from npusim.kernels.parts.tile_order import ORDERS, Order
from npusim.kernels.tilings.checks import check_tiling
from npusim.kernels.tilings.costs import way_out
from npusim.kernels.tilings.fit import cube_sizes, most_rows, no_tile
from npusim.language import FP16, FP32, ArgumentError, Device, DType, ceil_div, round_up


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
        self.check_order("step_scale", "cores")
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


#: Places of slabs and tiles whose rows are looked at; a block has so many of the smallest parts.
_SEEN = 4

_SIDES = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512)


def auto_tiling(shape: Shape, device: Device, cores: int) -> Tiling:
    """The tiling of a product with the least estimate.

    Raises ``CapacityError`` if not even the smallest tile fits the device's buffers.
    """
    candidates = list(_candidates(shape, device))
    if not candidates:
        raise no_tile(device)
    times = [_estimate(shape, t, device, cores) for t in candidates]
    return candidates[times.index(min(times))]


def order_of(shape: Shape, device: Device) -> Mapping[str, Any]:
    """How tiles follow each other: by windows where the L2 cannot hold the operands."""
    size = shape.groups * (shape.m + shape.n) * shape.k * shape.dtype.bytes
    return ORDERS[-1] if device.l2 and size > device.l2.size_bytes else {}


def _candidates(shape: Shape, device: Device) -> Iterator[Tiling]:
    """Base tiles that fit L0 and L0C, each with the longest K slabs that fit L1."""
    (m, k, n), e, unit = shape[:3], shape.dtype.bytes, shape.unit
    size, rows = cube_sizes(device), most_rows(device, FP32)
    columns = device.memory("BT" if shape.biased else "L0C").size_bytes // FP32.bytes
    order = order_of(shape._replace(groups=1), device)
    for base_m in sorted({round_up(min(side, m), unit) for side in _SIDES}):
        for base_n in sorted({round_up(min(side, n), unit) for side in _SIDES}):
            half = min(size["L0A"] // base_m, size["L0B"] // base_n) // 2 // e  # two slots
            slab = size["L1"] // 2 // ((base_m + base_n) * e)  # columns of both in one of two slots
            base_k = min(half // unit * unit, round_up(k, unit), 256, slab // unit * unit)
            step = slab // max(base_k, unit)
            fits = base_m * base_n * 4 <= size["L0C"] and base_m <= rows and base_n <= columns
            if base_k < unit or not step or not fits:
                continue
            yield Tiling(
                base_m=base_m,
                base_n=base_n,
                base_k=base_k,
                step_ka=min(step, 4, ceil_div(k, base_k)),
                step_kb=min(step, 4, ceil_div(k, base_k)),
                l0c_slots=2 if base_m * base_n * 8 <= size["L0C"] else 1,
                **order,
            )


def _estimate(shape: Shape, t: Tiling, device: Device, cores: int) -> float:
    """Cycles in closed form."""
    (m, k, n), e = shape[:3], shape.dtype.bytes
    tiles = shape.groups * ceil_div(m, t.base_m) * ceil_div(n, t.base_n)
    rounds = ceil_div(tiles, cores)
    steps, slabs = ceil_div(k, t.base_k), ceil_div(k, t.base_k * t.step_ka)
    base_m, base_n = min(t.base_m, round_up(m, 16)), min(t.base_n, round_up(n, 16))
    rate = float(device.cube.macs_per_cycle(shape.math)) if device.cube is not None else 1.0
    cube = base_m * base_n * k / rate + 4 * steps
    mte1 = device.path("L1", "L0A", "load3d").estimate(base_m * k * e, steps)
    mte1 += device.path("L1", "L0B", "load3d").estimate(base_n * k * e, steps)
    size = (base_m + base_n) * k * e
    mte2, rows = _loads(shape, t, device, base_m, base_n)
    requests = rows * device.l2.request_bytes if device.l2 else 0
    shared = min(tiles, cores) * (size + requests) / device.shared_read_rate
    drain = base_m * base_n * 4 / way_out(device).rate
    hidden = 0.2 if t.l0c_slots > 1 and rounds > 1 else 1.0
    return rounds * (max(cube, mte1, mte2, shared) + drain * hidden) + mte2 / slabs


def _loads(
    shape: Shape, t: Tiling, device: Device, base_m: int, base_n: int
) -> tuple[float, float]:
    """Cycles in which the operands of a tile come to L1, and the pieces of rows that are.

    Rows of A are a slab deep, rows of B a tile wide; the L2 gives time to each request for one.
    """
    (_, k, n), e = shape[:3], shape.dtype.bytes
    slabs = ceil_div(k, t.base_k * t.step_ka)
    if not device.has_path("GM", "L1", "nd2nz"):
        loads = k * e / 32 + base_n * e / 32 * slabs
        size = (base_m + base_n) * k * e
        return device.path("GM", "L1").estimate(size, loads), base_m * slabs + k
    path = device.path("GM", "L1", "nd2nz")
    deep, wide = min(k, t.base_k * t.step_ka) * e, min(n, base_n) * e
    # Slabs of A begin at multiples of their depth, rows of B at multiples of their width.
    a = sum(path.pieces(base_m, deep, i * deep, k * e) for i in range(_SEEN)) / _SEEN
    b = sum(path.pieces(k, wide, i * wide, n * e) for i in range(_SEEN)) / _SEEN
    pieces = slabs * a, b
    cycles = sum(
        slabs * path.startup_cycles + max(size * k * e / path.rate, one * float(path.row_cycles))
        for size, one in zip((base_m, base_n), pieces, strict=True)
    )
    return cycles, sum(pieces)
