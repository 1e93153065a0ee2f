"""Measured points on disk, by content: a study that was stopped measures what is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from npusim.base.digests import program
from npusim.reuse.store import Store


class MeasuredPoint(NamedTuple):
    """A point that was measured: its row, or the error of the point.

    An error that is ``passing`` may not come another time and is not kept; figures and limits
    refuse for ever.
    """

    row: dict[str, Any]
    error: str = ""
    passing: bool = False


def stored_point(store: Store, key: str) -> MeasuredPoint | None:
    """The point that a store has by a key, None where it has none."""
    fields = store.get(key)
    return None if fields is None else MeasuredPoint(*fields)


def keep_points(store: Store, points: Iterable[tuple[str, MeasuredPoint]]) -> None:
    """Keep points by key, all of them or none; errors that pass are left out."""
    store.put((key, measured) for key, measured in points if not measured.passing)


def key_of(content: str) -> str:
    """The key of a point: its content, and the program that measures it."""
    return hashlib.sha256(f"{program()}\0{content}".encode()).hexdigest()


def runs_beside(file: str | Path | None) -> str | Path | None:
    """The file of runs of kernels that goes with one of points: beside it, in the same cache."""
    if file is None or file == "":
        return file
    return Path(file).with_suffix(f".runs{Path(file).suffix}")
