"""``npusim.calibrate``: figures of a device fitted to a profile of the chip, or to kernels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path

from npusim.base.atomic_files import write
from npusim.base.errors import ArgumentError
from npusim.base.quantities import KINDS
from npusim.base.records import replace
from npusim.base.workers import check_jobs
from npusim.machine.device.catalog import load_device
from npusim.machine.device.config import figure_text, parse_device
from npusim.machine.device.files import ALIASES
from npusim.machine.device.parts import DeviceFigure
from npusim.machine.device.spec import Device
from npusim.machine.device.variant import Head, free_key, variant_text
from npusim.results.facts.number_text import signed_text
from npusim.results.saved import Answer
from npusim.results.shown.report import Table
from npusim.results.writers.text import table_text
from npusim.silicon import score
from npusim.silicon.broken import broken
from npusim.silicon.constants import Constant
from npusim.silicon.fit_search import (
    ASSUMED,
    FITTED,
    ConstantSearch,
    FittedFigure,
    assumed_figures,
    changed_figures,
    constants_of,
)
from npusim.silicon.profile import read_data
from npusim.silicon.rows import CallRow, KernelRow, ProfiledRow, Row, Unreadable
from npusim.silicon.simulate import RowOutcome, RowWorkers, Task, other_chip
from npusim.silicon.tables import NONE, figure, percent, points
from npusim.version import __version__

#: Called as progress(what, done, total) after every simulated row.
Progress = Callable[[str, int, int], None]

#: Rows of the least trust are for a look, not for a fit.
_UNTRUSTED = "C"


@dataclass(frozen=True)
class Calibration(Answer):
    """The result of a fit.

    ``figures`` are all that were looked at, ``before`` and ``after`` the rows fitted to, with the
    shipped and with the fitted figures, ``left`` the rows that take no part, with reasons.
    ``finished`` is False where the fit was interrupted; the values are those found until then.
    """

    base: str
    files: tuple[str, ...]
    figures: tuple[FittedFigure, ...]
    before: tuple[RowOutcome, ...]
    after: tuple[RowOutcome, ...]
    left: tuple[RowOutcome, ...]
    finished: bool

    def __repr__(self) -> str:
        """One line: device, rows, figures that moved."""
        moved = f"{len(self.changed)} of {len(self.figures)} figures moved"
        return f"<Calibration of {self.base} to {len(self.after)} rows: {moved}>"

    @property
    def changed(self) -> dict[str, str]:
        """The fitted figures that differ from the base, by dotted path, as text."""
        return changed_figures((figure.constant, figure.value) for figure in self.figures)

    @cached_property
    def device(self) -> Device:
        """The base with the fitted figures; ``save`` writes it as a file."""
        target = Path(f"{load_device(self.base).name}_fitted.yaml")
        return parse_device(self._text(target), str(target))

    @property
    def tables(self) -> list[Table]:
        """The card: points, rows before and after, figures, summary."""
        pairs = list(zip(self.before, self.after, strict=True))
        device = load_device(self.base)
        return [*card(pairs, self.left, self.figures, device), *_offered(self.figures, device)]

    def text(self) -> str:
        """Return the card for people."""
        return "\n\n".join(table_text(table) for table in self.tables)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the device file, which builds on the device that was fitted.

        Raises ``ArgumentError`` for a name that does not end in ``.yaml``, and where no figure
        moved: the file would change nothing.
        """
        target = Path(path)
        if target.suffix != ".yaml":
            raise ArgumentError(f"{target}: a device file's name ends in .yaml")
        if not self.changed:
            raise ArgumentError(
                f"none of {len(self.figures)} figures moved, so that it would change nothing; use "
                f"{self.base} as it is, or fit others: --figure PATH=LOW..HIGH, --figure {ASSUMED}"
            )
        write(target, self._text(target))

    def _text(self, target: Path) -> str:
        """The text of the device file ``target``, built on ``base``."""
        device = load_device(self.base)
        key = free_key(device, "FIT")
        about = f"{device.description}, fitted to measurements"
        source = (
            f"fitted by npusim {__version__} to {'; '.join(self.files)}\n"
            f"({len(self.before)} rows, {len(self.left)} more take no part)"
        )
        head = Head("npusim fit", about, key, source)
        stated = {
            path: f"{text} ({_provenance(figure, key)})"
            for figure in self.figures
            if figure.moved
            for path, text in figure.constant.figures(figure.value).items()
        }
        text = variant_text(self.base, device, target, head, stated)
        ended = [figure for figure in self.figures if figure.end]
        if ended:
            text += "# At this end of the range that was looked at:\n"
            text += "".join(f"#   {figure.constant.path}: {figure.end}\n" for figure in ended)
        unchanged = [figure for figure in self.figures if not figure.moved]
        if unchanged:
            text += "# As in the base:\n"
            text += "".join(f"#   {f.constant.path}: {f.verdict}\n" for f in unchanged)
        return text


