"""Reports as web pages: one style and script, tables, charts; nothing from outside."""

from __future__ import annotations

from typing import Any

from npusim.results.shown.figure import Figure
from npusim.results.shown.report import Report
from npusim.results.writers.web.templates import environment


def page(report: Report) -> str:
    """A whole page; every text of the report is escaped."""
    charts: list[Any] = []

    def charted(figure: Figure) -> Any:
        from npusim.results.writers.web.charts.base import chart  # noqa: PLC0415 - imports Bokeh

        charts.append(chart(figure))
        return charts[-1]

    template = environment().get_template("page.html")
    return template.render(report=report, charts=charts, charted=charted) + "\n"


def notebook(report: Report) -> str:
    """The key figures and the brief sections, without scripts, for the end of a cell."""
    return environment().get_template("notebook.html").render(report=report)
