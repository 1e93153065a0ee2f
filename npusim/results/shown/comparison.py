"""The report of two networks or steps side by side: how fast both are, and what changed most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from npusim.results.shown.report import Cell, Items, Report, Section, Table
from npusim.results.writers.text_layout import rate_text, signed_text, us_or_none, us_text
from npusim.version import __version__

#: A name, and its microseconds on both sides; None where a side lacks it.
Times = tuple[str, float | None, float | None]

#: Rows that a notebook shows.
_BRIEF = 10


def compared(of: Any) -> Report:
    """Of a ``NetworkComparison``: a notebook has the largest changes, the page all."""
    (title, unit, times), *others = of.tables()
    changed = [row for row in times if row[1] != row[2]]
    more = f"the {_BRIEF} of {len(changed):,} that change most" if len(changed) > _BRIEF else ""
    brief = ", ".join(part for part in (unit, more) if part)
    return Report(
        title=f"A  {of.told_sides[0]}",
        about=[f"B  {of.told_sides[1]}"],
        lead=_verdict(of),
        cards=[*_cards(of)],
        sections=(
            Section(f"{title}: {brief}", [_table(changed[:_BRIEF])], brief=True),
            Section(f"{title} of both", [of.figure(about=f"times of {title.lower()}")]),
            *(
                Section(f"All {title.lower()}: {unit}", [_table(rows)], opened=False)
                for title, unit, rows in ((title, unit, times), *others)
            ),
            Section("What differs besides", [Items(of.differing_besides())]),
        ),
        origin=f"npusim {__version__}",
    )


def _verdict(of: Any) -> str:
    """Which of the two is faster; by images a second where their numbers differ."""
    if of.empty:
        return "No difference."
    if of.speedup is None or of.speedup == 1:
        return "As fast as each other."
    side = "B" if of.speedup > 1 else "A"
    times = max(of.speedup, 1 / of.speedup)
    per_image = " per image" if of.per_image else ""
    return f"{side} is {times:.2f} times as fast{per_image}."


def _cards(of: Any) -> Iterator[tuple[str, str]]:
    """The speed of both, and their times."""
    a, b = of.rates
    yield f"{rate_text(a)} \u2192 {rate_text(b)}", f"images/s, {signed_text(b / a - 1)}"
    a, b = of.times
    yield f"{us_text(a)} \u2192 {us_text(b)}", f"\u00b5s in all, {signed_text(b / a - 1)}"


def _table(times: Sequence[Times]) -> Table:
    """Times of both, and the change."""
    columns: dict[str, Callable[[Times], Any]] = {
        "": lambda row: row[0],
        "A": lambda row: Cell(us_or_none(row[1]), row[1]),
        "B": lambda row: Cell(us_or_none(row[2]), row[2]),
        "change": lambda row: _change(row[1], row[2]),
        "of A": lambda row: _share(row[1], row[2]),
    }
    return Table.of(columns, times)


def _change(a: float | None, b: float | None) -> Cell:
    if a is None or b is None:
        return Cell("")
    return Cell(f"{b - a:+,.1f}", b - a)


def _share(a: float | None, b: float | None) -> Cell:
    if not a or b is None:
        return Cell("")
    return Cell(signed_text(b / a - 1), b / a)
