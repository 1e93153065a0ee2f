"""Operators of an ONNX file that compute elements: activations, sums and products of them."""

from __future__ import annotations

from math import inf, prod

from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx.nodes import Step
from npusim.workloads.from_onnx.values import OnnxValue, Values
from npusim.workloads.graph import Edge
from npusim.workloads.kinds import UNKNOWN, kinds_in
from npusim.workloads.numbers import FEW, numbers_of

Sizes = tuple[int, ...]

_ONNX = kinds_in("onnx")

#: Activations by the name of their operator.
ACTIVATIONS = {
    **{name: _ONNX.get(name, name.lower()) for name in ("Relu", "Clip", "LeakyRelu", "Elu")},
    **{name: _ONNX.get(name, name.lower()) for name in ("Selu", "Celu", "Gelu", "Swish", "Mish")},
    **{name: _ONNX.get(name, name.lower()) for name in ("Erf", "Sigmoid", "Tanh", "Softplus")},
    **{name: _ONNX.get(name, name.lower()) for name in ("HardSigmoid", "HardSwish")},
    **{name: _ONNX[name] for name in ("Exp", "Log", "Sqrt", "Abs", "Reciprocal")},
    "FastGelu": "gelu",
    "BiasGelu": "gelu",
}

#: Sums and products of elements by the name of their operator.
BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}

#: Numbers of activations that their attributes have, with ONNX's usual ones.
_NUMBERED = {
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "Celu": (("alpha", 1.0),),
}


def activation(values: Values, step: Step) -> None:
    """Note an activation of one value, behind a bias where its operator has one."""
    value = values.value(step.inputs[0])
    if step.kind in ("BiasGelu", "FastGelu") and step.operand(1):
        bias = values.value(step.operand(1))
        value = combined(values, step, "add", value, bias, value.shape, part="bias")
    kind = ACTIVATIONS[step.kind]
    numbers: list[float | None] = []
    if step.kind in _NUMBERED:
        numbers = [step.attributes.get(name, usual) for name, usual in _NUMBERED[step.kind]]
    elif step.kind == "Clip":
        numbers = _limits(values, step)
    if kind == "celu" and numbers[0] is not None:  # its share, and one over that
        numbers.append(1 / numbers[0])
    stated = numbers_of(kind, kind, numbers) if numbers else ()
    values.put(step.outputs[0], values.each(step, kind, value, numbers=stated))


def _limits(values: Values, step: Step) -> list[float | None]:
    """The least and the largest number of a ``Clip``: attributes before operator set 11."""
    if len(step.inputs) == 1:
        return [step.attributes.get("min"), step.attributes.get("max")]
    return [values.single(step.operand(1)), values.single(step.operand(2))]


def fused_activation(values: Values, step: Step, value: OnnxValue) -> OnnxValue:
    """A product with the activation that its operator has in an attribute, if it has one."""
    name = step.attributes.get("activation", "")
    if name not in ACTIVATIONS:
        return value
    kind = ACTIVATIONS[name]
    numbers = numbers_of(kind, kind, list(step.attributes.get("activation_params", ())))
    return values.each(step, kind, value, numbers=numbers, part=kind)


#: Powers that are a root or one over the value.
_ROOTS = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}

#: The largest whole power that becomes products; the kernel of powers takes positive numbers.
_MOST_PRODUCTS = 4


def power(values: Values, step: Step) -> None:
    """Note a power by a number: products for small whole ones, else that of positive numbers."""
    value = values.value(step.inputs[0])
    exponent = values.single(step.inputs[1])
    if exponent in _ROOTS:
        result = values.each(step, _ROOTS[exponent], value)
    elif exponent is not None and not exponent.is_integer():
        result = values.each(step, "power", value, numbers=(exponent,))
    elif exponent is not None and 2 <= exponent <= _MOST_PRODUCTS:
        result = value
        for _ in range(int(exponent) - 1):
            result = combined(values, step, "mul", result, value, value.shape)
    else:
        values.unknown(step, step.kind)
        return
    values.put(step.outputs[0], result)


# -- sums and products of elements ---------------------------------------------------------


