"""npusim: a cycle-approximate NPU simulator: numbers, cycles and traffic from one program."""

from __future__ import annotations

from npusim import ops
from npusim.device.catalog import devices, load_device
from npusim.errors import (
    ArgumentError,
    CapacityError,
    ConfigError,
    NpusimError,
    ProgramError,
)
from npusim.ops import operators
from npusim.results import Result
from npusim.session import simulate, spec
from npusim.version import __version__

__all__ = [
    "ArgumentError",
    "CapacityError",
    "ConfigError",
    "NpusimError",
    "ProgramError",
    "Result",
    "__version__",
    "devices",
    "load_device",
    "operators",
    "ops",
    "simulate",
    "spec",
]
