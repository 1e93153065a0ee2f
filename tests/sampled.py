"""What ``make test`` tries of many alike, of which ``make slow`` tries all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

#: The share, and the fewest examples that a test is left with.
SHARE, LEAST = 5, 8

#: Whether every test draws all; ``tests/conftest.py`` says so before tests are imported.
ALL = False

#: Devices that differ from another one in figures or in documented limits alone.
ALIKE = frozenset(
    f"ascend{name}" for name in ("310p", "910b1", "910b3", "910b4", "910b4-1", "910c")
) | {"mt7004"}


def slow_if(slow: bool, *values: Any) -> Any:
    """Values of a parametrized test, of one that only ``make slow`` runs where ``slow`` says so."""
    return pytest.param(*values, marks=[pytest.mark.slow] if slow else [])


def of_each_kind(values: Iterable[tuple[str, ...]], place: int = 0) -> list[Any]:
    """Parameters among them a device, at ``place``; only ``make slow`` runs those of ``ALIKE``."""
    return [slow_if(value[place] in ALIKE, *value) for value in values]


def some(count: int) -> int:
    """So many of ``count`` examples; a test that draws by this alone has the marker ``drawn``."""
    return count if ALL else min(count, max(LEAST, count // SHARE))


def examples(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings of a test that Hypothesis gives ``count`` examples where all are drawn."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        held: Any = settings(max_examples=some(count), deadline=None)(test)
        marked: Callable[..., None] = pytest.mark.drawn(held)
        return marked

    return decorate
