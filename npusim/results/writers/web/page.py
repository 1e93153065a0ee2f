"""Reports as web pages: one style and script, tables, charts; nothing from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from npusim.results.shown.figure import Figure, Line
from npusim.results.shown.report import Report
from npusim.results.writers.web import own

if TYPE_CHECKING:
    from jinja2 import Environment

#: Rows that a table shows before the rest is asked for.
FOLD = 25


def page(report: Report) -> str:
    """A whole page; every text of the report is escaped."""
    charts: list[Any] = []

    def charted(figure: Figure) -> Any:
        from npusim.results.writers.web.charts.base import chart  # noqa: PLC0415 - imports Bokeh

        charts.append(chart(figure))
        return charts[-1]

    return _environment().get_template("page.html").render(
        report=report, charts=charts, charted=charted
    ) + "\n"  # fmt: skip


def notebook(report: Report) -> str:
    """What a notebook shows: the key figures and the brief sections, without scripts."""
    return _environment().get_template("notebook.html").render(report=report)


def told(part: str, *given: Any) -> str:
    """A part of the page of a game, by the name of its macro in ``told.html``."""
    return str(getattr(_environment().get_template("told.html").module, part)(*given))


@cache
def _environment() -> Environment:
    """The templates of this folder, with what they ask for."""
    from jinja2 import Environment, FunctionLoader  # noqa: PLC0415 - pages are made when asked for

    made = Environment(
        loader=FunctionLoader(own), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    made.globals.update(own=own, fold=FOLD, keys=_keys, kind=lambda part: type(part).__name__)
    made.filters.update(inline=_inline_json, dashes=_dashes)
    return made


def _inline_json(value: Any) -> str:
    """JSON that cannot end the script element it is in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _keys(figure: Figure) -> Iterator[tuple[str, list[Any]]]:
    """Titles and entries of the keys of a figure: its marks that have names, then the others."""
    named = [mark for mark in figure.marks if mark.name]
    if named:
        yield "", named
    for key in figure.keys:
        yield key.title, list(key.entries)


def _dashes(line: Any) -> str:
    """The dashes of a line in a key, as SVG has them; "" where it is no dashed line."""
    known = {"--": "5 3", ":": "2 3", "-.": "6 2 2 2"}
    return known.get(line.dash, "") if isinstance(line, Line) else ""
