"""A workload from an ONNX file: its inputs and batch, its sizes, then its nodes one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npusim.base.errors import ArgumentError, shown, told_as
from npusim.base.records import replace
from npusim.base.resources import optional
from npusim.workloads.from_onnx.inputs import (
    Stated,
    file_inputs,
    fixed_batch,
    input_sizes,
    stated_shapes,
)
from npusim.workloads.from_onnx.nodes import Step
from npusim.workloads.from_onnx.operators import read
from npusim.workloads.from_onnx.sizes import Sized, batch_place, sized
from npusim.workloads.from_onnx.values import OnnxValue, Values
from npusim.workloads.graph import GraphBuilder, Workload
from npusim.workloads.repetition import for_batch

Sizes = tuple[int, ...]

#: ONNX's numbers of types of whole numbers and truth values.
_INTEGERS = (2, 3, 4, 5, 6, 7, 9, 12, 13)


def workload(
    path: str | Path,
    input_shape: Sequence[int] | None = None,
    *,
    inputs: Stated | None = None,
    batch: int = 1,
    unrolled: bool = False,
) -> Workload:
    """The graph of the network in an ONNX file, for a ``batch`` of images.

    ``input_shape`` is the shape of the first input without the batch, ``inputs`` are those of
    several by name or in order, where the file leaves sizes open. An open first dimension is the
    batch. A file whose batch is fixed is read for another one where all its sizes follow from
    that; else its network is repeated, and a batch is a multiple of its own. Recurrent layers are
    one node with a count, or, ``unrolled``, a node for each step.

    The weights of a file are parameters that are trained; what it computes from constants is a
    constant. Data outside the file is not read.

    Raises ``ArgumentError`` where the package ``onnx`` is missing, the file is no ONNX model or
    multiplies nothing, a size is open, operands do not fit each other, or a choice of branches is
    open.
    """
    onnx = optional("onnx", "reading an ONNX file needs the package onnx")
    file = Path(path)
    # Exceptions are protobuf's own, by its version.
    with told_as(ArgumentError, f"{file}: not an ONNX model: ", Exception):
        model = onnx.load(str(file), load_external_data=False)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    source = _Source(onnx, model, file, input_shape, inputs, unrolled)
    network = source.workload(batch)

    def again(images: int) -> Workload:
        return workload(path, input_shape, inputs=inputs, batch=images, unrolled=unrolled)

    return replace(network, reread=again)


class _Source:
    """A file that is loaded, with what a user states of it."""

    def __init__(
        self,
        onnx: Any,
        model: Any,
        file: Path,
        input_shape: Sequence[int] | None,
        inputs: Stated | None,
        unrolled: bool,
    ) -> None:
        self.onnx = onnx
        self.model = model
        self.file = file
        self.unrolled = unrolled
        self.inputs = file_inputs(model.graph, file)
        self.stated = stated_shapes(self.inputs, input_shape, inputs, file)

    def workload(self, batch: int) -> Workload:
        """The network for a batch: of a file with another one if sizes follow, or repeated."""
        fixed = fixed_batch(self.inputs)
        if not fixed or fixed == batch:
            return self._read(self._sized(batch), batch)
        there = self._sized(fixed)
        try:
            moved = self._sized(batch, there)
            if follows(there, moved):
                return self._read(moved, batch)
        except ArgumentError:
            pass  # sizes that the file states hold for its own batch only
        network = self._read(there, fixed)
        if batch % fixed and batch < fixed:
            return network
        return for_batch(network, batch)

    def _sized(self, batch: int, there: Sized | None = None) -> Sized:
        shapes = input_sizes(self.inputs, self.stated, batch, self.file)
        elements = {item.name: item.element for item in self.inputs}
        return sized(self.onnx, self.model, shapes, elements, self.file, there=there)

    def _read(self, sized: Sized, batch: int) -> Workload:
        """The network whose values have these sizes."""
        builder = GraphBuilder(shown(self.file.stem))
        values = Values(sized, builder)
        values.unrolled = self.unrolled
        wanted = {name for step in sized.steps for name in step.inputs}
        for item in self.inputs:
            shape: Sizes = sized.inputs[item.name]
            if item.name in wanted and 0 not in shape:
                name = builder.input(item.name, shape, integers=item.element in _INTEGERS)
                values.put(item.name, OnnxValue(name, shape))
        with told_as(ArgumentError, f"{self.file}: "):
            _read_all(values)
        network = builder.workload(self._description(batch), batch=batch, notes=_notes(values))
        if not network.layers:
            raise ArgumentError(
                f"{self.file}: no convolution and no product of matrices{_why(network)}"
            )
        return network

    def _description(self, batch: int) -> str:
        images = "one image" if batch == 1 else f"{batch} images"
        return f"{self.file.name} (ONNX), {images}"


def _read_all(values: Values) -> None:
    for step in values.sized.steps:
        read(values, step)


def _why(network: Workload) -> str:
    """The reason why a network has no known products: the operators that may multiply."""
    names = [f"{count} x {name}" for name, count in network.unknown_products]
    return f" that is known; {', '.join(names)} multiply in a way that is not" if names else ""


def _notes(values: Values) -> tuple[str, ...]:
    """Notes of what was assumed, and of what is not known."""
    notes = list(dict.fromkeys(values.sized.notes))
    if values.strange:
        names = ", ".join(f"{count} x {name}" for name, count in values.strange.items())
        notes.append(f"operators that are not known: {names}")
    if values.unread:
        names = ", ".join(f"{count} x {name}" for name, count in values.unread.items())
        notes.append(f"sizes that depend on data; left out: {names}")
    return tuple(notes)


def follows(there: Sized, moved: Sized) -> bool:
    """Return whether all sizes of a file belong to another batch, in the same place of each view.

    A node that states sizes of the old batch would leave images out, or put them beside each other
    on another axis.
    """
    steps = [step.outputs for step in moved.steps if step.outputs[0] in there.shapes]
    if [step.outputs for step in there.steps] != steps:
        return False
    return all(_moves_along(step, there, moved) for step in there.steps)


def _moves_along(step: Step, there: Sized, moved: Sized) -> bool:
    """Return whether what a node computes has the other batch if what it reads has."""
    network = step.outputs[0]
    if network not in there.shapes or network not in moved.shapes:
        return network not in there.shapes
    names = [name for name in step.values if name in there.shapes and name in moved.shapes]
    places = [batch_place(there.shapes[name], moved.shapes[name]) for name in names]
    if all(place is None for place in places):
        return True
    behind = batch_place(there.shapes[network], moved.shapes[network])
    if step.kind in ("Reshape", "Flatten"):
        return places[0] == behind
    return behind is not None
