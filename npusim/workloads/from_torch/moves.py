"""Operations that move elements or show them otherwise: views, parts, copies, permutations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from npusim.base.records import replace
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_torch.reader import AtenCall, Reader, split_arguments
from npusim.workloads.from_torch.values import AxisOrder, TracedValue, narrowed, sizes_of, whole


def same(reader: Reader, call: AtenCall) -> TracedValue:
    """The operand itself: a copy, a cast, a change of the memory's format."""
    value: TracedValue = call.tensors[0]
    result = call.results
    constant = value.constant
    if constant is not None and constant.dtype != result.dtype:
        constant = constant.to(result.dtype)
    return replace(value, dtype=result.dtype, constant=constant)


def detach(reader: Reader, call: AtenCall) -> TracedValue:
    """The operand, and no gradient flows back."""
    return call.tensors[0].detached()


def view(reader: Reader, call: AtenCall) -> Any:
    """A view of the first operand, or several: what PyTorch makes of the tensor without data.

    A view that it cannot make without a copy is one of the tensor brought to its own order. One
    whose elements overlap or leave gaps is known by name.
    """
    value = call.tensors[0]
    shown = _applied(call, value.view)
    views = shown if isinstance(shown, (list, tuple)) else [shown]
    if any(view.untyped_storage()._cdata != value.view.untyped_storage()._cdata for view in views):
        value = reader.plain(value)
        shown = _applied(call, value.view)
        views = shown if isinstance(shown, (list, tuple)) else [shown]
    if not all(_is_dense(value, view) for view in views):
        return reader.named(call)
    constants = [None] * len(views)
    if value.constant is not None:
        result = _applied(call, value.constant)
        constants = list(result) if isinstance(result, (list, tuple)) else [result]
    results = [value.seen(view, constant) for view, constant in zip(views, constants, strict=True)]
    return tuple(results) if isinstance(shown, (list, tuple)) else results[0]


def reshape(reader: Reader, call: AtenCall) -> TracedValue:
    """The same elements in order in another shape."""
    return reshaped(reader, call.tensors[0], call.shape)


def _applied(call: AtenCall, tensor: Any) -> Any:
    """The operation on a tensor in place of its first operand."""
    others = [
        operand.view if isinstance(operand, TracedValue) else operand for operand in call.values[1:]
    ]
    placed, named = split_arguments(call.target, [tensor, *others])
    return call.target(*placed, **named)


def _is_dense(value: TracedValue, seen: Any) -> bool:
    """Return whether a view has each element of the window, at most repeated along whole axes."""
    axes = [
        (stride, size) for size, stride in zip(seen.shape, seen.stride(), strict=True)
        if size > 1 and stride
    ]  # fmt: skip
    reach = 1
    for stride, size in sorted(axes):
        if stride != reach:
            return False
        reach *= size
    elements = prod(sizes_of(value.window))
    return reach * (2 if seen.is_complex() else 1) == elements


def real_view(reader: Reader, call: AtenCall) -> TracedValue:
    """Complex numbers as pairs of real ones, or back."""
    value = call.tensors[0]
    shown = call.target(reader.plain(value).view)
    result = reader.plain(value)
    return replace(result, view=shown, dtype=call.results.dtype, constant=None)


# -- parts -----------------------------------------------------------------------------------


def part(
    reader: Reader, value: TracedValue, axis: int, first: int, behind: int, step: int = 1
) -> TracedValue:
    """The elements from ``first`` to before ``behind`` along an axis, each ``step``-th."""
    size = value.shape[axis]
    constant = value.constant
    if constant is not None:
        constant = constant.narrow(axis, first, behind - first)
        constant = constant[(slice(None),) * axis + (slice(None, None, step),)]
    if (first, behind, step) == (0, size, 1):
        return value
    index = (slice(None),) * axis + (slice(first, behind, step),)
    order = value.lies
    if axis in order.repeated:
        return value.seen(value.view[index], constant)
    if value.is_complex:
        value = reader.plain(value)
        order = value.lies
        lying = (*order.sizes, 2)
    else:
        lying = order.sizes
    window = _window(value, lying)
    if window is None:
        value = reader.cut(value)
        value = replace(value, base=lying, window=whole(lying))
        window = value.window
        base = lying
    else:
        base = value.base if value.is_part else lying
    place = _places(window, lying)[order.axes.index(axis)]
    ranges = list(window)
    ranges[place] = narrowed(ranges[place], first, behind, step)
    view = _narrowed_view(reader, value, order, axis, len(range(first, behind, step)))
    return replace(value, base=base, window=tuple(ranges), view=view, constant=constant)


def _narrowed_view(
    reader: Reader, value: TracedValue, order: AxisOrder, axis: int, size: int
) -> Any:
    """A view like that of a value which lies in this order, of another ``size`` along an axis."""
    sizes = list(order.unrepeated)
    sizes[axis] = size
    lies = reader.torch.empty(
        [sizes[number] for number in order.axes], dtype=value.view.dtype, device="meta"
    )
    back = [order.axes.index(number) for number in range(len(sizes))]
    out = list(value.shape)
    out[axis] = size
    return lies.permute(back).expand(out)


