"""conv2d_backprop_filter: filter gradient from 5HD operands, fp32 FRACTAL_Z out."""

from __future__ import annotations

from typing import Any

from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Array, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16, FP32, dtype
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.layout import mask_off_diagonal
from npusim.limits.table import check
from npusim.ops.arguments import integers, operand
from npusim.ops.filter_launch import launch_filter_gradient
from npusim.results import Result

_PARAMETERS = ("strides", "padding", "dilations", "groups", "res_dtype", "kernel_name")


def conv2d_backprop_filter(
    input_x: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Any,
    para_dict: dict[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 2-D convolution's filter.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, Co1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_sizes`` is [Cout, Cin / groups, KH, KW].
    ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW];
    groups (default 1); res_dtype "float32"; kernel_name (kept for reports only).

    The result ``outputs[0]`` is (real_g, cin1_g * KH * KW, cout_g, 16) fp32, byte for byte
    FRACTAL_Z with C0 = 16. With several groups to a fractal the chip leaves sums across groups
    in the off-diagonal blocks, which no reader uses; they are returned as zeros.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.conv_backprop_filter.Tiling``. Raises ``ArgumentError`` naming the argument
    that does not fit.
    """
    x, x_kind = operand("input_x", input_x, 5, "(N, C1, H, W, 16)")
    dy, dy_kind = operand("out_backprop", out_backprop, 5, "(N, Co1, Ho, Wo, 16)")
    for name, kind in (("input_x", x_kind), ("out_backprop", dy_kind)):
        if kind is not FP16:
            raise ArgumentError(f"{name} is {kind}; conv2d_backprop_filter takes fp16")
    shape = _shape(tuple(x.shape), tuple(dy.shape), filter_sizes, para_dict)
    wanted = Options.of(conv2d_backprop_filter, options)
    call = Call("conv2d_backprop_filter", wanted, any(isinstance(t, Spec) for t in (x, dy)))
    facts = {
        "input_x.shape": tuple(x.shape),
        "input_x.dtype": x_kind.name,
        "out_backprop.shape": tuple(dy.shape),
        "out_backprop.dtype": dy_kind.name,
        "filter_sizes": tuple(filter_sizes),
        "strides": tuple(para_dict["strides"]),
        "padding": tuple(para_dict["padding"]),
        "dilations": tuple(para_dict["dilations"]),
        "groups": para_dict.get("groups", 1),
        "res_dtype": "fp32",
    }
    call.notes += check("conv2d_backprop_filter", facts, call.device, wanted.rules)
    call.require_dtype(FP16)
    plan = shape.plan
    size = (plan.real_groups, plan.cin1_g * shape.taps, plan.cout_g, 16)
    tensors = (call.input("x", x, FP16), call.input("dy", dy, FP16), call.output("dw", size, FP32))
    launch_filter_gradient(call, shape, *tensors)
    if plan.mag_factor > 1:
        call.notes.append(
            f"groups share fractals ({plan.mag_factor} to a real group): off-diagonal blocks of "
            "the result are returned as zeros; the chip leaves unused sums there"
        )
    dw = call.arrays.get("dw")
    masked = mask_off_diagonal(dw, plan) if dw is not None and plan.mag_factor > 1 else dw
    return call.result({"grad_weight": masked}, _problem(shape), FP16)


def _shape(
    x: tuple[int, ...], dy: tuple[int, ...], filter_sizes: Any, para: dict[str, Any]
) -> Convolution:
    """The convolution the arguments describe, checked against both operands."""
    unknown = sorted(set(para) - set(_PARAMETERS))
    if unknown:
        raise ArgumentError(f"para_dict has unknown keys {unknown}; known: {list(_PARAMETERS)}")
    missing = [key for key in ("strides", "padding", "dilations") if key not in para]
    if missing:
        raise ArgumentError(f"para_dict lacks {missing}; it needs strides, padding, dilations")
    cout, cg, kh, kw = integers("filter_sizes", filter_sizes, 4, 1, "[Cout, Cin/groups, KH, KW]")
    sh, sw = integers("strides", para["strides"], 2, 1, "[sH, sW]")
    up, down, left, right = integers("padding", para["padding"], 4, 0, "[up, down, left, right]")
    dn, dc, dh, dw = integers("dilations", para["dilations"], 4, 1, "[1, 1, dH, dW]")
    (groups,) = integers("groups", para.get("groups", 1), 1, 1, "the number of groups")
    if (dn, dc) != (1, 1):
        raise ArgumentError(f"dilations is {para['dilations']}; its first two entries must be 1")
    if dtype(para.get("res_dtype", "float32")) is not FP32:
        raise ArgumentError(f"res_dtype is {para['res_dtype']!r}; the result is float32")
    if cout % groups:
        raise ArgumentError(f"filter_sizes has Cout {cout}, not a multiple of groups {groups}")
    shape = Convolution(
        n=x[0],
        cin=cg * groups,
        cout=cout,
        spatial=(1, x[2], x[3]),
        kernel=(1, kh, kw),
        stride=(1, sh, sw),
        padding=((0, 0), (up, down), (left, right)),
        dilation=(1, dh, dw),
        groups=groups,
    )
    _, ho, wo = shape.out
    for name, got, want in (
        ("input_x", x, (x[0], shape.cin1, x[2], x[3], 16)),
        ("out_backprop", dy, (x[0], ceil_div(cout, 16), ho, wo, 16)),
    ):
        if got != want or not x[0]:
            raise ArgumentError(
                f"{name} has shape {got}; filter {list(filter_sizes)}, groups {groups}, strides "
                f"{[sh, sw]}, padding {[up, down, left, right]}, dilations {[1, 1, dh, dw]} and a "
                f"batch of at least 1 make it {want}"
            )
    return shape


def _problem(s: Convolution) -> str:
    """One line for reports."""
    (_, h, w), (_, ho, wo), (_, kh, kw) = s.spatial, s.out, s.kernel
    pads = [p for pair in s.padding[1:] for p in pair]
    groups = f", groups {s.groups}" if s.groups > 1 else ""
    dilation = f", dilation {list(s.dilation[1:])}" if s.dilation[1:] != (1, 1) else ""
    return (
        f"dw of {s.cin} -> {s.cout} channels, {kh}x{kw}, stride {list(s.stride[1:])}, pad {pads}"
        f"{dilation}{groups}; x {s.n}x{h}x{w}, dy {s.n}x{ho}x{wo}; fp16 -> fp32"
    )
