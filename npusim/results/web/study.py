"""The page of a study: every point, what varies its time, and what is best at which cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from npusim.results import palette
from npusim.results.lines import COSTS, counted, rate_text, us_text
from npusim.results.web import page
from npusim.results.web.charts import lines
from npusim.results.web.page import Bar, Cell, Chart
from npusim.version import __version__
from npusim.written import write

#: A point: the varied names as texts, its figures, ``retiled`` and ``error``.
Row = Mapping[str, Any]

#: Lines that a chart shows; of more, those of the second name only, fastest of the others.
_MOST_LINES = 12


def save(fixed: Mapping[str, str], varied: Sequence[str], rows: Sequence[Row], path: Path) -> None:
    """Write the page to ``path``: what was ``fixed``, the ``varied`` names, a row per point."""
    write(path, render(fixed, varied, rows))


def render(fixed: Mapping[str, str], varied: Sequence[str], rows: Sequence[Row]) -> str:
    """The page as text; every string is escaped."""
    known = [row for row in rows if not row["error"]]
    what = fixed.get("network") or fixed.get("operator") or "study"
    title = f"{what} over {', '.join(varied)}" if varied else what
    drawn: list[Chart] = []
    others = ", ".join(f"{n} {v}" for n, v in fixed.items() if n not in ("network", "operator"))
    body = (
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(others)}</p>",
        f'<p class="lead">{escape(_verdict(varied, known))}</p>',
        page.cards(_cards(rows, known)),
        page.section("Time", _times(varied, known, drawn)),
        page.section(
            "What each value does", effects({name: _values(known, name) for name in varied}, known)
        ),
        page.section("Time against cost", _costs(varied, known, drawn)),
        page.section("Points", _points(varied, known)),
        page.section("Failed", failed(varied, rows)),
        f'<p class="dim">npusim {escape(__version__)}</p>',
    )
    return page.page(escape(title), body, drawn)


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
        best = front(x, y)
        drawn.append(lines.scatter((what, x), ("time, \u00b5s", y), names, best, column))
        told = (
            f"{what} against time; marked: what none beats in both, {counted(len(best), 'point')}."
        )
        parts.append(page.place(drawn[-1], lines.HEIGHT, f"time against {what}", told))
    return f'<div class="pair">{"".join(parts)}</div>' if parts else ""


def front(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Places of the points that no other beats in both, by growing ``x``."""
    best: list[int] = []
    for at in sorted(range(len(x)), key=lambda at: (x[at], y[at])):
        if not best or y[at] < y[best[-1]]:
            best.append(at)
    return best


def _points(varied: Sequence[str], known: Sequence[Row]) -> str:
    """Every point with a time, in the order of the study."""
    most = max((row["time_us"] for row in known), default=1.0)
    costs = [column for column in COSTS if any(row.get(column) is not None for row in known)]
    retiled = any(row["retiled"] for row in known)
    heads = (*varied, "time", "\u00b5s", *(COSTS[column][0] for column in costs), "bottleneck")
    rows = []
    for row in known:
        bar = Bar((("time", row["time_us"] / most, palette.KERNEL),), row["time_us"])
        cells = [_cost(column, row.get(column)) for column in costs]
        tiled = [_short(row["retiled"])] if retiled else []
        us = Cell(us_text(row["time_us"]), row["time_us"])
        names = (row.get(name, "") for name in varied)
        rows.append((*names, bar, us, *cells, row.get("bottleneck", ""), *tiled))
    last = len(heads) - 1
    long = (last, last + 1) if retiled else (last,)
    return page.table((*heads, *["retiled"][: int(retiled)]), rows, len(varied), long)


def _cost(column: str, value: float | None) -> Cell | str:
    return "" if value is None else Cell(rate_text(value / COSTS[column][1]), value)


def _short(names: str) -> str:
    """The first of names with commas, and how many more there are."""
    first, *more = names.split(", ")
    return f"{first} and {len(more):,} more" if more else first


def failed(varied: Sequence[str], rows: Sequence[Row]) -> str:
    """Points without a time and why."""
    return page.bullets(f"{name_of(row, varied)}: {row['error']}" for row in rows if row["error"])
