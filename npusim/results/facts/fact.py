"""A fact of a result: its name in JSON and tables, how people read it, and how it is computed.

The facts of a kind of result stand in one literal table: of calls in ``call``, of their kernels in
``tables``, of the kernels of networks in ``network_rows``, of energy in ``energy``, of points of a
study in ``point``. JSON, columns, comparisons, cards of pages and goals of studies are made of
these tables, so that a new number is where it is computed and its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")
Subject_contra = TypeVar("Subject_contra", contravariant=True)


class Fact(Struct, Generic[Subject_contra], frozen=True):
    """A fact that ``of`` computes of a subject, ``name`` in JSON and as a column.

    People read ``title`` and ``unit``, of which ``per_unit`` of the value make one; ``format``
    writes a number of units. ``compared`` is the kind of row that tells of it where two results are
    compared, "" where none does.
    """

    name: str
    title: str
    unit: str
    format: Callable[[Any], str]
    of: Callable[[Subject_contra], Any]
    per_unit: float = 1.0
    compared: str = ""

    @property
    def head(self) -> str:
        """Title and unit, as above a column or beside an axis: ``"energy, mJ"``."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def number(self, value: float) -> str:
        """A value in its unit, without it: ``"1.23"``."""
        return self.format(value / self.per_unit)

    def text(self, value: float) -> str:
        """A value with its unit: ``"1.23 mJ"``."""
        return f"{self.number(value)} {self.unit}" if self.unit else self.number(value)


def row_of(facts: Iterable[Fact[T]], subject: T) -> dict[str, Any]:
    """The values of facts of a subject by name."""
    return {fact.name: fact.of(subject) for fact in facts}


def names_of(facts: Iterable[Fact[Any]], compared: str = "") -> tuple[str, ...]:
    """The names of facts, or of those that a kind of row of comparisons tells of."""
    return tuple(fact.name for fact in facts if not compared or fact.compared == compared)
