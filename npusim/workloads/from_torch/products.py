"""Operations that multiply: convolutions, linear layers, products of matrices, attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

from npusim.base.records import replace
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_torch import arithmetic, moves, rows
from npusim.workloads.from_torch.reader import AtenCall, Reader
from npusim.workloads.from_torch.rows import each
from npusim.workloads.from_torch.values import TracedValue
from npusim.workloads.graph import MULTIPLIES
from npusim.workloads.layers import ConvLayer, LinearLayer


def _own(reader: Reader, value: TracedValue | None) -> bool:
    """Return whether an operand can be a parameter of the node: as it lies, trained if anywhere."""
    name = reader.parameter(value)
    if name is None or value is None:
        return False
    return value.gradient or not reader.builder.parameters[name].trained


def _in_region(reader: Reader, values: Sequence[TracedValue | None]) -> bool:
    """Return whether no gradient flows to any operand, as under ``no_grad``."""
    return not any(reader.flows(value) for value in values)


# -- convolutions ----------------------------------------------------------------------------


def convolution(reader: Reader, call: AtenCall) -> TracedValue:
    """A convolution of one to three axes, or a transposed one, with sizes as the framework's."""
    x = call["input"]
    w = call["weight"]
    bias = call["bias"]
    if x.is_complex or w.is_complex:
        return complex_product(reader, call)
    dims = len(w.shape) - 2
    single = len(x.shape) == dims + 1
    if single:
        x = x.seen(x.view.unsqueeze(0))
    transposed = call.name.startswith("conv_transpose") or bool(call.get("transposed", False))
    groups = int(call["groups"])
    stride = each(call["stride"], dims)
    dilation = each(call["dilation"], dims)
    extra = each(call.get("output_padding", [0]), dims) if transposed else ()
    layer = ConvLayer(
        name="",
        n=x.shape[0],
        cin=x.shape[1],
        cout=w.shape[1] * groups if transposed else w.shape[0],
        spatial=x.shape[2:],
        kernel=w.shape[2:],
        stride=stride,
        padding=_padding(call["padding"], w.shape[2:], dilation),
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        output_padding=extra if any(extra) else (),
        bias=bias is not None,
    )
    result = _weighted(reader, "convolution", layer, x, w, bias, (1, -1, *(1,) * dims))
    return result.seen(result.view.reshape(call.shape))


