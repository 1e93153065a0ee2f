"""Attention as one node of an ONNX file: products, softmax and what lies between them.

ONNX's own operator (operator set 23 on) and those of ONNX Runtime. Padding masks of whole numbers
are not added: they move few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np

from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx.elements import combined
from npusim.workloads.from_onnx.moves import cut, whole
from npusim.workloads.from_onnx.nodes import Step, fault
from npusim.workloads.from_onnx.products import linear, product
from npusim.workloads.from_onnx.values import OnnxValue, Values
from npusim.workloads.graph import MULTIPLIES

_MASK_ELEMENTS = 1_000_000


def attention(values: Values, step: Step) -> None:
    """Note ONNX's own ``Attention``."""
    query = values.value(step.inputs[0])
    key = values.value(step.inputs[1])
    value = values.value(step.inputs[2])
    plain = len(query.shape) == 3
    if plain:
        few = int(step.attributes["kv_num_heads"])
        query = heads(values, step, query, int(step.attributes["q_num_heads"]))
        key = heads(values, step, key, few)
        value = heads(values, step, value, few)
    key = _with_past(values, step, key, past=4, present=1, part="keys")
    value = _with_past(values, step, value, past=5, present=2, part="values")
    mask = values.value(step.operand(3)) if step.operand(3) else None
    causal = bool(step.attributes.get("is_causal", 0))
    factor = step.attributes.get("scale")
    result = attended(values, step, (query, key, value), factor, mask=mask, causal=causal)
    values.put(step.outputs[0], merged(values, step, result) if plain else result)


def _with_past(
    values: Values, step: Step, value: OnnxValue, *, past: int, present: int, part: str
) -> OnnxValue:
    """Keys or values behind those of the operand ``past``, which the output ``present`` is."""
    if not step.operand(past):
        return value
    joined = _joined(values, step, [values.value(step.operand(past)), value], part)
    if len(step.outputs) > present:
        values.put(step.outputs[present], joined)
    return joined


def runtime_attention(values: Values, step: Step) -> None:
    """Note ONNX Runtime's ``Attention``: one product for queries, keys and values before it."""
    source = values.value(step.inputs[0])
    weight = values.value(step.inputs[1], trained=True)
    bias = values.value(step.operand(2), trained=True) if step.operand(2) else None
    number = int(step.attributes["num_heads"])
    wide = weight.shape[-1]
    sizes = step.integers("qkv_hidden_sizes", (wide // 3,) * 3)
    projections = linear(values, step, source, weight, bias=bias, part="projections")
    parts = []
    first = 0
    for size, name in zip(sizes, ("queries", "keys", "values"), strict=True):
        taken = whole(projections.shape)
        taken[-1] = (first, size, 1)
        parts.append(heads(values, step, cut(values, step, projections, taken, part=name), number))
        first += size
    mask = values.value(step.operand(5)) if step.operand(5) else None
    causal = bool(step.attributes.get("unidirectional", 0))
    factor = step.attributes.get("scale") or None
    result = attended(values, step, parts, factor, mask=mask, causal=causal)
    values.put(step.outputs[0], merged(values, step, result))


def several_heads(values: Values, step: Step) -> None:
    """Note ONNX Runtime's ``MultiHeadAttention`` of queries, keys and values of three axes."""
    names = [step.operand(place) for place in range(3)]
    shapes = [values.sized.shapes.get(name, ()) for name in names]
    if not all(names) or [len(shape) for shape in shapes] != [3, 3, 3]:
        values.unknown(step, f"{MULTIPLIES}{step.kind}")
        return
    number = int(step.attributes["num_heads"])
    first = 0
    parts = []
    for name, word in zip(names, ("queries", "keys", "values"), strict=True):
        value = values.value(name)
        if step.operand(3):
            bias = values.value(step.operand(3), trained=True)
            size = value.shape[-1]
            part_of_bias = cut(values, step, bias, [(first, size, 1)], part=f"{word}.bias")
            value = combined(
                values, step, "add", value, part_of_bias, value.shape, part=f"{word}.sum"
            )
            first += size
        parts.append(heads(values, step, value, number))
    mask = values.value(step.operand(5)) if step.operand(5) else None
    causal = bool(step.attributes.get("unidirectional", 0))
    factor = step.attributes.get("scale") or None
    result = attended(values, step, parts, factor, mask=mask, causal=causal)
    values.put(step.outputs[0], merged(values, step, result))


def heads(values: Values, step: Step, value: OnnxValue, number: int) -> OnnxValue:
    """(images, rows, heads x features) as (images, heads, rows, features)."""
    images, rows, wide = value.shape
    if wide % number:
        raise fault(values.sized.file, step, f"{number} heads do not divide {wide} features")
    laid = values.laid(value, step)
    return laid.seen((images, rows, number, wide // number)).transposed((0, 2, 1, 3))


def merged(values: Values, step: Step, value: OnnxValue) -> OnnxValue:
    """(images, heads, rows, features) as (images, rows, heads x features)."""
    images, number, rows, wide = value.shape
    laid = values.laid(value.transposed((0, 2, 1, 3)), step)
    return laid.seen((images, rows, number * wide))


def attended(
    values: Values,
    step: Step,
    parts: Sequence[OnnxValue],
    factor: float | None,
    *,
    mask: OnnxValue | None = None,
    causal: bool = False,
) -> OnnxValue:
    """The values that queries (images, heads, rows, features) take by the keys.

    Where several heads of queries share one of the keys their rows are rows of one product.
    """
    query, key, value = parts
    images, number, rows, wide = query.shape
    few, keys = key.shape[1:3]
    if few != number:
        query = values.laid(query, step).seen((images, few, number // few * rows, wide))
    turned = key.transposed((0, 1, 3, 2))
    scores = product(values, step, query, turned, (images, few), part="scores")
    scores = scores.seen((images, number, rows, keys))
    scale = 1 / sqrt(wide) if factor is None else factor
    scores = values.each(step, "scale", scores, numbers=(scale,), part="scale")
    if causal:
        mask = _causal(values, rows, keys) if mask is None else mask
    if mask is not None:
        scores = combined(values, step, "add", scores, mask, scores.shape, part="mask")
    shares = values.each(step, "softmax", scores, part="softmax")
    shares = shares.seen((images, few, number // few * rows, keys))
    result = product(values, step, shares, value, (images, few))
    return result.seen((images, number, rows, value.shape[-1]))


def _causal(values: Values, rows: int, keys: int) -> OnnxValue:
    """A constant added to the scores, which hides later keys."""
    name = f"causal_mask_{rows}x{keys}"
    data = None
    if rows * keys <= _MASK_ELEMENTS:
        data = np.triu(np.full((rows, keys), -np.inf, np.float32), 1 + keys - rows)
    values.builder.parameter(name, (rows, keys), trained=False, data=data)
    return OnnxValue(name, (rows, keys), images=False)


def _joined(values: Values, step: Step, parts: Sequence[OnnxValue], word: str) -> OnnxValue:
    """Keys or values of before and of now, one behind the other."""
    reads = [values.edge(part, step) for part in parts if prod(part.shape)]
    images, number, _, wide = parts[1].shape
    out = (images, number, sum(part.shape[2] for part in parts), wide)
    layer = ElementwiseLayer(kind="concat", shape=out, out=out)
    return values.add(step, layer, reads, part=word)
