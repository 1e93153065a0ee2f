"""Data files that ship, where npusim keeps what it keeps, and what this computer can hold."""

from __future__ import annotations

import atexit
import getpass
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.base.errors import ArgumentError, RoomError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def optional(module: str, need: str, package: str = "") -> Any:
    """A module that npusim can do without; ``ArgumentError`` that says the need where it cannot."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"{need}; `pip install {package or module}` adds it") from error


def configs() -> Traversable:
    """Return the folder ``configs``: inside an installed package, at the top of a checkout."""
    inside = files("npusim") / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "configs"


def leave_out_threads() -> None:
    """Let NumPy, which is imported later, start no threads for products of arrays.

    Its library (OpenBLAS) starts one per processor as it is loaded, which takes a tenth of the
    smallest run, and again in each process that this one starts. The environment has the last word.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def user_cache() -> Path:
    """The folder of this user's cache, or one of temporary files where that cannot be written.

    Everything npusim keeps between runs lies there: stores, and compiled code where neither Numba's
    own folder nor the package can be written. It is the folder that the environment variable
    ``NPUSIM_CACHE`` names, else ``npusim`` in ``XDG_CACHE_HOME``, else ``~/.cache/npusim``.

    Compiled code is run as it lies there, so a folder among the temporary files, which every user
    of a machine may make, is taken only if it is this user's and closed to others.

    Raises ``ArgumentError`` if ``NPUSIM_CACHE`` names a folder that cannot be written.
    """
    asked = os.environ.get("NPUSIM_CACHE")
    if asked:
        if _writable(Path(asked)):
            return Path(asked)
        raise ArgumentError(
            f"NPUSIM_CACHE is {asked!r}, where nothing can be written; name another folder, or "
            "leave the variable out for the usual one"
        )
    home = _home()
    if home is not None and _writable(home / "npusim"):
        return home / "npusim"
    other = Path(tempfile.gettempdir()) / f"npusim-{_user()}"
    return other if _make_private(other) else _of_this_process()


def _home() -> Path | None:
    """Folder in which programs keep their caches; None for a user without a home folder."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named and Path(named).is_absolute():  # the specification: a relative path is ignored
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:  # no such place, a full or a read-only one
        return False


def _make_private(folder: Path) -> bool:
    """Make a folder that only this user can enter; False if another's or an open one is there."""
    with suppress(FileExistsError):  # whatever it is: looked at next
        folder.mkdir(mode=0o700)
    status = os.lstat(folder)
    if not hasattr(os, "getuid"):  # Windows: the temporary files are each user's own
        return stat.S_ISDIR(status.st_mode)
    closed = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
    return closed and status.st_uid == os.getuid()


@cache
def _of_this_process() -> Path:
    """A folder that ends with the process, where nothing that lasts can be trusted."""
    folder = Path(tempfile.mkdtemp(prefix="npusim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user without a name, as in a container
        return str(getattr(os, "getuid", os.getpid)())


def processors() -> int:
    """Processors that this process may use: those it is bound to, and no more than its share.

    One of several that run tests has one of them.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(count, _share_of_group(Path("/sys/fs/cgroup")) or count))


def _share_of_group(group: Path) -> int:
    """Processors whose time the control group of a folder may take, rounded up; 0 for any."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota, period = (
                (group / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii")
                for name in ("quota", "period")
            )
        except (OSError, ValueError):
            return 0
    try:
        return max(0, -(-int(quota) // int(period)))
    except (ValueError, ZeroDivisionError):  # "max"
        return 0


@cache
def memory_bytes() -> int:
    """Its main memory; 8 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def require_room(what: str, need: int, way_out: str) -> None:
    """Raise ``RoomError`` where ``what``, of ``need`` bytes in all, cannot be held here.

    Without it a system would swap for minutes or end the process without a word.
    """
    have = memory_bytes()
    if need > have:
        raise RoomError(
            f"{what} some {need / 2**30:,.1f} GiB, this computer has {have / 2**30:,.1f} GiB: "
            f"{way_out}"
        )
