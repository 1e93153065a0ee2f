"""conv3d_backprop_input: input gradient from a 6HD gradient and a FRACTAL_Z_3D filter, fp16."""

from __future__ import annotations

from typing import Any

from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP16, dtype
from npusim.errors import ArgumentError
from npusim.kernels.bias_add import BiasAdd
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.layout import group_dict
from npusim.limits.table import check
from npusim.ops.arguments import integers, operand
from npusim.ops.gemm_tiling import gemm_tiling
from npusim.results import Result

_PARAMETERS = (
    "strides",
    "pads",
    "dilations",
    "res_dtype",
    "kernel_name",
    "group_dict",
    "tensor_bias",
)


def conv3d_backprop_input(
    filter: Array | Spec,
    out_backprop: Array | Spec,
    filter_size: Any,
    input_size: Any,
    para_dict: dict[str, Any],
    **options: Any,
) -> Result:
    """Gradient of a 3-D convolution's input.

    ``filter`` is FRACTAL_Z_3D (real_g * KD * cin1_g * KH * KW, cout_g / 16, 16, 16) and
    ``out_backprop`` 6HD (N, Do, Co1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing
    only). ``filter_size`` is [Cout, Cin / groups, KD, KH, KW], ``input_size`` [N, D, H, W, Cin].
    ``para_dict``: strides [1, sD, sH, sW, 1]; pads [front, tail, up, down, left, right];
    dilations [1, 1, dH, dW, 1]; res_dtype "float16"; kernel_name; group_dict (its ``groups`` follow
    from filter_size and input_size and must agree); tensor_bias, Cin fp16 values added after
    rounding (optional).

    The result ``outputs[0]`` is (N, D, C1, H * W, 16) fp16, channels padded with zeros. Unlike
    the vendor's function, ``input_size`` is not written to. Keywords are those of
    ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    w, w_kind = operand("filter", filter, 4, "(KD * C1 * KH * KW, Cout / 16, 16, 16)")
    dy, dy_kind = operand("out_backprop", out_backprop, 6, "(N, Do, Co1, Ho, Wo, 16)")
    for name, kind in (("filter", w_kind), ("out_backprop", dy_kind)):
        if kind is not FP16:
            raise ArgumentError(f"{name} is {kind}; conv3d_backprop_input takes fp16")
    shape = _shape(filter_size, input_size, para_dict)
    _check_operands(shape, tuple(w.shape), tuple(dy.shape), para_dict)
    bias = _bias(shape, para_dict.get("tensor_bias"))
    wanted = Options.of(conv3d_backprop_input, options, without=("deterministic",))
    call = Call("conv3d_backprop_input", wanted, any(isinstance(t, Spec) for t in (w, dy, bias)))
    facts = _facts(w, dy, (filter_size, input_size), para_dict)
    call.notes += check("conv3d_backprop_input", facts, call.device, wanted.rules)
    call.require_dtype(FP16)
    (d, h, wide), blocks = shape.spatial, shape.cin1
    dx = call.output("dx", (shape.n, d, blocks, h, wide, 16), FP16)
    tiling = gemm_tiling(call, ConvBackpropInput, shape, FP16)
    tensors = (call.input("dy", dy, FP16), call.input("filter", w, FP16), dx)
    kernel = ConvBackpropInput(shape, tiling, *tensors)
    if kernel.needs_clear:
        call.clear(dx)
    if kernel.has_work:
        call.launch(kernel)
    result_shape = (shape.n, d, blocks, h * wide, 16)
    if bias is not None:
        fused = call.view(dx, result_shape)
        bias_tensor = call.input("bias", bias, FP16)
        call.launch(BiasAdd(fused, bias_tensor, saturate=call.device.saturates))
    array = call.arrays.get("dx")
    out = array.reshape(result_shape) if array is not None else None
    return call.result({"grad_input": out}, _problem(shape), FP16)


def _shape(filter_size: Any, input_size: Any, para: dict[str, Any]) -> Convolution:
    """The forward convolution the arguments describe."""
    unknown = sorted(set(para) - set(_PARAMETERS))
    missing = [key for key in ("strides", "pads", "dilations") if key not in para]
    if unknown or missing:
        raise ArgumentError(
            f"para_dict has unknown keys {unknown} and lacks {missing}; known: {list(_PARAMETERS)}"
        )
    axes = "[Cout, Cin/groups, KD, KH, KW]"
    cout, cg, kd, kh, kw = integers("filter_size", filter_size, 5, 1, axes)
    n, d, h, w, cin = integers("input_size", input_size, 5, 1, "[N, D, H, W, Cin]")
    s0, sd, sh, sw, s4 = integers("strides", para["strides"], 5, 1, "[1, sD, sH, sW, 1]")
    pads = integers("pads", para["pads"], 6, 0, "[front, tail, up, down, left, right]")
    d0, dd, dh, dw, d4 = integers("dilations", para["dilations"], 5, 1, "[1, 1, dH, dW, 1]")
    if (s0, s4, d0, dd, d4) != (1, 1, 1, 1, 1):
        raise ArgumentError(
            f"strides {list(para['strides'])} and dilations {list(para['dilations'])}: batch and "
            "channel entries, and the dilation of depth, must be 1"
        )
    if dtype(para.get("res_dtype", "float16")) is not FP16:
        raise ArgumentError(f"res_dtype is {para['res_dtype']!r}; the result is float16")
    if cin % cg or cout % (cin // cg):
        raise ArgumentError(
            f"input_size has Cin {cin}, filter_size {cg} per group: {cin / cg:g} groups must be a "
            f"whole number that divides Cout {cout}"
        )
    return Convolution(
        n=n,
        cin=cin,
        cout=cout,
        spatial=(d, h, w),
        kernel=(kd, kh, kw),
        stride=(sd, sh, sw),
        padding=((pads[0], pads[1]), (pads[2], pads[3]), (pads[4], pads[5])),
        dilation=(1, dh, dw),
        groups=cin // cg,
    )


def _check_operands(
    s: Convolution, w: tuple[int, ...], dy: tuple[int, ...], para: dict[str, Any]
) -> None:
    plan, (do, ho, wo) = s.plan, s.out
    rows = plan.real_groups * s.kernel[0] * plan.cin1_g * s.taps
    for name, got, want in (
        ("filter", w, (rows, plan.cout_g // 16, 16, 16)),
        ("out_backprop", dy, (s.n, do, s.cout1, ho, wo, 16)),
    ):
        if got != want:
            raise ArgumentError(
                f"{name} has shape {got}; filter_size, input_size (groups {s.groups}), strides, "
                f"pads and dilations make it {want}"
            )
    given = para.get("group_dict") or {}
    wrong = {k: v for k, v in given.items() if group_dict(plan).get(k) != v}
    if wrong:
        raise ArgumentError(f"group_dict has {wrong}; these sizes make it {group_dict(plan)}")


def _bias(s: Convolution, bias: Any) -> Operand | None:
    """The bias, one fp16 value per input channel, padded to whole blocks is not required."""
    if bias is None:
        return None
    array, kind = operand("tensor_bias", bias, 1, "(Cin,)")
    if tuple(array.shape) != (s.cin,) or kind is not FP16:
        raise ArgumentError(
            f"tensor_bias is {kind} of shape {tuple(array.shape)}; it must be fp16 of ({s.cin},)"
        )
    return array


def _facts(w: Operand, dy: Operand, sizes: tuple[Any, Any], para: dict[str, Any]) -> dict[str, Any]:
    """What the constraint table is checked against; a missing group_dict is the plain one."""
    filter_size, input_size = (tuple(size) for size in sizes)
    shape = _shape(filter_size, input_size, para)
    return {
        "filter.shape": tuple(w.shape),
        "filter.dtype": dtype(w.dtype).name,
        "out_backprop.shape": tuple(dy.shape),
        "out_backprop.dtype": dtype(dy.dtype).name,
        "filter_size": filter_size,
        "input_size": input_size,
        "strides": tuple(para["strides"]),
        "pads": tuple(para["pads"]),
        "dilations": tuple(para["dilations"]),
        "res_dtype": dtype(para.get("res_dtype", "float16")).name,
        "group_dict": para.get("group_dict") or group_dict(shape.plan),
    }


def _problem(s: Convolution) -> str:
    """One line for reports."""
    sizes = "x".join(map(str, s.spatial))
    kernel = "x".join(map(str, s.kernel))
    groups = f", groups {s.groups}" if s.groups > 1 else ""
    return (
        f"dx of {s.cin} -> {s.cout} channels, {kernel}, stride {list(s.stride)}, pads "
        f"{[p for pair in s.padding for p in pair]}{groups}; x {s.n} x {sizes}; fp16"
    )
