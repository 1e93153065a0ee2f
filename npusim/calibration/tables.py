"""The card of a fit: figures and what determines them, rows before and after, and the summary."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from npusim.calibration.search import Found
from npusim.device.catalog import figure_text
from npusim.device.config import Figure
from npusim.device.spec import Device
from npusim.results.lines import signed_text
from npusim.results.report import Table
from npusim.validation import score
from npusim.validation.rows import ProfiledRow
from npusim.validation.simulate import Outcome
from npusim.validation.tables import NONE, figure, percent, scorecard

_Pairs = Sequence[tuple[Outcome, Outcome]]


def card(
    pairs: _Pairs, left: Sequence[Outcome], found: Sequence[Found], device: Device
) -> list[Table]:
    """Return the tables; ``pairs`` are rows fitted to, before and after, ``left`` the others."""
    after = [later for _, later in pairs]
    points = [table for table in scorecard(after) if table.title.startswith("Points")]
    tables = (
        *points,
        _notes(after),
        _left(left),
        _rows(pairs),
        _determined(found),
        _figures(found, device),
        _summary(pairs, left),
    )
    return [table for table in tables if table.rows]


def _rows(pairs: _Pairs) -> Table:
    """The error of each row before and after, and where its tiling came from."""
    rows = []
    for before, after in pairs:
        launches = _launches(after)
        errors = (figure(signed_text, score.time_error(one)) for one in (before, after))
        rows.append((after.row.id, _source(after), str(launches), *errors))
    head = ("id", "tiling", "launches", "error before", "after")
    return Table("Rows: error of time before and after", head, tuple(rows), 2)


def _launches(outcome: Outcome) -> int:
    return outcome.row.launches if isinstance(outcome.row, ProfiledRow) else 1


def _source(outcome: Outcome) -> str:
    """Where the tiling of a row came from."""
    row, simulated = outcome.row, outcome.simulated
    if not isinstance(row, ProfiledRow) or simulated is None:
        return "as stated in the row"
    for note in simulated.notes:
        if note.startswith("tiling "):
            return note.removeprefix("tiling ").partition(": ")[0]
    return "the kernel's only one"


def _notes(after: Sequence[Outcome]) -> Table:
    rows = tuple(
        (one.row.id, note)
        for one in after
        for note in (one.simulated.notes if one.simulated is not None else ())
    )
    return Table("Tilings, and what was taken for granted", ("id", "note"), rows, 2)


def _left(left: Sequence[Outcome]) -> Table:
    rows = tuple((one.row.id, one.row.chip, one.reason or NONE) for one in left)
    return Table("Rows that take no part", ("id", "chip", "reason"), rows, 3)


def _determined(found: Sequence[Found]) -> Table:
    rows = tuple((one.constant.path, str(len(one.rows)), " ".join(one.rows)) for one in found)
    head = ("figure", "rows", "whose time or busy time its range moves by over 2 %")
    return Table("Figures and the rows that determine them", head, rows, 3)


def _figures(found: Sequence[Found], device: Device) -> Table:
    """Each constant: what became of it, its value before and after, what is as good, its range."""
    rows = []
    for one in found:
        constant, ends = one.constant, one.span
        values = [constant.shipped, one.value]
        values += ends or ()
        texts = [
            figure_text(Figure((), constant.kind, value), device.clock_hz)
            for value in (*values, constant.low, constant.high)
        ]
        alike = texts[2:4] if ends else ["", ""]
        rows.append((constant.path, one.verdict, *texts[:2], *alike, *texts[-2:]))
    head = ("figure", "", "before", "after", "as good from", "to", "range from", "to")
    return Table("Figures: before and after", head, tuple(rows), 2)


def _summary(pairs: _Pairs, left: Sequence[Outcome]) -> Table:
    sides = [[before for before, _ in pairs], [after for _, after in pairs]]
    launches = str(sum(map(_launches, sides[0])))
    rows: list[tuple[str, ...]] = [
        ("rows fitted to", str(len(pairs)), str(len(pairs))),
        ("their launches", launches, launches),
        ("rows that take no part", str(len(left)), str(len(left))),
    ]
    for name, of in (("mean", fmean), ("median", median)):
        errors = [[abs(score.time_error(o) or 0.0) for o in side] for side in sides]
        rows.append((f"{name} absolute error of time", *(percent(of(side)) for side in errors)))
    for pipe in score.SCORED_PIPES:
        shares = [[abs(e[pipe]) for e in map(score.busy_errors, s) if pipe in e] for s in sides]
        if all(shares):
            name = f"{pipe} busy, mean absolute error"
            rows.append((name, *(percent(fmean(share)) for share in shares)))
    return Table("Summary", ("figure", "before", "after"), tuple(rows), 1)
