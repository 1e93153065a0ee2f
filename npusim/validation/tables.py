"""The score card as tables of text, for the terminal and for the page alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean, median

from npusim.results.lines import percent_text, signed_text, us_text
from npusim.results.report import Table, table_of
from npusim.validation import score
from npusim.validation.constants import Constant
from npusim.validation.leave_one_out import LeftOut, Study
from npusim.validation.rows import PIPES, KernelRow
from npusim.validation.sheet import Unreadable
from npusim.validation.simulate import Outcome
from npusim.validation.steadiness import MOVED, Restarted

#: What stands where there is no figure.
NONE = "-"

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
        _points(outcomes),
        _refusals(outcomes),
        _misread(outcomes),
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
    found = score.score(outcomes)
    title = f"Scored kernels: {found.simulated} of {found.rows} simulated"
    if not found.rows:
        return Table(title, (), (), 1)
    compared = sum(score.time_error(o) is not None for o in outcomes if score.is_scored(o.row))
    rows = [
        ("time, mean absolute error", str(compared), percent(found.mean)),
        ("time, median absolute error", str(compared), percent(found.median)),
    ]
    for what, value in zip(("mean", "median"), found.shapes[1:], strict=True):
        rows.append((f"time by family and shape, {what}", str(found.shapes[0]), percent(value)))
    for what, value in zip(("mean", "median"), found.loads_bound[1:], strict=True):
        words = f"mte2 busy where it is the busiest pipe, {what}"
        rows.append((words, str(found.loads_bound[0]), percent(value)))
    for pipe, (count, mean) in found.busy.items():
        rows.append((f"{pipe} busy, mean absolute error", str(count), percent(mean)))
    count, mean = found.drain_told
    rows.append(("fixpipe busy outside the serial template", str(count), percent(mean)))
    pairs = score.pairs(o for o in outcomes if score.is_scored(o.row))
    known = [pair.right for pair in pairs if pair.right is not None]
    right = f"{sum(known)} right" if known else NONE
    rows.append(("pairs that differ, direction", str(sum(p.decisive for p in pairs)), right))
    return Table(title, ("figure", "points", "value"), tuple(rows), 1)


def _families(outcomes: Sequence[Outcome]) -> Table:
    columns: dict[str, Callable[[score.FamilyScore], str]] = {
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
    return table_of(columns, score.family_scores(outcomes), title=title)


def _pairs(outcomes: Sequence[Outcome]) -> Table:
    words = {True: "right", False: "wrong", None: NONE}
    columns: dict[str, Callable[[score.Pair], str]] = {
        "pair": lambda pair: pair.name,
        "rows": lambda pair: f"{pair.second} / {pair.first}",
        "direction": lambda pair: words[pair.right] if pair.decisive else "alike",
        "measured": lambda pair: f"{pair.measured:.3f}",
        "simulated": lambda pair: figure("{:.3f}".format, pair.simulated),
    }
    return table_of(columns, score.pairs(outcomes), 3, title="Pairs: ratio of times")


def _points(outcomes: Sequence[Outcome]) -> Table:
    """Every row that was simulated; busy times as measured / simulated."""
    shown = [outcome for outcome in outcomes if outcome.simulated is not None]
    pipes = [pipe for pipe in PIPES if any(pipe in _busy(outcome) for outcome in shown)]
    head = ("id", "family", "chip", "measured us", "simulated us", "error", *pipes)
    rows = []
    for outcome in shown:
        row, simulated = outcome.row, outcome.simulated
        if isinstance(row, Unreadable) or simulated is None:
            continue
        times = (
            figure(us_text, row.time_us),
            us_text(simulated.time_us),
            figure(signed_text, score.time_error(outcome)),
        )
        busy = (_side_by_side(outcome, pipe) for pipe in pipes)
        rows.append((row.id, row.family, row.chip, *times, *busy))
    title = "Points: busy times in us, measured / simulated"
    return Table(title if pipes else "Points", head, tuple(rows), 3)


def _busy(outcome: Outcome) -> dict[str, float]:
    row = outcome.row
    return dict(row.busy_us) if isinstance(row, KernelRow) else {}


def _side_by_side(outcome: Outcome, pipe: str) -> str:
    measured = _busy(outcome).get(pipe)
    if measured is None or outcome.simulated is None:
        return ""
    return f"{us_text(measured)} / {figure(us_text, outcome.simulated.busy_us.get(pipe))}"


def _who(outcome: Outcome) -> tuple[str, str, str]:
    """What names a row of the sheets."""
    return outcome.row.id, outcome.row.family, outcome.row.chip


def _refusals(outcomes: Sequence[Outcome]) -> Table:
    rows = tuple(
        (*_who(outcome), f"{'failed: ' if outcome.failed else ''}{outcome.reason}")
        for outcome in outcomes
        if outcome.simulated is None
    )
    return Table("Not simulated", ("id", "family", "chip", "reason"), rows, 4)


def _misread(outcomes: Sequence[Outcome]) -> Table:
    rows = tuple(
        (*_who(o), *_side_by_side(o, "cube").split(" / ")) for o in score.misread(outcomes)
    )
    head = ("id", "family", "chip", "cube busy, measured", "simulated")
    return Table("Measured below the cube's own time: read wrongly?", head, rows, 3)


def _left_out(found: Sequence[LeftOut]) -> Table:
    columns: dict[str, Callable[[LeftOut], str]] = {
        "left out": lambda one: one.kind,
        "name": lambda one: one.name,
        "rows": lambda one: str(one.rows),
        "rows fitted to": lambda one: str(one.others),
        "as shipped": lambda one: percent(one.shipped),
        "predicted": lambda one: percent(one.predicted),
    }
    title = "Kernels left out of the fit: mean absolute error of time"
    return table_of(columns, found, 2, title=title)


def _expected(study: Study | None) -> Table:
    """What to expect of a kernel that nobody fitted."""
    title, head = "Kernels that nobody fitted: expected error", ("figure", "count", "value")
    if study is None or study.predicted.mean is None:
        return Table(title, head, (), 1)
    found = study.predicted
    told = [pair.right for pair in found.pairs if pair.right is not None]
    rows = (
        ("left out by shape and switch, mean over shapes", str(found.shapes), percent(found.mean)),
        (
            "left out by shape and switch, median over shapes",
            str(found.shapes),
            percent(found.median),
        ),
        ("direction of pairs left out together", str(len(told)), f"{sum(told)} right"),
    )
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
        known = [error for error in errors if error is not None]
        yield from map(percent, (fmean(known), median(known)) if known else (None, None))


def _restarted(found: Sequence[Restarted]) -> Table:
    """The kernels whose time rests on how their cores start, and how many there are."""
    steady = sum(one.is_steady for one in found)
    title = (
        f"Random starts of cores: {steady} of {len(found)} scored kernels move by less than "
        f"{percent_text(MOVED)}"
    )
    rows = [
        (*_who(one.outcome), signed_text(one.moved))
        for one in sorted(found, key=lambda one: -abs(one.moved))
    ]
    kept = max(3, len(found) - steady)  # those that move, and the next ones for comparison
    return Table(title, ("id", "family", "chip", "largest change"), tuple(rows[:kept]), 3)


def _determined(study: Study | None) -> Table:
    rows = tuple(
        (
            one.constant.path,
            ", ".join(one.constant.devices),
            str(len(one.rows)),
            "hypothesis" if one.is_hypothesis else "",
            " ".join(one.rows),
        )
        for one in (study.determined if study is not None else ())
    )
    head = (
        "constant",
        "devices",
        "rows",
        "",
        "whose time or busy time its range moves by over 2 %",
    )
    return Table("Constants and the rows that determine them", head, rows, 2)


def _refitted(found: Sequence[LeftOut], constants: Sequence[Constant]) -> Table:
    rows = tuple(
        (
            constant.path,
            ", ".join(constant.devices),
            *map(_short, (constant.text(constant.low), constant.text(constant.high))),
            _short(constant.text(constant.shipped)),
            *_ends([one.values[place] for one in found]),
        )
        for place, constant in enumerate(constants if found else ())
    )
    head = ("constant", "devices", "least", "most", "shipped", "fitted least", "fitted most")
    title = "Constants: allowed range, shipped value, range of the fits that leave kernels out"
    return Table(title, head, rows, 2)


def _ends(texts: Sequence[str]) -> tuple[str, str]:
    """The smallest and largest of quantities in one unit."""
    ordered = sorted(texts, key=lambda text: float(_NUMBER.findall(text)[0]))
    return _short(ordered[0]), _short(ordered[-1])


def _short(text: str) -> str:
    """A quantity with four digits."""
    return _NUMBER.sub(lambda number: f"{float(number.group()):.4g}", text, count=1)
