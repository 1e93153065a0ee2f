"""ONNX files as graphs: what each operator becomes, and what a file that does not fit says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.base.errors import ArgumentError
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx import workload
from npusim.workloads.graph import Workload
from npusim.workloads.layers import ConvLayer, LinearLayer
from npusim.workloads.repetition import for_batch

onnx = pytest.importorskip("onnx")
node = onnx.helper.make_node
FLOAT, INT64, BOOL = 1, 7, 9


def saved(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[Any]],
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    output: str = "y",
    elements: dict[str, int] | None = None,
) -> Path:
    """A file with these nodes, which read inputs of these shapes; weights are shapes or arrays."""
    value = onnx.helper.make_tensor_value_info
    tensors = []
    for name, weight in (weights or {}).items():
        array = weight if isinstance(weight, np.ndarray) else np.ones(weight, np.float32)
        tensors.append(onnx.numpy_helper.from_array(array, name))
    graph = onnx.helper.make_graph(
        list(nodes),
        "g",
        [value(name, (elements or {}).get(name, FLOAT), shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=output)],
        tensors,
    )
    sets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    sets.append(onnx.helper.make_opsetid("strange", 1))
    path = path / "net.onnx"
    path.write_bytes(onnx.helper.make_model(graph, opset_imports=sets).SerializeToString())
    return path


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def kinds(found: Workload) -> list[str]:
    return [getattr(one.layer, "kind", type(one.layer).__name__) for one in found.nodes]


CONV = node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1])


@pytest.mark.parametrize(
    ("operator", "gates", "macs"), [("RNN", 1, 819_200), ("LSTM", 4, 3_276_800), ("GRU", 3, 0)]
)
@pytest.mark.parametrize("batch", [1, 3])
def test_recurrent_layers_are_products(
    operator: str, gates: int, macs: int, batch: int, tmp_path: Path
) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node(operator, ["t", "w", "r", "b"], ["y"], name="r", hidden_size=64),
    ]
    weights = {"w": (1, gates * 64, 64), "r": (1, gates * 64, 64), "b": (1, 2 * gates * 64)}
    path = saved(tmp_path, nodes, {"x": ["n", 100, 64]}, weights)
    found = workload(path, batch=batch)
    assert found.batch_macs == batch * (macs or 100 * gates * 64 * 128)
    assert not found.unknown_products
    counted = [one for one in found.nodes if one.count > 1]
    assert {one.count for one in counted} == {99}
    unrolled = workload(path, batch=batch, unrolled=True)
    assert unrolled.batch_macs == found.batch_macs
    assert all(one.count == 1 for one in unrolled.nodes)


def test_both_directions_lie_side_by_side(tmp_path: Path) -> None:
    nodes = [
        node("LSTM", ["x", "w", "r"], ["s"], hidden_size=8, direction="bidirectional"),
        node("Transpose", ["s"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "shape"], ["y"]),
    ]
    weights = {"w": (2, 32, 5), "r": (2, 32, 8), "shape": ints(0, 0, -1)}
    found = workload(saved(tmp_path, nodes, {"x": [7, 2, 5]}, weights), batch=7)
    assert "permute" not in kinds(found)
    assert found.nodes[-1].shape == (7, 2, 2, 8)
    assert found.batch_macs == 2 * 7 * 2 * 32 * (5 + 8)


PRODUCTS: dict[str, tuple[list[Any], dict[str, Any], dict[str, int], tuple[int, ...], int]] = {
    "ConvInteger": (
        [node("ConvInteger", ["x", "w", "z"], ["y"], pads=[1, 1, 1, 1])],
        {"w": np.ones((4, 3, 3, 3), np.int8), "z": np.array(0, np.uint8)},
        {"x": 2},
        (3, 8, 8),
        6_912,
    ),
    "QLinearConv": (
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("QLinearConv", ["q", "s", "z", "w", "s", "i", "s", "z", "b"], ["y"]),
        ],
        {
            "w": np.ones((4, 3, 3, 3), np.int8),
            "z": np.array(0, np.uint8),
            "i": np.array(0, np.int8),
            "s": np.array(0.1, np.float32),
            "b": np.zeros(4, np.int32),
        },
        {},
        (3, 8, 8),
        36 * 4 * 27,
    ),
    "MatMulInteger": (
        [node("MatMulInteger", ["x", "w"], ["y"])],
        {"w": np.ones((8, 6), np.int8)},
        {"x": 2},
        (5, 8),
        240,
    ),
    "FusedConv": (
        [node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft", activation="Relu")],
        {"w": (4, 3, 3, 3)},
        {},
        (3, 8, 8),
        36 * 4 * 27,
    ),
    "FusedMatMul": (
        [node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", transB=1, alpha=0.5)],
        {"w": (6, 8)},
        {},
        (5, 8),
        240,
    ),
    "computed weight": (
        [node("Mul", ["w", "g"], ["m"]), node("Conv", ["x", "m"], ["y"])],
        {"w": (4, 3, 3, 3), "g": (4, 1, 1, 1)},
        {},
        (3, 8, 8),
        36 * 4 * 27,
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_other_names(name: str, tmp_path: Path) -> None:
    nodes, weights, elements, shape, macs = PRODUCTS[name]
    path = saved(tmp_path, nodes, {"x": ["n", *shape]}, weights, elements=elements)
    for batch in (1, 2):
        found = workload(path, batch=batch)
        assert found.batch_macs == batch * macs
        assert not found.unknown_products
    if name == "computed weight":
        assert [len(one.reads) for one in found.nodes if isinstance(one.layer, ConvLayer)] == [2]


def test_what_multiplies_and_is_not_known_says_so(tmp_path: Path) -> None:
    nodes = [CONV, node("Mixer", ["c", "m"], ["d"], domain="strange"), node("Relu", ["d"], ["y"])]
    path = saved(tmp_path, nodes, {"x": [1, 3, 8, 8]}, {"w": (4, 3, 3, 3), "m": (4, 4)})
    found = workload(path)
    assert found.unknown_products == (("Mixer", 1),)
    assert any("strange.Mixer" in note for note in found.notes)


def chosen(condition: str, first: Sequence[Any], second: Sequence[Any]) -> Any:
    graphs = [
        onnx.helper.make_graph(list(nodes), "b", [], [onnx.ValueInfoProto(name="o")])
        for nodes in (first, second)
    ]
    return node("If", [condition], ["y"], name="if", then_branch=graphs[0], else_branch=graphs[1])


def test_a_known_choice_is_its_branch(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "two"], ["h"]),
        node("Greater", ["h", "limit"], ["large"]),
        chosen(
            "large", [node("Conv", ["x", "w"], ["o"])], [node("Conv", ["x", "w"], ["o"], group=1)]
        ),
    ]
    weights = {"w": (4, 3, 3, 3), "two": np.array(2), "limit": np.array(5)}
    found = workload(saved(tmp_path, nodes, {"x": [1, 3, 8, 8]}, weights))
    assert found.macs == 36 * 4 * 27
    assert not found.notes


def test_an_open_choice_names_its_input(tmp_path: Path) -> None:
    branches = [node("Conv", ["x", "w"], ["o"])], [node("Conv", ["x", "v"], ["o"])]
    weights = {"w": (4, 3, 3, 3), "v": (4, 3, 1, 1)}
    inputs = {"x": [1, 3, 8, 8], "rate": []}
    path = saved(tmp_path, [chosen("rate", *branches)], inputs, weights, elements={"rate": BOOL})
    with pytest.raises(ArgumentError, match=r"numbers of input rate.*simplify"):
        workload(path)
    alike = saved(
        tmp_path, [chosen("rate", branches[0], branches[0])], inputs, weights,
        elements={"rate": BOOL},
    )  # fmt: skip
    assert workload(alike).macs == 36 * 4 * 27
    assert "both branches multiply alike" in workload(alike).notes[0]


@pytest.mark.parametrize("last", ["Gemm", "MatMul"])
@pytest.mark.parametrize("part", ["Gather", "Slice", "Split"])
def test_a_part_is_read_by_a_classifier(part: str, last: str, tmp_path: Path) -> None:
    parts = {
        "Gather": node("Gather", ["x", "index"], ["p"], axis=1),
        "Slice": node("Slice", ["x", "zero", "one", "one"], ["p"]),
        "Split": node("Split", ["x", "sizes"], ["p", "rest"], axis=1),
    }
    nodes = [parts[part], node("Reshape", ["p", "rows"], ["r"])]
    if last == "Gemm":
        nodes.append(node("Gemm", ["r", "w", "b"], ["y"]))
    else:
        nodes += [node("MatMul", ["r", "w"], ["m"]), node("Add", ["m", "b"], ["y"])]
    weights = {"w": (8, 10), "b": (10,), "index": np.array(0), "zero": ints(0), "one": ints(1),
               "sizes": ints(1, 4), "rows": ints(-1, 8)}  # fmt: skip
    found = workload(saved(tmp_path, nodes, {"x": ["n", 5, 8]}, weights), batch=2)
    assert kinds(found) == ["slice", "LinearLayer"]
    product, first = found.nodes[-1], found.nodes[0].layer
    assert isinstance(product.layer, LinearLayer)
    assert product.layer.bias
    assert product.parameters == {"w": "w", "b": "b"}
    assert isinstance(first, ElementwiseLayer)
    assert first.padding == ((0, 0), (0, -4), (0, 0))


@pytest.mark.parametrize("opset", [11, 13])
def test_constants_are_those_of_the_files_operators(opset: int, tmp_path: Path) -> None:
    lifted = (
        node("Unsqueeze", ["n"], ["u"], axes=[0])
        if opset < 13
        else node("Unsqueeze", ["n", "axis"], ["u"])
    )
    nodes = [
        CONV,
        node("Shape", ["c"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        lifted,
        node("Concat", ["u", "rest"], ["shape"], axis=0),
        node("Reshape", ["c", "shape"], ["f"]),
        node("Gemm", ["f", "g"], ["y"]),
    ]
    weights = {"w": (4, 3, 3, 3), "g": (256, 10), "zero": np.array(0), "rest": ints(-1)}
    weights |= {"axis": ints(0)} if opset > 11 else {}
    path = saved(tmp_path, nodes, {"x": ["n", 3, 8, 8]}, weights, opset=opset)
    assert workload(path, batch=2).batch_macs == 2 * (64 * 4 * 27 + 2_560)


def test_an_old_softmax_is_of_a_flattened_matrix(tmp_path: Path) -> None:
    nodes = [CONV, node("Softmax", ["c"], ["y"])]
    for opset, shape in ((11, (2, 256)), (13, (2, 4, 8, 8))):
        path = saved(tmp_path, nodes, {"x": [2, 3, 8, 8]}, {"w": (4, 3, 3, 3)}, opset=opset)
        softmax = workload(path, batch=2).nodes[-1].layer
        assert isinstance(softmax, ElementwiseLayer)
        assert softmax.shape == shape


def test_two_inputs_have_sizes_of_their_own(tmp_path: Path) -> None:
    nodes = [
        CONV,
        node("Conv", ["z", "w"], ["d"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Add", ["c", "d"], ["y"]),
    ]
    path = saved(
        tmp_path, nodes, {"x": ["n", 3, 8, 8], "z": ["n", 3, "h", "h"]}, {"w": (4, 3, 3, 3)}
    )
    with pytest.raises(ArgumentError, match=r"input z is .*; give input_shape .* inputs"):
        workload(path)
    for inputs in ({"z": (3, 16, 16)}, [(3, 8, 8), (3, 16, 16)]):
        found = workload(path, inputs=inputs, batch=2)
        assert [one.shape for one in found.inputs] == [(2, 3, 8, 8), (2, 3, 16, 16)]
    assert [(one.parameters or {}).get("w") for one in found.nodes[:2]] == ["w", "w"]
    with pytest.raises(ArgumentError, match="no input 'zz'"):
        workload(path, inputs={"zz": (3, 16, 16)})


def test_a_padding_has_sides_for_every_axis(tmp_path: Path) -> None:
    nodes = [node("Pad", ["x", "p"], ["d"]), node("Conv", ["d", "w"], ["y"])]
    weights = {"w": (4, 1, 3, 3), "p": ints(0, 0, 1, 1, 0, 0, 1, 1)}
    path = saved(tmp_path, nodes, {"x": [1, 1, 28, 28]}, weights)
    padded = workload(path).nodes[0].layer
    assert isinstance(padded, ElementwiseLayer)
    assert padded.padding == ((0, 0), (0, 0), (1, 1), (1, 1))


def test_pads_that_do_not_fit_their_axes_are_refused(tmp_path: Path) -> None:
    nodes = [node("Pad", ["x", "p"], ["d"]), node("Conv", ["d", "w"], ["y"])]
    weights = {"w": (4, 1, 3, 3), "p": ints(1, 1, 1, 1)}
    path = saved(tmp_path, nodes, {"x": [1, 1, 28, 28]}, weights)
    with pytest.raises(ArgumentError, match=r"node d \(Pad\): .*number of values.*p \[4\]; give"):
        workload(path)


def test_an_input_with_channels_last_is_scaled_then_permuted(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["x", "f"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[0, 3, 1, 2]),
        node("Conv", ["t", "w"], ["y"]),
    ]
    weights = {"w": (4, 3, 3, 3), "f": np.array(0.5, np.float32)}
    found = workload(saved(tmp_path, nodes, {"x": [1, 20, 20, 3]}, weights))
    assert kinds(found) == ["scale", "permute", "ConvLayer"]
    permute = found.nodes[1].layer
    assert isinstance(permute, ElementwiseLayer)
    assert permute.axes == (0, 3, 1, 2)


def test_an_empty_constant_joins_nothing(tmp_path: Path) -> None:
    nodes = [CONV, node("Concat", ["c", "e"], ["d"], axis=2), node("Relu", ["d"], ["y"])]
    weights = {"w": (4, 3, 3, 3), "e": np.zeros((1, 4, 0, 8), np.float32)}
    found = workload(saved(tmp_path, nodes, {"x": [1, 3, 8, 8]}, weights))
    assert kinds(found) == ["ConvLayer", "relu"]


@pytest.mark.parametrize(
    ("equation", "shapes", "macs", "out"),
    [
        ("bhqd,bhkd->bhqk", ((2, 3, 5, 4), (2, 3, 6, 4)), 2 * 3 * 5 * 6 * 4, (2, 3, 5, 6)),
        ("bqhd,bkhd->bhqk", ((2, 5, 3, 4), (2, 6, 3, 4)), 2 * 3 * 5 * 6 * 4, (2, 3, 5, 6)),
        ("...ij,...jk", ((2, 5, 4), (2, 4, 6)), 2 * 5 * 6 * 4, (2, 5, 6)),
        ("bij,bik->bjk", ((2, 5, 4), (2, 5, 6)), 2 * 4 * 6 * 5, (2, 4, 6)),
    ],
)
def test_sums_of_indices(
    equation: str, shapes: Sequence[Any], macs: int, out: Any, tmp_path: Path
) -> None:
    nodes = [node("Einsum", ["x", "z"], ["e"], equation=equation), node("Relu", ["e"], ["y"])]
    found = workload(saved(tmp_path, nodes, dict(zip("xz", shapes, strict=True))), batch=2)
    assert found.batch_macs == macs
    assert found.nodes[-1].shape == out


def test_a_product_takes_an_operand_with_its_last_axes_exchanged(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["z"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["x", "t"], ["y"], name="scores"),
    ]
    found = workload(saved(tmp_path, nodes, {"x": [2, 5, 4], "z": [2, 6, 4]}), batch=2)
    (product,) = found.nodes
    assert isinstance(product.layer, LinearLayer)
    assert product.layer.right_transposed
    assert product.reads[1].shape == (2, 6, 4)


def test_attention_is_two_products(tmp_path: Path) -> None:
    nodes = [node("Attention", ["x", "x", "x"], ["y"], q_num_heads=2, kv_num_heads=2, is_causal=1)]
    found = workload(saved(tmp_path, nodes, {"x": ["n", 6, 8]}, opset=23), batch=3)
    assert found.batch_macs == 3 * 2 * 2 * 6 * 6 * 4
    assert kinds(found).count("LinearLayer") == 2


def test_a_fixed_batch_is_another_where_sizes_follow(tmp_path: Path) -> None:
    nodes = [CONV, node("Reshape", ["c", "s"], ["f"]), node("Gemm", ["f", "g"], ["y"])]
    weights = {"w": (4, 3, 3, 3), "g": (256, 10), "s": ints(1, -1)}
    found = workload(saved(tmp_path, nodes, {"x": [1, 3, 8, 8]}, weights))
    four = for_batch(found, 4)
    assert four.batch_macs == 4 * found.batch_macs
    assert four.nodes[-1].shape == (4, 10)


def test_what_weights_become_is_computed_once_a_batch(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["b", "a"], ["m"]),
        node("Reshape", ["m", "shape"], ["r"]),
        node("Add", ["w", "r"], ["v"]),
        node("Conv", ["x", "v"], ["y"]),
    ]
    weights = {"w": (4, 3, 3, 3), "a": (2, 27), "b": (4, 2), "shape": ints(4, 3, 3, 3)}
    path = saved(tmp_path, nodes, {"x": ["n", 3, 8, 8]}, weights)
    assert workload(path, batch=5).batch_macs == 5 * 36 * 4 * 27 + 4 * 2 * 27


REFUSED = {
    "circle": (
        [node("Add", ["x", "b"], ["a"], name="one"), node("Relu", ["a"], ["b"], name="two")],
        {},
        r"read each other in a circle",
    ),
    "missing": ([node("Relu", ["nothing"], ["y"], name="r")], {}, r"node r .*reads nothing"),
    "sizes": (
        [node("Conv", ["x", "w"], ["y"], name="c")],
        {"w": (4, 5, 3, 3)},
        r"node c \(Conv\).*\[1, 3, 8, 8\].*\[4, 5, 3, 3\]",
    ),
    "view": (
        [node("Reshape", ["x", "s"], ["r"]), node("Gemm", ["r", "w"], ["y"])],
        {"s": ints(7, 11), "w": (11, 2)},
        r"other elements.*input_shape",
    ),
    "nothing multiplies": ([node("Relu", ["x"], ["y"])], {}, r"no convolution and no product"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_does_not_fit_says_where(name: str, tmp_path: Path) -> None:
    nodes, weights, message = REFUSED[name]
    path = saved(tmp_path, nodes, {"x": [1, 3, 8, 8]}, weights, output=nodes[-1].output[0])
    with pytest.raises(ArgumentError, match=message) as error:
        workload(path)
    assert str(path) in str(error.value)


def test_a_file_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08\xff\xffnot a model")
    with pytest.raises(ArgumentError, match="not an ONNX model"):
        workload(path)


def test_an_unknown_operation_is_known_by_kind_and_count(tmp_path: Path) -> None:
    nodes = [CONV, node("Sin", ["c"], ["d"]), node("Sin", ["d"], ["y"])]
    found = workload(saved(tmp_path, nodes, {"x": [1, 3, 8, 8]}, {"w": (4, 3, 3, 3)}))
    assert found.untimed == (("Sin", 2),)
    assert all(isinstance(one.layer, (ElementwiseLayer, ConvLayer)) for one in found.nodes)
