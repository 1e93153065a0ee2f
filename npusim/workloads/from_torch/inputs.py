"""Inputs of a module as users give them: shapes, specs or example tensors, at a batch.

A shape or a spec is that of one image, and the batch is put in front; a tensor has its batch along
the first axis, and gets another. Tensors are made under ``FakeTensorMode``: they have no data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npusim.base.dtypes import DType
from npusim.base.errors import ArgumentError

#: What a user may state for one input, in words.
FORMS = "a shape such as (3, 224, 224), npusim.spec(shape, dtype) or an example tensor"


class Inputs(NamedTuple):
    """Arguments of a call of a module: those by place and those by name."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


def made(torch: Any, inputs: Any, batch: int, *, floating: Any, device: Any) -> Inputs:
    """Tensors without data for inputs in any form, for a ``batch`` of images.

    ``floating`` is the type of an input of which only the shape is stated. Raises
    ``ArgumentError`` for an input in no known form.
    """

    def one(name: str, value: Any) -> Any:
        return _tensor(torch, name, value, batch, floating, device)

    if isinstance(inputs, Mapping):
        return Inputs((), {str(name): one(str(name), value) for name, value in inputs.items()})
    several = not is_shape(inputs) and isinstance(inputs, (list, tuple))
    values = inputs if several else (inputs,)
    return Inputs(tuple(one(f"input {i + 1}", value) for i, value in enumerate(values)), {})


def is_shape(inputs: Any) -> bool:
    """Return whether this is one shape: a sequence of integers."""
    if not isinstance(inputs, Sequence) or isinstance(inputs, str) or not inputs:
        return False
    return all(
        isinstance(size, (int, np.integer)) and not isinstance(size, bool) for size in inputs
    )


def words(inputs: Any) -> str:
    """Inputs in the words of a description, such as "3x224x224"."""
    if isinstance(inputs, Mapping):
        return ", ".join(f"{name} {_words(value)}" for name, value in inputs.items())
    if is_shape(inputs) or not isinstance(inputs, (list, tuple)):
        return _words(inputs)
    return ", ".join(map(_words, inputs))


def _words(value: Any) -> str:
    if not is_shape(value) and not hasattr(value, "shape"):
        return str(value)
    sizes = value if is_shape(value) else value.shape
    return "x".join(str(int(size)) for size in sizes) or "a number"


def _tensor(torch: Any, name: str, value: Any, batch: int, floating: Any, device: Any) -> Any:
    """One argument of the module."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_shape(value):
        shape = (batch, *(int(size) for size in value))
        kind = floating
    elif isinstance(getattr(value, "dtype", None), DType):  # a spec, which calls define
        shape = (batch, *value.shape)
        kind = _dtype(torch, name, value.dtype.name)
    elif isinstance(value, torch.Tensor):
        shape = tuple(value.shape)
        kind = value.dtype
        shape = (batch, *shape[1:]) if shape else shape
    elif isinstance(value, np.ndarray):
        shape = value.shape
        kind = _dtype(torch, name, value.dtype.name)
        shape = (batch, *shape[1:]) if shape else shape
    elif isinstance(value, Sequence) and not value:
        shape = (batch,)
        kind = floating
    else:
        raise ArgumentError(f"{name} is {value!r}; give {FORMS}")
    if any(size < 1 for size in shape):
        raise ArgumentError(f"{name} has the shape {list(shape)} at batch {batch}; sizes are 1 up")
    return torch.empty(shape, dtype=kind, device=device)


#: Types as this package calls them and PyTorch does not; indices are int64 in PyTorch.
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "int32": "int64"}


def _dtype(torch: Any, name: str, called: str) -> Any:
    dtype = getattr(torch, _DTYPES.get(called, called), None)
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"{name} is of type {called}, which PyTorch has not")
    return dtype
