"""Sums, products and other functions of elements, of equal shapes or with one that is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

from npusim.base.records import replace
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_torch import moves
from npusim.workloads.from_torch.reader import AtenCall, Reader
from npusim.workloads.from_torch.values import TracedValue
from npusim.workloads.graph import Edge
from npusim.workloads.kinds import KINDS, kinds_in
from npusim.workloads.numbers import FEW, numbers_of

#: Kinds by PyTorch's names of their operations, where these are others.
_KINDS = kinds_in("torch")


def kind_of(name: str) -> str:
    """The kind of an element-wise operation by PyTorch's name of it, "" where there is none."""
    kind = _KINDS.get(name, name)
    return kind if kind in KINDS else ""


def unary(
    reader: Reader, kind: str, value: TracedValue, *, numbers: Sequence[float] = (), what: str = ""
) -> TracedValue:
    """A function of each element, computed in the order in which they lie."""
    value = reader.cut(value)
    order = value.lies
    lying = (*order.sizes, 2) if value.is_complex else order.sizes
    edge = Edge(value.source(), lying, value.gradient)
    layer = ElementwiseLayer(kind=kind, shape=lying or (1,), numbers=tuple(numbers))
    result = reader.value(reader.add(what or kind, layer, [edge]), order.sizes)
    return _as_it_lay(result, value)


def _as_it_lay(result: TracedValue, before: TracedValue) -> TracedValue:
    """A result that lies as an operand did, in the order of the operand's axes."""
    order = before.lies
    back = [order.axes.index(axis) for axis in range(len(order.axes))]
    return result.seen(result.view.permute(back).expand(before.shape))


def function(reader: Reader, call: AtenCall) -> TracedValue:
    """An activation or another function with numbers of its own."""
    value = call.tensors[0]
    kind = kind_of(call.name)
    others = call.values[1:]
    if any(isinstance(other, TracedValue) for other in others) or value.is_complex:
        return reader.named_value(call)
    numbers = [other for other in others if isinstance(other, (int, float)) or other is None]
    if kind == "clip" and call.name == "relu6":
        numbers = [0.0, 6.0]
    if kind == "elu":  # the share of the exponential, the factor of all
        numbers = [float(call["alpha"]), float(call["scale"])]
    if kind == "softplus" and float(call["beta"]) != 1:
        return reader.named_value(call)
    if kind == "celu":  # its share, and one over that
        numbers = [float(call["alpha"]), 1 / float(call["alpha"])]
    if kind in ("gelu", "silu", "mish", "softplus", "selu"):
        numbers = []
    return unary(reader, kind, value, numbers=numbers_of(kind, call.name, numbers))


def relu6(reader: Reader, call: AtenCall) -> TracedValue:
    """A clip to 0 and 6."""
    return unary(reader, "clip", call.tensors[0])


def prelu(reader: Reader, call: AtenCall) -> TracedValue:
    """A leaky ReLU whose slopes are trained."""
    value = call["self"]
    weight = call["weight"]
    if not reader.parameter(weight):
        return reader.named_value(call)
    layer = ElementwiseLayer(kind="prelu", shape=value.shape)
    name = reader.add("prelu", layer, [reader.read(value)], {"slope": weight})
    return reader.value(name, value.shape)


def dropout(reader: Reader, call: AtenCall) -> TracedValue | tuple[TracedValue, None]:
    """Elements left out at random, in training."""
    value: TracedValue = call["input"]
    result = unary(reader, "dropout", value) if call["train"] and call["p"] else value
    return (result, None) if isinstance(call.results, (list, tuple)) else result


def by_number(reader: Reader, kind: str, value: TracedValue, number: float) -> TracedValue:
    """A value times a number ("scale"), or and a number ("shift")."""
    if number == (1 if kind == "scale" else 0):
        return value
    return unary(reader, kind, value, numbers=(number,))


def arithmetic(reader: Reader, call: AtenCall) -> Any:
    """A sum, difference, product or quotient of two values, or of one and a number."""
    left = call.values[0]
    right = call.values[1]
    name = call.name
    alpha = call.get("alpha", 1)
    if call.get("rounding_mode") is not None:
        return reader.named(call)
    if (isinstance(right, TracedValue) and right.is_complex) or (
        isinstance(left, TracedValue) and left.is_complex
    ):
        return _complex(reader, call)
    if name == "rsub":
        left, right = right, left
        name = "sub"
    if isinstance(right, TracedValue) and alpha != 1:
        right = by_number(reader, "scale", right, float(alpha))
    elif alpha != 1:
        right = float(right) * float(alpha)
    return binary(reader, name, left, right)


