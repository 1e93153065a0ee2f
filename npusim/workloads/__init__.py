"""Networks as graphs of layers: from the files that ship, from one's own, from ONNX and PyTorch.

The stub beside this file lists the names.
"""

from __future__ import annotations

from npusim.base.public import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
