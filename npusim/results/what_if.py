"""What the time of a call would be with each figure of its device halved and doubled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any

from npusim.device.catalog import figure_text
from npusim.device.config import Figure, figures
from npusim.device.spec import Device
from npusim.errors import NpusimError
from npusim.quantities import format_quantity
from npusim.results.uncertainty import Replay

#: Called with the figures tried so far and how many there are.
Report = Callable[[int, int], None]

#: Kinds of figures that can be nothing at all.
_MAY_BE_NONE = ("cycles", "fraction_cycles", "duration")


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The time of a call with one figure at half and at twice its value; None where it cannot be.

    Kernels keep their tilings, so that what is told is what the program makes of the change.
    """

    figure: str
    value: str
    time_us: float
    half_us: float | None
    double_us: float | None

    @property
    def gain_us(self) -> float:
        """How much time the better of the two takes away, 0 if neither does."""
        return max(0.0, *(self.time_us - us for us in self._ends))

    @property
    def effect_us(self) -> float:
        """How much the time moves at most, either way."""
        return max((abs(self.time_us - us) for us in self._ends), default=0.0)

    @property
    def _ends(self) -> tuple[float, ...]:
        return tuple(us for us in (self.half_us, self.double_us) if us is not None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "figure": self.figure,
            "value": self.value,
            "half_us": self.half_us,
            "double_us": self.double_us,
        }


def what_if(
    device: Device, time_us: float, replay: Replay, report: Report | None = None
) -> tuple[WhatIf, ...]:
    """Each figure the time rests on, that which could save most first.

    Two runs per figure, of programs that are built once.
    """
    known = {path: one for path, one in figures(device).items() if path in replay.figures}
    found = []
    for done, (path, figure) in enumerate(known.items()):
        if report is not None:
            report(done, len(known))
        texts = (scaled(figure, factor) for factor in _FACTORS)
        half, double = (time_with(device, {path: text}, replay) if text else None for text in texts)
        if half is None and double is None:
            continue
        value = figure_text(figure, device.clock_hz)
        found.append(
            WhatIf(figure=path, value=value, time_us=time_us, half_us=half, double_us=double)
        )
    return tuple(sorted(found, key=lambda one: (-one.gain_us, -one.effect_us, one.figure)))


_FACTORS = (Fraction(1, 2), Fraction(2))


def time_with(device: Device, changed: Mapping[str, str], replay: Replay) -> float | None:
    """The time with other figures, in microseconds; None where the device cannot have them."""
    try:
        return replay.time_us(device.origin.rebuild(device, changed))
    except NpusimError:  # a figure that others bound, or a program that needs it
        return None


def scaled(figure: Figure, factor: Fraction) -> str | None:
    """The text of a figure times ``factor``, None where that is no such figure.

    Whole numbers are rounded down.
    """
    if figure.kind == "bool":
        return None
    if isinstance(figure.value, tuple):
        m, k, n, cycles = figure.value
        if factor < 1:
            cycles *= 2
        elif cycles % 2 == 0:
            cycles //= 2
        else:
            k *= 2
        return format_quantity((m, k, n, cycles), figure.kind)
    value = Fraction(figure.value) * factor
    if isinstance(figure.value, int):
        value = Fraction(floor(value))
    none_left = not value and figure.kind not in _MAY_BE_NONE
    return None if none_left or value == figure.value else format_quantity(value, figure.kind)
