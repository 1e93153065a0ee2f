"""Mistakes of users and what is said of each: rows of ``tests/data/mistakes``, a file per room."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parent / "data" / "mistakes"


def mistakes(room: str, of: str) -> pytest.MarkDecorator:
    """The parameters of a test, which are the keys of its rows, and their values."""
    table = yaml.safe_load((FOLDER / f"{room}.yaml").read_text(encoding="utf-8"))
    return pytest.mark.parametrize(tuple(table[of][0]), [tuple(row.values()) for row in table[of]])
