"""Convolutions of an ONNX file: plain, transposed, of whole numbers, with what is fused to them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from npusim.base.errors import ArgumentError
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx.elements import fused_activation
from npusim.workloads.from_onnx.nodes import Step, fault
from npusim.workloads.from_onnx.values import OnnxValue, Values
from npusim.workloads.from_onnx.windows import Sides, window_padding
from npusim.workloads.graph import Edge
from npusim.workloads.layers import ConvLayer

Sizes = tuple[int, ...]


class _Places(NamedTuple):
    """Where a convolution of some kind has its operands, -1 where it has none."""

    x: int = 0
    weight: int = 1
    bias: int = 2
    added: int = -1


_PLACES = {
    "Conv": _Places(),
    "ConvTranspose": _Places(),
    "ConvInteger": _Places(bias=-1),
    "QLinearConv": _Places(weight=3, bias=8),
    "FusedConv": _Places(added=3),
}

#: The kinds of nodes that ``convolution`` reads.
CONVOLUTIONS = tuple(_PLACES)


def convolution(values: Values, step: Step) -> None:
    """Note a convolution; what a fused one adds and its activation are nodes behind it."""
    places = _PLACES[step.kind]
    names = [step.operand(place) if place >= 0 else "" for place in places]
    x = values.value(names[0])
    weight = values.value(names[1], trained=True)
    layer = _layer(values, step, names)
    reads = [values.edge(x, step, layer.x_shape)]
    parameters = {}
    if weight.weight:
        parameters["w"] = weight.name
    else:
        reads.append(values.edge(weight, step, layer.w_shape))
    if names[2]:
        bias = values.value(names[2], trained=True)
        if bias.weight:
            parameters["b"] = bias.name
    result = values.add(step, layer, reads, parameters=parameters, images=x.images or weight.images)
    if names[2] and "b" not in parameters:
        result = _computed_bias(values, step, result, values.value(names[2]))
    if names[3]:
        added = ElementwiseLayer(kind="add", shape=result.shape)
        both = [values.edge(result, step), values.edge(values.value(names[3]), step)]
        result = values.add(step, added, both, part="add")
    values.put(step.outputs[0], fused_activation(values, step, result))


def _computed_bias(values: Values, step: Step, product: OnnxValue, bias: OnnxValue) -> OnnxValue:
    """The sum of a convolution and a bias that is computed, one number for each channel."""
    channels = (1, bias.shape[0], *(1 for _ in product.shape[2:]))
    reads = [values.edge(product, step), Edge(values.laid(bias, step).name, channels)]
    layer = ElementwiseLayer(kind="shift", shape=product.shape)
    return values.add(step, layer, reads, part="bias")


def _layer(values: Values, step: Step, names: Sequence[str]) -> ConvLayer:
    sized = values.sized
    x = sized.shape(step, names[0])
    weight = sized.shape(step, names[1])
    dims = len(weight) - 2
    if len(x) != len(weight) or dims < 1:
        raise fault(
            sized.file, step, f"its input is {list(x)} and its filter {list(weight)}; both need a "
            "batch, channels and the same axes"
        )  # fmt: skip
    transposed = step.kind == "ConvTranspose"
    groups = int(step.attributes.get("group", 1))
    bias = values.value(names[2], trained=True) if names[2] else None
    try:
        padding, extra = _padding(values, step, x[2:], weight[2:])
        layer = ConvLayer(
            name="",
            n=x[0],
            cin=x[1],
            cout=weight[1] * groups if transposed else weight[0],
            spatial=x[2:],
            kernel=weight[2:],
            stride=step.integers("strides", (1,) * dims),
            padding=padding,
            dilation=step.integers("dilations", (1,) * dims),
            groups=groups,
            transposed=transposed,
            output_padding=extra if any(extra) else (),
            bias=bias is not None and bias.weight,
        )
    except ArgumentError as error:
        raise fault(
            sized.file, step, f"{error} (input {list(x)}, filter {list(weight)})"
        ) from error
    if prod(layer.w_shape) != prod(weight) or dims > 3:
        raise fault(
            sized.file, step, f"its input is {list(x)}, its filter {list(weight)} with {groups} "
            f"groups; a filter for these channels is {list(layer.w_shape)}, of at most 3 axes"
        )  # fmt: skip
    return layer


def _padding(values: Values, step: Step, x: Sizes, kernel: Sizes) -> tuple[Sides, Sizes]:
    """(before, after) of every axis, and what a transposed convolution has at its end."""
    dims = len(x)
    how = step.attributes.get("auto_pad", "NOTSET")
    extra = step.integers("output_padding", (0,) * dims)
    automatic = how not in ("NOTSET", "VALID")
    if step.kind == "ConvTranspose" and (automatic or step.attributes.get("output_shape")):
        return _padding_for_output(values, step, x, kernel, extra), extra
    return window_padding(values, step, x, kernel), extra


def _padding_for_output(values: Values, step: Step, x: Sizes, kernel: Sizes, extra: Sizes) -> Sides:
    """The padding that gives a transposed convolution its stated output (ONNX, ConvTranspose)."""
    dims = len(x)
    strides = step.integers("strides", (1,) * dims)
    dilations = step.integers("dilations", (1,) * dims)
    usual = tuple(size * stride for size, stride in zip(x, strides, strict=True))
    wanted = step.integers("output_shape", usual)[-dims:]
    sides = []
    for axis in range(dims):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        both = strides[axis] * (x[axis] - 1) + extra[axis] + reach - wanted[axis]
        if both < 0:
            raise ArgumentError(
                f"its output of {wanted[axis]} is larger than the transposed convolution reaches"
            )
        less = both // 2
        upper = step.attributes.get("auto_pad") == "SAME_UPPER"
        sides.append((less, both - less) if upper else (both - less, less))
    return tuple(sides)
