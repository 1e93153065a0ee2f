"""Slices of a network that are a split: side by side they are all of the value that they are of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from npusim.workloads import ElementwiseLayer, Node
from npusim.workloads.elementwise import Sides


def in_turn(group: Iterable[Node]) -> list[Node]:
    """Slices in the order in which they lie in their value."""
    return sorted(group, key=lambda node: [-before for before, _ in _left_out(node)])


def splits(nodes: Iterable[Node]) -> dict[str, Sequence[Node]]:
    """The slices that are a split, by the name of each, in the order of the nodes."""
    alike: dict[tuple[str, tuple[int, ...], int], list[Node]] = defaultdict(list)
    for node in nodes:
        cut = [axis for axis, sides in enumerate(_left_out(node)) if any(sides)]
        if len(cut) == 1 and isinstance(node.layer, ElementwiseLayer):
            alike[node.inputs[0], node.layer.shape, cut[0]].append(node)
    groups: dict[str, Sequence[Node]] = {}
    for (_, shape, axis), group in alike.items():
        if _covers(shape[axis], [_left_out(node)[axis] for node in in_turn(group)]):
            groups |= dict.fromkeys((node.name for node in group), group)
    return groups


def _covers(size: int, sides: Sequence[tuple[int, int]]) -> bool:
    """Return whether slices side by side are all of an axis, by what each leaves out of it."""
    begins = [-before for before, _ in sides]
    ends = [size + after for _, after in sides]
    return begins == [0, *ends[:-1]] and ends[-1] == size


def _left_out(node: Node) -> Sides:
    """Elements that a slice leaves out on each axis, as negative numbers; none of other nodes."""
    layer = node.layer
    return layer.padding if isinstance(layer, ElementwiseLayer) and layer.kind == "slice" else ()
