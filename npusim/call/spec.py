"""Operands of a call: arrays, or shapes without data for runs that are only timed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
from msgspec import Struct

from npusim.base.dtypes import DType, dtype
from npusim.base.errors import ArgumentError

Array = npt.NDArray[Any]


class Spec(Struct, frozen=True):
    """Stands for an array of ``shape`` and ``dtype``; a call given one is timing-only."""

    shape: tuple[int, ...]
    dtype: DType


#: What operators accept as a tensor.
Operand = Array | Spec


def spec(shape: Iterable[int], dtype_name: Any) -> Spec:
    """An array's shape and type without its data: the run is timing-only, at any size."""
    try:
        sizes = tuple(int(n) for n in shape)
    except (TypeError, ValueError):
        raise ArgumentError(f"spec shape is {shape!r}; give its sizes, such as (64, 64)") from None
    if any(n < 0 for n in sizes):
        raise ArgumentError(f"spec shape is {sizes}; sizes cannot be negative")
    return Spec(sizes, dtype(dtype_name))
