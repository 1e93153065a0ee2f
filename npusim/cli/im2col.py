"""``npusim run im2col_backward``: its options, and the call they describe."""

from __future__ import annotations

import argparse
from functools import partial
from math import prod, sqrt

from npusim.cli.convolution import Shape, per_dim
from npusim.cli.parser import Parser, integer
from npusim.cli.problem import LIMITS, Inputs, Operator, Output, Prepared, numbers
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32
from npusim.errors import ArgumentError
from npusim.kernels.im2col_backward import Tiling
from npusim.ops import im2col_backward
from npusim.reference import fold, output_shape


def add_arguments(parser: Parser) -> None:
    """Declare the channels of the image; the windows are stated as a convolution's are."""
    group = parser.add_argument_group("im2col_backward: --size of the image, --kernel of windows")
    group.add_argument(
        "--channels",
        type=integer(1),
        metavar="N",
        help="channels of the image (default: as in --input dy)",
    )


def prepare(arguments: argparse.Namespace, inputs: Inputs, device: Device) -> Prepared:
    """The call; the operand is (N, C*KH*KW, L), or without N where --batch is 0."""
    for option in ("size", "kernel"):
        if getattr(arguments, option) is None:
            raise ArgumentError(f"{arguments.operator} needs --{option} HxW; give it")
    size, kernel = (per_dim(name, getattr(arguments, name), 2) for name in ("size", "kernel"))
    stride, dilation = (
        per_dim(name, getattr(arguments, name) or (1,), 2) for name in ("stride", "dilation")
    )
    padding = _padding(arguments)
    windows = output_shape(size, kernel, stride, [(p, p) for p in padding], dilation)
    channels, lead = _leading(arguments, inputs, prod(kernel))
    forms = {
        "C*KH*KW, L" if not lead else "N, C*KH*KW, L": (
            *lead,
            channels * prod(kernel),
            prod(windows),
        )
    }
    dy = inputs.get("dy", forms)
    limit = LIMITS[inputs.kind]
    if inputs.kind is FP16 and device.im2col_accumulate != "fp32":
        # Every tap of a window rounds the sum by half a unit at most, independently.
        limit = max(limit, 2.0**-11 * sqrt(prod(kernel)))
    axes = "(N, C, H, W)" if lead else "(C, H, W)"
    output = Output(
        layout=axes,
        axes=axes,
        framework=lambda a: a,
        expected=lambda: fold(numbers(dy), size, kernel, dilation, padding, stride),
        limit=limit,
    )
    return Prepared(
        run=partial(im2col_backward, dy, size, kernel, dilation, padding, stride),
        tiling=Tiling,
        outputs={"grad_input": output},
    )


def _leading(arguments: argparse.Namespace, inputs: Inputs, taps: int) -> tuple[int, Shape]:
    """Channels, and (N,) or nothing; stated, or as the operand has them."""
    if "dy" not in inputs.arrays:
        count = 1 if arguments.batch is None else arguments.batch
        return inputs.size("--channels", arguments.channels, {}), (count,) if count else ()
    given = inputs.arrays["dy"].shape
    if len(given) not in (2, 3) or given[-2] % taps:
        raise ArgumentError(
            f"--input dy={inputs.files['dy']} has shape {given}; it must be (N, C*KH*KW, L), or "
            f"(C*KH*KW, L), with KH*KW = {taps}"
        )
    shown = given[0] if len(given) == 3 else 0
    count = inputs.size("--batch", arguments.batch, {"dy": shown})
    channels = inputs.size("--channels", arguments.channels, {"dy": given[-2] // taps})
    return channels, (count,) if len(given) == 3 else ()


def _padding(arguments: argparse.Namespace) -> Shape:
    """(height, width), the same on opposite sides."""
    value = arguments.padding or 0
    sides = ((value, value),) * 2 if isinstance(value, int) else value
    if len(sides) != 2 or any(before != after for before, after in sides):
        raise ArgumentError(
            f"--padding of {arguments.operator} is one number, or HxW such as 1x2: the same on "
            "opposite sides"
        )
    return tuple(before for before, _ in sides)


OPERATOR = Operator(
    inputs=("dy",),
    options=("batch", "channels", "size", "kernel", "stride", "padding", "dilation", "dtype"),
    dtypes=(FP16, FP32),
    prepare=prepare,
    add_arguments=add_arguments,
    example="""npusim run im2col_backward --device ascend910b2 --channels 16 --size 14x14 \\
      --kernel 3 --padding 1 --dtype fp32 --check""",
)
