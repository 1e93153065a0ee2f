"""Files of measured points: CSV of one of three schemas, read cell by cell.

The header tells what a file holds: kernels have a column ``op``, framework calls a column
``call``, training steps a column ``network``. A cell that cannot be read costs its own row only.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar

from npusim.base.errors import CONTROL, ArgumentError
from npusim.base.resources import configs
from npusim.base.yamltree import TextFile, suggest, unreadable
from npusim.kernels.matmul.measured import table
from npusim.silicon.rows import CallRow, KernelRow, NetworkRow, Row, Unreadable

#: A kind of rows.
R = TypeVar("R", bound=Row)

_FOLDER = configs() / "silicon"


class Schema(NamedTuple):
    """A kind of file: the column that tells it, its name in ``columns.csv``, and its rows."""

    column: str
    file: str
    row: type[Row]


SCHEMAS = (
    Schema("op", "kernels", KernelRow),
    Schema("call", "calls", CallRow),
    Schema("network", "networks", NetworkRow),
)


@dataclass(frozen=True)
class Sheet:
    """One file: its columns, its rows in order, and the columns that mean nothing here."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[Row | Unreadable, ...]
    ignored: tuple[str, ...]

    def of(self, kind: type[R]) -> tuple[R, ...]:
        """Return the rows of a kind, without those that cannot be read."""
        return tuple(row for row in self.rows if isinstance(row, kind))


def shipped_sheets() -> tuple[Sheet, Sheet]:
    """Return the measured kernels and the measured calls that ship."""
    return read_sheet(_FOLDER / "kernels.csv"), read_sheet(_FOLDER / "calls.csv")


def shipped_steps() -> Sheet:
    """Return the measured training steps that ship."""
    return read_sheet(_FOLDER / "networks.csv")


def read_sheet(source: TextFile) -> Sheet:
    """Read a file of any schema.

    Raises ``ArgumentError`` if the file cannot be read or its header is of no schema; whatever is
    wrong with one row makes that row ``Unreadable``, an ``id`` that is there already included.
    """
    lines = read_lines(source)
    line, head = next(lines, (1, []))
    columns = tuple(name.strip() for name in head)
    schema = _schema(f"{source}:{line}", columns)
    rows = tuple(_each_once(_rows(source, schema, columns, lines)))
    ignored = tuple(column for column in columns if column not in cells_of(schema))
    return Sheet(str(source), columns, rows, ignored)


def _rows(
    source: TextFile,
    schema: Schema,
    columns: Sequence[str],
    lines: Iterator[tuple[int, list[str]]],
) -> Iterator[tuple[str, Row | Unreadable]]:
    """Yield each row of a file with its place, ``"FILE:LINE"``."""
    for line, cells in lines:
        where = f"{source}:{line}"
        yield where, _read(schema, columns, cells, where)


def _each_once(rows: Iterable[tuple[str, Row | Unreadable]]) -> Iterator[Row | Unreadable]:
    """Yield rows; one whose ``id`` an earlier one has is ``Unreadable``."""
    places: dict[str, str] = {}
    for where, row in rows:
        first = places.setdefault(row.id, where)
        if row.id and first != where:
            reason = (
                f"{where}: id: {row.id!r} is there already, in line {first.rpartition(':')[2]}; "
                "give each row an id of its own"
            )
            yield Unreadable(id=row.id, family=row.family, chip=row.chip, reason=reason)
        else:
            yield row


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
    lines_before = 0
    try:
        for cells in reader:
            line = lines_before + 1  # a cell may have line breaks
            lines_before = reader.line_num
            if any(_plain(cells)) and not cells[0].startswith("#"):
                yield line, cells
    except csv.Error as error:
        raise ArgumentError(
            f"line {lines_before + 1} of the table is no CSV: {error}; save it as plain CSV text"
        ) from error


def _plain(cells: list[str]) -> list[str]:
    if any(map(CONTROL.search, cells)):
        raise csv.Error("it has a control character")
    return cells


