"""The tile sizes of the filter-gradient kernel, and sizes that are good at once.

Every candidate that fits the buffers gets a closed-form estimate of the kernel's time, the
slowest of cube, MTE1, MTE2 and shared bandwidth plus what nothing hides; the least wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from npusim.convolution import Convolution
from npusim.device.spec import Device
from npusim.dtypes import FP32
from npusim.errors import ArgumentError, CapacityError
from npusim.integers import ceil_div
from npusim.kernels.parts.plane import Plane
from npusim.kernels.parts.plane import cut_plane as cut_axes
from npusim.kernels.tilings.checks import check_tiling
from npusim.kernels.tilings.fit import cube_sizes, holds, most_rows

_SIDES = (512, 256, 192, 144, 128, 96, 64, 48, 32, 16)
_SLABS = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Tile sizes in elements: one mmad is base_m x base_k x base_n; and who sums which tile when.

    ``slab_k`` output positions are brought to L1 at once (whole rows of the output where a row
    fits). K is cut in one of two ways:

    * without ``single_core_k`` into ``k_parts`` of all slabs of all images, and cores share out
      parts of tiles. Parts are added atomically, or, if ``deterministic``, written side by side
      for a sum in fixed order. A part runs over images with the slabs of each innermost
      (``k_order`` "image"), or the other way round ("slab");
    * into pieces of ``single_core_k`` positions (whole rows) of one image and depth, and cores
      share out blocks of ``single_core_m`` x ``single_core_n`` of dw for each piece. A core goes
      through the tiles of its block one after another and adds each.

    An L1 slot holds one slab for ``step_m`` tiles along M (dy), or ``step_n`` along N (x). There
    are ``l1_slots`` of each, or ``dy_slots`` and ``x_slots``; where a piece has at most
    ``dy_slabs`` (``x_slabs``) slabs they stay while the next tile needs the same. ``keeps`` "dy"
    lets the tiles along N go by for the same dy, "x" those along M for the same x.

    ``form`` "window" expands x by img2col, tiles have columns of all taps; with "taps" a tile has
    those of one tap, for which just the x it reads comes to L1.
    """

    base_m: int
    base_n: int
    base_k: int
    slab_k: int
    k_parts: int = 1
    l1_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    deterministic: bool = False
    k_order: str = "image"
    single_core_m: int = 0
    single_core_n: int = 0
    single_core_k: int = 0
    step_m: int = 1
    step_n: int = 1
    dy_slots: int = 0
    x_slots: int = 0
    dy_slabs: int = 1
    x_slabs: int = 1
    keeps: str = "dy"
    form: str = "window"

    def __post_init__(self) -> None:
        for name, words in (
            ("k_order", ("image", "slab")),
            ("keeps", ("dy", "x")),
            ("form", ("window", "taps")),
        ):
            if getattr(self, name) not in words:
                raise ArgumentError(
                    f"tiling {name} is {getattr(self, name)!r}; it is '{words[0]}' or '{words[1]}'"
                )
        check_tiling(
            self,
            sixteens=("base_m", "base_n", "base_k"),
            positive=(
                *("slab_k", "k_parts", "l1_slots", "l0_slots", "l0c_slots"),
                *("step_m", "step_n", "dy_slabs", "x_slabs"),
                *(("single_core_m", "single_core_n") if self.single_core_k else ()),
            ),
        )
        if self.form == "taps" and self.single_core_k:
            raise ArgumentError(
                "tiling form 'taps' has no pieces of single_core_k; leave it out, or use 'window'"
            )
        if self.deterministic and self.single_core_k:
            raise ArgumentError(
                "deterministic: pieces of single_core_k add into the gradient in the order they "
                "finish; use tiling 'auto', or deterministic=False"
            )
        for name, have, held in (
            ("dy", self.slots_of_dy, self.dy_slabs),
            ("x", self.slots_of_x, self.x_slabs),
        ):
            if held > have:
                raise ArgumentError(
                    f"tiling {name}_slabs is {held}; no more than {name}_slots, {have}, can stay"
                )

    @property
    def slots_of_dy(self) -> int:
        """Slots of dy in L1."""
        return self.dy_slots or self.l1_slots

    @property
    def slots_of_x(self) -> int:
        """Slots of x in L1."""
        return self.x_slots or self.l1_slots

    def __str__(self) -> str:
        base = f"base {self.base_m}x{self.base_n}x{self.base_k}, slab {self.slab_k}"
        small = f"L0 {self.l0_slots} L0C {self.l0c_slots}"
        if not self.single_core_k:
            return f"{base}, K in {self.k_parts}, slots L1 {self.l1_slots} {small}"
        return (
            f"{base}, single core {self.single_core_m}x{self.single_core_n}x{self.single_core_k}, "
            f"slots dy {self.slots_of_dy} x {self.slots_of_x} {small}"
        )


