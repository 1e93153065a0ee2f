"""The least time of a filter gradient in closed form: what tuning rules tilings out by."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from npusim.base.integers import IntArray, ceil_div, round_up
from npusim.device.parts import Path
from npusim.device.spec import Device
from npusim.kernels.parts.plane import Plane
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.kernels.tilings.conv_filter import Tiling, cut_plane, runs_on
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
from npusim.language import Window
from npusim.shapes.convolution import Convolution


class Problem(NamedTuple):
    """A gradient: its shape, the cube's rate, bytes of an operand element, bytes read once."""

    shape: Convolution
    rate: str
    element: int
    once: int


class Part(NamedTuple):
    """What one part of K of a tile takes at least: slabs, products, and positions as the cube pads
    them; real ones, pixels of one plane of x, and fetches by img2col of a column of x; ``down``
    those of dy.
    """

    steps: float
    products: float
    padded: float
    positions: float
    pixels: float
    fetches: float
    down: float = 0.0


def filter_least(p: Problem, t: Tiling, device: Device, cores: int) -> tuple[float, int, bool]:
    """(cycles, cores in use, whether parts add up) below what the simulation takes."""
    if t.single_core_k:
        return 0.0, 1, False
    s = p.shape
    cut = _cut(s, t.slab_k, t.form)
    path_a = "load3d_transpose" if device.has_path("L1", "L0A", "load3d_transpose") else "transpose"
    into_a, into_b = device.path("L1", "L0A", path_a), device.path("L1", "L0B", "load3d")
    taps, turns = (1, s.taps) if t.form == "taps" else (s.taps, 1)
    parts, some = _parts(p, t, into_b.window_bytes, turns)
    if not some:
        return 0.0, 1, False
    port, items, reads, written = device.path("GM", "L1"), [], Reads(), 0.0
    tail = first = inf
    adding = device.l2.atomic_factor if device.l2 is not None else 1
    on = t.images > 1 and path_a == "load3d_transpose" and runs_on(s, t.form)
    for kd, (a, m), (b, n) in product(
        range(s.kernel[0]),
        pieces(min(s.plan.cout_g, s.cout1 * s.c0), t.base_m),
        pieces(min(s.plan.cin1_g, s.cin1) * taps, t.base_n // s.c0),
    ):
        one = some[kd]
        if one is None:
            continue
        one = _running_on(p, t, (into_a, into_b), one) if on else one
        times, columns = a * b * turns * parts, n * s.c0
        planes, l0 = ceil_div(n, taps), _l0(p, t, (into_a, into_b), one, (m, n))
        x, dy = one.pixels * planes * 32, one.positions * m * p.element
        # Of a group of tiles the operand that they share may come once.
        every = [t.group if t.keeps == kept else 1 for kept in ("x", "dy")]
        x, dy, moved = x / every[0], dy / every[1], 1 / every[0] + 1 / every[1]
        out, laps = drain(device, m, columns, 4), max(1, min(t.passes, int(one.steps) // t.images))
        cube = products(device, p.rate, one.products, m, one.padded, columns)
        loads = moves(port, moved * ceil_div(int(one.steps), t.images), x + dy)
        items.append(Item(times, (cube, l0, loads, laps * out)))
        longest = (planes, ceil_div(m, s.c0)) if t.images > 1 else (1, 1)  # planes in a row
        reads = reads.more(times * x, 32 * cut.most_pixels * longest[0])
        reads = reads.more(times * dy, 32 * cut.most_positions * longest[1])
        reads = reads._replace(shortest=32)
        # All passes but the first add.
        written += times * m * columns * 4 * (1 + (laps - 1) * adding)
        tail = min(tail, out)
        least = cut.least_pixels * planes * 32 + cut.least_positions * m * p.element
        first = min(first, min(t.images, int(one.steps)) * least / port.rate)
    tail = 0.0 if t.unit_flag else tail
    edges = around(into_a, into_b, port, tail)
    # Both operands are there before the first load to L0.
    more = (first, first + port.startup_cycles, 0.0, first)
    edges = tuple(edge + one for edge, one in zip(edges, more, strict=True))
    used = min(cores, t.cores or cores)
    adds = parts > 1 and not t.deterministic
    written *= adding if adds else 1
    shared = sharing(device, reads, p.once, written, port.startup_cycles + edges[2])
    cycles = least_cycles(items, edges, used, shared)
    shares = ceil_div(sum(item.times for item in items), t.group)
    return cycles, min(used, shares), adds


@lru_cache(maxsize=512)
def _cut(shape: Convolution, slab_k: int, form: str) -> Plane:
    return cut_plane(shape, slab_k, form=form)


def _l0(p: Problem, t: Tiling, into: tuple[Path, Path], one: Part, tile: tuple[int, int]) -> float:
    """Cycles in which both operands of a part of a tile come to L0."""
    (into_a, into_b), (m, n), c0 = into, tile, p.shape.c0
    size_a, size_b = one.padded * m * p.element, one.padded * n * c0 * p.element
    # One channel block alone is read as it lies, whatever its window.
    across = one.fetches * n if n > 1 or p.shape.taps > 1 else 0
    cycles = moves(into_a, one.products, size_a, ticks=one.down * (m // c0) * (m > c0))
    cycles += moves(into_b, one.products, size_b, ticks=across)
    return (
        cycles + conflicts(into_a, size_a, t.slots_of_dy) + conflicts(into_b, size_b, t.slots_of_x)
    )


def _running_on(p: Problem, t: Tiling, into: tuple[Path, Path], one: Part) -> Part:
    """A part whose steps go on from image to image."""
    full, rest = divmod(int(one.steps), t.images)
    positions, loads = round(one.positions / one.steps), [(full, t.images), (1, rest)]
    # Of too many blocks steps do not go on.
    blocks = max(t.base_m * t.step_m, t.base_n * t.step_n) // p.shape.c0

    def fetches(path: Path, step: int) -> float:
        row = Window(1, (positions - 1) * step + 1, stride_w=step)
        each = (n * row.fetches(0, some * positions, path.window_bytes) for n, some in loads)
        return float(sum(each)) if blocks <= MOST_BLOCKS else 0.0

    return one._replace(
        products=sum(n * ceil_div(some * positions, t.base_k) for n, some in loads),
        padded=sum(n * round_up(some * positions, p.shape.c0) for n, some in loads),
        fetches=fetches(into[1], p.shape.step(2)),
        down=fetches(into[0], 1),
    )


def _parts(p: Problem, t: Tiling, window: int, turns: int) -> tuple[int, list[Part | None]]:
    """How many sums are added into one tile, and by filter depth what the least of them takes."""
    key = (p.shape, t.slab_k, t.form, t.base_k, t.k_parts, t.k_order)
    return _parts_of(*key, window, turns)


def _fetches(cut: Plane, count: IntArray, window: int) -> IntArray:
    """Cycles in which img2col fetches a column of each slab, where it is more than a copy."""
    found = np.zeros(count.shape, np.int64)
    for i, w in enumerate(cut.columns.readings[0]):
        if w.kernel == w.stride == 1:
            continue
        here = cut.columns.readings[1] == i
        reach = w.dilation * (w.kernel - 1) + 1
        across = (w.size + w.before + w.after - reach) // w.stride
        row = Window(1, across * w.stride + 1, stride_w=w.stride)
        sizes, which = np.unique(count[:, here], return_inverse=True)
        each = [row.fetches(0, int(size), window) for size in sizes]
        found[:, here] = np.array(each)[which].reshape(len(count), -1)
    return found.reshape(-1)


@lru_cache(maxsize=4096)
def _parts_of(
    s: Convolution,
    slab_k: int,
    form: str,
    base_k: int,
    k_parts: int,
    order: str,
    window: int,
    turns: int,
) -> tuple[int, list[Part | None]]:
    cut, axis = _cut(s, slab_k, form), s.axis(0)
    depths = [
        sum(axis.real(out, kd) is not None for out in range(axis.out)) for kd in range(s.kernel[0])
    ]
    rows, columns = cut.rows, cut.columns
    fetches = _fetches(cut, np.multiply.outer(rows.count, columns.count), window)
    count = np.multiply.outer(rows.count, columns.count).reshape(-1)
    pixels = np.multiply.outer(rows.real, columns.real).reshape(-1)
    slabs = len(count) // turns
    if not slabs or not any(depths):
        return 1, []
    if turns > 1:  # each place of the filter has slabs of its own: the least of any
        return 1, [Part(*(0.0,) * 6) if depth else None for depth in depths]
    padded = -(-count // s.c0) * s.c0
    table = np.stack([np.ones_like(count), -(-count // base_k), padded, count, pixels, fetches])
    steps = [s.n * depth * slabs for depth in depths if depth]
    parts = min(k_parts, *steps)
    found: list[Part | None] = []
    for depth in depths:
        if not depth:
            found.append(None)
            continue
        total, planes = s.n * depth * slabs, s.n * depth
        if parts == 1:
            found.append(Part(*(float(row.sum()) * planes for row in table)))
            continue
        walk = np.repeat(table, planes, 1) if order == "slab" else np.tile(table, (1, planes))
        part = ((np.arange(total) + 1) * parts - 1) // total
        sums = [np.bincount(part, row, parts).min() for row in walk]
        found.append(Part(*map(float, sums)))
    return parts, found
