"""Cores on which a kernel that streams through UB ends first, its launch included."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from npusim.kernels.estimate.costs import launch_cycles, write_rate
from npusim.kernels.estimate.work import Floats
from npusim.language import Device
from npusim.machine.isa.base import Move, Numbers
from npusim.machine.isa.vector import VectorInstruction

#: Largest piece of zeros, as the vendor's kernel has it: 255 repeats. With it 67 MB take 54.0 us on
#: a 910, of which 54 are published.
CLEAR_BYTES = 255 * 256

#: Largest piece of a sum of parts: it loads at full bandwidth.
SUM_BYTES = 8 * 1024

#: Cores whose launch costs nothing are left idle for less than this part of the time on all.
_MUCH = 0.9


class Stream(NamedTuple):
    """The work of a vector kernel on its data, on all of its cores together.

    It moves ``read`` and ``written`` bytes, and issues ``vector`` instructions: each an entry of
    the device's ``vector.ops`` and the bytes it walks through. All of it is in equal pieces,
    ``tasks`` of them where 1, 2, ... cores work; ``loads`` moves bring a piece, which leaves in
    ``stores``. ``cold`` data come from main memory. Of the share of pieces that is ``in_turn`` the
    vector unit clears the slot before it is loaded, so that loads wait for the piece before. Moves
    inside UB take so many ``rows`` of less than a repeat.
    """

    read: int
    written: int
    tasks: Numbers
    vector: tuple[tuple[str, int], ...]
    loads: Numbers = 1
    cold: bool = True
    stores: Numbers = 1
    in_turn: float = 0
    rows: int = 0


def clearing(size: int, cores: int, piece: int) -> Stream:
    """Zeros over ``size`` bytes, in equal pieces of at most so many; as many for each core."""
    used = np.arange(1, cores + 1)
    return Stream(0, size, used * np.ceil(np.ceil(size / used) / piece), (), loads=0, cold=False)


def summing(size: int, parts: int, written: int, cores: int) -> Stream:
    """The sum of so many parts of ``size`` bytes of fp32, of which ``written`` bytes stay."""
    share = np.ceil(size / np.arange(1, cores + 1))
    return Stream(
        read=parts * size,
        written=written,
        tasks=np.ceil(size / np.clip(share, 512, SUM_BYTES)),
        vector=(("add", parts * size),),
        loads=parts,
        cold=False,
    )


def clear_cycles(device: Device, size: int) -> float:
    """Cycles to launch the kernel that clears so many bytes, and of its stores."""
    return _launched_cycles(device, clearing(size, device.count("vector"), CLEAR_BYTES))


def sum_cycles(device: Device, size: int, parts: int) -> float:
    """Cycles to launch the kernel that adds so many parts of ``size`` bytes each, and of itself."""
    return _launched_cycles(device, summing(size, parts, size, device.count("vector")))


def _launched_cycles(device: Device, stream: Stream) -> float:
    cycles = times(device, device.count("vector"), stream)
    return float(launch_cycles(device, "vector", 0) + cycles.min())


def working_cores(device: Device, cores: int, stream: Stream) -> int:
    """Of so many vector cores those on which a stream ends first.

    Each core that takes part has to be launched (``launch.core``), which takes longer than its
    share of a small tensor. Where that costs nothing it is all cores, unless their pieces are so
    badly shared out that fewer gain much.
    """
    cycles = times(device, cores, stream)
    if not device.launch.core_cycles and cycles.min() > _MUCH * cycles[-1]:
        return cores
    return int(np.argmin(cycles)) + 1


def spread_cycles(device: Device, cores: int, kernel: Any) -> float:
    """Cycles of a vector kernel on the best of 1 to ``cores``, with its launch; an estimate.

    ``kernel`` has a ``stream``, as those of ``parts/spread.py``.
    """
    cycles = times(device, cores, kernel.stream(device, cores))
    return float(launch_cycles(device, "vector", 0) + cycles.min())


def times(device: Device, cores: int, stream: Stream) -> Floats:
    """Cycles of a stream on 1, 2, ... ``cores`` vector cores, with the launch of these.

    Loads, the vector unit and stores of different pieces overlap, and all cores share the memories
    behind them.
    """
    used = np.arange(1, cores + 1)
    load, store = device.path("GM", "UB"), device.path("UB", "GM")
    tasks = np.maximum(1, stream.tasks)
    each = np.ceil(tasks / used)
    turning = np.zeros(cores)
    for op, size in stream.vector:
        turning = turning + _vector_cycles(device, op, size / tasks)
    if stream.rows:
        turning = turning + float(device.path("UB", "UB").row_cycles) * stream.rows / tasks
    loading = Move.cycles(load, stream.read / tasks, moves=stream.loads)
    storing = Move.cycles(store, stream.written / tasks, moves=stream.stores)
    # What loads and the vector unit do in turn takes as long as both.
    apart = 1 - stream.in_turn
    shorter = np.minimum(loading, turning)
    slowest = np.maximum(loading + turning - apart * shorter, storing)
    alone = (each - 1) * slowest + loading + turning + storing
    far = stream.cold or device.l2 is None
    reading = device.main_read_rate if far else device.shared_read_rate
    shared = max(stream.read / reading, stream.written / write_rate(device))
    launched = used * device.launch.core_cycles
    return np.asarray(launched + (alone**4 + shared**4) ** 0.25, np.float64)


def _vector_cycles(device: Device, op: str, size: Numbers) -> Numbers:
    """Cycles of a vector instruction over ``size`` bytes; a device may lack its price."""
    unit = device.vector
    if op not in unit.ops:
        return unit.startup_cycles
    return VectorInstruction.cycles(unit, op, size / unit.repeat_bytes)
