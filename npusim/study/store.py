"""Measured points on disk, by content: a study that was stopped computes what is missing."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from npusim import kernels
from npusim.errors import ArgumentError
from npusim.resources import cache_file
from npusim.version import __version__

#: Of the tables below; a store of another one is refused, not misread.
SCHEMA = 1

_TABLES = """
create table if not exists about (schema integer not null);
create table if not exists points (
    key text primary key, row blob not null, error text not null, at real not null
) without rowid;
"""


class Measured(NamedTuple):
    """A point that was measured: its row, or why there is none."""

    row: dict[str, Any]
    error: str = ""


class Store:
    """A SQLite file of measured points, which several processes may use at once.

    ``file`` "" is one in the user's cache; None keeps points in memory. ``most`` bounds its points:
    the oldest go first. Raises ``ArgumentError`` for a file that is no such store.
    """

    def __init__(self, file: str | Path | None = "", most: int = 2_000_000) -> None:
        usual = file == ""
        self.file = ":memory:" if file is None else cache_file("sweeps.sqlite") if usual else file
        self.most = most
        try:
            Path(self.file).parent.mkdir(parents=True, exist_ok=True)
            self.base = sqlite3.connect(self.file, timeout=60)
            self.base.execute("pragma journal_mode = wal")
            self.base.execute("pragma synchronous = normal")
            self.base.executescript(_TABLES)
            held = self.base.execute("select schema from about").fetchone()
            if held is None:
                with self.base:
                    self.base.execute("insert into about values (?)", (SCHEMA,))
        except (sqlite3.Error, OSError) as error:
            raise ArgumentError(
                f"the store {str(self.file)!r} cannot be used ({error}); name another file, or "
                "remove this one"
            ) from error
        if held is not None and held[0] != SCHEMA:
            self.base.close()
            raise ArgumentError(
                f"the store {str(self.file)!r} has schema {held[0]}, this npusim writes {SCHEMA}; "
                "name another file, or remove this one"
            )

    def __enter__(self) -> Store:
        """Open as it is."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drop what is beyond the bound, and close the file."""
        with self.base:
            self.base.execute(
                "delete from points where key in (select key from points order by at desc "
                "limit -1 offset ?)",
                (self.most,),
            )
        self.base.close()

    def get(self, key: str) -> Measured | None:
        """What is known of a point."""
        sql = "select row, error from points where key = ?"
        found = self.base.execute(sql, (key,)).fetchone()
        return None if found is None else Measured(json.loads(zlib.decompress(found[0])), found[1])

    def put(self, points: Iterable[tuple[str, Measured]]) -> None:
        """Keep points, all of them or none."""
        packed = [
            (key, zlib.compress(json.dumps(one.row, sort_keys=True).encode()), one.error)
            for key, one in points
        ]
        sql = "insert or replace into points values (?, ?, ?, julianday('now'))"
        with self.base:
            self.base.executemany(sql, packed)

    def __len__(self) -> int:
        """Number of points."""
        return int(self.base.execute("select count(*) from points").fetchone()[0])


def key_of(content: str) -> str:
    """The key of a point: its content, and the program that measures it."""
    return hashlib.sha256(f"{program()}\0{content}".encode()).hexdigest()


@cache
def program() -> str:
    """Version and sources of npusim: a change of the model is another program."""
    folders = [Path(__file__).parents[1], *map(Path, kernels.__path__)]
    digest = hashlib.sha256(__version__.encode())
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
