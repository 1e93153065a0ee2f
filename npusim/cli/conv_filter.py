"""``npusim run conv2d_backprop_filter``: the call that sizes and operands describe."""

from __future__ import annotations

import argparse
from functools import partial

from npusim.call.spec import Array, Spec, spec
from npusim.cli.convolution import SIZES, convolution
from npusim.cli.problem import LIMITS, Inputs, Operator, Output, Prepared, numbers
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32
from npusim.kernels.conv_backprop_filter import Tiling
from npusim.layout import fracz_grouped_to_oihw, from_5hd, to_5hd
from npusim.ops import conv2d_backprop_filter
from npusim.reference import conv_filter_grad


def prepare(arguments: argparse.Namespace, inputs: Inputs, device: Device) -> Prepared:
    """The call, its sizes from --layer, from options, or from 4-D (NCHW) operands."""
    shown = {name: array.shape for name, array in inputs.arrays.items() if array.ndim == 4}
    c = convolution(arguments, inputs, shown, 2)
    per_group, kernel = c.cin // c.groups, (c.kernel[0], c.kernel[1])
    x, dy = _operand(inputs, "x", c.x_shape), _operand(inputs, "dy", c.dy_shape)
    para = {
        "strides": list(c.stride),
        "padding": c.sides,
        "dilations": [1, 1, *c.dilation],
        "groups": c.groups,
    }

    def expected() -> Array:
        x_nchw, dy_nchw = from_5hd(numbers(x), c.cin), from_5hd(numbers(dy), c.cout)
        return conv_filter_grad(x_nchw, dy_nchw, kernel, c.stride, c.padding, c.dilation, c.groups)

    def framework(dw: Array) -> Array:
        return fracz_grouped_to_oihw(dw, c.cout, per_group, kernel, c.groups, 16)

    output = Output(
        layout="FRACTAL_Z",
        axes="(Cout, Cin/groups, KH, KW)",
        framework=framework,
        expected=expected,
        limit=LIMITS[FP32],
    )
    return Prepared(
        run=partial(conv2d_backprop_filter, x, dy, [c.cout, per_group, *kernel], para),
        tiling=Tiling,
        outputs={"grad_weight": output},
    )


def _operand(inputs: Inputs, name: str, nchw: tuple[int, ...]) -> Array | Spec:
    """An operand in 5HD."""
    n, channels, height, width = nchw
    blocked = (n, -(-channels // 16), height, width, 16)
    value = inputs.get(name, {"NCHW": nchw, "5HD": blocked})
    if isinstance(value, Spec):
        return spec(blocked, value.dtype)
    return to_5hd(value, 16) if value.ndim == 4 else value


OPERATOR = Operator(
    inputs=("x", "dy"),
    options=("layer", "batch", *SIZES),
    dtypes=(FP16,),
    prepare=prepare,
    example="""npusim run conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 \\
      --batch 2 --check --trace trace.json""",
)
