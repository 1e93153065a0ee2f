"""The table of operators and devices holds, cell by cell."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

import npusim
from tests.documents.operator_table import CASES, COLUMNS, cell
from tests.documents.pages import sections, table
from tests.sampled import ALIKE, of_each_kind

TABLE = table(sections("docs/reference/operators.md")["operators"])

#: Devices on which ``make quick`` runs every operator.
SMALL = ("tiny", "mt7004")

OTHERS = [name for name in npusim.devices() if name not in SMALL]


def shown(row: str, device: str) -> str:
    (cell,) = (text for column, text in TABLE[row].items() if fnmatch(device, column))
    return cell


def test_it_is_complete() -> None:
    assert list(TABLE) == list(CASES)
    assert sorted({row.partition(",")[0] for row in TABLE}) == npusim.operators()
    for cells in TABLE.values():
        for device in npusim.devices():
            assert sum(fnmatch(device, column) for column in cells) == 1, device


@pytest.mark.compiled
@pytest.mark.parametrize("device", of_each_kind((name,) for name in OTHERS))
@pytest.mark.parametrize("row", CASES)
def test_it_is_true(row: str, device: str) -> None:
    assert cell(row, device) == shown(row, device), "renew it: python -m tests.documents operators"


@pytest.mark.slow  # their limits are rows of `tests/data/refusals.yaml`, too
@pytest.mark.compiled
@pytest.mark.parametrize("device", sorted({*COLUMNS.values()} & ALIKE - {*SMALL}))
@pytest.mark.parametrize("row", CASES)
def test_it_is_true_of_what_devices_alike_refuse(row: str, device: str) -> None:
    assert cell(row, device, numbers=False) == shown(row, device)


@pytest.mark.parametrize("device", SMALL)
@pytest.mark.parametrize("row", CASES)
def test_it_is_true_with_each_engine(row: str, device: str, engine: str) -> None:
    """Numbers are computed beside the readable engine alone: they are none of an engine's."""
    assert cell(row, device, engine, numbers=engine == "simpy") == shown(row, device)
