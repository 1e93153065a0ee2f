"""Points of a study: lines, maps, what no other point beats, and what moves a goal.

A search among tilings in pictures: a map of times, and times against bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.results.facts.number_text import binary_unit, us_text
from npusim.results.facts.point import goal_fact
from npusim.results.facts.tables import DataFrame
from npusim.results.shown import palette
from npusim.results.shown.figure import Bars, Cells, Figure, FigureAxis, Key, LineMark, Mark, Words

#: A point: the varied names as texts, and its figures.
Row = Mapping[str, Any]
#: The values of each varied name, in their order.
Varied = Mapping[str, Sequence[str]]

#: How many times the least the most is that a logarithmic axis shows.
_LOG_FROM = 5


def scaled(row: Row, goal: str) -> float:
    """A goal in the unit it is shown in."""
    return float(row[goal]) / goal_fact(goal).per_unit


def longest_first(varied: Varied) -> list[str]:
    """Names by how many values they have."""
    return sorted(varied, key=lambda name: -len(varied[name]))


# ---------------------------------------------------------------- times

#: What tells the values of a name apart: of the first name colour, of the second dashes, of all
#: others markers.
_DASHES, _MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P")


def lines(varied: Varied, rows: Sequence[Row], x: str, title: str = "") -> Figure:
    """Times over the values of ``x``, which stand evenly; a line for each combination of others."""
    where = {text: rank for rank, text in enumerate(varied[x])}  # powers of two lie evenly
    others = longest_first({name: values for name, values in varied.items() if name != x})
    points_of: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for row in (row for row in rows if x in row):
        line = tuple(row.get(name, "") for name in others)
        points_of.setdefault(line, []).append((where[row[x]], row["time_us"]))
    looks = [_looks(varied[name], rank) for rank, name in enumerate(others)]
    marks = []
    for rank, (line, points) in enumerate(points_of.items()):
        wider = 2 * palette.covered(points_of.values(), rank)
        look: dict[str, Any] = {"marker": "o", "colour": palette.scale(1)[0]}
        for values, text in zip(looks, line, strict=True):
            look |= values.get(text, {})
        across, up = zip(*sorted(points), strict=True)
        name = ", ".join(f"{n}={v}" for n, v in zip(others, line, strict=True))
        tip = f"<div><b>{name or 'time'}</b><br>{x} @x: @y{{0,0.0}} \u00b5s</div>"
        marks.append(LineMark(x=across, y=up, width=1.5 + wider, size=4 + wider, tip=tip, **look))
    entries = _looks_key(list(others), looks)
    return Figure(
        x=FigureAxis(label=x, names=varied[x], ends=(-0.3, len(varied[x]) - 0.7)),
        y=_from_zero(rows),
        marks=marks,
        title=title,
        keys=[Key(entries)] if entries else (),
        grid=True,
        place="lines",
        about=f"time over {x}",
    )


def _looks_key(
    names: Sequence[str], looks: Sequence[Mapping[str, Mapping[str, str]]]
) -> list[LineMark]:
    """An entry for each value of the names that have several: its look, alone."""
    entries = []
    for name, values in zip(names, looks, strict=True):
        for text, look in values.items() if len(values) > 1 else ():
            settings: dict[str, Any] = {"colour": "#445566", **look}
            entries.append(LineMark(x=(), y=(), name=f"{name}={text}", **settings))
    return entries


def _looks(texts: Sequence[str], rank: int) -> dict[str, dict[str, str]]:
    """The look of lines that each value of a name stands for."""
    kind = ("colour", "dash", "marker")[min(rank, 2)]
    among = (palette.scale(len(texts)), _DASHES, _MARKERS)[min(rank, 2)]
    return {text: {kind: look} for text, look in zip(texts, cycle(among), strict=False)}


def _from_zero(rows: Sequence[Row]) -> FigureAxis:
    """Times from zero on, with room for the markers of the longest."""
    most = max(row["time_us"] for row in rows)
    return FigureAxis(label="time, \u00b5s", ends=(0.0, 1.06 * most))


def heat(varied: Varied, rows: Sequence[Row], x: str, y: str, title: str = "") -> Figure:
    """Times over the values of two names; of several points at one place the fastest."""
    across, down = varied[x], varied[y]
    grid = np.full((len(down), len(across)), np.nan)
    for row in rows:
        place = down.index(row[y]), across.index(row[x])
        grid[place] = np.fmin(grid[place], row["time_us"])
    texts = [["failed" if np.isnan(us) else us_text(us) for us in line] for line in grid]
    return Figure(
        x=FigureAxis(label=x, names=across),
        y=FigureAxis(label=y, names=down),
        marks=[Cells(values=grid, label="time, \u00b5s", texts=texts)],
        title=title,
        inches=(1.8 + 0.75 * len(across), 1.6 + 0.45 * len(down)),
    )


# ---------------------------------------------------------------- what none beats


def front(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Places of the points that no other beats in both, by growing ``x``."""
    best: list[int] = []
    for place in sorted(range(len(x)), key=lambda place: (x[place], y[place])):
        if not best or y[place] < y[best[-1]]:
            best.append(place)
    return best


