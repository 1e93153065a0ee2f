"""Which tiling a kernel gets: the heuristic's, the vendor's, or the one given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from npusim.errors import ArgumentError
from npusim.kernels.tilings.cann import CannTiling

T = TypeVar("T")


def chosen_tiling(
    tiling: Any,
    kind: type[T],
    auto: Callable[[], T],
    cann: Callable[[CannTiling | None], T] | None = None,
) -> T:
    """The tiling to use: "auto" by the kernel's rule, or the one given.

    ``cann`` makes the kernel's of one in the vendor's words, or of None by the vendor's rule
    ("production"); kernels without it take neither.
    """
    if isinstance(tiling, kind):
        return tiling
    if tiling == "auto":
        return auto()
    if cann is not None and (isinstance(tiling, CannTiling) or tiling == "production"):
        return cann(tiling if isinstance(tiling, CannTiling) else None)
    also = ", 'production', a npusim.kernels.tilings.cann.CannTiling" if cann is not None else ""
    raise ArgumentError(
        f"tiling is {tiling!r}; it must be 'auto'{also} or a {kind.__module__}.{kind.__name__}"
    )
