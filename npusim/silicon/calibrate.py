"""``npusim.calibrate``: figures of a device fitted to a profile of the chip, or to kernels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from npusim.machine.device.parts import Figure
from npusim.machine.device.spec import Device
from npusim.machine.device.variant import Head, free_key, variant_text
from npusim.results.facts.number_text import signed_text
from npusim.results.saved import Answer
from npusim.results.shown.report import Table
from npusim.results.writers.text import table_text
from npusim.silicon import score
from npusim.silicon.broken import broken
from npusim.silicon.fit_search import (
    ASSUMED,
    FITTED,
    Found,
    Search,
    assumed_figures,
    changed_figures,
    constants_of,
)
from npusim.silicon.profile import read_data
from npusim.silicon.sheet import CallRow, KernelRow, ProfiledRow, Row, Unreadable
from npusim.silicon.simulate import Outcome, Task, Workers, other_chip
from npusim.silicon.tables import NONE, figure, percent, points
from npusim.version import __version__

#: Called as progress(what, done, total) after every simulated row.
Progress = Callable[[str, int, int], None]

#: Rows of the least trust are for a look, not for a fit.
_UNTRUSTED = "C"


@dataclass(frozen=True)
class Calibration(Answer):
    """What a fit found.

    ``figures`` are all that were looked at, ``before`` and ``after`` the rows fitted to, with the
    shipped and with the fitted figures, ``left`` the rows that take no part, with reasons.
    ``finished`` is False where the fit was interrupted; what it had found until then is here.
    """

    base: str
    files: tuple[str, ...]
    figures: tuple[Found, ...]
    before: tuple[Outcome, ...]
    after: tuple[Outcome, ...]
    left: tuple[Outcome, ...]
    finished: bool

    def __repr__(self) -> str:
        """One line: device, rows, figures that moved."""
        moved = f"{len(self.changed)} of {len(self.figures)} figures moved"
        return f"<Calibration of {self.base} to {len(self.after)} rows: {moved}>"

    @property
    def changed(self) -> dict[str, str]:
        """The fitted figures that differ from the base, by dotted path, as text."""
        return changed_figures((one.constant, one.value) for one in self.figures)

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
        key, about = free_key(device, "FIT"), f"{device.description}, fitted to measurements"
        source = (
            f"fitted by npusim {__version__} to {'; '.join(self.files)}\n"
            f"({len(self.before)} rows, {len(self.left)} more take no part)"
        )
        head = Head("npusim fit", about, key, source)
        stated = {
            path: f"{text} ({_known(one, key)})"
            for one in self.figures
            if one.moved
            for path, text in one.constant.figures(one.value).items()
        }
        text = variant_text(self.base, device, target, head, stated)
        kept = [
            f"#   {one.constant.path}: {one.verdict}\n" for one in self.figures if not one.moved
        ]
        ended = [f"#   {one.constant.path}: {one.end}\n" for one in self.figures if one.end]
        comments = ["# At this end of the range that was looked at:\n", *ended] if ended else []
        comments += ["# As in the base:\n", *kept] if kept else []
        return text + "".join(comments)


def calibrate(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    device: str | os.PathLike[str],
    *,
    tilings: str | os.PathLike[str] | None = None,
    constants: str | os.PathLike[str] | None = None,
    figures: Sequence[str] = (),
    rounds: int = 2,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Calibration:
    """Fit figures of a device to measurements of the chip.

    ``data`` is one file or several: msprof's ``op_summary`` CSV, or kernels in the columns of
    ``configs/silicon/README.md``. ``device`` is a shipped device or a device file, ``tilings`` the
    YAML file with what a profile does not hold (default: the one beside it of the same name).
    ``constants`` is a list in the form of ``configs/silicon/fit.yaml`` (default: that one),
    ``figures`` are further ones, ``PATH`` or ``PATH=LOW..HIGH``, or "assumed" for all that are.
    ``rounds`` of narrower ranges follow the first; ``jobs`` processes simulate.

    Raises ``ArgumentError`` or ``ConfigError``, with file and line, for what cannot be read, and
    where no row can be simulated.
    """
    check_jobs(jobs)
    name = os.fspath(device)
    name = ALIASES.get(name, name)
    shipped = load_device(name)
    paths = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    chosen = constants_of(name, shipped, None if constants is None else Path(constants), figures)
    given = None if tilings is None else Path(tilings)
    sheets = [read_data(Path(path), name, given) for path in paths]
    rows, left = _parted([row for sheet in sheets for row in sheet.rows], name, shipped)
    with Workers(jobs) as workers:

        def run(tasks: Sequence[Task], text: str) -> list[Outcome]:
            note = None if progress is None else partial(progress, text)
            return workers.outcomes(tasks, note)

        outcomes = run([(row, {}) for row in rows], "the figures as they are")
        base, refused = _usable(outcomes)
        left += refused
        if not base:
            raise ArgumentError(_nothing(paths, left))
        search = Search(base, chosen, run, rounds)
        search.search()
    return Calibration(
        base=name,
        files=tuple(_named(Path(path)) for path in paths),
        figures=tuple(search.found),
        before=tuple(base),
        after=tuple(search.outcomes),
        left=tuple(left),
        finished=search.finished,
    )


def _parted(
    rows: Sequence[Row | Unreadable], name: str, device: Device
) -> tuple[list[KernelRow], list[Outcome]]:
    """Rows to simulate, on the device to fit, and the others with the reason."""
    reasons = [(row, _objection(row, name, device)) for row in rows]
    kernels = [row for row, reason in reasons if isinstance(row, KernelRow) and not reason]
    taken = [replace(row, chip=name) for row in kernels]
    return taken, [Outcome(row, reason=reason) for row, reason in reasons if reason]


def _objection(row: Row | Unreadable, name: str, device: Device) -> str:
    """Why a row takes no part before it is simulated; "" where it does."""
    if isinstance(row, Unreadable):
        return row.reason
    if isinstance(row, CallRow):
        return "a call of several kernels; a fit is to kernels"
    if not row.time_us or row.trust == _UNTRUSTED:
        return "trust C: its tiling is not known" if row.time_us else "no time was measured"
    return other_chip(row, name, device)


def _usable(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Rows to fit to, and those that were not simulated or cannot be as they are read."""
    cube = (one for one in broken(outcomes) if one.least.resource == "pipe M")
    wrong = {id(one.row): one.least.us for one in cube}
    base, left = [], []
    for outcome in outcomes:
        if outcome.simulated is None:
            left.append(outcome)
        elif id(outcome.row) in wrong:
            busy, measured = wrong[id(outcome.row)], outcome.row.time_us
            reason = (
                f"measured {measured:g} us, but the cube alone takes {busy:.4g} us with the tiling "
                "assumed: read wrongly, or another device?"
            )
            left.append(Outcome(outcome.row, reason=reason))
        else:
            base.append(outcome)
    return base, left


