"""What a roofline shows, as plain figures: kernels below the roofs of the cores they used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from npusim.device.spec import Device
from npusim.results import metrics
from npusim.results.metrics import Peak
from npusim.timing.trace import KernelRun


class Point(NamedTuple):
    """One kernel: TFLOP/s attained and bounded, FLOP per byte of GM and of main memory."""

    name: str
    attained: float
    bounded: float | None
    per_gm_byte: float | None
    per_memory_byte: float | None

    @property
    def intensities(self) -> tuple[float, ...]:
        """Those that are known, FLOP per byte."""
        return tuple(at for at in (self.per_gm_byte, self.per_memory_byte) if at)


class Roofs(NamedTuple):
    """Read rates in TB/s by name, the peak, and the range of intensities worth showing."""

    rates: dict[str, float]
    peak: Peak | None
    top: float
    left: float
    right: float


def point(device: Device, run: KernelRun, name: str) -> Point:
    """A kernel that multiplies, called ``name``; operations on padding are executed, too."""
    bound = metrics.nearest_bound(run)
    flops = 2 * run.macs
    memory = sum(metrics.main_memory_bytes(run))
    return Point(
        name=name,
        attained=metrics.tflops(device, run.macs, run.cycles),
        bounded=metrics.tflops(device, run.macs, bound.cycles) if bound else None,
        per_gm_byte=flops / run.gm_bytes if run.gm_bytes else None,
        per_memory_byte=flops / memory if memory else None,
    )


def roofs(
    device: Device, runs: Sequence[KernelRun], dtype: str | None, points: Iterable[Point]
) -> Roofs:
    """L2 and main memory, and the highest peak of the cores that ``runs`` used on ``dtype``."""
    seen = tuple(points)
    working = [run for run in runs if run.macs] or list(runs)
    peaks = [metrics.cube_peak(device, run, dtype) for run in working]
    peak = max((one for one in peaks if one is not None), key=lambda one: one.tflops, default=None)
    links = {"main memory read": device.main_read_bytes_per_cycle}
    if device.l2 is not None:
        links = {"L2 read": device.l2.read_bytes_per_cycle, **links}
    rates = {name: float(rate) * device.clock_hz / 1e12 for name, rate in links.items()}
    highest = max((one.bounded or one.attained for one in seen), default=1.0)
    top = peak.tflops if peak is not None else highest
    places = [top / rate for rate in rates.values()]
    places += [at for one in seen for at in one.intensities]
    return Roofs(rates, peak, top, min(places) / 5, max(places) * 5)
