"""``npusim run deconv_grad_filter``: its options, and the call they describe."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

from npusim.call.spec import Array, Operand
from npusim.cli.convolution import SIZES, Convolution, Shape, convolution
from npusim.cli.parser import Parser
from npusim.cli.problem import LIMITS, Inputs, Operator, Output, Prepared, numbers
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32
from npusim.kernels.deconv_grad_filter import Tiling
from npusim.layout import nhwc_to_nchw
from npusim.ops import deconv_grad_filter
from npusim.reference import conv_filter_grad
from npusim.results import Result


def add_arguments(parser: Parser) -> None:
    """Declare where operands lie; the cores are chosen by --cores."""
    group = parser.add_argument_group("deconv_grad_filter")
    group.add_argument(
        "--storage",
        choices=("shared", "private"),
        help="operands in main memory, or in the memory of one core (default: shared)",
    )


def prepare(arguments: argparse.Namespace, inputs: Inputs, device: Device) -> Prepared:
    """The call, its sizes from options or from NHWC operands; dy's own size counts if given."""
    shown = {
        name: (array.shape[0], array.shape[3], *array.shape[1:3])
        for name, array in inputs.arrays.items()
        if array.ndim == 4
    }
    c = replace(convolution(arguments, inputs, shown, 2, layers=False), transposed=True)
    out = shown["dy"][2:] if "dy" in shown else c.out
    x = inputs.get("x", {"NHWC": (c.n, *c.size, c.cin)})
    dy = inputs.get("dy", {"NHWC": (c.n, *out, c.cout)})
    before = [sides[0] for sides in c.padding]
    param = [
        *(c.n, *c.size, c.cin),
        *(c.n, *out, c.cout),
        *(*c.kernel, *c.stride, *before, *c.dilation, c.groups),
        *(0, 0, 0),
    ]
    output = Output(
        layout="(group, Cout/group*KH*KW, Cin/group)",
        axes="(Cin, Cout/groups, KH, KW)",
        framework=partial(_framework, c),
        expected=lambda: _expected(c, out, numbers(x), numbers(dy)),
        limit=LIMITS[inputs.kind],
    )
    storage = arguments.storage or "shared"
    return Prepared(run=partial(_run, dy, x, param, storage), tiling=Tiling, outputs={"dw": output})


def _run(
    dy: Operand, x: Operand, param: list[int], storage: str, *, cores: Any, **options: Any
) -> Result:
    """The call, with the cores as its own mask."""
    return deconv_grad_filter(dy, x, param, cores, storage, **options)


def _framework(c: Convolution, dw: Array) -> Array:
    """The weight of a transposed layer, as frameworks have it."""
    split = dw.reshape(c.groups, c.cout // c.groups, *c.kernel, c.cin // c.groups)
    return split.transpose(0, 4, 1, 2, 3).reshape(c.w_shape)


def _expected(c: Convolution, out: Shape, x: Array, dy: Array) -> Array:
    """Of the plain convolution that reads dy, x is the gradient of the output."""
    read, grad = nhwc_to_nchw(dy), nhwc_to_nchw(x)
    return conv_filter_grad(read, grad, c.kernel, c.stride, c.reads(out), c.dilation, c.groups)


OPERATOR = Operator(
    inputs=("x", "dy"),
    options=("batch", *SIZES, "output_padding", "dtype", "storage"),
    dtypes=(FP32, FP16),
    prepare=prepare,
    add_arguments=add_arguments,
    device="ft78ne",
    example="npusim run deconv_grad_filter --cin 16 --cout 32 --size 8x8 --kernel 4 --stride 2 "
    "--padding 1 \\\n      --cores 0-3 --check",
)
