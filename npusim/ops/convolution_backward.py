"""convolution_backward: gradients of input, weight and bias on framework layouts, 1-D to 3-D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.call.call import Call
from npusim.call.spec import Array, Operand, Spec
from npusim.convolution import Convolution
from npusim.dtypes import FP32, dtype, promote
from npusim.errors import ArgumentError
from npusim.limits.facts import tensor_facts
from npusim.ops.arguments import frozen, operand, per_dim
from npusim.ops.conv_launch import Launcher
from npusim.ops.cube_math import cube_math, cube_math_number
from npusim.results import Result

#: The results, and the operands in the order of their arguments.
GRADIENTS = ("grad_input", "grad_weight", "grad_bias")
_OPERANDS = ("grad_output", "input", "weight")
_PER_DIM = ("stride", "padding", "dilation", "output_padding")

Tensors = tuple[Operand, Operand, Operand]


def convolution_backward(
    grad_output: Array | Spec,
    input: Array | Spec,
    weight: Array | Spec,
    bias_sizes: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: bool = False,
    output_padding: Any = 0,
    groups: int = 1,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    cube_math_type: int | str = "keep_dtype",
    **options: Any,
) -> Result:
    """Gradients of a convolution (or transposed convolution) of 1 to 3 spatial dimensions.

    Arrays are NCL, NCHW or NCDHW in fp16, bf16 or fp32 (or ``npusim.spec``s: timing only);
    ``weight`` is (Cout, Cin / groups, ...), transposed (Cin, Cout / groups, ...). ``padding`` is
    one number, one per dimension, or in 2-D [up, down, left, right]. ``output_mask`` says which
    gradients are wanted; the others are None and their kernels are not launched.

    The call launches what the chip's library launches: conversions to blocked layouts, clearing
    of accumulated results, the kernels, casts, conversions back (``r.kernels``);
    ``r.workspace_bytes`` is the memory between them. gradInput has the wider type of input and
    gradOutput, gradWeight that of weight and gradOutput, gradBias that of gradOutput.

    Keywords are those of ``npusim.call.Options``. Raises ``RuleError`` where arguments do not fit
    each other or the product's documentation refuses them, ``ArgumentError`` where the device
    cannot compute the call.
    """
    tensors = (operand(grad_output), operand(input), operand(weight))
    call = Call.of(convolution_backward, options, tensors)
    checked = facts(
        *tensors,
        bias_sizes=bias_sizes,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        output_padding=output_padding,
        groups=groups,
        output_mask=output_mask,
        cube_math_type=cube_math_type,
    )
    call.check(checked)
    call.notes += _unread_bias_sizes(checked)
    kinds = tuple(dtype(t.dtype) for t in tensors)
    text, promoted, mask = _problem(checked), promote(kinds, FP32), checked["output_mask"]
    if 0 in tensors[1].shape or 0 in tensors[2].shape:
        return call.result(_empty(call, tensors, mask), text, promoted)
    math = cube_math(promoted, checked["cube_math_type"], call.device)
    launcher = Launcher(
        call, convolution(checked), dict(zip(_OPERANDS, tensors, strict=True)), math
    )
    steps = (launcher.input_grad, launcher.weight_grad, launcher.bias_grad)
    outputs: dict[str, Array | None] = {}
    for name, on, step, shape in zip(GRADIENTS, mask, steps, _shapes(tensors), strict=True):
        tensor = step() if on else None
        array = call.arrays.get(tensor.name) if tensor is not None else None
        outputs[name] = array.reshape(shape) if array is not None else None
    name = "HF32" if math.hf32 else math.dtype.name
    computed = "" if name == promoted.name else f", computed in {name}"
    return call.result(outputs, text + computed, math.dtype, "hf32" if math.hf32 else "")


def facts(grad_output: Any, input: Any, weight: Any, **arguments: Any) -> dict[str, Any]:
    """What the limits are checked against; operands are anything with ``shape`` and ``dtype``."""
    dims = len(weight.shape) - 2
    mask, number = frozen(arguments["output_mask"]), arguments["cube_math_type"]
    return arguments | {
        **tensor_facts(grad_output=grad_output, input=input, weight=weight),
        **{name: per_dim(arguments[name], dims) for name in _PER_DIM},
        **{name: frozen(arguments[name]) for name in ("bias_sizes", "groups")},
        "transposed": bool(arguments["transposed"]),
        "output_mask": tuple(map(bool, mask)) if isinstance(mask, tuple) else mask,
        "cube_math_type": cube_math_number(number) if isinstance(number, str) else number,
    }


def _unread_bias_sizes(checked: Mapping[str, Any]) -> list[str]:
    """A note where the bias is not what the page wants, which nobody notices."""
    given, channels = checked["bias_sizes"], checked["grad_output.shape"][1]
    if given in (None, (channels,)):
        return []
    return [
        f"bias_sizes is {given}, the layer has {channels} output channels: the documentation wants "
        f"({channels},), the library does not look at it unless the input is empty"
    ]


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The layer that facts describe which the limits have let pass.

    Raises ``ArgumentError`` for an output padding of the form of four that means two things.
    """
    n, cin, *spatial = checked["input.shape"]
    _, cout, *out = checked["grad_output.shape"]
    kernel = checked["weight.shape"][2:]
    pads, extra = checked["padding"], checked["output_padding"]
    if len(extra) != len(kernel):  # [h, h, w, w]
        if extra[::2] != extra[1::2]:
            raise ArgumentError(
                f"output_padding is {extra}; in the form of four both entries of an axis agree"
            )
        extra = extra[::2]
    sides = (pads[::2], pads[1::2]) if len(pads) != len(kernel) else (pads, pads)
    return Convolution(
        n=n,
        cin=cin,
        cout=cout,
        spatial=tuple(spatial),
        kernel=kernel,
        stride=checked["stride"],
        padding=tuple(zip(*sides, strict=True)),
        dilation=checked["dilation"],
        groups=checked["groups"],
        transposed=checked["transposed"],
        output_padding=extra,
        outputs=tuple(out),
    )


