"""Why a call takes the time it takes: the critical path of its kernels, part by part, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.results.facts.explanation import ExplanationFacts
from npusim.results.saved import Answer
from npusim.results.writers import explanation_text

if TYPE_CHECKING:
    from rich.console import RenderableType


class Explanation(Answer, ExplanationFacts, frozen=True, kw_only=True):
    """Why a call takes the time it takes: its kernels, and what each figure of the device does.

    The cycles of the kernels and of their launches add up to ``cycles``. ``what_if`` is None where
    it was not asked for.
    """

    def text(self) -> str:
        """The explanation for people, at most 80 columns wide."""
        return explanation_text.text(self)

    def __rich__(self) -> RenderableType:
        """The same with colours, for a terminal: ``rich.print(explanation)``."""
        return explanation_text.coloured(self)
