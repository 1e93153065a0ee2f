"""npusim: a cycle-approximate NPU simulator: numbers, cycles and traffic from one program.

Importing it is cheap: what a name needs is imported when the name is first used. The stub beside
this file lists the names.
"""

from __future__ import annotations

import lazy_loader

from npusim.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
