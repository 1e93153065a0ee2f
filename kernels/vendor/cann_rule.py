"""Reasons why the vendor's rules for convolution tilings do not apply, and shared arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod

from npusim.kernels.vendor.cann import CannTiling
from npusim.language import ArgumentError, Device, DType, ceil_div
from npusim.problem.convolution import Convolution

#: Buffers of the chips the rules are written for (Atlas A2 and A3 training chips).
_BUFFERS = {"L1": 512 * 1024, "L0A": 64 * 1024, "L0B": 64 * 1024, "L0C": 128 * 1024}

#: Elements of two bytes in one of two L0A (L0B) slots, and fp32 sums in L0C.
HALF = 16384
SUMS = 32768


def common_reason(shape: Convolution, device: Device, dtype: DType) -> str:
    """The reason why no rule applies to this convolution; empty where one may."""
    for name, size in _BUFFERS.items():
        memory = next((m for m in device.memories.values() if m.called == name), None)
        if memory is None or memory.size_bytes != size:
            have = f"{memory.size_bytes} B" if memory else "none"
            return f"the rule is for chips with {name} of {size} B, {device.name} has {have}"
    if dtype.bytes != 2:
        return f"the rule is for fp16 and bf16, this is {dtype} (the library's older scheme)"
    if shape.plan.real_groups > 1:
        return f"the rule is for one real group, this has {shape.plan.real_groups}"
    return ""


def refuse(reason: str) -> ArgumentError:
    """The error of a call whose tiling was to be the vendor's."""
    return ArgumentError(f"tiling 'production': {reason}; use 'auto' or give a tiling")


def rows_of(positions: int, width: int) -> int:
    """Rows that so many positions of a picture touch, wherever the rule takes them to begin."""
    return ceil_div(positions, width) + (positions % width > 0 and width % positions > 0)


class Product(ABC):
    """The matrix product that a gradient of ``c`` is, of elements of ``element`` bytes."""

    def __init__(self, c: Convolution, element: int) -> None:
        self.c = c
        self.element = element

    @abstractmethod
    def slot_a(self, t: CannTiling) -> int:
        """Bytes of one slot of A in L1."""

    @abstractmethod
    def slot_b(self, t: CannTiling) -> int:
        """Bytes of one slot of B in L1."""

    def fits(self, t: CannTiling, device: Device) -> bool:
        """True if both operands fit L1."""
        used = t.al1 * self.slot_a(t) + t.bl1 * self.slot_b(t)
        return used <= device.memory("L1").size_bytes
