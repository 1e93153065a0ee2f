"""Functions that read the operators of an ONNX file, in a table by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from npusim.workloads.from_onnx import (
    attention,
    convolutions,
    elements,
    moves,
    norms,
    products,
    recurrent,
    windows,
)
from npusim.workloads.from_onnx.nodes import STANDARD, Step
from npusim.workloads.from_onnx.sizes import multiplies
from npusim.workloads.from_onnx.values import Values
from npusim.workloads.graph import MULTIPLIES

Reader = Callable[[Values, Step], None]

#: Domains whose operators are known, by the table or by name.
_KNOWN_DOMAINS = (*STANDARD, "ai.onnx.ml", "com.microsoft", "com.ms.internal.nhwc")

_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(convolutions.CONVOLUTIONS, convolutions.convolution),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), products.matmul),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), products.matmul),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), products.matmul),
    **dict.fromkeys(("Gemm", "FusedGemm", "QGemm"), products.gemm),
    "MatMulNBits": products.narrow_matmul,
    "Einsum": products.einsum,
    "MultiHeadAttention": attention.several_heads,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent.recurrent_layer),
    **dict.fromkeys(elements.ACTIVATIONS, elements.activation),
    **dict.fromkeys(elements.BINARY, elements.binary),
    "Sum": elements.total,
    "Max": elements.extreme,
    "Min": elements.extreme,
    "Neg": elements.negative,
    "Pow": elements.power,
    "PRelu": elements.prelu,
    "Dropout": elements.dropout,
    **dict.fromkeys(norms.BY_CHANNEL, norms.by_channel),
    **dict.fromkeys(("LayerNormalization", "SkipLayerNormalization"), norms.layer_norm),
    **dict.fromkeys(("Softmax", "LogSoftmax"), norms.softmax),
    **dict.fromkeys(norms.REDUCTIONS, norms.reduction),
    **dict.fromkeys(windows.WHOLE, windows.global_pooling),
    **dict.fromkeys(("MaxPool", "AveragePool"), windows.pooling),
    **dict.fromkeys(moves.SAME, moves.same),
    **dict.fromkeys(moves.VIEWS, moves.view),
    "Transpose": moves.transpose,
    "Slice": moves.sliced,
    "Split": moves.split,
    "Gather": moves.gather,
    "Concat": moves.concat,
    "Expand": moves.expand,
    "Tile": moves.tile,
    "Pad": moves.pad,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), moves.blocks),
    **dict.fromkeys(("Resize", "Upsample"), moves.resize),
}


def read(values: Values, step: Step) -> None:
    """Note what a node computes, in the order of a file.

    Nodes of constants alone compute nothing in a step. What follows from sizes that are not known
    is left out; ``Values.unread`` counts it.
    """
    shapes = [values.sized.shapes.get(name) for name in step.outputs if name]
    if shapes and all(shape is not None and not prod(shape) for shape in shapes):
        return
    if step.outputs[0] in values.biased:
        values.put(step.outputs[0], values.value(values.biased[step.outputs[0]]))
        return
    if not _computes(values, step):
        return
    if not _may_multiply(values, step) and _unknown_sizes(values, step):
        values.unread[step.kind] += 1
        return
    _reader(values, step)(values, step)


def _computes(values: Values, step: Step) -> bool:
    """Return whether a node reads an input, a parameter, or what follows from them."""
    names = [name for name in step.values if values.known(name)]
    weights = values.sized.weights.keys() - values.sized.numbers
    return any(name in values.values or name in weights for name in names)


def _unknown_sizes(values: Values, step: Step) -> bool:
    """Return whether a node reads or computes values whose sizes are not known."""
    names = [*step.values, step.outputs[0]]
    return any(values.sized.shapes.get(name) is None for name in names if name)


def _reader(values: Values, step: Step) -> Reader:
    """The function that reads a node; what no function knows is known by name."""
    standard = step.domain in STANDARD
    if step.kind == "Attention":
        return attention.attention if standard else attention.runtime_attention
    if step.kind in _READERS and step.domain in _KNOWN_DOMAINS:
        return _READERS[step.kind]
    return _unknown


def _unknown(values: Values, step: Step) -> None:
    """Note a node by its name; one that may multiply says so."""
    if step.domain not in _KNOWN_DOMAINS:
        values.strange[f"{step.domain}.{step.kind}"] += 1
    before = MULTIPLIES if _may_multiply(values, step) else ""
    values.unknown(step, f"{before}{step.kind}")


def _may_multiply(values: Values, step: Step) -> bool:
    """Return whether a node is a product, or of an unknown domain and reads matrices of weights."""
    weights = values.sized.weights
    numbers = values.sized.numbers
    matrices = [
        name for name in step.inputs if len(weights.get(name, ())) > 1 and name not in numbers
    ]
    return multiplies(step) or (step.domain not in _KNOWN_DOMAINS and bool(matrices))
