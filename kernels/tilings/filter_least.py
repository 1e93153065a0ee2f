"""The least time of a filter gradient in closed form: what tuning rules tilings out by."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from npusim.convolution import Convolution
from npusim.device.spec import Device
from npusim.integers import ceil_div
from npusim.kernels.parts.plane import Plane
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


class Problem(NamedTuple):
    """A gradient: its shape, the cube's rate, bytes of an operand element, bytes read once."""

    shape: Convolution
    rate: str
    element: int
    once: int


class Part(NamedTuple):
    """What one part of K of a tile takes at least: steps, products, positions in sixteens.

    ``positions`` are real ones; ``pixels`` those of one plane of x.
    """

    steps: float
    products: float
    sixteens: float
    positions: float
    pixels: float


def filter_least(p: Problem, t: Tiling, device: Device, cores: int) -> tuple[float, int, bool]:
    """(cycles, cores in use, whether parts add up) below what the simulation takes."""
    if t.single_core_k:
        return 0.0, 1, False
    s = p.shape
    cut = _cut(s, t.slab_k, t.form)
    taps, turns = (1, s.taps) if t.form == "taps" else (s.taps, 1)
    parts, some = _parts(p, t, cut, turns)
    if not some:
        return 0.0, 1, False
    path_a = "load3d_transpose" if device.has_path("L1", "L0A", "load3d_transpose") else "transpose"
    into_a, into_b = device.path("L1", "L0A", path_a), device.path("L1", "L0B", "load3d")
    port, items, reads, written = device.path("GM", "L1"), [], Reads(), 0.0
    tail = inf
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
        if on:  # steps that go on are as few as whole ones
            one = one._replace(products=one.positions / t.base_k, sixteens=one.positions)
        times, columns = a * b * turns * parts, n * s.c0
        planes = ceil_div(n, taps)
        size_a, size_b = one.sixteens * m * p.element, one.sixteens * columns * p.element
        l0 = moves(into_a, one.products, size_a) + conflicts(into_a, size_a, t.slots_of_dy)
        l0 += moves(into_b, one.products, size_b) + conflicts(into_b, size_b, t.slots_of_x)
        x, dy = one.pixels * planes * 32, one.positions * m * p.element
        # Of a group of tiles the operand that they share may come once.
        every = [t.group if t.keeps == kept else 1 for kept in ("x", "dy")]
        x, dy, moved = x / every[0], dy / every[1], 1 / every[0] + 1 / every[1]
        out, laps = drain(device, m, columns, 4), max(1, min(t.passes, int(one.steps) // t.images))
        cube = products(device, p.rate, one.products, m, one.sixteens, columns)
        loads = moves(port, moved * ceil_div(int(one.steps), t.images), x + dy)
        items.append(Item(times, (cube, l0, loads, laps * out)))
        longest = (planes, ceil_div(m, s.c0)) if t.images > 1 else (1, 1)  # planes in a row
        reads = reads.more(times * x, 32 * cut.most_pixels * longest[0])
        reads = reads.more(times * dy, 32 * cut.most_positions * longest[1])
        reads = reads._replace(shortest=32)
        # All passes but the first add.
        written += times * m * columns * 4 * (1 + (laps - 1) * adding)
        tail = min(tail, out)
    tail = 0.0 if t.unit_flag else tail
    edges = around(into_a, into_b, port, tail)
    used = min(cores, t.cores or cores)
    adds = parts > 1 and not t.deterministic
    shared = sharing(device, reads, p.once, written * (adding if adds else 1))
    cycles = least_cycles(items, edges, used, shared)
    shares = ceil_div(sum(item.times for item in items), t.group)
    return cycles, min(used, shares), adds


@lru_cache(maxsize=512)
def _cut(shape: Convolution, slab_k: int, form: str) -> Plane:
    return cut_plane(shape, slab_k, form=form)


def _parts(p: Problem, t: Tiling, cut: Plane, turns: int) -> tuple[int, list[Part | None]]:
    """How many sums are added into one tile, and by filter depth what the least of them takes."""
    key = (p.shape, t.slab_k, t.form, t.base_k, t.k_parts, t.k_order)
    return _parts_of(*key, turns)


@lru_cache(maxsize=4096)
def _parts_of(
    s: Convolution, slab_k: int, form: str, base_k: int, k_parts: int, order: str, turns: int
) -> tuple[int, list[Part | None]]:
    cut, axis = _cut(s, slab_k, form), s.axis(0)
    depths = [
        sum(axis.real(out, kd) is not None for out in range(axis.out)) for kd in range(s.kernel[0])
    ]
    rows, columns = cut.rows, cut.columns
    count = np.multiply.outer(rows.count, columns.count).reshape(-1)
    pixels = np.multiply.outer(rows.real, columns.real).reshape(-1)
    slabs = len(count) // turns
    if not slabs or not any(depths):
        return 1, []
    if turns > 1:  # each place of the filter has slabs of its own: the least of any
        each = np.array([[0.0, 0.0, 0.0, 0.0, 0.0]])
        return 1, [Part(*each[0]) if depth else None for depth in depths]
    table = np.stack(
        [np.ones_like(count), -(-count // base_k), -(-count // 16) * 16, count, pixels]
    )
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
