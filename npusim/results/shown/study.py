"""The reports of a study and of an exploration: every point, and what is best at which cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any

from npusim.results.facts.number_text import counted, precise_text, us_text
from npusim.results.facts.point import COSTS, TIME, PointFact, goal_fact
from npusim.results.shown import palette
from npusim.results.shown.figure import Figure
from npusim.results.shown.figures import studies
from npusim.results.shown.figures.studies import Row, Varied, scaled
from npusim.results.shown.report import Cell, Items, Pair, Report, Section, Table
from npusim.version import __version__

#: What made a report.
_ORIGIN = f"npusim {__version__}"


def report(fixed: Mapping[str, str], varied: Varied, rows: Sequence[Row]) -> Report:
    """Of a study: what was fixed, the values of what was ``varied`` by name, a row per point."""
    timed = [row for row in rows if not row["error"]]
    what = fixed.get("network") or fixed.get("operator") or "study"
    return Report(
        title=f"{what} over {', '.join(varied)}" if varied else what,
        about=[_others(fixed)],
        lead=_verdict(tuple(varied), timed),
        cards=[*_cards(rows, timed)],
        sections=(
            Section("Time", [*_times(varied, timed)]),
            Section("What each value does", [effects(varied, timed)]),
            Section("Time against cost", [Pair([*_costs(tuple(varied), timed)])]),
            Section("Points", [_points(tuple(varied), timed)]),
            Section("Failed", [failed(tuple(varied), rows)]),
        ),
        origin=_ORIGIN,
    )


def _others(fixed: Mapping[str, str]) -> str:
    """Fixed names besides what was measured."""
    return ", ".join(f"{n} {v}" for n, v in fixed.items() if n not in ("network", "operator"))


def name_of(row: Row, names: Sequence[str]) -> str:
    """Where a point is, of some of the varied names."""
    return ", ".join(f"{name}={row[name]}" for name in names if name in row)


def _verdict(varied: Sequence[str], timed: Sequence[Row]) -> str:
    """The ends of the times, and where they are."""
    if not timed:
        return "No point has a time."
    fast, slow = (pick(timed, key=lambda row: float(row["time_us"])) for pick in (min, max))
    text = f"Fastest: {us_text(fast['time_us'])} \u00b5s with {name_of(fast, varied)}."
    if slow["time_us"] > fast["time_us"]:
        times = slow["time_us"] / fast["time_us"]
        text += f" Slowest: {us_text(slow['time_us'])} \u00b5s with {name_of(slow, varied)}"
        text += f", {times:.2f} times that."
    return text


def _cards(rows: Sequence[Row], timed: Sequence[Row]) -> Iterator[tuple[str, str]]:
    yield f"{len(rows):,}", "point" if len(rows) == 1 else "points"
    if len(timed) < len(rows):
        yield f"{len(rows) - len(timed):,}", "failed"
    if timed:
        times = [row["time_us"] for row in timed]
        for name, us in (
            ("fastest", min(times)),
            ("median", median(times)),
            ("slowest", max(times)),
        ):
            yield f"{us_text(us)} \u00b5s", name
        retiled = sum(bool(row["retiled"]) for row in timed)
        if retiled:
            yield f"{retiled:,}", "points that tile something differently"


def _times(varied: Varied, timed: Sequence[Row]) -> Iterator[Figure]:
    """A line per combination of the other names over the one with most values."""
    if varied and timed:
        yield studies.lines(varied, timed, studies.longest_first(varied)[0])


def effects(varied: Varied, timed: Sequence[Row]) -> Table:
    """Times of the points with each of the values ``varied`` has by name, in its order.

    Nothing where there is one value, or as many rows as points.
    """
    rows = []
    most = max((row["time_us"] for row in timed), default=1.0)
    for name, values in varied.items():
        for value in values if len(values) > 1 else ():
            times = [row["time_us"] for row in timed if row.get(name) == value]
            if times:
                middle = median(times)
                ends = (Cell(us_text(us), us) for us in (min(times), middle, max(times)))
                drawn = Cell.bar((("median", middle / most, palette.KERNEL),), middle)
                rows.append((name, value, drawn, *ends, len(times)))
    heads = ("name", "value", "median", "fastest \u00b5s", "median \u00b5s", "slowest \u00b5s")
    return Table("", (*heads, "points"), rows if len(rows) != len(timed) else (), 2)


def _costs(varied: Sequence[str], timed: Sequence[Row]) -> Iterator[Figure]:
    """Time against each cost that differs, with the points that none beats in both."""
    for cost in COSTS:
        rows = [row for row in timed if row.get(cost.name) is not None]
        if len({row[cost.name] for row in rows}) > 1:
            yield _against(varied, cost.name, TIME.name, rows)


def _against(varied: Sequence[str], x: str, y: str, rows: Sequence[Row]) -> Figure:
    """A chart of two figures of the points, with those that none beats in both."""
    across, up = goal_fact(x).head, goal_fact(y).head
    values_x = [scaled(row, x) for row in rows]
    values_y = [scaled(row, y) for row in rows]
    best = counted(len(studies.front(values_x, values_y)), "point")
    return studies.against(
        (across, values_x),
        (up, values_y),
        [name_of(row, varied) for row in rows],
        place=f"{y}-{x}",
        about=f"{up} against {across}",
        caption=f"{across} against {up}; marked: what none beats in both, {best}.",
    )


def _table(
    varied: Sequence[str],
    rows: Sequence[Row],
    drawn: tuple[str, str, str],
    columns: Mapping[str, Callable[[Row], Any]],
    long: Sequence[str] = (),
) -> Table:
    """The points with the ``columns``, behind a bar: its head, its figure, what it is."""
    head, figure, what = drawn
    most = max((row[figure] for row in rows), default=0.0) or 1.0
    every: dict[str, Callable[[Row], Any]] = {
        **{name: partial(_text_of, name) for name in varied},
        head: lambda row: Cell.bar(((what, row[figure] / most, palette.KERNEL),), row[figure]),
        **columns,
    }
    return Table.of(every, rows, len(varied), long)


def _text_of(name: str, row: Row) -> str:
    return str(row.get(name, ""))


def _points(varied: Sequence[str], timed: Sequence[Row]) -> Table:
    """Every point with a time, in the order of the study."""
    costs = [fact for fact in COSTS if any(row.get(fact.name) is not None for row in timed)]
    columns: dict[str, Callable[[Row], Any]] = {
        "\u00b5s": lambda row: Cell(us_text(row["time_us"]), row["time_us"]),
        **{fact.head: partial(_cost, fact) for fact in costs},
        "bottleneck": lambda row: row.get("bottleneck", ""),
    }
    if any(row["retiled"] for row in timed):
        columns["retiled"] = lambda row: _short(row["retiled"])
    long = [name for name in ("bottleneck", "retiled") if name in columns]
    return _table(varied, timed, ("time", "time_us", "time"), columns, long)


def _cost(fact: PointFact, row: Row) -> Cell | str:
    value = row.get(fact.name)
    return "" if value is None else Cell(fact.number(value), value)


def _short(names: str) -> str:
    """The first of names with commas, and how many more there are."""
    first, *more = names.split(", ")
    return f"{first} and {len(more):,} more" if more else first


def failed(varied: Sequence[str], rows: Sequence[Row]) -> Items:
    """Points without a time and why."""
    return Items([f"{name_of(row, varied)}: {row['error']}" for row in rows if row["error"]])


# -- explorations ------------------------------------------------------------------------------


def explored(of: Any) -> Report:
    """Of an ``Exploration``: what none beats first."""
    rows, fixed, varied = of.rows(), of.study.fixed, of.study.varied
    values = {axis.name: axis.values for axis in of.study.axes}
    timed = [row for row in rows if not row["error"]]
    best = sorted((row for row in timed if row["front"]), key=lambda row: row[of.goals[0]])
    what = fixed.get("network") or fixed.get("operator") or "exploration"
    *goals, last = (goal_fact(goal).title for goal in of.goals)
    return Report(
        title=f"{what}: the least {' and '.join([', '.join(goals), last] if goals else [last])}",
        about=[f"{_others(fixed)}; over {', '.join(varied)}"],
        lead=_least(of, best),
        told=(*_limits(of), *(f"nearly: {text}" for text in nearly(of)), *of.notes),
        cards=[*_explored_cards(of, timed, best)],
        sections=(
            Section("Goals against each other", [Pair([*_charts(of, timed)])]),
            Section("What none beats", [_goals(of, best)]),
            Section("What each value does", [effects(values, timed)]),
            Section("All points", [_goals(of, timed, mark=True)], opened=False),
            Section("Failed", [failed(varied, rows)]),
        ),
        origin=_ORIGIN,
    )


def _limits(of: Any) -> list[str]:
    """A sentence on the limits of an ``Exploration``, none without them."""
    return [f"within {', '.join(of.limits)}"] if of.limits else []


#: Points near the limits that are told.
_NEAR = 3


def nearly(of: Any) -> list[str]:
    """Of an ``Exploration``: the points nearly within its limits, what they have and miss."""
    rows = of.nearly()
    texts = []
    for row in rows[:_NEAR]:
        values = []
        for goal in of.goals:
            fact = goal_fact(goal)
            value = precise_text(row[goal] / fact.per_unit)
            values.append(f"{value} {fact.unit}" if fact.unit else f"{fact.title} {value}")
        where = name_of(row, of.study.varied)
        texts.append(f"{', '.join(values)}, {row['misses']}, with {where}")
    more = len(rows) - len(texts)
    return [*texts, f"{more:,} more"] if more else texts


def _least(of: Any, best: Sequence[Row]) -> str:
    """The point that is best in each goal."""
    if not best:
        measured = len(of.failed) < len(of.points)
        return f"No point has values{' within the limits' * measured}."
    sentences = []
    for goal in of.goals:
        least = min(best, key=lambda row: float(row[goal]))
        fact = goal_fact(goal)
        where = name_of(least, of.study.varied)
        sentences.append(f"Least {fact.title}: {fact.text(least[goal])} with {where}.")
    return " ".join(sentences)


def _explored_cards(
    of: Any, timed: Sequence[Row], best: Sequence[Row]
) -> Iterator[tuple[str, str]]:
    points = "point" if len(of.points) == 1 else "points"
    yield f"{len(of.points):,}", f"{points} looked at, of {len(of.study):,}"
    yield f"{len(best):,}", "beaten by none in all goals"
    if of.failed:
        yield f"{len(of.failed):,}", "failed"
    beyond = sum(not row.get("allowed", True) for row in timed)
    if beyond:
        yield f"{beyond:,}", "beyond a limit"
    for goal in of.goals if timed else ():
        values = [float(row[goal]) for row in timed]
        fact = goal_fact(goal)
        ends = [fact.number(min(values)), fact.number(max(values))]
        yield " to ".join(dict.fromkeys(ends)), fact.head


def _charts(of: Any, timed: Sequence[Row]) -> Iterator[Figure]:
    """Each pair of goals, or with one goal the best so far over the points."""
    varied = of.study.varied
    names = [name_of(row, varied) for row in timed]
    limited = " Hollow: beyond a limit; dashed: the limits." if of.limits else ""
    if timed and len(of.goals) == 1:
        goal = of.goals[0]
        caption = f"Joined: the best so far.{limited}"
        yield studies.so_far(goal, timed, of.bounds.get(goal, ()), names, caption=caption)
    for y, x in combinations(of.goals, 2) if timed else ():
        across, up = goal_fact(x).head, goal_fact(y).head
        marked = "in both" if len(of.goals) == 2 else "in all goals; joined: in these two"
        yield studies.tradeoff(
            x,
            y,
            timed,
            of.bounds,
            names,
            place=f"{y}-{x}",
            about=f"{up} against {across}",
            caption=f"{across} against {up}; marked: what none beats {marked}.{limited}",
        )


def _goals(of: Any, rows: Sequence[Row], *, mark: bool = False) -> Table:
    """Points with their goals, the first goal as a bar too; ``mark`` says which none beats."""
    first, *_ = of.goals

    def cell(goal: str, row: Row) -> Cell:
        return Cell(goal_fact(goal).number(row[goal]), row[goal])

    columns: dict[str, Callable[[Row], Any]] = {
        goal_fact(goal).head: partial(cell, goal) for goal in of.goals
    }
    if mark:
        columns["unbeaten"] = lambda row: Cell("yes" if row["front"] else "no", float(row["front"]))
    long = []
    if mark and of.limits:
        columns["beyond limits"] = lambda row: row["misses"]
        long.append("beyond limits")
    return _table(of.study.varied, rows, (goal_fact(first).title, first, ""), columns, long)
