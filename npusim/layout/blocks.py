"""Axes cut into equal blocks: feature maps (5HD and 6HD), matrices (NZ), and checks of arguments.

Feature maps are NCHW or NHWC, 5HD (NC1HWC0) and 6HD (NDC1HWC0); FRACTAL_NZ is the matrix layout of
cube operands in L1 and of results in L0C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div

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
    """Raise unless ``x`` has as many axes as ``axes`` (comma-separated names) says, or behind
    ``...`` at least so many."""
    some = axes.startswith("...")
    rank = axes.count(",") + (not some)
    if x.ndim < rank or (x.ndim > rank and not some):
        want = f"({axes})" if some else f"{rank} axes ({axes})"
        raise ArgumentError(
            f"{function}: the array has shape {x.shape}, expected {want}; reshape it"
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


# -- feature maps ------------------------------------------------------------------------------


def to_5hd(x: Array, c0: int) -> Array:
    """Turn (N, C, H, W) into (N, C1, H, W, C0): channel c goes to block c div C0, place c mod C0.

    A 1-D feature map is one with H = 1.
    """
    return _blocked("to_5hd", x, "N, C, H, W", c0)


def from_5hd(x: Array, channels: int) -> Array:
    """Turn (N, C1, H, W, C0) into (N, ``channels``, H, W), dropping the padding."""
    return _plain("from_5hd", x, "N, C1, H, W, C0", channels)


def to_6hd(x: Array, c0: int) -> Array:
    """Turn (N, C, D, H, W) into (N, D, C1, H, W, C0); channels go where ``to_5hd`` puts them."""
    return _blocked("to_6hd", x, "N, C, D, H, W", c0)


def from_6hd(x: Array, channels: int) -> Array:
    """Turn (N, D, C1, H, W, C0) into (N, ``channels``, D, H, W), dropping the padding."""
    return _plain("from_6hd", x, "N, D, C1, H, W, C0", channels)


def _blocked(function: str, x: Array, axes: str, c0: int) -> Array:
    """Channels in blocks of ``c0``: C1 goes before H, C0 to the end."""
    check_rank(function, x, axes)
    check_positive(function, "c0", (c0,))
    return fresh(np.moveaxis(split_axis(x, 1, c0), (1, 2), (-4, -1)))


def _plain(function: str, x: Array, axes: str, channels: int) -> Array:
    """The other way round."""
    check_rank(function, x, axes)
    check_positive(function, "channels C0", (channels, x.shape[-1]))
    *lead, _, h, w, c0 = x.shape
    why = f"{channels} channels in blocks of {c0}"
    check_shape(function, x, (*lead, ceil_div(channels, c0), h, w, c0), why)
    return fresh(join_axis(np.moveaxis(x, (-4, -1), (1, 2)), 1, channels))


def nchw_to_nhwc(x: Array) -> Array:
    """Turn (N, C, H, W) into (N, H, W, C)."""
    check_rank("nchw_to_nhwc", x, "N, C, H, W")
    return fresh(x.transpose(0, 2, 3, 1))


def nhwc_to_nchw(x: Array) -> Array:
    """Turn (N, H, W, C) into (N, C, H, W)."""
    check_rank("nhwc_to_nchw", x, "N, H, W, C")
    return fresh(x.transpose(0, 3, 1, 2))


# -- matrices ----------------------------------------------------------------------------------


def to_nz(m: Array, c0: int) -> Array:
    """Turn (..., H, W) into (..., W1, H1, 16, C0): columns of fractals, row-major inside."""
    check_rank("to_nz", m, "..., H, W")
    check_positive("to_nz", "c0", (c0,))
    lead = m.ndim - 2
    blocks = split_axis(split_axis(m, lead + 1, c0), lead, FRACTAL)  # ..., H1, 16, W1, C0
    return fresh(blocks.swapaxes(lead + 1, lead + 2).swapaxes(lead, lead + 1))


def from_nz(z: Array, rows: int, columns: int) -> Array:
    """Turn (..., W1, H1, 16, C0) into (..., ``rows``, ``columns``), dropping the padding."""
    check_rank("from_nz", z, "..., W1, H1, 16, C0")
    c0 = z.shape[-1]
    check_positive("from_nz", "rows columns C0", (rows, columns, c0))
    lead = z.ndim - 4
    want = (*z.shape[:lead], ceil_div(columns, c0), ceil_div(rows, FRACTAL), FRACTAL, c0)
    check_shape("from_nz", z, want, f"a {rows} x {columns} matrix with C0 = {c0}")
    blocks = z.swapaxes(lead, lead + 1).swapaxes(lead + 1, lead + 2)  # ..., H1, 16, W1, C0
    return fresh(join_axis(join_axis(blocks, lead, rows), lead + 1, columns))
