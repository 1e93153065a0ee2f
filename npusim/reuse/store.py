"""Answers kept on disk by key: a file that several processes may use at once, bounded in size.

Every store of npusim is one of these: points of sweeps, candidates of tuning, runs. Where they lie
is ``npusim.base.resources``' business, and ``npusim cache`` shows and clears them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

import msgspec

from npusim.base.digests import as_imported
from npusim.base.errors import StoreError
from npusim.base.resources import user_cache

#: Of the table below; a file with another one is refused, not misread.
SCHEMA = 4

#: Bytes of a store where nothing else is said.
MOST_BYTES = 1 << 30

_TABLES = """
create table if not exists about (schema integer not null, kind text not null);
create table if not exists kept (
    key text primary key, value blob not null, at integer not null
) without rowid;
create index if not exists kept_at on kept (at);
"""
_PAGE = 4096

#: Bytes of pages that are begun, and of the index, beside the answers of a batch.
_SLACK = 32 * _PAGE

#: Answers that wait to be written together at most, and seconds between two times of writing: a
#: transaction, and the look whether sources changed, take some milliseconds.
_TOGETHER, _SECONDS = 1024, 0.5

#: Bytes from which an answer is compressed, and the quickest of zlib's levels: answers become a
#: tenth longer than at its usual one.
_LONG, _LEVEL = 256, 1

#: The first byte of a value says whether it is compressed.
_PLAIN, _COMPRESSED = b"p", b"z"

#: Share of the pages from which the oldest answers make room, and the share of answers that go.
_FULL, _LEAVE = 0.9, 4


class StoreWarning(UserWarning):
    """Answers cannot be kept: what is computed goes on, and is computed again another time."""


class Store:
    """A SQLite file of answers by key; ``file`` None keeps them in memory.

    An answer is a number (integers have 64 bits), text, bytes, or a list or mapping of answers;
    None is none.

    The file never has more than ``most_bytes``: SQLite itself sees to it, and the answers written
    longest ago make room. (Its journal, of what is being written, is emptied down to an eighth.)
    ``kind`` says what the answers are. Raises ``StoreError`` for a file that
    is no such store. A file that cannot be written any more, as on a full disk, is a
    ``StoreWarning``: those that ask have their answers, and what is in the file stays. Threads may
    share it. Nothing is put where npusim's sources changed since this process began: nobody knows
    which of them made it.
    """

    def __init__(self, file: str | Path | None, kind: str, most_bytes: int = MOST_BYTES) -> None:
        self.file = ":memory:" if file is None else str(file)
        self.kind, self.most_bytes = kind, most_bytes
        self._warned = False
        #: How often answers of the file made room for others, or could not be written.
        self.losses = 0
        self._waiting = list[tuple[str, Any]]()
        self._wrote = time.monotonic()
        self._connection: sqlite3.Connection | None = None
        self._alone = threading.RLock()
        try:
            Path(self.file).parent.mkdir(parents=True, exist_ok=True)
            self._connect()
            with self._writing():
                for statement in filter(str.strip, _TABLES.split(";")):
                    self._base.execute(statement)
                held = self._base.execute("select schema, kind from about").fetchone()
                if held is None:
                    self._base.execute("insert into about values (?, ?)", (SCHEMA, kind))
        except (sqlite3.Error, OSError) as error:
            self._disconnect()
            raise StoreError(
                f"the store {self.file!r} cannot be used ({error}); name another file, or remove "
                "this one"
            ) from error
        if held is not None and held != (SCHEMA, kind):
            self._base.close()
            raise StoreError(
                f"the store {self.file!r} has {held[1]} in schema {held[0]}, not {kind} in schema "
                f"{SCHEMA}; name another file, or remove this one"
            )
        _OPEN.add(self)

    @property
    def _base(self) -> sqlite3.Connection:
        """The file; it is opened again where it was closed before this process was copied."""
        if self._connection is None:
            self._connect()
        return cast(sqlite3.Connection, self._connection)

    def _connect(self) -> None:
        """Open the file."""
        self._connection = sqlite3.connect(
            self.file, timeout=60, isolation_level=None, check_same_thread=False
        )
        self._base.execute(f"pragma page_size = {_PAGE}")
        self._write_ahead()
        self._base.execute("pragma synchronous = normal")
        self._base.execute(f"pragma journal_size_limit = {self.most_bytes // 8}")
        self._base.execute(f"pragma max_page_count = {max(16, self.most_bytes // _PAGE)}")

    def _disconnect(self) -> None:
        """Close the file, if it is open; it is opened when next needed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def suspend(self) -> None:
        """Close the file before this process is copied.

        SQLite's locks are those of a process: a copy that inherits an open file takes those of the
        other process for its own. Until ``resume`` no other thread uses the store.
        """
        self._alone.acquire()
        if self.file != ":memory:":
            self._put_waiting()
            self._disconnect()

    def resume(self) -> None:
        """Let threads use the store again, in this process and in its copy."""
        self._alone.release()

    def _write_ahead(self) -> None:
        """Let readers and a writer not wait for each other.

        SQLite refuses at once, and waits for no timeout, where another process does the same.
        """
        for attempt in range(600):
            try:
                self._base.execute("pragma journal_mode = wal")
            except sqlite3.OperationalError as error:  # noqa: PERF203 - tries again
                if "locked" not in str(error) or attempt == 599:
                    raise
                time.sleep(0.1)
            else:
                return

    def __enter__(self) -> Store:
        """Open as it is."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the file."""
        self._put_waiting()
        self._base.close()
        _OPEN.discard(self)

    def __len__(self) -> int:
        """Number of answers."""
        with self._alone:
            return int(self._base.execute("select count(*) from kept").fetchone()[0])

    @property
    def bytes_used(self) -> int:
        """Bytes of the file that hold answers."""
        pages, free = (
            self._base.execute(f"pragma {name}").fetchone()[0]
            for name in ("page_count", "freelist_count")
        )
        return int(pages - free) * _PAGE

    def get(self, key: str) -> Any:
        """The answer with a key, None without one."""
        rows = self._read("select value from kept where key = ?", key)
        return rows[0] if rows else None

    def under(self, key: str) -> list[Any]:
        """The answers whose keys begin with this one and a slash."""
        return self._read("select value from kept where key > ? and key < ?", f"{key}/", f"{key}0")

    def _read(self, query: str, *values: str) -> list[Any]:
        """The answers that a query finds; ``StoreError`` for a damaged file."""
        try:
            with self._alone:
                rows = self._base.execute(query, values).fetchall()
            return [_unpacked(row[0]) for row in rows]
        except (sqlite3.Error, zlib.error, msgspec.DecodeError) as error:
            raise StoreError(
                f"the store {self.file!r} cannot be read ({error}); name another file, or remove "
                "this one"
            ) from error

    def put(self, answers: Iterable[tuple[str, Any]]) -> None:
        """Keep answers, all of them or none; what does not fit at all is not kept."""
        try:
            packed = [(key, _packed(value)) for key, value in answers]
        except (OverflowError, TypeError, UnicodeEncodeError) as error:
            self._warn(str(error), "answers are numbers of 64 bits, texts, lists and mappings")
            return
        if packed and not as_imported():
            self._warn("npusim was edited since this process began", "start it again")
            return
        try:
            with self._alone:
                while packed and not self._written(packed) and len(self):
                    with self._writing():
                        self._drop_oldest()
        except sqlite3.Error as error:
            self.losses += 1
            self._warn(str(error), "make room, or name another file")

    def put_soon(self, *answers: tuple[str, Any]) -> None:
        """Keep answers: at once where half a second passed since others were written, else later.

        Later is with the next that are put then, or when the store is closed: a process that is
        killed loses half a second of answers.
        """
        with self._alone:
            self._waiting += answers
            late = time.monotonic() - self._wrote > _SECONDS
        if late or len(self._waiting) >= _TOGETHER:
            self._put_waiting()

    def _put_waiting(self) -> None:
        with self._alone:
            waiting, self._waiting = self._waiting, []
        self.put(waiting)
        self._wrote = time.monotonic()

    def _warn(self, why: str, way_out: str) -> None:
        """A word for each store, not for each answer."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the store {self.file!r} cannot be written ({why}): what is computed now is not "
                f"kept in it; {way_out}",
                StoreWarning,
                stacklevel=4,
            )

    def _written(self, packed: list[tuple[str, bytes]]) -> bool:
        """Write rows; whether the bound of the file had room for them."""
        try:
            with self._writing():
                if self.bytes_used > _FULL * self.most_bytes:
                    self._drop_oldest()
                self._base.executemany(
                    "insert or replace into kept values (?, ?, "
                    "(select coalesce(max(at), 0) + 1 from kept))",
                    packed,
                )
        except sqlite3.OperationalError as error:
            # SQLite calls the bound and the disk full in the same words, and on a full disk no
            # answer may make room: it would be lost for nothing.
            size = sum(len(key) + len(value) for key, value in packed)
            pages = int(self._base.execute("pragma page_count").fetchone()[0])
            bound = pages * _PAGE + 2 * size + _SLACK > self.most_bytes
            if "full" not in str(error) or not bound:
                raise
            return False
        return True

    def clear(self) -> int:
        """Forget all answers; how many there were. The file becomes small."""
        with self._writing():
            count = len(self)
            self._base.execute("delete from kept")
        self._base.execute("vacuum")
        return count

    def _drop_oldest(self) -> None:
        """Forget the answers written longest ago, at least one."""
        self.losses += 1
        self._base.execute(
            "delete from kept where key in (select key from kept order by at limit ?)",
            (max(1, len(self) // _LEAVE),),
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that has the file to itself, so that nobody's answers are lost."""
        with self._alone:
            self._base.execute("begin immediate")
            try:
                yield
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("rollback")
                raise
            self._base.execute("commit")


