"""Answers kept by what they rest on: a key, and the figures of the device that were asked for.

An answer worked out on one device holds on every other that has the same figures among those it
rests on. Answers are kept in memory, and while ``answers_in`` is open in a file as well, which
other processes may use at the same time.

Which figures these are tells ``Seen``, a device that remembers what was asked of it. It tells
what the device tells, and notes each figure when it is first read, with its value. Whatever was
worked out from it alone comes out the same on every device on which the figures noted have these
values, for the same code then takes the same turns. Figures that nothing asked for may be any.

A figure is named by the way to it: ``("paths", "L1->L0A", "startup_cycles")``. Other names end in
``KEYS``, the keys of a mapping in their order; in ``ROOM`` and a number of bytes that a memory
has; or they are ``KEY_OF_GM``.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from threading import RLock
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from msgspec import Struct

from npusim.base.digests import imported_anew, program
from npusim.machine.device.parts import Memory
from npusim.machine.device.spec import NO_FIGURES, Device
from npusim.reuse.store import Store, opened

#: The way to a figure: fields, keys, and one of the words below at the end.
Name = tuple[str, ...]

KEYS, ROOM, KEY_OF_GM = "*", "has_room", "main_memory_key"

#: What a name stands for where a device has no such part.
_MISSING = "missing"


def named(names: Iterable[Name]) -> tuple[Name, ...]:
    """Names of figures in one order; of the sizes a memory has room for only the largest."""
    rooms: dict[Name, int] = {}
    rest = set()
    for name in names:
        if ROOM in name[-2:-1]:
            rooms[name[:-1]] = max(rooms.get(name[:-1], 0), int(name[-1]))
        else:
            rest.add(name)
    return tuple(sorted((*rest, *((*name, str(size)) for name, size in rooms.items()))))


class Seen:
    """The figures that were asked for so far; ``device`` notes them here when it is asked.

    ``names`` were asked for by what is taken over.
    """

    def __init__(self, device: Device, names: Iterable[Name] = ()) -> None:
        self._names = {*names}
        self.device: Device = _part(device, (), self._names)

    @property
    def names(self) -> frozenset[Name]:
        """Their names."""
        return frozenset(self._names)


def names_of(device: Device) -> frozenset[Name]:
    """What was asked so far of the device of a ``Seen``; nothing of another."""
    source: _Source | None = device.__dict__.get(_SOURCE)
    return frozenset(source.names) if source is not None else frozenset()


class _Source(NamedTuple):
    """The part that is watched, the way to it, and where its figures are noted."""

    part: Any
    place: Name
    names: set[Name]

    def noted(self, step: str, value: Any) -> Any:
        """The value of a field or under a key, noted; parts and mappings are watched in turn."""
        place = (*self.place, step)
        if type(value) in _LEAVES:
            self.names.add(place)
            return value
        if is_dataclass(value) and not isinstance(value, type):
            self.names.add(place)
            return _part(value, place, self.names)
        if isinstance(value, Mapping):
            return _Mapping(_Source(value, place, self.names))
        self.names.add(place)
        return value


_SOURCE = "_source"

#: Types of most figures, which need no second look.
_LEAVES = frozenset((int, bool, str, float, Fraction, tuple, NoneType))


class _Field:
    """A field that is noted when it is first read; then it stands in the object itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, part: Any, owner: type) -> Any:
        """The field's value."""
        if part is None:
            raise AttributeError(self.name)
        source: _Source = part.__dict__[_SOURCE]
        found = source.noted(self.name, getattr(source.part, self.name))
        part.__dict__[self.name] = found
        return found


class _Told(_Field):
    """A field that is no figure: told, not noted."""

    def __get__(self, part: Any, owner: type) -> Any:
        """The field's value."""
        if part is None:
            raise AttributeError(self.name)
        return getattr(part.__dict__[_SOURCE].part, self.name)