def _schema(where: str, columns: Sequence[str]) -> Schema:
    """Return the schema of a header; a column that looks like a missing one is an error."""
    header = set(columns)
    matching = [schema for schema in SCHEMAS if schema.column in header]
    if not {"id", "chip"} <= header or not matching:
        raise ArgumentError(
            f"{where}: expected a header with the columns id, chip and op (kernels), call "
            "(framework calls) or network (training steps), or msprof's op_summary, got "
            f"{', '.join(columns) or 'nothing'}"
        )
    schema = matching[0]
    names = cells_of(schema)
    for column in columns:
        if columns.count(column) > 1:
            raise ArgumentError(f"{where}: column {column!r} is there twice; keep one of them")
        near = suggest(column, [name for name in names if name not in header])
        if column not in names and "did you mean" in near:
            raise ArgumentError(f"{where}: unknown column {column!r}{near}")
    return schema


def _read(schema: Schema, columns: Sequence[str], cells: list[str], where: str) -> Row | Unreadable:
    """Return the row of one line, or why there is none."""
    texts = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
    reason = ""
    if len(cells) != len(columns):
        reason = f"{where}: {len(cells)} cells under {len(columns)} columns"
    values: dict[str, Any] = {}
    for column, cell in cells_of(schema).items():
        text = texts.get(column, "")
        if not text and not cell.required:
            continue
        try:
            values[column] = cell.value(text)
        except ValueError as error:
            reason = reason or f"{where}: {column}: expected {error}, got {text!r}"
    if reason:
        name, family, chip = (texts.get(key, "") for key in ("id", "family", "chip"))
        return Unreadable(id=name, family=family, chip=chip, reason=reason)
    return schema.row(**values)


# -- cells -----------------------------------------------------------------------------------------


class SheetCell(NamedTuple):
    """The cells of a column: their form, the words allowed (() for any), and if each is needed."""

    holds: str
    words: tuple[str, ...]
    required: bool

    def value(self, text: str) -> Any:
        """Return the value of one cell; ``ValueError`` says what is allowed."""
        if self.words and text not in self.words:
            raise ValueError(f"one of {', '.join(self.words)}")
        form = _forms()[self.holds]
        if not form.pattern.fullmatch(text):
            raise ValueError(form.expected)
        return _READERS[self.holds](text)


@cache
def cells_of(schema: Schema) -> Mapping[str, SheetCell]:
    """Return the columns of a kind of file and their cells.

    Those of the kind come first, as ``columns.csv`` lists them, then those of every file, and last
    the texts that name a row: bad cells are looked for in this order.
    """
    required = {f.name for f in fields(schema.row) if f.default is MISSING}
    cells: dict[str, SheetCell] = {}
    for file in (schema.file, "all"):
        for line in table("columns.csv"):
            if line["file"] == file:
                column = line["column"]
                cells[column] = SheetCell(line["holds"], _words(line["words"]), column in required)
    for column in ("id", "chip", "family", schema.column):
        cells[column] = SheetCell("text", (), column in required)
    return cells


class _Form(NamedTuple):
    """The pattern of a cell's text, and the words that say what is allowed."""

    pattern: re.Pattern[str]
    expected: str


@cache
def _forms() -> Mapping[str, _Form]:
    """The forms of cells, by what their column holds."""
    return {
        line["holds"]: _Form(re.compile(line["form"], re.ASCII), line["expected"])
        for line in table("cells.csv")
    }


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(";") if word.strip())


def _flag(text: str) -> bool:
    return text == "1"


def _slots(text: str) -> tuple[int, int]:
    a, _, b = text.removesuffix("B").partition("A/")
    return int(a), int(b or a)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x"))


def _mask(text: str) -> tuple[bool, ...]:
    return tuple(bit == "1" for bit in text.split("x"))


#: Readers of cells, by what their column holds.
_READERS: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "count": int,
    "number": float,
    "time": float,
    "flag": _flag,
    "words": _words,
    "slots": _slots,
    "sizes": _sizes,
    "mask": _mask,
}
