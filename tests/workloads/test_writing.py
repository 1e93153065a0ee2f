"""Networks of all kinds of nodes, written as workload files and read back as the same networks."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
from npusim.base.errors import ArgumentError, ConfigError
from npusim.workloads import (
    ConvLayer,
    Edge,
    ElementwiseLayer,
    GraphBuilder,
    LinearLayer,
    Workload,
    load_workload,
    workload_yaml,
)
from npusim.workloads.repetition import for_batch

FRAMES = (8, 4, 16, 16)


def clip() -> Workload:
    """Frames folded into the batch, one set of weights for two uses, frozen and detached parts."""
    builder = GraphBuilder("clip")
    image = builder.input("clip", (1, 3, 8, 16, 16))
    turn = ElementwiseLayer(
        kind="permute", shape=(1, 3, 8, 16, 16), out=(1, 8, 3, 16, 16), axes=(0, 2, 1, 3, 4)
    )
    frames = builder.add("turn", turn, [Edge(image, (1, 3, 8, 16, 16))])
    pads = ((1, 1), (1, 1))
    layer = ConvLayer(
        name="c", n=8, cin=3, cout=4, spatial=(16, 16), kernel=(3, 3), padding=pads, bias=True
    )
    weights = {
        "w": builder.parameter("c.weight", (4, 3, 3, 3)),
        "b": builder.parameter("c.bias", (4,)),
    }
    first = builder.add("c", layer, [Edge(frames, (8, 3, 16, 16))], parameters=weights)
    second = builder.add("c", layer, [Edge(frames, (8, 3, 16, 16))], parameters=weights)
    norm = ElementwiseLayer(kind="batch_norm", shape=FRAMES)
    frozen = {
        "gamma": builder.parameter("bn.weight", (4,), trained=False),
        "beta": builder.parameter("bn.bias", (4,), trained=False),
    }
    first = builder.add("bn", norm, [Edge(first, FRAMES)], parameters=frozen)
    second = builder.add("bn", norm, [Edge(second, FRAMES)], parameters={})
    total = ElementwiseLayer(kind="add", shape=FRAMES)
    total_value = builder.add("add", total, [Edge(first, FRAMES), Edge(second, FRAMES)])
    gate = ElementwiseLayer(kind="sigmoid", shape=FRAMES)
    gate_value = builder.add("gate", gate, [Edge(first, FRAMES, gradient=False)])
    product = ElementwiseLayer(kind="mul", shape=FRAMES)
    builder.add("mul", product, [Edge(total_value, FRAMES), Edge(gate_value, FRAMES)])
    return builder.workload("a clip")


def words() -> Workload:
    """Tokens, a table that is read and multiplied with, low rank weights, a cell, odd names."""
    builder = GraphBuilder("words")
    tokens = builder.input("tokens", (1, 5), integers=True)
    table = builder.parameter("emb.weight", (100, 4))
    layer = ElementwiseLayer(kind="embedding", shape=(100, 4), out=(1, 5, 4))
    rows = builder.add("emb", layer, [Edge(table, (100, 4)), Edge(tokens, (1, 5))], parameters={})
    down, up = builder.parameter("lora.A", (2, 4)), builder.parameter("lora.B", (4, 2))
    low_rank = builder.add(
        "lora",
        LinearLayer(name="lora", cin=2, cout=4, rows=4),
        [Edge(up, (4, 2)), Edge(down, (2, 4))],
        parameters={},
    )
    fc = LinearLayer(name="fc", cin=4, cout=4, rows=5)
    x = builder.add("fc", fc, [Edge(rows, (1, 5, 4)), Edge(low_rank, (4, 4))], parameters={})
    head = LinearLayer(name="head", cin=4, cout=100, rows=5)
    builder.add("head", head, [Edge(x, (1, 5, 4))], parameters={"w": table})
    scores = LinearLayer(name="att", cin=4, cout=5, rows=5, products=1, right_transposed=True)
    y = builder.add("att", scores, [Edge(x, (1, 1, 5, 4)), Edge(x, (1, 1, 5, 4))], parameters={})
    position = Edge(builder.parameter("pos", (5, 5)), (5, 5))
    total = ElementwiseLayer(kind="add", shape=(1, 1, 5, 5))
    y = builder.add("plus", total, [Edge(y, (1, 1, 5, 5)), position], parameters={})
    roll = ElementwiseLayer(kind="roll", shape=(1, 5, 5), axes=(1, 2), numbers=(-1.0, 2.0))
    y = builder.add("rolled", roll, [Edge(y, (1, 5, 5))])
    cut = ElementwiseLayer(
        kind="slice",
        shape=(1, 5, 5),
        out=(1, 2, 5),
        padding=((0, 0), (0, -1), (0, 0)),
        stride=(1, 2, 1),
    )
    y = builder.add("cut", cut, [Edge(y, (1, 5, 5))])
    odd = ElementwiseLayer(kind="unknown", called="multiplies: fancy", shape=(1, 2, 5))
    y = builder.add("odd", odd, [Edge(y, (1, 2, 5))])
    temperature = Edge(builder.parameter("temperature", ()), ())
    scale = ElementwiseLayer(kind="scale", shape=(1, 2, 5))
    builder.add("temper", scale, [Edge(y, (1, 2, 5)), temperature])
    own = {"w": builder.parameter("cell.weight", (4, 4))}
    cell = LinearLayer(name="cell", cin=4, cout=4)
    h = builder.add("cell", cell, [Edge(x, (5, 4))], count=5, parameters=own)
    tanh = ElementwiseLayer(kind="tanh", shape=(1, 4))
    builder.add("tanh", tanh, [Edge(h, (5, 4))], count=5)
    return builder.workload("words")


@pytest.mark.parametrize("make", [clip, words])
def test_a_network_is_read_back_as_it_is(make: object, tmp_path: Path) -> None:
    network = make()  # type: ignore[operator]
    path = tmp_path / "net.yaml"
    path.write_text(workload_yaml(network), encoding="utf-8")
    again = load_workload(path)
    assert again.layers == network.layers
    assert again.inputs == network.inputs
    assert again.macs == network.macs
    assert again.untimed == network.untimed
    assert set(again.parameters) <= set(network.parameters)  # own ones go without names
    for node, other in zip(network.nodes, again.nodes, strict=True):
        assert [(e.shape, e.gradient) for e in node.reads] == [
            (e.shape, e.gradient) for e in other.reads
        ]
        assert (node.count, node.trained) == (other.count, other.trained)


def test_shared_frozen_and_folded_layers_say_so() -> None:
    text = workload_yaml(clip())
    assert "images: 8, bias: yes, shared: yes}" in text
    assert "batch_norm with gamma=bn.weight beta=bn.bias" in text
    assert "batch_norm with none" in text
    assert " detach > sigmoid" in text
    assert "bn.weight: 4 x [] untrained" in text


def test_what_the_notation_cannot_say_names_the_node() -> None:
    builder = GraphBuilder("net")
    image = builder.input("image", (1, 4))
    odd = ElementwiseLayer(kind="relu", shape=(1, 4), numbers=(3.0,))
    builder.add("odd", odd, [Edge(image, (1, 4))])
    with pytest.raises(ArgumentError, match="net"):
        workload_yaml(builder.workload("a net"))


NET = """\
description: d
layers:
  stem: {cin: 3, cout: 4, spatial: [8, 8], kernel: 1, images: 2, trained: no, bias: yes}
  body: {cin: 4, cout: 4, spatial: [8, 8], kernel: 1, images: 2, shared: yes}
