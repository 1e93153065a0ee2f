"""A small call of every operator, shapes only."""

from __future__ import annotations

from typing import Any

import npusim
from npusim.call.spec import Spec
from npusim.ops import CARDS, OPERATORS


def spec(*shape: int, dtype: str = "fp16") -> Spec:
    return npusim.spec(shape, dtype)


PLANE = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}
VOLUME = {"strides": [1, 1, 1], "pads": [1] * 6, "dilations": [1] * 5}
MAP, MAP3 = spec(1, 1, 6, 6, 16), spec(1, 3, 1, 6, 6, 16)
W, W3 = spec(9, 1, 16, 16), spec(27, 1, 16, 16)
SIZES, SIZES3, DEEP = [16, 16, 3, 3], [16, 16, 3, 3, 3], [16, 1, 3, 3]
PARAM = [1, 6, 6, 16, 1, 4, 4, 16, 3, 3, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
NHWC, SMALL = spec(1, 6, 6, 16, dtype="fp32"), spec(1, 4, 4, 16, dtype="fp32")
IMAGE = spec(1, 16, 6, 6)

#: A small call of every operator.
CALLS: dict[str, tuple[Any, ...]] = {
    "conv2d_backprop_filter": (MAP, MAP, SIZES, PLANE),
    "conv2d_backprop_input": (W, MAP, SIZES, [1, 16, 6, 6], PLANE),
    "conv3d_backprop_filter": (MAP3, MAP3, SIZES3, VOLUME),
    "conv3d_backprop_input": (W3, MAP3, SIZES3, [1, 3, 6, 6, 16], VOLUME | {"strides": [1] * 5}),
    "conv_grad_filter": (SMALL, NHWC, PARAM),
    "conv_grad_input": (SMALL, spec(1, 144, 16, dtype="fp32"), PARAM),
    "convolution": (IMAGE, spec(16, 16, 3, 3)),
    "convolution_backward": (spec(1, 16, 4, 4), IMAGE, spec(16, 16, 3, 3)),
    "deconv_grad_filter": (spec(1, 8, 8, 16, dtype="fp32"), NHWC, [*PARAM[:5], 8, 8, *PARAM[7:]]),
    "deconv_grad_input": (
        *(spec(1, 8, 8, 16, dtype="fp32"), spec(1, 144, 16, dtype="fp32")),
        [*PARAM[:5], 8, 8, *PARAM[7:]],
    ),
    "depthwise_conv2d_backprop_filter": (MAP, MAP, DEEP, PLANE),
    "depthwise_conv2d_backprop_input": (W, MAP, DEEP, [1, 16, 6, 6], PLANE),
    "im2col": (IMAGE, [3, 3], [1, 1], [0, 0], [1, 1]),
    "im2col_backward": (spec(1, 144, 16), [6, 6], [3, 3], [1, 1], [0, 0], [1, 1]),
    "matmul": (spec(32, 32), spec(32, 32)),
}


def called(name: str, *changed: Any, **options: Any) -> npusim.Result:
    device = CARDS[name].device or "ascend910"
    return OPERATORS[name](*(changed or CALLS[name]), **({"device": device} | options))
