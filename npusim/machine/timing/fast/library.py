"""The engine compiled ahead of time: a small shared library of these very sources.

``npusim.machine.timing.fast.ahead`` makes it, when a wheel is built or at a first run
(``npusim.machine.timing.compile_once``). With it a process needs no compiler, and does not import
Numba. Its name has a digest of the sources, so that one of other sources is not found.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from ctypes import CDLL, POINTER, c_int64
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.resources import user_cache

HERE = Path(__file__).parent
_PACKAGE = HERE.parents[2]

#: Estimates of tilings, which are compiled too, and what they take.
_ESTIMATES = tuple(
    f"kernels/estimate/{name}.py" for name in ("pipeline_core", "course_core", "work")
)

#: Constants that compiled code has from elsewhere, and modules here without compiled code.
_CONSTANTS = ("base/reasons.py", "base/integers.py", "machine/timing/links.py")
_PLAIN = ("__init__.py", "ahead.py", "engine.py", "library.py", "tables.py")

#: Functions that Python calls.
ENTRIES = ("interpret", "touch", "walk", "read_once", "estimate", "follow")

#: Levels of x86-64 by LLVM's names: every processor is of the old one; on the new one, which most
#: are of since 2013, the engine takes a sixth less time. What it asks for, in the words of Linux.
_OLD, _NEW = "x86-64-v2", "x86-64-v3"
_NEEDED = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}

#: An environment variable: "numba" compiles when a function is first called, the name of a file
#: takes that library.
SWITCH = "NPUSIM_ENGINE"


def asked(variable: str) -> str | None:
    """The value of a variable of the environment, on which only speed depends, no result."""
    return os.environ.get(variable)


def engine_of_children(engine: str) -> dict[str, str]:
    """The environment of a process that is to use ``engine``: "numba", or a library."""
    return os.environ | {SWITCH: engine}


def compiler() -> dict[str, Any]:
    """The folder and the environment of a process that compiles for this one.

    It imports the npusim of this process, wherever that was found, and keeps what it compiles where
    this process looks for it.
    """
    root = _PACKAGE.parent
    path = os.pathsep.join(filter(None, (str(root), asked("PYTHONPATH"))))
    cache = str(folder().parent.absolute())
    changed = {"PYTHONPATH": path, "NUMBA_CACHE_DIR": cache}
    return {"cwd": root, "env": engine_of_children("numba") | changed}


def environment_of(root: Path) -> dict[str, str]:
    """The environment of a process that runs what lies in ``root``.

    Where that is a checkout of npusim, it is the npusim of the process, which takes the library of
    this process if that has the same sources, or compiles one that is kept beside it.
    """
    environment = {**os.environ}
    own, here = root / _PACKAGE.name, _PACKAGE.parent
    if not (own / "__init__.py").is_file():
        return environment
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), asked("PYTHONPATH"))))
    same = [(root / file.relative_to(here), file) for file in sources()]
    library = found()
    if library is not None:
        environment.pop(SWITCH, None)
        if all(one.is_file() and one.read_bytes() == file.read_bytes() for one, file in same):
            environment[SWITCH] = str(library)
    environment.setdefault("NUMBA_CACHE_DIR", str(folder().parent))
    return environment


def sources() -> list[Path]:
    """The sources of compiled code."""
    here = (source for source in sorted(HERE.glob("*.py")) if source.name not in _PLAIN)
    elsewhere = (_PACKAGE / name for name in _CONSTANTS)
    return [*here, *elsewhere, *(_PACKAGE / name for name in _ESTIMATES)]


@cache
def digest() -> str:
    """A digest of the sources of compiled code."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources())).hexdigest()[:16]


@cache
def folder() -> Path:
    """A folder for code compiled from these very sources, in the first place that can be written.

    Numba itself looks at the file of a function only, and would go on using code that contains
    old versions of functions from other files.
    """
    chosen = asked("NUMBA_CACHE_DIR")
    for place in (*([Path(chosen)] if chosen else []), HERE / "__pycache__"):
        inside = place / f"compiled-{digest()}"
        try:
            inside.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=inside):
                return inside
        except OSError:
            continue
    inside = user_cache() / f"compiled-{digest()}"
    inside.mkdir(exist_ok=True)
    return inside


def levels() -> tuple[str, ...]:
    """The processors that this machine can run libraries for, by LLVM's names, best first.

    Of a machine that is no x86-64 that is "generic" alone.
    """
    if os.uname().machine != "x86_64":
        return ("generic",)
    return (*([_NEW] if _features() >= _NEEDED else []), _OLD)


def tuning() -> dict[str, str]:
    """The variables by which Numba makes the same libraries on any machine."""
    if levels() == ("generic",):
        return {}
    return {"NUMBA_CPU_NAME": _NEW, "NUMBA_CPU_FEATURES": ""}


def _features() -> set[str]:
    """The features of the processor in the words of Linux; none where it does not list them."""
    try:
        with Path("/proc/cpuinfo").open("rb", buffering=0) as file:
            first = file.read(8192).decode(errors="replace")  # the others are like the first
    except OSError:
        return set()
    lines = (line.partition(":") for line in first.splitlines())
    return next((set(words.split()) for key, _, words in lines if key.strip() == "flags"), set())


def name(level: str) -> str:
    """The name of a library of these sources for processors of ``level``."""
    kind = os.uname().machine if level in (_OLD, "generic") else level.replace("x86-64", "x86_64")
    return f"engine-{digest()}-{sys.platform}-{kind}.so"


@cache
def found() -> Path | None:
    """The library of these sources, beside them or in ``folder``; None where there is none.

    The environment variable NPUSIM_ENGINE may say "numba" to do without, or name another one; with
    either of them no first run compiles.
    """
    named = asked(SWITCH)
    if named:
        return None if named == "numba" else Path(named)
    beside = (HERE / name(level) for level in levels())
    in_cache = (folder() / name(level) for level in levels())
    return next((file for files in (beside, in_cache) for file in files if file.is_file()), None)


@cache
def _loaded(file: Path) -> CDLL:
    """A library; ``ArgumentError`` for one of other sources, whose arguments are others."""
    if digest() not in file.name:  # of those that are looked for it is part of the name
        raise ArgumentError(
            f"{SWITCH} is {str(file)!r}, which was not compiled from these sources (its name would "
            f"begin with engine-{digest()}): what it computes would be wrong; `python -m "
            f"npusim.ahead {file.parent}` compiles it anew, and without the variable npusim finds "
            "its own"
        )
    return CDLL(str(file))


def entry(function: Callable[..., None]) -> Callable[..., None] | None:
    """``function`` as the library has it; None without a library.

    It takes arrays of numbers and of records, integers, and named tuples of them. Raises
    ``ArgumentError`` where NPUSIM_ENGINE names a library of other sources.
    """
    file = found()  # in a process that waited for it there was none before
    if file is None:
        return None
    inside = _loaded(file)[function.__name__]
    inside.argtypes, inside.restype = (POINTER(c_int64),), None

    def call(*arguments: Any) -> None:
        words: list[int] = []
        for argument in arguments:
            flatten(argument, words)
        inside((c_int64 * len(words))(*words))

    return call


def flatten(value: Any, words: list[int]) -> None:
    """Append what compiled code needs to know of an argument: addresses, extents, numbers."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise TypeError("compiled code takes contiguous arrays only")
        # ``__array_interface__`` would describe every field of a record first.
        words.append(value.ctypes.data if value.size else 0)
        words += value.shape
    elif isinstance(value, tuple):
        for part in value:
            flatten(part, words)
    else:
        words.append(int(value))
