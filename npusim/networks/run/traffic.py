"""Operations of which only the traffic is known: bytes at the rates of main memory."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from npusim.base.integers import IntArray
from npusim.kernels.estimate.costs import launch_cycles
from npusim.machine.device.spec import Device
from npusim.machine.program.program import Program
from npusim.machine.timing.trace import Bound, KernelRun, Trace
from npusim.results.facts.metrics import main_memory_cycles
from npusim.results.shown.network_words import TRAFFIC
from npusim.reuse.launches import figures_within


def traffic_run(device: Device, cores: int, read: int, written: int) -> KernelRun:
    """A launch on so many vector cores, and the cycles that main memory takes for the bytes."""
    cycles = ceil(main_memory_cycles(device, read, written))
    why = "bytes of its values at the rates of main memory"
    return KernelRun(
        name=TRAFFIC,
        tiling="",
        cores=cores,
        cycles=cycles,
        launch_cycles=int(launch_cycles(device, "vector", cores)),
        instructions=0,
        macs=0,
        gm_bytes=read + written,
        pipes=(),
        traffic=(),
        bounds=(Bound(device.main_memory_name, cycles, why),),
        timeline=None,
    )


class TrafficAgain(Struct, frozen=True):
    """Times an operation of which only the traffic is known on variants of its device.

    It has no program: nothing of it is traced, and no other cores are tried.
    """

    device: Device
    cores: int
    read: int
    written: int

    @property
    def figures(self) -> tuple[str, ...]:
        """Dotted paths of the figures its time rests on."""
        links = [f"links.{link.name}" for link in self.device.links.values() if link.traffic]
        used = {"clock", self.device.launch_key, self.device.main_memory_key, *links}
        return tuple(figures_within(tuple(self.device.provenance), frozenset(used)))

    def time_us(self, device: Device) -> float:
        """Microseconds on ``device``."""
        run = traffic_run(device, self.cores, self.read, self.written)
        return device.time_us(run.cycles + run.launch_cycles)

    def traces(self, device: Device) -> tuple[Trace, ...]:
        """Nothing: there is no program."""
        return ()

    def programs(self, device: Device) -> tuple[Program, ...]:
        """Nothing: there is no program."""
        return ()

    def spread_us(self, device: Device) -> float | None:
        """None: its bytes do not depend on how many cores move them."""

    def on_all_cores_us(self, place: int) -> float | None:
        """None: it has no plan."""

    def evenly_us(self, place: int) -> float | None:
        """None: it has no tasks."""

    def causes(self, device: Device) -> tuple[IntArray, ...]:
        """Nothing: there is no program."""
        return ()
