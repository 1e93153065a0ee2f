"""The data files that ship with npusim: device files, limits, workloads, measurements."""

from __future__ import annotations

import getpass
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


def cache_file(name: str) -> Path:
    """A file of this user's cache, or of the temporary files where that cannot be written."""
    try:
        home = Path.home() / ".cache" / "npusim"
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home / name
    except (OSError, RuntimeError):  # no home folder, or a full or read-only one
        return Path(tempfile.gettempdir()) / f"npusim-{getpass.getuser()}-{name}"