def calibrate(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    device: str | os.PathLike[str],
    *,
    tilings: str | os.PathLike[str] | None = None,
    constants: str | os.PathLike[str] | None = None,
    figures: Sequence[str] = (),
    rounds: int = 2,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Fit figures of a device to measurements of the chip.

    ``data`` is one file or several: msprof's ``op_summary`` CSV, or kernels in the columns of
    ``configs/silicon/README.md``. ``device`` is a shipped device or a device file, ``tilings`` the
    YAML file with what a profile does not hold (default: the one beside it of the same name).
    ``constants`` is a list in the form of ``configs/silicon/fit.yaml`` (default: that one),
    ``figures`` are further ones, ``PATH`` or ``PATH=LOW..HIGH``, or "assumed" for all that are.
    ``rounds`` of narrower ranges follow the first; ``jobs`` processes simulate (None: one per
    processor, where the work is worth their start).

    Raises ``ArgumentError`` or ``ConfigError``, with file and line, for what cannot be read, and
    where no row can be simulated.
    """
    check_jobs(jobs)
    name = os.fspath(device)
    name = ALIASES.get(name, name)
    shipped = load_device(name)
    paths = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    constants_file = None if constants is None else Path(constants)
    looked_at = constants_of(name, shipped, constants_file, figures)
    tilings_file = None if tilings is None else Path(tilings)
    sheets = [read_data(Path(path), name, tilings_file) for path in paths]
    rows, excluded = _parted([row for sheet in sheets for row in sheet.rows], name, shipped)
    with RowWorkers(jobs) as workers:

        def run(tasks: Sequence[Task], text: str) -> list[RowOutcome]:
            note = None if progress is None else partial(progress, text)
            return workers.outcomes(tasks, note)

        outcomes = run([(row, {}) for row in rows], "the figures as they are")
        base, unusable = _usable(outcomes)
        excluded += unusable
        if not base:
            raise ArgumentError(_nothing_to_fit_to(paths, excluded))
        search = ConstantSearch(base, looked_at, run, rounds)
        search.search()
    return Calibration(
        base=name,
        files=tuple(_named(Path(path)) for path in paths),
        figures=tuple(search.found),
        before=tuple(base),
        after=tuple(search.outcomes),
        left=tuple(excluded),
        finished=search.finished,
    )


def _parted(
    rows: Sequence[Row | Unreadable], name: str, device: Device
) -> tuple[list[KernelRow], list[RowOutcome]]:
    """Rows to simulate, on the device to fit, and the others with the reason."""
    taken: list[KernelRow] = []
    excluded: list[RowOutcome] = []
    for row in rows:
        reason = _objection(row, name, device)
        if reason:
            excluded.append(RowOutcome(row, reason=reason))
        elif isinstance(row, KernelRow):
            taken.append(replace(row, chip=name))
    return taken, excluded


def _objection(row: Row | Unreadable, name: str, device: Device) -> str:
    """The reason why a row takes no part before it is simulated; "" where it does."""
    if isinstance(row, Unreadable):
        return row.reason
    if isinstance(row, CallRow):
        return "a call of several kernels; a fit is to kernels"
    if not row.time_us or row.trust == _UNTRUSTED:
        return "trust C: its tiling is not known" if row.time_us else "no time was measured"
    return other_chip(row, name, device)


def _usable(outcomes: Sequence[RowOutcome]) -> tuple[list[RowOutcome], list[RowOutcome]]:
    """Rows to fit to, and those that were not simulated or cannot be as they are read."""
    cube_us = {
        id(checked.row): checked.least.us
        for checked in broken(outcomes)
        if checked.least.resource == "pipe M"
    }
    base: list[RowOutcome] = []
    unusable: list[RowOutcome] = []
    for outcome in outcomes:
        row = outcome.row
        if outcome.simulated is None:
            unusable.append(outcome)
        elif id(row) in cube_us:
            reason = (
                f"measured {row.time_us:g} us, but the cube alone takes {cube_us[id(row)]:.4g} us "
                "with the tiling assumed: read wrongly, or another device?"
            )
            unusable.append(RowOutcome(row, reason=reason))
        else:
            base.append(outcome)
    return base, unusable


def _nothing_to_fit_to(
    paths: Sequence[str | os.PathLike[str]], excluded: Sequence[RowOutcome]
) -> str:
    """The message where there is nothing to fit to, with up to ten reasons."""
    reasons = list(dict.fromkeys(str(outcome.reason) for outcome in excluded))
    files = ", ".join(os.fspath(path) for path in paths)
    shown = "".join(f"\n  {reason}" for reason in reasons[:10])
    more = f"\n  and {len(reasons) - 10} more reasons" if len(reasons) > 10 else ""
    return f"{files}: none of {len(excluded)} rows can be fitted to:{shown}{more}"


def _named(path: Path) -> str:
    """The name of a file with what tells its content from another of that name."""
    return f"{path.name} (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]})"


def _provenance(figure: FittedFigure, key: str) -> str:
    """The confidence of a figure, its source, and the values between which it may lie."""
    confidence = "fitted" if figure.verdict == FITTED else "hypothesis"
    if figure.span is None or not KINDS[figure.constant.kind].ranged:
        return f"{confidence}, {key}"
    low, high = map(figure.constant.text, figure.span)
    return f"{confidence}, {key}, {low}..{high}"


# -- what is shown ----------------------------------------------------------------------------

_Pairs = Sequence[tuple[RowOutcome, RowOutcome]]


def card(
    pairs: _Pairs, excluded: Sequence[RowOutcome], figures: Sequence[FittedFigure], device: Device
) -> list[Table]:
    """Return the tables of a fit to ``pairs``, rows before and after, that left out others."""
    after = [later for _, later in pairs]
    tables = (
        points(after),
        _notes(after),
        _excluded(excluded),
        _rows(pairs),
        _determined(figures),
        _figures(figures, device),
        _ended(figures, device),
        _summary(pairs, excluded),
    )
    return [table for table in tables if table.rows]


def _rows(pairs: _Pairs) -> Table:
    """The error of each row before and after, and the source of its tiling."""
    rows = []
    for before, after in pairs:
        error_before = figure(signed_text, score.time_error(before))
        error_after = figure(signed_text, score.time_error(after))
        launches = str(_launches(after))
        rows.append((after.row.id, _source(after), launches, error_before, error_after))
    head = ("id", "tiling", "launches", "error before", "after")
    return Table("Rows: error of time before and after", head, tuple(rows), 2)


def _launches(outcome: RowOutcome) -> int:
    return outcome.row.launches if isinstance(outcome.row, ProfiledRow) else 1


def _source(outcome: RowOutcome) -> str:
    """The source of a row's tiling."""
    simulated = outcome.simulated
    if not isinstance(outcome.row, ProfiledRow) or simulated is None:
        return "as stated in the row"
    for note in simulated.notes:
        if note.startswith("tiling "):
            return note.removeprefix("tiling ").partition(": ")[0]
    return "the kernel's only one"


def _notes(after: Sequence[RowOutcome]) -> Table:
    rows = tuple(
        (outcome.row.id, note)
        for outcome in after
        if outcome.simulated is not None
        for note in outcome.simulated.notes
    )
    return Table("Tilings, and what was taken for granted", ("id", "note"), rows, 2)


def _excluded(excluded: Sequence[RowOutcome]) -> Table:
    rows = tuple((outcome.row.id, outcome.row.chip, outcome.reason or NONE) for outcome in excluded)
    return Table("Rows that take no part", ("id", "chip", "reason"), rows, 3)


def _determined(figures: Sequence[FittedFigure]) -> Table:
    rows = tuple(
        (fitted.constant.path, str(len(fitted.rows)), " ".join(fitted.rows)) for fitted in figures
    )
    head = ("figure", "rows", "whose time or busy time its range moves by over 2 %")
    return Table("Figures and the rows that determine them", head, rows, 3)


def _figures(figures: Sequence[FittedFigure], device: Device) -> Table:
    """Each constant: its verdict, its value before and after, values as good, and its range."""
    rows = []
    for fitted in figures:
        constant = fitted.constant
        lowest, highest = fitted.span or (None, None)
        values = (constant.shipped, fitted.value, lowest, highest, constant.low, constant.high)
        texts = [_text(constant, value, device) for value in values]
        rows.append((constant.path, fitted.verdict, *texts))
    head = ("figure", "", "before", "after", "as good from", "to", "range from", "to")
    return Table("Figures: before and after", head, tuple(rows), 2)


def _text(constant: Constant, value: Fraction | None, device: Device) -> str:
    """A value of a constant as a device file would state it; "" for None."""
    if value is None:
        return ""
    return figure_text(DeviceFigure((), constant.kind, value), device.clock_hz)


def _ended(figures: Sequence[FittedFigure], device: Device) -> Table:
    """Figures that the fit moved to an end of their range."""
    rows = []
    for fitted in figures:
        if fitted.end:
            text = _text(fitted.constant, fitted.value, device)
            rows.append((fitted.constant.path, text, fitted.end))
    title = (
        "Figures at an end of their range: a tiling is wrong or a mechanism is missing, or the "
        "range is too narrow (--figure PATH=LOW..HIGH)"
    )
    return Table(title, ("figure", "value", "end"), tuple(rows), 3)


def _offered(figures: Sequence[FittedFigure], device: Device) -> list[Table]:
    """The assumed figures that could be fitted and were not looked at; no table without any."""
    others = not_looked_at(figures, device)
    if not others:
        return []
    title = f"Assumed figures not looked at: --figure PATH fits one, --figure {ASSUMED} all"
    return [Table(title, ("count", "figures"), ((str(len(others)), " ".join(others)),), 2)]


def not_looked_at(figures: Sequence[FittedFigure], device: Device) -> list[str]:
    """Return the assumed figures of a device, by path, that a fit did not look at."""
    looked_at: set[str] = set()
    for fitted in figures:
        looked_at.add(fitted.constant.path)
        looked_at.update(fitted.constant.also)
    return [path for path in assumed_figures(device) if path not in looked_at]


def _summary(pairs: _Pairs, excluded: Sequence[RowOutcome]) -> Table:
    """Counts of rows and mean errors, before and after."""
    before = [earlier for earlier, _ in pairs]
    after = [later for _, later in pairs]
    launches = str(sum(map(_launches, before)))
    errors_before = score.spread(score.times_of(before))
    errors_after = score.spread(score.times_of(after))
    rows: list[tuple[str, str, str]] = [
        ("rows fitted to", str(len(pairs)), str(len(pairs))),
        ("their launches", launches, launches),
        ("rows that take no part", str(len(excluded)), str(len(excluded))),
        (
            "mean absolute error of time",
            percent(errors_before.mean),
            percent(errors_after.mean),
        ),
        (
            "median absolute error of time",
            percent(errors_before.median),
            percent(errors_after.median),
        ),
    ]
    for pipe in score.SCORED_PIPES:
        mean_before = score.spread(score.busy_of(before, pipe)).mean
        mean_after = score.spread(score.busy_of(after, pipe)).mean
        if mean_before is not None and mean_after is not None:
            name = f"{pipe} busy, mean absolute error"
            rows.append((name, percent(mean_before), percent(mean_after)))
    return Table("Summary", ("figure", "before", "after"), tuple(rows), 1)
