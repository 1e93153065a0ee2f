"""The tilings of a matrix product that tuning chooses from, and the least time of one.

Tiles cut M and N evenly; of what fits L0 and L1 the largest sizes are tried and some shares of
them. Tiles follow each other in runs, dealt out, or in windows that share rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf
from typing import Any, NamedTuple

from npusim.base.integers import ceil_div, round_up
from npusim.device.spec import Device
from npusim.kernels.tilings.fit import cube_sizes, most_rows
from npusim.kernels.tilings.floor import (
    Item,
    Reads,
    conflicts,
    drain,
    even_sides,
    fewer,
    least_cycles,
    moves,
    pieces,
    products,
    sharing,
)
from npusim.kernels.tilings.matmul import Shape, Tiling, parts_of_k

#: Longest side of a tile, and most K of one product.
_MOST, _MOST_K = 512, 512

#: How tiles follow each other over the cores.
_ORDERS: tuple[dict[str, Any], ...] = (
    {},
    {"strided": True},
    {"n_fastest": True, "window": 4, "snake": True, "strided": True},
)


def matmul_tilings(shape: Shape, device: Device, cores: int) -> Iterator[Tiling]:
    """Tilings whose buffers fit, those that add up parts of K among them where they may."""
    size, element = cube_sizes(device), shape.dtype.bytes
    flags = _flags(device)
    for base_m, base_n in product(even_sides(shape.m, _MOST), even_sides(shape.n, _MOST)):
        l0 = min(size["L0A"] // base_m, size["L0B"] // base_n) // 2 // element // 16 * 16
        if l0 < 16 or base_m > most_rows(device, shape.out):
            continue
        parts = parts_of_k(shape, (base_m, base_n), cores, 3)
        tiles = shape.groups * ceil_div(shape.m, base_m) * ceil_div(shape.n, base_n)
        orders = _ORDERS if tiles > cores else _ORDERS[:1]
        for depth in parts:
            k = depth or shape.k
            deepest = min(l0, round_up(k, 16), _MOST_K)
            for base_k in {round_up(one, 16) for one in fewer(deepest, 2)}:
                slab = size["L1"] // 2 // ((base_m + base_n) * element * base_k)
                steps = min(slab, ceil_div(k, base_k))
                for step, flag, order, ahead in product(
                    fewer(steps, 2, 4) if steps else (),
                    [one for one in flags if base_m * base_n * 4 * one[0] <= size["L0C"]],
                    orders,
                    (False, True),
                ):
                    yield Tiling(
                        base_m=base_m,
                        base_n=base_n,
                        base_k=base_k,
                        step_ka=step,
                        step_kb=step,
                        l0c_slots=flag[0],
                        unit_flag=flag[1],
                        preload=ahead,
                        single_core_k=round_up(depth, base_k) if depth else 0,
                        **order,
                    )


def _flags(device: Device) -> tuple[tuple[int, bool], ...]:
    """Slots of L0C, and whether product and drain interlock."""
    flag = device.cube is not None and device.cube.unit_flag and device.has_path("L0C", "GM")
    return ((2, False), (1, True)) if flag else ((2, False), (1, False))


def matmul_least(shape: Shape, t: Tiling, device: Device, cores: int) -> tuple[float, int]:
    """(cycles, cores in use) below what the simulation takes, of row-major operands."""
    cores = min(cores, t.cores or cores)
    into = [device.path("L1", memory, "load3d") for memory in ("L0A", "L0B")]
    nz, e = device.has_path("GM", "L1", "nd2nz"), shape.dtype.bytes
    port, c0 = device.path("GM", "L1", "nd2nz" if nz else ""), 32 // e
    slots = 1 if t.l1_halves else min(t.l1a_slots, t.l1b_slots)
    items, reads = [], Reads()
    last = Last()  # of every tile's last base block, the least
    for (a, m), (b, n), (c, k) in product(
        pieces(shape.m, t.base_m),
        pieces(shape.n, t.base_n),
        pieces(shape.k, t.single_core_k or shape.k),
    ):
        count, steps = a * b * c, ceil_div(k, t.base_k)
        rest = k - (steps - 1) * t.base_k
        sizes = [round_up(side, 16) * e for side in (m, n)]
        l0 = [
            moves(path, steps, size * k) + conflicts(path, size * k, slots)
            for path, size in zip(into, sizes, strict=True)
        ]
        pipe = drain(device, m, n, shape.out.bytes, nd=True)
        cube = products(device, shape.math, steps, m, k, n)
        last = last.least(
            min(moves(p, 1, s * rest) for p, s in zip(into, sizes, strict=True)),
            products(device, shape.math, 1, m, rest, n),
            0.0 if t.unit_flag else pipe,
        )
        # Without nd2nz every column of NZ is a move of its own, of rows of 32 bytes.
        slabs_b = ceil_div(k, t.base_k * t.step_kb) * (1 if nz else ceil_div(n, c0))
        loads = moves(port, slabs_b, n * k * e, k if nz else k * n / c0)
        reads = reads.more(count * n * k * e, n * e if nz else 32)
        if not t.full_load_a:
            slabs_a, deep = ceil_div(k, t.base_k * t.step_ka), min(k, t.base_k * t.step_ka)
            rows = m * slabs_a if nz else m * k / c0
            loads += moves(port, slabs_a if nz else ceil_div(k, c0), m * k * e, rows)
            reads = reads.more(count * m * k * e, deep * e if nz else 32)
        items.append(Item(count, (cube, sum(l0), loads, pipe)))
    first = port.startup_cycles
    around = (
        first + last.load + last.drain,
        first + last.product + last.drain,
        last.load + last.product + last.drain,
        first + last.load + (0.0 if t.unit_flag else last.product),
    )
    once, written = (shape.m + shape.n) * shape.k * e, shape.m * shape.n * shape.out.bytes
    used = min(cores, sum(item.times for item in items))
    return least_cycles(items, around, cores, sharing(device, reads, once, written)), used


class Last(NamedTuple):
    """The least cycles of what follows each other at the end of a tile."""

    load: float = inf
    product: float = inf
    drain: float = inf

    def least(self, *others: float) -> Last:
        """The lesser of both, one by one."""
        return Last(*map(min, self, others))
