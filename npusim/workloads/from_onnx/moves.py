"""Operators of an ONNX file that move elements: views, parts, joins, paddings, enlarging."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx.nodes import Step, fault
from npusim.workloads.from_onnx.values import OnnxValue, Values

Sizes = tuple[int, ...]

#: Nodes whose result is their first operand: as it lies, or in another shape.
SAME = ("Identity", "Cast", "CastLike", "DequantizeLinear", "QuantizeLinear")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def same(values: Values, step: Step) -> None:
    """A value under another name; one is quantised by a node, but a weight before anything runs."""
    quantised = step.kind in ("DequantizeLinear", "QuantizeLinear")
    value = values.value(step.inputs[0], trained=quantised and _large(values, step.inputs[0]))
    if quantised and not value.weight:
        values.unknown(step)
        return
    values.put(step.outputs[0], value)


def _large(values: Values, name: str) -> bool:
    return prod(values.sized.weights.get(name, ())) > 1


def view(values: Values, step: Step) -> None:
    """A value in another shape."""
    value = values.laid(values.value(step.inputs[0]), step)
    out = values.sized.shape(step, step.outputs[0])
    if prod(out) != prod(value.shape):
        raise fault(
            values.sized.file, step, f"it sees {list(value.shape)} as {list(out)}, which has other "
            "elements; give the input_shape (--input-shape) of which the file was exported"
        )  # fmt: skip
    values.put(step.outputs[0], value.seen(out))


def transpose(values: Values, step: Step) -> None:
    """A value with its axes in another order."""
    value = values.value(step.inputs[0])
    rank = len(value.shape)
    values.put(step.outputs[0], value.transposed(step.integers("perm", tuple(range(rank))[::-1])))


# -- parts ---------------------------------------------------------------------------------


def cut(
    values: Values,
    step: Step,
    value: OnnxValue,
    parts: Sequence[tuple[int, int, int]],
    *,
    part: str = "",
) -> OnnxValue:
    """A part of a value: (first, how many, step) along each axis; a view if that is all of it."""
    value = values.laid(value, step)
    shape = value.shape
    out = tuple(count for _, count, _ in parts)
    if out == shape:
        return value
    padding = tuple(
        (-first, -(size - first - (count - 1) * each - 1))
        for size, (first, count, each) in zip(shape, parts, strict=True)
    )
    strides = tuple(each for _, _, each in parts)
    layer = ElementwiseLayer(
        kind="slice", shape=shape, out=out, padding=padding,
        stride=strides if set(strides) != {1} else (),
    )  # fmt: skip
    return values.add(step, layer, [values.edge(value, step)], part=part, images=value.images)


def whole(shape: Sizes) -> list[tuple[int, int, int]]:
    """All of a value along each axis."""
    return [(0, size, 1) for size in shape]


def sliced(values: Values, step: Step) -> None:
    """Note a part between indices; one that runs backwards is known by name only."""
    value = values.value(step.inputs[0])
    starts = _stated(values, step, 1, "starts")
    ends = _stated(values, step, 2, "ends")
    axes = _stated(values, step, 3, "axes") or tuple(range(len(starts)))
    steps = values.whole(step.operand(4)) or (1,) * len(starts)
    if not starts or len(starts) != len(ends) or min(steps) < 1:
        values.unknown(step, "flip" if steps and min(steps) < 1 else "")
        return
    parts = whole(value.shape)
    for axis, start, end, each in zip(axes, starts, ends, steps, strict=True):
        taken = range(value.shape[axis])[start:end:each]
        parts[axis] = (taken.start, len(taken), each)
    values.put(step.outputs[0], cut(values, step, value, parts))


def _stated(values: Values, step: Step, place: int, name: str) -> Sizes:
    """Whole numbers that an operand has, or an attribute before operator set 10."""
    return values.whole(step.operand(place)) or step.integers(name)


def split(values: Values, step: Step) -> None:
    """Note the parts of a value that something reads."""
    value = values.value(step.inputs[0])
    axis = step.attributes.get("axis", 0) % len(value.shape)
    first = 0
    for index, name in enumerate(step.outputs):
        count = values.sized.shape(step, name)[axis]
        if values.readers.get(name) or values.outputs[name]:
            parts = whole(value.shape)
            parts[axis] = (first, count, 1)
            values.put(name, cut(values, step, value, parts, part=str(index)))
        first += count


def gather(values: Values, step: Step) -> None:
    """Note what is taken at indices: a part, or rows of a table."""
    value = values.value(step.inputs[0])
    out = values.sized.shape(step, step.outputs[0])
    axis = step.attributes.get("axis", 0) % len(value.shape)
    indices = values.constant(step.inputs[1])
    if indices is not None:
        taken = np.asarray(indices, np.int64).reshape(-1) % value.shape[axis]
        apart = set(np.diff(taken).tolist()) or {1}
        if len(apart) == 1 and min(apart) > 0:
            parts = whole(value.shape)
            parts[axis] = (int(taken[0]), len(taken), apart.pop())
            values.put(step.outputs[0], cut(values, step, value, parts).seen(out))
            return
    if axis or value.images:
        values.unknown(step)
        return
    places = values.value(step.inputs[1])
    table = (value.shape[0], prod(value.shape[1:]))
    shape = max(table, places.shape, key=prod)
    layer = ElementwiseLayer(kind="embedding", shape=shape, out=(*places.shape, table[1]))
    reads = [values.edge(value, step, table), values.edge(places, step)]
    result = values.add(step, layer, reads, images=places.images)
    values.put(step.outputs[0], result.seen(out))


# -- joins, paddings, copies ---------------------------------------------------------------


def concat(values: Values, step: Step) -> None:
    """Note a join along an axis; operands without elements take no part."""
    out = values.sized.shape(step, step.outputs[0])
    parts = [name for name in step.inputs if prod(values.sized.shape(step, name))]
    if len(parts) == 1:
        values.put(step.outputs[0], values.laid(values.value(parts[0]), step).seen(out))
        return
    several = [values.value(name) for name in parts]
    layer = ElementwiseLayer(kind="concat", shape=out, out=out)
    reads = [values.edge(value, step) for value in several]
    images = any(value.images for value in several)
    values.put(step.outputs[0], values.add(step, layer, reads, images=images))


def expand(values: Values, step: Step) -> None:
    """Note a value whose axes of one element are repeated."""
    value = values.value(step.inputs[0])
    out = values.sized.shape(step, step.outputs[0])
    values.put(step.outputs[0], values.expanded(value, step, out))


def tile(values: Values, step: Step) -> None:
    """Note a value that is repeated along axes: each is one of one element before the own ones."""
    value = values.laid(values.value(step.inputs[0]), step)
    out = values.sized.shape(step, step.outputs[0])
    lies: list[int] = []
    wide: list[int] = []
    for size, whole_size in zip(value.shape, out, strict=True):
        times = whole_size // size
        if times > 1 and size > 1:
            lies.append(1)
            wide.append(times)
        lies.append(size)
        wide.append(size if size > 1 else whole_size)
    result = values.expanded(value.seen(tuple(lies)), step, tuple(wide))
    values.put(step.outputs[0], result.seen(out))


def pad(values: Values, step: Step) -> None:
    """Note a padding; one with negative sides leaves elements out, before it adds others."""
    value = values.value(step.inputs[0])
    sides = _sides(values, step, len(value.shape))
    out = values.sized.shape(step, step.outputs[0])
    parts = [
        (max(0, -before), size + min(0, before) + min(0, after), 1)
        for size, (before, after) in zip(value.shape, sides, strict=True)
    ]
    added = tuple((max(0, before), max(0, after)) for before, after in sides)
    less = cut(values, step, value, parts, part="crop" if any(map(any, added)) else "")
    if less.shape == out:
        values.put(step.outputs[0], less)
        return
    number = step.attributes.get("value", 0.0)
    if step.operand(2):
        number = values.single(step.operand(2))
    zeros = step.attributes.get("mode", "constant") == "constant" and not number
    padding = added if zeros and any(map(any, added)) else ()
    layer = ElementwiseLayer(kind="pad", shape=less.shape, out=out, padding=padding)
    result = values.add(step, layer, [values.edge(less, step)], images=value.images)
    values.put(step.outputs[0], result)


def _sides(values: Values, step: Step, rank: int) -> list[tuple[int, int]]:
    """The elements that a padding puts before and after each axis; fewer than 0 are left out.

    Pads that the file computes are not known here: then the sizes of the result say what is added.
    """
    pads = values.whole(step.operand(1)) or step.integers("pads") or step.integers("paddings")
    axes = values.whole(step.operand(3)) or tuple(range(rank))
    sides = [(0, 0)] * rank
    if not pads:
        return sides
    if len(pads) != 2 * len(axes):
        raise fault(
            values.sized.file,
            step,
            f"it has {len(pads)} pads for {len(axes)} axes; give two for each axis",
        )
    before = pads[: len(axes)]
    after = pads[len(axes) :]
    for axis, first, last in zip(axes, before, after, strict=True):
        sides[axis] = (first, last)
    return sides


def blocks(values: Values, step: Step) -> None:
    """Note elements that go from channels to places of a map, or back."""
    value = values.laid(values.value(step.inputs[0]), step)
    n, c, h, w = value.shape
    size = int(step.attributes["blocksize"])
    if step.kind == "SpaceToDepth":
        seen: Sizes = (n, c, h // size, size, w // size, size)
        order = (0, 3, 5, 1, 2, 4)
    elif step.attributes.get("mode", "DCR") == "DCR":
        seen = (n, size, size, c // size**2, h, w)
        order = (0, 3, 4, 1, 5, 2)
    else:
        seen = (n, c // size**2, size, size, h, w)
        order = (0, 1, 4, 2, 5, 3)
    result = values.laid(value.seen(seen).transposed(order), step)
    values.put(step.outputs[0], result.seen(values.sized.shape(step, step.outputs[0])))


# -- enlarging -----------------------------------------------------------------------------

#: How places of a resized map lie where new elements are between two neighbours on each axis.
_BETWEEN = ("half_pixel", "pytorch_half_pixel", "align_corners")


def resize(values: Values, step: Step) -> None:
    """Note a map that is enlarged by repetition or between neighbours; else its name only."""
    value = values.value(step.inputs[0])
    out = values.sized.shape(step, step.outputs[0])
    if out == value.shape:
        values.put(step.outputs[0], value)
        return
    places = step.attributes.get("coordinate_transformation_mode", "half_pixel")
    mode = step.attributes.get("mode", "nearest")
    plain = not step.attributes.get("antialias", 0) and out[:2] == value.shape[:2]
    larger = all(new >= old for new, old in zip(out, value.shape, strict=True))
    kind = ""
    if mode == "nearest" and plain and larger and _repeats(step, places):
        kind = "upsample"
    elif mode == "linear" and plain and step.kind == "Resize" and places in _BETWEEN:
        kind = "interpolate"
    if not kind:
        values.unknown(step)
        return
    corners = kind == "interpolate" and places == "align_corners"
    layer = ElementwiseLayer(
        kind=kind, shape=value.shape, out=out, numbers=(1.0,) if corners else ()
    )
    result = values.add(step, layer, [values.edge(value, step)], images=value.images)
    values.put(step.outputs[0], result)


def _repeats(step: Step, places: str) -> bool:
    """Return whether the nearest element is that of which the new ones are repetitions."""
    if step.kind == "Upsample":
        return True
    usual = "floor" if places == "asymmetric" else "round_prefer_floor"
    stated = step.attributes.get("nearest_mode", "round_prefer_floor")
    return stated == usual and places != "align_corners"
