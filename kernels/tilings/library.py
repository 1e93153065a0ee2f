"""What ``tiling="library"`` is: the vendor's own rules where they are known, else a plain choice.

The rules are those of chips whose device file says so (``Device.library_rules``), for layers
without depth; elsewhere the choice is by closed forms among the forms of kernel that the vendor's
library has.
"""

from __future__ import annotations

from typing import Any

from npusim.kernels.tilings import library_filter, library_input
from npusim.kernels.tilings.library_910 import knows
from npusim.kernels.tilings.library_910_filter import filter_tiling
from npusim.kernels.tilings.library_910_forward import forward_tiling
from npusim.kernels.tilings.library_910_input import input_tiling
from npusim.language import Device, DType
from npusim.shapes.convolution import Convolution

#: Which of the vendor's rules tiled a layer, for reports.
_RULE = "tiled by the rule of the vendor's library"
_DEFAULT = "tiled by default, as the rule of the vendor's library has nothing for it"


def tiled(kernel: Any, c: Convolution, device: Device, cores: int, dtype: DType) -> tuple[Any, str]:
    """The tiling of a ``kernel`` class for the 3-D ``c``, and a note on which rule it is.

    Raises ``CapacityError`` if not even the smallest tile fits the device's buffers.
    """
    filters = kernel.computes == "weight"
    gradient = filters or kernel.rotated
    if knows(device, c, gradient=gradient):
        if not gradient:
            tiling, found = forward_tiling(c, device, cores)
            return tiling, _RULE if found else _DEFAULT
        if ruled := (filter_tiling if filters else input_tiling)(c, device, cores):
            return ruled, _RULE
    if filters:
        return library_filter.library_tiling(c, device, cores), ""
    return library_input.library_tiling(kernel.geometry_of(c), device, cores, dtype), ""
