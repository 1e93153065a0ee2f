"""Tilings of input gradients where the vendor's rule does not apply, as a rule would choose them.

Every candidate that fits the buffers gets a closed-form estimate of the kernel's time, the
slowest of cube, MTE1, MTE2 and shared bandwidth plus what nothing hides; the least wins. Zeros are
inserted wherever a load can, as the vendor's library does.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from npusim.kernels.parts.implicit_gemm_shape import Geometry
from npusim.kernels.parts.plane import Plane, cut_plane
from npusim.kernels.tilings.costs import drain_cycles, scatter_cycles, write_rate
from npusim.kernels.tilings.fit import cube_sizes, most_rows, no_product
from npusim.kernels.tilings.implicit_gemm import Tiling
from npusim.language import Device, DType, ceil_div

_WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256)
#: Slabs of a plane with work above which a smaller M is not worth looking at, and runs of rows and
#: columns above which counting them takes too long.
_MOST_SLABS, _MOST_RUNS = 4096, 1 << 16
#: Last resort where 16 positions read more input than L1 holds.
_SMALL = (8, 4, 2, 1)
_HEIGHTS = (16, 32, 64, 96, 128, 192, 256, 512, 1024)


def library_tiling(geometry: Geometry, device: Device, cores: int, dtype: DType) -> Tiling:
    """The candidate with the least estimated time on ``cores`` cube cores.

    Raises ``CapacityError`` if not even the smallest tile fits the device's buffers.
    """
    for form in _forms(geometry):
        for small in (False, True):
            found = (
                (_estimate(geometry, device, cores, tiling, cut, dtype), tiling)
                for tiling, cut in _candidates(geometry, device, dtype, form, small=small)
            )
            best = min(found, key=lambda one: one[0], default=None)
            if best is not None:
                return best[1]
    raise no_product(device, geometry.c0, dtype)


def _forms(g: Geometry) -> tuple[str, ...]:
    """Forms in the order of preference: the first that fits is taken."""
    window = all(axis.fits_window() for axis in (g.h, g.w))
    phases = any(axis.insert > 1 or axis.sparse for axis in (g.h, g.w))
    phases = phases and all(axis.insert > 1 or axis.fits_window() for axis in (g.h, g.w))
    return ("window",) * window + ("phases",) * phases + ("taps",)


def _heights(g: Geometry, form: str) -> list[int]:
    """Numbers of positions worth trying as M: whole rows, and parts of wide ones."""
    height, width = g.h.longest(form), g.w.longest(form)
    plane = height * width
    whole = range(1, min(height, 1024 // width) + 1)
    rows = {ceil_div(r * width, 16) * 16 for r in whole}
    parts = {h for h in _HEIGHTS if h < ceil_div(plane, 16) * 16 and width > h}
    heights = sorted(_spread(rows) | parts | ({16} if not rows else set()))
    # A huge plane in tiny slabs is never good, and listing them would take longer than running.
    if plane // heights[0] <= _MOST_SLABS:
        return heights
    turns = [axis.kernel if form == "taps" else 1 for axis in (g.h, g.w)]
    few = [
        h
        for h in heights
        if ceil_div(height, max(1, h // width)) * turns[0] + ceil_div(width, h) * turns[1]
        <= _MOST_RUNS
    ] or heights[-1:]
    if len(few) == 1:
        return few
    live = [h for h in few if cut_plane(g.h, g.w, h, form=form).live().slabs <= _MOST_SLABS]
    return live or few[-1:]


def _candidates(
    g: Geometry, device: Device, dtype: DType, form: str, *, small: bool
) -> Iterator[tuple[Tiling, Plane]]:
    """Tilings whose buffers fit, with the largest L1 steps that do; of ``small`` M or the usual."""
    size, rows = cube_sizes(device), most_rows(device, dtype)
    n_all = ceil_div(g.planes_out * g.c0, 16) * 16
    for base_m in _SMALL if small else _heights(g, form):
        m16 = ceil_div(base_m, 16) * 16
        cut = cut_plane(g.h, g.w, base_m, form=form).live()
        for base_n in sorted({min(width, n_all) for width in _WIDTHS}):
            half = min(size["L0A"] // m16, size["L0B"] // base_n) // 2 // dtype.bytes
            base_k = min(half // g.c0 * g.c0, 4080 // g.c0 * g.c0)
            if base_k < g.c0 or m16 * base_n * 4 > size["L0C"] or m16 > rows:
                continue
            l0c = 2 if m16 * base_n * 8 <= size["L0C"] else 1
            for steps in _steps(g, size["L1"], cut, base_n, dtype):
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
                        form=form,
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
    g: Geometry, l1: int, cut: Plane, base_n: int, dtype: DType
) -> list[tuple[int, int, int, int]]:
    """(planes, columns, input slots, weight slots) of the largest L1 loads that fit.

    Smaller ones are offered too: the first load of a tile hides behind nothing.
    """
    column, taps, pixels = base_n * g.c0 * dtype.bytes, cut.most_taps, cut.most_pixels
    for x_slots, w_slots in ((2, 2), (2, 1), (1, 1)):
        planes = min(g.planes_in, l1 // (x_slots * pixels * 32 + w_slots * taps * column))
        if planes:
            fewer = {ceil_div(planes, part) for part in (1, 2, 4, 8)}
            return [(p, p * taps, x_slots, w_slots) for p in sorted(fewer, reverse=True)]
        left = l1 - x_slots * pixels * 32
        columns = min(taps, left // (w_slots * column))
        if columns > 0:
            return [(1, columns, x_slots, w_slots)]
    return []


def _estimate(
    g: Geometry, device: Device, cores: int, t: Tiling, cut: Plane, dtype: DType
) -> float:
    """Cycles of the kernel in closed form."""
    depths = [len(pairs) for pairs in g.live if pairs]
    slabs = cut.slabs
    if not slabs or not depths:
        return 0.0
    n = min(t.base_n, ceil_div(g.planes_out * g.c0, 16) * 16)
    items = slabs * g.images * len(depths) * g.groups * ceil_div(g.planes_out * g.c0, n)
    rounds = ceil_div(items, cores)
    kd = sum(depths) / len(depths)
    # In one round the core with the largest slab is the last; in several they even out.
    positions, of = (cut.most_positions, 1) if rounds == 1 else (cut.positions, slabs)
    m = ceil_div(positions, 16 * of) * 16
    reads = cut.reads / slabs
    taps = cut.products / cut.positions
    k = kd * g.planes_in * taps * g.c0
    rate = device.cube.macs_per_cycle(dtype.name) if device.cube else 4096
    mmads = ceil(g.planes_in * taps / reads * g.c0 / t.base_k) * reads * kd
    cube = m * n * k / float(rate) + 4 * mmads
    columns = kd * g.planes_in * taps
    into_b = device.path("L1", "L0B")
    mte1 = device.path("L1", "L0A", "load3d").estimate(m * k * dtype.bytes, mmads)
    mte1 += into_b.estimate(n * k * dtype.bytes, columns)
    x_bytes = kd * g.planes_in * cut.pixels / slabs * 32
    w_bytes = k * n * dtype.bytes
    loads = _loads(g, t, cut, taps)
    mte2 = device.path("GM", "L1").estimate(x_bytes + w_bytes, loads * kd)
    shared = min(items, cores) * (x_bytes + w_bytes) / device.shared_read_rate
    body = max(cube, mte1, mte2, shared)
    if t.weight_slots == 1 or t.l1_slots == 1:
        body = mte2 + max(cube, mte1)
    drain = m * n * dtype.bytes / 64
    if t.form != "window":
        drain = max(drain, _scatter(g, device, cut, n, dtype))
        if t.l0c_slots > 1 and rounds > 1:
            body = max(body, drain)
    drain = drain * (1 if t.l0c_slots == 1 or rounds == 1 else 0.2)
    time = rounds * (body + drain) + mte2 / max(1.0, loads) + mte1 / mmads
    if cut.positions < g.h.out * g.w.out:
        time += _clearing(g, device, dtype)
    return time


def _loads(g: Geometry, t: Tiling, cut: Plane, taps: float) -> float:
    """MTE2 instructions of one filter depth of one tile."""
    chunks = ceil_div(g.planes_in, t.step_planes)
    if t.form == "window":
        weights: float = ceil(g.planes_in * taps / t.step_columns)
    else:  # of part of the taps, each is a move of its own
        weights = chunks * taps
    # The slab in the middle stands for all.
    row, column = divmod(cut.reads // 2, len(cut.columns))
    real, size = int(cut.rows.real[row]), int(cut.columns.size[column])
    if t.form == "taps":
        rows = cut.reads / cut.slabs
        return weights + rows * g.planes_in * (real if g.w.stride > 1 else 1)
    if g.w.insert > 1 and t.form == "window":
        return weights + chunks + g.planes_in * real
    whole = (g.h.insert == 1 or t.form == "phases") and size == g.w.size
    return weights + (chunks if whole else chunks + g.planes_in)


def _scatter(g: Geometry, device: Device, cut: Plane, n: int, dtype: DType) -> float:
    """Cycles in which a slab's outputs leave the core where they lie apart."""
    row, column = divmod(cut.reads // 2, len(cut.columns))
    down, across = (
        axis.parts[int(axis.part[i])].outputs[1]
        for axis, i in ((cut.rows, row), (cut.columns, column))
    )
    if down == across == 1:
        return 0.0
    lines, length = int(cut.rows.count[row]), int(cut.columns.count[column])
    if across == 1:
        return float(drain_cycles(device, lines * length, n, dtype.bytes, lines)[0])
    block, plane, halves = g.c0 * dtype.bytes, g.h.out * g.w.out, g.c0 == 8 and g.planes_out > 1
    line = length, n, block, across, lines, plane
    return float(scatter_cycles(device, *line, halves=halves)[0])


def _clearing(g: Geometry, device: Device, dtype: DType) -> float:
    """Cycles of the kernel that writes zeros first."""
    size = g.images * g.depth_out * g.all_out * g.h.out * g.w.out * g.c0 * dtype.bytes
    start = device.launch.cycles("vector", device.count("vector"))
    return start + size / write_rate(device)
