"""The time of a call with each figure of its device at half and at twice its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from msgspec import Struct, structs

from npusim.base.errors import NpusimError
from npusim.machine.device.config import figure_text, figures
from npusim.machine.device.resources import faster, resources, scaled, word_of
from npusim.machine.device.spec import Device
from npusim.results.facts.replay import Retimed, time_on

#: Called with the figures tried so far and how many there are.
Progress = Callable[[int, int], None]


class WhatIf(Struct, frozen=True, kw_only=True):
    """The time of a call with one figure at half and at twice its value; None where it cannot be.

    ``figure`` may be the word of a part of the device, ``hbm`` for one: then all its speeds, which
    ``together`` names, are half or twice as good. Kernels keep their tilings, so
    that what is told is what the program makes of the change.
    """

    figure: str
    value: str
    time_us: float
    half_us: float | None
    double_us: float | None
    together: tuple[str, ...] = ()

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
        values = {name: value for name, value in structs.asdict(self).items() if name != "time_us"}
        return {**values, "together": list(self.together)}


def what_if(
    device: Device,
    time_us: float,
    replay: Retimed,
    progress: Progress | None = None,
    ahead: Callable[[Sequence[Device]], object] | None = None,
) -> tuple[WhatIf, ...]:
    """Each figure the time rests on, and each part of the device that has several of them.

    That which could save most comes first. Two runs each, of programs that are built once. A part
    that saves no more than one of its figures does is left out. ``ahead`` is called with all
    variants before the first is timed.
    """
    current = figures(device)
    together = {
        word_of(name): paths
        for name, paths in resources(device, current, replay.figures).items()
        if len(paths) > 1
    }
    changes: dict[str, list[dict[str, str]]] = {}
    values: dict[str, str] = {}
    for path in current:
        if path in replay.figures:
            texts = [scaled(current[path], factor) for factor in _FACTORS]
            changes[path] = [{path: text} if text else {} for text in texts]
            values[path] = figure_text(current[path], device.clock_hz)
    for word, paths in together.items():
        changes[word] = [faster(current, paths, factor) for factor in _FACTORS]
        values[word] = f"{len(paths)} together"
    variants = {name: [_variant(device, end) for end in ends] for name, ends in changes.items()}
    if ahead is not None:
        ahead([end for ends in variants.values() for end in ends if end is not None])
    effects: dict[str, WhatIf] = {}
    for done, (name, ends) in enumerate(variants.items()):
        if progress is not None:
            progress(done, len(variants))
        half, double = (time_on(end, replay) if end is not None else None for end in ends)
        if half is None and double is None:
            continue
        paths = together.get(name, ())
        row = WhatIf(
            figure=name,
            value=values[name],
            time_us=time_us,
            half_us=half,
            double_us=double,
            together=paths,
        )
        single = [effects[path].gain_us for path in paths if path in effects]
        if row.gain_us > max(single, default=-1.0):
            effects[name] = row
    return tuple(
        sorted(effects.values(), key=lambda row: (-row.gain_us, -row.effect_us, row.figure))
    )


def _variant(device: Device, changed: Mapping[str, str]) -> Device | None:
    """The device with other figures; None where nothing changes, or where it cannot have them."""
    try:
        return device.origin.rebuild(device, changed) if changed else None
    except NpusimError:  # a figure that others bound
        return None


_FACTORS = (Fraction(1, 2), Fraction(2))
