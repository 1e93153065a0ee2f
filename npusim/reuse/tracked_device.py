"""A device that records which of its figures are read.

``TrackedDevice`` answers as the device does, and notes each figure when it is first read, with its
value. An answer worked out from it alone comes out the same on every device on which the figures
noted have these values, for the same code then takes the same turns. Figures that nothing asked for
may be any.

A figure is named by the way to it: ``("paths", "L1->L0A", "startup_cycles")``. Other names end in
``KEYS``, the keys of a mapping in their order; in ``ROOM`` and a number of bytes that a memory
or the L2 has; or they are ``KEY_OF_GM``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from types import NoneType
from typing import Any, NamedTuple, cast

from npusim.machine.device.parts import Holds
from npusim.machine.device.spec import NO_FIGURES, Device

#: The way to a figure: fields, keys, and one of the words below at the end.
Name = tuple[str, ...]

KEYS, ROOM, KEY_OF_GM = "*", "has_room", "main_memory_key"

#: The field with the size of a part that has room.
SIZE = "size_bytes"

#: What a name stands for where a device has no such part.
_MISSING = "missing"


def named(names: Iterable[Name]) -> tuple[Name, ...]:
    """Names of figures in one order.

    Of the sizes a memory has room for only the largest, and none where all of its size counts.
    """
    rooms: dict[Name, int] = {}
    rest = set()
    for name in names:
        if ROOM in name[-2:-1]:
            rooms[name[:-1]] = max(rooms.get(name[:-1], 0), int(name[-1]))
        else:
            rest.add(name)
    most = ((*name, str(size)) for name, size in rooms.items() if (*name[:-1], SIZE) not in rest)
    return tuple(sorted((*rest, *most)))


class TrackedDevice:
    """The figures read so far; ``device`` is like the one it is made of, and notes them here.

    ``names`` are figures read before, by work whose answer is taken over.
    """

    def __init__(self, device: Device, names: Iterable[Name] = ()) -> None:
        self._names = {*names}
        self.device: Device = _part(device, (), self._names)

    @property
    def names(self) -> frozenset[Name]:
        """The names of the figures read so far."""
        return frozenset(self._names)


def names_of(device: Device) -> frozenset[Name]:
    """The figures read so far of the device of a ``TrackedDevice``; none of another device."""
    source: _Source | None = device.__dict__.get(_SOURCE)
    return frozenset(source.names) if source is not None else frozenset()


class _Source(NamedTuple):
    """The part that is tracked, the way to it, and where its figures are noted."""

    part: Any
    place: Name
    names: set[Name]

    def noted(self, step: str, value: Any) -> Any:
        """The value of a field or under a key, noted; parts and mappings are tracked in turn."""
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
        value = source.noted(self.name, getattr(source.part, self.name))
        part.__dict__[self.name] = value
        return value


class _Unnoted(_Field):
    """A field that is no figure, such as a name: read, but not noted."""

    def __get__(self, part: Any, owner: type) -> Any:
        """The field's value."""
        if part is None:
            raise AttributeError(self.name)
        return getattr(part.__dict__[_SOURCE].part, self.name)


class _Mapping(Mapping[str, Any]):
    """A mapping whose entries are noted one by one, and its keys where all are looked at."""

    def __init__(self, source: _Source) -> None:
        self._noted: dict[str, Any] = {}
        self._from = source

    def __getitem__(self, key: str) -> Any:
        if key not in self._noted:
            if key not in self._from.part:
                self._note_keys()
            self._noted[key] = self._from.noted(key, self._from.part[key])
        return self._noted[key]

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
    tracked: Any = object.__new__(_tracking(type(part)))
    tracked.__dict__[_SOURCE] = _Source(part, place, names)
    return tracked


#: Classes whose fields are noted, by the class they are like.
_KINDS: dict[type, type] = {}


def _tracking(kind: type) -> type:
    """A class like ``kind`` whose fields are noted."""
    if kind in _KINDS:
        return _KINDS[kind]
    body: dict[str, Any] = {field.name: _Field(field.name) for field in fields(kind)}
    if kind is Device:  # what it is called is no figure
        body |= {name: _Unnoted(name) for name in NO_FIGURES}
    if issubclass(kind, Holds):
        body["has_room"] = _has_room
    if kind is Device:
        body |= {"digest": _digest, KEY_OF_GM: cached_property(_key_of_gm)}
        body[KEY_OF_GM].__set_name__(kind, KEY_OF_GM)
    _KINDS[kind] = type(kind.__name__, (kind,), body)
    return _KINDS[kind]


def _has_room(memory: Holds, size: float) -> bool:
    source: _Source | None = memory.__dict__.get(_SOURCE)
    if source is None:
        return Holds.has_room(memory, size)
    if not cast(Holds, source.part).has_room(size):
        return size <= memory.size_bytes  # noted as it is
    source.names.add((*source.place, ROOM, str(ceil(size))))
    return True


def _digest(device: Device) -> str:
    """That of the device that is tracked; nothing may be made of it but keys."""
    source: _Source | None = device.__dict__.get(_SOURCE)
    return Device.digest(device) if source is None else source.part.digest()


def _key_of_gm(device: Device) -> str:
    """Noted by itself: it says which parts are one object, which parts that are tracked are not."""
    source: _Source | None = device.__dict__.get(_SOURCE)
    if source is None:
        return device.main_memory_key
    source.names.add((KEY_OF_GM,))
    return cast(Device, source.part).main_memory_key


def value_of(device: Device, name: Name) -> str:
    """The value of a figure of a device, as text."""
    value: Any = device
    for place, step in enumerate(name):
        if step == KEYS:
            return " ".join(value)
        if value is None:
            return _MISSING
        if step == ROOM:
            return str(value.has_room(int(name[place + 1])))
        if isinstance(value, Mapping):
            if step not in value:
                return _MISSING
            value = value[step]
        else:
            value = getattr(value, step)
    return "part" if is_dataclass(value) else repr(value)