def _complex(reader: Reader, call: AtenCall) -> Any:
    result = call.results
    name = reader.unknown(f"complex {call.name}", call.tensors, (*result.shape, 2), what=call.name)
    return reader.of(name, result)


def _number(value: Any) -> float | None:
    """The number that an operand is, None where it is a value of several or of unknown ones."""
    if not isinstance(value, TracedValue):
        return float(value)
    if value.constant is not None and value.elements == 1 and not value.constant.is_complex():
        return float(value.constant.reshape(()))
    return None


def binary(reader: Reader, name: str, left: Any, right: Any) -> TracedValue:
    """A sum ("add"), difference ("sub"), product ("mul") or quotient ("div")."""
    first = _number(left)
    second = _number(right)
    if second is not None and isinstance(left, TracedValue):
        shape = _together(left, right)
        result = _with_number(reader, name, left, second)
        return result.seen(result.view.expand(shape))
    if first is not None and isinstance(right, TracedValue):
        shape = _together(right, left)
        if name in ("add", "mul"):
            result = _with_number(reader, name, right, first)
        elif name == "sub":
            result = by_number(reader, "scale", right, -1.0)
            result = by_number(reader, "shift", result, first)
        else:
            result = by_number(reader, "scale", reciprocal(reader, right), first)
        return result.seen(result.view.expand(shape))
    return _of_values(reader, name, left, right)


def _together(value: TracedValue, other: Any) -> tuple[int, ...]:
    """The shape of two operands together, of which the other has one element."""
    axes = len(other.shape) if isinstance(other, TracedValue) else 0
    return (1,) * max(0, axes - len(value.shape)) + value.shape


def _with_number(reader: Reader, name: str, value: TracedValue, number: float) -> TracedValue:
    if name == "add":
        return by_number(reader, "shift", value, number)
    if name == "sub":
        return by_number(reader, "shift", value, -number)
    factor = number if name == "mul" else 1 / number if number else inf
    return by_number(reader, "scale", value, factor)


def reciprocal(reader: Reader, value: TracedValue) -> TracedValue:
    """One divided by each element."""
    return unary(reader, "reciprocal", value)


def _of_values(reader: Reader, name: str, left: TracedValue, right: TracedValue) -> TracedValue:
    """An operation on two values; one that is repeated for the other is a factor or a term."""
    shape = tuple(reader.torch.broadcast_shapes(left.shape, right.shape))
    left = _unrepeated(left, len(shape))
    right = _unrepeated(right, len(shape))
    few = [_is_few(reader, operand, shape) for operand in (left, right)]
    if not any(few):
        return _of_equals(reader, name, left, right, shape)
    if all(few):
        larger = 0 if left.elements >= right.elements else 1
        if larger:
            right = right.seen(right.view.expand(shape))
        else:
            left = left.seen(left.view.expand(shape))
        few = [bool(larger), not larger]
    if few[0]:
        if name == "sub":
            right = by_number(reader, "scale", right, -1.0)
            name = "add"
        elif name == "div":
            right = reciprocal(reader, right)
            name = "mul"
        left, right = right, left
    elif name == "sub":
        right = by_number(reader, "scale", right, -1.0)
        name = "add"
    elif name == "div":
        right = reciprocal(reader, right)
        name = "mul"
    return _with_few(reader, FEW[name], left, right)


def _unrepeated(value: TracedValue, axes: int) -> TracedValue:
    """A value with as many axes as the result, and 1 for those along which it is repeated."""
    seen = value.view
    for axis in value.lies.repeated:
        seen = seen.narrow(axis, 0, 1)
    return value.seen(seen.reshape((1,) * (axes - seen.dim()) + tuple(seen.shape)))


def _is_few(reader: Reader, value: TracedValue, shape: Sequence[int]) -> bool:
    """Return whether an operand has fewer elements than the result, or would at another batch."""
    if value.elements < prod(shape):
        return True
    weights = reader.parameter(value) is not None and len(shape) > 1
    return weights and value.shape[0] == 1


def _of_equals(
    reader: Reader, name: str, left: TracedValue, right: TracedValue, shape: Sequence[int]
) -> TracedValue:
    """An operation on two values of one shape, in the order in which both lie if that is one."""
    left = reader.cut(left)
    right = reader.cut(right)
    if left.lies != right.lies or left.lies.repeated:
        left = reader.plain(left)
        right = reader.plain(right)
    lying = left.lies.sizes
    edges = [Edge(operand.source(), lying, operand.gradient) for operand in (left, right)]
    layer = ElementwiseLayer(kind=name, shape=lying or (1,))
    return _as_it_lay(reader.value(reader.add(name, layer, edges), lying), left)


def _permuted(value: TracedValue, axes: Sequence[int]) -> TracedValue:
    constant = value.constant
    return value.seen(
        value.view.permute(axes), None if constant is None else constant.permute(axes)
    )