def binary(values: Values, step: Step) -> None:
    """Note a sum, difference, product or quotient: of two values, or of one and a number."""
    out = values.sized.shape(step, step.outputs[0])
    kind = BINARY[step.kind]
    first, second = step.inputs[:2]
    number = values.single(second)
    if number is None and kind in ("add", "mul"):
        number = values.single(first)
        if number is not None:
            first, second = second, first
    if number is not None and values.single(first) is None:
        result = _with_number(values, step, kind, values.value(first), number, out)
    else:
        result = combined(values, step, kind, values.value(first), values.value(second), out)
    values.put(step.outputs[0], result)


def _with_number(
    values: Values, step: Step, kind: str, value: OnnxValue, number: float, out: Sizes
) -> OnnxValue:
    result = values.each(step, FEW[kind], value, numbers=numbers_of(kind, kind, [number]))
    return result if result.shape == out else values.laid(result, step).seen(out)


def combined(
    values: Values,
    step: Step,
    kind: str,
    first: OnnxValue,
    second: OnnxValue,
    out: Sizes,
    *,
    part: str = "",
) -> OnnxValue:
    """A sum, difference, product or quotient of two values, whose axes of one are repeated.

    A value of fewer elements is added or multiplied as it is ("shift", "scale"): a parameter for
    each channel, or for each element of the last axes, belongs to the node.
    """
    size = prod(out)
    either_order = kind in ("add", "mul")
    if either_order and first.weight and not second.weight:
        first, second = second, first
    if either_order and second.weight and not first.weight and prod(first.shape) == size:
        weight = _weight(second, out)
        if weight:
            return _with_weight(values, step, kind, first, second, weight, part=part)
    if first.shape == second.shape == out and first.axes and _lie_alike(first, second):
        layer = ElementwiseLayer(kind=kind, shape=first.lies)
        reads = [Edge(operand.name, operand.lies) for operand in (first, second)]
        images = first.images or second.images
        result = values.add(step, layer, reads, part=part, images=images)
        return result._replace(shape=out, axes=first.axes, lies=first.lies)
    if prod(first.shape) == size and prod(second.shape) == size:
        layer = ElementwiseLayer(kind=kind, shape=out)
        return _of_two(values, step, layer, (first, out), (second, out), part)
    return _with_few(values, step, kind, first, second, out, part)


def _with_few(
    values: Values,
    step: Step,
    kind: str,
    first: OnnxValue,
    second: OnnxValue,
    out: Sizes,
    part: str,
) -> OnnxValue:
    """``combined`` of two values of which one at least has fewer elements than the result."""
    size = prod(out)
    if prod(first.shape) < size and prod(second.shape) < size:
        if prod(first.shape) >= prod(second.shape):
            first = values.expanded(first, step, out)
        else:
            second = values.expanded(second, step, out)
    if kind in ("sub", "div"):
        layer = ElementwiseLayer(kind=UNKNOWN, called=f"{kind} of few elements", shape=out)
        return _of_two(values, step, layer, (first, first.shape), (second, second.shape), part)
    many, few = (first, second) if prod(first.shape) == size else (second, first)
    shape = (1,) * (len(out) - len(few.shape)) + few.shape
    layer = ElementwiseLayer(kind=FEW[kind], shape=out)
    return _of_two(values, step, layer, (many, out), (few, shape), part)


def _of_two(
    values: Values,
    step: Step,
    layer: ElementwiseLayer,
    first: tuple[OnnxValue, Sizes],
    second: tuple[OnnxValue, Sizes],
    part: str,
) -> OnnxValue:
    """A node that reads two values, each in a shape."""
    reads = [values.edge(value, step, shape) for value, shape in (first, second)]
    images = first[0].images or second[0].images
    return values.add(step, layer, reads, part=part, images=images)


def _with_weight(
    values: Values,
    step: Step,
    kind: str,
    value: OnnxValue,
    few: OnnxValue,
    weight: Sizes,
    *,
    part: str,
) -> OnnxValue:
    """A value with a parameter added or multiplied that belongs to the node.

    A transposed value stays one, as it lies, where the parameter lies as it does.
    """
    axes = value.axes
    lies = value.lies
    if axes:
        lying = _lying(weight, value)
        if lying:
            weight = lying
        else:
            value = values.laid(value, step)
            axes = ()
            lies = ()
    shape = lies or value.shape
    layer = ElementwiseLayer(kind=FEW[kind], shape=shape, weight=weight)
    parameters = {"beta" if kind == "add" else "gamma": few.name}
    reads = [Edge(value.name, shape)]
    result = values.add(step, layer, reads, parameters=parameters, part=part, images=value.images)
    return result._replace(shape=value.shape, axes=axes, lies=lies)


