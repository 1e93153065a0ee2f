# ruff: noqa: N801, N802 - classes and functions carry the names of the C interface
"""Tensors and lists of the C interface: created, read by the calls, destroyed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import numpy as np

from npusim.base.dtypes import dtype as known_dtype
from npusim.base.errors import ArgumentError
from npusim.call.spec import Array, Spec
from npusim.compat.acl_codes import aclDataType, aclFormat
from npusim.compat.acl_memory import DeviceMemory
from npusim.compat.acl_runtime import Handle, answering, give_back

T = TypeVar("T")

#: The format of a tensor whose creator names none, by rank.
_USUAL_FORMAT = {3: "NCL", 4: "NCHW", 5: "NCDHW"}


@dataclass(eq=False)
class aclTensor(Handle):
    """A tensor: shape, element type (a short name where npusim knows it), format, and its data.

    ``array`` is the caller's own or a view of ``memory``, read in phase two and, for outputs,
    written in place; None for a tensor without data, which makes the call timing-only.
    ``transposed`` says that it lies contiguous with its last two axes swapped.
    """

    shape: tuple[int, ...]
    dtype: str
    format: str
    array: Array | None = field(repr=False)
    memory: DeviceMemory | None = None
    transposed: bool = False


@dataclass
class aclIntArray(Handle):
    """A list of int64 values."""

    values: tuple[int, ...]


@dataclass
class aclBoolArray(Handle):
    """A list of bools."""

    values: tuple[bool, ...]


@dataclass
class aclScalar(Handle):
    """One number."""

    value: np.generic


def aclCreateTensor(*arguments: Any, **named: Any) -> aclTensor:
    """A tensor over device memory, as in C, or over an array, which stays the caller's.

    In C's form ``stride`` (None: contiguous) and ``offset`` count elements from the beginning of
    ``tensorData``, memory of ``aclrtMalloc`` that holds ``storageDims`` elements; without
    ``tensorData`` the tensor has no data.

    In the short form ``dtype`` is one of ``ACL_FLOAT`` and kin or any spelling of a type; with an
    array it must be the array's own and may be left out, with a shape the tensor has no data.
    ``format`` is one of ``ACL_FORMAT_ND`` and kin; left out, ranks 3 to 5 are NCL, NCHW and NCDHW,
    others ND. Raises ``ArgumentError`` for what does not fit together.
    """
    if len(arguments) > len(("array_or_shape", "dtype", "format")):
        return _in_memory(*arguments, **named)
    return _over_array(*arguments, **named)


def _over_array(
    array_or_shape: Any, dtype: Any = None, format: aclFormat | str | None = None
) -> aclTensor:
    """The short form."""
    if isinstance(array_or_shape, np.ndarray):
        array, shape = array_or_shape, tuple(array_or_shape.shape)
        own = _short_name(array.dtype)
        if dtype is not None and _short_name(dtype) != own:
            raise ArgumentError(
                f"aclCreateTensor: dtype is {_short_name(dtype)}, the array's is {own}; leave "
                "dtype out or convert the array"
            )
    else:
        given = array_or_shape.shape if isinstance(array_or_shape, Spec) else array_or_shape
        array, shape = None, _sizes("shape", given, None, ", or pass a NumPy array")
        if dtype is None and not isinstance(array_or_shape, Spec):
            raise ArgumentError(
                f"aclCreateTensor: a tensor of shape {shape} without an array needs a dtype"
            )
        own = _short_name(array_or_shape.dtype if isinstance(array_or_shape, Spec) else dtype)
    if isinstance(format, aclFormat):
        format = format.short_name
    usual = _USUAL_FORMAT.get(len(shape), "ND")
    strides = () if array is None else tuple(step // array.itemsize for step in array.strides)
    return aclTensor(shape, own, format or usual, array, transposed=_turned(shape, strides))


def _in_memory(
    viewDims: Any,
    viewDimsNum: int,
    dataType: Any,
    stride: Any,
    offset: int,
    format: aclFormat | int,
    storageDims: Any,
    storageDimsNum: int,
    tensorData: DeviceMemory | None,
) -> aclTensor:
    """C's form."""
    shape = _sizes("viewDims", viewDims, viewDimsNum)
    storage = _sizes("storageDims", storageDims, storageDimsNum)
    strides = _contiguous(shape) if stride is None else _sizes("stride", stride, viewDimsNum)
    if offset < 0:
        raise ArgumentError(f"aclCreateTensor: offset is {offset}; it must be at least 0")
    reach = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    if all(shape) and reach > prod(storage):
        raise ArgumentError(
            f"aclCreateTensor: viewDims {shape} with stride {strides} and offset {offset} reach "
            f"element {reach - 1}; storageDims {storage} have {prod(storage)} elements"
        )
    name = aclDataType(dataType).short_name
    array = None
    if tensorData is not None:
        array = _view(tensorData, name, (shape, strides, offset), prod(storage))
    turned = _turned(shape, strides)
    return aclTensor(shape, name, aclFormat(format).short_name, array, tensorData, turned)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _turned(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides are those of a tensor whose last two axes were swapped."""
    swapped = _contiguous((*shape[:-2], *shape[:-3:-1]))
    return strides == (*swapped[:-2], *swapped[:-3:-1]) != _contiguous(shape)


def _view(
    memory: DeviceMemory,
    name: str,
    view: tuple[tuple[int, ...], tuple[int, ...], int],
    elements: int,
) -> Array:
    """The elements of a tensor in device memory, as an array that shares it."""
    if not isinstance(memory, DeviceMemory):
        raise ArgumentError(
            f"aclCreateTensor: tensorData is a {type(memory).__name__}; pass memory of aclrtMalloc "
            "(aclrtMemcpy fills it), or the array alone: aclCreateTensor(array)"
        )
    if memory.fault:
        raise ArgumentError(f"aclCreateTensor: tensorData: {memory.fault}")
    shape, strides, offset = view
    element = _numpy(name)
    if elements * element.itemsize > memory.size_bytes:
        raise ArgumentError(
            f"aclCreateTensor: storageDims have {elements} elements of {element.itemsize} bytes; "
            f"tensorData has {memory.size_bytes} bytes"
        )
    sizes = tuple(stride * element.itemsize for stride in strides)
    return np.ndarray(shape, element, memory.content, offset * element.itemsize, sizes)


def aclCreateIntArray(value: Iterable[int], size: int | None = None) -> aclIntArray:
    """A list of integers, the first ``size`` of ``value``; ``ArgumentError`` for anything else."""
    values = _counted("aclCreateIntArray", value, size)
    if not all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values):
        raise ArgumentError(f"aclCreateIntArray: {list(values)!r} must be integers")
    return aclIntArray(tuple(int(v) for v in values))


def aclCreateBoolArray(value: Iterable[bool], size: int | None = None) -> aclBoolArray:
    """A list of bools (or 0 and 1), the first ``size``; ``ArgumentError`` for anything else."""
    values = _counted("aclCreateBoolArray", value, size)
    if not all(isinstance(v, (bool, int, np.bool_)) and v in (0, 1) for v in values):
        raise ArgumentError(f"aclCreateBoolArray: {list(values)!r} must be True or False")
    return aclBoolArray(tuple(bool(v) for v in values))


def aclCreateScalar(value: Any, dataType: aclDataType) -> aclScalar:
    """A number of a type."""
    return aclScalar(_numpy(aclDataType(dataType).short_name).type(value))


@answering()
def aclDestroyTensor(tensor: aclTensor | None) -> int:
    """Give back a tensor, not its memory; the status."""
    return give_back("tensor", tensor)


@answering()
def aclDestroyIntArray(array: aclIntArray | None) -> int:
    """Give back a list; the status."""
    return give_back("array", array)


@answering()
def aclDestroyBoolArray(array: aclBoolArray | None) -> int:
    """Give back a list; the status."""
    return give_back("array", array)


@answering()
def aclDestroyScalar(scalar: aclScalar | None) -> int:
    """Give back a number; the status."""
    return give_back("scalar", scalar)


def _counted(what: str, value: Iterable[T], count: int | None) -> tuple[T, ...]:
    """The first ``count`` values of a list, as C reads them; all of them without a count."""
    values = tuple(value)
    if count is not None and not 0 <= count <= len(values):
        raise ArgumentError(f"{what}: the number is {count}, of {len(values)} values {values}")
    return values[:count]


def _sizes(name: str, value: Any, count: int | None, way_out: str = "") -> tuple[int, ...]:
    """Sizes or strides, ``count`` of them if that is said: integers of at least 0."""
    values = _counted(f"aclCreateTensor: {name}", () if value is None else value, count)
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in values):
        raise ArgumentError(
            f"aclCreateTensor: {name} is {values!r}; it must be integers >= 0{way_out}"
        )
    return tuple(int(n) for n in values)


def _short_name(name: Any) -> str:
    """A type's short name; one that npusim does not know keeps NumPy's, or its own."""
    if isinstance(name, aclDataType):
        return name.short_name
    try:
        return known_dtype(name).name
    except ArgumentError:
        return name if isinstance(name, str) else str(np.dtype(name))


def _numpy(name: str) -> np.dtype[Any]:
    """NumPy's type of a short name."""
    try:
        return known_dtype(name).numpy
    except ArgumentError:
        return np.dtype(name)
