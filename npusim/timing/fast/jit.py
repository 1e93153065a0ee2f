"""Numba, and where its compiled code is kept."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from npusim.resources import user_cache

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent.parent
_CONSTANTS = ("reasons.py", "isa/base.py", "timing/links.py")
_SOURCES = (*sorted(_HERE.glob("*.py")), *(_PACKAGE / name for name in _CONSTANTS))


def compiled(function: F) -> F:
    """``function`` compiled at its first call; later processes load it from a cache.

    It may use int64 arrays and tuples of them, but not make arrays: without reference counts,
    which are most of the cost of passing thirty arrays to a small function.
    """
    with _cache_in(_folder()):
        options = {"cache": True, "forceinline": True, "error_model": "numpy", "_nrt": False}
        return cast(F, cast(Any, numba.njit)(**options)(function))


@cache
def _folder() -> str:
    """A folder for the code of these very sources, in the first place that can be written.

    Numba itself looks at the file of a function only, and would go on using code that contains
    old versions of functions from other files.
    """
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()[:16]
    chosen = cast(Any, numba.config).CACHE_DIR
    places = (
        *([Path(chosen)] if chosen else []),
        _HERE / "__pycache__",
        user_cache(),
    )
    for place in places:
        folder = place / f"compiled-{digest}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
        except OSError:
            continue
    return tempfile.mkdtemp(prefix="npusim-")


@contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    """Let functions decorated meanwhile keep their code in ``folder``."""
    config = cast(Any, numba.config)
    before, config.CACHE_DIR = config.CACHE_DIR, folder
    try:
        yield
    finally:
        config.CACHE_DIR = before
