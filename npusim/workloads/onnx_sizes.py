"""The sizes of all values of an ONNX model, and the constants that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError

#: Elements of the largest constant that is computed with, and operators that are left alone: those
#: without a value of their own, or with another at every run.
SMALL = 4096
_NEVER = ("If", "Loop", "Scan", "RandomNormal", "RandomUniform", "Bernoulli", "Multinomial")


def sized(onnx: Any, model: Any, input_shape: Sequence[int] | None, file: Path) -> Any:
    """The model with the sizes of all its values, for its own batch, or one image if it is open.

    Shapes that an exporter wrote into the nodes are of that batch.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in weights]
    if not inputs:
        raise ArgumentError(f"{file}: the graph has no input")
    dims = inputs[0].type.tensor_type.shape.dim
    if input_shape is not None and len(input_shape) != len(dims) - 1:
        raise ArgumentError(
            f"{file}: input_shape {tuple(input_shape)} has {len(input_shape)} sizes; the input "
            f"{inputs[0].name} has {len(dims) - 1} besides the batch"
        )
    dims[0].dim_value = max(1, dims[0].dim_value)
    for dim, size in zip(dims[1:], input_shape or (), strict=False):
        dim.ClearField("dim_param")
        dim.dim_value = int(size)
    for one in [*model.graph.value_info, *model.graph.output]:  # with sizes left open
        if one.name not in weights:
            one.type.tensor_type.ClearField("shape")
    more = True
    while more:  # sizes tell constants, and constants tell sizes
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        more = _fold(onnx, model.graph)
    return model


def _fold(onnx: Any, graph: Any) -> bool:
    """Replace what follows from constants and known sizes, such as computed pads, by constants.

    A choice becomes the branch that is taken. Returns whether anything was replaced.
    """
    evaluator = import_module("onnx.reference").ReferenceEvaluator
    to_array, from_array = onnx.numpy_helper.to_array, onnx.numpy_helper.from_array
    here = (t for t in graph.initializer if not t.external_data)  # sizes lie in the file itself
    known = {t.name: to_array(t) for t in here if prod(t.dims) <= SMALL}
    sizes = value_sizes(graph)
    kept, replaced = [], False
    for node in graph.node:
        inputs = [name for name in node.input if name]
        size = sizes.get(inputs[0], ()) if node.op_type == "Shape" else ()
        if size and min(size) > 0 and not node.attribute:
            values = [np.array(size, np.int64)]
        elif node.op_type == "If" and node.input[0] in known:
            kept += _branch(onnx, node, taken=bool(known[node.input[0]]))
            replaced = True
            continue
        elif node.op_type not in _NEVER and all(name in known for name in inputs):
            values = evaluator(node).run(None, {name: known[name] for name in inputs})
        else:
            kept.append(node)
            continue
        replaced = True
        for name, value in zip(node.output, values, strict=True):
            known[name] = value
            graph.initializer.append(from_array(value, name))
    del graph.node[:]
    graph.node.extend(kept)
    return replaced


def _branch(onnx: Any, node: Any, *, taken: bool) -> list[Any]:
    """The nodes of the branch that a choice takes, which give its results."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    branch = attributes["then_branch" if taken else "else_branch"]
    pairs = zip(branch.output, node.output, strict=True)
    results = [onnx.helper.make_node("Identity", [one.name], [name]) for one, name in pairs]
    return [*branch.node, *results]


def value_sizes(graph: Any) -> dict[str, tuple[int, ...]]:
    """Sizes of inputs, outputs and what lies between, 0 for a dimension that is not known."""
    values = [*graph.input, *graph.value_info, *graph.output]
    return {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
