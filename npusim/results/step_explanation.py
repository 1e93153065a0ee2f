"""Why a step takes the time it takes, as text, JSON, page and a table of figures."""

from __future__ import annotations

from npusim.results.facts.step_explanation import StepExplanationFacts
from npusim.results.facts.tables import DataFrame, frame
from npusim.results.saved import Reported
from npusim.results.shown import step_explanation
from npusim.results.shown.report import Report
from npusim.results.writers.text import report_text


class StepExplanation(Reported, StepExplanationFacts, frozen=True, kw_only=True):
    """Why a step takes its time: its verdict, what loses most, and what changes would do."""

    def text(self) -> str:
        """The explanation for people, at most 80 columns wide."""
        return report_text(self.as_report())

    def as_report(self) -> Report:
        """The report as data; the page and what a notebook shows are made of it."""
        return step_explanation.report(self)

    @property
    def table(self) -> DataFrame:
        """One row per figure of the device: the time with half and with twice of it."""
        rows = [figure.to_json() for figure in self.what_if or ()]
        return frame(rows, ("figure", "value", "half_us", "double_us", "together"))
