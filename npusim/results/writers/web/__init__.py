"""Web pages of calls, networks and studies: one file each, readable without a server."""

from __future__ import annotations

from importlib.resources import files


def own(name: str) -> str:
    """The text of a file of this folder: a template, a style or a script."""
    return (files("npusim.results.writers.web") / name).read_text(encoding="utf-8")
