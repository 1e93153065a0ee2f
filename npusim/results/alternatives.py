"""What would shorten a step, as text, JSON, page and table."""

from __future__ import annotations

from npusim.results.facts.fact import row_of
from npusim.results.facts.step_alternatives import (
    ALTERNATIVE_COLUMNS,
    ALTERNATIVES,
    AlternativesFacts,
)
from npusim.results.facts.tables import DataFrame, frame
from npusim.results.saved import Reported
from npusim.results.shown import alternatives
from npusim.results.shown.report import Report
from npusim.results.writers.text import report_text


class Alternatives(Reported, AlternativesFacts, frozen=True, kw_only=True):
    """What would shorten a step: a row for each change, simulated by a whole new step."""

    def text(self) -> str:
        """The table for people, at most 80 columns wide."""
        return report_text(self.as_report())

    def as_report(self) -> Report:
        """The table as data; the page and what a notebook shows are made of it."""
        return alternatives.report(self)

    @property
    def table(self) -> DataFrame:
        """One row per change, those that save most first."""
        return frame([row_of(ALTERNATIVES, row) for row in self.rows], ALTERNATIVE_COLUMNS)