def unbeaten(x: Sequence[float], y: Sequence[float], names: Sequence[str] = ()) -> list[Mark]:
    """Points of two figures, and a line through those that none beats in both."""
    best = front(x, y)
    more = {"name": list(names) or [""] * len(x)}
    on = {"name": [more["name"][place] for place in best]}
    tip = "<div><b>@name</b><br>@x{0,0.0}, @y{0,0.0}</div>"
    return [
        LineMark(name="points", x=x, y=y, dash="", marker="o", size=4.5, colour=palette.POINT,
             more=more, tip=tip),
        LineMark(name="beaten by none", x=[x[place] for place in best],
             y=[y[place] for place in best], step=True, marker="o", size=6, colour=palette.BEST,
             more=on, tip=tip),
    ]  # fmt: skip


def against(
    x: tuple[str, Sequence[float]],
    y: tuple[str, Sequence[float]],
    names: Sequence[str] = (),
    **more: Any,
) -> Figure:
    """Two figures of points, what they are called and their values; ``more`` is as of a figure."""
    return Figure(
        x=_padded(*x),
        y=_padded(*y),
        marks=unbeaten(x[1], y[1], names),
        grid=True,
        zoom="both",
        **more,
    )


def _padded(label: str, values: Sequence[float]) -> FigureAxis:
    """An axis with room around values; logarithmic where they differ much."""
    low, high = min(values), max(values)
    if low > 0 and high > _LOG_FROM * low:
        return FigureAxis(label=label, log=True, ends=(low / 1.12, high * 1.12))
    edge = 0.06 * ((high - low) or abs(high) or 1.0)
    return FigureAxis(label=label, ends=(low - edge, high + edge))


def over_values(x: str, cost: Mapping[str, float], rows: Sequence[Row], title: str) -> Figure:
    """Times against the values of a name, with those that none beats in both."""
    sizes, times = [cost[row[x]] for row in rows], [row["time_us"] for row in rows]
    ends = min(cost.values()), max(cost.values())
    edge = 0.05 * (ends[1] - ends[0] or 1.0)
    return Figure(
        x=FigureAxis(
            label=x,
            names=tuple(cost),
            places=tuple(cost.values()),
            ends=(ends[0] - edge, ends[1] + edge),
        ),
        y=_from_zero(rows),
        marks=unbeaten(sizes, times),
        title=title,
    )


#: The limits of a goal: the text of each, and its number.
Bounds = Sequence[tuple[str, float]]

#: How far beyond the points a limit is still drawn, as a part of what they span.
_LIMIT_ROOM = 0.5

_POINT_TIP = "<div><b>@name</b><br>@x{0,0.0}, @y{0,0.0} @misses</div>"


