"""Small ONNX models of nodes that readers got wrong, each with its multiply-adds by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

#: An ``onnx.ModelProto`` or a node: type checkers have no onnx.
Model = Any
Node = Any

#: The domain of ONNX Runtime's operators.
CONTRIBUTED = "com.microsoft"

FLOAT, INT64, UINT8 = (getattr(onnx.TensorProto, name) for name in ("FLOAT", "INT64", "UINT8"))
BOOL = onnx.TensorProto.BOOL


class FileCase(NamedTuple):
    """A model and the multiply-adds of one run of it, of the batch that it states.

    ``values`` are inputs that decide what runs.
    """

    name: str
    build: Callable[[], Model]
    macs: int
    values: Mapping[str, Any] = {}


def node(kind: str, reads: str, writes: str, **attributes: Any) -> Node:
    """A node; names are apart by spaces, and "-" is an operand that is left out."""
    operands = ["" if name == "-" else name for name in reads.split()]
    return onnx.helper.make_node(kind, operands, writes.split(), **attributes)


def model(
    nodes: Sequence[Node],
    inputs: Mapping[str, Sequence[int]],
    weights: Mapping[str, Any],
    output: Sequence[int | None],
    opset: int = 17,
    types: Mapping[str, int] | None = None,
) -> Model:
    """A model whose output is that of its last node, of fp32.

    A weight is an array, or the shape of one of small numbers. ``types`` are those of
    inputs that are not fp32. A size of ``output`` that is None depends on the run.
    """
    declared = types or {}
    graph = onnx.helper.make_graph(
        list(nodes),
        "g",
        [
            onnx.helper.make_tensor_value_info(name, declared.get(name, FLOAT), shape)
            for name, shape in inputs.items()
        ],
        [onnx.helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, output)],
        [onnx.numpy_helper.from_array(_array(weight), name) for name, weight in weights.items()],
    )
    imports = [
        onnx.helper.make_opsetid("", opset),
        onnx.helper.make_opsetid(CONTRIBUTED, 1),
    ]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)


def _array(weight: Any) -> Any:
    if isinstance(weight, np.ndarray):
        return weight
    generator = np.random.default_rng(0)
    return generator.standard_normal(weight).astype(np.float32) * np.float32(0.1)


def integers(*values: int) -> Any:
    """A constant of integers, as shapes and axes are."""
    return np.array(values, np.int64)


PADS = [1, 1, 1, 1]


# -- recurrent layers --------------------------------------------------------------------------


def recurrent(kind: str, gates: int, directions: int = 1) -> Model:
    """A recurrent layer of 100 steps, 64 to 64, batch 8, the last state into a ``Gemm``."""
    way = {"direction": "bidirectional"} if directions == 2 else {}
    weights = {
        "w": (directions, 64 * gates, 64),
        "r": (directions, 64 * gates, 64),
        "b": (directions, 2 * 64 * gates),
        "f": (64, 10),
        "zero": integers(0),
        "first": np.array(0, np.int64),
    }
    return model(
        [
            node(kind, "x w r b", "y", hidden_size=64, **way),
            node("Gather", "y first", "step", axis=0),
            node("Gather", "step first", "state", axis=0),
            node("Gemm", "state f", "out"),
        ],
        {"x": (100, 8, 64)},
        weights,
        (8, 10),
    )


# -- nodes of integers and of ONNX Runtime -----------------------------------------------------


def convolution_of_integers() -> Model:
    return model(
        [
            node("ConvInteger", "x w", "y", pads=PADS),
            node("Cast", "y", "f", to=FLOAT),
            node("GlobalAveragePool", "f", "out"),
        ],
        {"x": (2, 3, 8, 8)},
        {"w": np.ones((4, 3, 3, 3), np.uint8)},
        (2, 4, 1, 1),
        types={"x": UINT8},
    )


def product_of_integers() -> Model:
    return model(
        [node("MatMulInteger", "x w", "y"), node("Cast", "y", "out", to=FLOAT)],
        {"x": (2, 5, 6)},
        {"w": np.ones((6, 7), np.uint8)},
        (2, 5, 7),
        types={"x": UINT8},
    )


_SCALES = {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}


def quantized_convolution() -> Model:
    return model(
        [
            node("QuantizeLinear", "x s z", "q"),
            node("QLinearConv", "q s z w s z s z", "y", pads=PADS, group=3),
            node("DequantizeLinear", "y s z", "out"),
        ],
        {"x": (2, 3, 8, 8)},
        {"w": np.ones((6, 1, 3, 3), np.uint8), **_SCALES},
        (2, 6, 8, 8),
    )


def quantized_product() -> Model:
    return model(
        [
            node("QuantizeLinear", "x s z", "q"),
            node("QLinearMatMul", "q s z w s z s z", "y"),
            node("DequantizeLinear", "y s z", "out"),
        ],
        {"x": (2, 6)},
        {"w": np.ones((6, 7), np.uint8), **_SCALES},
        (2, 7),
    )


def fused_convolution() -> Model:
    return model(
        [
            node("FusedConv", "x w b", "y", pads=PADS, activation="Relu", domain=CONTRIBUTED),
            node("GlobalAveragePool", "y", "out"),
        ],
        {"x": (2, 3, 8, 8)},
        {"w": (4, 3, 3, 3), "b": (4,)},
        (2, 4, 1, 1),
    )


def fused_attention() -> Model:
    return model(
        [node("Attention", "x w b", "out", num_heads=2, domain=CONTRIBUTED)],
        {"x": (2, 5, 8)},
        {"w": (8, 24), "b": (24,)},
        (2, 5, 8),
    )


# -- bodies ------------------------------------------------------------------------------------


def computed_weight() -> Model:
    """A convolution whose weight is a product of two weights."""
    return model(
        [
            node("MatMul", "a b", "ab"),
            node("Reshape", "ab shape", "w"),
            node("Conv", "x w", "out", pads=PADS),
        ],
        {"x": (2, 3, 8, 8)},
        {"a": (4, 2), "b": (2, 27), "shape": integers(4, 3, 3, 3)},
        (2, 4, 8, 8),
    )


def _body(name: str, weight: str, output: str) -> Any:
    made = onnx.helper.make_tensor_value_info(output, FLOAT, None)
    nodes = [node("Conv", f"x {weight}", output, pads=PADS)]
    return onnx.helper.make_graph(nodes, name, [], [made])


def condition(*, known: bool) -> Model:
    """A convolution of 4 or of 6 channels, by a condition that is a constant or an input."""
    weights = {"w4": (4, 3, 3, 3), "w6": (6, 3, 3, 3)}
    nodes = [
        node(
            "If",
            "yes",
            "y",
            then_branch=_body("four", "w4", "y4"),
            else_branch=_body("six", "w6", "y6"),
        ),
        node("GlobalAveragePool", "y", "out"),
    ]
    if known:
        return model(
            nodes, {"x": (2, 3, 8, 8)}, {**weights, "yes": np.array(True)}, (2, None, 1, 1)
        )
    return model(
        nodes, {"x": (2, 3, 8, 8), "yes": ()}, weights, (2, None, 1, 1), types={"yes": BOOL}
    )


def loop() -> Model:
    """A convolution three times."""
    body = onnx.helper.make_graph(
        [
            node("Conv", "now w", "next", pads=PADS),
            node("Identity", "go", "on"),
        ],
        "body",
        [
            onnx.helper.make_tensor_value_info("i", INT64, ()),
            onnx.helper.make_tensor_value_info("go", BOOL, ()),
            onnx.helper.make_tensor_value_info("now", FLOAT, (2, 3, 8, 8)),
        ],
        [
            onnx.helper.make_tensor_value_info("on", BOOL, ()),
            onnx.helper.make_tensor_value_info("next", FLOAT, (2, 3, 8, 8)),
        ],
    )
    return model(
        [node("Loop", "times yes x", "out", body=body)],
        {"x": (2, 3, 8, 8)},
        {"w": (3, 3, 3, 3), "times": np.array(3, np.int64), "yes": np.array(True)},
        (2, 3, 8, 8),
    )


# -- how exporters write what surrounds products -----------------------------------------------


def part_into_gemm(*, bias: bool) -> Model:
    """The first row of every image into a classifier: ``Gemm``, or ``MatMul`` and ``Add``."""
    last = [node("Gemm", "row f b", "out")]
    if not bias:
        last = [node("MatMul", "row f", "product"), node("Add", "product b", "out")]
    return model(
        [
            node("Conv", "x w", "maps", strides=[4, 4]),
            node("Reshape", "maps flat", "rows"),
            node("Transpose", "rows", "tokens", perm=[0, 2, 1]),
            node("Slice", "tokens zero one axis", "first"),
            node("Squeeze", "first axis", "row"),
            *last,
        ],
        {"x": (2, 3, 8, 8)},
        {
            "w": (8, 3, 4, 4),
            "f": (8, 10),
            "b": (10,),
            "flat": integers(0, 8, 4),
            "zero": integers(0),
            "one": integers(1),
            "axis": integers(1),
        },
        (2, 10),
    )


def old_flatten(opset: int) -> Model:
    """What exporters write for a flatten: shapes that are computed by nodes of an old opset."""
    return model(
        [
            node("Conv", "x w", "maps"),
            node("Shape", "maps", "shape"),
            node("Gather", "shape first", "batch", axis=0),
            node("Unsqueeze", "batch", "size", axes=[0]),
            node("Concat", "size rest", "flat", axis=0),
            node("Reshape", "maps flat", "rows"),
            node("Gemm", "rows f b", "out"),
        ],
        {"x": (2, 3, 8, 8)},
        {
            "w": (4, 3, 3, 3),
            "f": (144, 10),
            "b": (10,),
            "first": np.array(0, np.int64),
            "rest": integers(-1),
        },
        (2, 10),
        opset=opset,
    )


def two_inputs() -> Model:
    """Two images of different sizes, a convolution each."""
    return model(
        [
            node("Conv", "x w", "a", pads=PADS),
            node("Conv", "y v", "b", pads=PADS),
            node("GlobalAveragePool", "a", "c"),
            node("GlobalAveragePool", "b", "d"),
            node("Add", "c d", "out"),
        ],
        {"x": (1, 3, 32, 32), "y": (1, 3, 64, 64)},
        {"w": (8, 3, 3, 3), "v": (8, 3, 3, 3)},
        (1, 8, 1, 1),
    )


def vector_first() -> Model:
    """An embedding whose ``Gemm`` comes before the image is read."""
    return model(
        [
            node("Gemm", "e p", "gate"),
            node("Reshape", "gate shape", "map"),
            node("Conv", "x w", "y", pads=PADS),
            node("Mul", "y map", "z"),
            node("GlobalAveragePool", "z", "out"),
        ],
        {"e": (2, 5), "x": (2, 3, 8, 8)},
        {"p": (5, 4), "w": (4, 3, 3, 3), "shape": integers(0, 4, 1, 1)},
        (2, 4, 1, 1),
    )


def padded(batch: int, channels: int) -> Model:
    """A ``Pad`` before a convolution, where the channels are as many as the images."""
    return model(
        [
            node("Pad", "x pads", "wide"),
            node("Conv", "wide w", "y"),
            node("GlobalAveragePool", "y", "out"),
        ],
        {"x": (batch, channels, 28, 28)},
        {"w": (4, channels, 3, 3), "pads": integers(0, 0, 1, 1, 0, 0, 1, 1)},
        (batch, 4, 1, 1),
    )


def channels_last(kind: str) -> Model:
    """An image with channels last that is scaled, shifted or padded before it is transposed."""
    firsts: dict[str, tuple[Any, dict[str, Any]]] = {
        "scale": (node("Mul", "x factor", "scaled"), {"factor": np.array(1 / 255, np.float32)}),
        "mean": (node("Sub", "x mean", "scaled"), {"mean": (3,)}),
        "pad": (node("Pad", "x pads", "scaled"), {"pads": integers(0, 1, 1, 0, 0, 1, 1, 0)}),
    }
    first, weights = firsts[kind]
    return model(
        [
            first,
            node("Transpose", "scaled", "image", perm=[0, 3, 1, 2]),
            node("Conv", "image w", "y"),
            node("GlobalAveragePool", "y", "out"),
        ],
        {"x": (1, 20, 20, 3)},
        {"w": (4, 3, 3, 3), **weights},
        (1, 4, 1, 1),
    )


def empty_constant() -> Model:
    """A concatenation with a constant of no elements."""
    return model(
        [
            node("Conv", "x w", "y", pads=PADS),
            node("Concat", "y none", "z", axis=2),
            node("GlobalAveragePool", "z", "out"),
        ],
        {"x": (1, 3, 8, 8)},
        {"w": (16, 3, 3, 3), "none": np.zeros((1, 16, 0, 8), np.float32)},
        (1, 16, 1, 1),
    )


def shared_initialiser() -> Model:
    """One initialiser that two convolutions read."""
    return model(
        [
            node("Conv", "x w", "y", pads=PADS),
            node("Relu", "y", "z"),
            node("Conv", "z w", "u", pads=PADS),
            node("GlobalAveragePool", "u", "out"),
        ],
        {"x": (2, 4, 8, 8)},
        {"w": (4, 4, 3, 3)},
        (2, 4, 1, 1),
    )


def same_padding(kind: str) -> Model:
    """A convolution that pads by itself, of an even filter with a stride."""
    return model(
        [
            node("Conv", "x w", "y", auto_pad=kind, strides=[2, 2]),
            node("GlobalAveragePool", "y", "out"),
        ],
        {"x": (2, 3, 9, 9)},
        {"w": (4, 3, 4, 4)},
        (2, 4, 1, 1),
    )


def transposed_convolution() -> Model:
    return model(
        [
            node("ConvTranspose", "x w", "y", strides=[2, 2], group=2, output_padding=[1, 1]),
            node("MaxPool", "y", "out", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        ],
        {"x": (2, 4, 5, 5)},
        {"w": (4, 3, 3, 3)},
        (2, 6, 6, 6),
    )


def sums() -> Model:
    """An ``Einsum`` of two heads, and a stack of products that shares its second operand."""
    return model(
        [
            node("Einsum", "x x", "weights", equation="bhnc,bhmc->bhnm"),
            node("MatMul", "weights w", "out"),
        ],
        {"x": (3, 2, 5, 4)},
        {"w": (5, 7)},
        (3, 2, 5, 7),
    )


FILES: dict[str, FileCase] = {
    case.name: case
    for case in (
        # 8 x (100 x 128 x 64 x gates + 640)
        FileCase("rnn", lambda: recurrent("RNN", 1), 6_558_720),
        FileCase("lstm", lambda: recurrent("LSTM", 4), 26_219_520),
        FileCase("gru", lambda: recurrent("GRU", 3), 19_665_920),
        # the same with twice as many steps
        FileCase("lstm_both_ways", lambda: recurrent("LSTM", 4, 2), 52_433_920),
        # 2 x 64 x 4 x 27
        FileCase("convolution_of_integers", convolution_of_integers, 13_824),
        # 10 x 6 x 7
        FileCase("product_of_integers", product_of_integers, 420),
        # 2 x 64 x 6 x 9
        FileCase("quantized_convolution", quantized_convolution, 6_912),
        # 2 x 6 x 7
        FileCase("quantized_product", quantized_product, 84),
        # 2 x 64 x 4 x 27
        FileCase("fused_convolution", fused_convolution, 13_824),
        # 10 x 8 x 24 + 2 x 4 heads x 5 x 5 x 4
        FileCase("fused_attention", fused_attention, 2_720),
        # 2 x 64 x 4 x 27 + 4 x 2 x 27
        FileCase("computed_weight", computed_weight, 14_040),
        # 2 x 64 x 27 x 4 or 6
        FileCase("condition_known", lambda: condition(known=True), 13_824),
        FileCase("condition_yes", lambda: condition(known=False), 13_824, {"yes": np.array(True)}),
        FileCase("condition_no", lambda: condition(known=False), 20_736, {"yes": np.array(False)}),
        # 3 x 2 x 64 x 3 x 27
        FileCase("loop", loop, 31_104),
        # 2 x 4 x 8 x 48 + 2 x 80
        FileCase("part_into_gemm", lambda: part_into_gemm(bias=True), 3_232),
        FileCase("part_into_product", lambda: part_into_gemm(bias=False), 3_232),
        # 2 x 36 x 4 x 27 + 2 x 1,440
        FileCase("old_flatten_9", lambda: old_flatten(9), 10_656),
        FileCase("old_flatten_12", lambda: old_flatten(12), 10_656),
        # 1,024 x 8 x 27 + 4,096 x 8 x 27
        FileCase("two_inputs", two_inputs, 1_105_920),
        # 2 x 20 + 2 x 64 x 4 x 27
        FileCase("vector_first", vector_first, 13_864),
        # images x 784 x 4 x 9 x channels
        FileCase("padded_mono", lambda: padded(1, 1), 28_224),
        FileCase("padded_three", lambda: padded(3, 3), 254_016),
        # 18 x 18 x 4 x 27, and padded 20 x 20
        FileCase("channels_last_scaled", lambda: channels_last("scale"), 34_992),
        FileCase("channels_last_shifted", lambda: channels_last("mean"), 34_992),
        FileCase("channels_last_padded", lambda: channels_last("pad"), 43_200),
        # 64 x 16 x 27
        FileCase("empty_constant", empty_constant, 27_648),
        # 2 x 2 x 64 x 4 x 36
        FileCase("shared_initialiser", shared_initialiser, 36_864),
        # 2 x 25 x 4 x 48
        FileCase("same_upper", lambda: same_padding("SAME_UPPER"), 9_600),
        FileCase("same_lower", lambda: same_padding("SAME_LOWER"), 9_600),
        # 2 x 4 x 25 x 3 x 9
        FileCase("transposed_convolution", transposed_convolution, 5_400),
        # 6 x 5 x 4 x 5 + 30 x 5 x 7
        FileCase("sums", sums, 1_650),
    )
}
