"""The pages of a study and of an exploration: every point, and what is best at which cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

from npusim.results import palette
from npusim.results.lines import COSTS, GOAL_TITLES, counted, rate_text, us_text
from npusim.results.web import page
from npusim.results.web.charts import lines
from npusim.results.web.page import Bar, Cell, Chart
from npusim.version import __version__

#: A point: the varied names as texts, its figures, ``retiled`` and ``error``.
Row = Mapping[str, Any]

#: What is measured, and its value at each point; the charts of a page so far.
Figures = tuple[str, Sequence[float]]
Charts = list[Chart]

#: Lines that a chart shows; of more, those of the second name only, fastest of the others.
_MOST_LINES = 12


def render(fixed: Mapping[str, str], varied: Sequence[str], rows: Sequence[Row]) -> str:
    """The page as text; every string is escaped."""
    known = [row for row in rows if not row["error"]]
    what = fixed.get("network") or fixed.get("operator") or "study"
    title = f"{what} over {', '.join(varied)}" if varied else what
    drawn: list[Chart] = []
    others = ", ".join(f"{n} {v}" for n, v in fixed.items() if n not in ("network", "operator"))
    parts = (
        page.cards(_cards(rows, known)),
        page.section("Time", _times(varied, known, drawn)),
        page.section(
            "What each value does", effects({name: _values(known, name) for name in varied}, known)
        ),
        page.section("Time against cost", _costs(varied, known, drawn)),
        page.section("Points", _points(varied, known)),
        page.section("Failed", failed(varied, rows)),
    )
    return page.report(title, [others], _verdict(varied, known), parts, _ORIGIN, drawn)


#: What made a page.
_ORIGIN = f"npusim {__version__}"


def name_of(row: Row, names: Sequence[str]) -> str:
    """Where a point is, of some of the varied names."""
    return ", ".join(f"{name}={row[name]}" for name in names if name in row)


def _verdict(varied: Sequence[str], known: Sequence[Row]) -> str:
    """The ends of the times, and where they are."""
    if not known:
        return "No point has a time."
    fast, slow = (pick(known, key=lambda row: float(row["time_us"])) for pick in (min, max))
    text = f"Fastest: {us_text(fast['time_us'])} \u00b5s with {name_of(fast, varied)}."
    if slow["time_us"] > fast["time_us"]:
        times = slow["time_us"] / fast["time_us"]
        text += f" Slowest: {us_text(slow['time_us'])} \u00b5s with {name_of(slow, varied)}"
        text += f", {times:.2f} times that."
    return text


def _cards(rows: Sequence[Row], known: Sequence[Row]) -> Iterator[tuple[str, str]]:
    yield f"{len(rows):,}", "point" if len(rows) == 1 else "points"
    if len(known) < len(rows):
        yield f"{len(rows) - len(known):,}", "failed"
    if known:
        times = [row["time_us"] for row in known]
        for name, us in (
            ("fastest", min(times)),
            ("median", median(times)),
            ("slowest", max(times)),
        ):
            yield f"{us_text(us)} \u00b5s", name
        retiled = sum(bool(row["retiled"]) for row in known)
        if retiled:
            yield f"{retiled:,}", "points that tile something differently"


def _values(known: Sequence[Row], name: str) -> list[str]:
    """The texts of a name in the order of the study."""
    return list(dict.fromkeys(row[name] for row in known if name in row))


def _times(varied: Sequence[str], known: Sequence[Row], drawn: list[Chart]) -> str:
    """A line per combination of the other names over the one with most values."""
    names = sorted(varied, key=lambda name: -len(_values(known, name)))
    if not names or not known:
        return ""
    across, *others = names
    labels = list(dict.fromkeys(name_of(row, others) for row in known))
    caption = ""
    if len(labels) > _MOST_LINES:
        caption = f"Of {', '.join(others[1:])} the fastest." if others[1:] else ""
        others = others[:1]
    series: dict[str, dict[str, float]] = {}
    for row in known:
        line = series.setdefault(name_of(row, others) or "time", {})
        at = row[across]
        line[at] = min(row["time_us"], line.get(at, row["time_us"]))
    values = _values(known, across)
    drawn.append(lines.lines(across, values, series, "\u00b5s"))
    key = zip(series, palette.scale(len(series)), strict=True) if others else ()
    place = page.place(drawn[-1], lines.HEIGHT, f"time over {across}", caption)
    return (page.key(key) if others else "") + place


def effects(varied: Mapping[str, Sequence[str]], known: Sequence[Row]) -> str:
    """Times of the points with each of the values ``varied`` has by name, in its order.

    Nothing where there is one value, or as many rows as points.
    """
    rows = []
    most = max((row["time_us"] for row in known), default=1.0)
    for name, values in varied.items():
        for value in values if len(values) > 1 else ():
            times = [row["time_us"] for row in known if row.get(name) == value]
            if not times:
                continue
            bar = Bar((("median", median(times) / most, palette.KERNEL),), median(times))
            ends = (Cell(us_text(us), us) for us in (min(times), median(times), max(times)))
            rows.append((name, value, bar, *ends, len(times)))
    if len(rows) == len(known):
        return ""
    heads = ("name", "value", "median", "fastest \u00b5s", "median \u00b5s", "slowest \u00b5s")
    return page.table((*heads, "points"), rows, 2)


def _costs(varied: Sequence[str], known: Sequence[Row], drawn: list[Chart]) -> str:
    """Time against each cost that differs, with the points that none beats in both."""
    parts = []
    for column, (what, unit) in COSTS.items():
        rows = [row for row in known if row.get(column) is not None]
        if len({row[column] for row in rows}) < 2:
            continue
        x, y = [row[column] / unit for row in rows], [row["time_us"] for row in rows]
        names = [name_of(row, varied) for row in rows]
        what_is = f"{what} against time; marked"
        pair = (what, x), ("time, \u00b5s", y)
        parts.append(_against(*pair, names, column, f"time against {what}", what_is, drawn))
    return f'<div class="pair">{"".join(parts)}</div>' if parts else ""


def _against(
    x: Figures, y: Figures, names: Sequence[str], place: str, about: str, told: str, drawn: Charts
) -> str:
    """A chart of two figures of the points, with those that none beats in both."""
    best = front(x[1], y[1])
    drawn.append(lines.scatter(x, y, names, best, place))
    caption = f"{told}: what none beats in both, {counted(len(best), 'point')}."
    return page.place(drawn[-1], lines.HEIGHT, about, caption)


def front(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Places of the points that no other beats in both, by growing ``x``."""
    best: list[int] = []
    for at in sorted(range(len(x)), key=lambda at: (x[at], y[at])):
        if not best or y[at] < y[best[-1]]:
            best.append(at)
    return best


