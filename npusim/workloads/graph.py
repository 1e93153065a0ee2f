"""The graph of a network: operations on values, whose shapes have the batch, each edge checked.

A *value* is an input of the network, a parameter, or what a node computes; it has one shape, with
the images of the batch, and one producer. A *node* is an operation: a layer with the values that it
reads, each in a shape of its own where it is a view of the value. What moves no data (a view, a
reshape) is no node; what changes the order of elements is one.

``GraphBuilder`` is what every source of networks writes to, ``Workload`` what everything else
reads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.workloads.elementwise import ElementwiseLayer, together
from npusim.workloads.kinds import KINDS, UNKNOWN
from npusim.workloads.layers import ConvLayer, Layer, LinearLayer

Sizes = tuple[int, ...]

#: The network's own input, among the names of values.
INPUT = "input"

#: What an unknown operation that multiplies is called, before its name: a network or a step with
#: one is partial, for its time is no matter of the bytes that it moves.
MULTIPLIES = "multiplies: "


class Input(NamedTuple):
    """A value that a network gets for each batch; ``integers`` are indices such as tokens."""

    name: str
    shape: Sizes
    integers: bool = False


class Parameter(NamedTuple):
    """A tensor that belongs to the network, known by its ``name``, which may be read many times.

    One that is not ``trained`` is frozen, a buffer or a constant: it has no gradient and no update.
    ``data`` are its numbers where a source knows them and a run needs them (constants, buffers).
    """

    name: str
    shape: Sizes
    trained: bool = True
    data: Any = None


class Edge(NamedTuple):
    """A ``value`` that a node reads, in a ``shape`` of as many elements as the value has.

    Without ``gradient`` nothing flows back along the edge (``detach``, ``no_grad``).
    """

    value: str
    shape: Sizes
    gradient: bool = True


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation of a graph and what it reads.

    ``reads`` are its operands in order. A convolution or a linear layer with two of them has
    weights that are computed, the second. ``parameters`` are the names of those it has, by the
    symbol of the table of operations ("w", "b", "gamma", ...); a network from a file of layers has
    None, which stands for parameters of the node's own, all trained. ``count`` says how many times
    in a row it runs, each time on other numbers, as the cell of a recurrent layer does; its value
    has all of them along the first axis. ``trained`` says whether a gradient flows back to it,
    ``place`` where the user's model has it.
    """

    name: str
    layer: Layer | ElementwiseLayer
    reads: tuple[Edge, ...]
    parameters: Mapping[str, str] | None = field(default=None, hash=False)
    count: int = 1
    trained: bool = True
    place: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the values that it reads."""
        return tuple(edge.value for edge in self.reads)

    @property
    def shape(self) -> Sizes:
        """The shape of its value."""
        shape = shape_out(self.layer)
        return (self.count * shape[0], *shape[1:]) if self.count > 1 else shape


def shape_in(layer: Layer | ElementwiseLayer) -> Sizes:
    """The shape of what a layer reads; of several operands that of the largest."""
    if isinstance(layer, ConvLayer):
        return layer.x_shape
    if isinstance(layer, LinearLayer):
        return (layer.stack * layer.all_rows, layer.cin)
    return layer.shape


def shape_out(layer: Layer | ElementwiseLayer) -> Sizes:
    """The shape of what a layer computes."""
    if isinstance(layer, ConvLayer):
        return layer.dy_shape
    if isinstance(layer, LinearLayer):
        return (layer.stack * layer.all_rows, layer.cout)
    return layer.out


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A named network, with the sizes that it has for a ``batch`` of images.

    ``layers`` are those that multiply, each with its count; ``nodes`` are all operations with their
    edges, each after those that it reads: none where layers are only listed. ``inputs`` and
    ``parameters`` are the values that no node computes. ``notes`` say what was taken for granted
    where the source left it open. ``reread`` reads the source again for another batch.
    """

    name: str
    description: str
    layers: tuple[Layer, ...]
    nodes: tuple[Node, ...] = ()
    inputs: tuple[Input, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict, hash=False)
    batch: int = 1
    notes: tuple[str, ...] = ()
    reread: Callable[[int], Workload] | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        """One line: name, layers with repetitions, multiply-adds."""
        layers = sum(layer.count for layer in self.layers)
        return f"<Workload {self.name}: {layers} layers, {self.macs:,} multiply-adds an image>"

    def __getstate__(self) -> dict[str, Any]:
        """All but ``reread``, which may hold a user's module: other processes read no network."""
        return {**vars(self), "reread": None}

    @cached_property
    def elementwise(self) -> tuple[ElementwiseLayer, ...]:
        """The layers that multiply nothing, equal ones once."""
        return together(layer for layer in self._others if layer.kind != UNKNOWN)

    @cached_property
    def untimed(self) -> tuple[tuple[str, int], ...]:
        """Operations of which only the name is known, and how often each occurs."""
        counts: Counter[str] = Counter()
        for layer in self._others:
            if layer.kind == UNKNOWN:
                counts[layer.called] += layer.count
        return tuple(counts.items())

    @cached_property
    def unknown_products(self) -> tuple[tuple[str, int], ...]:
        """Unknown operations that multiply, and how often each occurs: no result is complete."""
        return tuple(
            (name.removeprefix(MULTIPLIES), count)
            for name, count in self.untimed
            if name.startswith(MULTIPLIES)
        )

    @property
    def _others(self) -> list[ElementwiseLayer]:
        return [
            replace(node.layer, count=node.count)
            for node in self.nodes
            if isinstance(node.layer, ElementwiseLayer)
        ]

    @property
    def convolutions(self) -> tuple[ConvLayer, ...]:
        """The layers that are convolutions."""
        return tuple(layer for layer in self.layers if isinstance(layer, ConvLayer))

    @property
    def batch_macs(self) -> int:
        """Multiply-adds of one forward pass of the batch."""
        return sum(layer.count * layer.macs for layer in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-adds of one forward pass for each image of the batch, rounded down."""
        return self.batch_macs // self.batch

    def layer(self, name: str) -> Layer:
        """Return the layer called ``name``."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        names = [layer.name for layer in self.layers]
        raise ArgumentError(f"workload {self.name} has no layer {name!r}{suggest(name, names)}")


class GraphBuilder:
    """Nodes in the order in which they compute, checked as they are added.

    Values are inputs, parameters and nodes, each with a name that no other has.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.nodes: list[Node] = []
        self.inputs: list[Input] = []
        self.parameters: dict[str, Parameter] = {}
        self.shapes: dict[str, Sizes] = {}
        self.trained: dict[str, bool] = {}
        self._numbers: Counter[str] = Counter()

    def input(self, name: str, shape: Sequence[int], *, integers: bool = False) -> str:
        """Note an input of the network; returns its name, that of the first is ``INPUT``."""
        name = self._unused(name if self.inputs else INPUT)
        self.inputs.append(Input(name, tuple(shape), integers))
        self.shapes[name] = tuple(shape)
        self.trained[name] = False
        return name

    def parameter(
        self, name: str, shape: Sequence[int], *, trained: bool = True, data: Any = None
    ) -> str:
        """Note a parameter, buffer or constant; returns its name. One name is noted once."""
        if name not in self.parameters:
            self.parameters[name] = Parameter(name, tuple(shape), trained, data)
            self.shapes[name] = tuple(shape)
            self.trained[name] = trained
        return name

    def add(
        self,
        name: str,
        layer: Layer | ElementwiseLayer,
        reads: Sequence[Edge],
        *,
        parameters: Mapping[str, str] | None = None,
        count: int = 1,
        place: str = "",
        frozen: bool = False,
    ) -> str:
        """Note an operation, and return the name of its value.

        No gradient flows to one that is ``frozen``, nor to its parameters for its sake, as in a
        region under ``no_grad``.

        It is called ``name``, with a number where that is taken; what a chain of a workload file
        cannot have in a word becomes "_", and no layer is called like a kind of element-wise layer.
        Which gradients its layer has follows from what it reads. Raises ``ArgumentError`` where it
        reads a value that is not there, or in a shape of other elements than the value has.
        """
        word = re.sub(r"[^\w.-]", "_", name) or "node"
        multiplies = not isinstance(layer, ElementwiseLayer)
        name = self._unused(word, reserved=(*KINDS, UNKNOWN) if multiplies else ())
        node = Node(
            name=name,
            layer=layer,
            reads=tuple(reads),
            parameters=parameters,
            count=count,
            place=place,
        )
        self._check(node)
        node = _without_gradients(node) if frozen else self._with_gradients(node)
        self.nodes.append(node)
        self.shapes[name] = node.shape
        self.trained[name] = node.trained
        return name

    def workload(self, description: str, **more: Any) -> Workload:
        """The network; layers of one shape are one with a count, called after the first."""
        names: dict[tuple[Layer, Any], str] = {}
        nodes = []
        for node in _with_joined_slices(reached(self.nodes)):
            layer = node.layer
            if not isinstance(layer, ElementwiseLayer):
                alike = replace(layer, name="")
                layer = replace(alike, name=names.setdefault((alike, None), node.name))
            nodes.append(replace(node, layer=layer))
        return of_nodes(
            self.title,
            description,
            nodes,
            inputs=tuple(self.inputs),
            parameters=self._read_parameters(),
            **more,
        )

    def _read_parameters(self) -> dict[str, Parameter]:
        """The parameters that nodes have or read."""
        used = {name for node in self.nodes for name in (node.parameters or {}).values()}
        used |= {name for node in self.nodes for name in node.inputs}
        return {name: parameter for name, parameter in self.parameters.items() if name in used}

    def _unused(self, word: str, reserved: Sequence[str] = ()) -> str:
        name = word
        while name in self.shapes or name in reserved:
            self._numbers[word] += 1
            name = f"{word}_{self._numbers[word] + 1}"
        return name

    def _check(self, node: Node) -> None:
        """Refuse operands that are not there, or do not fit."""
        where = f" ({node.place})" if node.place else ""
        for edge in node.reads:
            if edge.value not in self.shapes:
                raise ArgumentError(
                    f"{self.title}: node {node.name}{where} reads {edge.value!r}, and no node "
                    "before it has that name; put nodes behind those that they read, in no circles"
                )
            shape = self.shapes[edge.value]
            if prod(shape) != prod(edge.shape):
                raise ArgumentError(
                    f"{self.title}: node {node.name}{where} reads {edge.value} as "
                    f"{list(edge.shape)}, which has {prod(edge.shape):,} elements; it is "
                    f"{list(shape)}, {prod(shape):,} elements"
                )
        fault = _misfit(node)
        if fault:
            raise ArgumentError(
                f"{self.title}: node {node.name}{where} {fault}; it reads "
                f"{', '.join(f'{edge.value} as {list(edge.shape)}' for edge in node.reads)}"
            )

    def _with_gradients(self, node: Node) -> Node:
        """The node with the gradients that it has, by what is trained among its operands."""
        flows = [edge.gradient and self.trained[edge.value] for edge in node.reads]
        layer = node.layer
        if isinstance(layer, ElementwiseLayer):
            trained = any(flows) or self._trains(node)
            return replace(node, layer=replace(layer, input_gradient=any(flows)), trained=trained)
        second = flows[1] if len(flows) > 1 else self._trained(node, "w")
        bias = layer.bias and self._trained(node, "b")
        layer = replace(
            layer,
            input_gradient=flows[0],
            weight_gradient=second,
            bias_gradient=bias if layer.bias else True,
        )
        return replace(node, layer=layer, trained=flows[0] or second or bias)

    def _trains(self, node: Node) -> bool:
        """Return whether a node that multiplies no matrices has a parameter that is trained."""
        if node.parameters is None:
            assert isinstance(node.layer, ElementwiseLayer)
            return node.layer.has_parameters
        return any(self.parameters[name].trained for name in node.parameters.values())

    def _trained(self, node: Node, symbol: str) -> bool:
        """Return whether a node trains the parameter of a symbol."""
        if node.parameters is None:
            return True
        name = node.parameters.get(symbol)
        return name is not None and self.parameters[name].trained


def _with_joined_slices(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, where a part of a part that nothing else reads is one part of the whole value.

    A file has a slice for each axis where a module has one for all.
    """
    readers = Counter(name for node in nodes for name in node.inputs)
    joined: dict[str, Node] = {}
    for node in nodes:
        inner = joined.get(node.inputs[0])
        joins = (
            inner is not None
            and readers[inner.name] == 1
            and _cuts_box(inner)
            and _cuts_box(node)
            and node.reads[0].shape == inner.shape
        )
        if inner is not None and joins:
            del joined[inner.name]
            joined[node.name] = _part_of_part(inner, node)
        else:
            joined[node.name] = node
    return list(joined.values())


def _cuts_box(node: Node) -> bool:
    """Return whether a node cuts a part whose elements are neighbours along each axis."""
    layer = node.layer
    return (
        isinstance(layer, ElementwiseLayer)
        and layer.kind == "slice"
        and not layer.stride
        and len(layer.padding) == len(layer.shape)
    )


def _part_of_part(inner: Node, outer: Node) -> Node:
    """The part of a value that ``outer`` is of the part that ``inner`` is."""
    assert isinstance(inner.layer, ElementwiseLayer)
    assert isinstance(outer.layer, ElementwiseLayer)
    both = zip(inner.layer.padding, outer.layer.padding, strict=True)
    padding = tuple((a + c, b + d) for (a, b), (c, d) in both)
    layer = replace(outer.layer, shape=inner.layer.shape, padding=padding)
    gradient = inner.reads[0].gradient and outer.reads[0].gradient
    reads = (inner.reads[0]._replace(gradient=gradient),)
    return replace(outer, layer=layer, reads=reads)


def reached(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, without gradients where none comes back to them.

    One comes to what nothing reads, which is a result of the network, and along edges that pass it
    on from nodes that have one.
    """
    read = {name for node in nodes for name in node.inputs}
    names: set[str] = set()
    for node in reversed(nodes):
        if node.trained and (node.name not in read or node.name in names):
            names.add(node.name)
            names.update(edge.value for edge in node.reads if edge.gradient)
    return [node if node.name in names else _without_gradients(node) for node in nodes]


def _without_gradients(node: Node) -> Node:
    """The node as one that computes no gradient."""
    layer = node.layer
    if isinstance(layer, ElementwiseLayer):
        return replace(node, layer=replace(layer, input_gradient=False), trained=False)
    layer = replace(
        layer, input_gradient=False, weight_gradient=False, bias_gradient=not layer.bias
    )
    return replace(node, layer=layer, trained=False)


def _misfit(node: Node) -> str:
    """The fault of the shapes in which a node reads its operands, "" if they fit."""
    shapes = [edge.shape for edge in node.reads]
    if not shapes:
        return "reads nothing"
    if isinstance(node.layer, ConvLayer):
        return _misfit_of_convolution(node.layer, shapes)
    if node.count > 1:
        return ""  # each time that it runs it reads a part
    if isinstance(node.layer, LinearLayer):
        return _misfit_of_product(node.layer, shapes)
    return _misfit_of_other(node.layer, shapes)


def _misfit_of_convolution(layer: ConvLayer, shapes: Sequence[Sizes]) -> str:
    if shapes[0] != layer.x_shape:
        return f"is a convolution of {list(layer.x_shape)}"
    if len(shapes) > 1 and prod(shapes[1]) != prod(layer.w_shape):
        return f"is a convolution with weights {list(layer.w_shape)}"
    return ""


def _misfit_of_product(layer: LinearLayer, shapes: Sequence[Sizes]) -> str:
    rows = layer.stack * layer.all_rows
    if prod(shapes[0]) != rows * layer.cin:
        return f"multiplies {rows:,} rows of {layer.cin}"
    right = layer.stack * layer.cin * layer.cout
    if len(shapes) > 1 and prod(shapes[1]) != right:
        return f"multiplies with {right:,} numbers"
    return ""


def _misfit_of_other(layer: ElementwiseLayer, shapes: Sequence[Sizes]) -> str:
    if layer.kind == "concat":
        total = sum(map(prod, shapes))
        return "" if total == prod(layer.out) else f"leaves {list(layer.out)}"
    if max(map(prod, shapes)) != prod(layer.shape):
        return f"is a {layer.kind} of {list(layer.shape)}"
    return ""


def of_nodes(
    name: str, description: str, nodes: Sequence[Node], *, order: Sequence[str] = (), **more: Any
) -> Workload:
    """The workload whose layers and counts are those of its ``nodes``.

    Layers come in the order of their first node, or in the ``order`` of their names.
    """
    counts: Counter[Layer] = Counter()
    for node in nodes:
        if not isinstance(node.layer, ElementwiseLayer):
            counts[node.layer] += node.count
    layers = [replace(layer, count=count) for layer, count in counts.items()]
    if order:
        layers.sort(key=lambda layer: order.index(layer.name))
    return Workload(
        name=name, description=description, layers=tuple(layers), nodes=tuple(nodes), **more
    )
