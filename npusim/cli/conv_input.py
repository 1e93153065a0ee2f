"""``npusim run conv3d_backprop_input``: its options, and the call they describe."""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from npusim.call.spec import Array, Spec, spec
from npusim.cli.convolution import SIZES, Convolution, convolution
from npusim.cli.parser import Parser
from npusim.cli.problem import LIMITS, Inputs, Operator, Output, Prepared, numbers
from npusim.device.spec import Device
from npusim.dtypes import FP16
from npusim.errors import ArgumentError
from npusim.kernels.implicit_gemm import Tiling
from npusim.layout import (
    from_6hd,
    from_fracz_3d,
    group_dict,
    group_plan,
    to_6hd,
    to_fracz_3d,
)
from npusim.ops import conv3d_backprop_input
from npusim.reference import conv_input_grad


def add_arguments(parser: Parser) -> None:
    """Declare the bias, which only this operator adds."""
    group = parser.add_argument_group("conv3d_backprop_input")
    group.add_argument(
        "--bias",
        action="store_true",
        default=None,
        help="add a bias per input channel to the result (default: only one given by --input)",
    )


def prepare(arguments: argparse.Namespace, inputs: Inputs, device: Device) -> Prepared:
    """The call, its sizes from --layer, from options, or from 5-D framework operands."""
    shown = {name: array.shape for name, array in inputs.arrays.items() if array.ndim == 5}
    c = convolution(arguments, inputs, shown, 3)
    if c.dilation[0] != 1:
        raise ArgumentError(
            f"--dilation has {c.dilation[0]} for the depth; conv3d_backprop_input takes 1 there, "
            "such as 1x2x2"
        )
    plan = group_plan(c.cin, c.cout, c.groups, 16)
    dy, w = _gradient(inputs, c), _filter(inputs, c)
    bias: Array | Spec | None = None
    if arguments.bias or "bias" in inputs.arrays:
        bias = inputs.get("bias", {"Cin,": (c.cin,)})
    para = {
        "strides": [1, *c.stride, 1],
        "pads": c.sides,
        "dilations": [1, *c.dilation, 1],
        "res_dtype": "float16",
        "group_dict": group_dict(plan),
        "tensor_bias": bias,
    }
    sizes = [*c.w_shape], [c.n, *c.size, c.cin]
    output = Output(
        layout="(N, D, C1, H*W, 16)",
        axes="(N, Cin, D, H, W)",
        framework=partial(_framework, c),
        expected=partial(_expected, c, dy, w, bias),
        limit=LIMITS[FP16],
    )
    return Prepared(
        run=partial(conv3d_backprop_input, w, dy, *sizes, para),
        tiling=Tiling,
        outputs={"grad_input": output},
    )


def _gradient(inputs: Inputs, c: Convolution) -> Array | Spec:
    """Dy in 6HD."""
    n, channels, depth, *plane = c.dy_shape
    blocked = (n, depth, -(-channels // 16), *plane, 16)
    value = inputs.get("dy", {"NCDHW": c.dy_shape, "6HD": blocked})
    if isinstance(value, Spec):
        return spec(blocked, value.dtype)
    return to_6hd(value, 16) if value.ndim == 5 else value


def _filter(inputs: Inputs, c: Convolution) -> Array | Spec:
    """The filter in FRACTAL_Z_3D."""
    plan = group_plan(c.cin, c.cout, c.groups, 16)
    rows = plan.real_groups * plan.cin1_g * int(np.prod(c.kernel))
    packed = (rows, plan.cout_g // 16, 16, 16)
    forms = {"Cout, Cin/groups, KD, KH, KW": c.w_shape, "FRACTAL_Z_3D": packed}
    value = inputs.get("w", forms)
    if isinstance(value, Spec):
        return spec(packed, value.dtype)
    return to_fracz_3d(value, c.groups, 16) if value.ndim == 5 else value


def _framework(c: Convolution, dx: Array) -> Array:
    n, depth, blocks, _, c0 = dx.shape
    return from_6hd(dx.reshape(n, depth, blocks, *c.size[1:], c0), c.cin)


def _expected(
    c: Convolution, dy: Array | Spec, w: Array | Spec, bias: Array | Spec | None
) -> Array:
    grad, weight = from_6hd(numbers(dy), c.cout), from_fracz_3d(numbers(w), c.w_shape, c.groups, 16)
    dx = conv_input_grad(grad, weight, c.x_shape, c.stride, c.padding, c.dilation, c.groups)
    if bias is None:
        return dx
    added: Array = dx + numbers(bias).astype(np.float64)[:, None, None, None]
    return added


OPERATOR = Operator(
    inputs=("dy", "w", "bias"),
    options=("layer", "batch", *SIZES, "bias"),
    dtypes=(FP16,),
    prepare=prepare,
    add_arguments=add_arguments,
    example="""npusim run conv3d_backprop_input --device ascend910 --cin 32 --cout 16 \\
      --size 4x14x14 --kernel 3 --padding 1 --bias --check""",
)
