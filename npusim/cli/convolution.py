"""The options that state a convolution, which several operators share, and what they come to."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.cli.parser import Parser, Sides, integer, padding, sizes
from npusim.cli.problem import Inputs
from npusim.errors import ArgumentError
from npusim.reference import output_shape
from npusim.workloads import find_layer

Shape = tuple[int, ...]

#: Options that state one convolution, which --layer states all at once.
SIZES = ("cin", "cout", "size", "kernel", "stride", "padding", "dilation", "groups")
#: Those with an entry per spatial dimension; the longest says how many there are.
_PER_DIM = ("size", "kernel", "stride", "padding", "dilation", "output_padding")


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """The sizes of one convolution, or of a transposed one (``size`` is what goes in, too)."""

    n: int
    cin: int
    cout: int
    size: Shape
    kernel: Shape
    stride: Shape
    padding: Sides
    dilation: Shape
    groups: int
    transposed: bool = False
    output_padding: Shape = ()

    @property
    def out(self) -> Shape:
        """Spatial size of what the layer gives; ``ArgumentError`` where there is none."""
        if not self.transposed:
            return output_shape(self.size, self.kernel, self.stride, self.padding, self.dilation)
        axes = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        extra = self.output_padding or (0,) * len(self.size)
        out = tuple(
            (x - 1) * s - sum(sides) + d * (k - 1) + 1 + more
            for (x, k, s, sides, d), more in zip(axes, extra, strict=True)
        )
        if min(out) < 1:
            raise ArgumentError(
                f"the transposed layer would give {out}, at least one position is needed in every "
                "dimension; use a smaller --padding, or a larger --size or --kernel"
            )
        return out

    @property
    def x_shape(self) -> Shape:
        """The input, channels first."""
        return (self.n, self.cin, *self.size)

    @property
    def dy_shape(self) -> Shape:
        """The gradient of the output, channels first."""
        return (self.n, self.cout, *self.out)

    @property
    def w_shape(self) -> Shape:
        """The weight: (Cout, Cin/groups, ...), of a transposed layer (Cin, Cout/groups, ...)."""
        first, last = (self.cin, self.cout) if self.transposed else (self.cout, self.cin)
        return (first, last // self.groups, *self.kernel)

    def reads(self, out: Shape) -> Sides:
        """Padding with which a plain convolution reads ``out`` at exactly ``size`` places.

        This is a transposed layer seen from its output. Below and to the right it may be less
        than none, where the output goes on after the last read.
        """
        axes = zip(
            self.size, out, self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        return tuple(
            (before, (x - 1) * s + d * (k - 1) + 1 - before - y)
            for x, y, k, s, (before, _), d in axes
        )

    @property
    def sides(self) -> list[int]:
        """Padding as [before, after, before, ...]."""
        return [side for both in self.padding for side in both]


def add_arguments(parser: Parser) -> None:
    """Declare the options that say which convolution (or which windows)."""
    group = parser.add_argument_group(
        "sizes of convolutions",
        "HxW stands for one entry per spatial dimension: 32, 14x14 or 4x16x16.\n"
        "One number alone counts for every dimension.",
    )
    add, least_1, size = group.add_argument, integer(1), sizes(1)
    add(
        "--layer",
        metavar="WORKLOAD/LAYER",
        help="a layer such as resnet50/res4_3x3 (see 'npusim workloads'), instead of its sizes",
    )
    add(
        "--batch",
        type=integer(0),
        metavar="N",
        help="images; im2col_backward: 0 for operands without this axis (default: as in --input, "
        "else 1)",
    )
    add("--cin", type=least_1, metavar="N", help="input channels (default: as in --input)")
    add("--cout", type=least_1, metavar="N", help="output channels (default: as in --input)")
    add("--size", type=size, metavar="HxW", help="input size, pixels (default: as in --input x)")
    add("--kernel", type=size, metavar="HxW", help="filter size, taps (default: as in --input w)")
    add("--stride", type=size, metavar="HxW", help="stride, pixels (default: 1)")
    add(
        "--padding",
        type=padding,
        metavar="U,D,L,R",
        help="zeros around the input: up, down, left, right (3-D: front and tail first), HxW, or "
        "one number (default: 0)",
    )
    add("--dilation", type=size, metavar="HxW", help="distance of taps, pixels (default: 1)")
    add("--groups", type=least_1, metavar="N", help="groups of channels (default: 1)")
    add(
        "--output-padding",
        type=sizes(0),
        metavar="HxW",
        help="transposed layers: extra rows and columns of the output (default: 0)",
    )


def convolution(
    arguments: argparse.Namespace,
    inputs: Inputs,
    shown: Mapping[str, Shape],
    dims: int | None,
    *,
    layers: bool = True,
) -> Convolution:
    """The convolution of --layer, or of --cin, --cout, ... and of operands given as files.

    ``shown`` are shapes of operands x, dy and w, channels first, as far as files show them;
    ``dims`` is the operator's number of spatial dimensions, None for any. ``layers`` says whether
    the operator takes --layer.
    """
    transposed = bool(arguments.transposed)
    if arguments.layer:
        return _from_layer(arguments, inputs, shown, dims)
    _check_complete(arguments, shown, layers)
    dims = dims or _dims(arguments, shown)
    groups = arguments.groups or 1
    cin, cout = _channels(arguments, inputs, shown, transposed=transposed)
    if cin % groups or cout % groups:
        raise ArgumentError(
            f"--groups is {groups}, which must divide both --cin ({cin}) and --cout ({cout}); "
            "change one of them"
        )
    return Convolution(
        n=batch(arguments, inputs, shown),
        cin=cin,
        cout=cout,
        size=per_dim("size", arguments.size or shown["x"][2:], dims),
        kernel=per_dim("kernel", arguments.kernel or shown["w"][2:], dims),
        stride=per_dim("stride", arguments.stride or (1,), dims),
        padding=_padding(arguments.padding or 0, dims),
        dilation=per_dim("dilation", arguments.dilation or (1,), dims),
        groups=groups,
        transposed=transposed,
        output_padding=per_dim("output-padding", arguments.output_padding or (0,), dims),
    )


def _from_layer(
    arguments: argparse.Namespace, inputs: Inputs, shown: Mapping[str, Shape], dims: int | None
) -> Convolution:
    """The convolution of --layer, which leaves only the batch open."""
    given = (*SIZES, "transposed", "output_padding")
    also = [f"--{name.replace('_', '-')}" for name in given if getattr(arguments, name) is not None]
    if also:
        raise ArgumentError(
            f"--layer {arguments.layer} gives all sizes, so {', '.join(also)} cannot be given "
            "too; drop --layer or the sizes"
        )
    layer = find_layer(arguments.layer)
    if dims not in (None, layer.dims):
        raise ArgumentError(
            f"--layer {arguments.layer} has {layer.dims} spatial dimensions; "
            f"{arguments.operator} takes layers with {dims}"
        )
    return Convolution(
        n=batch(arguments, inputs, shown),
        cin=layer.cin,
        cout=layer.cout,
        size=layer.spatial,
        kernel=layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
    )


def _check_complete(
    arguments: argparse.Namespace, shown: Mapping[str, Shape], layers: bool
) -> None:
    """Raise unless every size that has no default is stated or shown by an operand."""
    shows = {"cin": ("x", "w"), "cout": ("dy", "w"), "size": ("x",), "kernel": ("w",)}
    missing = [
        f"--{name}"
        for name, operands in shows.items()
        if getattr(arguments, name) is None and not any(o in shown for o in operands)
    ]
    if missing:
        raise ArgumentError(
            f"{arguments.operator} needs {'--layer WORKLOAD/LAYER, or ' * layers}--cin, --cout, "
            f"--size and --kernel; missing: {', '.join(missing)}; --input of an operand that shows "
            "a size will do too"
        )


def _dims(arguments: argparse.Namespace, shown: Mapping[str, Shape]) -> int:
    """The number of spatial dimensions: what files have, else the most that an option states."""
    for shape in shown.values():
        return len(shape) - 2
    stated = [getattr(arguments, name) for name in _PER_DIM]
    return max(len(value) for value in stated if isinstance(value, tuple))


def _channels(
    arguments: argparse.Namespace, inputs: Inputs, shown: Mapping[str, Shape], *, transposed: bool
) -> tuple[int, int]:
    """Input and output channels, stated or shown; the weight shows both."""
    cin = {name: shown[name][1] for name in ("x",) if name in shown}
    cout = {name: shown[name][1] for name in ("dy",) if name in shown}
    if "w" in shown:
        first, per_group = shown["w"][:2]
        other = per_group * (arguments.groups or 1)
        cin["w"], cout["w"] = (first, other) if transposed else (other, first)
    return (
        inputs.size("--cin", arguments.cin, cin),
        inputs.size("--cout", arguments.cout, cout),
    )


def batch(arguments: argparse.Namespace, inputs: Inputs, shown: Mapping[str, Shape]) -> int:
    """Images: stated, or the first axis of operands given as files, whatever their layout."""
    found = {name: array.shape[0] for name, array in inputs.arrays.items() if name in ("x", "dy")}
    stated = arguments.batch if arguments.batch is not None or found else 1
    count = inputs.size("--batch", stated, found)
    if not count:
        raise ArgumentError(f"--batch is 0; {arguments.operator} needs at least 1 image")
    return count


def per_dim(option: str, values: Sequence[int], dims: int) -> Shape:
    """One entry per spatial dimension; a single one counts for all."""
    if len(values) not in (1, dims):
        raise ArgumentError(
            f"--{option} {'x'.join(map(str, values))} has {len(values)} entries; this call has "
            f"{dims} spatial dimension{'s' * (dims > 1)}, so give {dims}, or one for all"
        )
    return tuple(values) if len(values) == dims else (values[0],) * dims


def _padding(value: int | Sides, dims: int) -> Sides:
    """(before, after) of every spatial dimension."""
    if isinstance(value, int):
        return ((value, value),) * dims
    if len(value) != dims:
        text = ",".join(str(side) for both in value for side in both)
        raise ArgumentError(
            f"--padding has {len(value)} pair{'s' * (len(value) > 1)} of sides ({text}); this call "
            f"has {dims} spatial dimension{'s' * (dims > 1)}, so give {2 * dims} sides, or one "
            "number"
        )
    return value
