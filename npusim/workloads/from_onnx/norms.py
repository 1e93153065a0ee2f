"""Normalisations, softmax and reductions in an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx.elements import combined
from npusim.workloads.from_onnx.nodes import Step, fault
from npusim.workloads.from_onnx.values import OnnxValue, Values
from npusim.workloads.kinds import KINDS
from npusim.workloads.numbers import numbers_of

Sizes = tuple[int, ...]

#: Normalisations by channel: their kinds.
BY_CHANNEL = {
    "BatchNormalization": "batch_norm",
    "InstanceNormalization": "instance_norm",
    "GroupNormalization": "group_norm",
}


def by_channel(values: Values, step: Step) -> None:
    """Note a normalisation with a factor and a term for each channel."""
    value = values.value(step.inputs[0])
    kind = BY_CHANNEL[step.kind]
    epsilon = step.attributes.get("epsilon", 1e-5)
    numbers = [step.attributes["num_groups"], epsilon] if kind == "group_norm" else [epsilon]
    layer = ElementwiseLayer(
        kind=kind, shape=value.shape, numbers=numbers_of(kind, kind, [float(n) for n in numbers])
    )
    channels = (1, value.shape[1], *(1 for _ in value.shape[2:]))
    result = _normalised(values, step, layer, value, step.inputs[1:3], channels)
    values.put(step.outputs[0], result)


def layer_norm(values: Values, step: Step) -> None:
    """Note a normalisation of rows; before it a sum with another value where it has one."""
    value = values.value(step.inputs[0])
    names = (step.operand(1), step.operand(2))
    if step.kind == "SkipLayerNormalization":
        value = combined(
            values, step, "add", value, values.value(step.inputs[1]), value.shape, part="skip"
        )
        names = (step.operand(2), step.operand(3))
        if step.operand(4):
            bias = values.value(step.operand(4))
            value = combined(values, step, "add", value, bias, value.shape, part="bias")
        if len(step.outputs) > 3:
            values.put(step.outputs[3], value)
    shape = value.shape
    axis = step.attributes.get("axis", -1)
    axis %= len(shape)
    rows = (*shape[:axis], prod(shape[axis:]))
    epsilon = float(step.attributes.get("epsilon", 1e-5))
    layer = ElementwiseLayer(
        kind="layer_norm", shape=rows, numbers=numbers_of("layer_norm", "layer_norm", [epsilon])
    )
    result = _normalised(values, step, layer, value, names, rows[-1:])
    values.put(step.outputs[0], result.seen(shape))


def _normalised(
    values: Values,
    step: Step,
    layer: ElementwiseLayer,
    value: OnnxValue,
    names: Sequence[str],
    few: Sizes,
) -> OnnxValue:
    """A normalisation with its factor and term; computed ones are nodes behind it."""
    parameters = {}
    computed = {}
    for symbol, name in zip(("gamma", "beta"), names, strict=False):
        if not name:
            continue
        factor = values.value(name, trained=True)
        if factor.weight:
            parameters[symbol] = factor.name
        else:
            computed[symbol] = factor
    reads = [values.edge(value, step, layer.shape)]
    result = values.add(step, layer, reads, parameters=parameters, images=value.images)
    for symbol, factor in computed.items():
        kind = "mul" if symbol == "gamma" else "add"
        if prod(factor.shape) != prod(few):
            raise fault(
                values.sized.file, step, f"its factor or term is {list(factor.shape)}; it needs "
                f"{prod(few)} numbers"
            )  # fmt: skip
        result = combined(
            values,
            step,
            kind,
            result,
            values.laid(factor, step).seen(few),
            result.shape,
            part=symbol,
        )
    return result


# -- rows ----------------------------------------------------------------------------------


def softmax(values: Values, step: Step) -> None:
    """Note a softmax along an axis; up to operator set 12 along all from the axis on."""
    value = values.value(step.inputs[0])
    kind = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[step.kind]
    shape = value.shape
    flat = values.sized.opset < 13
    axis = step.attributes.get("axis", 1 if flat else -1) % max(1, len(shape))
    if flat:
        rows = (prod(shape[:axis]), prod(shape[axis:]))
        layer = ElementwiseLayer(kind=kind, shape=rows)
        result = values.add(step, layer, [values.edge(value, step, rows)], images=value.images)
        values.put(step.outputs[0], result.seen(shape))
        return
    order = [*(number for number in range(len(shape)) if number != axis), axis]
    rows_first = values.laid(value.transposed(order), step)
    layer = ElementwiseLayer(kind=kind, shape=rows_first.shape)
    result = values.add(step, layer, [values.edge(rows_first, step)], images=value.images)
    values.put(
        step.outputs[0], result.transposed([order.index(number) for number in range(len(shape))])
    )


#: Reductions that ONNX has.
REDUCTIONS = (
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)

#: Those that are poolings of whole rows.
_POOLED = {"ReduceMean": "avg_pool", "ReduceMax": "max_pool", "ReduceSum": "sum"}


def reduction(values: Values, step: Step) -> None:
    """Note a mean, maximum, sum or the like along axes."""
    value = values.value(step.inputs[0])
    rank = len(value.shape)
    stated = values.whole(step.operand(1)) or step.integers("axes")
    if not stated and step.attributes.get("noop_with_empty_axes", 0):
        values.put(step.outputs[0], value)
        return
    axes = sorted(axis % rank for axis in stated) or list(range(rank))
    out = values.sized.shape(step, step.outputs[0])
    if prod(out) == prod(value.shape):
        values.put(step.outputs[0], values.laid(value, step).seen(out))
        return
    kind = _POOLED.get(step.kind, "")
    if kind not in KINDS or len(axes) == rank:
        values.unknown(step)
        return
    values.put(step.outputs[0], reduced(values, step, value, axes, kind).seen(out))


def reduced(
    values: Values, step: Step, value: OnnxValue, axes: Sequence[int], kind: str, *, part: str = ""
) -> OnnxValue:
    """A reduction along ``axes``: of whole maps, or of rows, to which others are permuted."""
    rank = len(value.shape)
    others = [axis for axis in range(rank) if axis not in axes]
    if list(axes) == list(range(2, rank)) and not value.axes:
        shape = value.shape
        out = (*shape[:2], *(1 for _ in axes))
    else:
        value = values.laid(value.transposed([*others, *axes]), step)
        sizes = value.shape[: len(others)]
        shape = (sizes[0], prod(sizes[1:]), prod(value.shape[len(others) :]))
        out = (*shape[:2], 1)
    layer = ElementwiseLayer(kind=kind, shape=shape, out=out)
    reads = [values.edge(value, step, shape)]
    return values.add(step, layer, reads, part=part, images=value.images)
