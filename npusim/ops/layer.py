"""A convolution as options state it, and the problem of a call that several operators share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from npusim.base.dtypes import FP32, DType, dtype, promote
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.rounding import round_hf32
from npusim.call.spec import Array
from npusim.ops.card import Sample, Stated
from npusim.ops.cube_math import CubeMath, cube_math
from npusim.problem.convolution import Convolution, Sides, Sizes
from npusim.problem.reference import conv_filter_grad, conv_forward, conv_input_grad
from npusim.workloads import ConvLayer


class Wanted(Struct, frozen=True, kw_only=True):
    """A call: the layer, whether a bias is added, the gradients wanted, the arithmetic."""

    c: Convolution
    bias: bool = False
    mask: tuple[bool, ...] = (True,) * 3
    cube_math_type: int = 0

    def weight_axes(self) -> str:
        """The axes of a weight in words."""
        return "Cin, Cout/groups, ..." if self.c.transposed else "Cout, Cin/groups, ..."


def wanted(stated: Stated, c: Convolution) -> Wanted:
    """The call of a command line whose layer is known."""
    return Wanted(
        c=c,
        bias=bool(stated["bias"] or "bias" in stated.arrays),
        mask=stated["mask"] or (True,) * 3,
        cube_math_type=stated["cube_math_type"] or 0,
    )


def with_bias(sample: Sample[Wanted], array: Array) -> Array:
    """A result (N, C, ...) without its bias, with it where there is one."""
    if not sample.problem.bias:
        return array
    row = sample.arrays["bias"].astype(np.float64).reshape(-1, *(1,) * sample.problem.c.dims)
    total: Array = array + row
    return total


#: Options that state a layer's sizes, which --layer states all at once.
_SIZES = (
    "cin",
    "cout",
    "size",
    "kernel",
    "stride",
    "padding",
    "dilation",
    "groups",
    "transposed",
    "output_padding",
)

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
    also = [f"--{name.replace('_', '-')}" for name in _SIZES if stated[name] is not None]
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
        layer = "--layer WORKLOAD/LAYER, or " if layers else ""
        raise ArgumentError(
            f"{stated.operator} needs {layer}--cin, --cout, "
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
    shown = {name: array.shape[0] for name, array in stated.arrays.items() if name in ("x", "dy")}
    count = 1 if stated["batch"] is None and not shown else stated.size("batch", shown)
    if not count:
        raise ArgumentError(f"--batch is 0; {stated.operator} needs at least 1 image")
    return count


def _padding(value: int | Sides, dims: int) -> Sides:
    """(before, after) of every spatial dimension."""
    if isinstance(value, int):
        return ((value, value),) * dims
    if len(value) != dims:
        text = ",".join(str(side) for both in value for side in both)
        pairs = "pairs" if len(value) > 1 else "pair"
        raise ArgumentError(
            f"--padding has {len(value)} {pairs} of sides ({text}); this call "
            f"has {_axes(dims)}, so give {2 * dims} sides, or one number"
        )
    return value


def _axes(dims: int) -> str:
    """A number of dimensions in words."""
    return f"{dims} spatial dimensions" if dims > 1 else "1 spatial dimension"


# -- operands and results in the layouts of frameworks ------------------------------------------


def stated_plain(stated: Stated) -> Wanted:
    """The call of a command line, its sizes from --layer, from options, or from operands."""
    shown = {name: array.shape for name, array in stated.arrays.items() if name != "bias"}
    for name, shape in shown.items():
        if len(shape) not in (3, 4, 5):
            raise ArgumentError(
                f"{stated.file(name)}; it must have 3 (NCL), 4 (NCHW) or 5 axes (NCDHW)"
            )
    c = stated_layer(stated, shown, None, transposed=bool(stated["transposed"]))
    return wanted(stated, c)


def sample_type(sample: Sample[Wanted], *names: str) -> DType:
    """The type that operands are computed in together."""
    return promote((dtype(sample.arrays[name].dtype) for name in names), FP32)


def sample_math(sample: Sample[Wanted], *names: str) -> CubeMath:
    """The arithmetic of the cube for operands."""
    promoted = sample_type(sample, *names)
    return cube_math(promoted, sample.problem.cube_math_type, sample.device)


def seen(sample: Sample[Wanted], *names: str) -> dict[str, Array]:
    """Operands as the cube sees them."""
    math, cube = sample_math(sample, *names), sample.device.cube
    bits = cube.hf32_bits if cube is not None else 0
    arrays = {name: sample.arrays[name] for name in names}
    if math.hf32:
        return {n: round_hf32(array.astype(FP32.numpy), bits) for n, array in arrays.items()}
    return {name: array.astype(math.dtype.numpy) for name, array in arrays.items()}


def expected(c: Convolution, result: str, arrays: Mapping[str, Array]) -> Array:
    """The "output", "grad_input" or "grad_weight" of a layer in float64, channels first.

    It is computed of those of x, w and dy that it needs. What a transposed layer makes forward is
    the input gradient of the plain one underneath, and the other way round.
    """
    transposed_layer = c if c.transposed else c.exchanged()
    window = (c.stride, transposed_layer.reads, c.dilation, c.groups)
    if result == "grad_weight":
        first, last = ("dy", "x") if c.transposed else ("x", "dy")
        return conv_filter_grad(arrays[first], arrays[last], c.kernel, *window)
    forward = result == "output"
    source = arrays["x" if forward else "dy"]
    shape = c.dy_shape if forward else c.x_shape
    if forward != c.transposed:
        return conv_forward(source, arrays["w"], *window)
    return conv_input_grad(source, arrays["w"], shape, *window)


def computed(result: str, *names: str) -> Callable[[Sample[Wanted]], Array]:
    """A function that computes a result in float64 of operands as the cube sees them.

    The bias of the call is added.
    """

    def of_call(sample: Sample[Wanted]) -> Array:
        return with_bias(sample, expected(sample.problem.c, result, seen(sample, *names)))

    return of_call
