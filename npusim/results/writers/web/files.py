"""Templates, styles and scripts of the pages, which lie in this folder."""

from __future__ import annotations

from importlib.resources import files


def file_text(name: str) -> str:
    """The text of a file of this folder: a template, a style or a script."""
    return (files("npusim.results.writers.web") / name).read_text(encoding="utf-8")
