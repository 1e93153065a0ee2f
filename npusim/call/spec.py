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
    """Stands for an array of ``shape`` and ``dtype``; a call given one is timing-only.

    ``strides`` are the elements between neighbours along each axis where the tensor lies with gaps
    or with its axes in another order, None where it is contiguous (row-major without gaps).
    """

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None


#: What operators accept as a tensor.
Operand = Array | Spec


def native(array: Array) -> Array:
    """The array in the byte order of this machine; files of other machines may have the other."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def spec(shape: Iterable[int], dtype_name: Any, strides: Iterable[int] | None = None) -> Spec:
    """An array's shape and type without its data: the run is timing-only, at any size.

    ``strides`` say how the tensor lies: elements between neighbours along each axis, 0 where its
    elements are repeated; None is contiguous. Raises ``ArgumentError`` for anything else.
    """
    sizes = _integers("shape", shape, "give its sizes, such as (64, 64)")
    if any(n < 0 for n in sizes):
        raise ArgumentError(f"spec shape is {sizes}; sizes cannot be negative")
    if strides is None:
        return Spec(sizes, dtype(dtype_name))
    steps = _integers("strides", strides, "give elements for each axis, such as (64, 1)")
    if len(steps) != len(sizes) or any(n < 0 for n in steps):
        raise ArgumentError(
            f"spec strides are {steps} of shape {sizes}; there is one for each axis, of at least 0"
        )
    return Spec(sizes, dtype(dtype_name), None if is_contiguous(sizes, steps) else steps)


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if these strides, in elements, are those of a row-major tensor without gaps.

    Strides of axes of one element say nothing, nor do those of a tensor without elements.
    """
    if 0 in shape:
        return True
    apart = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != apart:
            return False
        apart *= size
    return True


def elements_overlap(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if two elements of a view may share memory, judged axis by axis from the shortest."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _integers(what: str, values: Iterable[int], way_out: str) -> tuple[int, ...]:
    """Sizes or strides; ``ArgumentError`` for what is none."""
    try:
        return tuple(int(n) for n in values)
    except (TypeError, ValueError):
        raise ArgumentError(f"spec {what} is {values!r}; {way_out}") from None
