"""The compiled engine where no library ships with it: the first process that needs it compiles it.

It says so on stderr, and what is compiled is kept for all later processes of the machine. Others
that need the engine meanwhile wait for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from npusim.base.processes import is_helper, works_for_another
from npusim.machine.timing.fast import library

#: Seconds between two signs of life, and between two looks at the compiler.
_SIGN_S, _LOOK_S = 10.0, 0.1


def ready() -> bool:
    """True where the engine needs no compiler: there is a library, or Numba's cache is complete."""
    return bool(library.asked(library.SWITCH)) or library.found() is not None or is_cached()


def is_cached() -> bool:
    """True where Numba's cache is complete."""
    return _complete().is_file()


def finish() -> None:
    """Note that Numba's cache is complete."""
    _complete().touch()


def _complete() -> Path:
    """The file that says that Numba's cache is complete, for this Python and this Numba."""
    from importlib.metadata import version  # noqa: PLC0415 - of use on a first run only

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return library.folder() / f"complete-{python}-{version('numba')}"


def require() -> None:
    """Return when the engine is compiled; the first process of a machine compiles it, and says so.

    Where the compiler fails Numba compiles at the first call, in this process. A helper's process
    did this before it started the helper, which does not try again what failed there.
    """
    if ready() or is_helper():
        return
    with _locked():
        library.found.cache_clear()
        if ready():  # another process compiled it meanwhile
            return
        _say("npusim compiles its engine, once on this machine: about a minute")
        _compile()
        library.found.cache_clear()
        is_compiled = ready()
    _say("compiled" if is_compiled else "the compiler failed: it is compiled in this process")


def _compile() -> None:
    """Run the compiler in a process of its own; say on stderr now and then that it still works."""
    import subprocess  # noqa: PLC0415 - of use on a first run only

    process = subprocess.Popen(
        [sys.executable, "-m", "npusim.ahead", "--cache"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **library.compiler(),
    )
    begin = sign = time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(_LOOK_S)
            if time.monotonic() - sign > _SIGN_S:
                sign = time.monotonic()
                _say(f"still compiling after {sign - begin:.0f} s")
    finally:
        process.terminate()  # where the run is interrupted


@contextmanager
def _locked() -> Iterator[None]:
    """Keep other processes from compiling; where one does, wait for it and say so."""
    import fcntl  # noqa: PLC0415 - of use on a first run only

    with (library.folder() / "lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _say_once("another process compiles the engine of npusim: about a minute")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say_once(text: str) -> None:
    """Say it in a process that a user started; its workers wait as well, and one line is enough."""
    if not works_for_another():
        _say(text)


def _say(text: str) -> None:
    """Write a whole line to stderr, where a bar of progress may be drawn; a daemon has none."""
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
