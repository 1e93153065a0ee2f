"""``npusim run convolution_backward``: its options, and the call they describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from npusim.call.spec import Array, Spec
from npusim.cli.convolution import SIZES, Convolution, Shape, convolution
from npusim.cli.parser import Parser
from npusim.cli.problem import LIMITS, Inputs, Operator, Output, Prepared, numbers
from npusim.device.spec import Device
from npusim.dtypes import BF16, FP16, FP32, DType, dtype, promote
from npusim.errors import ArgumentError
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter
from npusim.kernels.conv_backprop_filter import Tiling as FilterTiling
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.conv_forward import ConvForward
from npusim.kernels.implicit_gemm import Tiling as GemmTiling
from npusim.ops import convolution_backward
from npusim.ops.cube_math import CUBE_MATH_TYPES, CubeMath, cube_math, cube_math_number
from npusim.reference import (
    conv_bias_grad,
    conv_filter_grad,
    conv_forward,
    conv_input_grad,
)
from npusim.rounding import round_hf32

GRADIENTS = ("input", "weight", "bias")
Mask = tuple[bool, bool, bool]


def add_arguments(parser: Parser) -> None:
    """Declare what only a framework's backward has."""
    group = parser.add_argument_group("convolution_backward")
    add = group.add_argument
    add(
        "--transposed",
        action="store_true",
        default=None,
        help="of a transposed convolution (default: no)",
    )
    add(
        "--mask",
        type=_mask,
        metavar="NAMES",
        help="gradients wanted: input,weight,bias or some of them, or bits in that order such as "
        "110 (default: all)",
    )
    add(
        "--cube-math-type",
        type=cube_math_type,
        metavar="TYPE",
        help=f"arithmetic of the cube: 0 to 3 or {', '.join(CUBE_MATH_TYPES)} (default: 0)",
    )


def _mask(text: str) -> Mask:
    """Which gradients are wanted, of names or of three bits."""
    words = text.split(",")
    if len(text) == len(GRADIENTS) and set(text) <= {"0", "1"}:
        words = [name for name, bit in zip(GRADIENTS, text, strict=True) if bit == "1"]
    if not words or len(set(words)) != len(words) or not set(words) <= set(GRADIENTS):
        raise argparse.ArgumentTypeError(
            f"expected at least one of {','.join(GRADIENTS)}, or bits such as 110, got {text!r}"
        )
    dx, dw, db = (name in words for name in GRADIENTS)
    return dx, dw, db


def cube_math_type(text: str) -> int:
    """The cubeMathType of this number or name."""
    try:
        return cube_math_number(int(text) if text.isascii() and text.isdigit() else text)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def prepare(arguments: argparse.Namespace, inputs: Inputs, device: Device) -> Prepared:
    """The call, its sizes from --layer, from options, or from operands."""
    c = convolution(arguments, inputs, _shown(inputs), None)
    dy = inputs.get("dy", {"N, Cout, ...": c.dy_shape})
    x = inputs.get("x", {"N, Cin, ...": c.x_shape})
    w = inputs.get("w", {_weight_axes(c): c.w_shape})
    mask: Mask = arguments.mask or (True, True, True)
    number = arguments.cube_math_type or 0
    run = partial(
        convolution_backward,
        dy,
        x,
        w,
        (c.cout,) if mask[2] else None,
        stride=list(c.stride),
        padding=_padding(c),
        dilation=list(c.dilation),
        transposed=c.transposed,
        output_padding=list(c.output_padding or (0,) * len(c.size)),
        groups=c.groups,
        output_mask=mask,
        cube_math_type=number,
    )
    math = _math((dy, x, w), number, device)
    outputs = zip(GRADIENTS, mask, _outputs(c, (dy, x, w), math, device), strict=True)
    return Prepared(
        run=run,
        tiling={
            ConvBackpropInput.name: GemmTiling,
            ConvForward.name: GemmTiling,
            ConvBackpropFilter.name: FilterTiling,
        },
        outputs={f"grad_{name}": output for name, on, output in outputs if on},
    )


