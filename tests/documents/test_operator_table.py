"""The table of operators and devices holds, cell by cell."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

import npusim
from tests.documents.operator_table import CASES, cell
from tests.documents.pages import sections, table

TABLE = table(sections("docs/reference/operators.md")["operators"])


def test_it_is_complete() -> None:
    assert list(TABLE) == list(CASES)
    assert sorted({row.partition(",")[0] for row in TABLE}) == npusim.operators()
    for cells in TABLE.values():
        for device in npusim.devices():
            assert sum(fnmatch(device, column) for column in cells) == 1, device


@pytest.mark.parametrize("device", npusim.devices())
@pytest.mark.parametrize("row", CASES)
def test_it_is_true(row: str, device: str) -> None:
    (shown,) = (text for column, text in TABLE[row].items() if fnmatch(device, column))
    assert cell(row, device) == shown, "renew it: python -m tests.documents operators"
