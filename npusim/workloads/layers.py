"""The layers of a network, each with how often it occurs, and the graph that they are nodes of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from npusim.base.errors import ArgumentError
from npusim.base.objects import replace
from npusim.base.yamltree import suggest
from npusim.shapes.convolution import Convolution
from npusim.workloads.elementwise import UNKNOWN, ElementwiseLayer, together


@dataclass(frozen=True, kw_only=True)
class ConvLayer(Convolution):
    """One convolution of a network, and ``count``, how often the network has it.

    ``input_gradient`` is False where nothing trained comes before the layer, so that a training
    step does without the gradient of its input. With ``bias`` a number is added to each output
    channel, which whole steps know; of isolated calls it is not asked.
    """

    name: str
    count: int = 1
    input_gradient: bool = True
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """A linear layer: ``rows`` vectors of an image, each from ``cin`` to ``cout`` features.

    With ``products`` an image has so many products of two computed matrices (rows, cin) and
    (cin, cout), as attention has two for each head; 0 is one matrix of weights for all images. The
    gradient of the right matrix is called that of the weight. With ``bias`` a number is added to
    each of the ``cout`` features; products of two computed matrices have none.
    """

    name: str
    cin: int
    cout: int
    rows: int = 1
    n: int = 1
    count: int = 1
    input_gradient: bool = True
    products: int = 0
    bias: bool = False

    @property
    def macs(self) -> int:
        """Multiply-adds of any one of its three products."""
        return self.n * max(1, self.products) * self.rows * self.cin * self.cout


Layer = ConvLayer | LinearLayer

#: The network's own input, among the names of nodes.
INPUT = "input"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One layer of a graph, of ``count`` 1, and the nodes whose results it reads.

    ``inputs`` are names of nodes, or ``INPUT``, in the order of the operands; weights and constants
    are not among them. What moves no data (views, reshapes) is no node: who reads a view reads what
    it is a view of. A part of a value is a node of kind "slice".
    """

    name: str
    layer: Layer | ElementwiseLayer
    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A named list of layers, in the order of the network.

    ``layers`` are those that multiply. ``nodes`` are all layers with their edges, each after those
    that it reads; none where layers are only listed. ``notes`` say what was taken for granted where
    the source left it open.
    """

    name: str
    description: str
    layers: tuple[Layer, ...]
    nodes: tuple[Node, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of_nodes(
        cls, name: str, description: str, nodes: Sequence[Node], *, order: Sequence[str] = ()
    ) -> Workload:
        """The workload whose layers and counts are those of its ``nodes``.

        ``Workload.layer(node.layer.name)`` is the layer of a node with the count of all like it.
        Layers come in the order of their first node, or in the ``order`` of their names. Raises
        ``ArgumentError`` where a name stands for two nodes, or a node reads one that is not before
        it.
        """
        known = {INPUT}
        for node in nodes:
            for one in node.inputs:
                if one not in known:
                    raise ArgumentError(
                        f"node {node.name} reads {one!r}, and no node before it has that name; put "
                        "nodes behind those that they read, in no circles"
                    )
            if node.name in known:
                raise ArgumentError(f"two nodes are called {node.name!r}; give each its own name")
            known.add(node.name)
        counts = Counter(n.layer for n in nodes if not isinstance(n.layer, ElementwiseLayer))
        layers = [replace(layer, count=count) for layer, count in counts.items()]
        return cls(
            name=name,
            description=description,
            layers=tuple(sorted(layers, key=lambda x: order.index(x.name)) if order else layers),
            nodes=tuple(nodes),
        )

    def __repr__(self) -> str:
        """One line: name, layers with repetitions, multiply-adds."""
        layers = sum(layer.count for layer in self.layers)
        return f"<Workload {self.name}: {layers} layers, {self.macs:,} multiply-adds an image>"

    @cached_property
    def elementwise(self) -> tuple[ElementwiseLayer, ...]:
        """What multiplies nothing, those alike as one."""
        return together(one for one in self._others if one.kind != UNKNOWN)

    @cached_property
    def untimed(self) -> tuple[tuple[str, int], ...]:
        """Operations of which only the name is known, and how often each occurs."""
        return tuple(Counter(one.called for one in self._others if one.kind == UNKNOWN).items())

    @property
    def _others(self) -> list[ElementwiseLayer]:
        return [node.layer for node in self.nodes if isinstance(node.layer, ElementwiseLayer)]

    @property
    def convolutions(self) -> tuple[ConvLayer, ...]:
        """The layers that are convolutions."""
        return tuple(layer for layer in self.layers if isinstance(layer, ConvLayer))

    @property
    def macs(self) -> int:
        """Multiply-adds of one forward pass of one image."""
        return sum(layer.count * layer.macs for layer in self.layers)

    def layer(self, name: str) -> Layer:
        """Return the layer called ``name``."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        known = [layer.name for layer in self.layers]
        raise ArgumentError(f"workload {self.name} has no layer {name!r}{suggest(name, known)}")
