"""Checks of every tiling: sizes the instructions can take."""

from __future__ import annotations

from npusim.language import ArgumentError


def check_tiling(tiling: object, sixteens: tuple[str, ...], positive: tuple[str, ...]) -> None:
    """Raise ``ArgumentError`` unless fields are multiples of 16, or at least 1, ``cores`` 0."""
    for name in sixteens:
        value = getattr(tiling, name)
        if value < 16 or value % 16:
            raise ArgumentError(f"tiling {name} is {value}; it must be a multiple of 16, >= 16")
    for name in positive:
        if getattr(tiling, name) < 1:
            raise ArgumentError(f"tiling {name} is {getattr(tiling, name)}; it must be >= 1")
    cores = getattr(tiling, "cores", 0) or 0
    if cores < 0:
        raise ArgumentError(f"tiling cores is {cores}; it must be >= 0 (0: all)")
