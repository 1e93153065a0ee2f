"""A convolution as options state it, and as the tensor compiler's blocked layouts hold it.

Several operators share both. ``of`` gives the convolution of an operator's problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

from npusim.base.dtypes import FP16, DType
from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div
from npusim.call.spec import Array
from npusim.layout import (
    from_5hd,
    from_6hd,
    from_fracz,
    from_fracz_3d,
    to_5hd,
    to_6hd,
    to_fracz,
    to_fracz_3d,
)
from npusim.ops.card import (
    LIMITS,
    Input,
    Option,
    Output,
    Sample,
    Stated,
    integer,
    padding,
    sizes,
)
from npusim.shapes.convolution import Convolution, Sides, Sizes
from npusim.shapes.reference import conv_filter_grad, conv_input_grad
from npusim.workloads import ConvLayer, find_layer

P = TypeVar("P")

BATCH = Option("batch", integer(0), "N", "images (default: as in --input, else 1)")
SIZE = Option("size", sizes(1), "HxW", "input size, pixels (default: as in --input x)")
KERNEL = Option("kernel", sizes(1), "HxW", "filter size, taps (default: as in --input w)")
STRIDE = Option("stride", sizes(1), "HxW", "stride, pixels (default: 1)")
PADDING = Option(
    "padding",
    padding,
    "U,D,L,R",
    "zeros around the input: up, down, left, right (3-D: front and tail first), HxW, or one "
    "number (default: 0)",
)
DILATION = Option("dilation", sizes(1), "HxW", "distance of taps, pixels (default: 1)")

#: Options that state one convolution, which --layer states all at once.
SIZES = (
    Option("cin", integer(1), "N", "input channels (default: as in --input)"),
    Option("cout", integer(1), "N", "output channels (default: as in --input)"),
    *(SIZE, KERNEL, STRIDE, PADDING, DILATION),
    Option("groups", integer(1), "N", "groups of channels (default: 1)"),
)
OUTPUT_PADDING = Option(
    "output_padding",
    sizes(0),
    "HxW",
    "transposed layers: extra rows and columns of the output (default: 0)",
)


def read_layer(place: str) -> ConvLayer:
    """The layer of ``WORKLOAD/LAYER``, with this place for its name."""
    return replace(find_layer(place), name=place)


LAYER = Option(
    "layer",
    read_layer,
    "WORKLOAD/LAYER",
    "a layer such as resnet50/res4_3x3 (see 'npusim workloads'), instead of its sizes",
)

#: Options that state one depth-wise convolution, which has as many groups as channels.
DEPTHWISE_SIZES = (
    Option("cin", integer(1), "N", "channels (default: as in --input)"),
    *(SIZE, KERNEL, STRIDE, PADDING, DILATION),
)

#: A small depth-wise layer, as options.
DEPTHWISE_EXAMPLE = "--batch 2 --cin 24 --padding 1 --size 5x6 --kernel 3x3"

#: A small layer of one to three dimensions, 16 -> 32 channels, as options.
EXAMPLES = {
    dims: f"--batch 2 --cin 16 --cout 32 --padding 1 --size {size} --kernel {kernel}"
    for dims, size, kernel in ((1, "6", "3"), (2, "5x6", "3x3"), (3, "3x5x6", "3"))
}

#: Those with an entry per spatial dimension; the longest says how many there are.
_PER_DIM = ("size", "kernel", "stride", "padding", "dilation", "output_padding")


def stated_layer(
    stated: Stated,
    shown: Mapping[str, Sizes],
    dims: int | None,
    *,
    layers: bool = True,
    transposed: bool = False,
) -> Convolution:
    """The convolution of --layer, or of --cin, --cout, ... and of operands given as files.

    ``shown`` are shapes of operands x, dy and w, channels first, as far as files show them;
    ``dims`` is the operator's number of spatial dimensions, None for any. ``layers`` says whether
    the operator takes --layer.
    """
    if stated["layer"]:
        return _from_layer(stated, dims)
    _check_complete(stated, shown, layers)
    dims = dims or _dims(stated, shown)
    groups = stated["groups"] or 1
    cin, cout = _channels(stated, shown, transposed=transposed)
    if cin % groups or cout % groups:
        raise ArgumentError(
            f"--groups is {groups}, which must divide both --cin ({cin}) and --cout ({cout}); "
            "change one of them"
        )
    return Convolution(
        n=_batch(stated),
        cin=cin,
        cout=cout,
        spatial=per_axis(stated, "size", dims, shown.get("x", ())[2:]),
        kernel=per_axis(stated, "kernel", dims, shown.get("w", ())[2:]),
        stride=per_axis(stated, "stride", dims, (1,)),
        padding=_padding(stated["padding"] or 0, dims),
        dilation=per_axis(stated, "dilation", dims, (1,)),
        groups=groups,
        transposed=transposed,
        output_padding=per_axis(stated, "output_padding", dims, (0,)),
    )


def per_axis(stated: Stated, option: str, dims: int, usual: Sequence[int]) -> Sizes:
    """One entry per spatial dimension; a single one counts for all."""
    values = tuple(stated[option] or usual)
    if len(values) not in (1, dims):
        raise ArgumentError(
            f"--{option.replace('_', '-')} {'x'.join(map(str, values))} has {len(values)} entries; "
            f"this call has {_axes(dims)}, so give {dims}, or one for all"
        )
    return values if len(values) == dims else values * dims


def _from_layer(stated: Stated, dims: int | None) -> Convolution:
    """The convolution of --layer, which leaves only the batch open."""
    layer: ConvLayer = stated["layer"]
    name = layer.name
    given = (*(option.name for option in SIZES), "transposed", "output_padding")
    also = [f"--{name.replace('_', '-')}" for name in given if stated[name] is not None]
    if also:
        raise ArgumentError(
            f"--layer {name} gives all sizes, so {', '.join(also)} cannot be given too; drop "
            "--layer or the sizes"
        )
    if layer.transposed and "transposed" not in stated.options:
        raise ArgumentError(
            f"--layer {name} is transposed; {stated.operator} takes ordinary layers "
            "(convolution_backward takes both)"
        )
    if dims not in (None, layer.dims):
        raise ArgumentError(
            f"--layer {name} has {_axes(layer.dims)}; {stated.operator} takes layers with {dims}"
        )
    return replace(layer, n=_batch(stated))


def _check_complete(stated: Stated, shown: Mapping[str, Sizes], layers: bool) -> None:
    """Raise unless every size that has no default is stated or shown by an operand."""
    shows = {"cin": ("x", "w"), "cout": ("dy", "w"), "size": ("x",), "kernel": ("w",)}
    missing = [
        f"--{name}"
        for name, operands in shows.items()
        if stated[name] is None and not any(o in shown for o in operands)
    ]
    if missing:
        raise ArgumentError(
            f"{stated.operator} needs {'--layer WORKLOAD/LAYER, or ' * layers}--cin, --cout, "
            f"--size and --kernel; missing: {', '.join(missing)}; --input of an operand that shows "
            "a size will do too"
        )


def _dims(stated: Stated, shown: Mapping[str, Sizes]) -> int:
    """The number of spatial dimensions: what files have, else the most that an option states."""
    for shape in shown.values():
        return len(shape) - 2
    values = [stated[name] for name in _PER_DIM]
    return max(len(value) for value in values if isinstance(value, tuple))


def _channels(stated: Stated, shown: Mapping[str, Sizes], *, transposed: bool) -> tuple[int, int]:
    """Input and output channels, stated or shown; the weight shows both."""
    cin = {name: shown[name][1] for name in ("x",) if name in shown}
    cout = {name: shown[name][1] for name in ("dy",) if name in shown}
    if "w" in shown:
        first, per_group = shown["w"][:2]
        other = per_group * (stated["groups"] or 1)
        cin["w"], cout["w"] = (first, other) if transposed else (other, first)
    return stated.size("cin", cin), stated.size("cout", cout)


def _batch(stated: Stated) -> int:
    """Images: stated, or the first axis of operands given as files, whatever their layout."""
    found = {name: array.shape[0] for name, array in stated.arrays.items() if name in ("x", "dy")}
    count = 1 if stated["batch"] is None and not found else stated.size("batch", found)
    if not count:
        raise ArgumentError(f"--batch is 0; {stated.operator} needs at least 1 image")
    return count


def _padding(value: int | Sides, dims: int) -> Sides:
    """(before, after) of every spatial dimension."""
    if isinstance(value, int):
        return ((value, value),) * dims
    if len(value) != dims:
        text = ",".join(str(side) for both in value for side in both)
        raise ArgumentError(
            f"--padding has {len(value)} pair{'s' * (len(value) > 1)} of sides ({text}); this call "
            f"has {_axes(dims)}, so give {2 * dims} sides, or one number"
        )
    return value


def _axes(dims: int) -> str:
    """A number of dimensions in words."""
    return f"{dims} spatial dimension{'s' * (dims > 1)}"


# -- operands and results in blocked layouts ---------------------------------------------------


def itself(c: Convolution) -> Convolution:
    """The convolution of a problem that is nothing else."""
    return c


def stated_blocked(dims: int) -> Callable[[Stated], Convolution]:
    """A reader of command lines; operands with framework axes show sizes."""

    def read(stated: Stated) -> Convolution:
        axes = dims + 2
        shown = {name: array.shape for name, array in stated.arrays.items() if array.ndim == axes}
        return stated_layer(stated, shown, dims)

    return read


def stated_depthwise(stated: Stated) -> Convolution:
    """A reader of command lines for layers with as many groups as channels in and out."""
    if stated["layer"]:
        c, name = stated_layer(stated, {}, 2), stated["layer"].name
        if not c.groups == c.cin == c.cout:
            raise ArgumentError(
                f"--layer {name} has {c.cin} -> {c.cout} channels in {c.groups} groups; "
                f"{stated.operator} takes layers with as many groups as channels in and out "
                f"({stated.operator.removeprefix('depthwise_')} takes any)"
            )
        return c
    shown = {name: array.shape for name, array in stated.arrays.items() if array.ndim == 4}
    found = {name: shape[0 if name == "w" else 1] for name, shape in shown.items()}
    channels = dict.fromkeys(("cin", "cout", "groups"), stated.size("cin", found))
    return stated_layer(replace(stated, options={**stated.options, **channels}), shown, 2)


def blocked_map(name: str, dims: int, of: Callable[[P], Convolution]) -> Input[P]:
    """The operand "x" or "dy": 5HD in two dimensions, 6HD in three."""
    pack, unpack = (to_5hd, from_5hd) if dims == 2 else (to_6hd, from_6hd)

    def shape(problem: P) -> Sizes:
        c = of(problem)
        return c.x_shape if name == "x" else c.dy_shape

    def packed(problem: P) -> Sizes:
        n, channels, *depth, height, width = shape(problem)
        c0 = of(problem).c0
        return (n, *depth, ceil_div(channels, c0), height, width, c0)

    return Input(
        name=name,
        axes=f"NC{'DHW'[3 - dims :]}",
        shape=shape,
        layout=f"{dims + 3}HD",
        packed=packed,
        pack=lambda problem, array: pack(array, of(problem).c0),
        unpack=lambda problem, array: unpack(array, shape(problem)[1]),
    )


def fractal_filter(dims: int, of: Callable[[P], Convolution]) -> Input[P]:
    """The operand "w": FRACTAL_Z in two dimensions, FRACTAL_Z_3D in three."""
    pack, unpack = (to_fracz, from_fracz) if dims == 2 else (to_fracz_3d, from_fracz_3d)

    def packed(problem: P) -> Sizes:
        columns, (real, rows, channels, c0) = 16, fractal_columns(of(problem))
        return (real * rows, channels // columns, columns, c0)

    return Input(
        name="w",
        axes=_filter_axes(dims),
        shape=lambda problem: of(problem).w_shape,
        layout=_FRACTALS[dims],
        packed=packed,
        pack=lambda problem, w: pack(w, of(problem).groups, of(problem).c0),
        unpack=lambda problem, w: unpack(
            w, of(problem).w_shape, of(problem).groups, of(problem).c0
        ),
    )


def fractal_columns(c: Convolution) -> Sizes:
    """A filter gradient's (real_g, KD * cin1_g * KH * KW, cout_g, C0), the bytes of FRACTAL_Z."""
    plan, depth = c.plan, c.lifted().kernel[0]
    return (plan.real_groups, depth * plan.cin1_g * c.taps, plan.cout_g, c.c0)