def _table(
    varied: Sequence[str],
    rows: Sequence[Row],
    bar: tuple[str, str, str],
    columns: Mapping[str, Callable[[Row], Any]],
    long: Sequence[str] = (),
) -> str:
    """The points with the ``columns``, behind a ``bar``: its head, its figure, what it is."""
    head, figure, what = bar
    most = max((row[figure] for row in rows), default=0.0) or 1.0
    found = [
        (
            *(row.get(name, "") for name in varied),
            Bar(((what, row[figure] / most, palette.KERNEL),), row[figure]),
            *(cell(row) for cell in columns.values()),
        )
        for row in rows
    ]
    heads = (*varied, head, *columns)
    return page.table(heads, found, len(varied), [heads.index(name) for name in long])


def _points(varied: Sequence[str], known: Sequence[Row]) -> str:
    """Every point with a time, in the order of the study."""
    costs = [column for column in COSTS if any(row.get(column) is not None for row in known)]
    columns: dict[str, Callable[[Row], Any]] = {
        "\u00b5s": lambda row: Cell(us_text(row["time_us"]), row["time_us"]),
        **{COSTS[column][0]: partial(_cost, column) for column in costs},
        "bottleneck": lambda row: row.get("bottleneck", ""),
    }
    if any(row["retiled"] for row in known):
        columns["retiled"] = lambda row: _short(row["retiled"])
    long = [name for name in ("bottleneck", "retiled") if name in columns]
    return _table(varied, known, ("time", "time_us", "time"), columns, long)


def _cost(column: str, row: Row) -> Cell | str:
    value = row.get(column)
    return "" if value is None else Cell(rate_text(value / COSTS[column][1]), value)


def _short(names: str) -> str:
    """The first of names with commas, and how many more there are."""
    first, *more = names.split(", ")
    return f"{first} and {len(more):,} more" if more else first


def failed(varied: Sequence[str], rows: Sequence[Row]) -> str:
    """Points without a time and why."""
    return page.bullets(f"{name_of(row, varied)}: {row['error']}" for row in rows if row["error"])


# -- explorations ------------------------------------------------------------------------------


class Explored(NamedTuple):
    """What was ``fixed``, values ``varied`` by name, ``goals``, points, and how many there are.

    ``told`` are limits, and sentences on what the front does not say.
    """

    fixed: Mapping[str, str]
    varied: Mapping[str, Sequence[str]]
    goals: Sequence[str]
    rows: Sequence[Row]
    size: int
    told: Sequence[str] = ()