def _goal_axis(goal: str, rows: Sequence[Row], bounds: Bounds) -> FigureAxis:
    """An axis with room for all points, and for limits that are not far from them."""
    values = [scaled(row, goal) for row in rows]
    low, high = min(values), max(values)
    room = _LIMIT_ROOM * ((high - low) or abs(high))
    limits = [number / goal_fact(goal).per_unit for _, number in bounds]
    near = [limit for limit in limits if low - room <= limit <= high + room]
    return _padded(goal_fact(goal).head, [*values, *near])


def _limit_lines(x: FigureAxis, y: FigureAxis, of_x: Bounds, of_y: Bounds) -> list[Mark]:
    """A line across the figure for each limit, numbers in the units of the axes.

    Limits outside of the axes are left out.
    """
    lines: list[Mark] = []
    dashes = cycle(("--", ":", "-."))
    for side, other, bounds in ((x, y, of_x), (y, x, of_y)):
        first, last = side.ends or (0.0, 0.0)
        for (text, number), dash in zip(bounds, dashes, strict=False):
            if not first <= number <= last:
                continue
            place, along = [number, number], list(other.ends or ())
            across, up = (place, along) if side is x else (along, place)
            lines.append(LineMark(name=text, x=across, y=up, dash=dash, width=1.2))
    return lines


def _in_unit(bounds: Bounds, goal: str) -> Bounds:
    return [(text, number / goal_fact(goal).per_unit) for text, number in bounds]


def _scattered(
    rows: Sequence[Row], x: Sequence[float], y: Sequence[float], names: Sequence[str]
) -> list[Mark]:
    """Points at their places; those beyond a limit are hollow and say by how much."""
    marks: list[Mark] = []
    for allowed, name in ((True, "points"), (False, "beyond a limit")):
        places = [place for place, row in enumerate(rows) if row.get("allowed", True) == allowed]
        if not places:
            continue
        more = {
            "name": [names[place] for place in places],
            "misses": [rows[place].get("misses", "") for place in places],
        }
        marks.append(LineMark(name=name, x=[x[place] for place in places],
                          y=[y[place] for place in places], dash="", marker="o", size=4,
                          colour=palette.POINT, hollow=not allowed, more=more,
                          tip=_POINT_TIP))  # fmt: skip
    return marks


#: Points that an axis counts one by one; of more a tick may fall between two.
_COUNTED = 20


def so_far(
    goal: str,
    rows: Sequence[Row],
    bounds: Bounds = (),
    names: Sequence[str] = (),
    **more: Any,
) -> Figure:
    """A goal of the points in their order, and the best of those before that keep the limits."""
    values = [scaled(row, goal) for row in rows]
    places = range(1, len(rows) + 1)
    x = FigureAxis(
        label="points looked at",
        names=[str(place) for place in places] if len(rows) <= _COUNTED else (),
        places=places if len(rows) <= _COUNTED else (),
        ends=(0.5, len(rows) + 0.5),
    )
    y = _goal_axis(goal, rows, bounds)
    within = [
        v if row.get("allowed", True) else np.inf for v, row in zip(values, rows, strict=True)
    ]
    best = np.minimum.accumulate(within)
    has_best = np.isfinite(best)
    marks = _scattered(rows, list(places), values, list(names) or [""] * len(rows))
    if has_best.any():
        marks.append(LineMark(name="best so far", x=np.array(places)[has_best], y=best[has_best],
                          step=True, colour=palette.BEST))  # fmt: skip
    return Figure(
        x=x,
        y=y,
        marks=[*marks, *_limit_lines(x, y, (), _in_unit(bounds, goal))],
        grid=True,
        place="so_far",
        about=f"{goal_fact(goal).head} of the points in their order",
        **more,
    )


