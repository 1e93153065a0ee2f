"""``npusim run conv2d_backprop_filter``: its options, and the call they describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from npusim.cli.parser import Parser, integer, padding, pair
from npusim.cli.problem import Inputs, Prepared
from npusim.errors import ArgumentError
from npusim.kernels.conv_backprop_filter import Tiling
from npusim.kernels.conv_shape import ConvShape
from npusim.layout import fracz_grouped_to_oihw, from_5hd, to_5hd
from npusim.numerics.reference import conv_filter_grad
from npusim.ops import conv2d_backprop_filter
from npusim.session import Array, Spec, spec
from npusim.workloads import find_layer

INPUTS = ("x", "dy")
#: Options that state one convolution, which --layer states all at once.
_SIZES = ("cin", "cout", "size", "kernel", "stride", "padding", "dilation", "groups")
OPTIONS = ("layer", "batch", *_SIZES)


def add_arguments(parser: Parser) -> None:
    """Declare the options that say which convolution."""
    group = parser.add_argument_group("conv2d_backprop_filter: which convolution")
    add, least_1 = group.add_argument, integer(1)
    add(
        "--layer",
        metavar="WORKLOAD/LAYER",
        help="a layer such as resnet50/res4_3x3 (see 'npusim workloads'), instead of its sizes",
    )
    add("--batch", type=least_1, metavar="N", help="images (default: as in --input, else 1)")
    add("--cin", type=least_1, metavar="N", help="input channels (default: as in --input x)")
    add("--cout", type=least_1, metavar="N", help="output channels (default: as in --input dy)")
    add("--size", type=pair, metavar="HxW", help="input size, pixels (default: as in --input x)")
    add("--kernel", type=pair, metavar="HxW", help="filter size, taps (no default)")
    add("--stride", type=pair, metavar="HxW", help="stride, pixels (default: 1x1)")
    add(
        "--padding",
        type=padding,
        metavar="U,D,L,R",
        help="zeros around the input: up, down, left, right, or one number (default: 0)",
    )
    add("--dilation", type=pair, metavar="HxW", help="distance of taps, pixels (default: 1x1)")
    add("--groups", type=least_1, metavar="N", help="groups of channels (default: 1)")


def prepare(arguments: argparse.Namespace, inputs: Inputs) -> Prepared:
    """The call, its sizes from --layer, from options, or from 4-D (NCHW) operands."""
    shape = _from_layer(arguments, inputs) if arguments.layer else _from_sizes(arguments, inputs)
    (_, ho, wo), (_, kh, kw) = shape.out, shape.kernel
    x, x_nchw = _operand(inputs, "x", (shape.n, shape.cin, *shape.spatial[1:]))
    dy, dy_nchw = _operand(inputs, "dy", (shape.n, shape.cout, ho, wo))
    plan, pads = shape.plan, shape.padding[1:]
    para = {
        "strides": list(shape.stride[1:]),
        "padding": [side for both in pads for side in both],
        "dilations": [1, 1, *shape.dilation[1:]],
        "groups": shape.groups,
    }

    def expected() -> Array:
        return conv_filter_grad(
            x_nchw(), dy_nchw(), (kh, kw), shape.stride[1:], pads, shape.dilation[1:], shape.groups
        )

    def framework(dw: Array) -> Array:
        return fracz_grouped_to_oihw(
            dw, shape.cout, plan.cin_per_group, (kh, kw), shape.groups, shape.c0
        )

    return Prepared(
        run=partial(conv2d_backprop_filter, x, dy, [shape.cout, plan.cin_per_group, kh, kw], para),
        tiling=Tiling,
        what="gradient",
        layout="FRACTAL_Z",
        axes="(Cout, Cin/groups, KH, KW)",
        framework=framework,
        expected=expected,
    )


def _from_layer(arguments: argparse.Namespace, inputs: Inputs) -> ConvShape:
    """The convolution of --layer, which leaves only the batch open."""
    also = [f"--{name}" for name in _SIZES if getattr(arguments, name) is not None]
    if also:
        raise ArgumentError(
            f"--layer {arguments.layer} gives all sizes, so {', '.join(also)} cannot be given "
            "too; drop --layer or the sizes"
        )
    layer = find_layer(arguments.layer)
    if layer.dims != 2:
        raise ArgumentError(
            f"--layer {arguments.layer} has {layer.dims} spatial dimensions; "
            f"{arguments.operator} takes layers with 2"
        )
    (h, w), (kh, kw), (sh, sw) = layer.spatial, layer.kernel, layer.stride
    (rows, columns), (dh, dw) = layer.padding, layer.dilation
    return ConvShape(
        n=_batch(arguments, inputs),
        cin=layer.cin,
        cout=layer.cout,
        spatial=(1, h, w),
        kernel=(1, kh, kw),
        stride=(1, sh, sw),
        padding=((0, 0), rows, columns),
        dilation=(1, dh, dw),
        groups=layer.groups,
    )


def _from_sizes(arguments: argparse.Namespace, inputs: Inputs) -> ConvShape:
    """The convolution of --cin, --cout, ...; NCHW operands may stand in for those they show."""
    nchw = {name: array.shape for name, array in inputs.arrays.items() if array.ndim == 4}
    shown = {"cin": "x", "cout": "dy", "size": "x"}
    missing = [
        f"--{name}"
        for name in ("cin", "cout", "size", "kernel")
        if getattr(arguments, name) is None and shown.get(name) not in nchw
    ]
    if missing:
        raise ArgumentError(
            f"{arguments.operator} needs --layer WORKLOAD/LAYER, or --cin, --cout, --size and "
            f"--kernel; missing: {', '.join(missing)}"
        )
    h, w = arguments.size or nchw["x"][2:]
    (kh, kw), (sh, sw) = arguments.kernel, arguments.stride or (1, 1)
    (up, down, left, right), (dh, dw) = arguments.padding or (0,) * 4, arguments.dilation or (1, 1)

    def channels(name: str, stated: int | None) -> int:
        found = {name: nchw[name][1]} if name in nchw else {}
        return inputs.size("--cin" if name == "x" else "--cout", stated, found)

    shape = ConvShape(
        n=_batch(arguments, inputs),
        cin=channels("x", arguments.cin),
        cout=channels("dy", arguments.cout),
        spatial=(1, h, w),
        kernel=(1, kh, kw),
        stride=(1, sh, sw),
        padding=((0, 0), (up, down), (left, right)),
        dilation=(1, dh, dw),
        groups=arguments.groups or 1,
    )
    if shape.cin % shape.groups or shape.cout % shape.groups:
        raise ArgumentError(
            f"--groups is {shape.groups}, which must divide both --cin ({shape.cin}) and --cout "
            f"({shape.cout}); change one of them"
        )
    return shape


def _batch(arguments: argparse.Namespace, inputs: Inputs) -> int:
    found = {name: array.shape[0] for name, array in inputs.arrays.items() if array.ndim in (4, 5)}
    stated = arguments.batch if arguments.batch or found else 1
    return inputs.size("--batch", stated, found)


def _operand(
    inputs: Inputs, name: str, nchw: tuple[int, int, int, int]
) -> tuple[Array | Spec, Callable[[], Array]]:
    """An operand in 5HD, and a way to get it in NCHW for the float64 opinion."""
    value = inputs.get(name, nchw)
    n, channels, height, width = nchw
    blocks = -(-channels // 16)
    if isinstance(value, Spec):
        return spec((n, blocks, height, width, 16), value.dtype), lambda: _no_numbers(name)
    want = {4: nchw, 5: (n, blocks, height, width, 16)}
    if value.shape != want.get(value.ndim) or value.dtype.name != "float16":
        raise ArgumentError(
            f"--input {name}={inputs.files[name]} is {value.dtype.name} of shape {value.shape}; "
            f"this convolution takes float16 of shape {want[4]} (NCHW) or {want[5]} (5HD)"
        )
    if value.ndim == 5:
        return value, lambda: from_5hd(value, channels)
    return to_5hd(value, 16), lambda: value


def _no_numbers(name: str) -> Array:
    raise ArgumentError(f"{name} has no numbers in a timing-only run; run without --timing-only")
