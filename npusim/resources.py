"""The data files that ship with npusim: device files, limits, workloads, measurements."""

from __future__ import annotations

import getpass
import os
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def configs() -> Traversable:
    """Return the folder ``configs``: inside an installed package, at the top of a checkout."""
    inside = files("npusim") / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "configs"


def user_cache() -> Path:
    """The folder of this user's cache, or one of temporary files where that cannot be written.

    Everything npusim keeps between runs lies there: stores, and compiled code where neither Numba's
    own folder nor the package can be written.
    """
    try:
        home = Path.home() / ".cache" / "npusim"
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home
    except (OSError, RuntimeError):  # no home folder, or a full or read-only one
        other = Path(tempfile.gettempdir()) / f"npusim-{_user()}"
        other.mkdir(mode=0o700, exist_ok=True)
        return other


def cache_file(name: str) -> Path:
    """A file of this user's cache."""
    return user_cache() / name


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user without a name, as in a container
        return str(getattr(os, "getuid", os.getpid)())
