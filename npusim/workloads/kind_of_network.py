"""The kind of a network by its graph, which says how far a simulated step may be off."""

from __future__ import annotations

from npusim.problem.work import (
    ATTENTION_NETWORK,
    DEPTH_WISE_NETWORK,
    PLAIN_NETWORK,
    POOLED_NETWORK,
    RESIDUAL_NETWORK,
)
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.graph import Node, Workload
from npusim.workloads.layers import ConvLayer, LinearLayer


def kind_of_network(workload: Workload) -> str:
    """The first kind whose mark the graph has, in this order; "" where layers are only listed.

    *Attention*: a product of two computed matrices. *Depth-wise*: a convolution with one
    channel a group. *Pooled or concatenated*: maps are joined along an axis, or pooled by windows
    that leave their size. *Residual*: two maps are added. *Plain*: none of these.
    """
    if not workload.nodes:
        return ""
    for mark, kind in _MARKS:
        if any(mark(node) for node in workload.nodes):
            return kind
    return PLAIN_NETWORK


def _attends(node: Node) -> bool:
    return isinstance(node.layer, LinearLayer) and node.layer.products > 0


def _is_depth_wise(node: Node) -> bool:
    return isinstance(node.layer, ConvLayer) and node.layer.is_depth_wise


def _joins_or_pools(node: Node) -> bool:
    layer = node.layer
    if not isinstance(layer, ElementwiseLayer):
        return False
    pools_in_place = layer.kind.endswith("_pool") and layer.out == layer.shape
    return layer.kind == "concat" or pools_in_place


def _adds_maps(node: Node) -> bool:
    layer = node.layer
    return isinstance(layer, ElementwiseLayer) and layer.kind == "add" and len(node.reads) > 1


_MARKS = (
    (_attends, ATTENTION_NETWORK),
    (_is_depth_wise, DEPTH_WISE_NETWORK),
    (_joins_or_pools, POOLED_NETWORK),
    (_adds_maps, RESIDUAL_NETWORK),
)
