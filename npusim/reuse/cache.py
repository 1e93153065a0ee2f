"""Answers kept by what they rest on: a key, and the figures of the device that were asked for.

An answer worked out on one device holds on every other that has the same figures among those it
rests on (``npusim.reuse.seen``). Answers are kept in memory, and while ``answers_in`` is open in
a file as well, which other processes may use at the same time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, Generic, NamedTuple, TypeVar

from npusim.base.sources import imported_anew, program
from npusim.device.spec import Device
from npusim.reuse.seen import Name, named, value_of
from npusim.reuse.store import Store, opened

T = TypeVar("T")

#: What stands between the steps of a figure's name, and between names: control characters.
_STEP_ENDS, _NAME_ENDS = "\x1f", "\x1e"


class _Names(NamedTuple):
    """Names of figures in order, as one text, and a digest of it."""

    names: tuple[Name, ...]
    text: str
    digest: str


@dataclass(frozen=True)  # a NamedTuple cannot be generic before Python 3.11
class Found(Generic[T]):
    """An answer, and the figures it rests on."""

    answer: T
    names: frozenset[Name]


#: That of this thread, where one is open.
_shelf: ContextVar[Store | None] = ContextVar("shelf", default=None)

#: Held while answers in memory, which all threads share, are looked at.
_ALONE = RLock()


def _ours(key: str) -> str:
    """The key of this program: another version's answers are others."""
    return f"{program()} {key}"


@contextmanager
def answers_in(file: str | Path | None) -> Iterator[None]:
    """Keep answers in a file too, and look for them there ("": one of the user's cache).

    None keeps them in memory only. Inside another such block the other file is used; other threads
    have none, or one of their own. Raises ``StoreError`` for a file that is no such store.
    """
    if file is None or _shelf.get() is not None:
        yield
        return
    with opened(file, "runs") as kept:
        token = _shelf.set(kept)
        try:
            yield
        finally:
            _shelf.reset(token)


class Answers(Generic[T]):
    """The latest answers of one kind; ``written`` and ``read`` turn one into JSON and back."""

    def __init__(
        self, kind: str, most: int, written: Callable[[T], Any], read: Callable[[Any], T]
    ) -> None:
        self.kind, self.most = kind, most
        self._written, self._read = written, read
        self._answers: OrderedDict[str, T] = OrderedDict()
        self._rests: OrderedDict[str, dict[str, _Names]] = OrderedDict()  # by key and digest

    def __len__(self) -> int:
        """Number of answers in memory."""
        return len(self._answers)

    def clear(self) -> None:
        """Forget those in memory."""
        self._answers.clear()
        self._rests.clear()

    def find(self, key: str, device: Device) -> Found[T] | None:
        """The answer that was kept with this key and holds on ``device``."""
        key = f"{imported_anew()} {self.kind} {key}"
        shelf = _shelf.get()
        with _ALONE:
            rests = self._rests.setdefault(key, {})
            found = self._find(key, device, rests.values(), shelf)
            if found is None and shelf is not None:
                more = [_names(row) for row in shelf.under(_ours(key))]
                rests |= {one.digest: one for one in more}
                found = self._find(key, device, more, shelf)
            _shorten(self._rests, 2 * self.most, key)
        return found

    def _find(
        self, key: str, device: Device, rests: Iterable[_Names], shelf: Store | None
    ) -> Found[T] | None:
        for rest in rests:
            place = f"{key} {_values(device, rest)}"
            if place not in self._answers:
                row = shelf.get(_ours(place)) if shelf is not None else None
                if row is None:
                    continue
                self._answers[place] = self._read(row)
            _shorten(self._answers, self.most, place)
            return Found(self._answers[place], frozenset(rest.names))
        return None

    def keep(self, key: str, device: Device, names: Iterable[Name], answer: T) -> None:
        """Keep an answer that rests on these figures of ``device``."""
        key = f"{imported_anew()} {self.kind} {key}"
        rest = _rest(frozenset(names))
        with _ALONE:
            place = f"{key} {_values(device, rest)}"
            self._rests.setdefault(key, {})[rest.digest] = rest
            self._answers[place] = answer
            _shorten(self._rests, 2 * self.most, key)
            _shorten(self._answers, self.most, place)
        shelf = _shelf.get()
        if shelf is not None:
            shelf.put_soon(_ours(f"{key}/{rest.digest}"), rest.text)
            shelf.put_soon(_ours(place), self._written(answer))


def _shorten(held: OrderedDict[str, Any], most: int, used: str) -> None:
    """Let those that were not used for longest make room; ``used`` is one that was now."""
    held.move_to_end(used)
    while len(held) > most:
        held.popitem(last=False)


@lru_cache(maxsize=1024)
def _rest(names: frozenset[Name]) -> _Names:
    """What an answer rests on; many rest on the same figures."""
    return _names(_NAME_ENDS.join([_STEP_ENDS.join(name) for name in named(names)]))


@lru_cache(maxsize=1024)
def _names(text: str) -> _Names:
    names = tuple(tuple(one.split(_STEP_ENDS)) for one in text.split(_NAME_ENDS) if text)
    return _Names(names, text, hashlib.sha256(text.encode()).hexdigest()[:16])


#: Values of figures by name, and digests of those that answers rest on, by device.
_VALUES: OrderedDict[str, dict[Name | str, str]] = OrderedDict()


def _values(device: Device, rest: _Names) -> str:
    """A digest of the values that figures have on ``device``."""
    known = _VALUES.setdefault(device.digest(), {})
    _shorten(_VALUES, 64, device.digest())
    if rest.digest not in known:
        known |= {name: value_of(device, name) for name in rest.names if name not in known}
        text = "\n".join([known[name] for name in rest.names])
        known[rest.digest] = hashlib.sha256(text.encode()).hexdigest()[:32]
    return known[rest.digest]
