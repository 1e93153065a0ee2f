"""Files of users as tests have them: those of ``tests/data/texts``."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "texts"


def text_of(name: str) -> str:
    """The text of a file."""
    return (FOLDER / name).read_text(encoding="utf-8")
