"""The operators: each checks its arguments, chooses a tiling and launches kernels.

An operator's module has its function and its card, which declares it once (``npusim.ops.card``);
those of the tensor compiler share one, those of the DSP library, and im2col with its backward. The
stub beside this file has a line for each; a module is imported when a name of it is first used.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
