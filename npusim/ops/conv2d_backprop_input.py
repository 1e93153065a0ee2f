"""conv2d_backprop_input: input gradient from a 5HD gradient and a FRACTAL_Z filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.implicit_gemm import Tiling
from npusim.layout import group_dict
from npusim.ops.arguments import Form, operand
from npusim.ops.card import Card, Case
from npusim.ops.gradients import blocked_gradient
from npusim.ops.layer import (
    BATCH,
    EXAMPLES,
    LAYER,
    SIZES,
    blocked_input_grad,
    blocked_map,
    described,
    fractal_filter,
    itself,
    stated_blocked,
)
from npusim.results import Result

FORM = Form(
    *(("filters", "out_backprop"), ("filter_sizes", "input_sizes"), "padding", "float16"),
    optional={"group_dict": None},
)


def conv2d_backprop_input(
    filters: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    input_sizes: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 2-D convolution's input.

    ``filters`` is FRACTAL_Z (real_g * cin1_g * KH * KW, cout_g / 16, 16, 16) and ``out_backprop``
    5HD (N, Co1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing only). ``filter_sizes``
    is [Cout, Cin / groups, KH, KW], ``input_sizes`` [N, Cin, H, W]. ``para_dict``: strides
    [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW]; res_dtype "float16" or
    "float32"; kernel_name (not used here); group_dict (its ``groups`` follow from the sizes and
    must agree).

    The result ``outputs[0]`` is (N, C1, H * W, 16), channels padded with zeros. The signature is
    that of the vendor's tensor compiler; its limits are assumed to be those of its sister
    functions. Keywords are those of ``npusim.call.Options``. Raises ``RuleError`` or
    ``ArgumentError`` naming the argument.
    """
    w, dy = operand(filters), operand(out_backprop)
    call = CARD.begin(options, filters=w, out_backprop=dy)
    checked = FORM.facts(w, dy, filter_sizes, input_sizes, para_dict)
    return blocked_gradient(call, checked, convolution, dy, w)


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that facts describe which the limits have let pass."""
    n, cin, *spatial = checked["input_sizes"]
    parts = checked["strides"], checked["padding"], checked["dilations"][2:]
    return described(n, cin, tuple(spatial), checked["filter_sizes"], parts)


def _call(c: Convolution, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    para = FORM.para(c, group_dict=group_dict(c.plan))
    size = (c.n, c.cin, *c.spatial)
    return conv2d_backprop_input(given["w"], given["dy"], c.w_shape, size, para, **options)


CARD: Card[Convolution] = Card(
    function=conv2d_backprop_input,
    options=(LAYER, BATCH, *SIZES),
    problem=stated_blocked(2),
    inputs=(blocked_map("dy", 2, itself), fractal_filter(2, itself)),
    outputs=lambda _: (blocked_input_grad(2, itself),),
    call=_call,
    dtypes=(FP16,),
    tilings={ConvBackpropInput: Tiling},
    without=("deterministic",),
    cases=(Case(needs="fp16", calls=(EXAMPLES[2],)),),
    example="""npusim run conv2d_backprop_input --device ascend910 --layer resnet50/res4_3x3 \\
      --batch 2 --check""",
)
