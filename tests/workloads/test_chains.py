"""The graph of a workload file: what chains mean, what is wrong with them, and back again."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.base.errors import ConfigError
from npusim.workloads import (
    ConvLayer,
    Edge,
    ElementwiseLayer,
    GraphBuilder,
    Workload,
    load_workload,
    workload_yaml,
    workloads,
)
from tests.networks.graphs import canonical, edges
from tests.tables import rows
from tests.texts import text_of

LAYERS = text_of("layers_of_chains.yaml")

#: A chain that uses all of them, for tests of others.
ALL = "  - x = input > one > max_pool 2 > two\n  - x, x > mix > fc\n"


def net(tmp_path: Path, graph: str, layers: str = LAYERS) -> Workload:
    path = tmp_path / "net.yaml"
    path.write_text(layers + graph, encoding="utf-8")
    return load_workload(path)


def test_chains_by_hand(tmp_path: Path) -> None:
    found = net(
        tmp_path,
        """\
  - x = input > one > batch_norm > relu > max_pool 3/2 p0:1
  - 2 times:
    - y = x > two > relu
    - x = y + x
  - for k in one two:
    - x = x > max_pool 2/1 p1:0 > unknown (sin of {k})
  - y = x > [6, 8, 6]
  - y, x [6, 6, 8] > mix > [8, 6, 8] > upsample [8, 12, 16] > avg_pool 2x1 [8,
      6, 8] > fc > softmax
""",
    )
    assert edges(found) == {
        "one": ("input",),
        "batch_norm": ("one",),
        "relu": ("batch_norm",),
        "max_pool": ("relu",),
        "two": ("max_pool",),
        "relu_2": ("two",),
        "add": ("relu_2", "max_pool"),
        "two_2": ("add",),
        "relu_3": ("two_2",),
        "add_2": ("relu_3", "add"),
        "max_pool_2": ("add_2",),
        "sin_of_one": ("max_pool_2",),
        "max_pool_3": ("sin_of_one",),
        "sin_of_two": ("max_pool_3",),
        "mix": ("sin_of_two", "sin_of_two"),
        "upsample": ("mix",),
        "avg_pool": ("upsample",),
        "fc": ("avg_pool",),
        "softmax": ("fc",),
    }
    assert {layer.name: layer.count for layer in found.layers} == {
        "one": 1, "two": 2, "mix": 1, "fc": 1
    }  # fmt: skip
    small = ElementwiseLayer(kind="relu", shape=(1, 8, 6, 6), count=2)
    pool = ElementwiseLayer(
        kind="max_pool",
        shape=(1, 8, 12, 12),
        out=(1, 8, 6, 6),
        kernel=(3, 3),
        stride=(2, 2),
        padding=((0, 1), (0, 1)),
    )
    last = ElementwiseLayer(kind="softmax", shape=(1, 10))
    assert {small, pool, last} < set(found.elementwise)
    assert [x.shape for x in found.elementwise if x.kind == "add"] == [(1, 8, 6, 6)]
    assert found.untimed == (("sin of one", 1), ("sin of two", 1))
    assert all(node.layer.count == 1 for node in found.nodes)
    again = net(tmp_path, "", workload_yaml(found))
    assert again == found


@pytest.mark.parametrize("name", workloads())
def test_what_ships_has_a_graph_in_order(name: str) -> None:
    found = load_workload(name)
    known = {"input"}
    for node in found.nodes:
        assert node.inputs
        assert known.issuperset(node.inputs)
        known.add(node.name)
        if not isinstance(node.layer, ElementwiseLayer):
            assert found.layer(node.layer.name).count >= 1
    read = {one for node in found.nodes for one in node.inputs}
    *auxiliary, last = [node.name for node in found.nodes if node.name not in read]
    assert last == found.nodes[-1].name
    assert bool(auxiliary) == (name == "inception_v3")  # it is trained with a second classifier


@rows("tests/data/mistakes/networks.yaml", "what_is_wrong_is_told_with_its_line", "graph, message")
def test_what_is_wrong_is_told_with_its_line(graph: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        net(tmp_path, graph)
    assert str(caught.value).startswith(f"{tmp_path / 'net.yaml'}:{message}")


def test_loops_in_each_other_are_bounded(tmp_path: Path) -> None:
    deep = "".join(f"{'  ' * i}  - 1 times:\n" for i in range(30)) + "  " * 31 + "- input > one\n"
    with pytest.raises(ConfigError, match="more than 20 loops in each other"):
        net(tmp_path, deep)


def test_a_stated_count_is_that_of_the_graph(tmp_path: Path) -> None:
    good = LAYERS.replace("rows: 1}", "rows: 1, count: 1}")
    assert net(tmp_path, ALL, good).layer("fc").count == 1
    with pytest.raises(ConfigError) as caught:
        net(tmp_path, ALL, good.replace("count: 1", "count: 2"))
    assert str(caught.value) == (
        f"{tmp_path / 'net.yaml'}:6: layers.fc.count: count is 2, but the graph uses the layer 1 "
        "times; remove the count, which follows from the graph"
    )


def conv(name: str) -> ConvLayer:
    return ConvLayer(name=name, cin=8, cout=8, spatial=(6, 6), kernel=(1, 1))


MAP = (1, 8, 6, 6)


def test_sums_with_operands_in_other_sizes_are_written_and_read_back(tmp_path: Path) -> None:
    builder = GraphBuilder("net")
    image = builder.input("image", MAP)
    first = builder.add("c", conv("c"), [Edge(image, MAP)])
    second = builder.add("d", conv("c"), [Edge(image, MAP)])
    wide = ElementwiseLayer(kind="add", shape=(1, 36, 8))
    total = builder.add("add", wide, [Edge(first, (1, 36, 8)), Edge(second, (1, 36, 8))])
    part = ElementwiseLayer(kind="scale", shape=(1, 8, 36), out=(1, 8, 72))
    scaled = builder.add("scale", part, [Edge(first, (1, 8, 36)), Edge(total, (1, 36, 8))])
    joined = ElementwiseLayer(kind="concat", shape=(1, 24, 36), out=(1, 24, 36))
    all_maps = builder.add("concat", joined, [Edge(scaled, (1, 16, 36)), Edge(second, (1, 8, 36))])
    builder.add("relu", ElementwiseLayer(kind="relu", shape=(27, 32)), [Edge(all_maps, (27, 32))])
    network = builder.workload("a net")
    again = net(tmp_path, "", workload_yaml(network))
    assert again.layers == network.layers
    assert canonical(again) == canonical(network)
    assert [node.reads[0].shape for node in again.nodes] == [
        node.reads[0].shape for node in network.nodes
    ]


def test_twins_are_told_apart_by_their_readers() -> None:
    def graph(*operands: str) -> Workload:
        builder = GraphBuilder("net")
        image = builder.input("image", MAP)
        for name in "ab":
            builder.add(name, conv("c"), [Edge(image, MAP)])
        add = ElementwiseLayer(kind="add", shape=MAP)
        builder.add("+", add, [Edge(name, MAP) for name in operands])
        return builder.workload("")

    assert canonical(graph("a", "b")) == canonical(graph("b", "a"))
    assert canonical(graph("a", "b")) != canonical(graph("a", "a"))


def test_what_only_a_detached_value_leads_to_is_not_trained(tmp_path: Path) -> None:
    chain = "  - x = input > one > max_pool 2 > two\n  - x, x > mix > detach > fc\n"
    network = net(tmp_path, chain)
    trained = {node.name: node.trained for node in network.nodes}
    assert trained == {"one": False, "max_pool": False, "two": False, "mix": False, "fc": True}
