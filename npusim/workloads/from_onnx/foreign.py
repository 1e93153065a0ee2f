"""Operators outside ONNX's own set, as exporters and runtimes write them, and their sizes.

Most are of ONNX Runtime (domain com.microsoft; its docs/ContribOperators.md defines them): several
of ONNX's own operators in one node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from npusim.problem.convolution import output_sizes
from npusim.workloads.from_onnx.nodes import STANDARD, Step

Sizes = tuple[int, ...]


def foreign_sizes(step: Step, shapes: Mapping[str, Sizes]) -> list[Sizes | None] | None:
    """The shapes of what a node of such an operator computes, None where it is none of these."""
    rule = _RULES.get(step.kind)
    if rule is None or (step.domain in STANDARD and step.kind in _ALSO_STANDARD):
        return None
    reads = [shapes.get(name) for name in step.inputs]
    if not reads or reads[0] is None:
        return None
    return rule(step, [() if shape is None else shape for shape in reads])


def _like_first(step: Step, reads: Sequence[Sizes]) -> list[Sizes | None]:
    return [reads[0]]


def _skip_norm(step: Step, reads: Sequence[Sizes]) -> list[Sizes | None]:
    means = (*reads[0][:-1], 1)
    return [reads[0], means, means, reads[0]]


def _product(step: Step, reads: Sequence[Sizes]) -> list[Sizes | None]:
    left = _turned(step, "A", reads[0])
    right = _turned(step, "B", reads[1])
    stack = left[:-2] if len(left) >= len(right) else right[:-2]
    return [(*stack, *left[-2:-1], right[-1])]


def _turned(step: Step, operand: str, shape: Sizes) -> Sizes:
    """The shape of an operand of a product as it is multiplied."""
    turned = step.attributes.get(f"trans{operand}", 0)
    return (*shape[:-2], shape[-1], shape[-2]) if turned else shape


def _narrow_product(step: Step, reads: Sequence[Sizes]) -> list[Sizes | None]:
    return [(*reads[0][:-1], int(step.attributes["N"]))]


def _convolution(step: Step, reads: Sequence[Sizes]) -> list[Sizes | None]:
    x = reads[0]
    weight = reads[1]
    dims = len(weight) - 2
    pads = step.integers("pads", (0,) * (2 * dims))
    out = output_sizes(
        x[2:],
        weight[2:],
        step.integers("strides", (1,) * dims),
        tuple(zip(pads[:dims], pads[dims:], strict=True)),
        step.integers("dilations", (1,) * dims),
    )
    return [(x[0], weight[0], *out)]


def _attention(step: Step, reads: Sequence[Sizes]) -> list[Sizes | None]:
    images, rows, _ = reads[0]
    wide = step.integers("qkv_hidden_sizes", (0, 0, reads[1][-1] // 3))[2]
    return [(images, rows, wide)]


def _heads(step: Step, reads: Sequence[Sizes]) -> list[Sizes | None]:
    query = reads[0]
    value = reads[2] if len(reads) > 2 else ()
    if len(query) != 3 or len(value) not in (3, 4):
        return [None]
    wide = value[-1] if len(value) == 3 else value[1] * value[3]
    return [(query[0], query[1], wide)]


#: Operators that ONNX has too, under the same names and with sizes of its own.
_ALSO_STANDARD = (
    "Attention",
    "LayerNormalization",
    "Gelu",
    "QuantizeLinear",
    "DequantizeLinear",
    "RMSNormalization",
    "RotaryEmbedding",
)

_RULES: Mapping[str, Callable[[Step, Sequence[Sizes]], list[Sizes | None]]] = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "BiasSoftmax"), _like_first),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _like_first),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), _like_first),
    **dict.fromkeys(("GroupNorm", "SimplifiedLayerNormalization", "RMSNormalization"), _like_first),
    **dict.fromkeys(("LayerNormalization", "RotaryEmbedding", "BiasDropout"), _like_first),
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "FusedMatMul": _product,
    "TransposeMatMul": _product,
    "FusedGemm": _product,
    "QGemm": lambda step, reads: _product(step, [reads[0], reads[3]]),
    "MatMulIntegerToFloat": _product,
    "DynamicQuantizeMatMul": _product,
    "MatMulNBits": _narrow_product,
    "FusedConv": _convolution,
    "Attention": _attention,
    "MultiHeadAttention": _heads,
}
