"""The kind of a network by its graph."""

from __future__ import annotations

import pytest

from npusim.base.records import replace
from npusim.workloads import load_workload
from npusim.workloads.kind_of_network import kind_of_network
from npusim.workloads.layers import LinearLayer


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        ("resnet50", "residual"),
        ("vgg16", "plain"),
        ("densenet121", "pooled or concatenated"),  # maps are joined
        ("poolformer_s12", "pooled or concatenated"),  # pooled in place, and added
        ("mobilenet_v1", "depth-wise"),
        ("convnext_tiny", "depth-wise"),  # and maps are added
    ],
)
def test_networks_have_the_first_mark_of_their_graph(network: str, kind: str) -> None:
    assert kind_of_network(load_workload(network)) == kind


def test_a_product_of_two_computed_matrices_is_attention() -> None:
    workload = load_workload("mobilenet_v1")
    attention = replace(workload.nodes[0], layer=LinearLayer(name="a", cin=8, cout=8, products=2))
    attending = replace(workload, nodes=(*workload.nodes, attention))
    assert kind_of_network(attending) == "attention"


def test_a_list_of_layers_is_of_no_kind() -> None:
    assert kind_of_network(replace(load_workload("vgg16"), nodes=())) == ""