def _plain_number(value: Any) -> Any:
    """A number of NumPy's as one of Python's; ``TypeError`` for anything else."""
    if not hasattr(value, "item"):
        raise TypeError(f"a {type(value).__name__} cannot be kept")
    return value.item()


def _packed(value: Any) -> bytes:
    """The bytes that stand for an answer."""
    plain = msgspec.msgpack.encode(value, enc_hook=_plain_number)
    if len(plain) < _LONG:
        return _PLAIN + plain
    return _COMPRESSED + zlib.compress(plain, _LEVEL)


def _unpacked(packed: bytes) -> Any:
    """The answer that bytes stand for."""
    kind, content = packed[:1], packed[1:]
    return msgspec.msgpack.decode(zlib.decompress(content) if kind == _COMPRESSED else content)


#: Stores that are open in this process.
_OPEN: WeakSet[Store] = WeakSet()

#: Those of them that are closed while the process is copied.
_suspended: list[Store] = []


def _suspend_all() -> None:
    for store in [*_OPEN]:
        store.suspend()
        _suspended.append(store)


def _resume_all() -> None:
    while _suspended:
        _suspended.pop().resume()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_suspend_all, after_in_parent=_resume_all, after_in_child=_resume_all
    )


#: Stores of the user's cache by name, and what they hold.
KINDS = {
    "sweeps": "points of studies",
    "tuned": "candidates of tuning",
    "runs": "runs of kernels and choices of tilings",
}


