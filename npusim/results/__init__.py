"""Results of calls, and comparisons of them: tables, a text report, plots, a web page, a trace.

The stub beside this file lists the names, which are imported when they are first used.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
