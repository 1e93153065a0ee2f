"""Mistakes of users and what is said of each: rows of ``tests/data/mistakes``, a file per room."""

from __future__ import annotations

import pytest

from tests.tables import rows


def mistakes(room: str, of: str) -> pytest.MarkDecorator:
    """The parameters of a test, which are the keys of its rows, and their values."""
    return rows(room, of, "mistakes")
