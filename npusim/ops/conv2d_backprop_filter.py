"""conv2d_backprop_filter: filter gradient from 5HD operands, fp32 FRACTAL_Z out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.spec import Array, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16, FP32
from npusim.kernels.clear_blocks import ClearBlocks
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter, Tiling
from npusim.layout import fracz_grouped_to_oihw, from_5hd, to_5hd
from npusim.limits.facts import tensor_facts, type_name
from npusim.ops.arguments import frozen, operand, parameters
from npusim.ops.card import LIMITS, Card, Case, Input, Output, Sample, Stated
from npusim.ops.gradients import launch_filter_gradient, require_time
from npusim.ops.layer import BATCH, EXAMPLES, LAYER, SIZES, stated_layer
from npusim.reference import conv_filter_grad
from npusim.results import Result

_REQUIRED = ("strides", "padding", "dilations")
_OPTIONAL = {"groups": 1, "res_dtype": "float32", "kernel_name": "conv2d_backprop_filter"}


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
    checked = facts(x, dy, filter_sizes, para_dict)
    call.check(checked)
    call.require_dtype(FP16)
    c = convolution(checked)
    plan = c.plan
    size = (plan.real_groups, plan.cin1_g * c.taps, plan.cout_g, 16)
    tensors = (call.input("x", x, FP16), call.input("dy", dy, FP16), call.output("dw", size, FP32))
    require_time(call, c.lifted(), 1, FP16)
    launch_filter_gradient(call, c.lifted(), *tensors)
    if plan.mag_factor > 1:
        call.launch(ClearBlocks(tensors[2], plan))
        call.notes.append(
            f"groups share fractals ({plan.mag_factor} to a real group): {ClearBlocks.name} clears "
            "the off-diagonal blocks of the result, where the chip leaves unused sums and launches "
            "nothing"
        )
    outputs = {"grad_weight": call.arrays.get("dw")}
    return call.result(outputs, _problem(c), FP16, sizes=c.channel_blocks(16))


def facts(
    input_x: Any, out_backprop: Any, filter_sizes: Any, para_dict: Mapping[str, Any]
) -> dict[str, Any]:
    """What the limits are checked against; operands are anything with ``shape`` and ``dtype``."""
    para = parameters(para_dict, _REQUIRED, _OPTIONAL)
    return {
        **tensor_facts(input_x=input_x, out_backprop=out_backprop),
        "filter_sizes": frozen(filter_sizes),
        **{name: para[name] for name in (*_REQUIRED, "groups")},
        "res_dtype": type_name(para["res_dtype"]),
    }


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that facts describe which the limits have let pass."""
    n, _, height, width, _ = checked["input_x.shape"]
    cout, per_group, *kernel = checked["filter_sizes"]
    up, down, left, right = checked["padding"]
    return Convolution(
        n=n,
        cin=per_group * checked["groups"],
        cout=cout,
        spatial=(height, width),
        kernel=tuple(kernel),
        stride=checked["strides"],
        padding=((up, down), (left, right)),
        dilation=checked["dilations"][2:],
        groups=checked["groups"],
    )


def _problem(c: Convolution) -> str:
    """One line for reports."""
    (h, w), (ho, wo), (kh, kw) = c.spatial, c.out, c.kernel
    return (
        f"dw of {c.cin} -> {c.cout} channels, {kh}x{kw}, stride {list(c.stride)}, pad {c.sides}"
        f"{c.unusual}; x {c.n}x{h}x{w}, dy {c.n}x{ho}x{wo}; fp16 -> fp32"
    )


def _stated(stated: Stated) -> Convolution:
    """The convolution of a command line; operands of four axes show sizes."""
    shown = {name: array.shape for name, array in stated.arrays.items() if array.ndim == 4}
    return stated_layer(stated, shown, 2)


def _call(c: Convolution, given: Mapping[str, Array | Spec], options: dict[str, Any]) -> Result:
    para = {
        "strides": c.stride,
        "padding": c.sides,
        "dilations": (1, 1, *c.dilation),
        "groups": c.groups,
    }
    return conv2d_backprop_filter(given["x"], given["dy"], c.w_shape, para, **options)


def _expected(sample: Sample[Convolution]) -> Array:
    c, x, dy = sample.problem, sample.arrays["x"], sample.arrays["dy"]
    return conv_filter_grad(x, dy, c.kernel, c.stride, c.padding, c.dilation, c.groups)


def _unpacked(c: Convolution, dw: Array) -> Array:
    return fracz_grouped_to_oihw(
        dw, c.cout, c.cin // c.groups, (c.kernel[0], c.kernel[1]), c.groups, c.c0
    )


CARD: Card[Convolution] = Card(
    function=conv2d_backprop_filter,
    options=(LAYER, BATCH, *SIZES),
    problem=_stated,
    inputs=(
        Input(
            name="x",
            axes="NCHW",
            shape=lambda c: c.x_shape,
            layout="5HD",
            packed=lambda c: (c.n, c.cin1, *c.spatial, c.c0),
            pack=lambda c, x: to_5hd(x, c.c0),
            unpack=lambda c, x: from_5hd(x, c.cin),
        ),
        Input(
            name="dy",
            axes="NCHW",
            shape=lambda c: c.dy_shape,
            layout="5HD",
            packed=lambda c: (c.n, c.cout1, *c.out, c.c0),
            pack=lambda c, dy: to_5hd(dy, c.c0),
            unpack=lambda c, dy: from_5hd(dy, c.cout),
        ),
    ),
    outputs=lambda _: (
        Output(
            name="grad_weight",
            layout="FRACTAL_Z",
            axes="(Cout, Cin/groups, KH, KW)",
            unpack=_unpacked,
            expected=_expected,
            limit=lambda _: LIMITS["fp32"],
        ),
    ),
    call=_call,
    dtypes=(FP16,),
    tilings={ConvBackpropFilter: Tiling},
    cases=(Case(needs="fp16", calls=(EXAMPLES[2],)),),
    example="""npusim run conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 \\
      --batch 2 --check --trace trace.json""",
)
