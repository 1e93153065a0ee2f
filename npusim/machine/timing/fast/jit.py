"""How functions of this package are compiled: ahead of time, or by Numba at their first call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from npusim.machine.timing.fast import library

F = TypeVar("F", bound=Callable[..., Any])


#: Whether functions decorated now stay as they are.
_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Functions decorated meanwhile stay plain Python: modules imported within need no compiler."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def compiled(function: F) -> F:
    """``function`` for compiled code to call.

    Where the library has it nobody calls this one; else Numba compiles it at its first call, and
    later processes load it from a cache. It may use int64 arrays and tuples of them, but not make
    arrays: without reference counts, which are most of the cost of passing thirty arrays to a
    small function.
    """
    if _plain.get() or library.found() is not None:
        return function
    import numba  # noqa: PLC0415 - takes longer than a short run

    with _cache_in(str(library.folder())):
        options = {"cache": True, "forceinline": True, "error_model": "numpy", "_nrt": False}
        made = cast(Any, numba.njit)(**options)(function)
    _save_what_has_room(made)
    return cast(F, made)


def entry(function: F) -> F:
    """``function`` for Python to call: one of ``library.ENTRIES``."""
    assert function.__name__ in library.ENTRIES
    if _plain.get():
        return function
    return cast(F, library.entry(function)) or compiled(function)


def _save_what_has_room(dispatcher: Any) -> None:
    """Let a full disk cost later processes their cache, and this one nothing."""
    cache = dispatcher._cache  # Numba offers no other way
    save = cache.save_overload

    def save_overload(*compiled: Any) -> None:
        with suppress(OSError):
            save(*compiled)

    cache.save_overload = save_overload


@contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    """Let functions decorated meanwhile keep their code in ``folder``."""
    import numba  # noqa: PLC0415

    config = cast(Any, numba.config)
    before, config.CACHE_DIR = config.CACHE_DIR, folder
    try:
        yield
    finally:
        config.CACHE_DIR = before