def tradeoff(
    x: str,
    y: str,
    rows: Sequence[Row],
    bounds: Mapping[str, Bounds],
    names: Sequence[str],
    **more: Any,
) -> Figure:
    """Points of an exploration over two goals, those of its front marked.

    A line joins what none within the limits beats in both; ``bounds`` are limits by goal.
    """
    across, up = [scaled(row, x) for row in rows], [scaled(row, y) for row in rows]
    marks = _scattered(rows, across, up, names)
    allowed = [place for place, row in enumerate(rows) if row.get("allowed", True)]
    joined = front([across[place] for place in allowed], [up[place] for place in allowed])
    line = [allowed[place] for place in joined]
    best = sorted(
        (place for place, row in enumerate(rows) if row["front"]), key=lambda place: across[place]
    )
    if len(line) > 1:
        marks.append(LineMark(x=[across[place] for place in line],
                          y=[up[place] for place in line], step=True,
                          colour=palette.BEST))  # fmt: skip
    if best:
        details = {"name": [names[place] for place in best], "misses": [""] * len(best)}
        marks.append(LineMark(name="beaten by none", x=[across[place] for place in best],
                          y=[up[place] for place in best], dash="", marker="o", size=6,
                          colour=palette.BEST, more=details, tip=_POINT_TIP))  # fmt: skip
    axes = _goal_axis(x, rows, bounds.get(x, ())), _goal_axis(y, rows, bounds.get(y, ()))
    limits = _in_unit(bounds.get(x, ()), x), _in_unit(bounds.get(y, ()), y)
    return Figure(
        x=axes[0],
        y=axes[1],
        marks=[*marks, *_limit_lines(*axes, *limits)],
        grid=True,
        zoom="both",
        **more,
    )


#: Points of a front that are named, and how far apart, as a part of its width.
_NAMED, _APART = 8, 0.07


def goals(
    varied: Sequence[str],
    goals: Sequence[str],
    rows: Sequence[Row],
    bounds: Mapping[str, Bounds],
    title: str = "",
) -> Figure:
    """Points over the first two goals, those of ``front`` in the colour of a third one.

    Some of these have numbers; below the figure stands what they are.
    """
    x, y, *others = goals
    drawn = tradeoff(x, y, rows, bounds, [""] * len(rows))
    best = sorted((row for row in rows if row["front"]), key=lambda row: row[x])
    pairs = [(scaled(row, x), scaled(row, y)) for row in best]
    chosen = _apart(pairs)
    marks = list(drawn.marks)
    if others and len({row[others[0]] for row in best}) > 1:
        shades = goal_fact(others[0]).head, [scaled(row, others[0]) for row in best]
        marks = [
            replace(mark, shades=shades) if mark.name == "beaten by none" else mark
            for mark in marks
        ]
    numbers = [str(number) for number in range(1, len(chosen) + 1)]
    marks.append(Words(x=[pairs[place][0] for place in chosen],
                       y=[pairs[place][1] for place in chosen], texts=numbers, shift=(5, 8),
                       size=8))  # fmt: skip
    return replace(
        drawn,
        marks=marks,
        title=title,
        keys=[_named(varied, [best[place] for place in chosen], best)] if chosen else (),
        inches=(7.6, 4.6 + 0.17 * len(chosen)),
    )


