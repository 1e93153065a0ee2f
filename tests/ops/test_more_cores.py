"""What more cores do: the same numbers, less time, and no help where memory is the limit."""

from __future__ import annotations

import numpy as np

import npusim
from npusim.machine.device.spec import Device

PARA = {"strides": [1, 1], "padding": [0] * 4, "dilations": [1] * 4}


def gradient(device: Device, cores: int, *, data: bool = False) -> npusim.Result:
    """dw of a 1x1 convolution, 128 -> 128 channels on 40x40."""
    shape = (1, 8, 40, 40, 16)
    rng = np.random.default_rng(3)
    x, dy = (
        rng.standard_normal(shape).astype(np.float16) if data else npusim.spec(shape, "fp16")
        for _ in range(2)
    )
    return npusim.ops.conv2d_backprop_filter(
        x, dy, [128, 128, 1, 1], PARA, device=device, cores=cores
    )


def test_time_falls_and_falls_less_where_memory_is_the_limit() -> None:
    wide = npusim.load_device("tiny").replace("l2.read", "512B/cycle")
    fast = wide.replace("main_memory.read", "256B/cycle")  # all four cores at full speed
    slow = wide.replace("main_memory.read", "16B/cycle")  # a quarter of what one core can take
    speedup = {
        name: gradient(device, 0b1).cycles / gradient(device, 0b1111).cycles
        for name, device in (("fast", fast), ("slow", slow))
    }
    assert speedup["fast"] > 2 > speedup["slow"] > 0.98
    limited = gradient(slow, 0b1111)
    assert limited.bottleneck == "HBM"
    assert "HBM read bound" in limited.text()  # the report says why it is no faster