def _window(value: TracedValue, lying: Sequence[int]) -> Any:
    """The window of a value whose axes are those of the tensor as it lies, None if they differ."""
    if not value.is_part:
        return whole(tuple(lying))
    return value.window if _places(value.window, lying) else None


def _places(window: Any, lying: Sequence[int]) -> list[int]:
    """The axis of the window that each axis of a tensor is, [] where they are others."""
    sizes = sizes_of(window)
    if sizes == tuple(lying):
        return list(range(len(sizes)))
    large = [place for place, size in enumerate(sizes) if size > 1]
    if [sizes[place] for place in large] != [size for size in lying if size > 1]:
        return []
    remaining = iter(large)
    return [next(remaining) if size > 1 else 0 for size in lying]


def _axis(value: TracedValue, axis: int) -> int:
    return int(axis) % max(1, len(value.shape))


def slice_(reader: Reader, call: AtenCall) -> TracedValue:
    """Every ``step``-th element of a range."""
    value = call["self"]
    axis = _axis(value, call["dim"])
    first, behind, step = slice(call["start"], call["end"], call["step"]).indices(value.shape[axis])
    return part(reader, value, axis, first, max(first, behind), step)


def narrow(reader: Reader, call: AtenCall) -> TracedValue:
    """A range of so many elements."""
    value = call["self"]
    axis = _axis(call["self"], call["dim"])
    start = call["start"]
    if isinstance(start, TracedValue):
        return reader.named_value(call)
    first = int(start) % value.shape[axis] if start < 0 else int(start)
    return part(reader, value, axis, first, first + int(call["length"]))


def select(reader: Reader, call: AtenCall) -> TracedValue:
    """One element along an axis, which goes."""
    value = call["self"]
    axis = _axis(call["self"], call["dim"])
    return _selected(reader, value, axis, int(call["index"]) % value.shape[axis])


def _selected(reader: Reader, value: TracedValue, axis: int, index: int) -> TracedValue:
    chosen = part(reader, value, axis, index, index + 1)
    constant = chosen.constant
    return chosen.seen(
        chosen.view.squeeze(axis), None if constant is None else constant.squeeze(axis)
    )


def unbind(reader: Reader, call: AtenCall) -> tuple[TracedValue, ...]:
    """Each element along an axis."""
    value = call["self"]
    axis = _axis(call["self"], call["dim"])
    return tuple(_selected(reader, value, axis, index) for index in range(value.shape[axis]))


def split(reader: Reader, call: AtenCall) -> tuple[TracedValue, ...]:
    """Parts side by side along an axis, of the sizes that PyTorch gives them."""
    value = call["self"]
    axis = _axis(call["self"], call["dim"])
    parts = []
    first = 0
    for result in call.results:
        behind = first + int(result.shape[axis])
        parts.append(part(reader, value, axis, first, behind))
        first = behind
    return tuple(parts)


def written_part(reader: Reader, call: AtenCall) -> TracedValue:
    """A value with a part of it in another's place: what is left of it around the part."""
    value: TracedValue = call["self"]
    source: TracedValue = call["src"]
    axis = _axis(value, call["dim"])
    size = value.shape[axis]
    if call.name == "select_scatter":
        first = int(call["index"]) % size
        behind = first + 1
        step = 1
        source = source.seen(source.view.unsqueeze(axis))
    else:
        first, behind, step = slice(call["start"], call["end"], call["step"]).indices(size)
    if step != 1:
        return reader.named_value(call)
    if (first, behind) == (0, size):
        return source
    pieces = [part(reader, value, axis, 0, first)] if first else []
    pieces.append(source)
    if behind < size:
        pieces.append(part(reader, value, axis, behind, size))
    return joined(reader, pieces, axis)


# -- copies ----------------------------------------------------------------------------------


def concat(reader: Reader, call: AtenCall) -> TracedValue:
    """Several values as one, along an axis that they have or, stacked, along a new one."""
    pieces = list(call["tensors"])
    axis = int(call["dim"])
    if call.name == "stack":
        axis %= len(pieces[0].shape) + 1
        pieces = [
            piece.seen(
                piece.view.unsqueeze(axis),
                None if piece.constant is None else piece.constant.unsqueeze(axis),
            )
            for piece in pieces
        ]
    return joined(reader, pieces, axis % max(1, len(call.shape)))


def joined(reader: Reader, pieces: Sequence[TracedValue], axis: int) -> TracedValue:
    """Values one behind the other along an axis."""
    pieces = [piece for piece in pieces if piece.elements]
    if len(pieces) == 1:
        return pieces[0]
    reads = [reader.read(piece) for piece in pieces]
    shape = list(reads[0].shape)
    shape[axis] = sum(edge.shape[axis] for edge in reads)
    layer = ElementwiseLayer(kind="concat", shape=tuple(shape), out=tuple(shape))
    name = reader.add("concat", layer, reads)
    sizes = shape[:-1] if pieces[0].is_complex else shape
    return reader.value(name, sizes, dtype=pieces[0].dtype)


