"""Rows of parametrized tests that are data: tables of ``tests/data``, a file for a room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

DATA = Path(__file__).parent / "data"


def table(room: str, of: str, kind: str = "rows") -> list[dict[str, Any]]:
    """The rows of a test, or of several."""
    found: list[dict[str, Any]] = yaml.safe_load(
        (DATA / kind / f"{room}.yaml").read_text(encoding="utf-8")
    )[of]
    return found


def rows(room: str, of: str, kind: str = "rows") -> pytest.MarkDecorator:
    """The parameters of a test, which are the keys of its rows, and their values."""
    found = table(room, of, kind)
    return pytest.mark.parametrize(tuple(found[0]), [tuple(row.values()) for row in found])
