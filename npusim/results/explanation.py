"""Why a call takes the time it takes, with the ways of showing it."""

# Each way of showing an explanation is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.results.answer import Answer
from npusim.results.explained import Explained, KernelExplanation

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Explanation", "KernelExplanation"]


class Explanation(Explained, Answer):
    """Why a call takes the time it takes: its kernels, and what each figure of the device does."""

    def text(self) -> str:
        """The explanation for people, at most 80 columns wide."""
        from npusim.results.explanation_text import render

        return render(self)

    def __rich__(self) -> RenderableType:
        """The same with colours, for a terminal: ``rich.print(explanation)``."""
        from npusim.results.explanation_rich import renderable

        return renderable(self)
