"""depthwise_conv2d_backprop_input: input gradient of a depth-wise layer, blocked layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.implicit_gemm import Tiling
from npusim.ops.arguments import Form, operand
from npusim.ops.card import Card, Case
from npusim.ops.conv2d_backprop_input import convolution
from npusim.ops.gradients import blocked_gradient
from npusim.ops.layer import (
    BATCH,
    DEPTHWISE_EXAMPLE,
    DEPTHWISE_SIZES,
    LAYER,
    blocked_input_grad,
    blocked_map,
    fractal_filter,
    itself,
    stated_depthwise,
)
from npusim.results import Result

FORM = Form(("filters", "out_backprop"), ("filter_sizes", "input_sizes"), "padding", "float16")


def depthwise_conv2d_backprop_input(
    filters: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    input_sizes: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a depth-wise 2-D convolution's input.

    ``filters`` is FRACTAL_Z (C1 * KH * KW, 1, 16, 16), weights on the diagonals of its fractals,
    and ``out_backprop`` 5HD (N, C1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing
    only). ``filter_sizes`` is [C, 1, KH, KW]: every channel has one filter; ``input_sizes`` is
    [N, C, H, W]. ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations
    [1, 1, dH, dW]; res_dtype "float16" or "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (N, C1, H * W, 16), channels padded with zeros. The cube computes
    it as the gradient of C groups, sixteen to a fractal. No page of this function was at hand:
    signature and limits are assumed to be those of ``conv2d_backprop_input``. Keywords are those of
    ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    w, dy = operand(filters), operand(out_backprop)
    call = CARD.begin(options, filters=w, out_backprop=dy)
    checked = FORM.facts(w, dy, filter_sizes, input_sizes, para_dict)
    return blocked_gradient(call, checked, convolution, dy, w)


def _call(c: Convolution, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    w, dy, size = given["w"], given["dy"], (c.n, c.cin, *c.spatial)
    return depthwise_conv2d_backprop_input(w, dy, c.w_shape, size, FORM.para(c), **options)


CARD: Card[Convolution] = Card(
    function=depthwise_conv2d_backprop_input,
    options=(LAYER, BATCH, *DEPTHWISE_SIZES),
    problem=stated_depthwise,
    inputs=(blocked_map("dy", 2, itself), fractal_filter(2, itself)),
    outputs=lambda _: (blocked_input_grad(2, itself),),
    call=_call,
    dtypes=(FP16,),
    tilings={ConvBackpropInput: Tiling},
    without=("deterministic",),
    cases=(Case(needs="fp16", calls=(DEPTHWISE_EXAMPLE,)),),
    example="""npusim run depthwise_conv2d_backprop_input --device ascend910 \\
      --layer mobilenet_v1/dw5 --batch 2 --check""",
)