def repeat(reader: Reader, call: AtenCall) -> TracedValue:
    """A value so many times along each axis."""
    value = call.tensors[0]
    times = [int(factor) for factor in call.values[1]]
    shape = (1,) * (len(times) - len(value.shape)) + value.shape
    constant = value.constant
    if max(times, default=1) == 1:
        return value.seen(
            value.view.reshape(shape), None if constant is None else constant.reshape(shape)
        )
    apart: list[int] = []
    many: list[int] = []
    for count, size in zip(times, shape, strict=True):
        if count > 1 and size > 1:
            apart += [1, size]
            many += [count, size]
        else:  # an axis of one element is repeated as it is
            apart.append(size)
            many.append(count * size)
    value = reshaped(reader, value, apart)
    return reshaped(reader, value.seen(value.view.expand(many)), call.shape)


def roll(reader: Reader, call: AtenCall) -> TracedValue:
    """Elements moved along axes, those that leave at an end come in at the other."""
    value = reader.plain(call["self"])
    shifts = list(call["shifts"])
    axes = list(call["dims"])
    if not axes:
        value = value.seen(value.view.view(-1))
        axes = [0]
    axes = [_axis(value, axis) for axis in axes]
    layer = ElementwiseLayer(
        kind="roll",
        shape=value.shape,
        axes=tuple(axes),
        numbers=tuple(float(shift) for shift in shifts),
    )
    result = reader.value(reader.add("roll", layer, [reader.read(value)]), value.shape)
    return result.seen(result.view.view(call.shape))


def pad(reader: Reader, call: AtenCall) -> TracedValue:
    """Numbers put around a value, or elements left out where there are fewer than none."""
    value: TracedValue = call["self"]
    mode = call.get("mode", "constant")
    number = call.get("value", 0) or 0
    if mode != "constant":
        return reader.of(reader.unknown(f"{mode} pad", [value], call.shape), call.results)
    sides = _sides([int(count) for count in call["pad"]], len(value.shape))
    for axis, (before, behind) in enumerate(sides):
        value = part(reader, value, axis, max(0, -before), value.shape[axis] + min(0, behind))
    added = tuple((max(0, before), max(0, behind)) for before, behind in sides)
    if not any(before or behind for before, behind in added):
        return value
    layer = ElementwiseLayer(
        kind="pad", shape=value.shape, out=call.shape, padding=() if number else added
    )
    return reader.result(reader.add("pad", layer, [reader.read(value)]), call)


def _sides(counts: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """(before, behind) of each axis, of counts that begin with the last axis and may end early."""
    sides = list(zip(counts[::2], counts[1::2], strict=True))
    sides.reverse()
    return [(0, 0)] * (rank - len(sides)) + sides


def shuffled(reader: Reader, call: AtenCall) -> TracedValue:
    """Channels and positions exchanged: pixels of blocks, or channels of groups."""
    value = call["self"]
    shape = value.shape
    if call.name == "channel_shuffle":
        groups = int(call["groups"])
        split_ = (shape[0], groups, shape[1] // groups, *shape[2:])
        axes = (0, 2, 1, *range(3, len(split_)))
    elif call.name == "pixel_shuffle":
        factor = int(call["upscale_factor"])
        *front, channels, high, wide = shape
        split_ = (prod(front), channels // factor**2, factor, factor, high, wide)
        axes = (0, 1, 4, 2, 5, 3)
    else:
        factor = int(call["downscale_factor"])
        *front, channels, high, wide = shape
        split_ = (prod(front), channels, high // factor, factor, wide // factor, factor)
        axes = (0, 1, 3, 5, 2, 4)
    value = reshaped(reader, value, split_)
    value = value.seen(value.view.permute(axes))
    return reshaped(reader, value, call.shape)


def reshaped(reader: Reader, value: TracedValue, shape: Sequence[int]) -> TracedValue:
    """The same elements in order in another shape."""
    seen = value.view.reshape(shape)
    if seen.untyped_storage()._cdata != value.view.untyped_storage()._cdata:
        value = reader.plain(value)
        seen = value.view.view(shape)
    constant = value.constant
    return value.seen(seen, None if constant is None else constant.reshape(shape))


def moved_last(
    reader: Reader, value: TracedValue, axes: Sequence[int]
) -> tuple[TracedValue, list[int]]:
    """The value with ``axes`` behind the others, and the permutation that brings them back."""
    count = len(value.shape)
    last = [axis % count for axis in axes]
    order = [axis for axis in range(count) if axis not in last] + last
    constant = value.constant
    moved = value.seen(
        value.view.permute(order), None if constant is None else constant.permute(order)
    )
    return moved, [order.index(axis) for axis in range(count)]


def embedding(reader: Reader, call: AtenCall) -> TracedValue:
    """Rows of a table by their indices."""
    reads = [reader.read(call["weight"]), reader.read(call["indices"])]
    shape = max((edge.shape for edge in reads), key=prod)
    layer = ElementwiseLayer(kind="embedding", shape=shape, out=call.shape)
    return reader.result(reader.add("embedding", layer, reads), call)
