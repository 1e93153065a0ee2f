"""Text for people: columns, wrapped paragraphs and lists, of which every report is made."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence

#: Columns of a page; reports are no wider.
WIDTH = 100

#: The width below which a column of text is not narrowed to fit a terminal.
_LEAST = 16


def page(sections: Iterable[Iterable[str]]) -> str:
    """The lines of ``sections`` one after another, without blanks at their ends."""
    return "\n".join(line.rstrip() for section in sections for line in section) + "\n"


def columns(
    rows: Sequence[Sequence[str]],
    left: int | Collection[int] = 1,
    indent: str = "",
    width: int | None = None,
) -> list[str]:
    """Align ``rows`` of cells: text to the left, numbers to the right.

    ``left`` says which columns are text: so many of the first, or those at these places. Where
    rows are wider than ``width`` characters, the cells of the widest columns of text are wrapped.
    """
    text = range(left) if isinstance(left, int) else left
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if width is not None:
        widths = _fitted(widths, text, width - len(indent))
    lines = []
    for row in rows:
        cells = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            line = "  ".join(
                f"{cell[at] if at < len(cell) else '':{'<' if place in text else '>'}{width}}"
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            lines.append((indent + line).rstrip())
    return lines


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int | Collection[int] = 1,
    width: int | None = None,
) -> list[str]:
    """``columns`` under a head with a rule below it."""
    first, *rest = columns([head, *rows], left, width=width)
    return [first, "-" * max(map(len, (first, *rest))), *rest]


def _fitted(widths: Sequence[int], text: Collection[int], width: int) -> list[int]:
    """Widths whose columns fit ``width`` characters, as far as narrower text can see to that."""
    fitted = list(widths)
    while sum(fitted) + 2 * (len(fitted) - 1) > width:
        place = max(text, key=lambda at: fitted[at], default=0)
        if fitted[place] <= _LEAST:
            break
        fitted[place] -= 1
    return fitted


def _folded(cell: str, width: int) -> list[str]:
    """The lines of a cell: one where it fits."""
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width)


def wrap(text: str, first: str = "", later: str = "") -> list[str]:
    """Lines of at most ``WIDTH`` columns that never part a number from its per cent sign."""
    lines = textwrap.wrap(
        text.replace(" %", "\u00a0%"),
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def fact(name: str, value: str) -> list[str]:
    """A named fact, wrapped under itself."""
    return wrap(f"{name:<12}{value}", later=" " * 12)


def items(title: str, texts: Iterable[str]) -> list[str]:
    """A titled list, wrapped; nothing where there are no items."""
    lines = [line for text in texts for line in wrap(text, "- ", "  ")]
    return ["", title, *lines] if lines else []


def counted(count: int, noun: str) -> str:
    """``count`` things: ``"1 core"``, ``"2 cores"``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
