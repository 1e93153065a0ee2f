"""The time of a call with its uncertainty: how far it may be off, given how far its figures may be.

Each figure that has a range is tried at both of its ends; what the model leaves out is known from
measured kernels and calls.
"""

from __future__ import annotations

import csv
from functools import cache
from math import hypot
from typing import Any, NamedTuple

from msgspec import Struct

from npusim.base.quantities import format_quantity
from npusim.base.resources import configs
from npusim.machine.device.catalog import ranges
from npusim.machine.device.config import figure_text
from npusim.machine.device.spec import Device
from npusim.results.facts import tables
from npusim.results.facts.replay import Replay


class Effect(NamedTuple):
    """The time of a call with one figure at the ends of its range and all others as they are."""

    figure: str
    low: str
    high: str
    low_us: float  # with the figure at ``low``, which need not be the shorter time
    high_us: float

    def faster_us(self, time_us: float) -> float:
        """How much shorter than ``time_us`` the time is at either end, 0 if it is not."""
        return max(0.0, time_us - min(self.low_us, self.high_us))

    def slower_us(self, time_us: float) -> float:
        """How much longer than ``time_us`` the time is at either end, 0 if it is not."""
        return max(0.0, max(self.low_us, self.high_us) - time_us)


class TimeRange(Struct, frozen=True, kw_only=True):
    """The time of a call with its uncertainty: ``low_us`` to ``high_us`` around ``time_us``.

    Figures are varied one at a time and taken to be independent, so what each adds to the time
    combines as the root of the sum of squares, and so does what each takes from it. ``effects``
    are sorted, the figure that moves the time most first. What the model leaves out, library
    tilings above all, combines in the same way: 80 % of the measured rows of the class lie between
    ``spread`` times the simulated time (``configs/silicon/spreads.csv``).
    """

    time_us: float
    effects: tuple[Effect, ...]
    spread: tuple[float, float] = (1.0, 1.0)

    def __repr__(self) -> str:
        """One line: the time and its ends."""
        ends = f"{self.low_us:.3f} to {self.high_us:.3f} us"
        return f"<TimeRange {self.time_us:.3f} us, {ends}, of {len(self.effects)} figures>"

    @property
    def low_us(self) -> float:
        """The time less what figures and the model take from it."""
        left_out = self.time_us * max(0.0, 1 - self.spread[0])
        figures = (effect.faster_us(self.time_us) for effect in self.effects)
        return self.time_us - hypot(left_out, *figures)

    @property
    def high_us(self) -> float:
        """The time plus what figures and the model add to it."""
        left_out = self.time_us * max(0.0, self.spread[1] - 1)
        figures = (effect.slower_us(self.time_us) for effect in self.effects)
        return self.time_us + hypot(left_out, *figures)

    @property
    def table(self) -> tables.DataFrame:
        """One row per effect: figure, both ends of its range, the time at each."""
        return tables.frame(self._rows(), Effect._fields)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        ends = {"low_us": self.low_us, "high_us": self.high_us, "spread": list(self.spread)}
        return {**ends, "figures": self._rows()}

    def _rows(self) -> list[dict[str, Any]]:
        return [effect._asdict() for effect in self.effects]


@cache
def _spreads() -> dict[tuple[str, str], tuple[float, float]]:
    """Measured over simulated time by product, of ``kernels`` and of ``calls``."""
    text = (configs() / "silicon" / "spreads.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {(row["product"], row["of"]): (float(row["low"]), float(row["high"])) for row in rows}


def time_range(device: Device, time_us: float, replay: Replay, *, kernels: int) -> TimeRange:
    """Vary each figure that has a range and that the time of so many ``kernels`` rests on."""
    effects = []
    for path, ends in ranges(device).items():
        if path in replay.figures:
            low, high = (
                replay.time_us(device.replace(path, format_quantity(end.value, end.kind)))
                for end in ends
            )
            texts = [figure_text(end, device.clock_hz) for end in ends]
            effects.append(Effect(path, texts[0], texts[1], low, high))
    effects.sort(key=lambda effect: -max(effect.faster_us(time_us), effect.slower_us(time_us)))
    # Nothing is known of invented devices.
    spread = _spreads().get((device.product, "calls" if kernels > 1 else "kernels"), (1.0, 1.0))
    return TimeRange(time_us=time_us, effects=tuple(effects), spread=spread)