def _apart(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of a few points, the ends of a front first, none close to another."""
    if not points:
        return []
    every = np.array(points)
    where = (every - every.min(axis=0)) / np.where(np.ptp(every, axis=0), np.ptp(every, axis=0), 1)
    chosen, far = [0], np.linalg.norm(where - where[0], axis=1)
    while len(chosen) < _NAMED and far.max() > _APART:
        chosen.append(int(far.argmax()))
        far = np.minimum(far, np.linalg.norm(where - where[chosen[-1]], axis=1))
    return sorted(chosen)


def _named(varied: Sequence[str], chosen: Sequence[Row], best: Sequence[Row]) -> Key:
    """Key of the numbered points; values that all of several share are said once."""
    differs = [name for name in varied if len(best) == 1 or len({row[name] for row in best}) > 1]
    shared = ", ".join(f"{_short(n)} {best[0][n]}" for n in varied if n not in differs)
    entries = [
        LineMark(
            x=(),
            y=(),
            name=", ".join(f"{_short(name)} {row[name]}" for name in differs),
            dash="",
            marker=f"${number}$",
            size=5,
            width=0.2,
        )
        for number, row in enumerate(chosen, 1)
    ]
    return Key(entries, "below", f"all of the front: {shared}" if shared else "")


def _short(name: str) -> str:
    """The end of a dotted path that tells what it is: ``L1 size`` of ``memories.L1.size``."""
    return " ".join(name.split(".")[-2:])


# ---------------------------------------------------------------- sensitivities

#: The values of a name that a sensitivity is measured between.
_ENDS = ("first", "last")


def tornado(goal: str, base: float, rows: Sequence[Row]) -> Figure:
    """A bar per name from a goal at its first to that at its last value, the widest on top."""
    fact = goal_fact(goal)
    pairs = [
        tuple(_in_units_of(fact.per_unit, row[f"{goal} {end}"]) for end in _ENDS) for row in rows
    ]
    base = base / fact.per_unit
    drawn = [value for pair in pairs for value in pair if value is not None]
    drawn.append(base)
    least, most = min(drawn), max(drawn)
    margin = 0.16 * ((most - least) or base)
    marks: list[Mark] = []
    for end, colour in enumerate(palette.scale(len(_ENDS))):
        marks += _end_bars(rows, pairs, end, base, colour)
    marks.append(LineMark(x=[base, base], y=[-0.6, len(rows) - 0.4], width=0.8))
    return Figure(
        x=FigureAxis(label=fact.head, ends=(least - margin, most + margin)),
        y=FigureAxis(
            names=[f"{r['name']}\n{r['own']}" for r in rows], ends=(len(rows) - 0.4, -0.6)
        ),
        marks=marks,
        at="corner",
        inches=(7.4, 1.2 + 0.38 * len(rows)),
    )


def _in_units_of(per_unit: float, value: float | None) -> float | None:
    """``value`` in units of ``per_unit``; None where nothing was measured."""
    return None if value is None else value / per_unit


def _end_bars(
    rows: Sequence[Row],
    pairs: Sequence[Sequence[float | None]],
    end: int,
    base: float,
    colour: str,
) -> Iterator[Mark]:
    """Bars from ``base`` to the goal at one end (0: first, 1: last), and the value there as text.

    A text stands outside of its bar: on the left of those that reach down, else on the right.
    """
    reached = [(place, pair[end]) for place, pair in enumerate(pairs)]
    measured = [(place, value) for place, value in reached if value is not None]
    places = np.array([place for place, _ in measured])
    values = np.array([value for _, value in measured])
    left = np.minimum(values, base)
    right = np.maximum(values, base)
    yield Bars(
        name=f"at the {_ENDS[end]} value",
        colour=colour,
        left=left,
        right=right,
        low=places - 0.31,
        high=places + 0.31,
    )
    below = np.array([_is_below(pairs[place], end, base) for place, _ in measured], bool)
    for side, outer, chosen in (("right", left, below), ("left", right, ~below)):
        texts = [f" {rows[place][_ENDS[end]]} " for place in places[chosen].tolist()]
        yield Words(x=outer[chosen], y=places[chosen], texts=texts, side=side, size=7)


def _is_below(pair: Sequence[float | None], end: int, base: float) -> bool:
    """True if a bar's text stands on the side of less: of two that are alike, the first one's."""
    value, other = pair[end], pair[1 - end]
    least = min((v for v in pair if v is not None), default=base)
    return value == least and not (end == 1 and value == other)


# -- a search among tilings in pictures: a map of times, and time -------------------------------


#: Fields that a map is of where they vary.
_SIDES = ("base_n", "base_m")


def searched(
    frame: DataFrame, fields: Sequence[str], x: str = "", y: str = ""
) -> tuple[Figure, Figure, Figure]:
    """A map over two ``fields``, and two Pareto fronts.

    ``frame`` has a row per tiling, as ``Tuned.table`` makes it. Raises ``ArgumentError`` for
    what is no field.
    """
    values = {name: frame[name].nunique() for name in fields}
    sides = [name for name in _SIDES if values.get(name, 0) > 1]
    ranked = list(dict.fromkeys([*sides, *sorted(values, key=lambda name: -values[name])]))
    across, along = _axis(x, ranked, fields), _axis(y, ranked[1:] or ranked, fields)
    legal = frame[frame.state != "illegal"]
    memories = [name for name in map(str, frame) if name.endswith("_bytes") and name != "gm_bytes"]
    memory = "L1_bytes" if "L1_bytes" in memories else memories[0]
    buffers = f"buffers in {memory.removesuffix('_bytes')}"
    return (
        _map(legal, {name: sorted(frame[name].unique()) for name in (across, along)}),
        _front(legal, memory, buffers),
        _front(legal, "gm_bytes", "moved from and to global memory"),
    )


def _axis(asked: str, usual: Sequence[str], fields: Sequence[str]) -> str:
    if asked and asked not in fields:
        raise ArgumentError(f"plot: the tiling has no field {asked!r}{suggest(asked, fields)}")
    return asked or usual[0]


def _map(legal: DataFrame, values: dict[str, list[object]]) -> Figure:
    """The least cycles by two fields: simulated, else the least bound; hatched: nothing runs."""
    (x, columns), (y, rows) = next(iter(values.items())), list(values.items())[-1]
    best = np.full((len(rows), len(columns)), np.nan)
    done = np.zeros_like(best, bool)
    cycles_or_bounds = legal.cycles.fillna(legal.bound).to_numpy()
    for column, row, cycles, state in zip(
        legal[x], legal[y], cycles_or_bounds, legal.state, strict=True
    ):
        cell = rows.index(row), columns.index(column)
        best[cell] = np.fmin(best[cell], cycles)
        done[cell] |= state == "simulated"
    winner = np.unravel_index(np.nanargmin(np.where(done, best, np.inf)), best.shape)
    ticks = np.linspace(np.nanmin(np.log10(best)), np.nanmax(np.log10(best)), 5).tolist()
    up, across = np.nonzero(done)
    return Figure(
        x=FigureAxis(label=x, names=[str(value) for value in columns]),
        y=FigureAxis(label=y, names=[str(value) for value in rows]),
        marks=[
            Cells(values=np.log10(best), ticks=(ticks, [f"{10**t:,.0f}" for t in ticks])),
            LineMark(x=across, y=up, dash="", marker="o", size=3, colour="#ffffff"),
            LineMark(
                x=[winner[1]], y=[winner[0]], dash="", marker="*", size=13, colour=palette.BEST
            ),
        ],
        title="cycles: dots are simulated, the star is the best;\nother cells are lower bounds, "
        "hatched ones have no tiling",
    )


def _front(legal: DataFrame, column: str, label: str) -> Figure:
    """Simulated tilings, grey the bounds of others; the line of those that none beats in both."""
    unit, size = binary_unit(legal[column].max())
    placed = legal[legal[column].notna()]
    done, rest = (placed[(placed.state == "simulated") == flag] for flag in (True, False))
    points, best = unbeaten([*(done[column] / size)], [*done.cycles])
    figure = against(
        (f"{label} ({unit})", [*(placed[column] / size)]),
        ("cycles, launches included", [*placed.cycles.fillna(placed.bound)]),
    )
    bounds = LineMark(name="lower bound", x=[*(rest[column] / size)], y=[*rest.bound], dash="",
                  marker="o", size=2.5, colour=palette.POINT)  # fmt: skip
    simulated = replace(points, name="simulated", colour=palette.KERNEL)
    return replace(figure, marks=[bounds, simulated, best])
