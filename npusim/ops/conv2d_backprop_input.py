"""conv2d_backprop_input: input gradient from a 5HD gradient and a FRACTAL_Z filter."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16, DType, dtype
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.implicit_gemm import Tiling
from npusim.layout import from_5hd, from_fracz_3d, group_dict, to_5hd, to_fracz_3d
from npusim.limits.facts import tensor_facts, type_name
from npusim.ops.arguments import frozen, operand, parameters
from npusim.ops.card import LIMITS, Card, Case, Input, Output, Sample, Stated
from npusim.ops.gradients import launch_product, require_time
from npusim.ops.layer import BATCH, EXAMPLES, LAYER, SIZES, stated_layer
from npusim.reference import conv_input_grad
from npusim.results import Result

_REQUIRED = ("strides", "padding", "dilations")
_OPTIONAL = {"res_dtype": "float16", "kernel_name": "conv2d_backprop_input", "group_dict": None}


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
    checked = facts(w, dy, filter_sizes, input_sizes, para_dict)
    call.check(checked)
    call.require_dtype(FP16)
    plane, out_dtype = convolution(checked), dtype(checked["res_dtype"])
    c = plane.lifted()
    (height, width), blocks = plane.spatial, plane.cin1
    dx = call.output("dx", (c.n, 1, blocks, height, width, 16), out_dtype)
    n, *rest = dy.shape
    dy_gm = call.input("dy", dy, FP16, (n, 1, *rest))
    w_gm = call.input("filter", w, FP16)
    require_time(call, c, 1, FP16)
    launch_product(call, ConvBackpropInput, c, dy_gm, w_gm, dx)
    array = call.arrays.get("dx")
    out = array.reshape(n, blocks, height * width, 16) if array is not None else None
    sizes = plane.channel_blocks(16)
    return call.result({"grad_input": out}, _problem(plane, out_dtype), FP16, sizes=sizes)


def facts(
    filters: Any,
    out_backprop: Any,
    filter_sizes: Any,
    input_sizes: Any,
    para_dict: Mapping[str, Any],
) -> dict[str, Any]:
    """What the limits are checked against; operands are anything with ``shape`` and ``dtype``.

    Groups need not be stated: they follow from the sizes.
    """
    para = parameters(para_dict, _REQUIRED, _OPTIONAL)
    stated = {"group_dict": para["group_dict"]} if para["group_dict"] is not None else {}
    return {
        **tensor_facts(filters=filters, out_backprop=out_backprop),
        "filter_sizes": frozen(filter_sizes),
        "input_sizes": frozen(input_sizes),
        **{name: para[name] for name in _REQUIRED},
        "res_dtype": type_name(para["res_dtype"]),
        **stated,
    }


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that facts describe which the limits have let pass."""
    cout, per_group, *kernel = checked["filter_sizes"]
    n, cin, *spatial = checked["input_sizes"]
    up, down, left, right = checked["padding"]
    return Convolution(
        n=n,
        cin=cin,
        cout=cout,
        spatial=tuple(spatial),
        kernel=tuple(kernel),
        stride=checked["strides"],
        padding=((up, down), (left, right)),
        dilation=checked["dilations"][2:],
        groups=cin // per_group,
    )


def _problem(c: Convolution, dtype: DType) -> str:
    """One line for reports."""
    (h, w), (ho, wo), (kh, kw) = c.spatial, c.out, c.kernel
    return (
        f"dx of {c.cin} -> {c.cout} channels, {kh}x{kw}, stride {list(c.stride)}, pad {c.sides}"
        f"{c.unusual}; x {c.n}x{h}x{w}, dy {c.n}x{ho}x{wo}; fp16"
        f"{'' if dtype is FP16 else f' -> {dtype}'}"
    )


def _stated(stated: Stated) -> Convolution:
    """The convolution of a command line; operands of four axes show sizes."""
    shown = {name: array.shape for name, array in stated.arrays.items() if array.ndim == 4}
    return stated_layer(stated, shown, 2)


def _call(c: Convolution, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    para = {
        "strides": c.stride,
        "padding": c.sides,
        "dilations": (1, 1, *c.dilation),
        "group_dict": group_dict(c.plan),
    }
    size = (c.n, c.cin, *c.spatial)
    return conv2d_backprop_input(given["w"], given["dy"], c.w_shape, size, para, **options)


def _expected(sample: Sample[Convolution]) -> Array:
    c, dy, w = sample.problem, sample.arrays["dy"], sample.arrays["w"]
    return conv_input_grad(dy, w, c.x_shape, c.stride, c.padding, c.dilation, c.groups)


def _fractals(c: Convolution) -> tuple[int, ...]:
    """Shape of the filter in FRACTAL_Z."""
    plan = c.plan
    return (plan.real_groups * plan.cin1_g * prod(c.kernel), plan.cout_g // 16, 16, 16)


def _packed(c: Convolution, w: Array) -> Array:
    """A filter as FRACTAL_Z, which is FRACTAL_Z_3D of depth 1."""
    return to_fracz_3d(w[:, :, None], c.groups, c.c0)


def _plain(c: Convolution, w: Array) -> Array:
    cout, per_group, *kernel = c.w_shape
    return from_fracz_3d(w, (cout, per_group, 1, *kernel), c.groups, c.c0)[:, :, 0]


CARD: Card[Convolution] = Card(
    function=conv2d_backprop_input,
    options=(LAYER, BATCH, *SIZES),
    problem=_stated,
    inputs=(
        Input(
            name="dy",
            axes="NCHW",
            shape=lambda c: c.dy_shape,
            layout="5HD",
            packed=lambda c: (c.n, c.cout1, *c.out, c.c0),
            pack=lambda c, dy: to_5hd(dy, c.c0),
            unpack=lambda c, dy: from_5hd(dy, c.cout),
        ),
        Input(
            name="w",
            axes="Cout, Cin/groups, KH, KW",
            shape=lambda c: c.w_shape,
            layout="FRACTAL_Z",
            packed=_fractals,
            pack=_packed,
            unpack=_plain,
        ),
    ),
    outputs=lambda _: (
        Output(
            name="grad_input",
            layout="(N, C1, H*W, 16)",
            axes="(N, Cin, H, W)",
            unpack=lambda c, dx: from_5hd(dx.reshape(c.n, c.cin1, *c.spatial, c.c0), c.cin),
            expected=_expected,
            limit=lambda _: LIMITS["fp16"],
        ),
    ),
    call=_call,
    dtypes=(FP16,),
    tilings={ConvBackpropInput: Tiling},
    without=("deterministic",),
    cases=(Case(needs="fp16", calls=(EXAMPLES[2],)),),
    example="""npusim run conv2d_backprop_input --device ascend910 --layer resnet50/res4_3x3 \\
      --batch 2 --check""",
)
