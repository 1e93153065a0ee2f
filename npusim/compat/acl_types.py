# ruff: noqa: N802 - functions carry the names of the C interface
"""Tensors, lists, streams, memory, status codes and error text of the C interface, in Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import local
from typing import Any

import numpy as np

from npusim.call.options import Options
from npusim.call.spec import Array, Spec
from npusim.device.catalog import load_device
from npusim.device.spec import Device
from npusim.dtypes import dtype as known_dtype
from npusim.errors import ArgumentError

ACL_SUCCESS = 0
ACLNN_SUCCESS = 0
ACLNN_ERR_PARAM_NULLPTR = 161001
ACLNN_ERR_PARAM_INVALID = 161002
ACLNN_ERR_INNER_NULLPTR = 561103
ACL_ERROR_RT_CONTEXT_NULL = 107002
ACL_ERROR_RT_STREAM_CONTEXT = 107003

ACL_FLOAT, ACL_FLOAT16, ACL_BF16, ACL_INT8, ACL_INT32 = "fp32", "fp16", "bf16", "int8", "int32"

ACL_FORMAT_ND, ACL_FORMAT_NCL = "ND", "NCL"
ACL_FORMAT_NCHW, ACL_FORMAT_NHWC = "NCHW", "NHWC"
ACL_FORMAT_NCDHW, ACL_FORMAT_NDHWC = "NCDHW", "NDHWC"

#: The format of a tensor whose creator names none, by rank.
_USUAL_FORMAT = {3: ACL_FORMAT_NCL, 4: ACL_FORMAT_NCHW, 5: ACL_FORMAT_NCDHW}


@dataclass(frozen=True, eq=False)
class aclTensor:  # noqa: N801 - the C interface's own name
    """A tensor: shape, element type (a short name where npusim knows it), format, and its data.

    ``array`` is the caller's own, read in phase two and, for outputs, written in place; None for
    a tensor made from a shape, which makes the call timing-only.
    """

    shape: tuple[int, ...]
    dtype: str
    format: str
    array: Array | None


@dataclass(frozen=True)
class aclIntArray:  # noqa: N801
    """A list of int64 values."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class aclBoolArray:  # noqa: N801
    """A list of bools."""

    values: tuple[bool, ...]


@dataclass(frozen=True)
class DeviceMemory:
    """``size_bytes`` of memory on the simulated device; it has a size and no content."""

    size_bytes: int


@dataclass(frozen=True)
class Context:
    """The device calls are planned for, and the keywords of ``npusim.call.Options``."""

    device: Device
    options: tuple[tuple[str, Any], ...]

    @property
    def keywords(self) -> dict[str, Any]:
        """All keyword arguments of an operator."""
        return {"device": self.device, **dict(self.options)}

    @property
    def rules(self) -> str:
        """Which limits hold, "documented" or "hardware"."""
        return str(dict(self.options).get("rules", "documented"))


@dataclass(frozen=True, eq=False)
class aclrtStream:  # noqa: N801
    """A queue of a device; phase two runs in it, and has finished when the call returns."""

    context: Context


class _Thread(local):
    """What the interface remembers, for every thread apart: its device and its last error."""

    context: Context | None = None
    message: str | None = None


_thread = _Thread()


def aclCreateTensor(array_or_shape: Any, dtype: Any = None, format: str | None = None) -> aclTensor:
    """A tensor over an array, which stays the caller's, or of a shape for timing only.

    ``dtype`` is one of ``ACL_FLOAT`` and kin or any spelling of a type; with an array it must be
    the array's own and may be left out. ``format`` is one of ``ACL_FORMAT_ND`` and kin; left out,
    ranks 3 to 5 are NCL, NCHW and NCDHW, others ND.
    """
    if isinstance(array_or_shape, np.ndarray):
        array, shape = array_or_shape, tuple(array_or_shape.shape)
        kind = _kind(array.dtype)
        if dtype is not None and _kind(dtype) != kind:
            raise ArgumentError(
                f"aclCreateTensor: dtype is {_kind(dtype)}, the array's is {kind}; leave dtype out "
                "or convert the array"
            )
    else:
        array, shape = None, _shape(array_or_shape)
        if dtype is None and not isinstance(array_or_shape, Spec):
            raise ArgumentError(
                f"aclCreateTensor: a tensor of shape {shape} without an array needs a dtype"
            )
        kind = _kind(array_or_shape.dtype if isinstance(array_or_shape, Spec) else dtype)
    return aclTensor(shape, kind, format or _USUAL_FORMAT.get(len(shape), ACL_FORMAT_ND), array)