def _problem(checked: Mapping[str, Any]) -> str:
    """One line for reports; also of empty calls, which are no convolution."""
    n, cin, *spatial = checked["input.shape"]
    cout, kernel = checked["grad_output.shape"][1], checked["weight.shape"][2:]
    what = "transposed convolution" if checked["transposed"] else "convolution"
    groups = f", groups {checked['groups']}" if checked["groups"] > 1 else ""
    return (
        f"backward of a {len(kernel)}-D {what}, {cin} -> {cout} channels, kernel "
        f"{'x'.join(map(str, kernel))}, stride {list(checked['stride'])}, input {n} x "
        f"{'x'.join(map(str, spatial))}{groups}; {checked['input.dtype']}"
    )


def _shapes(tensors: Tensors) -> tuple[tuple[int, ...], ...]:
    """Shapes of the three gradients."""
    grad_output, input_, weight = tensors
    return tuple(input_.shape), tuple(weight.shape), (int(grad_output.shape[1]),)


def _empty(call: Call, tensors: Tensors, mask: tuple[bool, bool, bool]) -> dict[str, Array | None]:
    """Results of an empty batch or channel: no elements, or zeros that are cleared."""
    dy, x, w = (dtype(t.dtype) for t in tensors)
    kinds = (promote((x, dy), FP32), promote((w, dy), FP32), dy)
    outputs: dict[str, Array | None] = {}
    for name, on, shape, kind in zip(GRADIENTS, mask, _shapes(tensors), kinds, strict=True):
        outputs[name] = None
        if on:
            tensor = call.output(name, shape, kind)
            if tensor.size_bytes:
                call.clear(tensor)
            outputs[name] = call.arrays.get(name)
    return outputs
