"""Values of constants that suit measured rows: descent, held constants, and further rounds.

A constant that too few rows tell of, or whose shipped value suits the rows with the others moved,
keeps its value. What the broken lines of ``npusim.silicon.fit`` propose is simulated, and taken
only if it is better.

Which figures of a device are fitted, and within which ranges, is asked first. Shipped ranges are
those of ``configs/silicon/fit.yaml`` for the device or for one that is built on the same base; a
device without such relatives has the figures that its file calls fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.quantities import Range, parse_range
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.machine.device.catalog import load_device, ranges
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.silicon import fit
from npusim.silicon.constants import FRACTIONAL, STEPS, Constant, load_constants, stated
from npusim.silicon.simulate import RowOutcome, Task

_FITTED = ("fitted", "hypothesis")

#: The confidence of a figure that nobody has measured; as a figure to fit it means all of them.
ASSUMED = "assumed"


def constants_of(
    name: str, device: Device, source: Path | None = None, extra: Sequence[str] = ()
) -> list[Constant]:
    """Return the constants to fit of a device called ``name`` (a shipped name or a file).

    ``source`` is a list of one's own in the form of ``fit.yaml``; ``extra`` are further figures as
    ``PATH`` or ``PATH=LOW..HIGH``, which takes the place of the range in the list, or "assumed" for
    all of ``assumed_figures``. Raises ``ArgumentError`` or ``ConfigError`` for a figure that the
    device lacks or that has no range, and where there is none to fit.
    """
    listed = load_constants() if source is None else load_constants(source)
    chosen: dict[str, Constant] = {}
    for constant in _nearest(device, listed):
        moved = _moved(name, device, constant)
        if moved is not None:
            chosen.setdefault(constant.path, moved)
    if not chosen:
        provenances = ((path, device.provenance.get(path)) for path in ranges(device))
        fitted = [path for path, of in provenances if of is not None and of.confidence in _FITTED]
        chosen = {path: _extra(name, device, path) for path in fitted}
    for text in extra:
        if text == ASSUMED:
            tied = {path for constant in chosen.values() for path in constant.also}
            for path in assumed_figures(device):
                if path not in chosen and path not in tied:
                    chosen[path] = _extra(name, device, path)
        else:
            moved = _extra(name, device, text)
            also = chosen[moved.path].also if moved.path in chosen else ()
            chosen[moved.path] = replace(moved, also=also)
    if not chosen:
        assumed = assumed_figures(device)
        offered = f", or all {len(assumed)} that are assumed: --figure {ASSUMED}" if assumed else ""
        raise ArgumentError(
            f"{device.name}: there is no figure to fit: its file calls none fitted; give one with "
            f"its range: --figure PATH=LOW..HIGH{offered}"
        )
    return list(chosen.values())


def assumed_figures(device: Device) -> list[str]:
    """Return the figures of time that a device assumes and that have a range, by dotted path.

    Those of ``silicon`` say area and voltage, and cost no time.
    """
    paths = [path for path in ranges(device) if not path.startswith("silicon.")]
    provenance = device.provenance
    return [path for path in paths if path in provenance and provenance[path].confidence == ASSUMED]


def _nearest(device: Device, listed: Sequence[Constant]) -> list[Constant]:
    """The constants of the device itself first, then those of its relatives."""
    direct = [c for c in listed if device.name in c.devices]
    near = [c for c in listed if c not in direct and _related(device, c)]
    return direct + near


def _related(device: Device, constant: Constant) -> bool:
    """True if a device and one of a constant build on each other, or on the same base."""
    return any(_bases(device) & _bases(load_device(name)) for name in constant.devices)


def _bases(device: Device) -> set[str]:
    """The names of the device and of those whose figures it inherits."""
    inherited = {provenance.inherited for provenance in device.provenance.values()}
    return {device.name} | inherited - {""}


def _moved(name: str, device: Device, constant: Constant) -> Constant | None:
    """A constant as one of ``device``; None where it has no such figure.

    A value outside the range widens it: the file of the device knows better. Figures of other
    values are not tied to it.
    """
    described = figures(device)
    figure = described.get(constant.path)
    if figure is None or isinstance(figure.value, tuple) or figure.kind != constant.kind:
        return None
    value = Fraction(figure.value)
    tied = tuple(p for p in constant.also if p in described and described[p].value == figure.value)
    low, high = min(constant.low, value), max(constant.high, value)
    return Constant(constant.path, (name,), constant.kind, low, high, value, tied)


def _extra(name: str, device: Device, text: str) -> Constant:
    """A figure with the range stated in ``PATH=LOW..HIGH``, or else its own."""
    path, equals, stated = text.partition("=")
    described = figures(device)
    figure = described.get(path)
    if figure is None:
        raise ArgumentError(
            f"figure {path!r}: {device.name} has none of that name{suggest(path, described)}"
            if len(suggest(path, described)) < 200
            else f"figure {path!r}: {device.name} has none; `npusim devices show` lists all"
        )
    if isinstance(figure.value, tuple):
        raise ArgumentError(f"figure {path!r} is a {figure.kind}, which is not fitted")
    low, high = (
        parse_range(stated, figure.kind, figure.value, device.clock_hz)
        if equals
        else _own_range(device, path)
    )
    if isinstance(low, tuple) or isinstance(high, tuple) or low == high:
        raise ArgumentError(f"figure {path!r}: expected a range such as {path}=LOW..HIGH")
    ends = (Fraction(low), Fraction(high))
    return Constant(path, (name,), figure.kind, *ends, Fraction(figure.value))


def _own_range(device: Device, path: str) -> Range:
    """The range that a device gives a figure; ``ArgumentError`` if it gives none."""
    ends = ranges(device).get(path)
    if ends is None:
        confidence = device.provenance[path].confidence if path in device.provenance else "unstated"
        raise ArgumentError(
            f"figure {path!r} is {confidence} and has no range; give one: {path}=LOW..HIGH"
        )
    low, high = (end.value for end in ends)
    return low, high


# -- the search ------------------------------------------------------------------------------------


#: Simulates tasks; the text says what for.
Run = Callable[[Sequence[Task], str], list[RowOutcome]]

#: Mean error, as a share of 1, by which values of a constant differ that suit the rows alike; and
#: the share of its range that they may fill for it to be determined.
ALIKE, WIDE = 0.001, 0.5

#: Share of a range on either side of a value that the next round looks at.
_NARROWER = 1 / 8

#: Digits of a fitted value.
_DIGITS = 4

FITTED = "fitted"
KEPT = "kept: suits the rows as it is"
FEW = "hypothesis: too few rows tell of it"
UNSETTLED = "hypothesis: many values suit the rows"
LOOSE = "moved, a hypothesis: many values suit the rows"
UNSEEN = "not looked at: interrupted"


@dataclass(frozen=True)
class FittedFigure:
    """The result of a fit for one constant.

    ``rows`` tell of it; values from ``span[0]`` to ``span[1]`` suit the rows as well as ``value``,
    which is one of them, where the others may move too.
    """

    constant: Constant
    value: Fraction
    verdict: str
    rows: tuple[str, ...] = ()
    span: tuple[Fraction, Fraction] | None = None

    @property
    def moved(self) -> bool:
        """True if the value is another than the shipped one."""
        return self.value != self.constant.shipped

    @property
    def end(self) -> str:
        """Which end of its range the value was moved to, "low" or "high"; "" where to neither.

        Values are rounded, so one within half a step of the first round is at the end.
        """
        low, high = self.constant.low, self.constant.high
        near = (high - low) / (2 * STEPS)
        if self.moved and self.value - low <= near:
            return "low"
        return "high" if self.moved and high - self.value <= near else ""


def changed_figures(values: Iterable[tuple[Constant, Fraction]]) -> dict[str, str]:
    """Figures by dotted path, as text, of constants with values other than the shipped ones."""
    return stated((constant, value) for constant, value in values if value != constant.shipped)


@dataclass
class ConstantSearch:
    """A search from what ``base`` says of the shipped values; ``run`` simulates.

    ``rounds`` of ever narrower ranges follow the first. An interrupt at any time leaves the best
    values that were simulated until then, and ``finished`` False.
    """

    base: Sequence[RowOutcome]
    constants: Sequence[Constant]
    run: Run
    rounds: int = 2
    finished: bool = True
    found: list[FittedFigure] = field(default_factory=list)
    _held: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outcomes = list(self.base)
        self.values = [constant.shipped for constant in self.constants]
        self.loss = fit.loss(self.base, self.base)

    def search(self) -> None:
        """Look for better values; ``values``, ``outcomes``, ``loss`` and ``found`` are the answer.

        The first round looks at one constant after another, so that an interrupt leaves something
        to fit.
        """
        slopes: fit.Slopes = [[] for _ in self.base]
        try:
            for number, constant in enumerate(self.constants):
                text = f"figure {number + 1} of {len(self.constants)}, {constant.path}"
                for row, lines in zip(slopes, self._slopes([constant], text), strict=True):
                    row.extend(lines)
        except KeyboardInterrupt:
            self.finished = False
        seen = min(len(row) for row in slopes)
        determined = fit.determination(self.base, self.constants[:seen], slopes)
        able = [number for number, figure in enumerate(determined) if not figure.is_hypothesis]
        steps, alike = self._settled(slopes, able)
        try:
            self._take(self.constants, steps)
            for place in range(self.rounds if self.finished else 0):
                self._round(sorted(steps), place)
        except KeyboardInterrupt:
            self.finished = False
        for number, constant in enumerate(self.constants):
            rows = determined[number].rows if number < seen else ()
            verdict = UNSEEN if number >= seen else self._held.get(number, FEW)
            span, value = alike.get(number), self.values[number]
            if number in steps:
                wide = span is not None and _is_wide(constant, span)
                verdict = LOOSE if wide else FITTED
                verdict = KEPT if value == constant.shipped else verdict
            ends = span and (min(span[0], value), max(span[1], value))
            self.found.append(FittedFigure(constant, value, verdict, rows, ends))

    def figures(self) -> dict[str, str]:
        """Return the figures of the device that the best values change."""
        return changed_figures(zip(self.constants, self.values, strict=True))

    def _slopes(self, constants: Sequence[Constant], text: str) -> fit.Slopes:
        """Slopes about the best values so far."""
        best = self.figures()

        def simulate(tasks: Sequence[Task]) -> list[RowOutcome]:
            return self.run([(row, best | dict(figures)) for row, figures in tasks], text)

        return fit.simulated_slopes(self.outcomes, constants, simulate)

    def _settled(
        self, slopes: fit.Slopes, numbers: Sequence[int]
    ) -> tuple[dict[int, int], dict[int, tuple[Fraction, Fraction]]]:
        """Levels of the constants that have to move, and for each the values that are alike.

        One at a time, the one that it costs least, they keep the shipped value, as long as that is
        among the values that are alike. Where most of a range is, nothing is known of it.
        """
        moving, least = list(numbers), np.inf
        ends: dict[int, tuple[Fraction, Fraction]] = {}
        while moving:
            steps = fit.descend(self.outcomes, slopes, moving)
            profiles = _profiles(
                fit.Lines.of(self.outcomes, slopes, moving), [steps[n] for n in moving]
            )
            least = min(least, *(float(profile.min()) for profile in profiles))
            costs = []
            for n, profile in zip(moving, profiles, strict=True):
                first, last = _span(profile, least + ALIKE)
                constant = self.constants[n]
                ends.setdefault(n, _ends(constant, first, last))
                costs.append(float(profile[_step(constant)]))
            cheapest = min(range(len(moving)), key=lambda c: costs[c])
            if costs[cheapest] > least + ALIKE:
                return steps, ends
            number = moving.pop(cheapest)
            wide = _is_wide(self.constants[number], ends[number])
            self._held[number] = UNSETTLED if wide else KEPT
        return {}, ends

    def _take(self, constants: Sequence[Constant], steps: dict[int, int]) -> None:
        """Simulate the values at levels, and keep them if they suit the rows better."""
        before, outcomes, error = list(self.values), self.outcomes, self.loss
        for number, step in steps.items():
            value = constants[number].level(step)
            self.values[number] = _rounded(self.constants[number], value)
        if self.values == before:
            return
        try:
            figures = self.figures()
            self.outcomes = self.run([(o.row, figures) for o in self.base], "the fitted figures")
            self.loss = fit.loss(self.base, self.outcomes)
        except KeyboardInterrupt:
            self.loss = np.inf
            raise
        finally:
            if not self.loss < error:
                self.values, self.outcomes, self.loss = before, outcomes, error

    def _round(self, numbers: Sequence[int], place: int) -> None:
        """Look again at narrower ranges about the values so far."""
        share = Fraction(_NARROWER) ** (place + 1)
        pairs = zip(self.constants, self.values, strict=True)
        near = [_near(constant, value, share) for constant, value in pairs]
        slopes: fit.Slopes = [[np.zeros(0)] * len(near) for _ in self.base]
        for number in numbers:
            text = f"round {place + 2}, {near[number].path}"
            for row, lines in zip(slopes, self._slopes([near[number]], text), strict=True):
                row[number] = lines[0]
        self._take(near, fit.descend(self.outcomes, slopes, numbers))


def _profiles(lines: fit.Lines, steps: Sequence[int]) -> list[fit.Array]:
    """The loss at each level of each constant, with the best level of any one other."""
    count = range(len(lines.numbers))
    profiles = []
    for c in count:
        others = [lines.losses(steps, (c, other)).min(axis=1) for other in count if other != c]
        profiles.append(np.min(others, axis=0) if others else lines.losses(steps, (c,)))
    return profiles


def _span(profile: fit.Array, most: float) -> tuple[int, int]:
    """First and last level with a loss of at most ``most``; the best one where there is none."""
    alike = np.flatnonzero(profile <= max(most, float(profile.min())))
    return int(alike[0]), int(alike[-1])


def _ends(constant: Constant, first: int, last: int) -> tuple[Fraction, Fraction]:
    """The values between which levels lie, up to the next level that was looked at."""
    low, high = (constant.level(step) for step in (max(0, first - 1), min(STEPS, last + 1)))
    return _rounded(constant, low), _rounded(constant, high)


def _is_wide(constant: Constant, span: tuple[Fraction, Fraction]) -> bool:
    """True if values that are alike fill so much of the range that the rows tell nothing."""
    return span[1] - span[0] > WIDE * (constant.high - constant.low)


def _step(constant: Constant) -> int:
    """The level nearest the shipped value."""
    share = (constant.shipped - constant.low) / (constant.high - constant.low)
    return round(share * STEPS)


def _near(constant: Constant, value: Fraction, share: Fraction) -> Constant:
    """A constant whose range is a ``share`` of its own, around a value."""
    reach = share * (constant.high - constant.low)
    low, high = max(constant.low, value - reach), min(constant.high, value + reach)
    if constant.kind not in FRACTIONAL:
        low, high = Fraction(round(low)), Fraction(round(high))
    return replace(constant, low=low, high=high, shipped=value)


def _rounded(constant: Constant, value: Fraction) -> Fraction:
    """A value with few digits, within the range."""
    if value.denominator == 1:
        return value
    short = Fraction(f"{float(value):.{_DIGITS}g}")
    return min(max(short, constant.low), constant.high)
