"""The data files that ship with npusim: device files, limits, workloads, measurements."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def configs() -> Traversable:
    """Return the folder ``configs``: inside an installed package, at the top of a checkout."""
    inside = files("npusim") / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "configs"
