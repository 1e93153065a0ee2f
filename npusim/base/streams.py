"""Standard streams that are missing or full.

Daemons, windows and a shell's ``2>&-`` leave a process without standard error; Python then has
``None`` in its place, and ``print`` writes to standard output instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from npusim.base.errors import NpusimError


class OutputError(NpusimError):
    """Standard output takes no more: the disk is full, or its device fails."""


def stderr_is_terminal() -> bool:
    """True if there is a standard error, and it is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def ensure_stream(name: str) -> None:
    """Send what is written to a missing ``sys.stdout`` or ``sys.stderr`` to nowhere from now on.

    Its number is taken too, as far as it is free: a file that is opened later would get it, and
    what compiled libraries write to standard error would end in that file.
    """
    if getattr(sys, name) is None:
        number = os.open(os.devnull, os.O_WRONLY)
        os.set_inheritable(number, True)
        setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


class Output:
    """A standard output whose failures are ``OutputError``s that say what could not be written.

    A reader that went away remains a ``BrokenPipeError``.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """All other attributes are those of the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        with _failures():
            return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        with _failures():
            self._stream.writelines(lines)

    def flush(self) -> None:
        """Write what is buffered."""
        with _failures():
            self._stream.flush()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"standard output cannot be written: {error.strerror}; redirect it to a file where "
            "there is room, or to /dev/null"
        ) from error