def cut_plane(shape: Convolution, slab_k: int, height: int = 0, form: str = "window") -> Plane:
    """Slabs of about ``slab_k`` positions of one output plane, without those that read padding.

    With ``height`` no slab goes across a multiple of so many rows.
    """
    return cut_axes(shape.axis(1), shape.axis(2), slab_k, height, multiple=16, form=form).live()


def auto_tiling(shape: Convolution, device: Device, cores: int) -> Tiling:
    """The candidate with the least estimated time on ``cores`` cube cores.

    Single taps are for what no img2col load can do, or L1 not hold, and where most of what a
    window reads is of no use to most taps. Raises ``CapacityError`` if
    not even the smallest tile fits the device's buffers.
    """
    axes = [shape.axis(i) for i in (1, 2)]
    window = all(axis.fits_window(whole=True) for axis in axes)
    apart = any(axis.wide or axis.kernel > axis.out for axis in axes)
    forms = [("window", "taps")] if apart else [("window",), ("taps",)]
    for some in forms if window else [("taps",)]:
        best: tuple[float, int, Tiling] | None = None
        candidates = (one for form in some for one in _candidates(shape, device, form))
        for i, (tiling, cut) in enumerate(candidates):
            for parts in _part_counts(shape, tiling, cut, cores):
                time = _estimate(shape, device, cores, tiling, cut, parts)
                if best is None or (time, i) < best[:2]:
                    best = (time, i, replace(tiling, k_parts=parts))
        if best is not None:
            return best[2]
    raise CapacityError(
        f"{device.name}: {holds(device)}, but 16 positions of "
        f"{shape.c0} channels of both operands take {16 * 2 * 32} B; no tiling fits"
    )