def _lie_alike(first: OnnxValue, second: OnnxValue) -> bool:
    """Return whether two transposed values have their elements in one order."""
    return (first.axes, first.lies) == (second.axes, second.lies)


def _lying(weight: Sizes, value: OnnxValue) -> Sizes:
    """The sizes of a parameter in the order in which a transposed value lies, () if others."""
    sizes = (1,) * (len(value.shape) - len(weight)) + weight
    order = [axis for axis in value.axes if sizes[value.axes.index(axis)] > 1]
    if order != sorted(order):
        return ()
    lying = [1] * len(sizes)
    for place, axis in enumerate(value.axes):
        lying[axis] = sizes[place]
    start = next((axis for axis, size in enumerate(lying) if size > 1), len(lying) - 1)
    return tuple(lying[start:])


def _weight(few: OnnxValue, out: Sizes) -> Sizes:
    """The sizes of a parameter that is for each channel or each element of the last axes."""
    start = next((axis for axis, size in enumerate(few.shape) if size > 1), len(few.shape))
    sizes = few.shape[start:]
    image = out[1:]
    if not sizes or len(sizes) > len(image):
        return ()
    channels = (image[0], *(1 for _ in image[1:]))
    return sizes if sizes in (channels, image[-len(sizes) :]) else ()


def total(values: Values, step: Step) -> None:
    """Note a sum of any number of values."""
    out = values.sized.shape(step, step.outputs[0])
    result = values.value(step.inputs[0])
    several = [values.value(name) for name in step.inputs]
    if len(several) > 1 and all(prod(value.shape) == prod(out) for value in several):
        layer = ElementwiseLayer(kind="add", shape=out)
        reads = [values.edge(value, step, out) for value in several]
        images = any(value.images for value in several)
        result = values.add(step, layer, reads, images=images)
    else:
        for value in several[1:]:
            result = combined(values, step, "add", result, value, out)
    values.put(step.outputs[0], result)


def extreme(values: Values, step: Step) -> None:
    """Note the larger or smaller of two; with a number it is a limit."""
    name = next((name for name in step.inputs if values.single(name) is not None), "")
    others = [other for other in step.inputs if other != name]
    if len(step.inputs) != 2 or not name or len(others) != 1:
        values.unknown(step)
        return
    value = values.value(others[0])
    number = values.single(name)
    limits = [number, inf] if step.kind == "Max" else [-inf, number]
    numbers = numbers_of("clip", "clip", limits)
    values.put(step.outputs[0], values.each(step, "clip", value, numbers=numbers))


def negative(values: Values, step: Step) -> None:
    """Note the values with the other sign."""
    value = values.value(step.inputs[0])
    values.put(step.outputs[0], values.each(step, "scale", value, numbers=(-1.0,)))


def prelu(values: Values, step: Step) -> None:
    """Note a rectifier with a trained slope for each channel, or one for all."""
    value = values.value(step.inputs[0], trained=False)
    slope = values.value(step.inputs[1], trained=True)
    channels = value.shape[1] if len(value.shape) > 1 else value.shape[-1]
    if not slope.weight or prod(slope.shape) not in (1, channels):
        values.unknown(step)
        return
    layer = ElementwiseLayer(kind="prelu", shape=value.shape)
    parameters = {"slope": slope.name}
    result = values.add(step, layer, [values.edge(value, step)], parameters=parameters)
    values.put(step.outputs[0], result)


def dropout(values: Values, step: Step) -> None:
    """Note a dropout of a network exported for training; one of inference leaves its value."""
    value = values.value(step.inputs[0])
    ratio = values.single(step.operand(1)) if step.operand(1) else step.attributes.get("ratio")
    if ratio == 0:
        values.put(step.outputs[0], value)
        return
    values.put(step.outputs[0], values.each(step, "dropout", value))
