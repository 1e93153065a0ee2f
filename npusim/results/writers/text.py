"""Reports as text of 80 columns: named sentences, then sections of tables, lists and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from npusim.results.shown.report import Cell, Items, Note, Report, ReportLine, Section, Table
from npusim.results.writers import text_layout
from npusim.results.writers.text_layout import WIDTH, columns, fact, page, wrap

#: What pages have that texts write in another way.
_PLAIN = str.maketrans({"\u2192": "->", "\u00b5": "u", "\u00d7": "x"})


def report_text(report: Report) -> str:
    """The whole report, in lines of at most 80 columns and with a final newline."""
    head = [line for entry in report.lines for line in fact(entry.name, entry.text)]
    sections = [_section(section) for section in report.sections if section.heading]
    return page([head, *sections])


def table_text(table: Table, width: int | None = None) -> str:
    """The title and the table, in lines of at most ``width`` characters."""
    lines = text_layout.table(table.head, table.rows, table.left, width)
    return "\n".join((table.title, "", *lines))


def _section(section: Section) -> Iterator[str]:
    """The lines of a section below its heading; nothing where no part holds anything."""
    parts = section.in_text
    if not parts:
        return
    yield ""
    first = parts[0]
    if isinstance(first, Note) and first.level == 0:
        yield from wrap(first.text, f"{section.heading}  ", "  ")
        parts = parts[1:]
    elif not isinstance(first, Table) or _bar_place(first) is not None:
        yield section.heading
    for part in parts:
        yield from _part(section.heading, part)


def _part(heading: str, part: Table | Items | Note | ReportLine) -> Iterator[str]:
    """The lines of a part; a table has the heading of its section above its first column."""
    if isinstance(part, Items):
        for text in part.texts:
            yield from wrap(text, "- ", "  ")
    elif isinstance(part, Note):
        indent = "  " * part.level
        yield from wrap(part.text.translate(_PLAIN), indent, f"{indent}  " if part.level else "")
    elif isinstance(part, ReportLine):
        yield from fact(part.name, part.text)
    elif _bar_place(part) is not None:
        yield from _bars(part)
    else:
        yield from _table(heading, part)


def _plain(cell: object) -> str:
    """A cell as a text has it."""
    if not isinstance(cell, Cell):
        return str(cell).translate(_PLAIN)
    return cell.text.translate(_PLAIN) if cell.plain is None else cell.plain


def _table(heading: str, table: Table) -> list[str]:
    """A table below the heading of its section, which stands above the first column."""
    places = range(len(table.head)) if table.in_text is None else table.in_text
    left = [number for number, place in enumerate(places) if place < table.left]
    heads = [_plain(table.head[place]) for place in places]
    rows = [[heading, *heads[1:]]]
    rows += [
        [_plain(row[place]) or table.blank for place in places] for row in table.rows[: table.most]
    ]
    if table.most is not None and len(table.rows) > table.most:
        rows.append([*table.rest, *[""] * (len(places) - len(table.rest))])
    if table.total:
        rows.append(list(table.total))
    lines = columns(rows, left=left, width=None if table.below else WIDTH)
    if not table.below:
        return lines
    head, *others = lines
    lines = [head]
    for line, below in zip(others, table.below, strict=False):
        lines += [line, *wrap(below, "  ", "  ")]
    return [*lines, *others[len(table.below) :]]


# -- bars ----------------------------------------------------------------------------------------


def _bar_place(table: Table) -> int | None:
    """The place of the first column of bars, None where there is none."""
    return next((place for place, kind in enumerate(table.kinds) if kind == "bars"), None)


def _bars(table: Table) -> Iterator[str]:
    """A table with a bar in each row: its parts as columns in per cent, its first column above.

    Parts that do not fit the width are added up as "rest", the smallest ones first.
    """
    bar_place = table.kinds.index("bars")
    cells = table.cells
    shares = [{name: share for name, share, _ in row[bar_place].parts} for row in cells]
    between = [[_plain(cell) for cell in row[1 : table.left]] for row in cells]
    names, rest = _parts_that_fit(shares, between, table.bar_names)
    heads = [_plain(head) for head in table.head[1 : table.left]]
    heads[0] = f"  {heads[0]}"
    rows = [[*heads, *names, *(["rest"] if rest else [])]]
    for texts, parts in zip(between, shares, strict=True):
        row = [f"  {texts[0]}", *texts[1:]]
        row += [_percent(parts.get(name, 0.0)) for name in names]
        if rest:
            row.append(_percent(sum(parts.get(name, 0.0) for name in rest)))
        rows.append(row)
    head, *lines = columns(rows, left=table.left - 1)
    yield head
    group = ""
    for cells_of_row, line in zip(cells, lines, strict=True):
        title = _plain(cells_of_row[0])
        if title != group:
            group = title
            yield title
        yield line


def _parts_that_fit(
    shares: Sequence[Mapping[str, float]], between: Sequence[Sequence[str]], order: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The parts of bars that have columns, in their order, and those that are added up."""
    names = [name for name in order if any(name in parts for parts in shares)]
    most = {name: max(parts.get(name, 0.0) for parts in shares) for name in names}
    texts = [max(map(len, column)) for column in zip(*between, strict=True)]
    room = WIDTH - 2 - sum(max(4, width) for width in texts) - 2 * (len(texts) - 1)
    rest: list[str] = []
    while names:
        heads = [*names, *(["rest"] if rest else [])]
        if sum(2 + max(5, len(head)) for head in heads) <= room:
            break
        smallest = min(names, key=lambda name: most[name])
        names.remove(smallest)
        rest.append(smallest)
    return names, rest


def _percent(share: float) -> str:
    """Per cent with one decimal, blank for what never happened."""
    return f"{share * 100:.1f}" if share else ""
