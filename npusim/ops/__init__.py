"""The operators: each checks its arguments, chooses a tiling and launches kernels.

Every operator has a card, which declares it once (``npusim.ops.card``).
"""

from __future__ import annotations

from typing import Any

# All at once: imported on its own, a module of an operator's name would take the place of the
# function. ``npusim`` imports this package when it is first used.
from npusim.ops import card
from npusim.ops.conv2d_backprop_filter import CARD as _FILTER
from npusim.ops.conv2d_backprop_filter import conv2d_backprop_filter
from npusim.ops.conv3d_backprop_input import CARD as _INPUT
from npusim.ops.conv3d_backprop_input import conv3d_backprop_input
from npusim.ops.convolution import CARD as _FORWARD
from npusim.ops.convolution import convolution
from npusim.ops.convolution_backward import CARD as _BACKWARD
from npusim.ops.convolution_backward import convolution_backward
from npusim.ops.deconv_grad_filter import CARD as _DECONV
from npusim.ops.deconv_grad_filter import deconv_grad_filter
from npusim.ops.im2col_backward import CARD as _FOLD
from npusim.ops.im2col_backward import im2col_backward
from npusim.ops.matmul import CARD as _MATMUL
from npusim.ops.matmul import matmul

#: Name -> card of every operator that ships.
CARDS: dict[str, card.Card[Any]] = {
    one.name: one for one in (_FILTER, _INPUT, _FORWARD, _BACKWARD, _DECONV, _FOLD, _MATMUL)
}

#: Name -> function of every operator that ships.
OPERATORS = {name: one.function for name, one in CARDS.items()}

__all__ = [
    "CARDS",
    "OPERATORS",
    "conv2d_backprop_filter",
    "conv3d_backprop_input",
    "convolution",
    "convolution_backward",
    "deconv_grad_filter",
    "im2col_backward",
    "matmul",
    "operators",
]


def operators() -> list[str]:
    """Names of the operators that ship, sorted."""
    return sorted(OPERATORS)
