"""Graphs without the names of their nodes, so that two of one network are equal."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict

from npusim.base.records import replace
from npusim.workloads import Edge, ElementwiseLayer, Node, Workload


def canonical(workload: Workload) -> list[tuple[str, str]]:
    """Every node by what it is with all before it, and by what it is with all behind it, sorted.

    Two graphs have equal forms if their nodes can be paired so that edges fit, operand by operand:
    twins before a node are told apart by their readers. An exporter writes a concatenation of
    concatenations as one, and so does this.
    """
    nodes = flattened(workload.nodes)
    before = {one.name: one.name for one in workload.inputs}
    before |= {name: digest(one.shape, one.trained) for name, one in workload.parameters.items()}
    readers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for node in nodes:
        read = [(before[edge.value], edge.gradient) for edge in node.reads]
        before[node.name] = digest(layer_text(node), read)
        for at, name in enumerate(node.inputs):
            readers[name].append((node.name, at))
    behind: dict[str, str] = {}
    for node in reversed(nodes):
        users = sorted((behind[name], at) for name, at in readers[node.name])
        behind[node.name] = digest(before[node.name], users)
    return sorted((before[node.name], behind[node.name]) for node in nodes)


def flattened(nodes: tuple[Node, ...]) -> list[Node]:
    """The nodes, without concatenations that only another concatenation reads."""
    uses = Counter(name for node in nodes for name in node.inputs)
    inner: dict[str, Node] = {}
    for node in nodes:
        if is_concat(node):
            joined_by_others = all(is_concat(user) for user in nodes if node.name in user.inputs)
            if joined_by_others and uses[node.name] == 1:
                inner[node.name] = unfolded(node, inner)
    return [unfolded(node, inner) for node in nodes if node.name not in inner]


def unfolded(node: Node, inner: dict[str, Node]) -> Node:
    """A node that reads what these concatenations read in place of their results."""
    reads: list[Edge] = []
    for edge in node.reads:
        reads += inner[edge.value].reads if edge.value in inner else (edge,)
    return replace(node, reads=tuple(reads))


def is_concat(node: Node) -> bool:
    return isinstance(node.layer, ElementwiseLayer) and node.layer.kind == "concat"


def layer_text(node: Node) -> str:
    """A layer without its name; ONNX begins names of operations with capitals."""
    if isinstance(node.layer, ElementwiseLayer):
        layer = replace(node.layer, called=node.layer.called.lower())
        return repr((reordered(layer) if layer.kind == "permute" else layer, node.count))
    return repr((replace(node.layer, name=""), node.count))


def reordered(layer: ElementwiseLayer) -> ElementwiseLayer:
    """A permutation by the order of its elements alone: without axes of one element."""
    kept = [axis for axis, size in enumerate(layer.shape) if size > 1]
    axes = tuple(kept.index(axis) for axis in layer.axes if axis in kept)
    shape = tuple(layer.shape[axis] for axis in kept)
    return replace(layer, shape=shape, out=tuple(shape[axis] for axis in axes), axes=axes)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def edges(workload: Workload) -> dict[str, tuple[str, ...]]:
    """What every node reads, by name."""
    return {node.name: node.inputs for node in workload.nodes}
