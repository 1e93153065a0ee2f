"""What an ONNX file multiplies, counted by running it: the judge of files that are read.

The reference evaluator of ``onnx`` runs the file on zeros. Nodes that multiply, pool, resize or
quantize are replaced by others that note the shapes of their operands and give zeros of the right
shape, so that large files take seconds; all else is computed, so that sizes, conditions of ``If``
and numbers of iterations are what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
reference = pytest.importorskip("onnx.reference")
op_run = pytest.importorskip("onnx.reference.op_run")

from tests.networks.oracle import (  # noqa: E402  # it needs PyTorch
    Convolution,
    Operation,
    ProductCounter,
    counted,
    product,
)

#: The two sets of operators: ONNX's own, and that of ONNX Runtime.
STANDARD, CONTRIBUTED = "", "com.microsoft"

#: An array of an operand, or None for one that is left out.
Array = Any


def onnx_layers(
    source: Path | str | Any,
    batch: int = 1,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, Array] | None = None,
) -> Counter[Operation]:
    """Convolutions and products of matrices that a run of a file meets, for the whole batch.

    ``source`` is a path or a ``ModelProto``. Sizes that the file leaves open are ``batch`` in the
    first axis, and must be stated by ``shapes`` in others. ``values`` are inputs that a condition
    asks. Pads that differ between two sides count as part of the input.
    """
    model = source if isinstance(source, onnx.ModelProto) else onnx.load(str(source))
    counter = ProductCounter()
    feeds = {each.name: _feed(each, batch, shapes or {}, values or {}) for each in _inputs(model)}
    evaluator = reference.ReferenceEvaluator(model, new_ops=_operators(counter))
    with np.errstate(all="ignore"):  # of zeros there may be quotients
        evaluator.run(None, feeds)
    return counter.operations


def _inputs(model: Any) -> list[Any]:
    initial = {each.name for each in model.graph.initializer}
    return [each for each in model.graph.input if each.name not in initial]


def _feed(
    declared: Any, batch: int, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array]
) -> Array:
    if declared.name in values:
        return values[declared.name]
    kind = declared.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if declared.name in shapes:
        return np.zeros(shapes[declared.name], dtype)
    sizes = [each.dim_value for each in kind.shape.dim]
    if sizes and sizes[0] == 0:
        sizes[0] = batch
    if 0 in sizes:
        raise ValueError(f"input {declared.name} has open sizes {sizes}; state them by shapes=")
    return np.zeros(sizes, dtype)


# -- operators that note their operands ------------------------------------------------------


class _Nodes:
    """Nodes that multiply: each notes its operands in ``counter`` and gives zeros."""

    def __init__(self, counter: ProductCounter) -> None:
        self.counter = counter

    def convolution(self, x: Array, w: Array, *rest: Array, **named: Any) -> Any:
        return (_convolution(self.counter, x, w, named, x.dtype),)

    def transposed(self, x: Array, w: Array, *rest: Array, **named: Any) -> Any:
        return (_transposed(self.counter, x, w, named),)

    def convolution_of_integers(self, x: Array, w: Array, *points: Array, **named: Any) -> Any:
        return (_convolution(self.counter, x, w, named, np.int32),)

    def quantized_convolution(self, *operands: Array, **named: Any) -> Any:
        x, w, y_point = operands[0], operands[3], operands[7]
        return (_convolution(self.counter, x, w, named, y_point.dtype),)

    def matrices(self, left: Array, right: Array) -> Any:
        return (_by_torch(self.counter, torch.matmul, left.dtype, left, right),)

    def matrices_of_integers(self, left: Array, right: Array, *points: Array) -> Any:
        return (_by_torch(self.counter, torch.matmul, np.int32, left, right),)

    def quantized_matrices(self, *operands: Array) -> Any:
        left, right, y_point = operands[0], operands[3], operands[7]
        return (_by_torch(self.counter, torch.matmul, y_point.dtype, left, right),)

    def gemm(self, left: Array, right: Array, *bias: Array, **named: Any) -> Any:
        left = left.T if named.get("transA") else left
        right = right.T if named.get("transB") else right
        return (_by_torch(self.counter, torch.matmul, left.dtype, left, right),)

    def einsum(self, *operands: Array, equation: str) -> Any:
        function = partial(torch.einsum, equation)
        return (_by_torch(self.counter, function, operands[0].dtype, *operands),)

    def lstm(self, x: Array, w: Array, r: Array, *rest: Array, **named: Any) -> Any:
        return _recurrent(self.counter, 4, x, r, named)

    def gru(self, x: Array, w: Array, r: Array, *rest: Array, **named: Any) -> Any:
        return _recurrent(self.counter, 3, x, r, named)

    def rnn(self, x: Array, w: Array, r: Array, *rest: Array, **named: Any) -> Any:
        return _recurrent(self.counter, 1, x, r, named)

    def attention(self, x: Array, w: Array, *rest: Array, **named: Any) -> Any:
        return _attention(self.counter, x, w, named)

    def attention_of_projected(self, *operands: Array, **named: Any) -> Any:
        return _attention_of_projected(self.counter, operands, named)

    def refused(self, *operands: Array, **named: Any) -> Any:
        raise NotImplementedError("a node multiplies, and the oracle does not count it")


def _operators(counter: ProductCounter) -> list[Any]:
    """Classes for the reference evaluator, of which each counts or only gives a shape."""
    nodes = _Nodes(counter)
    return [
        _operator("Conv", nodes.convolution),
        _operator("FusedConv", nodes.convolution, CONTRIBUTED),
        _operator("ConvInteger", nodes.convolution_of_integers),
        _operator("QLinearConv", nodes.quantized_convolution),
        _operator("ConvTranspose", nodes.transposed),
        _operator("MatMul", nodes.matrices),
        _operator("FusedMatMul", nodes.refused, CONTRIBUTED),
        _operator("MatMulInteger", nodes.matrices_of_integers),
        _operator("QLinearMatMul", nodes.quantized_matrices),
        _operator("Gemm", nodes.gemm),
        _operator("FusedGemm", nodes.gemm, CONTRIBUTED),
        _operator("Einsum", nodes.einsum),
        _operator("LSTM", nodes.lstm),
        _operator("GRU", nodes.gru),
        _operator("RNN", nodes.rnn),
        _operator("Attention", nodes.attention_of_projected),
        _operator("Attention", nodes.attention, CONTRIBUTED),
        _operator("DeformConv", nodes.refused),
        _operator("MaxPool", _pooled),
        _operator("AveragePool", _pooled),
        _operator("Resize", _resized),
        _operator("QuantizeLinear", _quantized),
        _operator("DequantizeLinear", _plain),
    ]


def _operator(name: str, function: Callable[..., Any], domain: str = STANDARD) -> Any:
    """A class of the reference evaluator that calls ``function`` with operands and attributes."""

    def run(node: Any, *operands: Array, **named: Any) -> Any:
        results = function(*operands, **named)
        return tuple(results[: len(node.onnx_node.output)])

    return type(name, (op_run.OpRun,), {"op_domain": domain, "_run": run})


def _by_torch(
    counter: ProductCounter, function: Callable[..., Any], dtype: Any, *operands: Array
) -> Array:
    """What PyTorch makes of the operands' shapes; its products are counted, none is computed."""
    tensors = [torch.empty(each.shape, device="meta") for each in operands]
    with torch.no_grad(), counted(counter):
        result = function(*tensors)
    return np.zeros(tuple(result.shape), dtype)


