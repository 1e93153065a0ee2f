"""One operator call: its operands, options, tiling, the kernels it launches, and their replay."""

from __future__ import annotations

from npusim.call.options import Options, Progress
from npusim.call.spec import Array, Operand, Spec, spec

__all__ = ["Array", "Operand", "Options", "Progress", "Spec", "spec"]
