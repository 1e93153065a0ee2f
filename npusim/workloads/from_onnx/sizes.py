"""The sizes of all values of an ONNX file, and the constants and choices that follow from them.

One pass in the order of the nodes: ONNX's own inference gives the sizes of what a node computes,
constants among its operands help it, and what follows from constants alone is one. An ``If``
becomes the branch that is taken.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.workloads.from_onnx.folding import SMALL, Folding, initial_constants
from npusim.workloads.from_onnx.foreign import foreign_sizes
from npusim.workloads.from_onnx.nodes import STANDARD, Step, fault, step_of

Sizes = tuple[int, ...]

#: Operators that multiply: whatever a branch or the body of a loop has of them counts.
MULTIPLYING = (
    "Conv",
    "ConvTranspose",
    "ConvInteger",
    "QLinearConv",
    "FusedConv",
    "NhwcFusedConv",
    "DeformConv",
    "MatMul",
    "MatMulInteger",
    "QLinearMatMul",
    "Gemm",
    "QGemm",
    "FusedGemm",
    "FusedMatMul",
    "TransposeMatMul",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "MatMulNBits",
    "Einsum",
    "Attention",
    "MultiHeadAttention",
    "GroupQueryAttention",
    "PackedAttention",
    "QAttention",
    "LSTM",
    "GRU",
    "RNN",
    "QLinearConvTranspose",
)


@dataclass
class Sized:
    """A file whose values have sizes.

    ``shapes`` has those that are known, ``unknown`` says of others why not; ``elements`` are ONNX's
    numbers of types. ``constants`` are small arrays by name; those in ``numbers`` depend on no
    initialiser that may be trained. ``weights`` are the shapes of initialisers.
    """

    file: Path
    steps: list[Step] = field(default_factory=list)
    shapes: dict[str, Sizes] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    weights: dict[str, Sizes] = field(default_factory=dict)
    inputs: dict[str, Sizes] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    opset: int = 1

    def shape(self, step: Step, name: str) -> Sizes:
        """The shape of a value that a node reads or computes; ``ArgumentError`` if not known."""
        shape = self.shapes.get(name)
        if shape is None:
            why = self.unknown.get(name, "nothing states it")
            raise fault(
                self.file,
                step,
                f"the size of {name} is not known: {why}; export the model with fixed sizes, or "
                "simplify it (onnxsim), or give input_shape (--input-shape)",
            )
        return shape


def sized(
    onnx: Any,
    model: Any,
    inputs: Mapping[str, Sizes],
    elements: Mapping[str, int],
    file: Path,
    *,
    there: Sized | None = None,
) -> Sized:
    """The values of a model whose inputs have these sizes, without nodes that nothing needs.

    ``there`` are the sizes that the file has at its own batch, where this is another one.
    """
    walk = _Walk(onnx, model, file, there)
    for name, shape in inputs.items():
        walk.sized.inputs[name] = shape
        walk.note(name, shape, elements[name] or 1)
    walk.through(_ordered(onnx, model.graph, file))
    walk.sized.outputs = [value.name for value in model.graph.output]
    walk.sized.steps = _needed(walk.sized)
    return walk.sized


class _Walk:
    """The nodes of a file one after the other, and what is known of their values so far."""

    def __init__(self, onnx: Any, model: Any, file: Path, there: Sized | None) -> None:
        self.onnx = onnx
        self.model = model
        self.file = file
        self.there = there
        self.folding = Folding(onnx, model)
        self.versions = {opset.domain: opset.version for opset in model.opset_import}
        self.types: dict[str, Any] = {}
        self.sized = Sized(file)
        self.sized.opset = self.versions.get("", self.versions.get("ai.onnx", 1))
        self.makers: dict[str, Step] = {}
        graph = model.graph
        for tensor in graph.initializer:
            self.sized.weights[tensor.name] = tuple(tensor.dims)
            self.note(tensor.name, tuple(tensor.dims), tensor.data_type)
        for name, array in initial_constants(onnx, graph).items():
            self.sized.constants[name] = array
            if array.size <= 1 or array.dtype.kind not in "f":
                self.sized.numbers.add(name)
        self.stated = {value.name: value.type for value in [*graph.value_info, *graph.output]}

    def note(self, name: str, shape: Sizes, element: int) -> None:
        """Note the shape and the type of a value."""
        self.sized.shapes[name] = shape
        self.sized.elements[name] = element
        self.types[name] = self.onnx.helper.make_tensor_type_proto(element, shape)

    def through(self, steps: Iterable[Step]) -> None:
        """Read nodes in their order; a choice becomes the nodes of the branch that is taken."""
        waiting = deque(steps)
        while waiting:
            step = waiting.popleft()
            for name in step.outputs:
                self.makers[name] = step
            if step.kind == "If":
                waiting.extendleft(reversed(self._taken(step)))
                continue
            self._read(step)

    def _read(self, step: Step) -> None:
        if step.kind == "Shape" and step.inputs[0] in self.sized.shapes:
            self._constant(step.outputs[0], self._shape_of(step), pure=True)
            return
        if step.kind == "Concat" and self.there is not None:
            step = self._joined_for_each(step, self.there)
        self._sizes(step)
        elements = max(
            (prod(self.sized.shapes.get(name, (0,))) for name in step.outputs if name), default=0
        )
        if self.folding.computes(step, self.sized.constants, elements):
            results = self.folding.results(step, self.sized.constants)
            pure = all(name in self.sized.numbers for name in step.inputs if name)
            if results is not None:
                for name, value in zip(step.outputs, results, strict=True):
                    if name:
                        self._constant(name, value, pure=pure)
                if pure:
                    return
        self.sized.steps.append(step)

    def _shape_of(self, step: Step) -> Any:
        shape = self.sized.shapes[step.inputs[0]]
        start = step.attributes.get("start", 0)
        end = step.attributes.get("end", len(shape))
        return np.array(shape[start:end], np.int64)

    def _constant(self, name: str, value: Any, *, pure: bool) -> None:
        self.sized.constants[name] = value
        if pure:
            self.sized.numbers.add(name)
        element = self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        self.note(name, tuple(value.shape), element)

    def _sizes(self, step: Step) -> None:
        """Note the sizes of what a node computes, and why they are not known."""
        sizes = foreign_sizes(step, self.sized.shapes)
        if sizes is not None:
            element = next((self.sized.elements.get(n, 1) for n in step.inputs if n), 1)
            for name, shape in zip(step.outputs, sizes, strict=False):
                if name and shape is not None:
                    self.note(name, shape, element)
        else:
            self._inferred(step)
        if step.kind == "Reshape" and self.there is not None:
            self._move_batch(step, self.there)
        for name in step.outputs:
            if not name or name in self.sized.shapes:
                continue
            stated = self._stated(name)
            if stated is not None:
                self.note(name, *stated)
            else:
                self.sized.unknown[name] = self._why(step)

    def _inferred(self, step: Step) -> None:
        """Note what ONNX's own inference says of the results of a node."""
        onnx = self.onnx
        domain = "" if step.domain in STANDARD else step.domain
        version = self.versions.get(domain, self.versions.get("ai.onnx", 1))
        try:
            schema = onnx.defs.get_schema(step.kind, version, domain)
        except Exception:  # ONNX's own class moves between its versions
            return
        types = {name: self.types[name] for name in step.inputs if name in self.types}
        if step.kind in ("Loop", "Scan", "SequenceMap") or any(
            name not in types for name in step.inputs if name
        ):
            return
        small = {
            name: onnx.numpy_helper.from_array(self.sized.constants[name], name)
            for name in types
            if name in self.sized.constants and self.sized.constants[name].size <= SMALL
        }
        try:
            results = onnx.shape_inference.infer_node_outputs(
                schema, step.proto, types, small, {},
                opset_imports=list(self.model.opset_import), ir_version=self.model.ir_version,
            )  # fmt: skip
        except Exception as error:  # ONNX raises classes of its C++ side
            reads = ", ".join(
                f"{name} {list(self.sized.shapes.get(name, ()))}" for name in step.inputs if name
            )
            text = str(error).partition("\n")[0]
            raise fault(
                self.file,
                step,
                f"its operands do not fit each other: {text}; it reads {reads}; give another "
                "input_shape (--input-shape), or export the model again for these sizes",
            ) from error
        for name, result in results.items():
            self.types[name] = result
            tensor = result.tensor_type
            self.sized.elements[name] = tensor.elem_type
            dims = tensor.shape.dim
            if result.HasField("tensor_type") and tensor.HasField("shape"):
                sizes = tuple(dim.dim_value for dim in dims)
                if all(dim.HasField("dim_value") for dim in dims):
                    self.note(name, sizes, tensor.elem_type)

    def _move_batch(self, step: Step, there: Sized) -> None:
        """Give a view that states the batch of the file the other one, where its images lie."""
        read = step.inputs[0]
        output = step.outputs[0]
        shapes = self.sized.shapes
        if read not in there.shapes or output not in there.shapes or read not in shapes:
            return
        before = there.shapes[read]
        now = shapes[read]
        place = batch_place(before, now)
        out = there.shapes[output]
        if place is None or batch_place(out, shapes.get(output, out)) == place:
            return
        starts = [prod(out[:axis]) for axis in range(len(out))]
        axis = starts.index(place) if place in starts else 0
        # Behind another axis images may lie with those before them, or with those behind.
        alone = out[axis] == before[[prod(before[:one]) for one in range(len(before))].index(place)]
        if place not in starts or prod(out) != prod(before) or (place > 1 and not alone):
            raise fault(self.file, step, "its sizes hold for the batch of the file only")
        size = out[axis] * prod(now) // prod(before)
        self.note(output, (*out[:axis], size, *out[axis + 1 :]), self.sized.elements[output])

    def _joined_for_each(self, step: Step, there: Sized) -> Step:
        """A join whose operands for one image, such as class tokens, are repeated for all."""
        shapes = self.sized.shapes
        names = list(step.inputs)
        moved = [
            axis
            for name in names
            if name in there.shapes and name in shapes
            for axis, size in enumerate(shapes[name])
            if size != there.shapes[name][axis]
        ]
        if not moved or moved[0] == step.attributes["axis"] % len(shapes[names[0]]):
            return step
        axis = moved[0]
        size = next(shapes[name][axis] for name in names if shapes[name] != there.shapes[name])
        for place, name in enumerate(names):
            if shapes[name][axis] == 1:
                names[place] = self._expanded(step, name, axis, size)
        return step._replace(
            inputs=tuple(names),
            proto=_renamed(step.proto, dict(zip(step.inputs, names, strict=True))),
        )

    def _expanded(self, step: Step, name: str, axis: int, size: int) -> str:
        """The name of a value of which one axis is repeated to a size."""
        shape = self.sized.shapes[name]
        full_shape = np.array((*shape[:axis], size, *shape[axis + 1 :]), np.int64)
        output = f"{name}.{step.name}"
        stated = f"{name}.{step.name}.shape"
        self._constant(stated, full_shape, pure=True)
        proto = self.onnx.helper.make_node("Expand", [name, stated], [output], name=output)
        self._read(step_of(self.onnx, proto))
        return output

    def _stated(self, name: str) -> tuple[Sizes, int] | None:
        """The shape that the file states of a value, if it states all sizes."""
        kind = self.stated.get(name)
        if kind is None or not kind.HasField("tensor_type"):
            return None
        tensor = kind.tensor_type
        dims = tuple(dim.dim_value for dim in tensor.shape.dim)
        is_whole = tensor.HasField("shape") and all(size > 0 for size in dims)
        return (dims, tensor.elem_type or 1) if is_whole else None

    def _why(self, step: Step) -> str:
        """Why the sizes of what a node computes are not known, by the first cause."""
        for name in step.inputs:
            if name in self.sized.unknown:
                return self.sized.unknown[name]
        source = "" if step.domain in STANDARD else f" of {step.domain}"
        return f"node {step.name} ({step.kind}{source}) makes sizes that depend on data"

    # -- choices ---------------------------------------------------------------------------

    def _taken(self, step: Step) -> list[Step]:
        """The nodes of the branch that an ``If`` takes.

        Where its condition is not known both may compute as much, and then it is the first. Raises
        ``ArgumentError`` where they do not: what is timed would be a guess.
        """
        condition = self.sized.constants.get(step.inputs[0])
        if condition is not None:
            return self._branch(step, "then_branch" if condition.reshape(-1)[0] else "else_branch")
        first = self._branch(step, "then_branch")
        second = self._branch(step, "else_branch")
        try:
            alike = self._multiplied(first) == self._multiplied(second)
        except ArgumentError as error:  # of a branch that was never meant for these sizes
            raise fault(self.file, step, self._choice(step)) from error
        if not alike:
            raise fault(self.file, step, self._choice(step))
        self.sized.notes.append(
            f"{step.name} (If) depends on data; both branches multiply alike, and the first is read"
        )
        return first

    def _branch(self, step: Step, name: str) -> list[Step]:
        """The nodes of a branch, whose results are called like those of the choice."""
        graph = step.attributes[name]
        renamed: dict[str, str] = {}
        for tensor in graph.initializer:
            renamed[tensor.name] = self._unused(f"{step.name}.{tensor.name}")
            self.sized.weights[renamed[tensor.name]] = tuple(tensor.dims)
            self.note(renamed[tensor.name], tuple(tensor.dims), tensor.data_type)
        for inner, array in initial_constants(self.onnx, graph).items():
            self.sized.constants[renamed[inner]] = array
            if array.size <= 1 or array.dtype.kind not in "f":
                self.sized.numbers.add(renamed[inner])
        for node in graph.node:
            for output in node.output:
                if output:
                    renamed[output] = self._unused(f"{step.name}.{output}")
        protos = [_renamed(node, renamed) for node in graph.node]
        for value, outer in zip(graph.output, step.outputs, strict=False):
            inner = renamed.get(value.name, value.name)
            protos.append(self.onnx.helper.make_node("Identity", [inner], [outer]))
        return [step_of(self.onnx, proto) for proto in protos]

    def _unused(self, name: str) -> str:
        number = 1
        unused = name
        while unused in self.makers or unused in self.sized.weights:
            number += 1
            unused = f"{name}_{number}"
        return unused

    def _multiplied(self, steps: list[Step]) -> Counter[Any]:
        """The products of a branch, with the sizes of what they read."""
        trial = copy(self)
        trial.types = dict(self.types)
        trial.makers = dict(self.makers)
        trial.sized = copy(self.sized)
        for name in ("shapes", "elements", "constants", "weights", "unknown"):
            setattr(trial.sized, name, dict(getattr(self.sized, name)))
        trial.sized.steps = []
        trial.sized.numbers = set(self.sized.numbers)
        trial.sized.notes = []
        trial.through(steps)
        counts: Counter[Any] = Counter()
        for step in trial.sized.steps:
            if multiplies(step):
                shapes = tuple(trial.sized.shapes.get(name) for name in step.values)
                counts[step.kind, shapes] += 1
        return counts

    def _choice(self, step: Step) -> str:
        """The input that decides a choice, and how to state it."""
        seen = set()
        waiting = [step.inputs[0]]
        values = []
        sizes = []
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self.sized.inputs:
                values.append(name)
            maker = self.makers.get(name)
            if maker is not None and maker.kind in ("Shape", "Size"):
                sizes.append(maker.inputs[0])
            elif maker is not None:
                waiting += [waiting_name for waiting_name in maker.inputs if waiting_name]
        causes = [f"the numbers of input {name}" for name in values]
        causes += [
            f"the size of {name}, which is not known ({self.sized.unknown.get(name, '')})"
            for name in sizes
        ]
        return (
            f"which of two branches that multiply is taken depends on "
            f"{' and '.join(causes) or 'data'}; state sizes by input_shape (--input-shape) or "
            "inputs; where numbers decide, fix the input to the value meant (make it an "
            "initialiser) and simplify the file (onnxsim), or export the branch"
        )


