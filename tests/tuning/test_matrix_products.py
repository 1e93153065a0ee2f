"""Automatic tilings of matrix products: no slower with a larger machine, and near the best."""

from __future__ import annotations

from typing import Any

import pytest

import npusim

SHAPES = [(784, 1536, 384), (196, 768, 3072), (512, 2048, 512), (64, 512, 1000), (1024, 1024, 1024)]


def time_us(shape: tuple[int, int, int], device: Any) -> float:
    m, k, n = shape
    a, b = npusim.spec((m, k), "fp16"), npusim.spec((k, n), "fp16")
    return npusim.ops.matmul(a, b, device=device, timeline=False).time_us


LARGER: dict[str, list[dict[str, Any]]] = {
    "L1": [{"memories.L1.size": size} for size in ("256KiB", "512KiB", "1MiB")],
    "L0C": [{"memories.L0C.size": size} for size in ("64KiB", "128KiB", "256KiB")],
    "cores": [{"groups": str(groups)} for groups in (12, 16, 24, 32, 48)],
    "main memory": [{"main_memory.read": rate} for rate in ("0.8TB/s", "1.6TB/s", "3.2TB/s")],
}


@pytest.mark.parametrize("name", ["ascend910b2", "ascend950pr"])
@pytest.mark.parametrize("what", LARGER)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_larger_machine_is_no_slower(shape: tuple[int, int, int], what: str, name: str) -> None:
    """With twice the L1 slabs were twice as long, and the first of them came late."""
    least = float("inf")
    for changes in LARGER[what]:
        time = time_us(shape, npusim.load_device(name, changes))
        assert time <= 1.02 * least, changes
        least = min(least, time)


@pytest.mark.parametrize(
    ("shape", "most"), [((1280, 16, 1000), 1.25), ((512, 512, 512), 1.1)], ids=str
)
def test_it_is_near_what_a_search_finds(shape: tuple[int, int, int], most: float) -> None:
    """The first is all drain, of which estimates know little."""
    m, k, n = shape
    a, b = npusim.spec((m, k), "fp16"), npusim.spec((k, n), "fp16")
    found = npusim.tune(
        npusim.ops.matmul, a, b, out_dtype="fp16", device="ascend910b2", budget=40, store=None
    )
    auto = npusim.ops.matmul(a, b, out_dtype="fp16", device="ascend910b2")
    best = npusim.ops.matmul(a, b, out_dtype="fp16", device="ascend910b2", tiling=found.tiling)
    assert best.time_us <= auto.time_us <= most * best.time_us
