"""The score card as a report, and its scatter plots: simulated over measured times by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from npusim.base.written import write
from npusim.results import palette, plots
from npusim.results.figure import Axis, Bars, Figure, Line
from npusim.results.lines import percent_text
from npusim.results.report import Pair, Report, Section, Table
from npusim.results.web import page
from npusim.validation.score import mean_time_error, score
from npusim.validation.simulate import Outcome
from npusim.validation.tables import percent
from npusim.version import __version__

#: Half the width of the grey band: this share above and below the measured time.
BAND = 0.1

#: Plots side by side in a file, and the inches of one.
_ACROSS, _INCHES = 6, 2.1


def report(outcomes: Sequence[Outcome], tables: Sequence[Table]) -> Report:
    """Key figures, the scatter plots, and ``tables``, the summary first."""
    plots_of = Pair([
        replace(one, place=f"family-{at}", about=one.title, caption=one.title, pixels=220)
        for at, one in enumerate(figures(_points(outcomes)))
    ])  # fmt: skip
    return Report(
        title="Simulated against measured",
        about=["Error: simulated over measured time, less 1."],
        lead="",
        cards=_cards(outcomes),
        sections=[
            Section("Simulated over measured times by family", [plots_of]),
            *(Section(one.title, [one]) for one in reversed(tables)),
        ],
        origin=f"npusim {__version__}",
    )


def save_page(path: Path, outcomes: Sequence[Outcome], tables: Sequence[Table]) -> None:
    """Write the page of the ``report``."""
    write(path, page.page(report(outcomes, tables)))


def save_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the scatter plots as the file that ``path`` ends in."""
    found = figures(_points(outcomes)) or figures({"": ()})
    across = min(_ACROSS, len(found))
    inches = (_INCHES * max(3, across), 1.2 + _INCHES * -(-len(found) // across))
    labels = ("measured (us)", "simulated / measured")
    plots.save_plot(path, plots.draw_grid, found, across, inches, "", labels)


def figures(points: Mapping[str, Sequence[tuple[float, float]]]) -> list[Figure]:
    """A mark per (measured, simulated) pair of microseconds, all above 0; a figure per family.

    Each has the measured time across, and how many times as long the simulated one is, on the same
    logarithmic axes. The band is 10 % around the measured time; the title has the mean error.
    """
    pairs = np.array([pair for family in points.values() for pair in family] or [(1, 1)], float)
    x = _ends(pairs[:, 0])
    y = _ends(np.append(pairs[:, 1] / pairs[:, 0], [1 - BAND, 1 + BAND]))
    found = []
    for family, own in points.items():
        measured, simulated = np.array(own, float).reshape(-1, 2).T
        ratio = simulated / measured
        error = f", {percent_text(np.abs(ratio - 1).mean())}" if len(ratio) else ""
        marks = [
            Bars(left=x[:1], right=x[1:], low=[1 - BAND], high=[1 + BAND], colour="#d9d9d9"),
            Line(x=x, y=(1, 1), colour="#8c8c8c", width=1),
            Line(x=measured, y=ratio, dash="", marker="o", size=4.5, colour=palette.READ_MISS,
                 tip="<div>@x{0,0.0} \u00b5s measured, simulated @y{0.00} of it</div>"),
        ]  # fmt: skip
        title = f"{family}{error}"
        found.append(Figure(x=Axis(log=True, ends=x), y=Axis(log=True, ends=y), marks=marks,
                            title=title))  # fmt: skip
    return found


def _ends(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()) / 1.25, float(values.max()) * 1.25


def _points(outcomes: Sequence[Outcome]) -> dict[str, list[tuple[float, float]]]:
    """Measured and simulated times by family."""
    points: dict[str, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        if outcome.simulated is not None and outcome.row.time_us:
            pair = (outcome.row.time_us, outcome.simulated.time_us)
            points.setdefault(outcome.row.family, []).append(pair)
    return points


def _cards(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    found = score(outcomes)
    simulated = sum(outcome.simulated is not None for outcome in outcomes)
    cards = [
        (f"{simulated} of {len(outcomes)}", "points simulated"),
        (percent(mean_time_error(outcomes)), "mean absolute error of time, all points"),
    ]
    if found.rows:
        cards += [
            (f"{found.simulated} of {found.rows}", "scored kernels simulated"),
            (percent(found.mean), "their mean absolute error"),
            (percent(found.median), "their median absolute error"),
        ]
    return cards
