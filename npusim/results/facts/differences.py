"""Parts that comparisons of calls and of networks have in common.

What is compared are the plain facts of results (``to_json``), so that a result and a file that
``npusim run --json`` or ``npusim net --json`` wrote are the same thing here.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

from npusim.base.errors import ArgumentError, told_as
from npusim.base.yamltree import unreadable
from npusim.results.facts import tables
from npusim.results.facts.number_text import us_text

#: How JSON writes control characters.
_CONTROL = re.compile(r"\\(u00([01]|[89]|7f)|[bf])", re.IGNORECASE)

Row = dict[str, Any]
Facts = Mapping[str, Any]


class Differences(ABC):
    """Differences between two results, as far as it is the same for calls and for networks."""

    #: Columns of ``table``, those that name a row in texts, and the facts of a side in JSON.
    columns: ClassVar[tuple[str, ...]]
    named: ClassVar[tuple[str, ...]]
    stated: ClassVar[tuple[str, ...]]
    #: Digits of changes in microseconds, and whether whole numbers have commas.
    digits: ClassVar[int]
    commas: ClassVar[bool] = True

    @property
    @abstractmethod
    def sides(self) -> tuple[tuple[str, Facts], tuple[str, Facts]]:
        """Labels of both sides, and their plain facts."""

    @property
    @abstractmethod
    def rows(self) -> tuple[Row, ...]:
        """Differences, a row each; ``change`` is b less a where both are numbers."""

    @abstractmethod
    def about(self, facts: Facts) -> str:
        """Noun for one of the two."""

    def differing(self, facts: Iterable[tuple[Any, ...]]) -> tuple[Row, ...]:
        """The rows of facts that differ; a fact is what names it, its value in a and that in b."""
        return tuple(
            dict(zip(self.columns, (*fact, difference(*fact[-2:])), strict=True))
            for fact in facts
            if fact[-2] != fact[-1]
        )

    @property
    def empty(self) -> bool:
        """True if nothing differs, as of a result and itself."""
        return not self.rows

    @cached_property
    def table(self) -> tables.DataFrame:
        """``rows`` as a data frame."""
        return tables.frame(self.rows, self.columns)

    @property
    def times(self) -> tuple[float, float]:
        """Microseconds of a and of b."""
        (_, a), (_, b) = self.sides
        return a["time_us"], b["time_us"]

    @property
    def speedup(self) -> float | None:
        """Time of a over time of b: above 1 where b is faster. None where b takes none."""
        a, b = self.times
        return a / b if b else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        sides = {
            name: {"label": label} | {fact: facts.get(fact) for fact in self.stated}
            for name, (label, facts) in zip("ab", self.sides, strict=True)
        }
        return {**sides, "speedup": self.speedup, "changes": list(self.rows)}

    def besides_text(self, row: Row) -> str:
        """A row in words: ``"batch: 2 -> 8"``."""
        what = " ".join(row[name] for name in self.named if row[name])
        a, b = (value_text(row[side], self.commas) for side in "ab")
        return f"{what}: {a} -> {b}"


def labels_of(a: object, b: object, labels: tuple[str, str] | None) -> tuple[str, str]:
    """Labels of both sides: as asked, else by their files, else A and B."""
    first, second = (
        str(side) if isinstance(side, (str, Path)) else name for name, side in (("A", a), ("B", b))
    )
    return labels or (first, second)


class HasFacts(Protocol):
    """A result that says all of itself."""

    def to_json(self) -> dict[str, Any]: ...


def facts_of(given: HasFacts | str | Path, label: str) -> dict[str, Any]:
    """The plain facts of a result, or those in the file of one.

    Raises ``ArgumentError`` for what is neither, and for a key that is there twice.
    """
    if not isinstance(given, (str, Path)):
        if not hasattr(given, "to_json"):
            raise ArgumentError(f"{label} is {given!r}; it is a result, or the file of one")
        return given.to_json()
    try:
        text = Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{given}: {unreadable(error)}") from error
    with told_as(ArgumentError, f"{given}: cannot be read as JSON: ", ValueError):
        facts = json.loads(text, object_pairs_hook=_unique)
    if _CONTROL.search(text):
        raise ArgumentError(f"{given}: a text in it has a control character; write it without")
    if not isinstance(facts, dict):
        raise ArgumentError(
            f"{given} is no result: it holds a {type(facts).__name__}; write one with "
            "`npusim run ... --json`"
        )
    return facts


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The keys and values of a JSON object; ``ValueError`` where a key is there twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"the key {twice!r} is there twice; keep one of them")
    return values


def difference(a: Any, b: Any) -> Any:
    """``b`` less ``a`` where both are numbers, else None."""
    return b - a if all(isinstance(value, (int, float)) for value in (a, b)) else None


def numbered(rows: Iterable[Row], column: str) -> dict[str, Row]:
    """Rows by the name in a column; the second of a name is called ``name #2``."""
    by_name: dict[str, Row] = {}
    for row in rows:
        name, place = row[column], 1
        while name in by_name:
            place += 1
            name = f"{row[column]} #{place}"
        by_name[name] = row
    return by_name


def value_text(value: Any, commas: bool) -> str:
    """A value as people read it."""
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return us_text(value)
    return f"{value:,}" if commas and isinstance(value, int) else str(value)
