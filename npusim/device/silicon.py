"""What a chip costs as silicon: area and power, and the supply that its clock needs."""
# ruff: noqa: RUF009 - figure returns dataclass fields, which is what belongs there

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from npusim.device.parts import figure


def _cost(key: str, unit: str, default: Any = Fraction(0)) -> Any:
    """Return the field of a cost of silicon that a file may leave out."""
    return figure(key, unit, default, digest="unless empty")


@dataclass(frozen=True, kw_only=True)
class Silicon:
    """What a chip costs whatever it does: a proxy of its area, and the power of standing still.

    The supply rises with the clock on a straight line: ``threshold`` at no clock, ``voltage`` at
    ``clock_hz``, for which all energies on the chip and the static power are stated.
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
    #: the clock for which energies and `static` hold
    clock_hz: int = _cost("clock", "frequency", 0)
    #: the supply at that clock
    voltage: Fraction = _cost("voltage", "voltage")
    #: the supply at which the chip stands still; clocks are in between and beyond on a straight
    #: line
    threshold: Fraction = _cost("threshold", "voltage")
