"""The exceptions npusim raises; every message says what, where, the limit and the way out."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: Characters that a terminal obeys instead of showing them; not the ends of lines, and tabs.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(text: str) -> str:
    """``text`` as a terminal may have it: control characters as they are written, ``\\x1b``."""
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


class NpusimError(Exception):
    """Base of everything npusim raises on purpose; catch this to catch them all.

    ``task`` names which of many tasks failed, such as a layer or a point of a sweep; the message
    then begins with it. "" where there was one task only.
    """

    task: str = ""


@contextmanager
def told_as(
    make_error: Callable[[str], Exception],
    prefix: str = "",
    caught: type[Exception] | tuple[type[Exception], ...] = NpusimError,
) -> Iterator[None]:
    """Raise what is ``caught`` inside as ``make_error`` makes it of its text, behind ``prefix``."""
    try:
        yield
    except caught as error:
        raise make_error(f"{prefix}{_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The text of an error; of one of the operating system its words, without number and file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


class PassingError(NpusimError):
    """It failed here and now and may work another time, so that nothing keeps it as an answer."""


class ConfigError(NpusimError):
    """A device or workload YAML is wrong; the message starts with ``file:line:``."""


class ArgumentError(NpusimError, ValueError):
    """An operator, a tiling or a command line got an argument it cannot use."""


class RuleError(ArgumentError):
    """An argument breaks a limit that the documentation of the device's product states.

    ``parameter`` is the argument's name and ``status`` the code the real call returns; None
    where that call fails without one.
    """

    def __init__(self, message: str, *, parameter: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.status = status


class CapacityError(NpusimError):
    """A buffer does not fit the memory it was declared in; the message shows the arithmetic."""


class RoomError(CapacityError, PassingError):
    """This computer lacks the memory for something."""


class StoreError(ArgumentError, PassingError):
    """A file of kept answers cannot be used."""


class ProgramError(NpusimError):
    """A kernel issued something the device cannot do; the message names the kernel's line."""


class RaceError(ProgramError):
    """A kernel accesses bytes of GM in no certain order, and one access is a write."""


class TaskError(NpusimError):
    """One of many tasks failed because code of npusim, or of an own kernel, is wrong."""


@contextmanager
def naming(task: Callable[[], str]) -> Iterator[None]:
    """Raise every error inside as an ``NpusimError`` whose message begins with the task.

    ``task`` is only called after an error. An error that already names its task stays as it is, so
    that the innermost, most exact name is told.
    """
    try:
        yield
    except Exception as error:
        converted = as_npusim_error(error)
        if not converted.task:
            converted.task = task()
            converted.args = (f"{converted.task}: {converted}", *converted.args[1:])
        if converted is error:
            raise
        raise converted from error


def as_npusim_error(error: BaseException) -> NpusimError:
    """``error`` itself if it is npusim's, else an error of npusim that says the same in one line.

    Errors of the operating system keep the file's name, and the lack of memory is a ``RoomError``.
    Any other exception is a ``TaskError`` with the line that raised it.
    """
    if isinstance(error, NpusimError):
        return error
    if isinstance(error, MemoryError):
        what = f" ({error})" if str(error) else ""
        return RoomError(f"out of memory{what}; a smaller problem or fewer jobs need less")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            return TaskError(f"{error.strerror}{place}")
        return TaskError(f"{error.filename}: {error.strerror}")
    text = f": {error}" if str(error) else ""
    return TaskError(
        f"{type(error).__name__}{text}{place}; the code there is wrong, not the input: --debug "
        "shows the traceback"
    )