def _shown(inputs: Inputs) -> dict[str, Shape]:
    """Shapes of the operands given as files."""
    shown = {name: array.shape for name, array in inputs.arrays.items()}
    for name, shape in shown.items():
        if len(shape) not in (3, 4, 5):
            raise ArgumentError(
                f"--input {name}={inputs.files[name]} has shape {shape}; it must have 3 (NCL), 4 "
                "(NCHW) or 5 axes (NCDHW)"
            )
    return shown


def _padding(c: Convolution) -> list[int]:
    """One number per dimension, or all sides where they differ, which only 2-D layers can say."""
    if all(before == after for before, after in c.padding):
        return [before for before, _ in c.padding]
    if len(c.size) != 2:
        raise ArgumentError(
            f"--padding is {','.join(map(str, c.sides))}; convolution_backward takes sides that "
            "differ of 2-D layers only; give one number per dimension, such as "
            + "x".join(str(before) for before, _ in c.padding)
        )
    return c.sides


def _math(operands: tuple[Array | Spec, ...], number: int, device: Device) -> CubeMath | None:
    """What the cube computes; None where the call will be refused for it, or for the device."""
    try:
        return cube_math(promote((dtype(o.dtype) for o in operands), FP32), number, device)
    except ArgumentError:
        return None


def _outputs(
    c: Convolution, operands: tuple[Array | Spec, ...], math: CubeMath | None, device: Device
) -> tuple[Output, Output, Output]:
    """The three gradients, computed from operands as the cube sees them."""
    kinds = [dtype(operand.dtype) for operand in operands]

    def seen() -> tuple[Array, ...]:
        return tuple(_rounded(numbers(operand), math, device) for operand in operands)

    def output(axes: str, expected: Callable[[], Array], *steps: DType) -> Output:
        limit = max(LIMITS[step] for step in steps)
        return Output(layout=axes, axes=axes, framework=lambda a: a, expected=expected, limit=limit)

    leaves = math.dtype if math else FP32  # the type in which gradInput leaves the cube
    return (
        output("(N, Cin, ...)", lambda: _input_grad(c, *seen()), leaves, promote(kinds[:2], FP32)),
        output(
            f"({_weight_axes(c)})",
            lambda: _filter_grad(c, *seen()),
            promote((kinds[2], kinds[0]), FP32),
        ),
        output("(Cout,)", lambda: conv_bias_grad(numbers(operands[0])), kinds[0]),
    )


def _input_grad(c: Convolution, dy: Array, x: Array, w: Array) -> Array:
    if c.transposed:
        return conv_forward(dy, w, c.stride, c.reads(c.out), c.dilation, c.groups)
    return conv_input_grad(dy, w, x.shape, c.stride, c.padding, c.dilation, c.groups)


def _filter_grad(c: Convolution, dy: Array, x: Array, w: Array) -> Array:
    first, last, pads = (dy, x, c.reads(c.out)) if c.transposed else (x, dy, c.padding)
    return conv_filter_grad(first, last, c.kernel, c.stride, pads, c.dilation, c.groups)


def _rounded(array: Array, math: CubeMath | None, device: Device) -> Array:
    """An operand as the cube sees it."""
    if math is None:
        return array
    if math.hf32:
        bits = device.cube.hf32_bits if device.cube is not None else 0
        return round_hf32(array.astype(FP32.numpy), bits)
    return array.astype(math.dtype.numpy)


def _weight_axes(c: Convolution) -> str:
    return "Cin, Cout/groups, ..." if c.transposed else "Cout, Cin/groups, ..."


OPERATOR = Operator(
    inputs=("x", "w", "dy"),
    options=(
        *("layer", "batch", *SIZES),
        *("transposed", "output_padding", "dtype", "mask", "cube_math_type"),
    ),
    dtypes=(FP16, BF16, FP32),
    prepare=prepare,
    add_arguments=add_arguments,
    example="""npusim run convolution_backward --device ascend910b2 --cin 32 --cout 16 \\
      --size 14x14 --kernel 3 --padding 1 --dtype fp32 --mask 110 --check --output grads.npz""",
)
