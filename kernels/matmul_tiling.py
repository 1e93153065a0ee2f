"""Tile sizes for the matmul kernel that are good at once."""

from __future__ import annotations

from npusim.device.spec import Device
from npusim.isa.base import ceil_div
from npusim.kernels.matmul import Tiling


def auto_tiling(m: int, k: int, n: int, device: Device, cores: int) -> Tiling:
    """Largest base tile that still gives every core work, filling L0 and then L1.

    Starts from the tile that fills half of L0A, L0B and all of L0C, and halves the longer side
    while fewer tiles than cores would remain.
    """
    size = {name: device.memories[name].size_bytes for name in ("L1", "L0A", "L0B", "L0C")}
    base_m, base_n = _fitting(size, min(128, _up(m)), min(256, _up(n)))
    while ceil_div(m, base_m) * ceil_div(n, base_n) < cores and max(base_m, base_n) > 32:
        if base_n >= base_m:
            base_n = _up(base_n // 2)
        else:
            base_m = _up(base_m // 2)
    half = min(size["L0A"] // base_m, size["L0B"] // base_n) // 2 // 2
    base_k = max(16, min(half // 16 * 16, _up(k), 256))
    step = max(1, min(8, size["L1"] // 2 // ((base_m + base_n) * base_k * 2), ceil_div(k, base_k)))
    l0c = 2 if 2 * base_m * base_n * 4 <= size["L0C"] else 1
    return Tiling(base_m=base_m, base_n=base_n, base_k=base_k, step_k=step, l0c_slots=l0c)


def _fitting(size: dict[str, int], base_m: int, base_n: int) -> tuple[int, int]:
    """Shrink a tile until its accumulator fits L0C and a k step of 16 fits half of L0."""
    while (
        base_m * base_n * 4 > size["L0C"] or base_m * 64 > size["L0A"] or base_n * 64 > size["L0B"]
    ):
        base_m, base_n = (
            (_up(base_m // 2), base_n) if base_m >= base_n else (base_m, _up(base_n // 2))
        )
    return base_m, base_n


def _up(value: int) -> int:
    return ceil_div(value, 16) * 16
