"""What tuning found before, kept on disk by content: a search that was stopped goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from npusim.errors import ArgumentError
from npusim.resources import cache_file
from npusim.tuning.problem import Found

_TABLE = """
create table if not exists found (
    problem text not null, stage text not null, candidate text not null,
    cycles integer not null, alike text not null, reason text not null, gm_bytes integer not null,
    primary key (problem, stage, candidate)
) without rowid
"""


class Store:
    """A file of what was found by problem, stage ("bound" or "time") and candidate.

    Several processes may have it open. None keeps nothing; without a name it is a file of the
    user's cache. Raises ``ArgumentError`` if the file is no such store.
    """

    def __init__(self, file: str | Path | None = "") -> None:
        self.file = None if file is None else Path(file) if file else cache_file("tuned.sqlite")
        self._open: sqlite3.Connection | None = None
        if self.file is not None:
            self._open = self._opened(self.file)

    def __enter__(self) -> Store:
        """Ready as it is."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()

    def get(self, problem: str, stage: str, candidates: Sequence[str]) -> dict[str, Found]:
        """What is known of some candidates."""
        if self._open is None:
            return {}
        found = {}
        for candidate in candidates:
            row = self._open.execute(
                "select cycles, alike, reason, gm_bytes from found "
                "where problem = ? and stage = ? and candidate = ?",
                (problem, stage, candidate),
            ).fetchone()
            if row is not None:
                found[candidate] = Found(*row)
        return found

    def put(self, problem: str, stage: str, rows: Iterable[tuple[str, Found]]) -> None:
        """Keep what was found, all of it or nothing."""
        if self._open is None:
            return
        with self._open:
            self._open.executemany(
                "insert or replace into found values (?, ?, ?, ?, ?, ?, ?)",
                [(problem, stage, candidate, *found) for candidate, found in rows],
            )

    def _opened(self, file: Path) -> sqlite3.Connection:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            store = sqlite3.connect(file, timeout=60)
            store.execute(_TABLE)
        except (sqlite3.Error, OSError) as error:
            raise ArgumentError(
                f"the store of tunings {str(file)!r} cannot be used ({error}); name another file, "
                "or remove this one"
            ) from error
        return store
