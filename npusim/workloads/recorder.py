"""A graph while it is found: nodes one after the other, and of which nodes every value comes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable
from math import prod
from operator import add
from typing import NamedTuple

from npusim.base.objects import replace
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.graph import INPUT, Node
from npusim.workloads.kinds import KINDS, UNKNOWN
from npusim.workloads.layers import Layer, LinearLayer


class Part(NamedTuple):
    """What a reader sees of an image of ``shape``: from ``first`` to ``last`` on each axis.

    ``elements`` are how many it has, fewer than these where it leaves out some in between.
    """

    shape: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    elements: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """How far it goes on each axis, with what it leaves out."""
        return tuple(b - a + 1 for a, b in zip(self.first, self.last, strict=True))

    def apart(self, other: Part) -> bool:
        """Whether it has nothing in common with another part of the same value."""
        ends = zip(self.first, self.last, other.first, other.last, strict=True)
        return self.shape == other.shape and any(b < c or d < a for a, b, c, d in ends)

    def inside(self, whole: Part) -> Part:
        """What a part of ``whole`` is of that of which ``whole`` is a part."""
        first, last = (tuple(map(add, whole.first, one)) for one in (self.first, self.last))
        return Part(whole.shape, first, last, self.elements)


class Recorder:
    """Nodes in the order in which they compute, and ``sources``: the nodes that each value is of.

    Values go by whatever key their finder has for them. Most are of one node; one that was
    assembled in place is of several, one of weights alone of none.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.sources: dict[Hashable, tuple[str, ...]] = {}
        self._parts: dict[tuple[str, Part], str] = {}
        self._taken = {INPUT}
        self._last: Counter[str] = Counter()

    def of(self, keys: Iterable[Hashable]) -> tuple[str, ...]:
        """The nodes that these values are of, one after the other."""
        return tuple(name for key in keys for name in self.sources.get(key, ()))

    def add(self, name: str, layer: Layer | ElementwiseLayer, inputs: Iterable[str]) -> str:
        """Note a node, and return what it is called: ``name``, with a number where that is taken.

        Names are words that a workload file can have in a chain: what else they contain becomes
        "_", and no layer is called like a kind of element-wise layer.
        """
        word = re.sub(r"[^\w.-]", "_", name)
        other = isinstance(layer, ElementwiseLayer)
        found = word
        while found in self._taken or (not other and (found in KINDS or found == UNKNOWN)):
            self._last[word] += 1
            found = f"{word}_{self._last[word] + 1}"
        self._taken.add(found)
        self.nodes.append(Node(name=found, layer=layer, inputs=tuple(inputs)))
        return found

    def part(self, source: str, part: Part, *, trained: bool) -> str:
        """The node that is a part of a node's value, noted when it is read first."""
        if (source, part) not in self._parts:
            sides = zip(part.first, part.last, part.shape, strict=True)
            out, padding = part.sizes, tuple((-a, b + 1 - size) for a, b, size in sides)
            if prod(out) != part.elements:
                out, padding = (part.elements,), ()
            layer = ElementwiseLayer(
                kind="slice", shape=part.shape, out=out, padding=padding, input_gradient=trained
            )
            self._parts[source, part] = self.add(f"{source}.slice", layer, (source,))
        return self._parts[source, part]

    def bias(self, at: int) -> None:
        """Say that the linear layer which is node ``at`` adds a bias."""
        layer = self.nodes[at].layer
        if isinstance(layer, LinearLayer):
            self.nodes[at] = replace(self.nodes[at], layer=replace(layer, bias=True))

    def merged(self) -> list[Node]:
        """The nodes, with layers of one shape called after the first of them."""
        names: dict[Layer, str] = {}
        found = []
        for node in self.nodes:
            layer = node.layer
            if not isinstance(layer, ElementwiseLayer):
                alike = replace(layer, name="")
                layer = replace(alike, name=names.setdefault(alike, node.name))
            found.append(replace(node, layer=layer))
        return found
