"""FRACTAL_NZ, the matrix layout of cube operands in L1 and of results in L0C."""

from __future__ import annotations

from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.layout.blocks import (
    FRACTAL,
    Array,
    check_positive,
    check_shape,
    fresh,
    join_axis,
    split_axis,
)


def to_nz(m: Array, c0: int) -> Array:
    """Turn (..., H, W) into (..., W1, H1, 16, C0): columns of fractals, row-major inside."""
    if m.ndim < 2:
        raise ArgumentError(
            f"to_nz: the array has shape {m.shape}, expected (..., H, W); reshape it"
        )
    check_positive("to_nz", "c0", (c0,))
    lead = m.ndim - 2
    blocks = split_axis(split_axis(m, lead + 1, c0), lead, FRACTAL)  # ..., H1, 16, W1, C0
    return fresh(blocks.swapaxes(lead + 1, lead + 2).swapaxes(lead, lead + 1))


def from_nz(z: Array, rows: int, columns: int) -> Array:
    """Turn (..., W1, H1, 16, C0) into (..., ``rows``, ``columns``), dropping the padding."""
    if z.ndim < 4:
        raise ArgumentError(
            f"from_nz: the array has shape {z.shape}, expected (..., W1, H1, 16, C0); reshape it"
        )
    c0 = z.shape[-1]
    check_positive("from_nz", "rows columns C0", (rows, columns, c0))
    lead = z.ndim - 4
    want = (*z.shape[:lead], ceil_div(columns, c0), ceil_div(rows, FRACTAL), FRACTAL, c0)
    check_shape("from_nz", z, want, f"a {rows} x {columns} matrix with C0 = {c0}")
    blocks = z.swapaxes(lead, lead + 1).swapaxes(lead + 1, lead + 2)  # ..., H1, 16, W1, C0
    return fresh(join_axis(join_axis(blocks, lead, rows), lead + 1, columns))
