"""Convert a tensor from one float type to another, rounded to nearest even.

    y[i] = x[i] as the type of y

Layouts: any; x and y are read and written in the order of their bytes. It is the expression that
only converts, of 16 to 16 bits by way of fp32; ``elementwise`` has its loop nest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.language import ArgumentError, Tensor


@dataclass(frozen=True)
class Cast(Elementwise):
    """The kernel that ``cast`` makes."""

    name: ClassVar[str] = "cast"
    library: ClassVar[tuple[str, ...]] = ("Cast",)

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        return 1, 1, prod(self.reads[0].shape), 1


def cast(x: Tensor, y: Tensor, *, saturate: bool = False) -> Cast:
    """Convert ``x`` to the type of ``y``; both hold equally many elements, at least one.

    ``saturate`` gives the largest finite value where an fp16 result overflows, not infinity
    (``Device.saturates`` says which a chip does). Raises ``ArgumentError`` for other tensors.
    """
    count = prod(x.shape)
    if not count or count != prod(y.shape):
        raise ArgumentError(
            f"cast: {x.name} has shape {x.shape}, {y.name} {y.shape}; both must hold the same "
            "number of elements, at least one"
        )
    if x.dtype == y.dtype or "int" in (x.dtype.kind, y.dtype.kind):
        raise ArgumentError(
            f"cast: {x.name} is {x.dtype}, {y.name} {y.dtype}; they must be two different "
            "types of fp16, bf16, fp32"
        )
    return Cast("cast", (Step(y.name, "cast", x.name),), (x,), (y,), saturate=saturate)
