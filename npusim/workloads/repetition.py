"""A network whose sizes are those of one batch, for several batches side by side.

Each value that depends on an input gets more images where it has them. Where that is follows from
how many elements lie before them in memory, which views keep: (T, B, F) has T before its images,
and so has (T * B, F).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.graph import Edge, Node, Sizes, Workload, of_nodes
from npusim.workloads.layers import ConvLayer, Layer

#: Kinds that take their operands in any axes, element by element.
_ELEMENTS = ("add", "sub", "mul", "div")


def for_batch(workload: Workload, batch: int) -> Workload:
    """The network with the sizes that it has for ``batch`` images.

    A module is traced again. Of a file, whose sizes are those of its own batch, each value gets
    more images: the file's network runs on several batches side by side. Raises ``ArgumentError``
    where the batch is no multiple of that of the file.
    """
    if batch == workload.batch:
        return workload
    if workload.reread is not None:
        return workload.reread(batch)
    if batch % workload.batch:
        raise ArgumentError(
            f"batch is {batch}; {workload.name} states its sizes for {workload.batch} images, so "
            "that a batch is a multiple of that"
        )
    return repeated(workload, batch // workload.batch)


def repeated(workload: Workload, times: int) -> Workload:
    """A workload for so many of its batches.

    Raises ``ArgumentError`` for a node that joins, cuts or adds up along the axis of images.
    """
    batch = workload.batch * times
    if not workload.nodes:
        layers = tuple(replace(layer, n=layer.n * times) for layer in workload.layers)
        return replace(workload, layers=layers, batch=batch)
    graph = _Repetition(workload, times)
    for node in workload.nodes:
        graph.add(node)
    inputs = tuple(item._replace(shape=_more(item.shape, 0, times)) for item in workload.inputs)
    larger = of_nodes(
        workload.name,
        workload.description,
        graph.nodes,
        inputs=inputs,
        parameters=workload.parameters,
        batch=batch,
        notes=workload.notes,
    )
    return replace(larger, layers=_larger_layers(workload, graph.nodes, times))


def _larger_layers(workload: Workload, nodes: Sequence[Node], times: int) -> tuple[Layer, ...]:
    """The layers that a workload lists, some of its nodes' or others, for so many batches."""
    larger = {node.name: node.layer for node in nodes}
    by_layer = {node.layer: larger[node.name] for node in workload.nodes}
    layers = []
    for layer in workload.layers:
        repeated = by_layer.get(replace(layer, count=1), replace(layer, n=layer.n * times))
        assert not isinstance(repeated, ElementwiseLayer)
        layers.append(replace(repeated, count=layer.count))
    return tuple(layers)


