"""Multiply-adds that a problem needs, apart from those that kernels execute on padding."""

from __future__ import annotations

from typing import Any

import npusim
from npusim import ops
from npusim.results import Result


def backward(
    out: tuple[int, ...], size: tuple[int, ...], weight: tuple[int, ...], **options: Any
) -> Result:
    dy, x, w = (npusim.spec(shape, "fp16") for shape in (out, size, weight))
    return ops.convolution_backward(dy, x, w, device="ascend910b2", **options)


PARA = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
PARAM = [2, 6, 5, 8, 2, 13, 11, 12, 3, 3, 2, 2, 1, 1, 1, 1, 4, 0, 0, 0]


def test_each_gradient_needs_what_the_convolution_needs() -> None:
    result = backward((2, 20, 9, 11), (2, 12, 18, 22), (20, 12, 3, 3), stride=2, padding=1)
    each = 2 * 20 * 12 * (8 + 9 + 9) * (10 + 11 + 11)  # by tap, without those on padding
    assert result.useful_macs == {"conv_backprop_input": each, "conv_backprop_filter": each}
    assert all(run.macs > each for run in result.runs if run.macs), "channels are padded"


def test_a_transposed_layer_needs_its_input_positions() -> None:
    result = backward(
        (2, 8, 13, 15), (2, 12, 7, 8), (12, 8, 3, 3), stride=2, padding=1, transposed=True
    )
    each = 2 * 12 * 8 * (6 + 7 + 6) * (7 + 8 + 7)
    assert result.useful_macs == {"conv_forward": each, "conv_backprop_filter": each}