# -- windows -----------------------------------------------------------------------------------


def _sides(named: Mapping[str, Any], sizes: Sequence[int], reach: Sequence[int]) -> Any:
    """What is padded before and behind each axis; ``reach`` is what a window covers."""
    axes = len(sizes)
    strides = named.get("strides") or [1] * axes
    automatic = named.get("auto_pad") or "NOTSET"
    if automatic in ("NOTSET", b"NOTSET"):
        pads = named.get("pads") or [0] * (2 * axes)
        return list(pads[:axes]), list(pads[axes:])
    if automatic == "VALID":
        return [0] * axes, [0] * axes
    wanted = [
        max((ceil(x / s) - 1) * s + r - x, 0) for x, s, r in zip(sizes, strides, reach, strict=True)
    ]
    less, more = [each // 2 for each in wanted], [each - each // 2 for each in wanted]
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


def _reach(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    return [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]


def _places(
    sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int], *, up: bool = False
) -> list[int]:
    """How many windows fit on each axis; with ``up`` also one that ends beyond it."""
    places = []
    for x, r, s in zip(sizes, reach, strides, strict=True):
        more = s - 1 if up else 0
        places.append((x - r + more) // s + 1)
    return places


def _convolution(
    counter: ProductCounter, x: Array, w: Array, named: Mapping[str, Any], dtype: Any
) -> Array:
    axes = w.ndim - 2
    strides = tuple(named.get("strides") or [1] * axes)
    dilations = tuple(named.get("dilations") or [1] * axes)
    reach = _reach(w.shape[2:], dilations)
    before, behind = _sides(named, x.shape[2:], reach)
    wide = [x + b + e for x, b, e in zip(x.shape[2:], before, behind, strict=True)]
    same = before == behind
    counter.operations[
        Convolution(
            x.shape if same else (*x.shape[:2], *wide),
            w.shape,
            strides,
            tuple(before) if same else (0,) * axes,
            dilations,
            int(named.get("group") or 1),
            transposed=False,
            output_padding=(0,) * axes,
        )
    ] += 1
    return np.zeros((x.shape[0], w.shape[0], *_places(wide, reach, strides)), dtype)


def _transposed(counter: ProductCounter, x: Array, w: Array, named: Mapping[str, Any]) -> Array:
    axes = w.ndim - 2
    strides = tuple(named.get("strides") or [1] * axes)
    dilations = tuple(named.get("dilations") or [1] * axes)
    extra = tuple(named.get("output_padding") or [0] * axes)
    groups = int(named.get("group") or 1)
    if named.get("auto_pad") not in (None, "NOTSET") or named.get("output_shape"):
        raise NotImplementedError("ConvTranspose with auto_pad or output_shape")
    pads = list(named.get("pads") or [0] * (2 * axes))
    reach = _reach(w.shape[2:], dilations)
    sizes = [
        (x - 1) * s + r + e - before - behind
        for x, s, r, e, before, behind in zip(
            x.shape[2:], strides, reach, extra, pads[:axes], pads[axes:], strict=True
        )
    ]
    counter.operations[
        Convolution(
            x.shape,
            w.shape,
            strides,
            tuple(pads[:axes]),
            dilations,
            groups,
            transposed=True,
            output_padding=extra,
        )
    ] += 1
    return np.zeros((x.shape[0], w.shape[1] * groups, *sizes), x.dtype)


def _pooled(x: Array, **named: Any) -> Any:
    kernel = named["kernel_shape"]
    strides = named.get("strides") or [1] * len(kernel)
    reach = _reach(kernel, named.get("dilations") or [1] * len(kernel))
    before, behind = _sides(named, x.shape[2:], reach)
    wide = [x + b + e for x, b, e in zip(x.shape[2:], before, behind, strict=True)]
    places = _places(wide, reach, strides, up=bool(named.get("ceil_mode")))
    for axis, (count, stride, first) in enumerate(zip(places, strides, before, strict=True)):
        if (count - 1) * stride >= x.shape[2 + axis] + first:  # begins in the padding behind
            places[axis] -= 1
    shape = (*x.shape[:2], *places)
    return np.zeros(shape, x.dtype), np.zeros(shape, np.int64)


def _resized(
    x: Array, region: Array = None, scales: Array = None, sizes: Array = None, **named: Any
) -> Any:
    if region is not None and scales is None and sizes is None:  # operands of opset 10
        scales = region
    axes = named.get("axes") or range(x.ndim)
    if named.get("keep_aspect_ratio_policy") not in (None, "stretch"):
        raise NotImplementedError("Resize that keeps the aspect ratio")
    shape = list(x.shape)
    by_size = sizes is not None and sizes.size
    for axis, number in zip(axes, sizes if by_size else scales, strict=True):
        shape[axis] = int(number) if by_size else int(np.floor(x.shape[axis] * number))
    return (np.zeros(shape, x.dtype),)


def _quantized(x: Array, scale: Array, point: Array = None, **named: Any) -> Any:
    return (np.zeros(x.shape, np.uint8 if point is None else point.dtype),)


def _plain(x: Array, *scale: Array, **named: Any) -> Any:
    return (np.zeros(x.shape, np.float32),)


# -- layers of several products ----------------------------------------------------------------


def _recurrent(
    counter: ProductCounter, gates: int, x: Array, r: Array, named: Mapping[str, Any]
) -> Any:
    """A recurrent layer: a product for all inputs, and one for the state of every step."""
    swapped = bool(named.get("layout"))
    steps, batch = (x.shape[1], x.shape[0]) if swapped else x.shape[:2]
    directions, width, hidden = r.shape
    if width != gates * hidden:
        raise ValueError(f"a recurrent layer of {gates} gates has recurrent weights {r.shape}")
    counter.operations[product(1, steps * batch, x.shape[2], width)] += directions
    counter.operations[product(1, batch, hidden, width)] += directions * steps
    y = np.zeros((steps, directions, batch, hidden), x.dtype)
    last = np.zeros((directions, batch, hidden), x.dtype)
    if swapped:
        y, last = y.transpose(2, 0, 1, 3), last.transpose(1, 0, 2)
    return y, last, last


def _attention(counter: ProductCounter, x: Array, w: Array, named: Mapping[str, Any]) -> Any:
    """ONNX Runtime's attention: one product for queries, keys and values, and two of each head."""
    batch, length, width = x.shape
    heads = named["num_heads"]
    sizes = named.get("qkv_hidden_sizes") or [w.shape[1] // 3] * 3
    counter.operations[product(1, batch * length, width, w.shape[1])] += 1
    counter.operations[product(batch * heads, length, sizes[0] // heads, length)] += 1
    counter.operations[product(batch * heads, length, length, sizes[2] // heads)] += 1
    return (np.zeros((batch, length, sizes[2]), x.dtype),)


def _attention_of_projected(
    counter: ProductCounter, operands: Sequence[Array], named: Mapping[str, Any]
) -> Any:
    """ONNX's attention: two products of each head of queries."""
    q, k, v = operands[:3]
    if any(each is not None for each in operands[4:6]):
        raise NotImplementedError("Attention with keys and values of the past")
    folded = q.ndim == 3
    if folded:
        q = _by_heads(q, named["q_num_heads"])
        k, v = (_by_heads(each, named["kv_num_heads"]) for each in (k, v))
    batch, heads, length, width = q.shape
    keys, out = k.shape[2], v.shape[3]
    counter.operations[product(batch * heads, length, width, keys)] += 1
    counter.operations[product(batch * heads, length, keys, out)] += 1
    shape = (batch, length, heads * out) if folded else (batch, heads, length, out)
    return (np.zeros(shape, q.dtype),)


def _by_heads(array: Array, heads: int) -> Array:
    batch, length, width = array.shape
    return array.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
