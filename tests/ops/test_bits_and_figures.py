"""Figures of a device change the bits of a result only through the tiling, which is reported.

Operands are random floats, so that the order of additions shows. Devices differ in figures of every
kind: speeds, start-ups, queues, sizes of memories, the cache, the number of cores.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import NpusimError
from npusim.base.quantities import format_quantity
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from tests.sampled import crossed, some

Call = Callable[[Device], npusim.Result]

#: Figures that say how numbers are rounded.
ARITHMETIC = ("cube.hf32_bits",)

FACTORS = ("1/8", "1/3", "1/2", "2", "3", "8")


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def product(device: Device) -> npusim.Result:
    return npusim.ops.matmul(numbers(0, 70, 300), numbers(1, 300, 50), device=device)


def backward(device: Device) -> npusim.Result:
    dy, x, w = numbers(0, 3, 24, 9, 8), numbers(1, 3, 20, 9, 8), numbers(2, 24, 20, 3, 3)
    return npusim.ops.convolution_backward(dy, x, w, (24,), padding=1, device=device)


def strided(device: Device) -> npusim.Result:
    dy, x, w = numbers(0, 2, 24, 5, 4), numbers(1, 2, 20, 9, 8), numbers(2, 24, 20, 1, 1)
    return npusim.ops.convolution_backward(dy, x, w, stride=2, device=device, output_mask=(
        True, True, False))  # fmt: skip


def variants(name: str, count: int) -> list[Device]:
    """The device, and others with some of their figures times 1/8 to 8, as far as they can be."""
    rng, device = Random(f"{name} changed figures"), npusim.load_device(name)
    known = {path: one for path, one in figures(device).items() if path not in ARITHMETIC}
    found = [device]
    while len(found) < count:
        changed = device
        for path in rng.sample(list(known), rng.randint(4, 24)):
            value, factor = known[path].value, Fraction(rng.choice(FACTORS))
            if known[path].kind == "bool" or isinstance(value, tuple):
                continue
            whole = isinstance(value, int)
            text = format_quantity(max(1, int(value * factor)) if whole else value * factor,
                                   known[path].kind)  # fmt: skip
            try:
                changed = changed.replace(path, text)
            except NpusimError:  # a figure that others bound
                continue
        found.append(changed)
    return found


@pytest.mark.drawn
@pytest.mark.compiled
@pytest.mark.parametrize(
    ("name", "call"), crossed(["tiny", "ascend910b2", "ascend910"], [product, backward, strided])
)
def test_equal_tilings_give_equal_bits(name: str, call: Call) -> None:
    seen: dict[tuple[Any, ...], tuple[bytes, ...]] = {}
    times, runs = set(), 0
    for device in variants(name, some(20)):
        try:
            result = call(device)
        except NpusimError:  # no tile fits, or main memory is too small
            continue
        runs += 1
        times.add(result.time_us)
        tiling = tuple((run.name, run.tiling) for run in result.runs)
        bits = tuple(one.tobytes() for one in result.outputs or () if one is not None)
        assert seen.setdefault(tiling, bits) == bits, tiling
    assert runs > some(20) // 2, "most variants can compute it"
    assert 3 * len(times) > runs, "figures do move the time"
    assert len(seen) < runs, "some tilings are met again"
