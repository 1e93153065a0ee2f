"""The score card as one self-contained web page, and its scatter plot."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.base.written import write
from npusim.results import plots
from npusim.results.scorecard_plot import plot_scorecard
from npusim.results.web import page
from npusim.validation.score import mean_time_error, score, time_error
from npusim.validation.simulate import Outcome
from npusim.validation.tables import Table, percent
from npusim.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save_page(path: Path, outcomes: Sequence[Outcome], tables: Sequence[Table]) -> None:
    """Write the page: key figures, the scatter plot, and ``tables``, the summary first."""
    title = "Simulated against measured"
    body = (
        f"<h1>{title}</h1>",
        f'<p class="dim">npusim {escape(__version__)}; error: simulated over measured time, less 1'
        "</p>",
        _cards(outcomes),
        page.picture(_scatter(outcomes), "svg", "simulated against measured times"),
        *(
            f"<h2>{escape(t.title)}</h2>{page.table(t.head, t.rows, t.left)}"
            for t in reversed(tables)
        ),
    )
    write(path, page.page(title, body))


def save_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the scatter plot as the file that ``path`` ends in."""
    plots.save_plot(path, _scatter, outcomes)


def _scatter(outcomes: Sequence[Outcome]) -> Axes:
    points: dict[str, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        error = time_error(outcome)
        if outcome.simulated is not None and error is not None:
            simulated = outcome.simulated.time_us
            pair = (simulated / (1 + error), simulated)
            points.setdefault(outcome.row.family, []).append(pair)
    return plot_scorecard(points)


def _cards(outcomes: Sequence[Outcome]) -> str:
    found = score(outcomes)
    simulated = sum(outcome.simulated is not None for outcome in outcomes)
    cards: dict[str, str] = {
        "points simulated": f"{simulated} of {len(outcomes)}",
        "mean absolute error of time, all points": percent(mean_time_error(outcomes)),
    }
    if found.rows:
        cards |= {
            "scored kernels simulated": f"{found.simulated} of {found.rows}",
            "their mean absolute error": percent(found.mean),
            "their median absolute error": percent(found.median),
        }
    return page.cards((value, name) for name, value in cards.items())
