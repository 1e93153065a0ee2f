"""Tilings of filter gradients where the vendor's rule does not apply, as a rule would choose them.

Every candidate that fits the buffers gets a closed-form estimate of the kernel's time, the
slowest of cube, MTE1, MTE2 and shared bandwidth plus what nothing hides; the least wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice, product
from math import prod

from npusim.kernels.parts.plane import Plane
from npusim.kernels.tilings.conv_filter import Tiling, cut_plane
from npusim.kernels.tilings.costs import way_out
from npusim.kernels.tilings.fit import cube_sizes, most_rows, no_filter
from npusim.language import FP32, Device, ceil_div
from npusim.shapes.convolution import Convolution

_SIDES = (512, 256, 192, 144, 128, 96, 64, 48, 32, 16)
_SLABS = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)


def library_tiling(shape: Convolution, device: Device, cores: int) -> Tiling:
    """The candidate with the least estimated time on ``cores`` cube cores.

    Single taps are for what no img2col load can do, or L1 not hold. Raises ``CapacityError`` if
    not even the smallest tile fits the device's buffers.
    """
    window = all(shape.axis(i).fits_window(whole=True) for i in (1, 2))
    for form in ("window", "taps") if window else ("taps",):
        found = (
            (_estimate(shape, device, cores, tiling, cut, parts), replace(tiling, k_parts=parts))
            for tiling, cut in _candidates(shape, device, form)
            for parts in _part_counts(shape, tiling, cut, cores)
        )
        best = min(found, key=lambda one: one[0], default=None)
        if best is not None:
            return best[1]
    raise no_filter(device, shape.c0)


class _Sizes:
    """What the estimate needs of a shape in a form: of all columns, or those of one tap."""

    def __init__(self, shape: Convolution, form: str) -> None:
        self.shape = shape
        self.taps = 1 if form == "taps" else shape.taps  # in a plane of a tile's columns
        self.turns = shape.taps // self.taps  # taps whose columns are tiles of their own
        self.n = shape.plan.cin1_g * self.taps * shape.c0  # columns that are cut into tiles

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
            fitting = (
                (slots, k)
                for slots, k in product((2, 1), _SLABS)
                if slots * _l1_bytes(sizes, base_m, base_n, cut_of(k)) <= size["L1"]
            )
            for slots, slab_k in islice(fitting, 1):
                tiling = Tiling(
                    base_m=base_m,
                    base_n=base_n,
                    base_k=min(base_k, 256),
                    slab_k=slab_k,
                    l1_slots=slots,
                    l0c_slots=l0c,
                    form=form,
                )
                yield tiling, cut_of(slab_k)


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
    name = "fp16" if size == 2 else "fp32"
    macs = float(device.cube.macs_per_cycle(name)) if device.cube else 1
    cube = k * m * n / macs + steps * 4
    into_a = device.path("L1", "L0A", "transpose")
    into_b = device.path("L1", "L0B", "load3d")
    mte1 = into_a.estimate(k * m * size, steps) + into_b.estimate(k * n * size, steps)
    port = device.path("GM", "L1")
    mte2 = port.estimate(x_bytes + y_bytes, 2 * loads)
    shared = items * (x_bytes + y_bytes) / device.shared_read_rate / rounds
    places = shape.cin1 * prod(shape.spatial) + shape.cout1 * prod(shape.out)
    main = shape.n * 32.0 * places / float(device.main_memory.read_bytes_per_cycle) / rounds
    body = max(cube, mte1, mte2, shared, main)
    if t.l1_slots == 1:
        body = mte2 + max(cube, mte1)
    drain = m * n * 4 / way_out(device).rate * (1 if t.l0c_slots == 1 or rounds == 1 else 0.2)
    first = mte2 / loads + mte1 / steps
    clear = device.launch.cycles("vector", device.count("vector")) if parts > 1 else 0
    return rounds * (body + drain) + first + clear
