"""What a call leaves behind: tables, a text report, plots, a web page and a Perfetto trace."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim.results.comparison import Comparison, compare
    from npusim.results.network_comparison import NetworkComparison, compare_networks
    from npusim.results.result import Result
else:

    def __getattr__(name: str) -> Any:
        """Import results and what compares them when they are asked for."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


#: Where results and what compares them are.
_HOMES = {
    "Result": "result",
    **dict.fromkeys(("Comparison", "compare"), "comparison"),
    **dict.fromkeys(("NetworkComparison", "compare_networks"), "network_comparison"),
}

__all__ = ["Comparison", "NetworkComparison", "Result", "compare", "compare_networks"]