def batch_place(there: Sizes, moved: Sizes) -> int | None:
    """How many elements lie before the axis that differs, None where none does."""
    for axis, (size, other) in enumerate(zip(there, moved, strict=False)):
        if size != other:
            return prod(there[:axis])
    return None


def multiplies(step: Step) -> bool:
    """Return whether a node is a product, or runs one in a branch or the body of a loop."""
    if step.kind in MULTIPLYING:
        return True
    graphs = [value for value in step.attributes.values() if hasattr(value, "node")]
    return any(_multiplies_inside(graph) for graph in graphs)


def _multiplies_inside(graph: Any) -> bool:
    for node in graph.node:
        inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        if node.op_type in MULTIPLYING or any(
            _multiplies_inside(inner_graph) for inner_graph in inner
        ):
            return True
    return False


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    """A copy of a node whose values have other names, those in its graphs too."""
    renamed = type(node)()
    renamed.CopyFrom(node)
    _rename(renamed, names)
    return renamed


def _rename(node: Any, names: Mapping[str, str]) -> None:
    for names_of_node in (node.input, node.output):
        names_of_node[:] = [names.get(name, name) for name in names_of_node]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            inner = {
                output for names_of_node in attribute.g.node for output in names_of_node.output
            }
            outer = {old: new for old, new in names.items() if old not in inner}
            for names_of_node in attribute.g.node:
                _rename(names_of_node, outer)


