"""The page of an exploration: the points that none beats in all goals, and all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from npusim.results import palette
from npusim.results.lines import GOAL_TITLES, counted, rate_text, us_text
from npusim.results.web import page
from npusim.results.web.charts import lines
from npusim.results.web.page import Bar, Cell, Chart
from npusim.results.web.study import effects, failed, front, name_of
from npusim.version import __version__
from npusim.written import write

#: A point: the varied names as texts, its figures, ``front`` and ``error``.
Row = Mapping[str, Any]


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


def save(explored: Explored, path: Path) -> None:
    """Write the page to ``path``."""
    write(path, render(explored))


def render(explored: Explored) -> str:
    """The page as text; every string is escaped."""
    fixed, varied = explored.fixed, tuple(explored.varied)
    known = [row for row in explored.rows if not row["error"] and row.get("allowed", True)]
    best = sorted((row for row in known if row["front"]), key=lambda row: row[explored.goals[0]])
    what = fixed.get("network") or fixed.get("operator") or "exploration"
    *goals, last = (_named(goal)[0] for goal in explored.goals)
    title = f"{what}: the least {' and '.join([', '.join(goals), last] if goals else [last])}"
    others = ", ".join(f"{n} {v}" for n, v in fixed.items() if n not in ("network", "operator"))
    drawn: list[Chart] = []
    body = (
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(others)}; over {escape(', '.join(varied))}</p>",
        f'<p class="lead">{escape(_verdict(explored, best))}</p>',
        *(f"<p>{escape(line)}</p>" for line in explored.told),
        page.cards(_cards(explored, known, best)),
        page.section("Goals against each other", _charts(explored, known, drawn)),
        page.section("What none beats", _table(explored, best)),
        page.section("What each value does", effects(explored.varied, known)),
        page.section("All points", _table(explored, known, mark=True), opened=False),
        page.section("Failed", failed(varied, explored.rows)),
        f'<p class="dim">npusim {escape(__version__)}</p>',
    )
    return page.page(escape(title), body, drawn)


def _called(goal: str) -> tuple[str, float]:
    return GOAL_TITLES.get(goal, (goal, 1.0))


def _named(goal: str) -> tuple[str, str]:
    """What a goal is called and, with a blank before it, its unit if there is one."""
    name, _, unit = _called(goal)[0].partition(", ")
    return name, f" {unit}" * bool(unit)


def _text(goal: str, value: float) -> str:
    return us_text(value) if goal.endswith("_us") else rate_text(value / _called(goal)[1])


def _verdict(explored: Explored, best: Sequence[Row]) -> str:
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


def _cards(
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
        both = front(x, y)
        drawn.append(lines.scatter((across, x), (up, y), names, both, f"{one}-{other}"))
        told = f"Marked: what none beats in both, {counted(len(both), 'point')}."
        parts.append(page.place(drawn[-1], lines.HEIGHT, f"{up} against {across}", told))
    return f'<div class="pair">{"".join(parts)}</div>'


def _table(explored: Explored, rows: Sequence[Row], *, mark: bool = False) -> str:
    """Points with their goals, the first goal as a bar too; ``mark`` says which none beats."""
    if not rows:
        return ""
    first, *_ = explored.goals
    most = max(row[first] for row in rows) or 1.0
    heads = (*explored.varied, _named(first)[0])
    heads += tuple(_called(goal)[0] for goal in explored.goals)
    found = []
    for row in rows:
        bar = Bar((("", row[first] / most, palette.KERNEL),), row[first])
        cells = [Cell(_text(goal, row[goal]), row[goal]) for goal in explored.goals]
        names = [row.get(name, "") for name in explored.varied]
        best = [Cell("yes" if row["front"] else "", float(row["front"]))] if mark else []
        found.append((*names, bar, *cells, *best))
    return page.table((*heads, *["unbeaten"][: int(mark)]), found, len(explored.varied))