class _Repetition:
    """The nodes of the larger network, and how many elements each value has before its images."""

    def __init__(self, workload: Workload, times: int) -> None:
        self.workload = workload
        self.times = times
        self.nodes: list[Node] = []
        self.before = {item.name: 1 for item in workload.inputs}
        self.copies: dict[tuple[str, Sizes, int], str] = {}

    def add(self, node: Node) -> None:
        """Note a node; one of parameters alone is the same for all images."""
        images = [edge for edge in node.reads if edge.value in self.before]
        if not images:
            self.nodes.append(node)
            return
        if isinstance(node.layer, ElementwiseLayer) and node.count == 1:
            self._add_other(node, node.layer, images)
        elif isinstance(node.layer, ConvLayer):
            self._add_convolution(node, node.layer)
        else:
            self.before[node.name] = node.count if node.count > 1 else self.before[images[0].value]
            self._append(node, [self._larger(edge) for edge in node.reads])

    def _append(self, node: Node, reads: Sequence[Edge]) -> None:
        """Note a node whose layer has more images along its first axis."""
        layer = node.layer
        if isinstance(layer, ElementwiseLayer):
            shape = _more(layer.shape, 0, self.times)
            out = _more(layer.out, 0, self.times)
            layer = replace(layer, shape=shape, out=out)
        else:
            layer = replace(layer, n=layer.n * self.times)
        self.nodes.append(replace(node, layer=layer, reads=tuple(reads)))

    def _add_convolution(self, node: Node, layer: ConvLayer) -> None:
        """Note a convolution; with weights of each image, images side by side are groups."""
        self.before[node.name] = 1
        x, *weights = node.reads
        if not (weights and weights[0].value in self.before):
            self._append(node, [self._larger(x, self._axis(node, x.shape, 1)), *weights])
            return
        layer = replace(
            layer,
            cin=layer.cin * self.times,
            cout=layer.cout * self.times,
            groups=layer.groups * self.times,
        )
        shape = _more(x.shape, 1, self.times)
        reads = (x._replace(shape=shape), *map(self._larger, weights))
        self.nodes.append(replace(node, layer=layer, reads=reads))

    def _add_other(self, node: Node, layer: ElementwiseLayer, images: Sequence[Edge]) -> None:
        """Note an operation that multiplies no matrices."""
        before = self.before[images[0].value]
        axis = self._axis(node, layer.shape, before)
        out_axis = _axis_of_result(layer, axis)
        if out_axis is None:
            raise ArgumentError(
                f"{self.workload.name}: node {node.name} ({layer.kind}) works along the axis of "
                f"the images, {axis} of {list(layer.shape)}, and its file has sizes for "
                f"{self.workload.batch} of them; export it with an open batch, or for this one"
            )
        self.before[node.name] = prod(layer.out[:out_axis])
        joins = layer.kind == "concat" or (layer.kind in _ELEMENTS and len(node.reads) > 1)
        elements = prod(layer.shape)
        reads = []
        for edge in node.reads:
            same_for_all = edge.value not in self.before
            if not same_for_all:
                place = _boundary(edge.shape, self.before[edge.value])
                reads.append(self._larger(edge, 0 if place is None else place))
            elif joins and (layer.kind == "concat" or prod(edge.shape) == elements):
                reads.append(self._copied(edge, axis))
            else:
                reads.append(edge)
        layer = replace(
            layer,
            shape=_more(layer.shape, axis, self.times),
            out=_more(layer.out, out_axis, self.times),
        )
        self.nodes.append(replace(node, layer=layer, reads=tuple(reads)))

    def _copied(self, edge: Edge, axis: int) -> Edge:
        """A value that is the same for all images, repeated for each batch."""
        shape = edge.shape
        larger = _more(shape, axis, self.times)
        key = (edge.value, shape, axis)
        if key not in self.copies:
            once = (*shape[:axis], 1, *shape[axis:])
            out = (*shape[:axis], self.times, *shape[axis:])
            end = f"_{len(self.copies) + 1}" if self.copies else ""
            name = f"{edge.value}.copies{end}"
            layer = ElementwiseLayer(kind="expand", shape=once, out=out)
            trained = edge.gradient
            self.nodes.append(
                Node(
                    name=name,
                    layer=replace(layer, input_gradient=trained),
                    reads=(edge._replace(shape=once),),
                    parameters={},
                    trained=trained and self._trained(edge.value),
                )
            )
            self.copies[key] = name
        return Edge(self.copies[key], larger, edge.gradient)

    def _trained(self, value: str) -> bool:
        """Return whether a gradient flows back to a parameter, or to a value computed of some."""
        parameters: Mapping[str, object] = self.workload.parameters
        if value in parameters:
            return self.workload.parameters[value].trained
        return any(node.trained for node in self.nodes if node.name == value)

    def _larger(self, edge: Edge, axis: int = 0) -> Edge:
        """An edge with more images along an axis, if the value has images."""
        if edge.value not in self.before:
            return edge
        return edge._replace(shape=_more(edge.shape, axis, self.times))

    def _axis(self, node: Node, shape: Sizes, before: int) -> int:
        """The axis of images of what a node reads; the first where it goes by elements alone."""
        axis = _boundary(shape, before)
        if axis is not None:
            return axis
        if isinstance(node.layer, ElementwiseLayer) and node.layer.shape == node.layer.out:
            return 0
        raise ArgumentError(
            f"{self.workload.name}: node {node.name} reads images that lie within an axis of "
            f"{list(shape)}, and its file has sizes for {self.workload.batch} of them; export it "
            "with an open batch, or for this one"
        )


def _boundary(shape: Sizes, before: int) -> int | None:
    """The first axis before which so many elements lie, None where there is none."""
    product = 1
    for axis, size in enumerate(shape):
        if product == before:
            return axis
        product *= size
    return None


def _axis_of_result(layer: ElementwiseLayer, axis: int) -> int | None:
    """The axis of images of what a layer leaves, None where it works along that axis."""
    if layer.kind == "permute":
        return layer.axes.index(axis)
    changed = layer.padding[axis] if len(layer.padding) == len(layer.shape) else (0, 0)
    if layer.kind in ("slice", "pad") and any(changed):
        return None
    if layer.kind == "reduce_sum":
        summed = {place % len(layer.shape) for place in layer.axes}
        if axis in summed:
            return None
        if len(layer.out) < len(layer.shape):
            return axis - sum(place < axis for place in summed)
    return min(axis, len(layer.out) - 1)


def _more(shape: Sizes, axis: int, times: int) -> Sizes:
    """A shape with so many times the images along an axis."""
    if not shape:
        return (times,)
    return (*shape[:axis], shape[axis] * times, *shape[axis + 1 :])