def render_explored(explored: Explored) -> str:
    """The page as text; every string is escaped."""
    fixed, varied = explored.fixed, tuple(explored.varied)
    known = [row for row in explored.rows if not row["error"] and row.get("allowed", True)]
    best = sorted((row for row in known if row["front"]), key=lambda row: row[explored.goals[0]])
    what = fixed.get("network") or fixed.get("operator") or "exploration"
    *goals, last = (_named(goal)[0] for goal in explored.goals)
    title = f"{what}: the least {' and '.join([', '.join(goals), last] if goals else [last])}"
    others = ", ".join(f"{n} {v}" for n, v in fixed.items() if n not in ("network", "operator"))
    drawn: list[Chart] = []
    parts = (
        *(f"<p>{escape(line)}</p>" for line in explored.told),
        page.cards(_explored_cards(explored, known, best)),
        page.section("Goals against each other", _charts(explored, known, drawn)),
        page.section("What none beats", _goals(explored, best)),
        page.section("What each value does", effects(explored.varied, known)),
        page.section("All points", _goals(explored, known, mark=True), opened=False),
        page.section("Failed", failed(varied, explored.rows)),
    )
    about = f"{others}; over {', '.join(varied)}"
    return page.report(title, [about], _least(explored, best), parts, _ORIGIN, drawn)


def _called(goal: str) -> tuple[str, float]:
    return GOAL_TITLES.get(goal, (goal, 1.0))


def _named(goal: str) -> tuple[str, str]:
    """What a goal is called and, with a blank before it, its unit if there is one."""
    name, _, unit = _called(goal)[0].partition(", ")
    return name, f" {unit}" * bool(unit)


def _text(goal: str, value: float) -> str:
    return us_text(value) if goal.endswith("_us") else rate_text(value / _called(goal)[1])


def _least(explored: Explored, best: Sequence[Row]) -> str:
    """The point that is best in each goal."""
    if not best:
        measured = any(not row["error"] for row in explored.rows)
        return f"No point has values{' within the limits' * measured}."
    told = []
    for goal in explored.goals:
        least = min(best, key=lambda row: float(row[goal]))
        name, unit = _named(goal)
        where = name_of(least, tuple(explored.varied))
        told.append(f"Least {name}: {_text(goal, least[goal])}{unit} with {where}.")
    return " ".join(told)


def _explored_cards(
    explored: Explored, known: Sequence[Row], best: Sequence[Row]
) -> Iterator[tuple[str, str]]:
    yield f"{len(explored.rows):,}", f"points looked at, of {explored.size:,}"
    yield f"{len(best):,}", "beaten by none in all goals"
    failures = sum(bool(row["error"]) for row in explored.rows)
    if failures:
        yield f"{failures:,}", "failed"
    if beyond := len(explored.rows) - failures - len(known):
        yield f"{beyond:,}", "beyond a limit"
    for goal in explored.goals if known else ():
        values = [float(row[goal]) for row in known]
        yield f"{_text(goal, min(values))} to {_text(goal, max(values))}", _called(goal)[0]


def _charts(explored: Explored, known: Sequence[Row], drawn: list[Chart]) -> str:
    """Each pair of goals, or with one goal the best so far over the points."""
    if not known:
        return ""
    if len(explored.goals) == 1:
        (goal,) = explored.goals
        name, unit = _called(goal)
        values = [row[goal] / unit for row in known]
        numbers = list(range(1, len(known) + 1))
        better = [at for at, value in enumerate(values) if value <= min(values[: at + 1])]
        names = [name_of(row, tuple(explored.varied)) for row in known]
        points = ("points looked at", numbers)
        drawn.append(lines.scatter(points, (name, values), names, better, "so_far"))
        about = f"{name} of the points in their order"
        return page.place(drawn[-1], lines.HEIGHT, about, "Joined: the best so far.")
    parts = []
    for one, other in combinations(explored.goals, 2):
        (up, unit), (across, cost) = _called(one), _called(other)
        x, y = [row[other] / cost for row in known], [row[one] / unit for row in known]
        names = [name_of(row, tuple(explored.varied)) for row in known]
        about, pair = f"{up} against {across}", ((across, x), (up, y))
        parts.append(_against(*pair, names, f"{one}-{other}", about, "Marked", drawn))
    return f'<div class="pair">{"".join(parts)}</div>'


def _goals(explored: Explored, rows: Sequence[Row], *, mark: bool = False) -> str:
    """Points with their goals, the first goal as a bar too; ``mark`` says which none beats."""
    if not rows:
        return ""
    first, *_ = explored.goals

    def cell(goal: str, row: Row) -> Cell:
        return Cell(_text(goal, row[goal]), row[goal])

    columns: dict[str, Callable[[Row], Any]] = {
        _called(goal)[0]: partial(cell, goal) for goal in explored.goals
    }
    if mark:
        columns["unbeaten"] = lambda row: Cell("yes" if row["front"] else "", float(row["front"]))
    return _table(tuple(explored.varied), rows, (_named(first)[0], first, ""), columns)
