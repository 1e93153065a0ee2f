"""An explanation for a terminal: its text with colours, and bars of what kernels are spent on."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.text import Text

from npusim.results.explained import Explained
from npusim.results.explanation_text import pieces
from npusim.results.lines import WIDTH
from npusim.results.palette import PATH_COLOURS

#: Columns of the bar of parts.
_BAR = 60

#: Lines that are titles.
_TITLE = r"(?m)^(\S.*:.* us = .*|[A-Z]{3,} .*|pipe  .*|figure  .*)$"


def renderable(explanation: Explained) -> RenderableType:
    """What ``rich.print`` shows."""
    shown: list[RenderableType] = []
    for lines, kernel in pieces(explanation):
        text = Text("\n".join(lines))
        text.highlight_regex(_TITLE, "bold")
        for part, colour in PATH_COLOURS.items():
            text.highlight_regex(rf"(?m)\b{part}(?= *$| <?\d)", colour)
        shown.append(text)
        if kernel is not None:
            shown.append(Padding(_bar(kernel.parts, kernel.run.cycles), (0, 0, 0, 2)))
    return Constrain(Group(*shown), WIDTH)


def _bar(parts: Mapping[str, int], whole: int) -> Text:
    """Parts as stretches of one line, the names of the largest in them."""
    bar = Text()
    for part, cycles in parts.items():
        width = round(_BAR * cycles / whole) if whole else 0
        label = part if len(part) < width else ""
        bar.append(f"{label:^{width}}"[:width], style=f"black on {PATH_COLOURS.get(part, 'white')}")
    return bar
