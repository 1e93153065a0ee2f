"""Tile sizes for the matmul kernel that are good at once.

Every base tile that fits gets a closed-form estimate of the kernel's time: rounds of tiles over
the cores, each the slowest of cube, MTE1 and MTE2 plus the drain; the least wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npusim.device.spec import Device
from npusim.integers import ceil_div
from npusim.kernels.matmul import Tiling

#: Operands that do not stay in the L2 together: cores side by side share rows and columns.
_BY_WINDOWS: Mapping[str, Any] = {"n_fastest": True, "window": 4, "snake": True, "strided": True}

_SIDES = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512)


def auto_tiling(m: int, k: int, n: int, device: Device, cores: int) -> Tiling:
    """The tiling of an (m, k) by (k, n) product of 16-bit types with the least estimate."""
    candidates = list(_candidates(m, k, n, device))
    times = [_estimate((m, k, n), t, device, cores) for t in candidates]
    return candidates[times.index(min(times))]


def _candidates(m: int, k: int, n: int, device: Device) -> Iterator[Tiling]:
    """Base tiles that fit L0 and L0C, each with the longest K slabs that fit L1."""
    size = {name: device.memories[name].size_bytes for name in ("L1", "L0A", "L0B", "L0C")}
    order = _BY_WINDOWS if device.l2 and (m + n) * k * 2 > device.l2.size_bytes else {}
    for base_m in sorted({min(side, _up(m)) for side in _SIDES}):
        for base_n in sorted({min(side, _up(n)) for side in _SIDES}):
            half = min(size["L0A"] // base_m, size["L0B"] // base_n) // 4  # two slots, 2 bytes
            base_k = min(half // 16 * 16, _up(k), 256)
            step = size["L1"] // 2 // ((base_m + base_n) * max(base_k, 16) * 2)
            if base_k < 16 or base_m * base_n * 4 > size["L0C"] or not step:
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


def _estimate(shape: tuple[int, int, int], t: Tiling, device: Device, cores: int) -> float:
    """Cycles in closed form."""
    m, k, n = shape
    tiles = ceil_div(m, t.base_m) * ceil_div(n, t.base_n)
    rounds = ceil_div(tiles, cores)
    steps, slabs = ceil_div(k, t.base_k), ceil_div(k, t.base_k * t.step_ka)
    base_m, base_n = min(t.base_m, _up(m)), min(t.base_n, _up(n))
    rate = float(device.cube.macs_per_cycle("fp16")) if device.cube is not None else 1.0
    cube = base_m * base_n * k / rate + 4 * steps
    mte1 = device.path("L1", "L0A", "load3d").estimate(base_m * k * 2, steps)
    mte1 += device.path("L1", "L0B", "load3d").estimate(base_n * k * 2, steps)
    loads = 2 * slabs if device.has_path("GM", "L1", "nd2nz") else k / 16 + base_n / 16 * slabs
    # Rows of A are a slab deep, rows of B a tile wide; the L2 gives time to each request for one.
    size, rows = (base_m + base_n) * k * 2, base_m * slabs + k
    mte2 = device.path("GM", "L1").estimate(size, loads)
    requests = rows * device.l2.request_bytes if device.l2 else 0
    shared = min(tiles, cores) * (size + requests) / device.shared_read_rate
    direct = device.has_path("L0C", "GM")
    drain = (
        base_m
        * base_n
        * 4
        / float(device.path(*(("L0C", "GM") if direct else ("UB", "GM"))).bytes_per_cycle)
    )
    hidden = 0.2 if t.l0c_slots > 1 and rounds > 1 else 1.0
    return rounds * (max(cube, mte1, mte2, shared) + drain * hidden) + mte2 / slabs


def _up(value: int) -> int:
    return ceil_div(value, 16) * 16
