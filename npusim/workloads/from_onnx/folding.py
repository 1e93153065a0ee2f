"""Constants of an ONNX file: what follows from its numbers, at its own operator set."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from npusim.workloads.from_onnx.nodes import STANDARD, Step

#: Elements of the largest array that is read from a file to compute with, and of a computed one.
SMALL = 4096
LARGEST = 1_000_000

#: Operators whose results differ at every run, and those that run other nodes.
_NEVER = (
    "If",
    "Loop",
    "Scan",
    "SequenceMap",
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
)

#: Products, which are computed only where they are as small as those of sizes.
_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "LSTM", "GRU", "RNN")


class Folding:
    """Evaluates nodes by ONNX's own reference, each as the file's operator sets define it."""

    def __init__(self, onnx: Any, model: Any) -> None:
        self.onnx = onnx
        self.model = model

    def computes(self, step: Step, constants: Mapping[str, Any], elements: int) -> bool:
        """Return whether the results of a node follow from constants and are worth having."""
        if step.kind in _NEVER or step.domain not in STANDARD:
            return False
        if any(name not in constants for name in step.inputs if name):
            return False
        return elements <= (SMALL if step.kind in _PRODUCTS else LARGEST)

    def results(self, step: Step, constants: Mapping[str, Any]) -> list[Any] | None:
        """The results of a node, None where the reference does not know it at this version."""
        helper = self.onnx.helper
        names = [name for name in dict.fromkeys(step.inputs) if name]
        kinds = {name: helper.np_dtype_to_tensor_dtype(constants[name].dtype) for name in names}
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [step.proto],
            "constants",
            [value(name, kinds[name], constants[name].shape) for name in names],
            [self.onnx.ValueInfoProto(name=name) for name in step.outputs if name],
        )
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        try:
            evaluator = import_module("onnx.reference").ReferenceEvaluator(model)
            outputs = evaluator.run(None, {name: constants[name] for name in names})
        except Exception:  # the reference lacks versions, and raises what it likes
            return None
        results = iter(outputs)
        values = [next(results) if name else None for name in step.outputs]
        are_small = all(
            value is None or isinstance(value, (np.ndarray, np.generic)) for value in values
        )
        return (
            [None if value is None else np.asarray(value) for value in values]
            if are_small
            else None
        )


def initial_constants(onnx: Any, graph: Any) -> dict[str, Any]:
    """The small initialisers of a graph whose numbers lie in the file itself."""
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if not tensor.external_data and prod(tensor.dims) <= SMALL
    }
