"""conv3d_backprop_filter: filter gradient from 6HD operands, fp32 FRACTAL_Z_3D out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter, Tiling
from npusim.layout import group_dict
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

FORM = Form(
    *(("x", "out_backprop"), ("filter_size",), "pads", "float32"),
    optional={"groups": 1, "group_dict": None},
)


def conv3d_backprop_filter(
    x: Array | Spec,
    out_backprop: Array | Spec,
    filter_size: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 3-D convolution's filter.

    ``x`` (N, D, C1, H, W, 16) and ``out_backprop`` (N, Do, Co1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_size`` is [Cout, Cin / groups, KD, KH, KW].
    ``para_dict``: strides [sD, sH, sW]; pads [front, tail, up, down, left, right]; dilations
    [1, 1, 1, dH, dW]; groups (default 1); group_dict (optional; it follows from the sizes and must
    agree); res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (real_g, KD * cin1_g * KH * KW, cout_g, 16) fp32, byte for byte
    FRACTAL_Z_3D with C0 = 16, with zeros in blocks between groups. The signature is that of the
    vendor's tensor compiler; its limits are assumed to be those of its sister functions. Keywords
    are those of ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the
    argument.
    """
    read, dy = operand(x), operand(out_backprop)
    call = CARD.begin(options, x=read, out_backprop=dy)
    return fractal_gradient(
        call, FORM.facts(read, dy, filter_size, para_dict), convolution, read, dy
    )


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that facts describe which the limits have let pass."""
    n, depth, _, *plane, _ = checked["x.shape"]
    cin = checked["filter_size"][1] * checked["groups"]
    parts = checked["strides"], checked["pads"], checked["dilations"][2:]
    return described(n, cin, (depth, *plane), checked["filter_size"], parts)


def _call(c: Convolution, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    para = FORM.para(c, groups=c.groups, group_dict=group_dict(c.plan))
    return conv3d_backprop_filter(given["x"], given["dy"], c.w_shape, para, **options)


CARD: Card[Convolution] = Card(
    function=conv3d_backprop_filter,
    options=(LAYER, BATCH, *SIZES),
    problem=stated_blocked(3),
    inputs=(blocked_map("x", 3, itself), blocked_map("dy", 3, itself)),
    outputs=lambda _: (fractal_filter_grad(3, itself),),
    call=_call,
    dtypes=(FP16,),
    tilings={ConvBackpropFilter: Tiling},
    cases=(Case(needs="fp16", calls=(EXAMPLES[3],)),),
    example="""npusim run conv3d_backprop_filter --device ascend910 --cin 32 --cout 16 \\
      --size 4x14x14 --kernel 3 --padding 1 --check""",
)
