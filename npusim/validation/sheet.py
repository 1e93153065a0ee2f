"""Files of measured points: CSV of either schema, read cell by cell.

The header tells what a file holds: kernels have a column ``op``, framework calls a column
``call``. A cell that cannot be read costs its own row only.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from npusim.base.errors import CONTROL, ArgumentError
from npusim.base.resources import configs
from npusim.base.yamltree import suggest, unreadable
from npusim.validation.rows import CallRow, Declined, KernelRow

if TYPE_CHECKING:  # only types may use it: the module has moved since Python 3.10
    from importlib.abc import Traversable

Row = KernelRow | CallRow

_FOLDER = configs() / "silicon"
_INTEGER = re.compile(r"\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_SLOTS = re.compile(r"(\d{1,3})(?:A/(\d{1,3})B)?", re.ASCII)


@dataclass(frozen=True)
class Unreadable:
    """A row with a cell that cannot be read; ``reason`` names file, line and column."""

    id: str
    family: str
    chip: str
    reason: str


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


@cache
def words() -> Mapping[str, tuple[frozenset[str], Mapping[str, Any]]]:
    """Return the words that ``switches`` may hold, from the table that explains them.

    With each the operations for which it is simulated and what it sets of their kernels.
    """
    text = (_FOLDER / "words.csv").read_text(encoding="utf-8")
    return {
        entry["word"]: (frozenset(_words(entry["ops"])), dict(map(_setting, _words(entry["sets"]))))
        for entry in csv.DictReader(io.StringIO(text))
    }


def _setting(text: str) -> tuple[str, Any]:
    """Name and value of ``name``, ``name=2`` or ``name=text``."""
    name, _, value = text.partition("=")
    return name, int(value) if value.isdecimal() else value or True


def told(row: KernelRow, op: str) -> dict[str, Any]:
    """Return what the switches of a row set of the kernel of an operation.

    Raises ``Declined`` for a word that is not simulated for it.
    """
    found: dict[str, Any] = {}
    for word in row.switches:
        ops, sets = words().get(word, (frozenset(), {}))
        if op not in ops:
            raise Declined(f"switches: {word} is not simulated for {row.op}")
        found |= sets
    return found


@cache
def _spelled_orders() -> tuple[tuple[re.Pattern[str], Mapping[str, str]], ...]:
    """The ways to spell an order of tiles, and the columns each stands for."""
    text = (_FOLDER / "orders.csv").read_text(encoding="utf-8")
    return tuple(
        (re.compile(re.escape(entry.pop("form")).replace(r"\#", r"(\d{1,18})"), re.ASCII), entry)
        for entry in csv.DictReader(io.StringIO(text))
    )


def spelled_order(text: str) -> dict[str, Any] | None:
    """Return what the columns of the order are for a text of ``swizzle``; None for no known form.

    The forms stand in ``configs/silicon/orders.csv``; "#" is a number, as a cell the first one.
    """
    hints, known = get_type_hints(KernelRow), {f.name: f for f in fields(KernelRow)}
    for pattern, cells in _spelled_orders():
        found = pattern.fullmatch(text)
        if found is not None:
            stated = {c: found[1] if cell == "#" else cell for c, cell in cells.items() if cell}
            return {c: _cell(known[c], hints[c], cell) for c, cell in stated.items()}
    return None


def read_sheet(source: Path | Traversable) -> Sheet:
    """Read a file of either schema.

    Raises ``ArgumentError`` if the file cannot be read or its header is of neither schema;
    whatever is wrong with one row makes that row ``Unreadable``.
    """
    try:
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{source}: {unreadable(error)}") from error
    lines = lines_of(text)
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


def lines_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of every line that is neither empty nor a ``#`` comment.

    Raises ``ArgumentError`` for what is no CSV: cells too long, and control characters.
    """
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


def _schema(where: str, columns: Sequence[str]) -> type[KernelRow] | type[CallRow]:
    """Return the schema of a header; a column that looks like a missing one is an error."""
    named = set(columns)
    if not {"id", "chip"} <= named or not named & {"op", "call"}:
        raise ArgumentError(
            f"{where}: expected a header with the columns id, chip and op (kernels) or id, chip "
            "and call (framework calls), or msprof's op_summary, got "
            f"{', '.join(columns) or 'nothing'}"
        )
    schema = KernelRow if "op" in named else CallRow
    known = [f.name for f in fields(schema)]
    for column in columns:
        if columns.count(column) > 1:
            raise ArgumentError(f"{where}: column {column!r} is there twice; keep one of them")
        near = suggest(column, [name for name in known if name not in named])
        if column not in known and "did you mean" in near:
            raise ArgumentError(f"{where}: unknown column {column!r}{near}")
    return schema


def _read(
    schema: type[KernelRow] | type[CallRow], columns: Sequence[str], cells: list[str], where: str
) -> Row | Unreadable:
    """Return the row of one line, or why there is none."""
    texts = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
    hints = get_type_hints(schema)
    reason, values = "", {}
    if len(cells) != len(columns):
        reason = f"{where}: {len(cells)} cells under {len(columns)} columns"
    for f in fields(schema):
        text = texts.get(f.name, "")
        if text or f.default is MISSING:
            try:
                values[f.name] = _cell(f, hints[f.name], text)
            except ValueError as error:
                reason = reason or f"{where}: {f.name}: expected {error}, got {text!r}"
    if reason:
        name, family, chip = (texts.get(key, "") for key in ("id", "family", "chip"))
        return Unreadable(name, family, chip, reason)
    return schema(**values)


def _cell(f: Field[Any], hint: Any, text: str) -> Any:
    """Return the value of one cell; ``ValueError`` says what is allowed."""
    words = f.metadata.get("words", ())
    if words and text not in words:
        raise ValueError(f"one of {', '.join(words)}")
    return _READERS[str(hint)](text)


def _text(text: str) -> str:
    if not text:
        raise ValueError("a value")
    return text


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < 1:
        raise ValueError("an integer of at least 1")
    return int(text)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError("a decimal number of at least 0, in microseconds")
    return float(text)


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(";") if word.strip())


def _slots(text: str) -> tuple[int, int]:
    match = _SLOTS.fullmatch(text)
    slots = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(slots) < 1:
        raise ValueError("a number of slots such as 2, or one for A and one for B such as 1A/2B")
    return slots


def _sizes(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not all(_INTEGER.fullmatch(part) for part in parts):
        raise ValueError("integers with x between them, such as 3x5")
    return tuple(map(int, parts))


def _mask(text: str) -> tuple[bool, bool, bool]:
    parts = text.split("x")
    if len(parts) != 3 or not set(parts) <= {"0", "1"}:
        raise ValueError("three of 0 and 1 with x between them (input, weight, bias)")
    return parts[0] == "1", parts[1] == "1", parts[2] == "1"


#: How a cell is read, by the type of its field.
_READERS: dict[str, Callable[[str], Any]] = {
    str(hint): read
    for hint, read in (
        (str, _text),
        (str | None, _text),
        (int | None, _integer),
        (float | None, _number),
        (bool | None, _flag),
        (tuple[str, ...], _words),
        (tuple[int, int] | None, _slots),
        (tuple[int, ...] | None, _sizes),
        (tuple[bool, bool, bool] | None, _mask),
    )
}
