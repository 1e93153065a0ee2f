"""On how many cores a kernel that streams through UB ends first, its launch included."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.tilings.costs import Numbers, write_rate


class Stream(NamedTuple):
    """What a vector kernel does to its data, on all of its cores together.

    It moves ``read`` and ``written`` bytes, and issues ``vector`` instructions: each an entry of
    the device's ``vector.ops`` and the bytes it walks through. All of it is in equal pieces,
    ``tasks`` of them where 1, 2, ... cores work; ``loads`` moves bring a piece. ``cold`` data come
    from main memory.
    """

    read: int
    written: int
    tasks: Numbers
    vector: tuple[tuple[str, int], ...]
    loads: int = 1
    cold: bool = True


def working_cores(device: Device, cores: int, stream: Stream) -> int:
    """Of so many vector cores those on which a stream ends first.

    Each core that takes part has to be launched (``launch.core``), which takes longer than its
    share of a small tensor. Loads, the vector unit and stores of different pieces overlap, and all
    cores share the memories behind them. All cores where launching them costs nothing.
    """
    core = device.launch.core_cycles
    if not core:
        return cores
    used, unit = np.arange(1, cores + 1), device.vector
    load, store = device.path("GM", "UB"), device.path("UB", "GM")
    whole = np.maximum(1, stream.tasks)
    each = np.ceil(whole / used)
    turning = sum(
        unit.startup_cycles + size / whole / unit.repeat_bytes * float(unit.ops.get(op, 0))
        for op, size in stream.vector
    )
    pipes = np.stack(
        [
            each * (stream.loads * load.startup_cycles + stream.read / whole / load.rate),
            each * turning,
            each * (store.startup_cycles + stream.written / whole / store.rate),
        ]
    )
    slowest = pipes.max(axis=0)
    alone = slowest + (pipes.sum(axis=0) - slowest) / each
    main = float(device.main_memory.read_bytes_per_cycle)
    reading = main if stream.cold or device.l2 is None else float(device.shared_read_rate)
    shared = max(stream.read / reading, stream.written / write_rate(device))
    cycles = used * core + (alone**4 + shared**4) ** 0.25
    return int(np.argmin(cycles)) + 1
