"""Measured points on disk, by content: a study that was stopped computes what is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from npusim.base.sources import program
from npusim.reuse.store import Store


class Measured(NamedTuple):
    """A point that was measured: its row, or why there is none.

    What is ``passing`` may work another time and is not kept; figures and limits refuse for ever.
    """

    row: dict[str, Any]
    error: str = ""
    passing: bool = False


def known_of(store: Store, key: str) -> Measured | None:
    """What a store knows of a point."""
    found = store.get(key)
    return None if found is None else Measured(*found)


def keep(store: Store, points: Iterable[tuple[str, Measured]]) -> None:
    """Keep points, all of them or none; failures that pass are left out."""
    store.put((key, one) for key, one in points if not one.passing)


def runs_beside(file: str | Path | None) -> str | Path | None:
    """The file of runs of kernels that goes with one of points: beside it, in the same cache."""
    if file is None or file == "":
        return file
    return Path(file).with_suffix(f".runs{Path(file).suffix}")


def key_of(content: str) -> str:
    """The key of a point: its content, and the program that measures it."""
    return hashlib.sha256(f"{program()}\0{content}".encode()).hexdigest()
