"""Parametrized tests whose cases are data: tables of `tests/data/rows` and `tests/data/mistakes`.

A test names the file, the table in it and the table's columns::

    @rows("tests/data/rows/isa.yaml", "cost_in_whole_blocks", "rows, columns, count, repeats")
    def test_cost_in_whole_blocks(rows, columns, count, repeats): ...
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@cache
def _tables(file: str) -> dict[str, list[dict[str, Any]]]:
    """Tables of a file, by name."""
    tables: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        (ROOT / file).read_text(encoding="utf-8")
    )
    return tables


def table(file: str, name: str, columns: str) -> list[dict[str, Any]]:
    """Rows of one table, each with the stated columns; ``file`` counts from the repository's root.

    Raises ``KeyError`` where the file has no such table, ``ValueError`` where a row has other
    columns.
    """
    expected = columns.split(", ")
    for number, row in enumerate(_tables(file)[name], 1):
        if list(row) != expected:
            raise ValueError(
                f"{file}: row {number} of {name} has the columns {', '.join(row)}; its test "
                f"declares {columns}"
            )
    return _tables(file)[name]


def rows(file: str, name: str, columns: str) -> pytest.MarkDecorator:
    """Parametrization of a test by a table: a case for each row, a parameter for each column."""
    cases = [tuple(row.values()) for row in table(file, name, columns)]
    return pytest.mark.parametrize(columns.split(", "), cases)
