"""conv2d_backprop_filter: filter gradient from 5HD operands, fp32 FRACTAL_Z out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.spec import Array, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter, Tiling
from npusim.ops.arguments import Form, operand
from npusim.ops.card import Card, Case
from npusim.ops.gradients import fractal_gradient
from npusim.ops.layer import (
    BATCH,
    EXAMPLES,
    LAYER,
    SIZES,
    blocked_map,
    described,
    fractal_filter_grad,
    itself,
    stated_blocked,
)
from npusim.results import Result

FORM = Form(("input_x", "out_backprop"), ("filter_sizes",), "padding", "float32", {"groups": 1})


def conv2d_backprop_filter(
    input_x: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 2-D convolution's filter.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, Co1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_sizes`` is [Cout, Cin / groups, KH, KW].
    ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW];
    groups (default 1); res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (real_g, cin1_g * KH * KW, cout_g, 16) fp32, byte for byte
    FRACTAL_Z with C0 = 16. With several groups to a fractal the chip leaves sums across groups
    in the off-diagonal blocks, which no reader uses; here a kernel of its own clears them.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.conv_backprop_filter.Tiling``. Raises ``RuleError`` naming the argument that
    the documentation refuses or that does not fit the others, ``ArgumentError`` for the rest.
    """
    x, dy = operand(input_x), operand(out_backprop)
    call = CARD.begin(options, input_x=x, out_backprop=dy)
    return fractal_gradient(call, FORM.facts(x, dy, filter_sizes, para_dict), convolution, x, dy)


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that facts describe which the limits have let pass."""
    n, _, height, width, _ = checked["input_x.shape"]
    sizes = checked["filter_sizes"]
    cin = sizes[1] * checked.get("groups", sizes[0])  # a depth-wise layer has one for each channel
    parts = checked["strides"], checked["padding"], checked["dilations"][2:]
    return described(n, cin, (height, width), sizes, parts)


def _call(c: Convolution, given: Mapping[str, Array | Spec], options: dict[str, Any]) -> Result:
    para = FORM.para(c, groups=c.groups)
    return conv2d_backprop_filter(given["x"], given["dy"], c.w_shape, para, **options)


CARD: Card[Convolution] = Card(
    function=conv2d_backprop_filter,
    options=(LAYER, BATCH, *SIZES),
    problem=stated_blocked(2),
    inputs=(blocked_map("x", 2, itself), blocked_map("dy", 2, itself)),
    outputs=lambda _: (fractal_filter_grad(2, itself),),
    call=_call,
    dtypes=(FP16,),
    tilings={ConvBackpropFilter: Tiling},
    cases=(Case(needs="fp16", calls=(EXAMPLES[2],)),),
    example="""npusim run conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 \\
      --batch 2 --check --trace trace.json""",
)
