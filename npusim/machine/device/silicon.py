"""The cost of a chip as silicon: area and power, and the supply that its clock needs."""
# ruff: noqa: RUF009 - figure returns dataclass fields, which is what belongs there

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from npusim.machine.device.parts import figure


def _cost(key: str, unit: str, default: Any = Fraction(0)) -> Any:
    """Return the field of a cost of silicon that a file may leave out."""
    return figure(key, unit, default, digest="unless empty")


@dataclass(frozen=True, kw_only=True)
class Silicon:
    """What a chip costs whatever it does: a proxy of its area, and the power of standing still.

    The supply rises with the clock on a straight line: ``threshold`` at no clock, ``voltage`` at
    ``clock_hz``. For that clock, and for ``sizes``, all energies on the chip, areas of logic and
    the static power are stated; ``npusim.machine.device.scaling`` has the laws elsewhere.
    """

    #: area of memories and L2
    sram_mm2: Fraction = figure("sram", "density")
    #: by type: area of what does one multiply-add per cycle
    mac_um2: Mapping[str, Fraction] = figure("macs", "map:area")
    #: area of a byte per cycle of a core's moves and of links but the chip's
    wires_um2: Fraction = _cost("wires", "area")
    #: area of a TB/s of the L2, read or written, and of links of the whole chip
    crossbar_um2: Fraction = _cost("crossbar", "area")
    #: area of a TB/s of the interface to main memory
    phy_um2: Fraction = _cost("phy", "area")
    #: power all the time, for the area
    static_per_mm2: Fraction = _cost("static", "power")
    #: the clock for which energies, `macs`, `wires` and `static` hold
    clock_hz: int = _cost("clock", "frequency", 0)
    #: the supply at that clock
    voltage: Fraction = _cost("voltage", "voltage")
    #: the supply at which the chip stands still; clocks are in between and beyond on a straight
    #: line
    threshold: Fraction = _cost("threshold", "voltage")
    #: the highest supply; a clock that needs more is refused
    voltage_limit: Fraction = _cost("voltage_limit", "voltage")
    #: by which `macs` and `wires` are larger at twice the `clock`, and so on a straight line
    clock_area_percent: Fraction = _cost("clock_area", "share")
    #: by memory, `l2` and `shared_memory` included: the size for which its energies hold; those of
    #: others do not follow their size
    sizes: Mapping[str, int] = field(
        default_factory=dict,
        metadata={"key": "sizes", "unit": "map:size", "digest": "unless empty"},
    )
    #: size of a private memory, or `shared_memory`, whose wires take as much energy as its cells
    buffer_knee_bytes: int = _cost("buffer_knee", "size", 0)
    #: the same of the L2, whose wires are those to the cores
    l2_knee_bytes: int = _cost("l2_knee", "size", 0)

    @property
    def has_supply(self) -> bool:
        """True if the line of supplies is stated."""
        return bool(self.clock_hz and self.voltage)

    def supply_volt(self, clock_hz: int) -> Fraction:
        """Volts at a clock, on the line of supplies, which must be stated."""
        rise = (self.voltage - self.threshold) * Fraction(clock_hz, self.clock_hz)
        return self.threshold + rise

    @property
    def most_clock_hz(self) -> int | None:
        """The clock at which the supply reaches its limit; None without a limit or a line."""
        if not self.has_supply or not self.voltage_limit:
            return None
        times = (self.voltage_limit - self.threshold) / (self.voltage - self.threshold)
        return int(self.clock_hz * times)