def aclCreateIntArray(value: Iterable[int]) -> aclIntArray:
    """A list of integers; ``ArgumentError`` for anything else."""
    values = tuple(value)
    if not all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values):
        raise ArgumentError(f"aclCreateIntArray: {list(values)!r} must be integers")
    return aclIntArray(tuple(int(v) for v in values))


def aclCreateBoolArray(value: Iterable[bool]) -> aclBoolArray:
    """A list of bools (or 0 and 1); ``ArgumentError`` for anything else."""
    values = tuple(value)
    if not all(isinstance(v, (bool, int, np.bool_)) and v in (0, 1) for v in values):
        raise ArgumentError(f"aclCreateBoolArray: {list(values)!r} must be True or False")
    return aclBoolArray(tuple(bool(v) for v in values))


def aclrtSetDevice(device: str | Device, **options: Any) -> int:
    """Choose what this thread's calls are planned for: a device and operator keywords.

    ``options`` are those of ``npusim.call.Options``, such as ``cores`` and ``rules``. Raises
    ``ArgumentError`` for a device or a keyword that does not exist.
    """
    loaded = load_device(device)
    Options.of(aclrtSetDevice, options | {"device": loaded})
    _thread.context = Context(loaded, tuple(sorted(options.items())))
    return ACL_SUCCESS


def aclrtCreateStream(device: str | Device | None = None, **options: Any) -> aclrtStream:
    """A stream of ``device``, which becomes this thread's; without one, of the thread's device.

    ``options`` are those of ``aclrtSetDevice``. Raises ``ArgumentError`` where there is no device.
    """
    if device is not None:
        aclrtSetDevice(device, **options)
    context = _thread.context
    if context is None or (device is None and options):
        raise ArgumentError(
            "aclrtCreateStream: no device is named; write aclrtCreateStream(device='ascend910b2'), "
            "or call aclrtSetDevice first and give it the keywords"
        )
    return aclrtStream(context)


def aclrtMalloc(size: int) -> DeviceMemory:
    """``size`` bytes on the device, for a workspace; ``ArgumentError`` for a negative size."""
    if size < 0:
        raise ArgumentError(f"aclrtMalloc: size is {size}; it must be at least 0")
    return DeviceMemory(int(size))


def aclGetRecentErrMsg() -> str | None:
    """The text of this thread's last error, once; None if there was none since the last query."""
    message, _thread.message = _thread.message, None
    return message


def current_context() -> Context | None:
    """The device of this thread, None before one was chosen."""
    return _thread.context


def fail(status: int, message: str) -> int:
    """Keep the text of an error for ``aclGetRecentErrMsg`` and return its status."""
    _thread.message = message
    return status


def _kind(name: Any) -> str:
    """A type's short name; one that npusim does not know keeps NumPy's, or its own."""
    try:
        return known_dtype(name).name
    except ArgumentError:
        return name if isinstance(name, str) else str(np.dtype(name))


def _shape(given: Any) -> tuple[int, ...]:
    """A shape as ints of at least 0."""
    sizes = tuple(given.shape if isinstance(given, Spec) else given)
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in sizes):
        raise ArgumentError(
            f"aclCreateTensor: shape is {given!r}; it must be integers >= 0, or pass a NumPy array"
        )
    return tuple(int(n) for n in sizes)
