"""Operations of which only the traffic is known: bytes at the rates of main memory."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from npusim.kernels.estimate.costs import launch_cycles
from npusim.machine.device.spec import Device
from npusim.machine.timing.trace import KernelRun
from npusim.results.shown.network_words import TRAFFIC


def traffic_run(device: Device, cores: int, read: int, written: int) -> KernelRun:
    """A launch on so many vector cores, and the cycles that main memory takes for the bytes."""
    main = device.main_memory
    needed = [
        Fraction(read) / main.read_bytes_per_cycle,
        Fraction(written) / main.write_bytes_per_cycle,
    ]
    for link in device.links.values():  # a bus that reads and writes share
        through = read * ("read_miss" in link.traffic) + written * ("evict" in link.traffic)
        if link.scope == "chip":
            needed.append(Fraction(through) / link.bytes_per_cycle)
    return KernelRun(
        name=TRAFFIC,
        tiling="",
        cores=cores,
        cycles=ceil(max(needed)),
        launch_cycles=int(launch_cycles(device, "vector", cores)),
        instructions=0,
        macs=0,
        gm_bytes=read + written,
        pipes=(),
        traffic=(),
        bounds=(),
        timeline=None,
    )
