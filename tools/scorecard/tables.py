"""The score card of developers: that of ``npusim validate``, and what other fits and starts say."""

from __future__ import annotations

import re
from collections.abc import Sequence

from npusim.results.facts.number_text import percent_text, signed_text
from npusim.results.shown.report import Table
from npusim.silicon import score
from npusim.silicon.constants import Constant
from npusim.silicon.simulate import RowOutcome
from npusim.silicon.tables import WHO, Columns, details, percent, summaries
from tools.scorecard.left_out import LeftOut, Study
from tools.scorecard.starts import MOVED, Restarted

_NUMBER = re.compile(r"\d+(?:\.\d+)?")

#: Kernels listed at least among those whose cores start otherwise.
_LEAST_LISTED = 3


def scorecard(
    outcomes: Sequence[RowOutcome],
    kernels: Study | None = None,
    constants: Sequence[Constant] = (),
    restarted: Sequence[Restarted] = (),
    calls: Study | None = None,
) -> list[Table]:
    """Return the tables that have any rows: points first, the summary last.

    ``kernels`` were predicted with ``constants`` that were fitted without them, ``calls`` so one by
    one; the cores of those ``restarted`` start otherwise.
    """
    tables: list[Table] = []
    if kernels is not None:
        tables += [
            _refitted(kernels.left_out, constants),
            _determined(kernels),
            _left_out(kernels.left_out),
            _expected(kernels),
        ]
    if calls is not None:
        tables.append(_calls(calls))
    tables.append(_restarted(restarted))
    return [*details(outcomes), *(table for table in tables if table.rows), *summaries(outcomes)]


def _left_out(folds: Sequence[LeftOut]) -> Table:
    columns: Columns = {
        "left out": lambda fold: fold.kind,
        "name": lambda fold: fold.name,
        "rows": lambda fold: str(fold.rows),
        "rows fitted to": lambda fold: str(fold.others),
        "as shipped": lambda fold: percent(fold.shipped),
        "predicted": lambda fold: percent(fold.predicted),
    }
    title = "Kernels left out of the fit: mean absolute error of time"
    return Table.of(columns, folds, 2, title=title)


def _expected(study: Study) -> Table:
    """The error to expect of a kernel that nobody fitted; no rows without predictions."""
    title, head = "Kernels that nobody fitted: expected error", ("figure", "count", "value")
    predicted = study.predicted
    if predicted.mean is None:
        return Table(title, head, (), 1)
    directions = [pair.right for pair in predicted.pairs if pair.right is not None]
    rows = [
        (f"left out by shape and switch, {what} over shapes", str(predicted.shapes), percent(error))
        for what, error in (("mean", predicted.mean), ("median", predicted.median))
    ]
    directions_right = f"{sum(directions)} right"
    rows.append(("direction of pairs left out together", str(len(directions)), directions_right))
    return Table(title, head, rows, 1)


def _calls(study: Study) -> Table:
    """Calls by family, each predicted with constants fitted to the others of its chip."""
    families: dict[tuple[str, str], list[LeftOut]] = {}
    for fold in study.left_out:
        row = fold.outcomes[0].row
        families.setdefault((row.family, row.chip), []).append(fold)
    rows = tuple(
        (
            family,
            chip,
            str(len(folds)),
            *_middles([fold.shipped for fold in folds]),
            *_middles([fold.predicted for fold in folds]),
        )
        for (family, chip), folds in families.items()
    )
    head = ("family", "chip", "calls", "as shipped", "median", "predicted", "median")
    return Table("Calls left out of the fit, one by one: absolute error of time", head, rows, 2)


def _middles(errors: Sequence[float | None]) -> tuple[str, str]:
    """Mean and median of the errors that there are."""
    _, mean, median = score.spread([error for error in errors if error is not None])
    return percent(mean), percent(median)


def _restarted(kernels: Sequence[Restarted]) -> Table:
    """The kernels whose time rests on how their cores start, and how many there are."""
    steady = sum(kernel.is_steady for kernel in kernels)
    title = (
        f"Random starts of cores: {steady} of {len(kernels)} scored kernels move by less than "
        f"{percent_text(MOVED)}"
    )
    columns: Columns = {
        **WHO,
        "largest change": lambda kernel: signed_text(kernel.moved),
    }
    count = max(_LEAST_LISTED, len(kernels) - steady)  # those that move, or the next ones
    by_change = sorted(kernels, key=lambda kernel: -abs(kernel.moved))
    return Table.of(columns, by_change[:count], 3, title=title)


def _determined(study: Study) -> Table:
    columns: Columns = {
        "constant": lambda row: row.constant.path,
        "devices": lambda row: ", ".join(row.constant.devices),
        "rows": lambda row: str(len(row.rows)),
        "": lambda row: "hypothesis" if row.is_hypothesis else "",
        "whose time or busy time its range moves by over 2 %": lambda row: " ".join(row.rows),
    }
    title = "Constants and the rows that determine them"
    return Table.of(columns, study.determined, 2, title=title)


def _refitted(folds: Sequence[LeftOut], constants: Sequence[Constant]) -> Table:
    def fitted(constant: Constant) -> list[str]:
        """The values that fits found, the smallest first; they have one unit."""
        place = constants.index(constant)
        return sorted((fold.values[place] for fold in folds), key=_first_number)

    columns: Columns = {
        "constant": lambda constant: constant.path,
        "devices": lambda constant: ", ".join(constant.devices),
        "least": lambda constant: _short(constant.text(constant.low)),
        "most": lambda constant: _short(constant.text(constant.high)),
        "shipped": lambda constant: _short(constant.text(constant.shipped)),
        "fitted least": lambda constant: _short(fitted(constant)[0]),
        "fitted most": lambda constant: _short(fitted(constant)[-1]),
    }
    title = "Constants: allowed range, shipped value, range of the fits that leave kernels out"
    return Table.of(columns, constants if folds else (), 2, title=title)


def _first_number(text: str) -> float:
    return float(_NUMBER.findall(text)[0])


def _short(text: str) -> str:
    """A quantity with four digits."""
    return _NUMBER.sub(lambda number: f"{float(number.group()):.4g}", text, count=1)
