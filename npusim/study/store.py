"""Measured points on disk, by content: a study that was stopped computes what is missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from npusim.base.kept import MOST_BYTES, Opened
from npusim.base.sources import program


class Measured(NamedTuple):
    """A point that was measured: its row, or why there is none.

    What is ``passing`` may work another time and is not kept; figures and limits refuse for ever.
    """

    row: dict[str, Any]
    error: str = ""
    passing: bool = False


class Store(Opened):
    """Measured points by key, in a file that several processes may use (``npusim.base.kept``).

    ``file`` "" is one in the user's cache; None keeps points in memory. Raises ``ArgumentError``
    for a file that is no such store.
    """

    def __init__(self, file: str | Path | None = "", most_bytes: int = MOST_BYTES) -> None:
        super().__init__(file, "sweeps", most_bytes)

    def get(self, key: str) -> Measured | None:
        """What is known of a point."""
        found = self._kept.get(key)
        return None if found is None else Measured(*json.loads(found))

    def put(self, points: Iterable[tuple[str, Measured]]) -> None:
        """Keep points, all of them or none; failures that pass are left out."""
        self._kept.put((key, json.dumps(one).encode()) for key, one in points if not one.passing)

    def __len__(self) -> int:
        """Number of points."""
        return len(self._kept)


def runs_beside(file: str | Path | None) -> str | Path | None:
    """The file of runs of kernels that goes with one of points: beside it, in the same cache."""
    if file is None or file == "":
        return file
    return Path(file).with_suffix(f".runs{Path(file).suffix}")


def key_of(content: str) -> str:
    """The key of a point: its content, and the program that measures it."""
    return hashlib.sha256(f"{program()}\0{content}".encode()).hexdigest()
