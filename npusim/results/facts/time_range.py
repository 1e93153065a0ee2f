"""The time of a call with its uncertainty: how far it may be off, given how far its figures may be.

Each figure that has a range is tried at both of its ends; how far measured times are from simulated
ones is known from kernels, calls and steps of the same class (``spread``).
"""

from __future__ import annotations

from math import hypot
from typing import Any, NamedTuple

from msgspec import Struct

from npusim.base.quantities import format_quantity
from npusim.machine.device.catalog import ranges
from npusim.machine.device.config import USER, figure_text
from npusim.machine.device.spec import Device
from npusim.results.facts import tables
from npusim.results.facts.replay import Replay
from npusim.results.facts.spread import NO_SPREAD, Spread, spread_of


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

    80 % of the measured times of the class of ``work`` lie within the factor of ``spread``, as rows
    show that were predicted without themselves. Where none of them was measured on such a chip, its
    figures add to that: they are varied one at a time and taken to be independent, so what each
    adds to the time combines as the root of the sum of squares, and so does what each takes from
    it. ``effects`` are sorted, the figure that moves the time most first.
    """

    time_us: float
    effects: tuple[Effect, ...]
    spread: Spread = NO_SPREAD
    work: str = ""

    def __repr__(self) -> str:
        """One line: the time and its ends."""
        ends = f"{self.low_us:.3f} to {self.high_us:.3f} us"
        return f"<TimeRange {self.time_us:.3f} us, {ends}, of {len(self.effects)} figures>"

    @property
    def low_us(self) -> float:
        """The time less what figures and the model take from it."""
        left_out = self.time_us * (1 - 1 / self.spread.factor)
        if self.spread.rows:  # their errors are those of the figures, too
            return self.time_us - left_out
        figures = (effect.faster_us(self.time_us) for effect in self.effects)
        return self.time_us - hypot(left_out, *figures)

    @property
    def high_us(self) -> float:
        """The time plus what figures and the model add to it."""
        left_out = self.time_us * (self.spread.factor - 1)
        if self.spread.rows:
            return self.time_us + left_out
        figures = (effect.slower_us(self.time_us) for effect in self.effects)
        return self.time_us + hypot(left_out, *figures)

    @property
    def table(self) -> tables.DataFrame:
        """One row per effect: figure, both ends of its range, the time at each."""
        return tables.frame(self._rows(), Effect._fields)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return {
            "low_us": self.low_us,
            "high_us": self.high_us,
            "work": self.work,
            "spread": self.spread.to_json(),
            "figures": self._rows(),
        }

    def _rows(self) -> list[dict[str, Any]]:
        return [effect._asdict() for effect in self.effects]


def time_range(device: Device, time_us: float, replay: Replay, work: str) -> TimeRange:
    """Vary each figure that has a range and that the time of a class of ``work`` rests on."""
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
    spread = spread_of(device.product, work)
    if any(provenance.source == USER[0] for provenance in device.provenance.values()):
        spread = spread._replace(rows=0)  # nobody measured a chip with a user's figures
    return TimeRange(time_us=time_us, effects=tuple(effects), spread=spread, work=work)
