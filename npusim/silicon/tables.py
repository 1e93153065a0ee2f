"""The score card as tables of text, for the terminal and for the page alike.

The report has scatter plots besides: simulated over measured times by family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from npusim.base.atomic_files import write
from npusim.base.records import replace
from npusim.results.facts.number_text import percent_text, signed_text, us_text
from npusim.results.shown import palette
from npusim.results.shown.figure import Bars, Figure, FigureAxis, LineMark
from npusim.results.shown.report import Pair, Report, Section, Table
from npusim.results.writers import plots
from npusim.results.writers.web import page
from npusim.silicon import score
from npusim.silicon.broken import broken, over_least
from npusim.silicon.rows import PARTS, PIPES
from npusim.silicon.simulate import RowOutcome
from npusim.version import __version__

#: What stands where there is no figure.
NONE = "-"

#: Columns by their heads; ``WHO`` are those that name a row of the sheets.
Columns = Mapping[str, Callable[[Any], str]]
WHO: Columns = {
    "id": lambda one: one.row.id,
    "family": lambda one: one.row.family,
    "chip": lambda one: one.row.chip,
}


def scorecard(outcomes: Sequence[RowOutcome]) -> list[Table]:
    """Return the tables of a score card that have any rows: points first, the summary last."""
    return [*details(outcomes), *summaries(outcomes)]


def details(outcomes: Sequence[RowOutcome]) -> list[Table]:
    """Return the tables of single rows and of pairs that have any rows."""
    tables = (
        points(outcomes),
        _open_points(outcomes),
        _refusals(outcomes),
        _broken(outcomes),
        _pairs(outcomes),
    )
    return [table for table in tables if table.rows]


def summaries(outcomes: Sequence[RowOutcome]) -> list[Table]:
    """Return the tables of families and of the scored kernels that have any rows."""
    return [table for table in (_families(outcomes), _scored(outcomes)) if table.rows]


def figure(text: Callable[[float], str], value: float | None) -> str:
    """Return ``value`` as ``text`` writes it, or what stands where there is no figure."""
    return NONE if value is None else text(value)


def percent(share: float | None) -> str:
    """Return a share of 1 as per cent with one decimal."""
    return figure(partial(percent_text, digits=1), share)


def _scored(outcomes: Sequence[RowOutcome]) -> Table:
    chosen = [outcome for outcome in outcomes if score.is_scored(outcome.row)]
    simulated = sum(outcome.simulated is not None for outcome in chosen)
    title = f"Scored kernels: {simulated} of {len(chosen)} simulated"
    if not chosen:
        return Table(title, (), (), 1)
    scores = score.score(chosen)
    spreads = {
        "time, {} absolute error": scores["time"],
        "time by family and shape, {}": scores["shapes"],
        "mte2 busy where it is the busiest pipe, {}": scores["loads"],
    }
    rows = [
        (words.format(what), str(count), percent(value))
        for words, (count, *values) in spreads.items()
        for what, value in zip(("mean", "median"), values, strict=True)
    ]
    above = over_least(outcomes)
    times = figure("{:.2f}".format, median(above) if above else None)
    rows.append(("time over its bound from main memory, median", str(len(above)), times))
    means = {f"{pipe} busy, mean absolute error": pipe for pipe in score.SCORED_PIPES}
    means["fixpipe busy outside the serial template"] = "drains"
    rows += [(what, str(scores[of][0]), percent(scores[of][1])) for what, of in means.items()]
    pairs = score.pairs(chosen)
    directions = [pair.right for pair in pairs if pair.right is not None]
    right = f"{sum(directions)} right" if directions else NONE
    rows.append(("pairs that differ, direction", str(sum(p.decisive for p in pairs)), right))
    return Table(title, ("figure", "points", "value"), tuple(rows), 1)


def _families(outcomes: Sequence[RowOutcome]) -> Table:
    columns: Columns = {
        "family": lambda family: family.family or NONE,
        "rows": lambda family: str(family.rows),
        "compared": lambda family: str(family.compared),
        "declined": lambda family: str(family.declined),
        "failed": lambda family: str(family.failed),
        "MAPE": lambda family: percent(family.mean),
        "median": lambda family: percent(family.median),
        "rank": lambda family: figure("{:.3f}".format, family.rank),
    }
    title = "Families: absolute error of time, Spearman's rank correlation"
    return Table.of(columns, score.family_scores(outcomes), title=title)


def _pairs(outcomes: Sequence[RowOutcome]) -> Table:
    words = {True: "right", False: "wrong", None: NONE}
    columns: Columns = {
        "pair": lambda pair: pair.name,
        "rows": lambda pair: f"{pair.second} / {pair.first}",
        "direction": lambda pair: words[pair.right] if pair.decisive else "alike",
        "measured": lambda pair: f"{pair.measured:.3f}",
        "simulated": lambda pair: figure("{:.3f}".format, pair.simulated),
    }
    return Table.of(columns, score.pairs(outcomes), 3, title="Pairs: ratio of times")


def points(outcomes: Sequence[RowOutcome]) -> Table:
    """Every row of a known chip that was simulated; busy times as measured / simulated."""
    shown = [
        outcome
        for outcome in outcomes
        if outcome.simulated is not None and not outcome.row.possible_chips
    ]
    measured = {pipe for outcome in shown for pipe in outcome.row.busy_us}
    pipes = [pipe for pipe in (*PIPES, *PARTS) if pipe in measured]
    columns: Columns = {
        **WHO,
        "measured us": lambda outcome: figure(us_text, outcome.row.time_us),
        "simulated us": lambda outcome: us_text(outcome.simulated.time_us),
        "error": lambda outcome: figure(signed_text, score.time_error(outcome)),
        **{pipe: partial(_side_by_side, pipe=pipe) for pipe in pipes},
    }
    title = "Points: busy times in us, measured / simulated"
    return Table.of(columns, shown, 3, title=title if pipes else "Points")


def _side_by_side(outcome: RowOutcome, pipe: str) -> str:
    measured = outcome.row.busy_us.get(pipe)
    if measured is None or outcome.simulated is None:
        return ""
    return f"{us_text(measured)} / {figure(us_text, outcome.busy_us.get(pipe))}"


def _open_points(outcomes: Sequence[RowOutcome]) -> Table:
    """Every row whose source leaves the chip open: a figure for each chip, none of which counts."""
    rows: dict[tuple[str, tuple[str, ...]], list[RowOutcome]] = {}
    for outcome in outcomes:
        row = outcome.row
        if row.possible_chips and outcome.simulated is not None:
            rows.setdefault((row.id, row.possible_chips), []).append(outcome)
    columns: Columns = {
        "id": lambda figures: figures[0].row.id,
        "family": lambda figures: figures[0].row.family,
        "measured us": lambda figures: figure(us_text, figures[0].row.time_us),
        "simulated us": lambda figures: "; ".join(map(_on_its_chip, figures)),
    }
    title = "Chip left open by the source: a figure for each, none counts in a mean"
    return Table.of(columns, list(rows.values()), 3, title=title)


def _on_its_chip(outcome: RowOutcome) -> str:
    """The chip, time and error of a simulated row."""
    assert outcome.simulated is not None
    error = figure(signed_text, score.time_error(outcome))
    return f"{us_text(outcome.simulated.time_us)} on a {outcome.row.chip} ({error})"


def _refusals(outcomes: Sequence[RowOutcome]) -> Table:
    failed = {True: "failed: ", False: ""}
    columns = {**WHO, "reason": lambda outcome: f"{failed[outcome.failed]}{outcome.reason}"}
    refused = [outcome for outcome in outcomes if outcome.simulated is None]
    return Table.of(columns, refused, 4, title="Not simulated")


def _broken(outcomes: Sequence[RowOutcome]) -> Table:
    columns: Columns = {
        **WHO,
        "measured us": lambda check: us_text(check.measured_us),
        "at least": lambda check: us_text(check.least.us),
        "resource": lambda check: check.least.resource,
        "too slow, or wrong": lambda check: " or ".join(check.faults),
    }
    title = "Measured below the least time: a figure is too slow, or the row is wrong"
    return Table.of(columns, broken(outcomes), 3, title=title)


# -- the report ------------------------------------------------------------------------------------


#: Half the width of the grey band: this share above and below the measured time.
BAND = 0.1

#: Plots side by side in a file, and the inches of one.
_ACROSS, _INCHES = 6, 2.1


def report(outcomes: Sequence[RowOutcome], tables: Sequence[Table]) -> Report:
    """Key figures, the scatter plots, and ``tables``, the summary first."""
    plots_of = Pair([
        replace(part, place=f"family-{place}", about=part.title, caption=part.title, pixels=220)
        for place, part in enumerate(figures(_points(outcomes)))
    ])  # fmt: skip
    return Report(
        title="Simulated against measured",
        about=["Error: simulated over measured time, less 1."],
        lead="",
        cards=_cards(outcomes),
        sections=[
            Section("Simulated over measured times by family", [plots_of]),
            *(Section(part.title, [part]) for part in reversed(tables)),
        ],
        origin=f"npusim {__version__}",
    )


def save_page(path: Path, outcomes: Sequence[RowOutcome], tables: Sequence[Table]) -> None:
    """Write the page of the ``report``."""
    write(path, page.page(report(outcomes, tables)))


def save_plot(path: Path, outcomes: Sequence[RowOutcome]) -> None:
    """Write the scatter plots as the file that ``path`` ends in."""
    drawn = figures(_points(outcomes)) or figures({"": ()})
    across = min(_ACROSS, len(drawn))
    inches = (_INCHES * max(3, across), 1.2 + _INCHES * -(-len(drawn) // across))
    labels = ("measured (us)", "simulated / measured")
    plots.save_plot(path, plots.draw_grid, drawn, across, inches, "", labels)


def figures(points: Mapping[str, Sequence[tuple[float, float]]]) -> list[Figure]:
    """A mark per (measured, simulated) pair of microseconds, all above 0; a figure per family.

    Each has the measured time across, and how many times as long the simulated one is, on the same
    logarithmic axes. The band is 10 % around the measured time; the title has the mean error.
    """
    pairs = np.array([pair for family in points.values() for pair in family] or [(1, 1)], float)
    x = _ends(pairs[:, 0])
    y = _ends(np.append(pairs[:, 1] / pairs[:, 0], [1 - BAND, 1 + BAND]))
    drawn = []
    for family, points_of_family in points.items():
        measured, simulated = np.array(points_of_family, float).reshape(-1, 2).T
        ratio = simulated / measured
        error = f", {percent_text(np.abs(ratio - 1).mean())}" if len(ratio) else ""
        marks = [
            Bars(left=x[:1], right=x[1:], low=[1 - BAND], high=[1 + BAND], colour="#d9d9d9"),
            LineMark(x=x, y=(1, 1), colour="#8c8c8c", width=1),
            LineMark(x=measured, y=ratio, dash="", marker="o", size=4.5, colour=palette.READ_MISS,
                 tip="<div>@x{0,0.0} \u00b5s measured, simulated @y{0.00} of it</div>"),
        ]  # fmt: skip
        title = f"{family}{error}"
        across, up = FigureAxis(log=True, ends=x), FigureAxis(log=True, ends=y)
        drawn.append(Figure(x=across, y=up, marks=marks, title=title))
    return drawn


def _ends(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()) / 1.25, float(values.max()) * 1.25


def _points(outcomes: Sequence[RowOutcome]) -> dict[str, list[tuple[float, float]]]:
    """Measured and simulated times by family, of rows whose chip is known."""
    points: dict[str, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        row = outcome.row
        simulated = outcome.simulated
        if simulated is not None and row.time_us and not row.possible_chips:
            points.setdefault(row.family, []).append((row.time_us, simulated.time_us))
    return points


def _cards(outcomes: Sequence[RowOutcome]) -> list[tuple[str, str]]:
    chosen = [outcome for outcome in outcomes if score.is_scored(outcome.row)]
    simulated = sum(outcome.simulated is not None for outcome in outcomes)
    cards = [
        (f"{simulated} of {len(outcomes)}", "points simulated"),
        (percent(score.mean_time_error(outcomes)), "mean absolute error of time, all points"),
    ]
    if chosen:
        scored = sum(outcome.simulated is not None for outcome in chosen)
        _, mean, middle = score.score(chosen)["time"]
        cards += [
            (f"{scored} of {len(chosen)}", "scored kernels simulated"),
            (percent(mean), "their mean absolute error"),
            (percent(middle), "their median absolute error"),
        ]
    return cards
