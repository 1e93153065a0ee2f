"""conv2d_backprop_filter: filter gradient from 5HD operands, fp32 FRACTAL_Z out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.call import Call
from npusim.call.spec import Array, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16, FP32
from npusim.layout import mask_off_diagonal
from npusim.limits.facts import tensor_facts, type_name
from npusim.ops.arguments import frozen, operand, parameters
from npusim.ops.gradients import launch_filter_gradient
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
    in the off-diagonal blocks, which no reader uses; they are returned as zeros.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.conv_backprop_filter.Tiling``. Raises ``RuleError`` naming the argument that
    the documentation refuses or that does not fit the others, ``ArgumentError`` for the rest.
    """
    x, dy = operand(input_x), operand(out_backprop)
    call = Call.of(conv2d_backprop_filter, options, (x, dy))
    checked = facts(x, dy, filter_sizes, para_dict)
    call.check(checked)
    call.require_dtype(FP16)
    c = convolution(checked)
    plan = c.plan
    size = (plan.real_groups, plan.cin1_g * c.taps, plan.cout_g, 16)
    tensors = (call.input("x", x, FP16), call.input("dy", dy, FP16), call.output("dw", size, FP32))
    launch_filter_gradient(call, c.lifted(), *tensors)
    if plan.mag_factor > 1:
        call.notes.append(
            f"groups share fractals ({plan.mag_factor} to a real group): off-diagonal blocks of "
            "the result are returned as zeros; the chip leaves unused sums there"
        )
    dw = call.arrays.get("dw")
    masked = mask_off_diagonal(dw, plan) if dw is not None and plan.mag_factor > 1 else dw
    return call.result({"grad_weight": masked}, _problem(c), FP16)


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