def _padding(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> Any:
    """(before, after) of each axis, of numbers or of PyTorch's words."""
    if isinstance(padding, str):
        reach = [
            d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)
        ]
        return tuple((total // 2, total - total // 2) for total in reach)
    return tuple((pad, pad) for pad in each(padding, len(kernel)))


def _weighted(
    reader: Reader,
    what: str,
    layer: ConvLayer | LinearLayer,
    x: TracedValue,
    w: TracedValue,
    bias: TracedValue | None,
    bias_shape: Sequence[int],
    *,
    computed: TracedValue | None = None,
) -> TracedValue:
    """The node of a layer with weights; those that are computed are a second operand.

    ``computed`` are the weights as they are read in that case. A bias that is no parameter is
    added by a node of its own, in the shape ``bias_shape``.
    """
    region = _in_region(reader, [x, w, bias])
    reads = [reader.read(x)]
    trained: dict[str, TracedValue] = {}
    if _own(reader, w) or (region and reader.parameter(w)):
        trained["w"] = w
    else:
        reads.append(reader.read(w if computed is None else computed))
    apart = bias is not None and not (
        _own(reader, bias) or (region and reader.parameter(bias) is not None)
    )
    if bias is not None and not apart:
        trained["b"] = bias
    if apart:
        layer = replace(layer, bias=False)
    name = reader.add(what, layer, reads, trained)
    shape = layer.dy_shape if isinstance(layer, ConvLayer) else (
        *x.shape[:-1], layer.cout
    )  # fmt: skip
    result = reader.value(name, shape)
    if apart and bias is not None:
        sized = moves.reshaped(
            reader, bias, [bias.elements if size < 0 else 1 for size in bias_shape]
        )
        result = arithmetic.binary(reader, "add", result, sized)
    return result


# -- products of matrices --------------------------------------------------------------------


def complex_product(reader: Reader, call: AtenCall) -> TracedValue:
    """A product of complex values, which no layer is: known by name."""
    result = call.results
    name = reader.unknown(
        f"{MULTIPLIES}complex {call.name}", call.tensors, (*result.shape, 2), what=call.name
    )
    return reader.of(name, result)


def linear(reader: Reader, call: AtenCall) -> TracedValue:
    """Rows times a matrix of weights (features out, features in), and a bias."""
    x = call["input"]
    w = call["weight"]
    bias = call["bias"]
    if x.is_complex or w.is_complex:
        return complex_product(reader, call)
    result = by_matrix(reader, x, w.seen(w.view.t() if len(w.shape) > 1 else w.view), bias)
    return moves.reshaped(reader, result, call.shape)


def by_matrix(
    reader: Reader, left: TracedValue, right: TracedValue, bias: TracedValue | None = None
) -> TracedValue:
    """Rows of ``left`` (..., cin) times one matrix ``right`` (cin, cout) for all of them."""
    if len(left.shape) == 1:
        left = left.seen(left.view.unsqueeze(0))
    if len(right.shape) == 1:
        right = right.seen(right.view.unsqueeze(1))
    cin, cout = right.shape
    n = left.shape[0]
    lies = right.seen(right.view.t())  # (cout, cin), as the weights of a linear layer
    mine = _own(reader, lies) or (
        _in_region(reader, [left, right, bias]) and reader.parameter(lies)
    )
    exchanged = not mine and not right.is_plain and lies.is_plain
    layer = LinearLayer(
        name="",
        cin=cin,
        cout=cout,
        n=n,
        rows=prod(left.shape[1:-1]),
        right_transposed=exchanged,
        bias=bias is not None,
    )
    return _weighted(
        reader, "linear", layer, left, lies, bias, (-1,), computed=lies if exchanged else right
    )


def matmul(reader: Reader, call: AtenCall) -> TracedValue:
    """A product of two values of any number of axes, by PyTorch's rules of ``matmul``."""
    left, right = call.tensors[:2]
    if left.is_complex or right.is_complex:
        return complex_product(reader, call)
    return multiplied(reader, left, right, call.shape)


def multiplied(
    reader: Reader, left: TracedValue, right: TracedValue, shape: Sequence[int]
) -> TracedValue:
    """The product of two values, which has ``shape``."""
    if len(left.shape) == 1:
        left = left.seen(left.view.unsqueeze(0))
    if len(right.shape) == 1:
        right = right.seen(right.view.unsqueeze(-1))
    if _shared(reader, right, left):
        right = _first(right)
        return moves.reshaped(reader, by_matrix(reader, left, right), shape)
    if _shared(reader, left, right):
        # One matrix times those of a stack: the rows of the transposed ones times its transposed.
        columns = right.seen(right.view.transpose(-1, -2))
        matrix = _first(left)
        result = by_matrix(reader, columns, matrix.seen(matrix.view.t()))
        return moves.reshaped(reader, result.seen(result.view.transpose(-1, -2)), shape)
    stack = tuple(
        max(a, b) for a, b in zip(
            _stretched(left, right), _stretched(right, left), strict=True
        )
    )  # fmt: skip
    left = left.seen(left.view.expand(*stack, *left.shape[-2:]))
    right = right.seen(right.view.expand(*stack, *right.shape[-2:]))
    result = stacked(reader, left, right)
    return moves.reshaped(reader, result, shape)


def _stretched(value: TracedValue, other: TracedValue) -> tuple[int, ...]:
    """The sizes of a stack with 1 in front for those that only the other has."""
    missing = max(0, len(other.shape) - len(value.shape))
    return (1,) * missing + value.shape[:-2]


def _shared(reader: Reader, value: TracedValue, other: TracedValue) -> bool:
    """Return whether a stack has one matrix for all that it is multiplied with, at any batch.

    A computed stack of one matrix is one of each image where the ``other`` has no more, as it is
    at a batch of 1.
    """
    sizes = value.view.shape[:-2]
    strides = value.view.stride()[:-2]
    if any(size > 1 and stride for size, stride in zip(sizes, strides, strict=True)):
        return False
    if not sizes or value.source() in reader.builder.parameters:
        return True
    return any(strides[axis] == 0 for axis in range(len(sizes))) or prod(sizes) < prod(
        other.shape[:-2]
    )


def _first(value: TracedValue) -> TracedValue:
    """The only matrix of a stack."""
    seen = value.view
    while seen.dim() > 2:
        seen = seen.select(0, 0)
    return value.seen(seen)


def stacked(
    reader: Reader, left: TracedValue, right: TracedValue, what: str = "product"
) -> TracedValue:
    """Products of two stacks (..., rows, cin) and (..., cin, cout) with the same axes in front."""
    operands = []
    exchanged = []
    for operand in (left, right):
        turned = operand.seen(operand.view.transpose(-1, -2))
        inner = turned.view.stride()[-1] == 1 != operand.view.stride()[-1]
        exchanged.append(not operand.is_plain and (turned.is_plain or inner))
        operands.append(reader.read(turned if exchanged[-1] else operand))
    *stack, rows_, cin = left.shape
    images = (stack[0] if stack else 1, prod(stack[1:]))
    operands = [edge._replace(shape=(*images, *edge.shape[-2:])) for edge in operands]
    layer = LinearLayer(
        name="",
        cin=cin,
        cout=right.shape[-1],
        rows=rows_,
        n=images[0],
        products=images[1],
        left_transposed=exchanged[0],
        right_transposed=exchanged[1],
    )
    return reader.value(reader.add(what, layer, operands), (*stack, rows_, right.shape[-1]))


def addmm(reader: Reader, call: AtenCall) -> TracedValue:
    """A product and what is added to it, each times a number."""
    added = call["self"]
    left, right = call.tensors[1:3]
    if left.is_complex or right.is_complex:
        return complex_product(reader, call)
    alpha = float(call["alpha"])
    beta = float(call["beta"])
    simple = call.name in ("addmm", "addmv") and alpha == beta == 1 and len(right.shape) == 2
    if simple and added.shape == (right.shape[1],):
        result = by_matrix(reader, left, right, added)
        return moves.reshaped(reader, result, call.shape)
    result = multiplied(reader, left, right, call.shape)
    if alpha != 1:
        result = arithmetic.by_number(reader, "scale", result, alpha)
    if beta == 0:
        return result
    if beta != 1:
        added = arithmetic.by_number(reader, "scale", added, beta)
    return arithmetic.binary(reader, "add", result, added)


def attention(reader: Reader, call: AtenCall) -> TracedValue:
    """Queries times keys, scaled and masked, their softmax, and that times values."""
    q = call["query"]
    k = call["key"]
    v = call["value"]
    scale = call.get("scale")
    factor = float(scale) if scale is not None else 1 / sqrt(q.shape[-1])
    if k.shape[:-2] != q.shape[:-2] and len(q.shape) > 2 and call.get("enable_gqa"):
        k = _grouped(reader, k, q.shape[-3])
        v = _grouped(reader, v, q.shape[-3])
    keys = k.seen(k.view.transpose(-1, -2))
    scores = (*q.shape[:-1], k.shape[-2])
    result = multiplied(reader, q, keys, scores)
    result = arithmetic.by_number(reader, "scale", result, factor)
    mask = _attention_mask(reader, call, scores)
    if mask is not None:
        result = arithmetic.binary(reader, "add", result, _added_mask(reader, mask))
    result = rows.softmax_of(reader, "softmax", result, -1)
    if call.get("dropout_p"):
        layer = ElementwiseLayer(kind="dropout", shape=result.shape)
        result = reader.value(reader.add("dropout", layer, [reader.read(result)]), result.shape)
    return multiplied(reader, result, v, call.shape)


def fused_attention(reader: Reader, call: AtenCall) -> Any:
    """An attention of one kernel, which a module calls itself; nothing reads its statistics."""
    return (attention(reader, call), *(None for _ in call.results[1:]))


def _grouped(reader: Reader, value: TracedValue, heads: int) -> TracedValue:
    """Keys or values that several heads share, for each of these."""
    *front, head_count, keys, width = value.shape
    shape = (*front, head_count, heads // head_count, keys, width)
    seen = value.seen(value.view.unsqueeze(-3).expand(shape))
    return moves.reshaped(reader, seen, (*front, heads, keys, width))


def _attention_mask(reader: Reader, call: AtenCall, scores: Sequence[int]) -> TracedValue | None:
    """The mask of an attention for scores of this shape: that of a causal one hides later keys."""
    if not call.get("is_causal"):
        mask: TracedValue | None = call.get("attn_mask")
        return mask
    lower = reader.torch.ones(scores[-2:], dtype=reader.torch.bool).tril()
    return reader.constant(lower, f"{reader.name('product')}.mask")


def _added_mask(reader: Reader, mask: TracedValue) -> TracedValue:
    """The term that a mask adds to scores: 0 where it lets through, minus infinity where not."""
    if mask.floats:
        return mask
    if mask.constant is not None:
        numbers = reader.torch.zeros(mask.constant.shape)
        numbers = numbers.masked_fill(~mask.constant, float("-inf"))
        return reader.constant(numbers, f"{reader.name('product')}.mask")
    name = reader.unknown("mask", [mask], mask.shape)
    return reader.value(name, mask.shape)


def einsum(reader: Reader, call: AtenCall) -> Any:
    """Products of two values by letters of their axes; PyTorch composes those of more."""
    if any(value.is_complex for value in call.tensors):
        return complex_product(reader, call)
    return reader.decomposed(call)
