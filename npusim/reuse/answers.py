"""Answers kept by what they rest on: a key, and the figures of the device that were asked for.

An answer worked out on one device holds on every other that has the same figures among those it
rests on, which a ``TrackedDevice`` records. Answers are kept in memory, and while ``answers_in`` is
open in a file as well, which other processes may use at the same time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from npusim.base.digests import imported_anew, program
from npusim.base.processes import AT_END, is_helper
from npusim.machine.device.spec import Device
from npusim.reuse.store import Store, opened
from npusim.reuse.tracked_device import Name, named, value_of

T = TypeVar("T")

#: What stands between the steps of a figure's name, and between names: control characters.
_STEP_ENDS, _NAME_ENDS = "\x1f", "\x1e"


class _Figures(NamedTuple):
    """Names of figures in order, as one text, and a digest of it."""

    names: tuple[Name, ...]
    text: str
    digest: str


class StoredAnswer(Struct, Generic[T], frozen=True):
    """An answer, and the figures it rests on."""

    answer: T
    names: frozenset[Name]


#: The file of this thread, where one is open.
_file: ContextVar[Store | None] = ContextVar("file", default=None)

#: Held while answers in memory, which all threads share, are looked at.
_LOCK = RLock()


def _key_of_program(key: str) -> str:
    """The key of this program: another version's answers are others."""
    return f"{program()} {key}"


@contextmanager
def answers_in(file: str | Path | None) -> Iterator[None]:
    """Keep answers in a file too, and look for them there ("": one of the user's cache).

    None keeps them in memory only. Inside another such block the other file is used; other threads
    have none, or one of their own. A process that works for another one keeps its files open until
    it ends, as it is here for each of many things. Raises ``StoreError`` for a file that is no such
    store.
    """
    if file is None or _file.get() is not None:
        yield
        return
    with _open_until_end(str(file)) if is_helper() else opened(file, "runs") as store:
        token = _file.set(store)
        try:
            yield
        finally:
            _file.reset(token)


#: Files of a process that works for another one.
_of_helper: dict[str, Store] = {}


def _open_until_end(file: str) -> AbstractContextManager[Store]:
    """A file that stays open until this process has no more to do."""
    if file not in _of_helper:
        _of_helper[file] = opened(file, "runs")
    return nullcontext(_of_helper[file])


def _close() -> None:
    """Write what waits to be written."""
    while _of_helper:
        with _of_helper.popitem()[1]:
            pass


AT_END.append(_close)


class Answers(Generic[T]):
    """The latest answers of one kind, ``most`` of them.

    ``pack`` and ``unpack`` turn one into what a ``Store`` keeps and back; without them answers are
    kept in memory alone.
    """

    def __init__(
        self,
        kind: str,
        most: int,
        pack: Callable[[T], Any] | None = None,
        unpack: Callable[[Any], T] | None = None,
    ) -> None:
        self.kind = kind
        self.most = most
        self._pack = pack
        self._unpack = unpack
        self._answers: OrderedDict[str, T] = OrderedDict()
        #: Sets of figures on which answers with a key rest, by the key and by their digest.
        self._dependencies: OrderedDict[str, dict[str, _Figures]] = OrderedDict()

    def __len__(self) -> int:
        """Number of answers in memory."""
        return len(self._answers)

    def clear(self) -> None:
        """Forget those in memory."""
        self._answers.clear()
        self._dependencies.clear()

    def find(self, key: str, device: Device) -> StoredAnswer[T] | None:
        """The answer that was kept with this key and holds on ``device``; None without one."""
        key = f"{imported_anew()} {self.kind} {key}"
        store = self._store()
        with _LOCK:
            dependencies = self._dependencies.setdefault(key, {})
            answer = self._find(key, device, dependencies.values(), store)
            if answer is None and store is not None:
                digests = store.under(_key_of_program(key))
                stored = [f for f in (_figures_in(store, digest) for digest in digests) if f]
                dependencies |= {figures.digest: figures for figures in stored}
                answer = self._find(key, device, stored, store)
            _shorten(self._dependencies, 2 * self.most, key)
        return answer

    def _find(
        self, key: str, device: Device, dependencies: Iterable[_Figures], store: Store | None
    ) -> StoredAnswer[T] | None:
        for figures in dependencies:
            place = f"{key} {_values(device, figures)}"
            if place not in self._answers:
                row = store.get(_key_of_program(place)) if store is not None else None
                if row is None or self._unpack is None:
                    continue
                self._answers[place] = self._unpack(row)
            _shorten(self._answers, self.most, place)
            return StoredAnswer(self._answers[place], frozenset(figures.names))
        return None

    def keep(self, key: str, device: Device, names: Iterable[Name], answer: T) -> None:
        """Keep an answer that rests on these figures of ``device``."""
        key = f"{imported_anew()} {self.kind} {key}"
        figures = _figures_named(frozenset(names))
        with _LOCK:
            place = f"{key} {_values(device, figures)}"
            self._dependencies.setdefault(key, {})[figures.digest] = figures
            self._answers[place] = answer
            _shorten(self._dependencies, 2 * self.most, key)
            _shorten(self._answers, self.most, place)
        store = self._store()
        if store is not None and self._pack is not None:
            store.put_soon(
                *_names_for(store, figures),
                (_key_of_program(f"{key}/{figures.digest}"), figures.digest),
                (_key_of_program(place), self._pack(answer)),
            )

    def _store(self) -> Store | None:
        """The open file; None without one, and where answers are kept in memory alone."""
        return _file.get() if self._pack is not None else None


