"""Files of measured points: CSV of either schema, read cell by cell.

The header tells what a file holds: kernels have a column ``op``, framework calls a column
``call``, training steps a column ``network``. A cell that cannot be read costs its own row only.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from npusim.base.errors import CONTROL, ArgumentError, told_as
from npusim.base.resources import configs
from npusim.base.yamltree import TextFile, suggest, unreadable
from npusim.kernels.tilings.template import settings, table
from npusim.validation.rows import CallRow, Declined, KernelRow, NetworkRow, Unreadable

Row = KernelRow | CallRow | NetworkRow

#: The schemas by the column that tells each.
_SCHEMAS: Mapping[str, type[Row]] = {"op": KernelRow, "call": CallRow, "network": NetworkRow}

_FOLDER = configs() / "silicon"


@dataclass(frozen=True)
class Sheet:
    """One file: its columns, its rows in order, and the columns that mean nothing here."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[Row | Unreadable, ...]
    ignored: tuple[str, ...]


def shipped_sheets() -> tuple[Sheet, Sheet]:
    """Return the measured kernels and the measured calls that ship."""
    return read_sheet(_FOLDER / "kernels.csv"), read_sheet(_FOLDER / "calls.csv")


def shipped_steps() -> Sheet:
    """Return the measured training steps that ship."""
    return read_sheet(_FOLDER / "networks.csv")


def told(row: KernelRow, op: str) -> dict[str, Any]:
    """Return what the switches of a row set of the kernel of an operation.

    Raises ``Declined`` for a word that is not simulated for it.
    """
    with told_as(Declined, caught=ArgumentError):
        return settings(row.switches, op, row.op)


def read_sheet(source: TextFile) -> Sheet:
    """Read a file of either schema.

    Raises ``ArgumentError`` if the file cannot be read or its header is of neither schema;
    whatever is wrong with one row makes that row ``Unreadable``.
    """
    lines = read_lines(source)
    at, head = next(lines, (1, []))
    columns = tuple(name.strip() for name in head)
    schema = _schema(f"{source}:{at}", columns)
    rows = tuple(_read(schema, columns, cells, f"{source}:{line}") for line, cells in lines)
    known = {f.name for f in fields(schema)}
    return Sheet(str(source), columns, rows, tuple(c for c in columns if c not in known))


def _plain(cells: list[str]) -> list[str]:
    if any(map(CONTROL.search, cells)):
        raise csv.Error("it has a control character")
    return cells


def read_lines(source: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of every line that is neither empty nor a ``#`` comment.

    Raises ``ArgumentError`` for a file that cannot be read, and for what is no CSV: cells too long,
    and control characters.
    """
    try:
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{source}: {unreadable(error)}") from error
    reader = csv.reader(io.StringIO(text))
    before = 0
    try:
        for cells in reader:
            line, before = before + 1, reader.line_num
            if any(_plain(cells)) and not cells[0].startswith("#"):
                yield line, cells
    except csv.Error as error:
        raise ArgumentError(
            f"line {before + 1} of the table is no CSV: {error}; save it as plain CSV text"
        ) from error


def _schema(where: str, columns: Sequence[str]) -> type[Row]:
    """Return the schema of a header; a column that looks like a missing one is an error."""
    named = set(columns)
    told = [schema for column, schema in _SCHEMAS.items() if column in named]
    if not {"id", "chip"} <= named or not told:
        raise ArgumentError(
            f"{where}: expected a header with the columns id, chip and op (kernels), call "
            "(framework calls) or network (training steps), or msprof's op_summary, got "
            f"{', '.join(columns) or 'nothing'}"
        )
    schema = told[0]
    known = [f.name for f in fields(schema)]
    for column in columns:
        if columns.count(column) > 1:
            raise ArgumentError(f"{where}: column {column!r} is there twice; keep one of them")
        near = suggest(column, [name for name in known if name not in named])
        if column not in known and "did you mean" in near:
            raise ArgumentError(f"{where}: unknown column {column!r}{near}")
    return schema


def _read(
    schema: type[Row], columns: Sequence[str], cells: list[str], where: str
) -> Row | Unreadable:
    """Return the row of one line, or why there is none."""
    texts = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
    reason, values = "", {}
    if len(cells) != len(columns):
        reason = f"{where}: {len(cells)} cells under {len(columns)} columns"
    for f in fields(schema):
        text = texts.get(f.name, "")
        if text or f.default is MISSING:
            try:
                values[f.name] = _cell(f, text)
            except ValueError as error:
                reason = reason or f"{where}: {f.name}: expected {error}, got {text!r}"
    if reason:
        name, family, chip = (texts.get(key, "") for key in ("id", "family", "chip"))
        return Unreadable(id=name, family=family, chip=chip, reason=reason)
    return schema(**values)


def _cell(f: Field[Any], text: str) -> Any:
    """Return the value of one cell; ``ValueError`` says what is allowed."""
    words, holds = _words(f.metadata.get("words", "")), f.metadata.get("holds", "text")
    if words and text not in words:
        raise ValueError(f"one of {', '.join(words)}")
    if not _FORMS[holds].fullmatch(text):
        raise ValueError(_EXPECTED[holds])
    return _READERS[holds](text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(";") if word.strip())


def _slots(text: str) -> tuple[int, int]:
    a, _, b = text.removesuffix("B").partition("A/")
    return int(a), int(b or a)


#: What cells may look like, and how they are read, by what their column holds.
_FORMS = {one["holds"]: re.compile(one["form"], re.ASCII) for one in table("cells.csv")}
_EXPECTED = {one["holds"]: one["expected"] for one in table("cells.csv")}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "count": int,
    "number": float,
    "flag": "1".__eq__,
    "words": _words,
    "slots": _slots,
    "sizes": lambda text: tuple(map(int, text.split("x"))),
    "mask": lambda text: tuple(map("1".__eq__, text.split("x"))),
}
