"""Operations along axes: normalisations, softmax, sums and means, pooling, enlarging."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_torch import arithmetic, moves
from npusim.workloads.from_torch.reader import AtenCall, Reader
from npusim.workloads.from_torch.values import TracedValue
from npusim.workloads.numbers import numbers_of

# -- normalisations --------------------------------------------------------------------------

#: What a user should know of a batch normalisation in evaluation mode.
NORMALISED = (
    "batch normalisations of a module in evaluation mode are taken as those of a training step, "
    "with the statistics of the batch"
)


def _normalised(
    reader: Reader,
    kind: str,
    value: TracedValue,
    call: AtenCall,
    numbers: Sequence[float],
    like: TracedValue,
) -> TracedValue:
    """A normalisation of ``value``; weights that are no parameters are a factor and a term.

    ``like`` has the sizes of a weight among those of the value, 1 where it is repeated.
    """
    weight = call.get("weight")
    bias = call.get("bias")
    trained = {}
    if weight is not None and reader.parameter(weight):
        trained["gamma"] = weight
    if bias is not None and reader.parameter(bias):
        trained["beta"] = bias
    layer = ElementwiseLayer(
        kind=kind, shape=value.shape, numbers=numbers_of(kind, call.name, list(numbers))
    )
    result = reader.value(reader.add(kind, layer, [reader.read(value)], trained), value.shape)
    if weight is not None and "gamma" not in trained:
        sized = moves.reshaped(reader, weight, like.shape)
        result = arithmetic.binary(reader, "mul", result, sized)
    if bias is not None and "beta" not in trained:
        sized = moves.reshaped(reader, bias, like.shape)
        result = arithmetic.binary(reader, "add", result, sized)
    return result


def _by_channel(reader: Reader, value: TracedValue) -> TracedValue:
    """A tensor of one element for each channel of a value."""
    shape = [size if axis == 1 else 1 for axis, size in enumerate(value.shape)]
    return value.seen(reader.torch.empty(shape, device="meta"))


def batch_norm(reader: Reader, call: AtenCall) -> Any:
    """A batch normalisation, with the statistics of the batch."""
    value = call["input"]
    training = call.get("training", call.get("train", True))
    if not training and NORMALISED not in reader.notes:
        reader.notes.append(NORMALISED)
    eps = float(call.get("eps", 1e-5))
    result = _normalised(reader, "batch_norm", value, call, [eps], _by_channel(reader, value))
    return _first_of(call, result)


def instance_norm(reader: Reader, call: AtenCall) -> Any:
    """A normalisation of each channel of each image."""
    value = call["input"]
    eps = float(call["eps"])
    return _normalised(reader, "instance_norm", value, call, [eps], _by_channel(reader, value))


def group_norm(reader: Reader, call: AtenCall) -> Any:
    """A normalisation of each group of channels of each image."""
    value = call["input"]
    groups = int(call.get("num_groups", call.get("group", 1)))
    numbers = [groups, float(call["eps"])]
    result = _normalised(reader, "group_norm", value, call, numbers, _by_channel(reader, value))
    return _first_of(call, result)


def layer_norm(reader: Reader, call: AtenCall) -> Any:
    """A normalisation of rows, which may have several axes."""
    value = call["input"]
    sizes = list(call["normalized_shape"])
    width = prod(sizes)
    joined = moves.reshaped(reader, value, (*value.shape[: len(value.shape) - len(sizes)], width))
    like = joined.seen(reader.torch.empty((width,), device="meta"))
    result = _normalised(reader, "layer_norm", joined, call, [float(call["eps"])], like)
    result = moves.reshaped(reader, result, value.shape)
    return _first_of(call, result)


def _first_of(call: AtenCall, result: TracedValue) -> Any:
    """The result where an operation returns statistics beside it, which nothing reads."""
    if not isinstance(call.results, (list, tuple)):
        return result
    return (result, *(None for _ in call.results[1:]))


# -- softmax, sums and means -----------------------------------------------------------------


def softmax(reader: Reader, call: AtenCall) -> TracedValue:
    """A softmax, or its logarithm, along any axis."""
    kind = "log_softmax" if "log_softmax" in call.name else "softmax"
    return softmax_of(reader, kind, call.tensors[0], int(call["dim"]))


def softmax_of(reader: Reader, kind: str, value: TracedValue, axis: int) -> TracedValue:
    """A softmax along an axis, computed along the last and put back."""
    if not value.shape:
        return value
    moved, back = moves.moved_last(reader, value, [axis])
    moved = reader.plain(moved)
    layer = ElementwiseLayer(kind=kind, shape=moved.shape)
    result = reader.value(reader.add(kind, layer, [reader.read(moved)]), moved.shape)
    return result.seen(result.view.permute(back))


def _axes(value: TracedValue, axes: Any) -> list[int]:
    """The axes of a reduction, all where none are stated."""
    count = len(value.shape)
    if axes is None or (isinstance(axes, (list, tuple)) and not axes):
        return list(range(count))
    listed = axes if isinstance(axes, (list, tuple)) else [axes]
    return sorted(int(axis) % max(1, count) for axis in listed)


def mean(reader: Reader, call: AtenCall) -> Any:
    """The mean along axes."""
    return _reduced(reader, call, "avg_pool")


def total(reader: Reader, call: AtenCall) -> Any:
    """The sum along axes: the mean, times the number of elements."""
    value = call["self"]
    result = _reduced(reader, call, "avg_pool")
    if not isinstance(result, TracedValue) or not value.elements or value.is_complex:
        return result
    count = value.elements // max(1, result.elements)
    return arithmetic.by_number(reader, "scale", result, float(count))


def largest(reader: Reader, call: AtenCall) -> Any:
    """The largest element along axes."""
    if call.name == "max" and (len(call.values) > 1 and isinstance(call.values[1], TracedValue)):
        return reader.named(call)
    result = _reduced(reader, call, "max_pool")
    if isinstance(call.results, (list, tuple)):
        return result, reader.later(call, call.results[1])
    return result


def _reduced(reader: Reader, call: AtenCall, kind: str) -> Any:
    """A pooling whose window is all of some axes, which stand behind the others for it."""
    value = call.tensors[0]
    if value.is_complex or not value.floats:
        return reader.named(call)
    if not value.shape:
        return value
    axes = _axes(value, call.get("dim"))
    shape = call.shape
    if all(value.shape[axis] == 1 for axis in axes):
        return moves.reshaped(reader, value, shape)
    moved, _ = moves.moved_last(reader, value, axes)
    moved = reader.plain(moved)
    remaining = moved.shape[: len(moved.shape) - len(axes)]
    sizes = moved.shape[len(remaining) :]
    if not remaining:
        remaining = (1,)
    if len(remaining) == 1:
        remaining = (*remaining, 1)
    if len(sizes) > 3:
        sizes = (prod(sizes),)
    layer = ElementwiseLayer(
        kind=kind, shape=(*remaining, *sizes), out=(*remaining, *(1,) * len(sizes))
    )
    moved = moves.reshaped(reader, moved, layer.shape)
    result = reader.value(reader.add(kind, layer, [reader.read(moved)]), layer.out)
    return moves.reshaped(reader, result, shape)


# -- pooling and enlarging -------------------------------------------------------------------


def pool(reader: Reader, call: AtenCall) -> Any:
    """A pooling, of windows with a stride and padding, or of as many windows as asked for."""
    value = call.tensors[0]
    kind = "max_pool" if "max_pool" in call.name else "avg_pool"
    dims = int(call.name.partition("pool")[2][:1])
    single = len(value.shape) == dims + 1
    if single:
        value = value.seen(value.view.unsqueeze(0))
    several = isinstance(call.results, (list, tuple))
    shape = call.shape
    out = (1, *shape) if single else shape
    dilation = each(call.get("dilation", [1]), dims)
    strange = call.get("divisor_override") is not None
    if max(dilation) > 1 or strange:
        called = f"dilated {kind}" if max(dilation) > 1 else f"{kind} of another divisor"
        name = reader.unknown(called, [value], out, what=kind)
    else:
        fields = _windows(call, value.shape[-dims:], out[-dims:], dims)
        layer = ElementwiseLayer(kind=kind, shape=value.shape, out=out, **fields)
        name = reader.add(kind, layer, [reader.read(value)])
    result = moves.reshaped(reader, reader.value(name, out), shape)
    if several:
        return result, reader.later(call, call.results[1])
    return result


def _windows(call: AtenCall, x: Sequence[int], out: Sequence[int], dims: int) -> dict[str, Any]:
    """Kernel, stride and padding of a pooling; none where windows differ, or are all of a map."""
    if "kernel_size" not in call._arguments:
        if prod(out) == 1 or any(size % places for size, places in zip(x, out, strict=True)):
            return {}
        return {"kernel": tuple(size // places for size, places in zip(x, out, strict=True))}
    padding = each(call.get("padding", [0]), dims)
    counted = any(padding) and bool(call.get("count_include_pad", False))
    kernel = each(call["kernel_size"], dims)
    return {
        "numbers": (1.0,) if counted else (),
        "kernel": kernel,
        "stride": each(call.get("stride") or kernel, dims),
        "padding": tuple((pad, pad) for pad in padding),
    }


def each(values: Any, dims: int) -> tuple[int, ...]:
    """One number for each axis, of which only one may have been stated."""
    listed = list(values) if isinstance(values, (list, tuple)) else [values]
    numbers = tuple(int(number) for number in listed)
    return numbers * dims if len(numbers) == 1 else numbers


def enlarged(reader: Reader, call: AtenCall) -> TracedValue:
    """Maps of another size, by the nearest element or between elements."""
    value = call.tensors[0]
    name = call.name.removeprefix("_")
    if name.endswith("_aa") or not ("nearest" in name or "linear" in name):
        return reader.named_value(call)
    kind = "upsample" if "nearest" in name else "interpolate"
    numbers = numbers_of(kind, name, [bool(call.get("align_corners", False))])
    layer = ElementwiseLayer(
        kind=kind,
        shape=value.shape,
        out=call.shape,
        numbers=numbers if kind == "interpolate" else (),
    )
    return reader.result(reader.add(kind, layer, [reader.read(value)]), call)


def norm(reader: Reader, call: AtenCall) -> Any:
    """The length of vectors along axes: known by name."""
    return reader.named(call)


def loss(reader: Reader, call: AtenCall) -> TracedValue:
    """A loss, whose name tells what it is."""
    name = call.name.removesuffix("_loss").removesuffix("_nd").removesuffix("2d")
    result = reader.unknown(f"loss: {name}", call.tensors, call.shape, what="loss")
    return reader.of(result, call.results)
