"""Costs of a chip as they follow its clock and the sizes of its memories.

A file states energies and areas for one clock and one set of sizes, its reference
(``silicon.clock``, ``silicon.sizes``). At the reference every law here is 1. ``configs/README.md``
has the laws in a table, with their sources.

* The supply is on a straight line over the clock (``Silicon.supply_volt``); dynamic energy on the
  chip goes with its square, static power with the supply itself. ``silicon.voltage_limit`` ends the
  line (``Silicon.most_clock_hz``).
* Logic that is made for a faster clock is larger (``logic_growth``).
* A byte of a larger memory takes more energy (``energy_growth``).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import sqrt
from typing import NamedTuple

from npusim.machine.device.config import figures
from npusim.machine.device.parts import ENERGY, DeviceFigure
from npusim.machine.device.silicon import Silicon
from npusim.machine.device.spec import Device

#: The memory of vector operands, by the role that it has on a chip.
_VECTOR_MEMORIES = ("UB", "AM")


def supply(device: Device) -> float:
    """The supply at the device's clock as a part of the one for which its energies are stated.

    1 where the file has no such line.
    """
    law = device.silicon
    if law is None or not law.has_supply:
        return 1.0
    return float(law.supply_volt(device.clock_hz) / law.voltage)


def logic_growth(device: Device) -> float:
    """The area of multipliers and wires at the device's clock, as a multiple of the reference.

    It grows by ``silicon.clock_area`` of itself where the clock is twice the reference, and shrinks
    in the same measure below.
    """
    law = device.silicon
    if law is None or not law.clock_hz:
        return 1.0
    beyond = Fraction(device.clock_hz, law.clock_hz) - 1
    return float(1 + law.clock_area_percent / 100 * beyond)


class Sized(NamedTuple):
    """A memory whose energy per byte follows its size: its bytes, here and at the reference.

    ``knee`` is the size of which wires take as much of a byte's energy as the cells.
    """

    name: str
    size_bytes: int
    reference_bytes: int
    knee_bytes: int

    @property
    def weight(self) -> float:
        """Energy of a byte, of which the cells take 1."""
        return 1 + sqrt(self.size_bytes / self.knee_bytes)

    @property
    def reference_weight(self) -> float:
        """The same at the reference."""
        return 1 + sqrt(self.reference_bytes / self.knee_bytes)

    @property
    def growth(self) -> float:
        """Energy of a byte as a multiple of that at the reference."""
        return self.weight / self.reference_weight


def sized_memories(device: Device) -> dict[str, Sized]:
    """The memories whose energy follows their size, by name; the L2 is ``l2``."""
    law = device.silicon
    if law is None:
        return {}
    sized = {}
    for name, size, knee in _sizes(device, law):
        if name in law.sizes and knee:
            sized[name] = Sized(name, size, law.sizes[name], knee)
    return sized


def _sizes(device: Device, law: Silicon) -> Iterator[tuple[str, int, int]]:
    """Every memory on the chip by name, its bytes, and the knee of its kind."""
    for name, memory in device.memories.items():
        yield name, memory.size_bytes, law.buffer_knee_bytes
    if device.shared_memory is not None:
        yield "shared_memory", device.shared_memory.size_bytes, law.buffer_knee_bytes
    if device.l2 is not None:
        yield "l2", device.l2.size_bytes, law.l2_knee_bytes


def energy_growth(device: Device, figure: DeviceFigure) -> float:
    """An energy per byte at the sizes of the memories it is of, as a multiple of the reference.

    Of a move these are the memories that it reads and writes, of vector operands that of the vector
    unit. Energies of multiply-adds, of main memory, and of memories without a reference do not
    grow: 1.
    """
    sized = sized_memories(device)
    memories = [sized[name] for name in _memories_of(device, figure) if name in sized]
    if not memories:
        return 1.0
    weight = sum(memory.weight for memory in memories)
    return weight / sum(memory.reference_weight for memory in memories)


def _memories_of(device: Device, figure: DeviceFigure) -> tuple[str, ...]:
    """Names of the memories that bytes of an energy are read from and written to."""
    first, *middle, last = figure.keys
    if last != ENERGY:  # of a multiply-add
        return ()
    if first == "paths":
        path = device.paths[".".join(middle)]
        return path.src, path.dst
    if first == "vector":
        return tuple(m.name for m in device.memories.values() if m.called in _VECTOR_MEMORIES)
    return (first,)


def energy_pj(device: Device, name: str) -> float:
    """pJ of a byte or multiply-add by dotted path, at the device's clock and sizes.

    0 where the file has no such figure.
    """
    figure = figures(device).get(name)
    if figure is None or isinstance(figure.value, tuple):
        return 0.0
    return float(figure.value) * energy_times(device, name, figure)


#: Energies that the supply of the chip has no part in.
_OFF_CHIP = (f"main_memory.{ENERGY}",)


def energy_times(device: Device, name: str, figure: DeviceFigure) -> float:
    """An energy at the device's clock and sizes, as a multiple of what its file states."""
    squared = 1.0 if name in _OFF_CHIP else supply(device) ** 2
    return squared * energy_growth(device, figure)
