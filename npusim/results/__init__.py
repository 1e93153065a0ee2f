"""What a call leaves behind: tables, a text report, plots, a web page and a Perfetto trace."""

from __future__ import annotations

from npusim.results.comparison import Comparison, compare
from npusim.results.result import Result

__all__ = ["Comparison", "Result", "compare"]
