"""conv3d_backprop_input: input gradient from a 6HD gradient and a FRACTAL_Z_3D filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.call import Call
from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16, DType, dtype
from npusim.errors import ArgumentError
from npusim.kernels.bias_add import BiasAdd
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.limits.facts import tensor_facts, type_name
from npusim.ops.arguments import frozen, operand, parameters
from npusim.ops.gradients import launch_product
from npusim.results import Result

_REQUIRED = ("strides", "pads", "dilations")
_OPTIONAL = {
    "res_dtype": "float16",
    "kernel_name": "conv3d_backprop_input",
    "group_dict": None,
    "tensor_bias": None,
}


def conv3d_backprop_input(
    filter: Array | Spec,
    out_backprop: Array | Spec,
    filter_size: Any,
    input_size: Any,
    para_dict: Mapping[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 3-D convolution's input.

    ``filter`` is FRACTAL_Z_3D (real_g * KD * cin1_g * KH * KW, cout_g / 16, 16, 16) and
    ``out_backprop`` 6HD (N, Do, Co1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing
    only). ``filter_size`` is [Cout, Cin / groups, KD, KH, KW], ``input_size`` [N, D, H, W, Cin].
    ``para_dict``: strides [1, sD, sH, sW, 1]; pads [front, tail, up, down, left, right];
    dilations [1, 1, dH, dW, 1]; res_dtype "float16" or "float32"; kernel_name (not used here);
    group_dict (its ``groups`` follow from filter_size and input_size and must agree); tensor_bias,
    Cin values of res_dtype added after rounding (optional).

    The result ``outputs[0]`` is (N, D, C1, H * W, 16), channels padded with zeros. Unlike
    the vendor's function, ``input_size`` is not written to. Keywords are those of
    ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    w, dy = operand(filter), operand(out_backprop)
    given = para_dict.get("tensor_bias")
    bias = None if given is None else operand(given)
    call = Call.of(conv3d_backprop_input, options, (w, dy, bias), without=("deterministic",))
    checked = facts(w, dy, filter_size, input_size, para_dict)
    if checked["group_dict"] is None:  # it follows from the sizes: nobody has to state it here
        del checked["group_dict"]
    call.check(checked)
    call.require_dtype(FP16)
    c, kind = convolution(checked), dtype(checked["res_dtype"])
    if bias is not None:
        _check_bias(c, kind, bias)
    (d, height, width), blocks = c.spatial, c.cin1
    dx = call.output("dx", (c.n, d, blocks, height, width, 16), kind)
    dy_gm, w_gm = call.input("dy", dy, FP16), call.input("filter", w, FP16)
    launch_product(call, ConvBackpropInput, c, dy_gm, w_gm, dx)
    size = (c.n, d, blocks, height * width, 16)
    if bias is not None:
        added = call.input("bias", bias, kind)
        call.launch(BiasAdd(call.view(dx, size), added, saturate=call.device.saturates))
    array = call.arrays.get("dx")
    out = array.reshape(size) if array is not None else None
    return call.result({"grad_input": out}, _problem(c, kind), FP16)


def facts(
    filter: Any, out_backprop: Any, filter_size: Any, input_size: Any, para_dict: Mapping[str, Any]
) -> dict[str, Any]:
    """What the limits are checked against; operands are anything with ``shape`` and ``dtype``."""
    para = parameters(para_dict, _REQUIRED, _OPTIONAL)
    return {
        **tensor_facts(filter=filter, out_backprop=out_backprop),
        "filter_size": frozen(filter_size),
        "input_size": frozen(input_size),
        **{name: para[name] for name in (*_REQUIRED, "group_dict")},
        "res_dtype": type_name(para["res_dtype"]),
    }


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The convolution that facts describe which the limits have let pass."""
    cout, per_group, *kernel = checked["filter_size"]
    n, *spatial, cin = checked["input_size"]
    pads = checked["pads"]
    return Convolution(
        n=n,
        cin=cin,
        cout=cout,
        spatial=tuple(spatial),
        kernel=tuple(kernel),
        stride=checked["strides"][1:4],
        padding=tuple(zip(pads[::2], pads[1::2], strict=True)),
        dilation=checked["dilations"][1:4],
        groups=cin // per_group,
    )


def _check_bias(c: Convolution, kind: DType, bias: Operand) -> None:
    """Raise unless the bias is one value of ``kind`` per input channel; no limit speaks of it."""
    given = dtype(bias.dtype)
    if tuple(bias.shape) != (c.cin,) or given is not kind:
        raise ArgumentError(
            f"tensor_bias is {given} of shape {tuple(bias.shape)}; it must be {kind} of ({c.cin},)"
        )


def _problem(c: Convolution, kind: DType) -> str:
    """One line for reports."""
    sizes, kernel = "x".join(map(str, c.spatial)), "x".join(map(str, c.kernel))
    groups = f", groups {c.groups}" if c.groups > 1 else ""
    return (
        f"dx of {c.cin} -> {c.cout} channels, {kernel}, stride {list(c.stride)}, pads {c.sides}"
        f"{groups}; x {c.n} x {sizes}; fp16{'' if kind is FP16 else f' -> {kind}'}"
    )