def usual_file(name: str) -> Path:
    """The file of a store of the user's cache."""
    return user_cache() / f"{name}.sqlite"


def files_of(store: Path) -> list[Path]:
    """The files of a store that are there: its own, and what SQLite writes beside it."""
    parts = (Path(f"{store}{end}") for end in ("", "-wal", "-shm"))
    return [part for part in parts if part.exists()]


def opened(file: str | Path | None, name: str) -> Store:
    """The store ``name`` in ``file``: "" is that of the user's cache, None keeps it in memory.

    One of the user's cache with another schema is from another version, and begins anew; where it
    cannot be written, a ``StoreWarning`` says so and answers stay in memory.
    """
    kind = KINDS[name]
    if file != "":
        return Store(file, kind)
    place = usual_file(name)
    if place.exists() and _schema(place) not in (None, SCHEMA):
        for part in files_of(place):
            part.unlink(missing_ok=True)
    try:
        return Store(place, kind)
    except StoreError as error:  # nobody asked for it: a full disk, a folder that is read only
        warnings.warn(f"{error.__cause__}: {place}; nothing is kept", StoreWarning, stacklevel=3)
        return Store(None, kind)


def _schema(file: Path) -> int | None:
    """The schema a store's file states, 0 for a file that is no store.

    None where it states none, as one without tables, which a process begins or was killed while it
    did; or where nobody can tell now: a store in journal mode is not even read on a full disk.
    """
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as base:
            if base.execute("select 1 from sqlite_master").fetchone() is None:
                return None
            row = base.execute("select schema from about").fetchone()
    except sqlite3.DatabaseError as error:
        unknown = isinstance(error, sqlite3.OperationalError) and "no such" not in str(error)
        return None if unknown else 0
    return None if row is None else int(row[0])
