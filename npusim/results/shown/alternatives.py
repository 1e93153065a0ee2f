"""The report of what would shorten a step."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.results.facts.number_text import rate_text, signed_text, us_text
from npusim.results.facts.step_alternatives import Alternative, AlternativesFacts
from npusim.results.shown.report import Cell, Items, Note, Part, Report, ReportLine, Section, Table

#: Columns of the longest option that a text has room for.
_OPTION = 24


def report(alternatives: AlternativesFacts) -> Report:
    """The report, as text and as a page; a notebook shows the table."""
    us = us_text(alternatives.time_us)
    speed = rate_text(alternatives.images_per_second)
    rows = [row for row in alternatives.rows if not row.error]
    failed = [f"{row.change}: {row.error}" for row in alternatives.rows if row.error]
    lead = f"{us} \u00b5s as it is."
    if rows and (rows[0].saves or 0.0) > 0:
        lead += f" Most is saved by: {rows[0].change}."
    return Report(
        title=f"What would shorten a step of {alternatives.workload} on {alternatives.device}",
        about=[f"{alternatives.description}; {alternatives.asked}"],
        lead=lead,
        lines=(
            ReportLine("network", f"{alternatives.workload}: {alternatives.description}"),
            ReportLine("step", alternatives.asked),
            ReportLine("device", f"{alternatives.device}, digest {alternatives.device_digest}"),
            ReportLine("time", f"{us} us, {speed} images/s"),
        ),
        cards=(),
        sections=(
            Section("Changes", [*_changes(rows)], brief=True, heading="CHANGE"),
            Section("Not possible", [Items(failed)], heading="NOT POSSIBLE"),
        ),
        origin=f"npusim {alternatives.version}, {alternatives.device}",
    )


def _changes(rows: list[Alternative]) -> Iterator[Part]:
    """Every change that could be simulated, those that save most first."""
    if not rows:
        return
    cells = [
        (
            row.change,
            Cell(row.option, plain=row.option if len(row.option) <= _OPTION else ""),
            Cell(us_text(row.time_us or 0.0), row.time_us or 0.0),
            rate_text(row.images_per_second or 0.0),
            signed_text(-(row.saves or 0.0)),
        )
        for row in rows
    ]
    yield Table("", ("change", "option", "\u00b5s", "images/s", "an image"), cells, 2)
    yield Note(
        "(each by itself, simulated by a whole new step with its own plan and tilings; an image: "
        "the time of one on one card)"
    )
