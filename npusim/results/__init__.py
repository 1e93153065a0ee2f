"""What a call leaves behind: tables, a text report, plots, a web page and a Perfetto trace."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from npusim.results.result import Result

if TYPE_CHECKING:
    from npusim.results.comparison import Comparison, compare
else:

    def __getattr__(name: str) -> Any:
        """Import what compares results when it is asked for."""
        if name not in ("Comparison", "compare"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.comparison"), name)


__all__ = ["Comparison", "Result", "compare"]
