"""Lines of text in columns of a page: tables, wrapped paragraphs and lists."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence

#: Columns of a page; reports are no wider.
WIDTH = 80

#: The width below which a column of text is not narrowed to fit, and a head is not parted.
_LEAST, _HEAD = 12, 8


def page(sections: Iterable[Iterable[str]]) -> str:
    """The lines of ``sections`` one after another, without blanks at their ends."""
    return "\n".join(line.rstrip() for section in sections for line in section) + "\n"


def columns(
    rows: Sequence[Sequence[str]],
    left: int | Collection[int] = 1,
    width: int | None = None,
) -> list[str]:
    """Align ``rows`` of cells: text to the left, numbers to the right.

    ``left`` says which columns are text: so many of the first, or those at these places. Where
    rows are wider than ``width`` characters, the cells of the widest columns of text are wrapped
    between words.
    """
    text = range(left) if isinstance(left, int) else left
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if width is not None:
        words = [_words(cells) for cells in zip(*rows, strict=True)]
        least = [
            min(longest, max(_LEAST, word)) for longest, word in zip(widths, words, strict=True)
        ]
        widths = _fitted(widths, least, text, width)
    lines = []
    for row in rows:
        cells = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            line = "  ".join(
                f"{cell[at] if at < len(cell) else '':{'<' if place in text else '>'}{width}}"
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            lines.append(line.rstrip())
    return lines


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int | Collection[int] = 1,
    width: int | None = None,
) -> list[str]:
    """``columns`` under a head with a rule below it.

    Where that is wider than ``width`` characters, heads are parted at their dots and underscores,
    and if need be the columns: those that have no room follow below, beside the first column again.
    """
    text = range(left) if isinstance(left, int) else left
    lines = ruled([[name] for name in head], rows, text, width)
    if width is None or max(map(len, lines)) <= width:
        return lines
    cells = [max((len(row[column]) for row in rows), default=0) for column in range(len(head))]
    heads = [_parted(name, max(room, _HEAD)) for name, room in zip(head, cells, strict=True)]
    lines = ruled(heads, rows, text, width)
    if max(map(len, lines)) <= width:
        return lines
    widths = [max(room, *map(len, name)) for name, room in zip(heads, cells, strict=True)]
    lines = []
    for part in _parts(widths, width):
        cells_of_part = [[row[column] for column in part] for row in rows]
        places = [place for place, column in enumerate(part) if column in text]
        lines += ["", *ruled([heads[column] for column in part], cells_of_part, places, width)]
    return lines[1:]


def ruled(
    heads: Sequence[Sequence[str]],
    rows: Sequence[Sequence[str]],
    left: Collection[int],
    width: int | None,
) -> list[str]:
    """Columns below the lines of their heads, with a rule between them."""
    height = max(map(len, heads))
    padded = [[""] * (height - len(head)) + [*head] for head in heads]
    above = zip(*padded, strict=True)
    lines = columns([*above, *rows], left, width=width)
    return [*lines[:height], "-" * max(map(len, lines)), *lines[height:]]


def _parted(name: str, width: int) -> list[str]:
    """A head in lines of at most ``width`` characters, as far as its words allow."""
    lines = [""]
    for word in re.findall(r"[^._ ]*[._ ]*", name)[:-1]:
        if lines[-1] and len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return lines


def _parts(widths: Sequence[int], width: int) -> list[list[int]]:
    """Places of columns that fit ``width`` characters together, the first of them in each part."""
    parts = [[0]]
    for column in range(1, len(widths)):
        used = sum(widths[chosen] + 2 for chosen in parts[-1])
        if len(parts[-1]) > 1 and used + widths[column] > width:
            parts.append([0])
        parts[-1].append(column)
    return parts


def _fitted(
    widths: Sequence[int], least: Sequence[int], text: Collection[int], width: int
) -> list[int]:
    """Widths whose columns fit ``width`` characters, as far as narrower text can see to that.

    No column is narrower than its longest word, or its ``least``.
    """
    fitted = list(widths)
    while sum(fitted) + 2 * (len(fitted) - 1) > width:
        wide = [column for column in text if fitted[column] > least[column]]
        if not wide:
            break
        fitted[max(wide, key=lambda column: fitted[column])] -= 1
    return fitted


def _words(cells: Sequence[str]) -> int:
    """The length of the longest word, with what it is indented by if it begins a line below."""
    return max(
        (len(word) + 2 * bool(place) for cell in cells for place, word in enumerate(cell.split())),
        default=0,
    )


def _folded(cell: str, width: int) -> list[str]:
    """The lines of a cell: one where it fits."""
    if len(cell) <= width:
        return [cell]
    return textwrap.wrap(
        cell, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def wrap(text: str, first: str = "", later: str = "") -> list[str]:
    """Lines of at most ``WIDTH`` columns that never part a number from its per cent sign."""
    lines = textwrap.wrap(
        text.replace(" %", "\u00a0%"),
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def fact(name: str, value: str) -> list[str]:
    """A named fact, wrapped under itself."""
    return wrap(f"{name:<12}{value}", later=" " * 12)


def items(title: str, texts: Iterable[str]) -> list[str]:
    """A titled list, wrapped; nothing where there are no items."""
    lines = [line for text in texts for line in wrap(text, "- ", "  ")]
    return ["", title, *lines] if lines else []