def _nothing(paths: Sequence[str | os.PathLike[str]], left: Sequence[Outcome]) -> str:
    """What to say where there is nothing to fit to."""
    reasons = list(dict.fromkeys(str(outcome.reason) for outcome in left))
    files = ", ".join(os.fspath(path) for path in paths)
    shown = "".join(f"\n  {reason}" for reason in reasons[:10])
    more = f"\n  and {len(reasons) - 10} more reasons" if len(reasons) > 10 else ""
    return f"{files}: none of {len(left)} rows can be fitted to:{shown}{more}"


def _named(path: Path) -> str:
    """The name of a file with what tells its content from another of that name."""
    return f"{path.name} (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]})"


def _known(one: Found, key: str) -> str:
    """How well a figure is known, from where, and between which values it may lie."""
    confidence = "fitted" if one.verdict == FITTED else "hypothesis"
    if one.span is None or not KINDS[one.constant.kind].ranged:
        return f"{confidence}, {key}"
    low, high = map(one.constant.text, one.span)
    return f"{confidence}, {key}, {low}..{high}"


# -- what is shown ----------------------------------------------------------------------------

_Pairs = Sequence[tuple[Outcome, Outcome]]


def card(
    pairs: _Pairs, left: Sequence[Outcome], found: Sequence[Found], device: Device
) -> list[Table]:
    """Return the tables; ``pairs`` are rows fitted to, before and after, ``left`` the others."""
    after = [later for _, later in pairs]
    tables = (
        points(after),
        _notes(after),
        _left(left),
        _rows(pairs),
        _determined(found),
        _figures(found, device),
        _ended(found, device),
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
        values = (constant.shipped, one.value, *(ends or (None, None)), constant.low, constant.high)
        kind, clock_hz = constant.kind, device.clock_hz
        texts = ("" if v is None else figure_text(Figure((), kind, v), clock_hz) for v in values)
        rows.append((constant.path, one.verdict, *texts))
    head = ("figure", "", "before", "after", "as good from", "to", "range from", "to")
    return Table("Figures: before and after", head, tuple(rows), 2)


def _ended(found: Sequence[Found], device: Device) -> Table:
    """Figures that the fit moved to an end of their range."""
    rows = []
    for one in found:
        if one.end:
            value = Figure((), one.constant.kind, one.value)
            rows.append((one.constant.path, figure_text(value, device.clock_hz), one.end))
    title = (
        "Figures at an end of their range: a tiling is wrong or a mechanism is missing, or the "
        "range is too narrow (--figure PATH=LOW..HIGH)"
    )
    return Table(title, ("figure", "value", "end"), tuple(rows), 3)


def _offered(found: Sequence[Found], device: Device) -> list[Table]:
    """The assumed figures that could be fitted and were not looked at; no table without any."""
    others = not_looked_at(found, device)
    if not others:
        return []
    title = f"Assumed figures not looked at: --figure PATH fits one, --figure {ASSUMED} all"
    return [Table(title, ("count", "figures"), ((str(len(others)), " ".join(others)),), 2)]


def not_looked_at(found: Sequence[Found], device: Device) -> list[str]:
    """Return the assumed figures of a device, by path, that a fit did not look at."""
    seen = {path for one in found for path in (one.constant.path, *one.constant.also)}
    return [path for path in assumed_figures(device) if path not in seen]


def _summary(pairs: _Pairs, left: Sequence[Outcome]) -> Table:
    sides = [[before for before, _ in pairs], [after for _, after in pairs]]
    launches = str(sum(map(_launches, sides[0])))
    rows: list[tuple[str, ...]] = [
        ("rows fitted to", str(len(pairs)), str(len(pairs))),
        ("their launches", launches, launches),
        ("rows that take no part", str(len(left)), str(len(left))),
    ]
    times = [score.spread(score.times_of(side))[1:] for side in sides]
    for name, *errors in zip(("mean", "median"), *times, strict=True):
        rows.append((f"{name} absolute error of time", *map(percent, errors)))
    for pipe in score.SCORED_PIPES:
        means = [score.spread(score.busy_of(side, pipe))[1] for side in sides]
        if None not in means:
            rows.append((f"{pipe} busy, mean absolute error", *map(percent, means)))
    return Table("Summary", ("figure", "before", "after"), tuple(rows), 1)
