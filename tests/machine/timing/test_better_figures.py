"""A better device makes no fixed program slower: random pairs, and two that used to."""

from __future__ import annotations

from itertools import pairwise

import pytest

from npusim.base.dtypes import FP16
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.tiling import Tiling
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.reuse.launches import Again
from tests.machine.timing.better_figures import pairs

#: Share by which a better figure may make a program slower.
TOLERATED = 0.02


def assert_not_slower(first: int, count: int) -> int:
    """Hold the pairs of some programs against ``TOLERATED``; returns how many there are."""
    found = list(pairs(first, count))
    wrong = [pair for pair in found if pair.slower > TOLERATED]
    assert not wrong, "\n".join(map(str, wrong))
    return len(found)


def test_some_random_pairs() -> None:
    assert assert_not_slower(0, 12) > 60


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 320, 40))
def test_two_thousand_random_pairs(first: int) -> None:
    assert assert_not_slower(first, 40) > 200


@pytest.mark.parametrize(
    ("shape", "rates"),
    [((4096, 1024, 4096), (1.0, 1.2, 1.6, 2.4)), ((2048, 2048, 2048), (0.8, 1.0, 1.2, 1.6))],
)
def test_more_bandwidth_of_main_memory_helps(
    shape: tuple[int, int, int], rates: tuple[float, ...]
) -> None:
    # In step, cores fell out of it when the memory was slow, and were faster for it by 3 to 5 %.
    m, k, n = shape
    a, b, c = Tensor("a", (m, k), FP16), Tensor("b", (k, n), FP16), Tensor("c", (m, n), FP16, "out")
    kernel = Matmul(Tiling(base_m=128, base_n=256, base_k=64), a, b, c)
    device = load_device("ascend910b2")
    again = Again((kernel,), (), tuple(range(device.groups)), "fast", device)
    times = [again.time_us(device.replace("main_memory.read", f"{rate}TB/s")) for rate in rates]
    assert times[0] > times[-1]
    assert all(later < 1.005 * earlier for earlier, later in pairwise(times))
