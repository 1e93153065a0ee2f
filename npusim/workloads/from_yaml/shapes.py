"""Shapes that follow in a chain: those in which a step reads its values, and that of its result.

All have the images along their first axis: one, or more where frames or patches of an image are
folded into them. As text ``[64, 56, 56]`` are the sizes of one image, ``8 x [64, 56, 56]`` those of
each of eight.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from npusim.problem.convolution import output_sizes
from npusim.workloads.elementwise import ElementwiseLayer, Sides
from npusim.workloads.graph import Sizes
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer
from npusim.workloads.numbers import FEW

#: A positive integer in a chain.
NUMBER = r"[1-9]\d{0,8}"

#: Sizes in a chain; ``number`` is a value of no axes.
SIZES = rf"(?:{NUMBER} x \[(?:{NUMBER}(?:, ?{NUMBER})*)?\]|\[{NUMBER}(?:, ?{NUMBER})*\]|number)"

#: Kinds whose results have sizes that do not follow.
_STATED = ("upsample", "interpolate", "expand", "reduce_sum", "embedding")

#: Kinds whose operands of fewer axes are repeated along the axes that they lack.
_REPEATED = ("add", "sub", "mul", "div", "scale", "shift")


def sizes_of(text: str) -> Sizes:
    """The shape that a text of the form ``SIZES`` states."""
    if text == "number":
        return ()
    images, _, sizes = text.rpartition("x")
    return (int(images or 1), *(int(size) for size in re.findall(r"\d+", sizes)))


def sizes_text(shape: Sizes | None) -> str:
    """The text of a shape, "[]" of one that is not known."""
    if shape is None:
        return "[]"
    if not shape:
        return "number"
    images, *sizes = shape
    if images == 1 and sizes:
        return str(sizes)
    return f"{images} x {sizes}"


# -- layers that multiply ----------------------------------------------------------------------


def first_operand(layer: Layer) -> Sizes:
    """The shape of what a layer reads; of two matrices, of the left one."""
    if isinstance(layer, ConvLayer):
        return layer.x_shape
    rows = (layer.cin, layer.rows) if layer.left_transposed else (layer.rows, layer.cin)
    if layer.products:
        return (layer.n, layer.products, *rows)
    return (layer.n, *rows) if layer.rows > 1 else (layer.n, layer.cin)


def second_operand(layer: Layer) -> Sizes:
    """The shape of a computed right matrix, or of weights that are computed."""
    if isinstance(layer, ConvLayer):
        return layer.w_shape
    matrix = (layer.cout, layer.cin) if layer.right_transposed else (layer.cin, layer.cout)
    return (layer.n, layer.products, *matrix) if layer.products else matrix


def operands(layer: Layer, shapes: Sequence[Sizes], count: int = 1) -> list[Sizes] | None:
    """The shapes in which a layer reads values of these ``shapes``, None where they do not fit.

    A convolution takes its own sizes alone. A linear layer takes any sizes that end with its
    features, and one of one row any sizes of as many elements. Of a layer that runs ``count`` times
    every value is read as it is.
    """
    if count > 1:
        return list(shapes)
    first = _left_operand(layer, shapes[0])
    second = second_operand(layer)
    if first is None or any(prod(other) != prod(second) for other in shapes[1:]):
        return None
    return [first, *(second for _ in shapes[1:])]


def _left_operand(layer: Layer, shape: Sizes) -> Sizes | None:
    """The shape in which a layer reads its first operand of this ``shape``."""
    usual = first_operand(layer)
    if isinstance(layer, ConvLayer) or prod(shape) != prod(usual):
        return usual if shape == usual else None
    if layer.products:
        return usual
    if not layer.left_transposed and len(shape) > 1 and shape[-1] == layer.cin:
        return shape
    return usual if layer.rows == 1 or shape == usual else None


def result(layer: Layer, shape: Sizes, count: int = 1) -> Sizes:
    """The shape of what a layer makes of a value that it reads in this ``shape``."""
    if isinstance(layer, ConvLayer):
        out = layer.dy_shape
    elif layer.products:
        out = (layer.n, layer.products, layer.rows, layer.cout)
    elif len(shape) > 2 and shape[-1] == layer.cin and layer.rows > 1 and count == 1:
        out = (*shape[:-1], layer.cout)
    else:
        out = (layer.n, layer.rows, layer.cout) if layer.rows > 1 else (layer.n, layer.cout)
    return (count * out[0], *out[1:])


# -- layers that multiply nothing --------------------------------------------------------------


def one_round(shape: Sizes, count: int) -> Sizes:
    """The shape that a step which runs ``count`` times reads each time of one in this ``shape``.

    One that has as many parts along its first axis, or a few more, is read part by part, any other
    as a whole.
    """
    if not shape or shape[0] < count:
        return shape
    return (shape[0] // count, *shape[1:])


def aligned(kind: str, shapes: Sequence[Sizes]) -> list[Sizes]:
    """The shapes in which a layer of ``kind`` reads several values.

    An operand of fewer axes than the largest has one number for each channel if it has the sizes of
    the largest's first axes, else one for each element of its last axes; the axes that it lacks are
    read as ones.
    """
    largest = max(shapes, key=prod)
    if kind not in _REPEATED:
        return list(shapes)
    return [_of_axes(shape, largest) for shape in shapes]


def _of_axes(shape: Sizes, largest: Sizes) -> Sizes:
    """A shape with ones for the axes that the ``largest`` has besides."""
    missing = (1,) * (len(largest) - len(shape))
    if not missing or not shape or shape[0] not in (1, largest[0]):
        return shape
    if len(shape) > 1 and shape == largest[: len(shape)]:
        return shape + missing
    return (shape[0], *missing, *shape[1:])


def inferred(
    kind: str,
    shapes: Sequence[Sizes | None],
    *,
    kernel: Sizes = (),
    stride: Sizes = (),
    padding: Sides = (),
    axes: Sizes = (),
) -> Sizes | None:
    """The shape of the result of an element-wise layer, None where it does not follow."""
    stated = [shape for shape in shapes if shape is not None]
    if kind in _STATED or len(stated) < len(shapes):
        return None
    largest = max(stated, key=prod)
    out: Sizes | None = largest
    if kind in ("pad", "slice"):
        out = _cut(largest, padding, stride)
    elif kind == "permute":
        out = tuple(largest[axis] for axis in axes)
    elif kind == "concat":
        out = _joined(stated, axes[0] if axes else 1)
    elif kernel:
        out = _pooled(largest, kernel, stride, padding)
    elif kind.endswith("_pool"):
        out = (*largest[:2], *(1 for _ in largest[2:]))
    elif kind in FEW and len(set(stated)) > 1:
        out = None
    return out


def _cut(shape: Sizes, padding: Sides, stride: Sizes) -> Sizes | None:
    """The shape after elements at both sides of each axis are left out or added."""
    if len(padding) != len(shape):
        return None
    sizes = [size + sum(side) for size, side in zip(shape, padding, strict=True)]
    steps = stride or (1,) * len(sizes)
    cut = tuple(-(-size // step) for size, step in zip(sizes, steps, strict=True))
    return cut if min(sizes, default=0) > 0 else None


def _joined(shapes: Sequence[Sizes], axis: int) -> Sizes | None:
    """Values one behind the other along an axis, if they are alike along all others."""
    others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(others) > 1 or any(len(shape) <= axis for shape in shapes):
        return None
    first = shapes[0]
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def _pooled(shape: Sizes, kernel: Sizes, stride: Sizes, padding: Sides) -> Sizes | None:
    """Places of windows along the last axes, behind those of images and channels."""
    dims = len(kernel)
    if dims > len(shape) - 2:
        return None
    outer = shape[:-dims]
    inner = shape[-dims:]
    places = output_sizes(inner, kernel, stride, padding, (1,) * dims)
    return (*outer, *places) if min(places) > 0 else None


def made_by(layer: ElementwiseLayer, shapes: Sequence[Sizes]) -> Sizes | None:
    """``inferred`` for a layer that is known."""
    return inferred(
        layer.kind,
        shapes,
        kernel=layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        axes=layer.axes,
    )


def is_product(layer: Layer | ElementwiseLayer) -> bool:
    """Return whether a layer multiplies two computed matrices."""
    return isinstance(layer, LinearLayer) and layer.products > 0
