"""A convolution as the tensor compiler's blocked layouts hold it: operands, results, problems."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from npusim.base.dtypes import FP16, DType
from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div
from npusim.base.records import replace
from npusim.call.spec import Array
from npusim.ops.card import LIMITS, Input, Output, Sample, Stated
from npusim.ops.layer import Wanted, expected, stated_layer, wanted, with_bias
from npusim.problem.convolution import Convolution, Sizes
from npusim.problem.layouts import FILTERS, MAPS


def stated_blocked(dims: int, *, depthwise: bool) -> Callable[[Stated], Wanted]:
    """A reader of command lines; operands with framework axes show sizes.

    A ``depthwise`` layer has as many groups as channels in and out.
    """

    def read(stated: Stated) -> Wanted:
        axes = dims + 2
        shown = {name: array.shape for name, array in stated.arrays.items() if array.ndim == axes}
        if depthwise and not stated["layer"]:
            shown_channels = {
                name: shape[0] if name == "w" else shape[1] for name, shape in shown.items()
            }
            channels = stated.size("cin", shown_channels)
            same = {"cin": channels, "cout": channels, "groups": channels}
            stated = replace(stated, options={**stated.options, **same})
        c = stated_layer(stated, shown, dims)
        if depthwise and not c.groups == c.cin == c.cout:
            raise ArgumentError(
                f"--layer {stated['layer'].name} has {c.cin} -> {c.cout} channels in {c.groups} "
                f"groups; {stated.operator} takes layers with as many groups as channels in and "
                f"out ({stated.operator.removeprefix('depthwise_')} takes any)"
            )
        return wanted(stated, c)

    return read


def blocked_map(name: str, dims: int) -> Input[Wanted]:
    """The operand "x" or "dy": 5HD in two dimensions, 6HD in three."""
    pack, unpack = MAPS[dims]

    def shape(p: Wanted) -> Sizes:
        return p.c.x_shape if name == "x" else p.c.dy_shape

    def packed(p: Wanted) -> Sizes:
        n, channels, *depth, height, width = shape(p)
        c0 = p.c.c0
        return (n, *depth, ceil_div(channels, c0), height, width, c0)

    return Input(
        name=name,
        axes=_MAP_AXES[dims],
        shape=shape,
        layout=f"{dims + 3}HD",
        packed=packed,
        pack=lambda p, array: pack(array, p.c.c0),
        unpack=lambda p, array: unpack(array, shape(p)[1]),
    )


def fractal_filter(dims: int) -> Input[Wanted]:
    """The operand "w": FRACTAL_Z in two dimensions, FRACTAL_Z_3D in three."""
    pack, unpack = FILTERS[dims]

    def packed(p: Wanted) -> Sizes:
        real_groups, rows, channels, c0 = fractal_columns(p.c)
        return (real_groups * rows, channels // 16, 16, c0)

    return Input(
        name="w",
        axes=_FILTER_AXES[dims],
        shape=lambda p: p.c.w_shape,
        layout=_FRACTALS[dims],
        packed=packed,
        pack=lambda p, w: pack(w, p.c.groups, p.c.c0),
        unpack=lambda p, w: unpack(w, p.c.w_shape, p.c.groups, p.c.c0),
    )


def fractal_columns(c: Convolution) -> Sizes:
    """A filter gradient's (real_g, KD * cin1_g * KH * KW, cout_g, C0), the bytes of FRACTAL_Z."""
    plan, depth = c.plan, c.lifted().kernel[0]
    return (plan.real_groups, depth * plan.cin1_g * c.taps, plan.cout_g, c.c0)


def blocked_input_grad(dims: int) -> Output[Wanted]:
    """The result (N, C1, H * W, 16), or with D behind N, of an input gradient."""

    def unpack(p: Wanted, dx: Array) -> Array:
        c = p.c
        _, unpack_map = MAPS[dims]
        return unpack_map(dx.reshape(*dx.shape[:-2], *c.spatial[-2:], c.c0), c.cin)

    def computed(sample: Sample[Wanted]) -> Array:
        return with_bias(sample, expected(sample.problem.c, "grad_input", sample.arrays))

    return Output(
        name="grad_input",
        layout="(N, D, C1, H*W, 16)" if dims == 3 else "(N, C1, H*W, 16)",
        axes="(N, Cin, D, H, W)" if dims == 3 else "(N, Cin, H, W)",
        unpack=unpack,
        expected=computed,
        limit=lambda _: LIMITS["fp16"],
    )


def fractal_filter_grad(dims: int) -> Output[Wanted]:
    """The result ``fractal_columns`` of a filter gradient."""

    def unpack(p: Wanted, dw: Array) -> Array:
        c = p.c
        fractals = dw.reshape(prod(dw.shape[:2]), dw.shape[2] // 16, 16, c.c0)
        _, unpack_filter = FILTERS[dims]
        return unpack_filter(fractals, c.w_shape, c.groups, c.c0)

    return Output(
        name="grad_weight",
        layout=_FRACTALS[dims],
        axes=f"({_FILTER_AXES[dims]})",
        unpack=unpack,
        expected=lambda sample: expected(sample.problem.c, "grad_weight", sample.arrays),
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


#: Axes of maps and of filters in words, by the number of spatial dimensions.
_MAP_AXES = {2: "NCHW", 3: "NCDHW"}
_FILTER_AXES = {2: "Cout, Cin/groups, KH, KW", 3: "Cout, Cin/groups, KD, KH, KW"}

#: Layouts of filters by the number of spatial dimensions.
_FRACTALS = {2: "FRACTAL_Z", 3: "FRACTAL_Z_3D"}
