"""Windows over maps in an ONNX file: their padding, and poolings."""

from __future__ import annotations

from math import prod

from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx.nodes import Step
from npusim.workloads.from_onnx.values import Values
from npusim.workloads.kinds import kinds_in

Sizes = tuple[int, ...]
Sides = tuple[tuple[int, int], ...]

_ONNX = kinds_in("onnx")


def window_padding(values: Values, step: Step, x: Sizes, kernel: Sizes) -> Sides:
    """(before, after) of every axis: as stated, or what makes the size of the output."""
    dims = len(x)
    how = step.attributes.get("auto_pad", "NOTSET")
    if how in ("NOTSET", "VALID"):
        pads = step.integers("pads", (0,) * (2 * dims))
        return tuple(zip(pads[:dims], pads[dims:], strict=True))
    out = values.sized.shape(step, step.outputs[0])[2:]
    strides = step.integers("strides", (1,) * dims)
    dilations = step.integers("dilations", (1,) * dims)
    sides = []
    windows = zip(x, kernel, strides, dilations, out, strict=True)
    for size, taps, stride, dilation, outputs in windows:
        reached = (outputs - 1) * stride + dilation * (taps - 1) + 1
        both = max(0, reached - size)
        half = both // 2
        sides.append((half, both - half) if how == "SAME_UPPER" else (both - half, half))
    return tuple(sides)


WHOLE = {"GlobalAveragePool": "avg_pool", "GlobalMaxPool": "max_pool"}


def global_pooling(values: Values, step: Step) -> None:
    """Note a pooling of whole maps."""
    value = values.value(step.inputs[0])
    if prod(value.shape[2:]) == 1:
        values.put(step.outputs[0], value)
        return
    out = (*value.shape[:2], *(1 for _ in value.shape[2:]))
    layer = ElementwiseLayer(kind=WHOLE[step.kind], shape=value.shape, out=out)
    result = values.add(step, layer, [values.edge(value, step)], images=value.images)
    values.put(step.outputs[0], result)


def pooling(values: Values, step: Step) -> None:
    """Note a pooling of windows; windows with holes are known by name only."""
    value = values.value(step.inputs[0])
    if set(step.integers("dilations")) - {1}:
        values.unknown(step, f"dilated {_ONNX[step.kind]}")
        return
    kernel = step.integers("kernel_shape")
    padding = window_padding(values, step, value.shape[2:], kernel)
    counted = bool(step.attributes.get("count_include_pad", 0)) and any(map(any, padding))
    layer = ElementwiseLayer(
        kind=_ONNX[step.kind],
        shape=value.shape,
        out=values.sized.shape(step, step.outputs[0]),
        numbers=(1.0,) if counted else (),
        kernel=kernel,
        stride=step.integers("strides", (1,) * len(kernel)),
        padding=padding,
    )
    result = values.add(step, layer, [values.edge(value, step)], images=value.images)
    values.put(step.outputs[0], result)
