"""The calls that are replayed: every operator, every device, every form that takes another path."""

from __future__ import annotations

from tests.calls import Row, data

CALLS = {name: Row(**row) for name, row in data("replayed").items()}


def pairs() -> list[tuple[str, str]]:
    """Every (call, device) pair."""
    return [(name, device) for name, row in CALLS.items() for device in row.runs_on()]