def _shorten(entries: OrderedDict[str, Any], most: int, used: str) -> None:
    """Drop those that were not used for longest; ``used`` is the key of one that was now."""
    entries.move_to_end(used)
    while len(entries) > most:
        entries.popitem(last=False)


@lru_cache(maxsize=1024)
def _figures_named(names: frozenset[Name]) -> _Figures:
    """The figures an answer rests on; many answers rest on the same."""
    return _figures(_NAME_ENDS.join([_STEP_ENDS.join(name) for name in named(names)]))


@lru_cache(maxsize=1024)
def _figures(text: str) -> _Figures:
    names = tuple(tuple(name.split(_STEP_ENDS)) for name in text.split(_NAME_ENDS) if text)
    return _Figures(names, text, hashlib.sha256(text.encode()).hexdigest()[:16])


#: Digests of figures whose names this process put into a store since it last lost answers, and how
#: often it did; many answers rest on the same.
_IN_STORE: WeakKeyDictionary[Store, tuple[int, set[str]]] = WeakKeyDictionary()

#: Figures that were read from stores, by their digest.
_READ: OrderedDict[str, _Figures] = OrderedDict()


def _names_for(store: Store, figures: _Figures) -> list[tuple[str, str]]:
    """What a store is to keep besides an answer, which refers to its figures by their digest.

    That is their names, unless this process put them there before.
    """
    with _LOCK:
        losses, put = _IN_STORE.get(store, (0, set[str]()))
        if losses != store.losses:
            put = set()
        if figures.digest in put:
            return []
        put.add(figures.digest)
        _IN_STORE[store] = store.losses, put
    return [(f"figures {figures.digest}", figures.text)]


def _figures_in(store: Store, digest: str) -> _Figures | None:
    """Figures in a store; None where their names made room for newer answers."""
    figures = _READ.get(digest)
    if figures is None:
        text = store.get(f"figures {digest}")
        if text is None:
            return None
        figures = _READ[digest] = _figures(text)
    _shorten(_READ, 1024, digest)
    return figures


#: Values of figures by name, and digests of those that answers rest on, by device.
_VALUES: OrderedDict[str, dict[Name | str, str]] = OrderedDict()


def _values(device: Device, figures: _Figures) -> str:
    """A digest of the values that figures have on ``device``."""
    values = _VALUES.setdefault(device.digest(), {})
    _shorten(_VALUES, 64, device.digest())
    if figures.digest not in values:
        values |= {name: value_of(device, name) for name in figures.names if name not in values}
        text = "\n".join([values[name] for name in figures.names])
        values[figures.digest] = hashlib.sha256(text.encode()).hexdigest()[:32]
    return values[figures.digest]
