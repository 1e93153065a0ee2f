"""Records, of which programs are made by the million, and what makes many of them quickly."""

from __future__ import annotations

import atexit
import dataclasses
import gc
from abc import ABC, ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from msgspec import Struct, StructMeta, structs

T = TypeVar("T")


class _Plain(ABCMeta):
    """Abstract classes that only their subclasses belong to, which is quickly looked up."""

    __instancecheck__ = type.__instancecheck__


class Abstract(ABC, metaclass=_Plain):
    """Base class as ``ABC`` is, but for ``isinstance``, which there takes three times as long."""


class _PlainStruct(StructMeta, _Plain):
    """The class of records with abstract bases."""


class Record(Struct, frozen=True, metaclass=_PlainStruct):
    """A ``msgspec.Struct`` that may have abstract bases."""


def replace(record: T, /, **values: Any) -> T:
    """One like it with other ``values`` of some fields, as ``copy.replace`` of Python 3.13."""
    if isinstance(record, Struct):
        return cast(T, structs.replace(record, **values))
    return cast(T, dataclasses.replace(cast(Any, record), **values))


def with_values(record: T, /, **values: Any) -> T:
    """The same as of ``replace``; the record itself where these are its values."""
    for name, value in values.items():
        own = getattr(record, name)
        if own is not value and (own != value or type(own) is not type(value)):
            return replace(record, **values)
    return record


def field_names(record: object) -> tuple[str, ...]:
    """The names of the fields of a record or of its class, in order; empty for anything else."""
    if dataclasses.is_dataclass(record):
        return tuple(field.name for field in dataclasses.fields(record))
    return getattr(record, "__struct_fields__", ())


def compared_fields(kind: type) -> tuple[str, ...]:
    """The names of those fields of a class of records that comparisons of two of them look at."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind) if field.compare)
    return field_names(kind)


@contextmanager
def growing() -> Iterator[None]:
    """Make many objects, none of which is garbage, without the search for cycles among them.

    The search goes through all objects again and again as their number grows, which doubles the
    time that a large program takes to be built. It is as it was afterwards, and what was made is
    old.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            _count_as_old()
            gc.enable()


#: New objects that are many.
_MANY = 100_000


def _count_as_old() -> None:
    """Have many new objects looked at with what is old, which is seldom.

    Else the next object that anybody makes would have all of them looked at.
    """
    if gc.get_count()[0] > _MANY and not gc.get_freeze_count():  # what the user froze stays so
        gc.freeze()
        gc.unfreeze()


#: Objects that may be made, less those that are gone, between two looks for cycles: beside the work
#: of others, and in a process of our own. One at a million takes half a second, for nothing.
_SELDOM, _HARDLY_EVER = 1_000_000, 5_000_000


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Look for cycles of garbage seldom, as what is made of a network lives on.

    Beside a framework there are millions of objects, and each look through all of them costs a
    tenth of a second. The user's own settings are back afterwards, and what was made counts as old.
    """
    before = gc.get_threshold()
    if before[0]:  # 0: never, by the user's wish
        gc.set_threshold(max(_SELDOM, before[0]), *before[1:])
    try:
        yield
    finally:
        _count_as_old()
        gc.set_threshold(*before)


def collect_seldom() -> None:
    """Look for cycles of garbage hardly ever: in a process that is npusim's and soon ends.

    What is made lives on as a rule, in programs and runs, and looking at it again finds nothing.
    """
    gc.set_threshold(_HARDLY_EVER, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # so that nothing is looked at once more on the way out
