"""The least time of a forward convolution or input gradient in closed form, for tuning."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.integers import ceil_div
from npusim.kernels.parts.implicit_gemm_shape import Geometry, channel_tiles
from npusim.kernels.parts.plane import Plane, cut_plane
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.kernels.tilings.floor import (
    Item,
    Reads,
    around,
    conflicts,
    drain,
    least_cycles,
    moves,
    pieces,
    products,
    sharing,
)
from npusim.kernels.tilings.implicit_gemm import Tiling


class Problem(NamedTuple):
    """A product: its sizes, the cube's rate, bytes of operand and result elements, bytes read once.

    ``turned``: weights are transposed on their way into L0B.
    """

    geometry: Geometry
    rate: str
    element: int
    out: int
    once: int
    turned: bool


class Slab(NamedTuple):
    """``times`` slabs alike: positions, and over their reads taps, these times positions in
    sixteens and as they are, pixels of one plane, moves of it, reads, and lines of its outputs."""

    times: int
    positions: int
    taps: int
    sixteens: int
    singles: int
    pixels: int
    moves: int
    reads: int
    lines: int


def product_least(p: Problem, t: Tiling, device: Device, cores: int) -> tuple[float, int, bool]:
    """(cycles, cores in use, whether outputs are cleared) below what the simulation takes."""
    g = p.geometry
    height = max(1, t.single_core_m // g.w.out) if t.single_core_m else 0
    slabs, dead = _slabs(g.h, g.w, t.base_m, height, t.form)
    into_a, into_b = (
        device.path("L1", "L0A", "load3d"),
        device.path("L1", "L0B", "transpose" if p.turned else ""),
    )
    port, items, reads, tail = device.path("GM", "L1"), [], Reads(), inf
    written = 0.0
    depths = np.unique([len(pairs) for pairs in g.live if pairs], return_counts=True)
    tiles = channel_tiles(min(g.planes_out, g.all_out), t.base_n // g.c0, g.c0, even=t.even_n)
    channels = [(count, blocks * g.c0) for blocks, count in Counter(n for _, n in tiles).items()]
    for slab, (images, each), (kd, alike), (b, n) in product(
        slabs, pieces(g.images, t.images), zip(*depths, strict=True), channels
    ):
        times, k = slab.times * images * int(alike) * b, int(kd) * g.planes_in * slab.taps * g.c0
        # Positions by columns; those of several images are rounded up to sixteens together.
        m16 = slab.sixteens if each == 1 else slab.singles * each
        m16 *= int(kd) * g.planes_in * g.c0
        count = max(1, ceil_div(k, t.base_k))
        size_a, size_b = m16 * p.element, k * n * p.element
        l0 = moves(into_a, count, size_a) + conflicts(into_a, size_a, t.l1_slots)
        l0 += moves(into_b, k / g.c0 if p.turned else count, size_b)
        l0 += conflicts(into_b, size_b, t.weight_slots)
        x = int(kd) * g.planes_in * slab.pixels * 32 * each
        x, w = (0 if t.resident_input else x), (0 if t.resident else size_b)
        chunks = ceil_div(g.planes_in, t.step_planes)
        if slab.moves > slab.reads:  # rows of zeros between: every plane by itself
            chunks = g.planes_in
        count_x, count_w = chunks * slab.moves * int(kd), slab.reads * int(kd)
        if t.form == "window" and t.step_columns < slab.taps:
            blocks = n // g.c0 if p.turned else 1
            count_w = g.planes_in * ceil_div(slab.taps, t.step_columns) * blocks * int(kd)
        loads = moves(port, (count_x if x else 0) + (count_w if w else 0), x + w)
        out = drain(device, slab.positions * each, n, p.out)
        if slab.lines and g.w.insert > 1:
            out = max(out, _scattered(device, p, slab, n) * each)
        cube = _cube(device, p, (count, m16, n))
        items.append(Item(times, (cube, l0, loads, out)))
        # Of several images all planes of a load may be one row.
        row = 32 * max(4096, slab.pixels * min(MOST_BLOCKS, t.step_planes) * (each > 1))
        reads = reads.more(times * x, row) if x else reads
        reads = reads.more(times * w, 512 * max(1, n // 16)) if w else reads
        written += times * slab.positions * each * n * p.out
        tail = min(tail, out)
    if not items:
        return 0.0, 1, dead
    tail = 0.0 if t.unit_flag else tail
    edges = around(into_a, into_b, port, tail)
    used = min(cores, t.cores or cores)
    shared = sharing(device, reads._replace(shortest=32), p.once, written)
    cycles = least_cycles(items, edges, used, shared)
    groups = sum(group * g.planes_in < g.all_in for group in range(g.groups))
    count = sum(item.times for item in items) * max(1, groups)
    return max(cycles, _of_groups(items, edges, used, groups)), min(used, count), dead


def _of_groups(items: list[Item], edges: tuple[float, ...], cores: int, groups: int) -> float:
    """The same with the work of all real groups but the last, which may be cut short."""
    if groups < 3:
        return 0.0
    whole = [item._replace(times=item.times * (groups - 1)) for item in items]
    return least_cycles(whole, edges, cores, 0.0)


def _scattered(device: Device, p: Problem, slab: Slab, n: int) -> float:
    """Cycles in which lines of outputs leave that lie apart, singly, by columns or at once."""
    block, length = p.geometry.c0 * p.out, slab.positions // slab.lines
    if not device.has_path("L0C", "GM"):
        return slab.lines * device.path("UB", "GM").startup_cycles
    plain, rows = device.path("L0C", "GM"), device.path("L0C", "GM", "nz2nd")
    single = moves(plain, length, length * n * p.out)
    if p.geometry.c0 == 8:
        return slab.lines * single
    return slab.lines * min(single, moves(rows, 1, ceil_div(n, 16) * length * block))


def _cube(device: Device, p: Problem, size: tuple[int, int, int]) -> float:
    """Cycles of ``count`` products whose positions in sixteens times columns are ``m16``."""
    count, m16, n = size
    return products(device, p.rate, count, 16, m16 / 16, n)


@lru_cache(maxsize=2048)
def _slabs(h: object, w: object, base_m: int, height: int, form: str) -> tuple[list[Slab], bool]:
    plane: Plane = cut_plane(h, w, base_m, height, form=form)
    live = plane.live()
    dead = live.positions < h.out * w.out  # type: ignore[attr-defined]
    if not live.slabs:
        return [], True
    rows, columns = live.rows, live.columns
    count = np.multiply.outer(rows.count, columns.count)
    taps = np.multiply.outer(rows.kernel, columns.kernel)
    pixels = np.multiply.outer(rows.real, columns.real)
    spread = form == "window" and w.insert > 1  # type: ignore[attr-defined]
    ones = np.ones_like(count)
    parts = rows.real[:, None] * ones if spread else ones
    lines = rows.count[:, None] * ones if form != "window" else 0 * ones
    slab = rows.sums[:, None] * columns.slabs + columns.sums[None, :]
    flat = slab.reshape(-1)

    def over(values: np.ndarray) -> np.ndarray:
        return np.bincount(flat, values.reshape(-1), live.slabs).astype(np.int64)

    def most(values: np.ndarray) -> np.ndarray:
        found = np.zeros(live.slabs, np.int64)
        np.maximum.at(found, flat, values.reshape(-1))
        return found

    sixteens = -(-count // 16) * 16 * taps
    sums = (over(values) for values in (taps, sixteens, count * taps, pixels, parts, ones))
    table = np.stack([most(count), *sums, most(lines)], 1)
    alike, times = np.unique(table, axis=0, return_counts=True)
    if len(alike) > 16:  # the least of neighbours stands for them
        order = np.array_split(np.arange(len(alike)), 16)
        times = np.array([times[some].sum() for some in order])
        alike = np.array([alike[some].min(axis=0) for some in order])
    return [Slab(int(n), *map(int, row)) for n, row in zip(times, alike, strict=True)], dead
