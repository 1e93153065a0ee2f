"""The score card as tables of text, for the terminal and for the page alike.

The report has scatter plots besides: simulated over measured times by family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from npusim.base.atomic_files import write
from npusim.base.records import replace
from npusim.results.facts.number_text import percent_text, signed_text, us_text
from npusim.results.shown import palette
from npusim.results.shown.figure import Axis, Bars, Figure, Line
from npusim.results.shown.report import Pair, Report, Section, Table
from npusim.results.writers import plots
from npusim.results.writers.web import page
from npusim.silicon import score
from npusim.silicon.broken import broken, over_least
from npusim.silicon.constants import Constant
from npusim.silicon.fit import LeftOut, Study
from npusim.silicon.sheet import PARTS, PIPES
from npusim.silicon.simulate import Outcome
from npusim.silicon.steadiness import MOVED, Restarted
from npusim.version import __version__

#: What stands where there is no figure.
NONE = "-"

#: Columns by their heads; ``_WHO`` are those that name a row of the sheets.
_Columns = Mapping[str, Callable[[Any], str]]
_WHO: _Columns = {
    "id": lambda one: one.row.id,
    "family": lambda one: one.row.family,
    "chip": lambda one: one.row.chip,
}

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def scorecard(
    outcomes: Sequence[Outcome],
    study: Study | None = None,
    constants: Sequence[Constant] = (),
    again: Sequence[Restarted] = (),
    calls: Study | None = None,
) -> list[Table]:
    """Return the tables of a score card that have any rows: points first, the summary last.

    ``study`` tells of kernels predicted with ``constants`` that were fitted without them, ``again``
    of kernels whose cores start otherwise, ``calls`` of calls predicted so, one by one.
    """
    left_out = study.left_out if study is not None else ()
    tables = (
        points(outcomes),
        _refusals(outcomes),
        _broken(outcomes),
        _pairs(outcomes),
        _refitted(left_out, constants),
        _determined(study),
        _left_out(left_out),
        _expected(study),
        _calls(calls),
        _restarted(again),
        _families(outcomes),
        _scored(outcomes),
    )
    return [table for table in tables if table.rows]


def figure(text: Callable[[float], str], value: float | None) -> str:
    """Return ``value`` as ``text`` writes it, or what stands where there is no figure."""
    return NONE if value is None else text(value)


def percent(share: float | None) -> str:
    """Return a share of 1 as per cent with one decimal."""
    return figure(partial(percent_text, digits=1), share)


def _scored(outcomes: Sequence[Outcome]) -> Table:
    chosen = [outcome for outcome in outcomes if score.is_scored(outcome.row)]
    simulated = sum(outcome.simulated is not None for outcome in chosen)
    title = f"Scored kernels: {simulated} of {len(chosen)} simulated"
    if not chosen:
        return Table(title, (), (), 1)
    found = score.score(chosen)
    spreads = {
        "time, {} absolute error": found["time"],
        "time by family and shape, {}": found["shapes"],
        "mte2 busy where it is the busiest pipe, {}": found["loads"],
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
    rows += [(what, str(found[of][0]), percent(found[of][1])) for what, of in means.items()]
    pairs = score.pairs(chosen)
    known = [pair.right for pair in pairs if pair.right is not None]
    right = f"{sum(known)} right" if known else NONE
    rows.append(("pairs that differ, direction", str(sum(p.decisive for p in pairs)), right))
    return Table(title, ("figure", "points", "value"), tuple(rows), 1)


def _families(outcomes: Sequence[Outcome]) -> Table:
    columns: _Columns = {
        "family": lambda one: one.family or NONE,
        "rows": lambda one: str(one.rows),
        "compared": lambda one: str(one.compared),
        "declined": lambda one: str(one.declined),
        "failed": lambda one: str(one.failed),
        "MAPE": lambda one: percent(one.mean),
        "median": lambda one: percent(one.median),
        "rank": lambda one: figure("{:.3f}".format, one.rank),
    }
    title = "Families: absolute error of time, Spearman's rank correlation"
    return Table.of(columns, score.family_scores(outcomes), title=title)


def _pairs(outcomes: Sequence[Outcome]) -> Table:
    words = {True: "right", False: "wrong", None: NONE}
    columns: _Columns = {
        "pair": lambda pair: pair.name,
        "rows": lambda pair: f"{pair.second} / {pair.first}",
        "direction": lambda pair: words[pair.right] if pair.decisive else "alike",
        "measured": lambda pair: f"{pair.measured:.3f}",
        "simulated": lambda pair: figure("{:.3f}".format, pair.simulated),
    }
    return Table.of(columns, score.pairs(outcomes), 3, title="Pairs: ratio of times")


def points(outcomes: Sequence[Outcome]) -> Table:
    """Every row that was simulated; busy times as measured / simulated."""
    shown = [outcome for outcome in outcomes if outcome.simulated is not None]
    measured = {pipe for outcome in shown for pipe in outcome.row.busy_us}
    pipes = [pipe for pipe in (*PIPES, *PARTS) if pipe in measured]
    columns: _Columns = {
        **_WHO,
        "measured us": lambda one: figure(us_text, one.row.time_us),
        "simulated us": lambda one: us_text(one.simulated.time_us),
        "error": lambda one: figure(signed_text, score.time_error(one)),
        **{pipe: partial(_side_by_side, pipe=pipe) for pipe in pipes},
    }
    title = "Points: busy times in us, measured / simulated"
    return Table.of(columns, shown, 3, title=title if pipes else "Points")


def _side_by_side(outcome: Outcome, pipe: str) -> str:
    measured = outcome.row.busy_us.get(pipe)
    if measured is None or outcome.simulated is None:
        return ""
    return f"{us_text(measured)} / {figure(us_text, outcome.busy_us.get(pipe))}"


def _refusals(outcomes: Sequence[Outcome]) -> Table:
    failed = {True: "failed: ", False: ""}
    columns = {**_WHO, "reason": lambda one: f"{failed[one.failed]}{one.reason}"}
    refused = [outcome for outcome in outcomes if outcome.simulated is None]
    return Table.of(columns, refused, 4, title="Not simulated")


def _broken(outcomes: Sequence[Outcome]) -> Table:
    columns: _Columns = {
        **_WHO,
        "measured us": lambda one: us_text(one.measured_us),
        "at least": lambda one: us_text(one.least.us),
        "resource": lambda one: one.least.resource,
        "too slow, or wrong": lambda one: " or ".join(one.faults),
    }
    title = "Measured below the least time: a figure is too slow, or the row is wrong"
    return Table.of(columns, broken(outcomes), 3, title=title)


def _left_out(found: Sequence[LeftOut]) -> Table:
    columns: _Columns = {
        "left out": lambda one: one.kind,
        "name": lambda one: one.name,
        "rows": lambda one: str(one.rows),
        "rows fitted to": lambda one: str(one.others),
        "as shipped": lambda one: percent(one.shipped),
        "predicted": lambda one: percent(one.predicted),
    }
    title = "Kernels left out of the fit: mean absolute error of time"
    return Table.of(columns, found, 2, title=title)


def _expected(study: Study | None) -> Table:
    """What to expect of a kernel that nobody fitted."""
    title, head = "Kernels that nobody fitted: expected error", ("figure", "count", "value")
    if study is None or study.predicted.mean is None:
        return Table(title, head, (), 1)
    found = study.predicted
    told = [pair.right for pair in found.pairs if pair.right is not None]
    rows = [
        (f"left out by shape and switch, {what} over shapes", str(found.shapes), percent(error))
        for what, error in (("mean", found.mean), ("median", found.median))
    ]
    rows.append(("direction of pairs left out together", str(len(told)), f"{sum(told)} right"))
    return Table(title, head, rows, 1)


def _calls(study: Study | None) -> Table:
    """Calls by family, each predicted with constants fitted to the others of its chip."""
    families: dict[tuple[str, str], list[LeftOut]] = {}
    for one in study.left_out if study is not None else ():
        row = one.outcomes[0].row
        families.setdefault((row.family, row.chip), []).append(one)
    rows = tuple(
        (family, chip, str(len(found)), *_middles(found))
        for (family, chip), found in families.items()
    )
    head = ("family", "chip", "calls", "as shipped", "median", "predicted", "median")
    return Table("Calls left out of the fit, one by one: absolute error of time", head, rows, 2)


def _middles(found: Sequence[LeftOut]) -> Iterator[str]:
    """Mean and median of errors, as shipped and predicted."""
    for errors in ([one.shipped for one in found], [one.predicted for one in found]):
        yield from map(percent, score.spread([e for e in errors if e is not None])[1:])


def _restarted(found: Sequence[Restarted]) -> Table:
    """The kernels whose time rests on how their cores start, and how many there are."""
    steady = sum(one.is_steady for one in found)
    title = (
        f"Random starts of cores: {steady} of {len(found)} scored kernels move by less than "
        f"{percent_text(MOVED)}"
    )
    columns: _Columns = {
        **_WHO,
        "largest change": lambda one: signed_text(one.moved),
    }
    kept = max(3, len(found) - steady)  # those that move, and the next ones for comparison
    order = sorted(found, key=lambda one: -abs(one.moved))
    return Table.of(columns, order[:kept], 3, title=title)


def _determined(study: Study | None) -> Table:
    columns: _Columns = {
        "constant": lambda one: one.constant.path,
        "devices": lambda one: ", ".join(one.constant.devices),
        "rows": lambda one: str(len(one.rows)),
        "": lambda one: "hypothesis" if one.is_hypothesis else "",
        "whose time or busy time its range moves by over 2 %": lambda one: " ".join(one.rows),
    }
    determined = study.determined if study is not None else ()
    return Table.of(columns, determined, 2, title="Constants and the rows that determine them")


def _refitted(found: Sequence[LeftOut], constants: Sequence[Constant]) -> Table:
    def fitted(constant: Constant) -> list[str]:
        """The values that fits found, the smallest first; they have one unit."""
        texts = [one.values[constants.index(constant)] for one in found]
        return sorted(texts, key=lambda text: float(_NUMBER.findall(text)[0]))

    columns: _Columns = {
        "constant": lambda one: one.path,
        "devices": lambda one: ", ".join(one.devices),
        "least": lambda one: _short(one.text(one.low)),
        "most": lambda one: _short(one.text(one.high)),
        "shipped": lambda one: _short(one.text(one.shipped)),
        "fitted least": lambda one: _short(fitted(one)[0]),
        "fitted most": lambda one: _short(fitted(one)[-1]),
    }
    title = "Constants: allowed range, shipped value, range of the fits that leave kernels out"
    return Table.of(columns, constants if found else (), 2, title=title)


def _short(text: str) -> str:
    """A quantity with four digits."""
    return _NUMBER.sub(lambda number: f"{float(number.group()):.4g}", text, count=1)


# -- the report ------------------------------------------------------------------------------------


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
