"""What a kernel author needs, from one place; ``docs/guide/kernel.md`` is the page about it.

A kernel is a frozen dataclass derived from ``Kernel``. Its ``plan`` declares buffers, says in a
``Tasks`` table which core does what, and gives the function that issues the program of one task
through ``Language``, the methods of which are the instructions.
"""

from __future__ import annotations

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, MX_BLOCK, DType
from npusim.base.errors import ArgumentError, CapacityError, ProgramError
from npusim.base.integers import IntArray, ceil_div, round_down, round_up
from npusim.machine.device.spec import Device
from npusim.machine.isa.dma import Window
from npusim.machine.isa.operands import (
    FRACTAL_BYTES,
    GmRegion,
    Place,
    Region,
    Slot,
    SlotRegion,
    Tensor,
)
from npusim.machine.isa.vector import BLOCK_BYTES
from npusim.machine.program.fixpipe import Line
from npusim.machine.program.kernel import (
    Alike,
    Column,
    Kernel,
    Least,
    Plan,
    Tasks,
    grid,
    in_pieces,
    in_runs,
)
from npusim.machine.program.language import BufferHandle, Language

__all__ = [
    "BF16",
    "BLOCK_BYTES",
    "FP16",
    "FP32",
    "FRACTAL_BYTES",
    "INT8",
    "INT32",
    "MX_BLOCK",
    "Alike",
    "ArgumentError",
    "BufferHandle",
    "CapacityError",
    "Column",
    "DType",
    "Device",
    "GmRegion",
    "IntArray",
    "Kernel",
    "Language",
    "Least",
    "Line",
    "Place",
    "Plan",
    "ProgramError",
    "Region",
    "Slot",
    "SlotRegion",
    "Tasks",
    "Tensor",
    "Window",
    "ceil_div",
    "grid",
    "in_pieces",
    "in_runs",
    "round_down",
    "round_up",
]
