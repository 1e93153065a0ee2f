"""Many objects at once: programs are made of millions that live as long as they do."""

from __future__ import annotations

import atexit
import gc
from abc import ABC, ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options):
        """Tell type checkers what a decorator does; nothing happens here."""
        return lambda decorator: decorator


T = TypeVar("T")


class _Plain(ABCMeta):
    """Abstract classes that only their subclasses belong to, which is quickly looked up."""

    __instancecheck__ = type.__instancecheck__


class Abstract(ABC, metaclass=_Plain):
    """What ``ABC`` is, but for ``isinstance``, which there takes three times as long."""


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """A dataclass whose fields nobody sets again, as a type checker sees to.

    One that Python itself keeps from it takes three times as long to be made.
    """
    return dataclass(unsafe_hash=True)(kind)


@contextmanager
def growing() -> Iterator[None]:
    """Make many objects, none of which is garbage, without the search for cycles among them.

    The search goes through all objects again and again as their number grows, which doubles the
    time that a large program takes to be built. It is as it was afterwards.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


#: Objects that may be made, less those that are gone, between two looks for cycles.
_SELDOM = 200_000


def collect_seldom() -> None:
    """Look for cycles of garbage seldom from now on: in a process that is npusim's and soon ends.

    What is made lives on as a rule, in programs and runs, and looking at it again finds nothing.
    """
    gc.set_threshold(_SELDOM, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # so that nothing is looked at once more on the way out