def blocked_input_grad(dims: int, of: Callable[[P], Convolution]) -> Output[P]:
    """The result (N, C1, H * W, 16), or with D behind N, of an input gradient."""

    def unpack(problem: P, dx: Array) -> Array:
        c = of(problem)
        (height, width), whole = c.spatial[-2:], from_5hd if dims == 2 else from_6hd
        return whole(dx.reshape(*dx.shape[:-2], height, width, c.c0), c.cin)

    def expected(sample: Sample[P]) -> Array:
        c, dy, w = of(sample.problem), sample.arrays["dy"], sample.arrays["w"]
        return conv_input_grad(dy, w, c.x_shape, c.stride, c.padding, c.dilation, c.groups)

    axes = ", ".join("DHW"[3 - dims :])
    return Output(
        name="grad_input",
        layout=f"(N, {'D, ' * (dims == 3)}C1, H*W, 16)",
        axes=f"(N, Cin, {axes})",
        unpack=unpack,
        expected=expected,
        limit=lambda _: LIMITS["fp16"],
    )


def fractal_filter_grad(dims: int, of: Callable[[P], Convolution]) -> Output[P]:
    """The result ``fractal_columns`` of a filter gradient."""

    def unpack(problem: P, dw: Array) -> Array:
        c, rows = of(problem), prod(dw.shape[:2])
        fractals = dw.reshape(rows, dw.shape[2] // 16, 16, c.c0)
        whole = from_fracz if dims == 2 else from_fracz_3d
        return whole(fractals, c.w_shape, c.groups, c.c0)

    def expected(sample: Sample[P]) -> Array:
        c, x, dy = of(sample.problem), sample.arrays["x"], sample.arrays["dy"]
        return conv_filter_grad(x, dy, c.kernel, c.stride, c.padding, c.dilation, c.groups)

    return Output(
        name="grad_weight",
        layout=_FRACTALS[dims],
        axes=f"({_filter_axes(dims)})",
        unpack=unpack,
        expected=expected,
        limit=lambda _: LIMITS["fp32"],
    )


def blocked_problem(gradient: str, c: Convolution, result: DType) -> str:
    """One line for reports: the ``gradient`` "dx" or "dw" of fp16 operands."""
    x, dy, taps = ("x".join(map(str, sizes)) for sizes in (c.spatial, c.out, c.kernel))
    return (
        f"{gradient} of {c.cin} -> {c.cout} channels, {taps}, stride {list(c.stride)}, pad "
        f"{c.sides}{c.unusual}; x {c.n}x{x}, dy {c.n}x{dy}; fp16"
        f"{'' if result is FP16 else f' -> {result}'}"
    )


def described(
    n: int, cin: int, spatial: Sizes, filter_sizes: Sizes, parts: tuple[Sizes, Sizes, Sizes]
) -> Convolution:
    """The convolution of a ``para_dict``.

    ``filter_sizes`` is [Cout, Cin / groups, ...]; ``parts`` are strides, [before, after, ...] of
    every axis, and dilations, without entries for N and C.
    """
    (cout, per_group, *kernel), (strides, pads, dilations) = filter_sizes, parts
    return Convolution(
        n=n,
        cin=cin,
        cout=cout,
        spatial=tuple(spatial),
        kernel=tuple(kernel),
        stride=tuple(strides),
        padding=tuple(zip(pads[::2], pads[1::2], strict=True)),
        dilation=tuple(dilations),
        groups=cin // per_group,
    )


def _filter_axes(dims: int) -> str:
    """The axes of a filter in words."""
    return ", ".join(("Cout", "Cin/groups", *(f"K{axis}" for axis in "DHW"[3 - dims :])))


#: Layouts of filters by the number of spatial dimensions.
_FRACTALS = {2: "FRACTAL_Z", 3: "FRACTAL_Z_3D"}
