"""What a call leaves behind: tables, a text report, plots, a web page and a Perfetto trace."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from npusim.results.result import Result

if TYPE_CHECKING:
    from npusim.results.comparison import Comparison, compare
    from npusim.results.network_comparison import NetworkComparison, compare_networks
else:

    def __getattr__(name: str) -> Any:
        """Import what compares results when it is asked for."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


#: Where what compares results is.
_HOMES = {
    **dict.fromkeys(("Comparison", "compare"), "comparison"),
    **dict.fromkeys(("NetworkComparison", "compare_networks"), "network_comparison"),
}

__all__ = ["Comparison", "NetworkComparison", "Result", "compare", "compare_networks"]
