"""Rows of parametrized tests that are data: tables of ``tests/data``, a file for a room."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

DATA = Path(__file__).parent / "data"


def rows(room: str, of: str, kind: str = "rows") -> pytest.MarkDecorator:
    """The parameters of a test, which are the keys of its rows, and their values."""
    table = yaml.safe_load((DATA / kind / f"{room}.yaml").read_text(encoding="utf-8"))[of]
    return pytest.mark.parametrize(tuple(table[0]), [tuple(row.values()) for row in table])
