"""Results of a study: a row per point, as a data frame, a file, a plot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

from npusim.base.errors import ArgumentError, NpusimError
from npusim.base.quantities import parse_quantity
from npusim.base.yamltree import suggest
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figures
from npusim.machine.device.spec import Device
from npusim.networks.network import RESULTS
from npusim.results.facts.fact import names_of
from npusim.results.facts.number_text import counted, percent_text
from npusim.results.facts.point import COSTS, DESIGN, TIMES, PointFact
from npusim.results.facts.point import GOALS as POINT_GOALS
from npusim.results.facts.tables import DataFrame, frame
from npusim.results.saved import Answer
from npusim.results.shown.figure import Figure
from npusim.results.shown.figures import studies
from npusim.results.shown.figures.studies import Varied
from npusim.results.shown.report import Report
from npusim.results.shown.study import explored, report
from npusim.results.writers.plots import Axes, draw
from npusim.study.formula import GOALS, Formula, goal, limit
from npusim.study.points import MeasuredPoint
from npusim.study.space import Study
from npusim.study.subject import DEVICE, NETWORK, OPERATOR, Row, Setting, option_names, split

#: Columns after the varied names; a promise to users. Those of gradients are a network's, those of
#: phases, of memory that is taken and of traffic to main memory a step's.
COLUMNS = (
    *names_of(TIMES),
    *(f"{part}_us" for part in (*RESULTS, "other", "layout")),
    "forward_us",
    "backward_us",
    "optimizer_us",
    *names_of(COSTS),
    "kept_bytes",
    "peak_bytes",
    "fetched_bytes",
    "written_back_bytes",
    *names_of(DESIGN),
    "bottleneck",
    "bottleneck_saves",
    "retiled",
    "error",
)

#: Those that are whole numbers, which they stay beside points that failed and have none.
_COUNTS = (
    "cycles",
    "buffer_bytes",
    "kept_bytes",
    "peak_bytes",
    "fetched_bytes",
    "written_back_bytes",
)


class Tabled(Answer, ABC):
    """A result that is one table, as a data frame and as a file."""

    @property
    @abstractmethod
    def table(self) -> DataFrame:
        """A row per point."""

    @property
    def frame(self) -> DataFrame:
        """``table`` by its older name."""
        return self.table

    @abstractmethod
    def rows(self) -> list[Row]:
        """``table`` as plain values."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return {"rows": self.rows()}


@dataclass(frozen=True, kw_only=True)
class SweepResult(Tabled):
    """Every point of a study and what was measured there, in the study's order."""

    study: Study
    measured: tuple[MeasuredPoint, ...]

    def __repr__(self) -> str:
        """One line: what was varied, how many points, how many of them failed."""
        what = self.study.fixed.get(NETWORK) or self.study.fixed.get(OPERATOR, "")
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<SweepResult {what} over {', '.join(self.study.varied)}: {len(self)}{failed}>"

    def __len__(self) -> int:
        """Number of points."""
        return len(self.measured)

    @property
    def failed(self) -> tuple[MeasuredPoint, ...]:
        """Points without a time."""
        return tuple(point for point in self.measured if point.error)

    def rows(self) -> list[Row]:
        """A row per point: the varied names as texts, times, what changed its tiling, its error.

        ``retiled`` names the layers and kernels that ran with other tile sizes than at the first
        point with the same options, that is, on another design.
        """
        first_tilings: dict[tuple[str, ...], Row] = {}
        rows = []
        for setting, measured in zip(self.study.points(), self.measured, strict=True):
            names = option_names(setting)
            options = tuple(f"{name}={text}" for name, text in setting.items() if name in names)
            tilings = measured.row.get("tilings", {})
            before = tilings
            if not measured.error:
                before = first_tilings.setdefault(options, tilings)
            retiled = [
                kernel
                for kernel in {**before, **tilings}
                if before.get(kernel) != tilings.get(kernel)
            ]
            rows.append(
                {
                    **{name: setting[name] for name in self.study.varied if name in setting},
                    **{name: measured.row[name] for name in COLUMNS if name in measured.row},
                    "retiled": ", ".join(retiled),
                    "error": measured.error,
                }
            )
        return rows

    @cached_property
    def table(self) -> DataFrame:
        """``rows`` as a data frame, with the columns that any point has."""
        rows = self.rows()
        present = {name for row in rows for name in row}
        columns = [name for name in COLUMNS if name in present]
        table = frame(rows, [*self.study.varied, *columns])
        if not self.failed:
            return table
        counts = [name for name in _COUNTS if name in table]
        return table.astype(dict.fromkeys(counts, "Int64"))

    def as_report(self) -> Report:
        """The report as data; the page is made of it."""
        return report(self.study.fixed, self._values, self.rows())

    @property
    def _values(self) -> dict[str, list[str]]:
        """The texts of each varied name that any point has, in their order."""
        points = list(self.study.points())
        values = {}
        for name in self.study.varied:
            texts = dict.fromkeys(point[name] for point in points if name in point)
            if texts:
                values[name] = list(texts)
        return values

    def plot(self, x: str = "", y: str = "", kind: str = "", ax: Axes | None = None) -> Axes:
        """Time over what was varied, on ``ax`` or a figure of its own.

        ``kind`` is "line" (a line per combination of the other names), "heat" (over ``x`` and
        ``y``) or "pareto" (time against ``x``, with the points that none beats in both); without
        one it is a line, or a heat map of two longer axes. Raises ``ArgumentError`` for names that
        were not varied.
        """
        for name in (x, y):
            if name and name not in self.study.varied:
                raise ArgumentError(f"{name} was not varied{suggest(name, self.study.varied)}")
        rows = [row for row in self.rows() if not row["error"]]
        drawing = figure(self.study, self._values, rows, x=x, y=y, kind=kind)
        return draw(drawing, ax)


