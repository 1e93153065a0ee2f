"""The tile sizes of forward convolution and input gradient, and sizes that are good at once.

Every candidate that fits the buffers gets a closed-form estimate of the kernel's time, the
slowest of cube, MTE1, MTE2 and shared bandwidth plus what nothing hides; the least wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npusim.device.spec import Device
from npusim.dtypes import DType
from npusim.errors import CapacityError
from npusim.integers import ceil_div
from npusim.kernels.parts.implicit_gemm_shape import Geometry
from npusim.kernels.parts.plane import Plane, cut_plane
from npusim.kernels.tilings.checks import check_tiling

_WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256)
#: Slabs of a plane above which a smaller M is not worth looking at.
_MOST_SLABS = 4096
#: Last resort where 16 positions read more input than L1 holds.
_SMALL = (8, 4, 2, 1)
_HEIGHTS = (16, 32, 64, 96, 128, 192, 256, 512, 1024)


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """One mmad is base_m positions x base_k x base_n channels (elements).

    An L1 slot of the input holds ``step_planes`` channel blocks of the slab, one of the weights
    ``step_columns`` columns of (c1, kh, kw). A core takes the slabs of ``single_core_m`` positions
    (whole rows) one after another; 0: slabs are shared out singly. With ``resident`` weights stay
    in L1 as long as the same are needed, which takes one slot that holds all columns.
    """

    base_m: int
    base_n: int
    base_k: int
    step_planes: int = 1
    step_columns: int = 1
    l1_slots: int = 2
    weight_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    single_core_m: int = 0
    resident: bool = False

    def __post_init__(self) -> None:
        counts = (
            "step_planes",
            "step_columns",
            "l1_slots",
            "weight_slots",
            "l0_slots",
            "l0c_slots",
        )
        check_tiling(self, sixteens=("base_n",), positive=("base_m", "base_k", *counts))

    def __str__(self) -> str:
        return (
            f"base {self.base_m}x{self.base_n}x{self.base_k}, planes {self.step_planes}, columns "
            f"{self.step_columns}, slots L1 {self.l1_slots}+{self.weight_slots} "
            f"L0 {self.l0_slots} L0C {self.l0c_slots}"
        )


def auto_tiling(geometry: Geometry, device: Device, cores: int, dtype: DType) -> Tiling:
    """The candidate with the least estimated time on ``cores`` cube cores.

    Raises ``CapacityError`` if not even the smallest tile fits the device's buffers.
    """
    for heights in (_heights(geometry), _SMALL):
        best: tuple[float, int, Tiling] | None = None
        for i, (tiling, cut) in enumerate(_candidates(geometry, device, dtype, heights)):
            time = _estimate(geometry, device, cores, tiling, cut, dtype)
            if best is None or (time, i) < best[:2]:
                best = (time, i, tiling)
        if best is not None:
            return best[2]
    pixels = cut_plane(geometry.h, geometry.w, 1).most_pixels
    raise CapacityError(
        f"{device.name}: L1 holds {device.memories['L1'].size_bytes} B, but the input that one "
        f"output position reads takes {pixels * 32} B per channel block and one weight column "
        f"{16 * geometry.c0 * dtype.bytes} B; no tiling fits, reduce kernel or dilation"
    )


def _heights(g: Geometry) -> list[int]:
    """Numbers of positions worth trying as M: whole rows, and parts of wide ones."""
    plane = g.h.out * g.w.out
    rows = {ceil_div(r * g.w.out, 16) * 16 for r in range(1, g.h.out + 1) if r * g.w.out <= 1024}
    parts = {h for h in _HEIGHTS if h < ceil_div(plane, 16) * 16 and g.w.out > h}
    heights = sorted(_spread(rows) | parts | ({16} if not rows else set()))
    # A huge plane in tiny slabs is never good, and listing them would take longer than running.
    few = [h for h in heights if plane // h <= _MOST_SLABS]
    return few or heights[-1:]


def _candidates(
    g: Geometry, device: Device, dtype: DType, heights: Sequence[int]
) -> Iterator[tuple[Tiling, Plane]]:
    """Tilings whose buffers fit, each with the largest L1 steps that do."""
    size = {name: device.memories[name].size_bytes for name in ("L1", "L0A", "L0B", "L0C")}
    n_all = ceil_div(g.planes_out * g.c0, 16) * 16
    for base_m in heights:
        m16 = ceil_div(base_m, 16) * 16
        cut = cut_plane(g.h, g.w, base_m).live()
        for base_n in sorted({min(width, n_all) for width in _WIDTHS}):
            half = min(size["L0A"] // m16, size["L0B"] // base_n) // 2 // dtype.bytes
            base_k = min(half // g.c0 * g.c0, 4080 // g.c0 * g.c0)
            if base_k < g.c0 or m16 * base_n * 4 > size["L0C"]:
                continue
            l0c = 2 if m16 * base_n * 8 <= size["L0C"] else 1
            for steps in _steps(g, size["L1"], cut.most_pixels, base_n, dtype):
                planes, columns, x_slots, w_slots = steps
                yield (
                    Tiling(
                        base_m=base_m,
                        base_n=base_n,
                        base_k=min(base_k, columns * g.c0, 16 * g.c0),
                        step_planes=planes,
                        step_columns=columns,
                        l1_slots=x_slots,
                        weight_slots=w_slots,
                        l0c_slots=l0c,
                    ),
                    cut,
                )


def _spread(values: set[int], limit: int = 12) -> set[int]:
    """At most ``limit`` of the values, evenly over their order, with both ends."""
    ordered = sorted(values)
    if len(ordered) <= limit:
        return set(ordered)
    return {ordered[i * (len(ordered) - 1) // (limit - 1)] for i in range(limit)}


def _steps(
    g: Geometry, l1: int, pixels: int, base_n: int, dtype: DType
) -> list[tuple[int, int, int, int]]:
    """(planes, columns, input slots, weight slots) of the largest L1 loads that fit.

    Smaller ones are offered too: the first load of a tile hides behind nothing.
    """
    column = base_n * g.c0 * dtype.bytes
    for x_slots, w_slots in ((2, 2), (2, 1), (1, 1)):
        planes = min(g.planes_in, l1 // (x_slots * pixels * 32 + w_slots * g.taps * column))
        if planes:
            fewer = {ceil_div(planes, part) for part in (1, 2, 4, 8)}
            return [(p, p * g.taps, x_slots, w_slots) for p in sorted(fewer, reverse=True)]
        left = l1 - x_slots * pixels * 32
        columns = min(g.taps, left // (w_slots * column))
        if columns > 0:
            return [(1, columns, x_slots, w_slots)]
    return []


def _estimate(
    g: Geometry, device: Device, cores: int, t: Tiling, cut: Plane, dtype: DType
) -> float:
    """Cycles of the kernel in closed form."""
    depths = [len(pairs) for pairs in g.live if pairs]
    slabs = len(cut)
    if not slabs or not depths:
        return 0.0
    n = min(t.base_n, ceil_div(g.planes_out * g.c0, 16) * 16)
    items = slabs * g.images * len(depths) * g.groups * ceil_div(g.planes_out * g.c0, n)
    rounds = ceil_div(items, cores)
    kd = sum(depths) / len(depths)
    # In one round the core with the largest slab is the last; in several they even out.
    m = (
        ceil_div(cut.most_positions, 16) * 16
        if rounds == 1
        else ceil_div(cut.positions, 16 * slabs) * 16
    )
    k = kd * g.planes_in * g.taps * g.c0
    rate = device.cube.macs_per_cycle(dtype.name) if device.cube else 4096
    mmads = ceil_div(g.planes_in * g.taps * g.c0, t.base_k) * kd
    cube = m * n * k / float(rate) + 4 * mmads
    columns = kd * g.planes_in * g.taps
    into_b = device.path("L1", "L0B")
    mte1 = device.path("L1", "L0A", "load3d").estimate(m * k * dtype.bytes, mmads)
    mte1 += into_b.estimate(n * k * dtype.bytes, columns)
    x_bytes = kd * g.planes_in * cut.pixels / slabs * 32
    w_bytes = k * n * dtype.bytes
    mte2 = device.path("GM", "L1").estimate(x_bytes + w_bytes, _loads(g, t, cut) * kd)
    shared = min(items, cores) * (x_bytes + w_bytes) / device.shared_read_rate
    body = max(cube, mte1, mte2, shared)
    if t.weight_slots == 1 or t.l1_slots == 1:
        body = mte2 + max(cube, mte1)
    drain = m * n * dtype.bytes / 64 * (1 if t.l0c_slots == 1 or rounds == 1 else 0.2)
    return rounds * (body + drain) + mte2 / max(1.0, _loads(g, t, cut)) + mte1 / mmads


def _loads(g: Geometry, t: Tiling, cut: Plane) -> float:
    """MTE2 instructions of one filter depth of one tile."""
    chunks = ceil_div(g.planes_in, t.step_planes)
    weights = ceil_div(g.planes_in * g.taps, t.step_columns)
    # The slab in the middle stands for all.
    row, column = divmod(len(cut) // 2, len(cut.columns))
    if g.w.insert > 1:
        return weights + chunks + g.planes_in * cut.rows[row].real
    whole = g.h.insert == 1 and cut.columns[column].size == g.w.size
    return weights + (chunks if whole else chunks + g.planes_in)
