# ruff: noqa: N801, N802 - classes and functions carry the names of the C interface
"""Tensors and lists of the C interface: created, read by the calls, destroyed.

Memory of the simulated devices and of the host stands before them: allocation and copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

from npusim.base.dtypes import dtype as known_dtype
from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div
from npusim.call.spec import Array, Spec, is_contiguous
from npusim.compat import acl_codes as codes
from npusim.compat.acl_codes import aclDataType, aclFormat, aclrtMemcpyKind, aclrtMemMallocPolicy
from npusim.compat.acl_runtime import (
    Context,
    Handle,
    Refused,
    aclrtStream,
    aclrtSynchronizeStream,
    answering,
    give_back,
)
from npusim.machine.numerics.executor import POISON


@dataclass(eq=False)
class DeviceMemory(Handle):
    """``size_bytes`` of memory on a simulated device, to which ``aclrtMalloc`` points in C.

    ``context`` is the device it lies on, None for memory that no device was chosen for.
    """

    size_bytes: int
    context: Context | None = None

    def __repr__(self) -> str:
        where = f" on {self.context}" if self.context is not None else ""
        return f"<DeviceMemory of {self.size_bytes} bytes{where}>"

    @cached_property
    def content(self) -> Array:
        """The bytes, poisoned until something is written; a workspace has no use for them."""
        return np.full(self.size_bytes, POISON, np.uint8)

    @property
    def fault(self) -> str:
        """The reason why it can no longer be used, "" where it can."""
        if self.gone:
            return self.gone
        if self.context is not None and self.context.lost:
            return "its memory was lost when aclrtResetDevice reset the device"
        return ""


@overload
def aclrtMalloc(size: int) -> DeviceMemory: ...


@overload
def aclrtMalloc(
    size: int, policy: aclrtMemMallocPolicy | int
) -> tuple[int, DeviceMemory | None]: ...


@answering(None)
def aclrtMalloc(
    size: int, policy: aclrtMemMallocPolicy | int | None = None
) -> DeviceMemory | tuple[int, DeviceMemory | None]:
    """``size`` bytes on this thread's device; with C's ``policy`` as (status, memory).

    Without ``policy`` a size may be 0, and ``ArgumentError`` is raised for a negative one.
    """
    if policy is None:
        if size < 0:
            raise ArgumentError(f"aclrtMalloc: size is {size}; it must be at least 0")
        return DeviceMemory(int(size), Context.of_thread_device())
    _require_size(size)
    return codes.ACL_SUCCESS, DeviceMemory(int(size), Context.of_thread().of_device)


def _require_size(size: int) -> None:
    if size < 1:
        raise Refused(codes.ACL_ERROR_INVALID_PARAM, f"size is {size}; it must be at least 1")


@answering()
def aclrtFree(devPtr: DeviceMemory | None) -> int:
    """Give memory back; the status."""
    gone = "its memory was freed by aclrtFree"
    status = give_back("devPtr", devPtr, gone, codes.ACL_ERROR_RT_PARAM_INVALID)
    vars(devPtr).pop("content", None)
    return status


@answering(None)
def aclrtMallocHost(size: int) -> tuple[int, Array | None]:
    """(status, ``size`` bytes of the host as a NumPy array)."""
    _require_size(size)
    return codes.ACL_SUCCESS, np.full(size, POISON, np.uint8)


@answering()
def aclrtFreeHost(hostPtr: Array | None) -> int:
    """Give back memory of the host, which Python keeps for as long as it is used; the status."""
    return codes.ACL_SUCCESS if hostPtr is not None else give_back("hostPtr", None)


@answering()
def aclrtMemcpy(dst: Any, destMax: int, src: Any, count: int, kind: aclrtMemcpyKind | int) -> int:
    """Copy ``count`` bytes from ``src`` to ``dst``, which has room for ``destMax``; the status.

    Memory of a device is what ``aclrtMalloc`` returned, memory of the host a contiguous NumPy
    array or any buffer. ``kind`` says on which side each of them lies.
    """
    for name, pointer in (("dst", dst), ("src", src)):
        if pointer is None:
            raise Refused(codes.ACL_ERROR_INVALID_PARAM, f"{name} is null")
    if kind not in list(aclrtMemcpyKind):
        kinds = ", ".join(kind.name for kind in aclrtMemcpyKind)
        raise _bad(f"kind is {kind!r}; it is one of {kinds}")
    source = _bytes("src", src, on_device=bool(kind & 2))
    target = _bytes("dst", dst, on_device=bool(kind & 1))
    if not target.flags.writeable:
        raise _bad("dst is read-only; pass a copy")
    if destMax > target.size:
        raise _bad(f"destMax is {destMax}; dst has {target.size} bytes")
    if count > destMax:
        raise _bad(f"count is {count}; destMax leaves room for {destMax} bytes")
    if not 0 <= count <= source.size:
        raise _bad(f"count is {count}; src has {source.size} bytes")
    target[:count] = source[:count]
    return codes.ACL_SUCCESS


def aclrtMemcpyAsync(
    dst: Any,
    destMax: int,
    src: Any,
    count: int,
    kind: aclrtMemcpyKind | int,
    stream: aclrtStream | None,
) -> int:
    """``aclrtMemcpy`` in a stream, where it has finished when the call returns; the status."""
    return aclrtSynchronizeStream(stream) or aclrtMemcpy(dst, destMax, src, count, kind)


def aclrtMemset(devPtr: Any, maxCount: int, value: int, count: int) -> int:
    """Set ``count`` bytes of a device, of the ``maxCount`` it has, to ``value``; the status."""
    kind = aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE
    return aclrtMemcpy(devPtr, maxCount, np.full(max(0, count), value & 255, np.uint8), count, kind)


def _bad(text: str) -> Refused:
    return Refused(codes.ACL_ERROR_RT_PARAM_INVALID, text)


def _bytes(name: str, value: Any, *, on_device: bool) -> Array:
    """Return one side of a copy as bytes that share its memory."""
    if isinstance(value, DeviceMemory) != on_device:
        wanted = "memory of aclrtMalloc" if on_device else "a NumPy array or a buffer"
        raise _bad(f"{name} is a {type(value).__name__}; kind makes it {wanted}")
    if isinstance(value, DeviceMemory):
        if value.fault:
            raise _bad(f"{name}: {value.fault}")
        return value.content
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(memoryview(value))
    except TypeError:
        what = type(value).__name__
        raise _bad(f"{name} is a {what}; pass a NumPy array or a buffer") from None
    if not array.flags.c_contiguous:
        raise _bad(f"{name} has gaps between its elements; pass a contiguous array")
    return array.reshape(-1).view(np.uint8)


# -- tensors and lists -----------------------------------------------------------------------------


T = TypeVar("T")

#: The format of a tensor whose creator names none, by rank.
_USUAL_FORMAT = {3: "NCL", 4: "NCHW", 5: "NCDHW"}


@dataclass(eq=False)
class aclTensor(Handle):
    """A tensor: shape, element type (a short name where npusim knows it), format, and its data.

    ``array`` is the caller's array or a view of ``memory``, read in phase two and, for outputs,
    written in place; None for a tensor without data, which makes the call timing-only.
    ``strides`` are the elements between neighbours along each axis.
    """

    shape: tuple[int, ...]
    dtype: str
    format: str
    array: Array | None = field(repr=False)
    memory: DeviceMemory | None = None
    strides: tuple[int, ...] = ()

    @property
    def contiguous(self) -> bool:
        """True if it lies row-major without gaps."""
        return is_contiguous(self.shape, self.strides)

    @property
    def transposed(self) -> bool:
        """True if it lies contiguous with its last two axes swapped."""
        swapped = _contiguous((*self.shape[:-2], *self.shape[:-3:-1]))
        return not self.contiguous and self.strides == (*swapped[:-2], *swapped[:-3:-1])


@dataclass
class aclIntArray(Handle):
    """A list of int64 values."""

    values: tuple[int, ...]


@dataclass
class aclBoolArray(Handle):
    """A list of bools."""

    values: tuple[bool, ...]


#: Lists that calls take: the interface's, or in the short form any; None for a null pointer.
IntList: TypeAlias = aclIntArray | Sequence[int] | None
BoolList: TypeAlias = aclBoolArray | Sequence[bool] | None


@dataclass
class aclScalar(Handle):
    """One number."""

    value: np.generic


@overload
def aclCreateTensor(
    array_or_shape: Array | Spec | Sequence[int],
    dtype: Any = None,
    format: aclFormat | str | None = None,
) -> aclTensor: ...


@overload
def aclCreateTensor(
    viewDims: Sequence[int],
    viewDimsNum: int,
    dataType: aclDataType | int,
    stride: Sequence[int] | None,
    offset: int,
    format: aclFormat | int,
    storageDims: Sequence[int],
    storageDimsNum: int,
    tensorData: DeviceMemory | None,
) -> aclTensor: ...


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
    """Create a tensor in the short form, over an array or of a shape alone."""
    if isinstance(array_or_shape, np.ndarray):
        return _of_array(array_or_shape, dtype, format)
    spec = array_or_shape if isinstance(array_or_shape, Spec) else None
    sizes = array_or_shape if spec is None else spec.shape
    shape = _sizes("shape", sizes, None, ", or pass a NumPy array")
    if dtype is None and spec is None:
        raise ArgumentError(
            f"aclCreateTensor: a tensor of shape {shape} without an array needs a dtype"
        )
    if spec is None:
        return aclTensor(
            shape, _short_name(dtype), _format_name(format, shape), None, strides=_contiguous(shape)
        )
    strides = _contiguous(shape) if spec.strides is None else spec.strides
    name = _short_name(spec.dtype)
    return aclTensor(shape, name, _format_name(format, shape), None, strides=strides)


def _of_array(array: Array, dtype: Any, format: aclFormat | str | None) -> aclTensor:
    """Create a tensor over the caller's array; ``dtype`` is None or the array's own."""
    shape = tuple(array.shape)
    name = _short_name(array.dtype)
    if dtype is not None and _short_name(dtype) != name:
        raise ArgumentError(
            f"aclCreateTensor: dtype is {_short_name(dtype)}, the array's is {name}; leave "
            "dtype out or convert the array"
        )
    return aclTensor(shape, name, _format_name(format, shape), array, strides=_strides_of(array))


def _format_name(format: aclFormat | str | None, shape: Sequence[int]) -> str:
    """The name of a format; of None the usual one of the shape's rank."""
    if isinstance(format, aclFormat):
        return format.short_name
    return format or _USUAL_FORMAT.get(len(shape), "ND")


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
    """Create a tensor in C's form, over memory of ``aclrtMalloc``."""
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
        array = _view(tensorData, name, shape, strides, offset, prod(storage))
    return aclTensor(shape, name, aclFormat(format).short_name, array, tensorData, strides)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _strides_of(array: Array) -> tuple[int, ...]:
    """Strides of an array in elements, whole ones; an axis that runs backwards counts as forwards.

    The interface knows no negative strides.
    """
    return tuple(ceil_div(abs(step), array.itemsize) for step in array.strides)


def _view(
    memory: DeviceMemory,
    name: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    elements: int,
) -> Array:
    """The elements of a tensor in device memory, as an array that shares it.

    ``strides`` and ``offset`` count elements; ``elements`` are those of the storage.
    """
    if not isinstance(memory, DeviceMemory):
        raise ArgumentError(
            f"aclCreateTensor: tensorData is a {type(memory).__name__}; pass memory of aclrtMalloc "
            "(aclrtMemcpy fills it), or the array alone: aclCreateTensor(array)"
        )
    if memory.fault:
        raise ArgumentError(f"aclCreateTensor: tensorData: {memory.fault}")
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


def _counted(list_name: str, value: Iterable[T], count: int | None) -> tuple[T, ...]:
    """The first ``count`` values of a list, as C reads them; all of them without a count."""
    values = tuple(value)
    if count is not None and not 0 <= count <= len(values):
        raise ArgumentError(f"{list_name}: the number is {count}, of {len(values)} values {values}")
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
