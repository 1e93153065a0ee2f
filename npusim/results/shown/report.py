"""A report as data: key figures, and sections of tables, figures, lists and notes.

``npusim.results.writers.text`` writes it as text, ``npusim.results.writers.web.page`` as a page and
as what a notebook shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from npusim.machine.device.spec import Device
from npusim.results.facts.number_text import bytes_text
from npusim.results.shown.figure import Figure

T = TypeVar("T")


class Cell(NamedTuple):
    """A cell of a table: its text, what it is sorted by, or the ``parts`` of a bar.

    These are (what, share of the widest, colour); those without a share are left out. ``plain`` is
    the text of a cell in reports that are text, where that is another.
    """

    text: str
    key: float | None = None
    parts: tuple[tuple[str, float, str], ...] = ()
    plain: str | None = None

    @classmethod
    def bar(cls, parts: Iterable[tuple[str, float, str]], key: float) -> Cell:
        """A cell with a bar, sorted by ``key``."""
        return cls("", key, tuple(part for part in parts if part[1] > 0))

    @classmethod
    def size(cls, count: int) -> Cell:
        """Bytes as text, sorted by their number."""
        return cls(bytes_text(count), count)


class Table(Struct, frozen=True):
    """A titled table; the first ``left`` columns are text, the others numbers.

    Cells are texts, numbers or ``Cell``; columns at the places ``long`` hold sentences. On a page
    it sorts by its heads, and long ones are folded. A text has the columns at the places
    ``in_text`` (None: all), and ``most`` rows of it, below which ``rest`` stands for the others.
    ``blank`` is what a text has for an empty cell, ``bar_names`` are the parts of bars in order.
    ``below`` are lines of a text, one below each row, and ``total`` its last row.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    left: int
    long: Sequence[int] = ()
    in_text: Sequence[int] | None = None
    most: int | None = None
    rest: Sequence[str] = ()
    blank: str = ""
    bar_names: Sequence[str] = ()
    below: Sequence[str] = ()
    total: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Callable[[T], Any]],
        things: Iterable[T],
        left: int = 1,
        long: Sequence[str] = (),
        title: str = "",
    ) -> Table:
        """A table with a row for each thing, its cells by what is in their column's head."""
        heads = tuple(columns)
        rows = tuple(tuple(cell(thing) for cell in columns.values()) for thing in things)
        return cls(title, heads, rows, left, [heads.index(name) for name in long])

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows, each of cells."""
        return [[c if isinstance(c, Cell) else Cell(str(c)) for c in row] for row in self.rows]

    @property
    def kinds(self) -> list[str]:
        """Kind of each column: "" for text, "n" for numbers, "long" or "bars"."""
        kinds = ["" if column < self.left else "n" for column in range(len(self.head))]
        for column, cells in enumerate(zip(*self.cells, strict=True)):
            if column in self.long:
                kinds[column] = "long"
            elif any(cell.parts for cell in cells):
                kinds[column] = "bars"
        return kinds


class Items(NamedTuple):
    """A list."""

    texts: Sequence[str]


class Note(NamedTuple):
    """A paragraph that explains what is above it; in a text it stands ``level`` steps in."""

    text: str
    level: int = 0


class Colours(NamedTuple):
    """Meanings of colours: (name, colour)."""

    entries: Sequence[tuple[str, str]]


class Pair(NamedTuple):
    """Parts side by side where there is room."""

    parts: Sequence[Any]


class ReportLine(NamedTuple):
    """A named sentence of a text; at its head, or below a table."""

    name: str
    text: str


class Key(NamedTuple):
    """A key figure: a line of a text, a card of a page (value, what it is), or both."""

    line: ReportLine | None = None
    card: tuple[str, str] | None = None


def apart(keys: Iterable[Key]) -> tuple[list[ReportLine], list[tuple[str, str]]]:
    """The lines of key figures, and their cards."""
    lines: list[ReportLine] = []
    cards: list[tuple[str, str]] = []
    for key in keys:
        if key.line is not None:
            lines.append(key.line)
        if key.card is not None:
            cards.append(key.card)
    return lines, cards


class InText(NamedTuple):
    """A part that only a text has."""

    part: Table | Note | ReportLine


class OnPage(NamedTuple):
    """Parts that only a page has, such as figures; they are made when it is."""

    make: Callable[[], Iterable[Any]]


Part = Table | Items | Note | Colours | Pair | Figure | InText | OnPage


class Section(Struct, frozen=True, dict=True):
    """A titled part that folds away on a page; a notebook shows the ``brief`` ones.

    A text has it below its ``heading``, unless that is "". A page has what comes ``first`` before
    all others.
    """

    title: str
    parts: Sequence[Part]
    opened: bool = True
    brief: bool = False
    heading: str = ""
    first: bool = False

    @cached_property
    def shown(self) -> list[Part]:
        """The parts of a page that hold anything; what colours stand for alone is nothing."""
        parts = [part for part in self._on_page() if _holds(part)]
        return parts if any(not isinstance(part, Colours) for part in parts) else []

    def _on_page(self) -> Iterator[Part]:
        """The parts of a page, those that are made for it included."""
        for part in self.parts:
            if isinstance(part, OnPage):
                yield from part.make()
            elif not isinstance(part, InText):
                yield part

    @property
    def in_text(self) -> list[Table | Items | Note | ReportLine]:
        """The parts of a text that hold anything."""
        parts: list[Table | Items | Note | ReportLine] = []
        for part in self.parts:
            if isinstance(part, InText):
                parts.append(part.part)
            elif isinstance(part, Table | Items | Note):
                parts.append(part)
        return [part for part in parts if isinstance(part, ReportLine) or _holds(part)]


def _holds(part: Part) -> bool:
    """True if there is anything to show of a part."""
    if isinstance(part, Pair):
        return any(map(_holds, part.parts))
    if isinstance(part, Figure):
        return bool(part.marks)
    return bool(part.rows if isinstance(part, Table) else part[0])


class Report(Struct, frozen=True):
    """Content of a report: its subject (``about``), the answer (``lead``), key figures, sections.

    ``cards`` are (value, what it is); ``origin`` is what is needed to reproduce it. ``told`` are
    further sentences. ``markup`` is HTML in place of all but the title. A text has the ``lines`` at
    its head in place of title, answer and key figures.
    """

    title: str
    about: Sequence[str]
    lead: str
    cards: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    origin: str
    told: Sequence[str] = ()
    markup: str = ""
    lines: Sequence[ReportLine] = ()

    @property
    def on_page(self) -> list[Section]:
        """The sections in the order of a page."""
        return sorted(self.sections, key=lambda section: not section.first)

    @staticmethod
    def origin_of(version: str, device: Device) -> str:
        """The version and the device that a report comes from."""
        digest, clock = device.digest(), f"{device.clock_hz / 1e9:g} GHz"
        return f"npusim {version}, device {device.name} (digest {digest}), {clock}"