@dataclass(frozen=True)
class _Sizes:
    """What the estimate needs of a shape in a form: of all columns, or those of one tap."""

    shape: Convolution
    form: str

    @property
    def taps(self) -> int:
        """Taps in a plane of a tile's columns."""
        return 1 if self.form == "taps" else self.shape.taps

    @property
    def turns(self) -> int:
        """Taps whose columns are tiles of their own."""
        return self.shape.taps // self.taps

    @property
    def n(self) -> int:
        """Columns that are cut into tiles, in elements."""
        return self.shape.plan.cin1_g * self.taps * self.shape.c0

    def planes(self, base_n: int) -> int:
        """Input planes a tile of ``base_n`` columns can touch."""
        most = ceil_div(base_n // self.shape.c0 + self.taps - 1, self.taps)
        return min(most, self.shape.plan.cin1_g)

    def tiles(self, t: Tiling) -> int:
        """Number of tiles."""
        s = self.shape
        tiles = s.plan.real_groups * s.kernel[0] * ceil_div(s.plan.cout_g, t.base_m)
        return tiles * ceil_div(self.n, t.base_n) * self.turns


def _candidates(shape: Convolution, device: Device, form: str) -> Iterator[tuple[Tiling, Plane]]:
    """Tilings (K in one part) whose buffers fit, with the largest slab that does."""
    size, rows = cube_sizes(device), most_rows(device, FP32)
    sizes = _Sizes(shape, form)
    m_all, n_all = shape.plan.cout_g, ceil_div(sizes.n, 16) * 16
    # Small slabs of long rows cost time.
    cut_of = cache(lambda slab_k: cut_plane(shape, slab_k, form=form))
    for base_m in sorted({min(side, m_all) for side in _SIDES}):
        for base_n in sorted(
            {min(side, n_all) for side in (*_SIDES, ceil_div(sizes.taps * shape.c0, 16) * 16)}
        ):
            base_k = min(size["L0A"] // base_m, size["L0B"] // base_n) * shape.c0 // 64 // 16 * 16
            if base_k < 16 or base_m * base_n * 4 > size["L0C"] or base_m > rows:
                continue
            l0c = 2 if base_m * base_n * 8 <= size["L0C"] else 1
            for slots in (2, 1):
                fitting = (
                    k
                    for k in _SLABS
                    if slots * _l1_bytes(sizes, base_m, base_n, cut_of(k)) <= size["L1"]
                )
                slab_k = next(fitting, None)
                if slab_k is not None:
                    yield (
                        Tiling(
                            base_m=base_m,
                            base_n=base_n,
                            base_k=min(base_k, 256),
                            slab_k=slab_k,
                            l1_slots=slots,
                            l0c_slots=l0c,
                            form=form,
                        ),
                        cut_of(slab_k),
                    )
                    break


def _l1_bytes(sizes: _Sizes, base_m: int, base_n: int, cut: Plane) -> int:
    """One slot of x and one of dy."""
    x = cut.most_pixels * sizes.planes(base_n) * 32
    blocks = ceil_div(cut.most_positions, 16)
    return x + blocks * ceil_div(base_m, sizes.shape.c0) * 512


def _part_counts(shape: Convolution, t: Tiling, cut: Plane, cores: int) -> list[int]:
    """Ways to cut K worth trying: none, and what fills the cores once or twice."""
    sizes = _Sizes(shape, t.form)
    tiles, slabs = sizes.tiles(t), ceil_div(cut.reads, sizes.turns)
    along_k = max(1, shape.n * shape.out[0] * slabs)
    return sorted({max(1, min(along_k, cores * rounds // tiles)) for rounds in (0, 1, 2, 3)})


def _estimate(
    shape: Convolution, device: Device, cores: int, t: Tiling, cut: Plane, parts: int
) -> float:
    """Cycles of the kernel (and of clearing, if parts add up) in closed form."""
    sizes = _Sizes(shape, t.form)
    items = sizes.tiles(t) * parts
    rounds = ceil_div(items, cores)
    # Of one tap, where each is a tile of its own.
    planes = shape.n * shape.out[0] / sizes.turns
    positions = cut.products if sizes.turns > 1 else cut.positions
    k = planes * positions / parts
    loads = max(1.0, planes * cut.reads / parts)
    m, n = min(t.base_m, shape.plan.cout_g), min(t.base_n, sizes.n)
    x_bytes = planes * cut.pixels / parts * sizes.planes(n) * 32
    size = 32 // shape.c0  # bytes of an operand element
    y_bytes = k * m * size
    steps = max(loads, k / t.base_k)
    cube = k * m * n / _macs(device, size) + steps * 4
    into_a = device.path("L1", "L0A", "transpose")
    into_b = device.path("L1", "L0B", "load3d")
    mte1 = into_a.estimate(k * m * size, steps) + into_b.estimate(k * n * size, steps)
    port = device.path("GM", "L1")
    mte2 = port.estimate(x_bytes + y_bytes, 2 * loads)
    shared = items * (x_bytes + y_bytes) / device.shared_read_rate / rounds
    main = _unique_bytes(shape) / float(device.main_memory.read_bytes_per_cycle) / rounds
    body = max(cube, mte1, mte2, shared, main)
    if t.l1_slots == 1:
        body = mte2 + max(cube, mte1)
    drain = m * n * 4 / _drain_rate(device) * (1 if t.l0c_slots == 1 or rounds == 1 else 0.2)
    first = mte2 / loads + mte1 / steps
    clear = device.launch.cycles("vector", device.count("vector")) if parts > 1 else 0
    return rounds * (body + drain) + first + clear


def _macs(device: Device, size: int) -> float:
    """Peak multiply-adds per cycle for operand elements of ``size`` bytes."""
    return float(device.cube.macs_per_cycle("fp16" if size == 2 else "fp32")) if device.cube else 1


def _drain_rate(device: Device) -> float:
    """Bytes per cycle at which an accumulator tile leaves the core."""
    direct = device.has_path("L0C", "GM")
    path = device.path("L0C", "GM") if direct else device.path("UB", "GM")
    return path.rate


def _unique_bytes(shape: Convolution) -> float:
    _, h, w = shape.spatial
    _, ho, wo = shape.out
    return (
        shape.n
        * 32.0
        * (shape.cin1 * shape.spatial[0] * h * w + shape.cout1 * shape.out[0] * ho * wo)
    )
