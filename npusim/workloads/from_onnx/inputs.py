"""The sizes of the inputs of an ONNX file, by what the file states and what a user adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest

Sizes = tuple[int, ...]

#: What a user states of inputs: shapes without the batch by name, or in the order of the file.
Stated = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]


class FileInput(NamedTuple):
    """An input of a file: a dimension is a size, the name of one that is open, or None."""

    name: str
    dims: tuple[int | str | None, ...] | None
    element: int


def file_inputs(graph: Any, file: Path) -> list[FileInput]:
    """The inputs of a graph that are not among its initialisers, in its order."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = []
    for value in graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        dims: tuple[int | str | None, ...] | None = None
        if tensor.HasField("shape"):
            dims = tuple(dim.dim_value or dim.dim_param or None for dim in tensor.shape.dim)
        inputs.append(FileInput(value.name, dims, tensor.elem_type))
    if not inputs:
        raise ArgumentError(f"{file}: the graph has no input")
    return inputs


def fixed_batch(inputs: Sequence[FileInput]) -> int:
    """The images that a file states as the first size of its first input, 0 where that is open."""
    dims = inputs[0].dims
    return dims[0] if dims and isinstance(dims[0], int) else 0


def input_sizes(
    inputs: Sequence[FileInput], stated: Mapping[str, Sizes], batch: int, file: Path
) -> dict[str, Sizes]:
    """The shapes of all inputs for a ``batch``.

    A first dimension that is open, or that is the batch the file states, is the ``batch``; so is
    each other one of the same name. A stated shape is without the first dimension; one of an input
    whose first is no batch may have it. Raises
    ``ArgumentError`` for one that does not fit, and for a size that nobody states.
    """
    fixed = fixed_batch(inputs)
    sizes_by_name: dict[str, int] = {}
    dims = inputs[0].dims
    if dims and isinstance(dims[0], str):
        sizes_by_name[dims[0]] = batch
    shapes: dict[str, list[int | str | None]] = {}
    for item in inputs:
        shapes[item.name] = _dims_of(item, stated.get(item.name), batch, fixed, file)
        for dim, size in zip(item.dims or (), shapes[item.name], strict=False):
            if isinstance(dim, str) and isinstance(size, int):
                sizes_by_name.setdefault(dim, size)
    sizes_of_inputs = {}
    for name, sizes in shapes.items():
        numbers = [sizes_by_name.get(size) if isinstance(size, str) else size for size in sizes]
        if None in numbers:
            raise ArgumentError(
                f"{file}: input {name} is {_text(sizes)}, whose sizes are open; give input_shape "
                "(--input-shape) for the first input, inputs for others, or export the model with "
                "fixed sizes"
            )
        sizes_of_inputs[name] = tuple(size for size in numbers if size is not None)
    return sizes_of_inputs


def _dims_of(
    item: FileInput, stated: Sizes | None, batch: int, fixed: int, file: Path
) -> list[int | str | None]:
    """The dimensions of an input with what is stated, and with the batch in the first."""
    if item.dims is None:
        if stated is None:
            raise ArgumentError(
                f"{file}: input {item.name} has no shape; give input_shape (--input-shape) for the "
                "first input, inputs for others"
            )
        return [batch, *stated]
    dims = list(item.dims)
    if (dims and (dims[0] is None or dims[0] == fixed)) or (dims and isinstance(dims[0], str)):
        dims[0] = batch
    if stated is None:
        return dims
    if len(stated) == len(dims) and (not dims or dims[0] != batch):
        return list(stated)  # of an input without a batch
    if len(stated) == len(dims) - 1:
        return [dims[0], *stated]
    raise ArgumentError(
        f"{file}: input_shape {tuple(stated)} has {len(stated)} sizes; the input {item.name} has "
        f"{len(dims) - 1} besides the batch"
    )


def stated_shapes(
    inputs: Sequence[FileInput],
    input_shape: Sequence[int] | None,
    others: Stated | None,
    file: Path,
) -> dict[str, Sizes]:
    """The shapes that a user states, by the names of inputs."""
    names = [item.name for item in inputs]
    stated: dict[str, Sizes] = {}
    if isinstance(others, Mapping):
        for name, shape in others.items():
            if name not in names:
                raise ArgumentError(
                    f"{file}: there is no input {name!r}{suggest(name, names)}; its inputs are "
                    f"{', '.join(names)}"
                )
            stated[name] = _shape(shape)
    elif others is not None:
        if len(others) > len(names):
            raise ArgumentError(
                f"{file}: {len(others)} shapes for {len(names)} inputs ({', '.join(names)})"
            )
        stated = {name: _shape(shape) for name, shape in zip(names, others, strict=False)}
    if input_shape is not None:
        stated[names[0]] = _shape(input_shape)
    return stated


def _shape(shape: Sequence[int]) -> Sizes:
    return tuple(int(size) for size in shape)


def _text(sizes: Sequence[int | str | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in sizes)