class _Mapping(Mapping[str, Any]):
    """A mapping whose entries are noted one by one, and its keys where all are looked at."""

    def __init__(self, source: _Source) -> None:
        self._held: dict[str, Any] = {}
        self._from = source

    def __getitem__(self, key: str) -> Any:
        if key not in self._held:
            if key not in self._from.part:
                self._note_keys()
            self._held[key] = self._from.noted(key, self._from.part[key])
        return self._held[key]

    def __iter__(self) -> Iterator[str]:
        self._note_keys()
        return iter(self._from.part)

    def __len__(self) -> int:
        self._note_keys()
        return len(self._from.part)

    def _note_keys(self) -> None:
        self._from.names.add((*self._from.place, KEYS))


def _part(part: Any, place: Name, names: set[Name]) -> Any:
    """A part of a device, or all of it, that notes what is asked of it."""
    made: Any = object.__new__(_watching(type(part)))
    made.__dict__[_SOURCE] = _Source(part, place, names)
    return made


#: Classes whose fields are noted, by the class they are like.
_KINDS: dict[type, type] = {}


def _watching(kind: type) -> type:
    """A class like ``kind`` whose fields are noted."""
    if kind in _KINDS:
        return _KINDS[kind]
    body: dict[str, Any] = {field.name: _Field(field.name) for field in fields(kind)}
    if kind is Device:  # what it is called is no figure
        body |= {name: _Told(name) for name in NO_FIGURES}
    if kind is Memory:
        body["has_room"] = _has_room
    if kind is Device:
        body |= {"digest": _digest, KEY_OF_GM: cached_property(_key_of_gm)}
        body[KEY_OF_GM].__set_name__(kind, KEY_OF_GM)
    made = _KINDS[kind] = type(kind.__name__, (kind,), body)
    return made


def _has_room(memory: Memory, size: int) -> bool:
    source: _Source | None = memory.__dict__.get(_SOURCE)
    if source is None:
        return Memory.has_room(memory, size)
    if not cast(Memory, source.part).has_room(size):
        return size <= memory.size_bytes  # noted as it is
    source.names.add((*source.place, ROOM, str(size)))
    return True


def _digest(device: Device) -> str:
    """That of the device that is watched; nothing may be made of it but keys."""
    source: _Source | None = device.__dict__.get(_SOURCE)
    return Device.digest(device) if source is None else source.part.digest()


def _key_of_gm(device: Device) -> str:
    """Noted by itself: it says which parts are one object, which those that watch are not."""
    source: _Source | None = device.__dict__.get(_SOURCE)
    if source is None:
        return device.main_memory_key
    source.names.add((KEY_OF_GM,))
    return cast(Device, source.part).main_memory_key


def value_of(device: Device, name: Name) -> str:
    """What a name stands for on a device, as text."""
    value: Any = device
    for at, step in enumerate(name):
        if step == KEYS:
            return " ".join(value)
        if step == ROOM:
            return str(value.has_room(int(name[at + 1])))
        if isinstance(value, Mapping):
            if step not in value:
                return _MISSING
            value = value[step]
        elif value is None:
            return _MISSING
        else:
            value = getattr(value, step)
    return "part" if is_dataclass(value) else repr(value)


# -- what is kept ----------------------------------------------------------------------------------


T = TypeVar("T")

#: What stands between the steps of a figure's name, and between names: control characters.
_STEP_ENDS, _NAME_ENDS = "\x1f", "\x1e"


class _Names(NamedTuple):
    """Names of figures in order, as one text, and a digest of it."""

    names: tuple[Name, ...]
    text: str
    digest: str


class Found(Struct, Generic[T], frozen=True):
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
    """The latest answers of one kind, ``most`` of them.

    ``form`` are two functions, which turn one into JSON and back; without them answers are kept in
    memory alone.
    """

    def __init__(self, kind: str, most: int, *form: Callable[[Any], Any]) -> None:
        self.kind, self.most = kind, most
        self._form = form
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
        shelf = _shelf.get() if self._form else None
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
                self._answers[place] = self._form[1](row)
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
        shelf = _shelf.get() if self._form else None
        if shelf is not None:
            shelf.put_soon(_ours(f"{key}/{rest.digest}"), rest.text)
            shelf.put_soon(_ours(place), self._form[0](answer))


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