graph:
  - input [2, 3, 8, 8] > [] > stem > body > relu > body
"""


@pytest.mark.compiled
def test_frames_are_images_and_frozen_layers_have_no_gradient(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(NET, encoding="utf-8")
    network = load_workload(path)
    stem, first, second = network.layers
    assert (stem.n, stem.weight_gradient, stem.bias_gradient) == (2, False, False)
    assert (first.input_gradient, second.input_gradient) == (False, True)
    assert (first.name, second.name) == ("body", "body_2")
    weights = {
        node.parameters["w"]
        for node in network.nodes
        if node.name.startswith("body") and node.parameters
    }
    assert weights == {"body.weight"}
    assert network.macs == 2 * 64 * (3 * 4 + 2 * 4 * 4)
    assert for_batch(network, 3).layers[0].n == 6
    result = npusim.network(network, device="tiny", batch=3)
    assert [one.layer.name for one in result.timed] == ["body", "body_2"]
    assert result.frozen == ("stem",)
    assert [row["n"] for row in result.layer_rows()] == [6, 6]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("images: 2, trained", "images: 0, trained", ":3: layers.stem.images: expected an integer"),
        ("trained: no", "trained: maybe", ":3: layers.stem.trained: expected yes or no"),
        ("shared: yes", "shared: 1", ":4: layers.body.shared: expected yes or no"),
        ("> [] > stem", "> stem", ":6: graph[0]: stem takes 2 x [3, 8, 8], and gets [2, 3, 8, 8]"),
        ("shared: yes", "input_gradient: yes", ":4: layers.body.input_gradient: input_gradient is"),
        ("> relu >", "> permute (0, 1, 1, 2) >", ":6: graph[0]: permute (0, 1, 1, 2) of 2 x"),
        ("> relu >", "> relu with gamma=g >", ":6: graph[0]: no parameter is called 'g'"),
    ],
)
def test_wrong_keys_are_told_with_their_lines(
    before: str, after: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.yaml"
    assert before in NET
    path.write_text(NET.replace(before, after), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_workload(path)
    assert message in str(caught.value)
