"""What tuning found before, kept on disk by content: a search that was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from npusim.kept import MOST_BYTES, Opened
from npusim.tuning.problem import Found


class Store(Opened):
    """What was found by problem, stage ("bound" or "time") and candidate (``npusim.kept``).

    Several processes may have it open. None keeps it in memory; "" is a file of the user's cache.
    Raises ``ArgumentError`` if the file is no such store.
    """

    def __init__(self, file: str | Path | None = "", most_bytes: int = MOST_BYTES) -> None:
        super().__init__(file, "tuned", most_bytes)

    def get(self, problem: str, stage: str, candidates: Sequence[str]) -> dict[str, Found]:
        """What is known of some candidates."""
        held = {one: self._kept.get(_key(problem, stage, one)) for one in candidates}
        return {one: Found(*json.loads(row)) for one, row in held.items() if row is not None}

    def put(self, problem: str, stage: str, rows: Iterable[tuple[str, Found]]) -> None:
        """Keep what was found, all of it or nothing."""
        self._kept.put(
            (_key(problem, stage, candidate), json.dumps(found).encode())
            for candidate, found in rows
        )


def _key(problem: str, stage: str, candidate: str) -> str:
    return f"{problem} {stage} {candidate}"
