"""The operators: they check arguments, derive shapes, choose a tiling and launch kernels."""

from __future__ import annotations

# All at once: imported on its own, a module of an operator's name would take the place of the
# function. ``npusim`` imports this package when it is first used.
from npusim.ops.conv2d_backprop_filter import conv2d_backprop_filter
from npusim.ops.conv3d_backprop_input import conv3d_backprop_input
from npusim.ops.convolution_backward import convolution_backward
from npusim.ops.deconv_grad_filter import deconv_grad_filter
from npusim.ops.im2col_backward import im2col_backward
from npusim.ops.matmul import matmul

#: Name -> function of every operator that ships.
OPERATORS = {
    "conv2d_backprop_filter": conv2d_backprop_filter,
    "conv3d_backprop_input": conv3d_backprop_input,
    "convolution_backward": convolution_backward,
    "deconv_grad_filter": deconv_grad_filter,
    "im2col_backward": im2col_backward,
    "matmul": matmul,
}

__all__ = [
    "OPERATORS",
    "conv2d_backprop_filter",
    "conv3d_backprop_input",
    "convolution_backward",
    "deconv_grad_filter",
    "im2col_backward",
    "matmul",
    "operators",
]


def operators() -> list[str]:
    """Names of the operators that ship, sorted."""
    return sorted(OPERATORS)