Values = tuple[float, ...]


def unbeaten(points: Sequence[Values]) -> list[bool]:
    """The Pareto front: True for points that no other point beats.

    A point beats another that is nowhere smaller, and larger in at least one value.
    """
    order = sorted(range(len(points)), key=lambda number: points[number])
    front: list[Values] = []
    is_on_front = [False] * len(points)
    for number in order:  # whoever beats a point comes before it
        point = points[number]
        if not any(rival != point and _nowhere_larger(rival, point) for rival in front):
            is_on_front[number] = True
            front.append(point)
    return is_on_front


def _nowhere_larger(point: Values, other: Values) -> bool:
    return all(value <= others for value, others in zip(point, other, strict=True))


@dataclass(frozen=True, kw_only=True)
class Exploration(Tabled):
    """Points in the order in which they were looked at; all ``goals`` are better when smaller.

    Points beyond one of ``limits`` are not on the front. ``searched`` is the ``optuna.Study``
    behind it, for Optuna's own plots and tools; None where all points were measured without Optuna.
    """

    study: Study
    goals: tuple[str, ...]
    limits: tuple[str, ...] = ()
    points: tuple[tuple[Setting, MeasuredPoint], ...]
    searched: Any

    def __repr__(self) -> str:
        """One line: what was looked for over what, in how many points."""
        what = self.study.fixed.get(NETWORK) or self.study.fixed.get(OPERATOR, "")
        return (
            f"<Exploration {what}: {', '.join(self.goals)} over {', '.join(self.study.varied)}: "
            f"{len(self.points)} of {len(self.study):,} points, {sum(self.on_front)} unbeaten>"
        )

    @property
    def failed(self) -> tuple[MeasuredPoint, ...]:
        """Points without values."""
        return tuple(measured for _, measured in self.points if measured.error)

    @cached_property
    def on_front(self) -> tuple[bool, ...]:
        """True for points within the limits that no other of these beats."""
        allowed = [
            number
            for number, (_, measured) in enumerate(self.points)
            if within(measured, self.limits)
        ]
        values = [values_of(self.points[number][1].row, self.goals) for number in allowed]
        front = {number for number, on in zip(allowed, unbeaten(values), strict=True) if on}
        return tuple(number in front for number in range(len(self.points)))

    def rows(self) -> list[Row]:
        """A row per point: the varied names, what was measured, goals, ``front`` and ``error``.

        With limits, ``allowed`` says which points keep them, and ``misses`` by how much others are
        beyond: ``"0.2 % too slow"``.
        """
        rows = []
        for (setting, measured), on_front in zip(self.points, self.on_front, strict=True):
            row: Row = {name: setting[name] for name in self.study.varied}
            row |= {name: measured.row[name] for name in COLUMNS if name in measured.row}
            if not measured.error:
                row |= {name: goal(name).value(measured.row) for name in self._made_up}
            if self.limits:
                row["allowed"] = within(measured, self.limits)
                row["misses"] = "" if measured.error else misses(measured.row, self.limits)
            rows.append({**row, "front": on_front, "error": measured.error})
        return rows

    @property
    def _made_up(self) -> tuple[str, ...]:
        """The goals that are no columns by themselves."""
        return tuple(name for name in self.goals if name not in GOALS)

    def cheapest(self, share: float = 0.02) -> list[Row]:
        """For each goal but the first, the point with the least of it among the best of the first.

        These are at most ``share`` above the least of the first goal. A row is one of ``rows`` with
        the goal as ``least``; all of them are on the front.
        """
        front = [row for row in self.rows() if row["front"]]
        if not front:
            return []
        most = min(row[self.goals[0]] for row in front) * (1 + share)
        near = [row for row in front if row[self.goals[0]] <= most]
        return [
            {**min(near, key=lambda row: (row[name], row[self.goals[0]])), "least": name}
            for name in self.goals[1:]
        ]

    def nearly(self, share: float = 0.02) -> list[Row]:
        """The points that miss a limit by at most ``share`` of it, and gain something by that.

        They come by what they miss; each is better in a goal than any that keeps the limits or
        misses them by less. Where no point is within the limits, it is the one that misses least,
        however much that is. A row is one of ``rows``.
        """
        rows = self.rows()
        values: dict[int, Values] = {}
        beyond: dict[int, float] = {}
        for place, (_, measured) in enumerate(self.points):
            if not measured.error:
                values[place] = values_of(measured.row, self.goals)
                beyond[place] = excess(measured.row, self.limits)
        order = sorted(beyond, key=lambda place: beyond[place])
        if order and beyond[order[0]] > 0:
            return [rows[order[0]]]
        rivals = [place for place in order if beyond[place] == 0]
        useful: list[int] = []
        for place in order:
            if not 0 < beyond[place] <= share:
                continue
            if not any(_nowhere_larger(values[rival], values[place]) for rival in rivals):
                useful.append(place)
                rivals.append(place)
        return [rows[place] for place in useful]

    @property
    def bounds(self) -> dict[str, list[tuple[str, float]]]:
        """Limits that are of a single goal, by that goal: the limit's text, and its number."""
        bounds: dict[str, list[tuple[str, float]]] = {}
        for name in self.goals:
            for text in self.limits:
                number = limit(text).number_for(name)
                if number is not None:
                    bounds.setdefault(name, []).append((text, number))
        return bounds

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the front does not say.

        That no other point is left, and which figures cost nothing in any goal.
        """
        notes = []
        if len(self.points) == len(self.study):
            notes.append(f"all {counted(len(self.points), 'point')} were measured")
        formulas = [*map(goal, self.goals), *map(limit, self.limits)]
        names = ", ".join(unpriced(self.study, formulas))
        if names:
            notes.append(
                f"{names}: no goal or limit prices it, so that the best value for the time costs "
                "nothing; keep in mind what the hardware would take"
            )
        return tuple(notes)

    @cached_property
    def table(self) -> DataFrame:
        """``rows`` as a data frame."""
        rows = self.rows()
        columns = [name for name in COLUMNS if any(name in row for row in rows)]
        verdicts = ["allowed", "misses", "front"] if self.limits else ["front"]
        before_error = len(columns) - 1
        columns[before_error:before_error] = [*self._made_up, *verdicts]
        return frame(rows, [*self.study.varied, *columns])

    @property
    def front(self) -> DataFrame:
        """The points that none beats, by the first goal; several may have the same values."""
        return self.table[self.table["front"]].sort_values(list(self.goals), ignore_index=True)

    def as_report(self) -> Report:
        """The report as data; the page is made of it."""
        return explored(self)

    def plot(self, x: str = "", y: str = "", ax: Axes | None = None) -> Axes:
        """The points over two goals (the second and the first), with the front.

        With one goal, the best so far over the points. Raises ``ArgumentError`` for names that are
        no goals.
        """
        for name in (x, y):
            if name and name not in self.goals:
                raise ArgumentError(f"{name} is no goal{suggest(name, self.goals)}")
        rows = [row for row in self.rows() if not row["error"]]
        if not rows:
            raise ArgumentError("nothing to draw: no point has values")
        y = y or next((goal for goal in self.goals if goal != x), self.goals[0])
        x = x or next((goal for goal in self.goals if goal != y), "")
        if not x:
            drawn = studies.so_far(y, rows, self.bounds.get(y, ()), title=title(self.study))
            return draw(drawn, ax)
        goals = [x, y, *(goal for goal in self.goals if goal not in (x, y))]
        drawn = studies.goals(self.study.varied, goals, rows, self.bounds, title(self.study))
        return draw(drawn, ax)


def values_of(row: Row, goals: Sequence[str]) -> Values:
    """The goals of a measured row."""
    return tuple(goal(name).value(row) for name in goals)


def within(measured: MeasuredPoint, limits: Sequence[str]) -> bool:
    """True for a point that has values and keeps all limits."""
    return not measured.error and all(limit(text).value(measured.row) <= 0 for text in limits)


def excess(row: Row, limits: Sequence[str]) -> float:
    """The distance of a measured row beyond the limit that it misses most, as a share; 0 within."""
    return max((limit(text).excess(row) for text in limits), default=0.0)


def misses(row: Row, limits: Sequence[str]) -> str:
    """The limits that a measured row misses, each with by how much: ``"0.2 % too slow"``."""
    texts = []
    for text in limits:
        beyond = limit(text).excess(row)
        if not beyond:
            continue
        share = f"{percent_text(beyond, 1)} " if beyond < inf else ""
        texts.append(f"{share}{_miss_text(text)}")
    return " and ".join(texts)


def _miss_text(text: str) -> str:
    """Words for a point beyond a limit: those of its goal where it is of one alone."""
    missed = limit(text)
    if missed.floor:
        return f"below {text}"
    for fact in POINT_GOALS:
        if missed.number_for(fact.name) is not None:
            return fact.too_much
    return f"beyond {text}"


# -- plots --------------------------------------------------------------------------------------

KINDS = ("line", "heat", "pareto")

#: Values on an axis from which two of them make a heat map rather than lines.
_MANY = 4


def figure(
    study: Study, varied: Varied, rows: Sequence[Row], *, x: str, y: str, kind: str
) -> Figure:
    """``SweepResult.plot``: an ``x`` or ``y`` that is "" is the next varied name, longest first."""
    names = studies.longest_first(varied)
    if not names or not rows:
        raise ArgumentError("nothing to draw: no point that was varied has a time")
    has_two_long_axes = len(names) == 2 and min(map(len, varied.values())) >= _MANY
    chosen = kind or ("heat" if has_two_long_axes else "line")
    if chosen not in KINDS:
        raise ArgumentError(f"kind is {kind!r}; it is one of {', '.join(KINDS)}")
    across = x or next(name for name in names if name != y)
    if chosen == "line":
        return studies.lines(varied, rows, across, title(study))
    if chosen == "pareto":
        return studies.over_values(across, _numbers(study, varied, across), rows, title(study))
    down = y or next((name for name in names if name != across), "")
    if not down:
        raise ArgumentError("a heat map needs two varied names; use kind='line'")
    return studies.heat(varied, rows, across, down, title(study))


def _numbers(study: Study, varied: Varied, name: str) -> Mapping[str, float]:
    """The values of a name by their texts, in base units."""
    texts = varied[name]
    device = load_device(study.fixed[DEVICE]) if DEVICE in study.fixed else None
    figure = figures(device).get(name) if device is not None else None
    try:
        if device is None or figure is None:
            return {text: float(text) for text in texts}
        values = [parse_quantity(text, figure.kind, device.clock_hz) for text in texts]
        numbers = [float(value) for value in values if not isinstance(value, tuple)]
        return dict(zip(texts, numbers, strict=True))
    except ValueError:
        raise ArgumentError(
            f"a Pareto front needs numbers, {name} has {', '.join(texts)}"
        ) from None


def title(study: Study) -> str:
    """The subject of a study, and what is fixed at all points, on one line."""
    parts = [study.fixed.get(NETWORK) or study.fixed.get(OPERATOR, "")]
    for name, text in study.fixed.items():
        if name == DEVICE:
            parts.append(text)
        elif name not in (NETWORK, OPERATOR):
            parts.append(f"{name} {text}")
    return ", ".join(parts)


# -- what no goal prices ----------------------------------------------------------------------


def unpriced(study: Study, formulas: Iterable[Formula]) -> Iterator[str]:
    """The varied figures that none of ``formulas`` makes dearer or cheaper at the same time."""
    wanted = {name for formula in formulas for name in formula.names}
    first = next(study.points())
    options = (*option_names(first), DEVICE)
    for axis in study.axes:
        if axis.name in options:
            continue
        devices: list[Device] = []
        for value in (axis.values[0], axis.values[-1]):
            with suppress(NpusimError):  # a point that the device refuses
                devices.append(split({**first, axis.name: value}).device)
        if not any(_differ(fact, devices) for fact in POINT_GOALS if fact.name in wanted):
            yield axis.name


def _differ(fact: PointFact, devices: Sequence[Device]) -> bool:
    """True if devices have different prices of a goal, whatever runs on them."""
    if fact.priced is None:
        return False
    prices = [fact.priced(device) for device in devices]
    return any(price != prices[0] for price in prices)
