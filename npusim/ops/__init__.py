"""The operators: they check arguments, derive shapes, choose a tiling and launch kernels."""

from __future__ import annotations

from npusim.ops.conv2d_backprop_filter import conv2d_backprop_filter
from npusim.ops.matmul import matmul

#: Name -> function of every operator that ships.
OPERATORS = {
    "conv2d_backprop_filter": conv2d_backprop_filter,
    "matmul": matmul,
}

__all__ = ["OPERATORS", "conv2d_backprop_filter", "matmul", "operators"]


def operators() -> list[str]:
    """Names of the operators that ship, sorted."""
    return sorted(OPERATORS)
