"""What ``make test`` tries of many alike, of which ``make slow`` tries all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import settings

#: The share, and the fewest examples that a test is left with.
SHARE, LEAST = 10, 6

#: True where every test draws all; ``tests/conftest.py`` says so before tests are imported.
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


def crossed(*axes: Sequence[Any]) -> list[Any]:
    """Parameters of all combinations; ``make test`` runs as few as have each value of each axis.

    These are the combinations along the diagonal: the first values, the second values and so on,
    shorter axes begun anew.
    """
    longest = max(len(axis) for axis in axes)
    diagonal = {tuple(step % len(axis) for axis in axes) for step in range(longest)}
    return [
        slow_if(places not in diagonal, *(axis[i] for axis, i in zip(axes, places, strict=True)))
        for places in product(*(range(len(axis)) for axis in axes))
    ]


def some(count: int, share: int = SHARE, least: int = LEAST) -> int:
    """So many of ``count`` examples; a test that draws by this alone has the marker ``drawn``.

    One in ``share`` of them, and at least ``least``, where ``make slow`` tries all.
    """
    return count if ALL else min(count, max(least, count // share))


def examples(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings of a test that Hypothesis gives ``count`` examples where all are drawn."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        limited: Any = settings(max_examples=some(count), deadline=None)(test)
        marked: Callable[..., None] = pytest.mark.drawn(limited)
        return marked

    return decorate
