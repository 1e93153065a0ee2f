"""The least time of a forward convolution or input gradient in closed form, for tuning."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from npusim.base.integers import IntArray, ceil_div
from npusim.device.spec import Device
from npusim.kernels.parts.implicit_gemm_shape import (
    Geometry,
    channel_tiles,
    pixel_by_pixel,
    stack,
    weight_loads,
    window,
)
from npusim.kernels.parts.plane import cut_plane
from npusim.kernels.parts.transposed import MOST_BLOCKS, images_window
from npusim.kernels.tilings.floor import (
    Item,
    Reads,
    around,
    conflicts,
    drain,
    least_cycles,
    moves,
    pieces,
    sharing,
)
from npusim.kernels.tilings.implicit_gemm import Tiling
from npusim.shapes.axis import Axis, Reading, Runs


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
    """``times`` slabs alike: positions, and of one filter depth the sums over their reads.

    ``taps``, products, positions in whole sixteens times taps, fetches of img2col times taps,
    cycles of conflicts where tiles have odd sides in blocks (whatever the columns; only where they
    are odd), real pixels of a plane, moves of the input, loads of weights, and those of these that
    hold part of a plane. ``lines`` are those of its outputs.
    """

    times: int
    positions: int
    lines: int
    taps: int
    products: int
    sixteens: int
    fetches: int
    odd: int
    even: int
    pixels: int
    moves: int
    loads: int
    partial: int


class Cut(NamedTuple):
    """Which slabs, of how many images, and in which steps: what ``Slab`` follows from.

    ``planes`` of a real group are summed over. ``step_planes`` come to L1 at once, as do
    ``step_columns`` of weights, and ``columns`` to L0. Loads of img2col read ``window`` bytes.
    """

    h: Axis
    w: Axis
    base_m: int
    height: int
    form: str
    images: int
    planes: int
    step_planes: int
    step_columns: int
    columns: int
    window: int


def product_least(p: Problem, t: Tiling, device: Device, cores: int) -> tuple[float, int, bool]:
    """(cycles, cores in use, whether outputs are cleared) below what the simulation takes."""
    g = p.geometry
    into_a, into_b = (
        device.path("L1", "L0A", "load3d"),
        device.path("L1", "L0B", "transpose" if p.turned else ""),
    )
    port, items, reads, tail = device.path("GM", "L1"), [], Reads(), inf
    written = 0.0
    depths = np.unique([len(pairs) for pairs in g.live if pairs], return_counts=True)
    tiles = channel_tiles(min(g.planes_out, g.all_out), t.base_n // g.c0, g.c0, even=t.even_n)
    channels = [(count, blocks * g.c0) for blocks, count in Counter(n for _, n in tiles).items()]
    planes, dead = min(g.planes_in, g.all_in), False
    every = []
    for images, each in pieces(g.images, t.images):
        slabs, dead = _slabs(_cut(p, t, device, planes, each))
        every += [(slab, images, each) for slab in slabs]
    for (slab, images, each), (kd, alike), (b, n) in product(
        every, zip(*depths, strict=True), channels
    ):
        times, k = slab.times * images * int(alike) * b, int(kd) * planes * slab.taps * g.c0
        count = int(kd) * slab.products
        of_plane = int(kd) * planes * g.c0
        size_a, size_b = slab.sixteens * of_plane * p.element, k * n * p.element
        fetches = slab.fetches * int(kd) * planes
        l0 = count * into_a.startup_cycles + max(size_a / into_a.rate, fetches)
        l0 += conflicts(into_a, size_a, t.l1_slots)
        l0 += moves(into_b, k / g.c0 if p.turned else count, size_b)
        l0 += conflicts(into_b, size_b, t.weight_slots)
        x = int(kd) * planes * slab.pixels * 32 * each
        x, w = (0 if t.resident_input else x), (0 if t.resident else size_b)
        count_x, count_w = slab.moves, slab.loads
        if p.turned:
            count_w += slab.partial * (n // g.c0 - 1)
        count_x, count_w = int(kd) * count_x * (x > 0), int(kd) * count_w * (w > 0)
        loads = moves(port, count_x + count_w, x + w)
        out = drain(device, slab.positions * each, n, p.out)
        if slab.lines and g.w.insert > 1:
            out = max(out, _scattered(device, p, slab, n) * each)
        cube = _cube(device, p, slab, int(kd), planes, n)
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
    reads = reads._replace(shortest=32)
    shared = sharing(device, reads, p.once, written, port.startup_cycles + edges[2])
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


def _cube(device: Device, p: Problem, slab: Slab, kd: int, planes: int, n: int) -> float:
    """Cycles of the products of a slab with ``n`` columns."""
    cube = device.cube
    if cube is None or p.rate not in cube.rates:
        return 0.0
    rate = cube.rates[p.rate]
    wide, deep = ceil_div(n, rate.n), planes * p.geometry.c0 / rate.k
    blocks = slab.sixteens / max(16, rate.m) * deep * wide
    cycles = slab.products * cube.startup_cycles + blocks * rate.cycles
    if cube.odd_block_conflict and (rate.m, rate.k) == (16, p.geometry.c0):
        cycles += slab.odd + (slab.even if wide % 2 else 0)
    return kd * cycles


def _cut(p: Problem, t: Tiling, device: Device, planes: int, images: int) -> Cut:
    g = p.geometry
    return Cut(
        *(g.h, g.w, t.base_m, max(1, t.single_core_m // g.w.out) if t.single_core_m else 0),
        *(t.form, images, planes, min(t.step_planes, planes)),
        *(min(t.step_columns, planes * g.taps), max(1, t.base_k // g.c0)),
        device.path("L1", "L0A", "load3d").window_bytes,
    )


@lru_cache(maxsize=4096)
def _slabs(cut: Cut) -> tuple[list[Slab], bool]:
    """The slabs that read anything, and whether there are others."""
    plane = cut_plane(cut.h, cut.w, cut.base_m, cut.height, form=cut.form)
    live = plane.live()
    dead = live.positions < cut.h.out * cut.w.out
    if not live.slabs:
        return [], True
    rows, columns = _alike(live.rows), _alike(live.columns)
    pairs = [[_read(cut, h, w) for w in live.columns.readings[0]] for h in live.rows.readings[0]]
    sums = np.einsum("ri,cj,ijf->rcf", rows[0], columns[0], np.array(pairs, np.int64))
    high, wide = np.meshgrid(rows[2], columns[2], indexing="ij")
    lines = high if cut.form != "window" else 0 * high
    times = np.multiply.outer(rows[1], columns[1]).reshape(-1)
    alike = np.stack([high * wide, lines, *np.moveaxis(sums, 2, 0)], 2).reshape(len(times), -1)
    if len(alike) > _KINDS:  # the least of neighbours stands for them
        order = np.array_split(np.lexsort(alike.T[::-1]), _KINDS)
        times = np.array([times[some].sum() for some in order])
        alike = np.array([alike[some].min(axis=0) for some in order])
    return [Slab(int(n), *map(int, row)) for n, row in zip(times, alike, strict=True)], dead


#: Kinds of slabs that are told apart.
_KINDS = 16


def _alike(runs: Runs) -> tuple[IntArray, IntArray, IntArray]:
    """Kinds of sums of runs: how often each has which reading, how many there are, outputs."""
    table = np.zeros((runs.slabs, len(runs.readings[0]) + 1), np.int64)
    np.add.at(table, (runs.sums, runs.readings[1]), 1)
    table[runs.sums, -1] = runs.count
    kinds, times = np.unique(table, axis=0, return_counts=True)
    return kinds[:, :-1], times, kinds[:, -1]


@lru_cache(maxsize=1 << 14)
def _read(cut: Cut, h: Reading, w: Reading) -> tuple[int, ...]:
    """What one read of a slab adds to the sums of ``Slab``."""
    tall, taps = stack(h, cut.images).h, h.kernel * w.kernel
    positions, whole = tall.outputs * w.outputs, (cut.h.size, cut.w.size)
    beside = cut.images > 1 and pixel_by_pixel(h, w, whole)
    over, rest = window(tall, w), cut.planes % cut.step_planes
    if beside and cut.step_planes <= MOST_BLOCKS and rest != 1:  # one plane is read as it lies
        over = images_window(cut.images, cut.step_planes, h.size * w.size)
    fetches = 0 if over.plain else over.fetches(0, positions, cut.window)
    products, loads, partial = _steps(
        taps, cut.planes, cut.step_planes, cut.step_columns, cut.columns
    )
    blocks = ceil_div(positions, 16)
    clash = max(0, taps * cut.planes - 2 * products)
    return (
        *(taps, products, blocks * 16 * taps, fetches * taps),
        *((clash, 0) if blocks % 2 else (0, clash)),
        *(h.real * w.real, _moves(cut, h, w, beside=beside), loads, partial),
    )


def _moves(cut: Cut, h: Reading, w: Reading, *, beside: bool) -> int:
    """Moves that bring the input of a read to L1."""
    chunks, whole = ceil_div(cut.planes, cut.step_planes), w.size == cut.w.size
    if cut.images > 1:
        if beside and cut.step_planes <= MOST_BLOCKS:
            return chunks
        return (1 if beside else cut.images) * (chunks if whole else cut.planes)
    if (h.size, w.size) == (h.real, w.real) and whole and h.inputs_apart == 1:
        return chunks
    together = w.insert == 1 and 1 in (w.real, w.inputs_apart)
    return cut.planes * (1 if together else h.real)


@lru_cache(maxsize=4096)
def _steps(taps: int, planes: int, chunk: int, columns: int, step: int) -> tuple[int, int, int]:
    """Products of a read, its loads of weights, and those of them with part of a plane's taps."""
    products = loads = partial = 0
    for plane in range(0, planes, chunk):
        some = min(chunk, planes - plane)
        for held, used in weight_loads(plane, some, planes, (chunk * taps, columns, taps)):
            products += ceil_div(len(used), step)
            loads += held.start == used.start
            partial += len(held) < taps and held.start == used.start
    return products, loads, partial
