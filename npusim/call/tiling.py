"""Which tiling a kernel gets: its own rule's, the vendor's, or the one given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from npusim.base.errors import ArgumentError

if TYPE_CHECKING:
    from npusim.kernels.tilings.cann import CannTiling

T = TypeVar("T")


def own_tiling(given: Any, kernel: str, kind: type[T], *, tuned: bool = False) -> T | None:
    """What the option ``tiling`` asks of a kernel without a vendor's rule.

    None where it is chosen: "auto", and "tuned", which goes on from there (``Call.tuned``).
    """
    asked = asked_tiling(given, kernel, kind, vendor=False, tuned=tuned)
    return asked if isinstance(asked, kind) else None


def asked_tiling(
    given: Any,
    kernel: str,
    kind: type[T],
    *,
    vendor: bool,
    library: bool = False,
    tuned: bool = True,
) -> T | CannTiling | Literal["auto", "tuned", "library", "production"]:
    """What the option ``tiling`` asks of ``kernel``, whose tilings are of type ``kind``.

    It is one for all kernels, or a mapping from their names, where those it leaves out are
    "auto"; "tuned", the fastest that a search finds, is for kernels that can be ``tuned``. With
    ``vendor`` a ``CannTiling`` and "production", the vendor's rule, are allowed too, and with
    ``library`` or ``vendor`` "library", the vendor's rule of an older chip or a plain choice among
    the forms of kernel that the vendor's library has.
    """
    tiling = given.get(kernel, "auto") if isinstance(given, Mapping) else given
    if isinstance(tiling, kind) or (vendor and _is_cann(tiling)):
        return cast("T | CannTiling", tiling)
    if isinstance(tiling, str):
        if tiling == "auto":
            return "auto"
        if tuned and tiling == "tuned":
            return "tuned"
        if tiling == "library" and (library or vendor):
            return "library"
        if tiling == "production" and vendor:
            return "production"
    also = ", 'library'" if library or vendor else ""
    also += ", 'production', a npusim.kernels.tilings.cann.CannTiling" if vendor else ""
    raise ArgumentError(
        f"tiling is {tiling!r}; it must be 'auto'{also} or a {kind.__module__}.{kind.__name__}"
        + ", or 'tuned'" * tuned
    )


def _is_cann(tiling: object) -> bool:
    """Whether a tiling is in the vendor's words."""
    if isinstance(tiling, str):
        return False
    from npusim.kernels.tilings.cann import CannTiling  # noqa: PLC0415 - most tilings are words

    return isinstance(tiling, CannTiling)


def is_tuned(given: Any, kernel: str) -> bool:
    """Whether the option ``tiling`` asks for the fastest tiling of ``kernel`` there is."""
    return bool((given.get(kernel) if isinstance(given, Mapping) else given) == "tuned")


def is_library(given: Any, kernel: str) -> bool:
    """Whether the option ``tiling`` asks for what the vendor's library does, or would do."""
    tiling = given.get(kernel) if isinstance(given, Mapping) else given
    return _is_cann(tiling) or tiling in ("library", "production")
