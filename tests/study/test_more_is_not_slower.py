"""A design with more of everything is no slower: each point chooses its tilings anew."""

from __future__ import annotations

import random
from itertools import pairwise, product
from pathlib import Path

import pytest

import npusim
from npusim.base.errors import NpusimError
from npusim.device.spec import Device

#: How much slower a larger design may be, as tilings are chosen by estimates.
MARGIN = 1.02

L1 = ("256KiB", "512KiB", "1MiB")
HBM = ("0.8TB/s", "1.6TB/s")


@pytest.mark.slow
def test_more_l1_and_more_bandwidth_are_not_slower(tmp_path: Path) -> None:
    rows = npusim.sweep(
        network="resnet18",
        batch=8,
        device="ascend910b2",
        vary={"memories.L1.size": L1, "main_memory.read": HBM},
        store=tmp_path / "points.sqlite",
    ).rows()
    times = {(row["memories.L1.size"], row["main_memory.read"]): row["time_us"] for row in rows}
    assert len(times) == 6
    for less, more in product(times, times):
        if L1.index(less[0]) <= L1.index(more[0]) and HBM.index(less[1]) <= HBM.index(more[1]):
            assert times[more] <= MARGIN * times[less], (less, more)


NETWORKS = (
    "convnext_tiny",
    "dcgan",
    "mobilenet_v1",
    "mobilenet_v2",
    "r2plus1d_18",
    "resnet18",
    "resnet50",
    "unet",
    "unet_3d",
    "vgg16",
    "wavenet",
)
NPUS = (
    *("ascend310", "ascend310p", "ascend910", "ascend910b1", "ascend910b2", "ascend910b3"),
    *("ascend910b4", "ascend910c", "ascend950pr"),
)

#: Multiples of a device's own figure.
STEPS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3)


def rising(device: Device, name: str, steps: list[float]) -> list[str]:
    """Values of a figure that rise with ``steps``."""
    if name == "groups":
        return [str(max(1, round(device.groups * step))) for step in steps]
    if name == "clock":
        return [f"{device.clock_hz * step / 1e9:.3f}GHz" for step in steps]
    if name == "l2.size":
        assert device.l2 is not None
        return [f"{int(device.l2.size_bytes * step) // 2**20}MiB" for step in steps]
    part, figure = name.rsplit(".", 1)
    if figure == "size":
        size = device.memory(part.removeprefix("memories.")).size_bytes
        return [f"{int(size * step) // 4096 * 4}KiB" for step in steps]
    assert device.l2 is not None
    link = device.l2 if part == "l2" else device.main_memory
    return [f"{link.read_bytes_per_cycle * device.clock_hz * step / 1e9:.1f}GB/s" for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_networks_are_no_slower_on_larger_designs(seed: int) -> None:
    """Of three designs that differ in one figure of a device, none with more is slower."""
    rng = random.Random(seed)
    network, batch = rng.choice(NETWORKS), rng.choice((1, 2, 8))
    device = npusim.load_device(rng.choice(NPUS))
    buffers = [
        f"memories.{one}.size" for one in ("L1", "L0A", "L0C", "UB") if one in device.memories
    ]
    name = rng.choice(["groups", "clock", "main_memory.read", "l2.read", "l2.size", *buffers])
    times = []
    for value in rising(device, name, sorted(rng.sample(STEPS, 3))):
        try:
            larger = npusim.load_device(device.name, {name: value})
        except (
            NpusimError
        ):  # a quarter of a small buffer holds no fractal, or of an odd one no whole
            continue
        times.append((npusim.network(network, batch=batch, device=larger).time_us, value))
    assert len(times) > 1
    for less, more in pairwise(times):
        assert more[0] <= MARGIN * less[0], (network, batch, device.name, name, less, more)