def _ordered(onnx: Any, graph: Any, file: Path) -> list[Step]:
    """The nodes of a graph, each after those that it reads; ``ArgumentError`` for a circle."""
    steps = [step_of(onnx, node) for node in graph.node]
    makers: dict[str, int] = {}
    for index, step in enumerate(steps):
        for name in step.outputs:
            if name and name in makers:
                raise fault(file, step, f"{name} is computed by {steps[makers[name]].name} too")
            makers[name] = index
    makers.pop("", None)
    there = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    needs = [[makers[name] for name in _read_by(step) if name in makers] for step in steps]
    for step in steps:
        for name in step.inputs:
            if name and name not in makers and name not in there:
                raise fault(
                    file, step, f"it reads {name}, which no node, input or initialiser is called"
                )
    return [steps[index] for index in _sorted(needs, lambda i: _circle(steps, needs, i, file))]


def _read_by(step: Step) -> list[str]:
    """The values that a node reads, those that its graphs read from outside too."""
    names = [name for name in step.inputs if name]
    for value in step.attributes.values():
        if hasattr(value, "node"):
            names += _outside(value)
    return names


def _outside(graph: Any) -> list[str]:
    names = [name for node in graph.node for name in node.input]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names += _outside(attribute.g)
    return names


def _sorted(needs: list[list[int]], circle: Callable[[list[int]], ArgumentError]) -> list[int]:
    """Places of nodes in the order of a file, but each after those that it needs."""
    missing = [len(set(needed)) for needed in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for index, needed in enumerate(needs):
        for need in set(needed):
            readers[need].append(index)
    if all(need < index for index, needed in enumerate(needs) for need in needed):
        return list(range(len(needs)))
    ready = deque(index for index, count in enumerate(missing) if not count)
    order = []
    while ready:
        index = ready.popleft()
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if len(order) < len(needs):
        raise circle([index for index, count in enumerate(missing) if count])
    return order


def _circle(
    steps: list[Step], needs: list[list[int]], waiting: list[int], file: Path
) -> ArgumentError:
    """The error that names the nodes of a circle."""
    path = [waiting[0]]
    while path.count(path[-1]) < 2:
        path.append(next(need for need in needs[path[-1]] if need in waiting))
    names = [steps[index].name for index in path[path.index(path[-1]) :]]
    return fault(
        file,
        steps[path[-1]],
        f"the nodes {' <- '.join(names)} read each other in a circle; export the model again",
    )


def _needed(sized: Sized) -> list[Step]:
    """The nodes that the results of a network depend on."""
    wanted = {name for name in sized.outputs if name not in sized.numbers}
    steps = []
    for step in reversed(sized.steps):
        if not wanted.intersection(step.outputs):
            continue
        steps.append(step)
        wanted.update(name for name in step.values if name not in sized.numbers)
        wanted.update(name for name in step.settings if name not in sized.constants)
        for value in step.attributes.values():
            if hasattr(value, "node"):
                wanted.update(_outside(value))
    return steps[::-1]
