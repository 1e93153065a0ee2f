"""The networks that ship: layers, multiply-adds and nodes of each kind, and batches of them.

The figures are those from before graphs had the batch, but for the orders of elements in ConvNeXt
and WaveNet, which are nodes since then.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from npusim.workloads import ElementwiseLayer, load_workload, workloads
from npusim.workloads.repetition import for_batch

TABLE = Path(__file__).parent.parent / "data" / "shipped_graphs.csv"


def rows() -> dict[str, dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["network"]: row for row in csv.DictReader(file)}


def test_every_network_has_a_row() -> None:
    assert sorted(rows()) == workloads()


@pytest.mark.parametrize("name", workloads())
def test_a_network_has_the_nodes_that_it_had(name: str) -> None:
    network, row = load_workload(name), rows()[name]
    kinds = Counter(
        node.layer.kind if isinstance(node.layer, ElementwiseLayer) else "layer"
        for node in network.nodes
    )
    assert sum(layer.count for layer in network.layers) == int(row["layers"])
    assert network.macs == int(row["macs"])
    assert " ".join(f"{kind}:{kinds[kind]}" for kind in sorted(kinds)) == row["nodes"]
    assert network.untimed == ()


@pytest.mark.parametrize("name", workloads())
def test_a_batch_has_so_many_times_the_images(name: str) -> None:
    network = load_workload(name)
    batch = for_batch(network, 8)
    assert batch.batch == 8
    assert batch.macs == network.macs
    assert [layer.n for layer in batch.layers] == [8 * layer.n for layer in network.layers]
    for node, other in zip(network.nodes, batch.nodes, strict=True):
        assert other.shape == (8 * node.shape[0], *node.shape[1:])
        assert all(edge.shape[0] == 8 for edge in other.reads)
