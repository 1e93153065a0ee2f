"""What a call leaves behind: tables, a text report, plots, a web page and a Perfetto trace."""

from __future__ import annotations

from npusim.base.public import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
