"""depthwise_conv2d_backprop_filter: filter gradient of a depth-wise layer, blocked layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter, Tiling
from npusim.ops.arguments import Form, operand
from npusim.ops.card import Card, Case
from npusim.ops.conv2d_backprop_filter import convolution
from npusim.ops.gradients import fractal_gradient
from npusim.ops.layer import (
    BATCH,
    DEPTHWISE_EXAMPLE,
    DEPTHWISE_SIZES,
    LAYER,
    blocked_map,
    fractal_filter_grad,
    itself,
    stated_depthwise,
)
from npusim.results import Result

FORM = Form(("input_x", "out_backprop"), ("filter_sizes",), "padding", "float32")


def depthwise_conv2d_backprop_filter(
    input_x: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a depth-wise 2-D convolution's filter.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, C1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_sizes`` is [C, 1, KH, KW]: every channel has
    one filter. ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations
    [1, 1, dH, dW]; res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (C1, KH * KW, 16, 16) fp32, byte for byte FRACTAL_Z: what stands
    off the diagonal of a fractal is zero. The cube computes it as the gradient of C groups,
    sixteen to a fractal. No page of this function was at hand: signature and limits are assumed to
    be those of ``conv2d_backprop_filter``. Keywords are those of ``npusim.call.Options``. Raises
    ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    x, dy = operand(input_x), operand(out_backprop)
    call = CARD.begin(options, input_x=x, out_backprop=dy)
    return fractal_gradient(call, FORM.facts(x, dy, filter_sizes, para_dict), convolution, x, dy)


def _call(c: Convolution, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    x, dy = given["x"], given["dy"]
    return depthwise_conv2d_backprop_filter(x, dy, c.w_shape, FORM.para(c), **options)


CARD: Card[Convolution] = Card(
    function=depthwise_conv2d_backprop_filter,
    options=(LAYER, BATCH, *DEPTHWISE_SIZES),
    problem=stated_depthwise,
    inputs=(blocked_map("x", 2, itself), blocked_map("dy", 2, itself)),
    outputs=lambda _: (fractal_filter_grad(2, itself),),
    call=_call,
    dtypes=(FP16,),
    tilings={ConvBackpropFilter: Tiling},
    cases=(Case(needs="fp16", calls=(DEPTHWISE_EXAMPLE,)),),
    example="""npusim run depthwise_conv2d_backprop_filter --device ascend910 \\
      --layer mobilenet_v1/dw5 --batch 2 --check""",
)
