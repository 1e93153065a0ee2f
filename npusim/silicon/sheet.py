"""Files of measured points: CSV of either schema, read cell by cell.

The header tells what a file holds: kernels have a column ``op``, framework calls a column
``call``, training steps a column ``network``. A cell that cannot be read costs its own row only.

The schemas of measured points, and of what a simulation answers, are dataclasses. Their fields are
the columns of the files, which ``configs/silicon/columns.csv`` lists;
``configs/silicon/README.md`` explains every one.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar

from npusim.base.errors import CONTROL, ArgumentError, told_as
from npusim.base.resources import configs
from npusim.base.yamltree import TextFile, suggest, unreadable
from npusim.kernels.matmul.measured import Template, columns_of, settings, table
from npusim.results.facts.least import Least
from npusim.silicon.choices import NOTHING, Choice

#: Pipes whose busy time a profiler reports; a row's column is ``{pipe}_us``.
PIPES = ("cube", "mte1", "mte2", "mte3", "fixpipe", "vec", "scalar", "aiv_mte2")

#: What the time of a training step is divided into; a row's column is ``{part}_us``.
PARTS = ("forward", "filter_gradients", "input_gradients", "normalisation", "optimizer", "casts")


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """The row cannot be simulated; the text says why and names the word or column."""


#: Makes a row of a class; what it takes is known to the table, not to a checker of types.
_row: Any = dataclass(frozen=True, kw_only=True)


@_row
class Measured(columns_of("all")):  # type: ignore[misc]
    """What every row has; ``parts`` name the columns ``{part}_us`` of what a time consists of."""

    id: str
    chip: str
    family: str = ""
    parts: ClassVar[tuple[str, ...]] = ()

    @property
    def busy_us(self) -> Mapping[str, float]:
        """The times of parts that were measured: a kernel's pipes, a step's operations."""
        found = {part: getattr(self, f"{part}_us") for part in self.parts}
        return {part: value for part, value in found.items() if value is not None}

    @property
    def problem(self) -> tuple[object, ...]:
        """What kernels that differ by switches alone have in common; of others the name."""
        return (self.id,)

    @property
    def told(self) -> frozenset[str]:
        """The words of ``switches``."""
        return frozenset(getattr(self, "switches", ()))


@_row
class Unreadable(Measured):
    """A row with a cell that cannot be read; ``reason`` names file, line and column."""

    reason: str


@_row
class KernelRow(Measured, Template):  # type: ignore[misc]
    """One measured kernel: one field per column; sizes are elements, times microseconds.

    ``buffers_l1`` is the number of slots for A and for B.
    """

    op: str
    parts: ClassVar[tuple[str, ...]] = PIPES

    @property
    def problem(self) -> tuple[object, ...]:
        """What kernels that differ by switches alone have in common."""
        return (self.M, self.N, self.K)


@dataclass(frozen=True)
class Operand:
    """An operand as a profile lists it: its shape in memory, dtype, and the name of its format."""

    shape: tuple[int, ...]
    dtype: str
    layout: str


@_row
class ProfiledRow(KernelRow):
    """A kernel as a profile lists it, whose tiling is chosen (``Choice``) and not measured.

    ``op`` is the profile's own word for its type, ``task`` the kind of task, ``where`` file and
    line of the first of ``launches`` that are alike; times are their medians.
    """

    task: str = ""
    operands: tuple[Operand, ...] = ()
    results: tuple[Operand, ...] = ()
    choice: Choice = NOTHING
    where: str = ""
    launches: int = 1

    @property
    def problem(self) -> tuple[object, ...]:
        """The operands."""
        return self.operands


@_row
class CallRow(Measured, columns_of("calls")):  # type: ignore[misc]
    """One measured framework call, all the kernels it launched included; sizes are elements.

    ``kernels`` are names with their counts, such as ``TransDatax3``; ``output_mask`` says which
    gradients (input, weight, bias) a convolution's backward computed.
    """

    call: str


@_row
class NetworkRow(Measured, columns_of("networks")):  # type: ignore[misc]
    """One measured training step: one field per column, most of them arguments of ``npusim.step``.

    ``input_bound`` says whether reading images may have set the pace. The parts are forward
    convolutions, both gradients, normalisations, the optimizer, and casts with clearing and
    layouts; they do not add up to the step.
    """

    network: str
    parts: ClassVar[tuple[str, ...]] = PARTS


@dataclass(frozen=True)
class Simulated:
    """What a simulation answers for a row.

    ``time_us`` is comparable to the row's: with launch for a task and for a call, without it for
    the other kinds of time. ``busy_us`` is what a profiler reports per pipe of ``PIPES``
    (``npusim.silicon.profiler``); absent where the kernel has no such pipe or does not use it,
    None where what it does here is not what was measured; of a step it has ``PARTS``. ``kernels``
    are the names of those launched. ``bounds`` hold for the row whatever the L2 held, of a call
    only those of its problem; ``from_memory_us`` is the longest where it held nothing.
    """

    time_us: float
    busy_us: Mapping[str, float | None]
    kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bounds: tuple[Least, ...] = ()
    from_memory_us: float = 0.0


def needed(row: KernelRow | CallRow | NetworkRow, *columns: str) -> tuple[Any, ...]:
    """Return the values in ``columns``; raises ``Declined`` naming the first that is empty."""
    for column in columns:
        if getattr(row, column) is None:
            what = f"a {row.op}" if isinstance(row, KernelRow) else getattr(row, "call", "a step")
            raise Declined(f"{column} is empty: {what} needs it")
    return tuple(getattr(row, column) for column in columns)


# -- files -----------------------------------------------------------------------------------------


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
    whatever is wrong with one row makes that row ``Unreadable``, an ``id`` that is there already
    included.
    """
    lines = read_lines(source)
    at, head = next(lines, (1, []))
    columns = tuple(name.strip() for name in head)
    schema = _schema(f"{source}:{at}", columns)
    rows = tuple(_each_once(_rows(source, schema, columns, lines)))
    known = {f.name for f in fields(schema)}
    return Sheet(str(source), columns, rows, tuple(c for c in columns if c not in known))


def _rows(
    source: TextFile,
    schema: type[Row],
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
    "time": float,
    "flag": "1".__eq__,
    "words": _words,
    "slots": _slots,
    "sizes": lambda text: tuple(map(int, text.split("x"))),
    "mask": lambda text: tuple(map("1".__eq__, text.split("x"))),
}
