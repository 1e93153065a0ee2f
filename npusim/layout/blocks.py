"""What all layouts are made of: an axis cut into equal blocks, and the checks of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import ArgumentError
from npusim.integers import ceil_div

Array = npt.NDArray[Any]

#: Side of a fractal that is not C0; the same for every dtype.
FRACTAL = 16


def split_axis(x: Array, axis: int, size: int) -> Array:
    """Cut ``axis`` (not negative) into (blocks, ``size``), filling the last block with zeros."""
    length = x.shape[axis]
    blocks = ceil_div(length, size)
    if blocks * size != length:
        shape = (*x.shape[:axis], blocks * size, *x.shape[axis + 1 :])
        padded = np.zeros(shape, x.dtype)
        padded[(slice(None),) * axis + (slice(length),)] = x
        x = padded
    return x.reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])


def join_axis(x: Array, axis: int, length: int) -> Array:
    """Undo ``split_axis``: join ``axis`` and the next, keep the first ``length`` elements."""
    whole = x.shape[axis] * x.shape[axis + 1]
    joined = x.reshape(*x.shape[:axis], whole, *x.shape[axis + 2 :])
    return joined[(slice(None),) * axis + (slice(length),)]


def fresh(x: Array) -> Array:
    """Return a contiguous copy, never a view of the caller's array."""
    return np.array(x, order="C")


def check_rank(function: str, x: Array, axes: str) -> None:
    """Raise unless ``x`` has as many axes as ``axes`` (comma-separated names) says."""
    rank = len(axes.split(","))
    if x.ndim != rank:
        raise ArgumentError(
            f"{function}: the array has shape {x.shape}, expected {rank} axes ({axes}); reshape it"
        )


def check_shape(function: str, x: Array, want: tuple[int, ...], why: str) -> None:
    """Raise unless ``x`` has exactly the shape ``want``, which follows from ``why``."""
    if x.shape != want:
        raise ArgumentError(
            f"{function}: the array has shape {x.shape}, expected {want} for {why}; "
            "correct the array or the sizes"
        )


def check_positive(function: str, names: str, values: Sequence[int]) -> None:
    """Raise unless all ``values``, named in ``names`` (blank-separated), are integers above 0."""
    for name, value in zip(names.split(), values, strict=True):
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise ArgumentError(f"{function}: {name} is {value!r}, it must be an integer above 0")