def _with_few(reader: Reader, kind: str, large: TracedValue, few: TracedValue) -> TracedValue:
    """A value with factors or terms of fewer elements, in the order in which the value lies."""
    large = reader.cut(large)
    if large.lies.repeated or not _permuted(few, large.lies.axes).is_plain:
        large = reader.plain(large)  # rather than the numbers, which may be weights
    elif reader.parameter(few) is None and _by_channel(large.shape, few.shape):
        large = reader.plain(large)  # in the order that kernels take a number a channel in
    order = large.lies
    few = _permuted(few, order.axes)
    symbol = "gamma" if kind == "scale" else "beta"
    edge = Edge(large.source(), order.sizes, large.gradient)
    parameter = reader.parameter(few)
    trained = parameter is not None and reader.builder.parameters[parameter].trained
    in_region = not reader.flows(large) and not reader.flows(few)
    if parameter is not None and (few.gradient or not trained or in_region):
        sizes = few.shape
        while len(sizes) > 1 and sizes[0] == 1:
            sizes = sizes[1:]
        layer = ElementwiseLayer(kind=kind, shape=order.sizes, weight=sizes or (1,))
        name = reader.add(kind, layer, [edge], {symbol: few})
    else:
        layer = ElementwiseLayer(kind=kind, shape=order.sizes)
        name = reader.add(kind, layer, [edge, reader.read(few)])
    return _as_it_lay(reader.value(name, order.sizes), large)


def _by_channel(large: Sequence[int], few: Sequence[int]) -> bool:
    """A number for each image and channel of a map."""
    return len(large) > 2 and tuple(few) == (*large[:2], *(1 for _ in large[2:]))


def power(reader: Reader, call: AtenCall) -> Any:
    """A power: small whole ones are products, others those of positive numbers."""
    value, exponent = call.values[:2]
    number = (
        None
        if isinstance(exponent, TracedValue) and exponent.constant is None
        else _number(exponent)
    )
    if isinstance(value, TracedValue) and number == 2 and not value.is_complex:
        return binary(reader, "mul", value, value)
    if not isinstance(value, TracedValue) or number is None or value.is_complex:
        return reader.named(call)
    if number in (3, 4):
        result = value
        for _ in range(int(number) - 1):
            result = binary(reader, "mul", result, value)
        return result
    roots = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if number in roots:
        return unary(reader, roots[number], value)
    if float(number).is_integer():  # of numbers of any sign, which the kernel does not take
        return reader.named(call)
    return unary(reader, "power", value, numbers=(number,))


def square(reader: Reader, call: AtenCall) -> Any:
    """A value times itself."""
    value = call["self"]
    return reader.named(call) if value.is_complex else binary(reader, "mul", value, value)


def gated(reader: Reader, call: AtenCall) -> TracedValue:
    """One half of a value times the sigmoid of the other (GLU)."""
    value = call["self"]
    axis = int(call["dim"]) % len(value.shape)
    middle = value.shape[axis] // 2
    first = moves.part(reader, value, axis, 0, middle)
    second = moves.part(reader, value, axis, middle, value.shape[axis])
    return binary(reader, "mul", first, unary(reader, "sigmoid", second))


def negative(reader: Reader, call: AtenCall) -> TracedValue:
    """A value with the other sign."""
    return by_number(reader, "scale", call["self"], -1.0)


def inverse(reader: Reader, call: AtenCall) -> TracedValue:
    """One divided by a value."""
    return reader.named(call) if call["self"].is_complex else reciprocal(reader, call["self"])


def by_name(reader: Reader, call: AtenCall) -> TracedValue:
    """An operation that is known by name, and not taken apart."""
    called = call.name.removeprefix("_")
    return reader.result(reader.unknown(called, call.tensors, call.shape), call)


def copied(reader: Reader, call: AtenCall) -> TracedValue:
    """The operand that is copied into a value, repeated to its shape."""
    source: TracedValue = call["src"]
    result = source.seen(source.view.expand(call.shape))
    return replace(result, dtype=call.results.dtype)


def lerp(reader: Reader, call: AtenCall) -> Any:
    """A value on the way to another."""
    start = call["self"]
    end = call["end"]
    weight = call["weight"]
    difference = binary(reader, "sub", end, start)
    return binary(reader, "add", start, binary(reader, "mul", difference, weight))


def with_product(reader: Reader, call: AtenCall) -> Any:
    """A value and the product or quotient of two others, times a number."""
    name = "mul" if call.name == "addcmul" else "div"
    result = binary(reader, name, call["tensor1"], call["tensor2"])
    result = by_number(reader, "scale", result, float(call["value"]))
    return binary(reader, "add", call["self"], result)
