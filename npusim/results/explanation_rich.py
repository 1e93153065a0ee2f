"""An explanation for a terminal: the text's tables with colours, in at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from npusim.results import explanation_text as plain
from npusim.results.explanation import Explanation, KernelExplanation
from npusim.results.lines import counted
from npusim.results.what_if import WhatIf

#: Colour of a part of the path.
_COLOURS = {
    "bytes": "blue",
    "start-up": "yellow",
    "rows": "cyan",
    "fetch": "cyan",
    "conflict": "red",
    "floor": "yellow",
    "gap": "yellow",
    "compute": "green",
    "sharing": "magenta",
    "follow": "white",
    "issue": "red",
    "start": "white",
    "order": "white",
}

#: Columns of the bar of parts.
_BAR = 60


def renderable(explanation: Explanation) -> RenderableType:
    """What ``rich.print`` shows."""
    return Constrain(Group(*_pieces(explanation)), plain.WIDTH)


def _pieces(explanation: Explanation) -> Iterator[RenderableType]:
    yield Text(plain.title(explanation), style="bold")
    yield Text(explanation.problem, style="dim")
    if explanation.verdict is not None:
        yield Text(f"bottleneck: {explanation.verdict.text()}", style="bold")
    shown, hidden = plain.chapters(explanation)
    for one in shown:
        yield Text("\n" + plain.head_of(explanation, one), style="bold")
        yield _path(one)
        yield Padding(_bar(one.parts, one.run.cycles), (0, 0, 0, 2))
        for name, text in plain.facts(one):
            yield _fact(name, text)
    if hidden:
        yield Text(f"\n({counted(hidden, 'shorter kernel')}: see to_json())", style="dim")
    if explanation.what_if is not None:
        yield _what_if(explanation.what_if)


def _path(one: KernelExplanation) -> RenderableType:
    table = _table(plain.PATH_HEAD, numbers=(3, 4, 5))
    for row in plain.path_cells(one):
        table.add_row(*row[:-1], Text(row[-1], style=_COLOURS.get(row[-1], "")))
    return Group(Text(plain.path_title(one), style="bold"), table)


def _bar(parts: Mapping[str, int], whole: int) -> Text:
    """Parts as stretches of one line, the names of the largest in them."""
    bar = Text()
    for part, cycles in parts.items():
        width = round(_BAR * cycles / whole) if whole else 0
        label = part if len(part) < width else ""
        bar.append(f"{label:^{width}}"[:width], style=f"black on {_COLOURS.get(part, 'white')}")
    return bar


def _fact(name: str, text: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=12, no_wrap=True)
    grid.add_column()
    whole = text.replace(" %", "\u00a0%")  # a number and its per cent sign stay together
    grid.add_row(Text(f"  {name}", style="dim"), Text(whole))
    return grid


def _what_if(figures: Sequence[WhatIf]) -> RenderableType:
    table = _table(plain.WHAT_IF_HEAD, numbers=(2, 3, 4))
    for row in plain.what_if_cells(figures):
        table.add_row(*row)
    note = Text(plain.idle_figures(figures), style="dim")
    return Group(Text(f"\n{plain.WHAT_IF_TITLE}", style="bold"), table, note)


def _table(heads: Sequence[str], numbers: Sequence[int]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place in numbers else "left", overflow="fold")
    return table
