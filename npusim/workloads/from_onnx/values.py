"""Values of an ONNX file on their way into a graph: where each comes from, and how it lies.

A view is the same value in another shape. A transposed value waits until something reads it: a
product takes one with its last two axes exchanged as it lies, for others it becomes a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.from_onnx.folding import LARGEST
from npusim.workloads.from_onnx.nodes import Step
from npusim.workloads.from_onnx.sizes import Sized
from npusim.workloads.graph import Edge, GraphBuilder
from npusim.workloads.kinds import UNKNOWN
from npusim.workloads.layers import Layer

Sizes = tuple[int, ...]


class OnnxValue(NamedTuple):
    """A value called ``name`` in the graph, seen in a ``shape``.

    With ``axes`` it is the value in the shape ``lies`` with its axes in another order, that of
    ``shape``. ``images`` says whether it depends on an input, ``weight`` whether it is a parameter
    as the file has it.
    """

    name: str
    shape: Sizes
    images: bool = True
    weight: bool = False
    axes: Sizes = ()
    lies: Sizes = ()

    def seen(self, shape: Sequence[int]) -> OnnxValue:
        """The same numbers in another shape; the value must not be ``axes`` in another order."""
        assert not self.axes
        return self._replace(shape=tuple(shape))

    def transposed(self, axes: Sequence[int]) -> OnnxValue:
        """The value with its axes in this order: a view where only axes of one element move."""
        lies, order = (self.lies, self.axes) if self.axes else (self.shape, ())
        order = tuple(order[axis] for axis in axes) if order else tuple(axes)
        shape = tuple(lies[axis] for axis in order)
        if same_order(lies, order):
            return self._replace(shape=shape, axes=(), lies=())
        if self.weight:  # laid out once, before anything runs
            return self._replace(shape=shape)
        return self._replace(shape=shape, axes=order, lies=lies)


def same_order(shape: Sizes, axes: Sequence[int]) -> bool:
    """Return whether the elements of a shape keep their order when its axes are put in another."""
    moved = [axis for axis in axes if shape[axis] > 1]
    return moved == sorted(moved)


class Values:
    """The graph of a file while its nodes are read, and its values so far by their names."""

    def __init__(self, sized: Sized, builder: GraphBuilder) -> None:
        self.sized = sized
        self.builder = builder
        self.values: dict[str, OnnxValue] = {}
        self.readers: dict[str, list[Step]] = {}
        self.biased: dict[str, str] = {}  # sums that are the bias of a product, and which
        self.unrolled = False
        self.unread: Counter[str] = Counter()
        self.strange: Counter[str] = Counter()
        self.steps = {name: step for step in sized.steps for name in step.outputs if name}
        for step in sized.steps:
            for name in step.values:
                self.readers.setdefault(name, []).append(step)
        self.outputs = Counter(sized.outputs)
        self._carried: dict[tuple[str, Sizes, Sizes], str] = {}

    # -- what is known of a file's values --------------------------------------------------

    def known(self, name: str) -> bool:
        """Return whether something of this name was read, or can be."""
        return name in self.values or name in self.sized.weights or name in self.sized.constants

    def constant(self, name: str) -> Any:
        """The numbers of a value, None where they are not known."""
        return self.sized.constants.get(name) if name else None

    def whole(self, name: str) -> tuple[int, ...]:
        """The whole numbers that a value has, () where they are not known."""
        array = self.constant(name)
        return () if array is None else tuple(int(number) for number in array.reshape(-1))

    def single(self, name: str) -> float | None:
        """The one number that a value is, as it would be written; None of several."""
        array = self.constant(name)
        if (
            array is None
            or array.size != 1
            or array.dtype == bool
            or name not in self.sized.numbers
        ):
            return None
        return float(str(array.reshape(-1)[0]))

    def only_reader(self, name: str) -> Step | None:
        """The node that alone reads a value, if there is just one."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and not self.outputs[name] else None

    def value(self, name: str, *, trained: bool = False) -> OnnxValue:
        """A value of the file; an initialiser or a constant is noted when it is read first.

        ``trained`` is said of what is a weight by its place, even where the file has a constant.
        """
        value = self.values.get(name)
        if value is None:
            value = self._parameter(name, trained=trained)
        return value

    def _parameter(self, name: str, *, trained: bool) -> OnnxValue:
        shape = self.sized.shapes[name]
        floats = self.sized.elements.get(name, 1) in (1, 10, 11, 16)
        initial = name in self.sized.weights
        array = self.sized.constants.get(name)
        pure = name in self.sized.numbers
        is_trained = (initial and floats and not pure) or trained
        data = array if not is_trained and array is not None and array.size <= LARGEST else None
        called = name
        while called in self.builder.shapes and called not in self.builder.parameters:
            called += ".parameter"
        self.builder.parameter(called, shape, trained=is_trained, data=data)
        value = OnnxValue(called, shape, images=False, weight=is_trained or initial)
        self.values[name] = value
        return value

    def put(self, name: str, value: OnnxValue) -> None:
        """Note what a value of the file is."""
        if name:
            self.values[name] = value

    # -- the graph -------------------------------------------------------------------------

    def add(
        self,
        step: Step,
        layer: Layer | ElementwiseLayer,
        reads: Sequence[Edge],
        *,
        part: str = "",
        parameters: Mapping[str, str] | None = None,
        images: bool = True,
    ) -> OnnxValue:
        """Add a node called after that of the file, and after the ``part`` of it that it is."""
        name = f"{step.name}.{part}" if part else step.name
        place = step.name if part else ""
        result = self.builder.add(name, layer, reads, parameters=parameters or {}, place=place)
        return OnnxValue(result, self.builder.shapes[result], images)

    def edge(self, value: OnnxValue, step: Step, shape: Sequence[int] | None = None) -> Edge:
        """An edge that reads a value, perhaps in another shape; a transposed one becomes a node."""
        value = self.laid(value, step)
        return Edge(value.name, value.shape if shape is None else tuple(shape))

    def laid(self, value: OnnxValue, step: Step) -> OnnxValue:
        """The value with its elements in the order of its shape."""
        if not value.axes:
            return value
        key = (value.name, value.lies, value.axes)
        if key not in self._carried:
            layer = ElementwiseLayer(
                kind="permute", shape=value.lies, out=value.shape, axes=value.axes
            )
            result = self.add(step, layer, [Edge(value.name, value.lies)], part="permute")
            self._carried[key] = result.name
        return OnnxValue(self._carried[key], value.shape, value.images)

    def exchanged(self, value: OnnxValue, step: Step) -> tuple[OnnxValue, bool]:
        """An operand of a product as it lies, and whether its last two axes are exchanged.

        Where the last axis stays in one piece it is the other ones that are permuted.
        """
        if not value.axes or value.axes[-2:].count(len(value.axes) - 1) == 0:
            return self.laid(value, step), False
        if value.axes[-1] == len(value.axes) - 1:
            return self.laid(value, step), False
        order = (*value.axes[:-2], value.axes[-1], value.axes[-2])
        plain = value._replace(axes=(), lies=(), shape=value.lies).transposed(order)
        laid = self.laid(plain, step)
        return laid._replace(shape=value.shape), True

    def expanded(self, value: OnnxValue, step: Step, shape: Sequence[int]) -> OnnxValue:
        """The value with its axes of one element repeated to a shape; a view if there are none."""
        value = self.laid(value, step)
        out = tuple(shape)
        lies = (1,) * (len(out) - len(value.shape)) + value.shape
        if prod(lies) == prod(out):
            return value._replace(shape=out)
        layer = ElementwiseLayer(kind="expand", shape=lies, out=out)
        reads = [self.edge(value, step, lies)]
        return self.add(step, layer, reads, part="expand", images=value.images)

    def each(
        self,
        step: Step,
        kind: str,
        value: OnnxValue,
        *,
        numbers: tuple[float, ...] = (),
        part: str = "",
    ) -> OnnxValue:
        """Note what is done to each element alone; a transposed value stays one, as it lies."""
        if (value.name, value.lies, value.axes) in self._carried:
            value = self.laid(value, step)
        lies = value.lies if value.axes else value.shape
        layer = ElementwiseLayer(kind=kind, shape=lies, numbers=numbers)
        result = self.add(step, layer, [Edge(value.name, lies)], part=part, images=value.images)
        return result._replace(shape=value.shape, axes=value.axes, lies=value.lies)

    def unknown(self, step: Step, called: str = "") -> None:
        """Note a node of which only the name is known, with its results."""
        reads = []
        for name in step.values:
            if self.single(name) is not None:
                continue  # a number of the operation
            if self.known(name) and self.sized.shapes.get(name) is not None:
                value = self.value(name)
                if prod(value.shape):
                    reads.append(value)
        outs = [name for name in step.outputs if self.sized.shapes.get(name) is not None]
        outs = [name for name in outs if prod(self.sized.shapes[name])]
        images = any(value.images for value in reads)
        if not images and not any(value.weight for value in reads):
            return  # of constants alone: constants, read when something wants them
        largest = max((value.shape for value in reads), key=prod)
        for index, name in enumerate(outs or [""]):
            if index and not self.readers.get(name):
                continue
            layer = ElementwiseLayer(
                kind=UNKNOWN,
                called=called or step.kind,
                shape=largest,
                out=self.sized.shapes[name] if name else largest,
            )
            edges = [self.edge(value, step) for value in reads]
            result = self.add(step, layer, edges, images=images)
            self.put(name, result)
