"""Names of files to write, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npusim.errors import ArgumentError


def check_file(option: str, path: Path, suffixes: Sequence[str]) -> None:
    """Refuse a name that nothing writes, or a folder that does not exist."""
    if not path.name.lower().endswith(tuple(suffixes)):
        raise ArgumentError(f"{option} {path}: the file's name must end in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ArgumentError(
            f"{option} {path}: there is no folder {str(path.parent)!r}; create it first"
        )
