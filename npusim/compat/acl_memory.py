# ruff: noqa: N802 - functions carry the names of the C interface
"""Memory of the simulated devices: allocation, copies, and what may no longer be used."""

from __future__ import annotations

from functools import cached_property
from typing import Any, overload

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.call.spec import Array
from npusim.compat.acl_codes import (
    ACL_ERROR_INVALID_PARAM,
    ACL_ERROR_RT_PARAM_INVALID,
    ACL_SUCCESS,
    aclrtMemcpyKind,
    aclrtMemMallocPolicy,
)
from npusim.compat.acl_runtime import (
    Context,
    aclrtStream,
    aclrtSynchronizeStream,
    current_context,
    fail,
    no_device,
)
from npusim.numerics.executor import POISON

#: Which sides of a copy are memory of a device.
_ON_DEVICE = {
    aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_HOST: (False, False),
    aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE: (False, True),
    aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST: (True, False),
    aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_DEVICE: (True, True),
}


class DeviceMemory:
    """``size_bytes`` of memory on a simulated device: what ``aclrtMalloc`` points to in C.

    ``context`` is the device it lies on, None for memory that no device was chosen for.
    """

    def __init__(self, size_bytes: int, context: Context | None = None) -> None:
        self.size_bytes, self.context = size_bytes, context
        self.freed = False

    def __repr__(self) -> str:
        where = f" on {self.context}" if self.context is not None else ""
        return f"<DeviceMemory of {self.size_bytes} bytes{where}>"

    @cached_property
    def content(self) -> Array:
        """The bytes, poisoned until something is written; a workspace has no use for them."""
        return np.full(self.size_bytes, POISON, np.uint8)

    @property
    def fault(self) -> str | None:
        """Why it can no longer be used, None where it can."""
        if self.freed:
            return "its memory was freed by aclrtFree"
        if self.context is not None and self.context.lost:
            return "its memory was lost when aclrtResetDevice reset the device"
        return None


@overload
def aclrtMalloc(size: int) -> DeviceMemory: ...


@overload
def aclrtMalloc(
    size: int, policy: aclrtMemMallocPolicy | int
) -> tuple[int, DeviceMemory | None]: ...


def aclrtMalloc(
    size: int, policy: aclrtMemMallocPolicy | int | None = None
) -> DeviceMemory | tuple[int, DeviceMemory | None]:
    """``size`` bytes on this thread's device; with C's ``policy`` as (status, memory).

    Without ``policy`` a size may be 0, and ``ArgumentError`` is raised for a negative one.
    """
    if policy is None:
        if size < 0:
            raise ArgumentError(f"aclrtMalloc: size is {size}; it must be at least 0")
        return DeviceMemory(int(size), current_context())
    if size < 1:
        text = f"aclrtMalloc: size is {size}; it must be at least 1"
        return fail(ACL_ERROR_INVALID_PARAM, text), None
    if current_context() is None:
        return no_device("aclrtMalloc"), None
    return ACL_SUCCESS, DeviceMemory(int(size), current_context())


def aclrtFree(devPtr: DeviceMemory | None) -> int:
    """Give memory back; the status."""
    if devPtr is None:
        return fail(ACL_ERROR_INVALID_PARAM, "aclrtFree: devPtr is null")
    if devPtr.fault is not None:
        return fail(ACL_ERROR_RT_PARAM_INVALID, f"aclrtFree: devPtr: {devPtr.fault}")
    devPtr.freed = True
    devPtr.__dict__.pop("content", None)
    return ACL_SUCCESS


def aclrtMemcpy(dst: Any, destMax: int, src: Any, count: int, kind: aclrtMemcpyKind | int) -> int:
    """Copy ``count`` bytes from ``src`` to ``dst``, which has room for ``destMax``; the status.

    Memory of a device is what ``aclrtMalloc`` returned, memory of the host a contiguous NumPy
    array or any buffer. ``kind`` says on which side each of them lies.
    """
    for name, pointer in (("dst", dst), ("src", src)):
        if pointer is None:
            return fail(ACL_ERROR_INVALID_PARAM, f"aclrtMemcpy: {name} is null")
    try:
        target, source = _copied(dst, destMax, src, count, kind)
    except ArgumentError as error:
        return fail(ACL_ERROR_RT_PARAM_INVALID, f"aclrtMemcpy: {error}")
    target[:] = source
    return ACL_SUCCESS


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


def aclrtMallocHost(size: int) -> tuple[int, Array | None]:
    """(status, ``size`` bytes of the host as a NumPy array)."""
    if size < 1:
        text = f"aclrtMallocHost: size is {size}; it must be at least 1"
        return fail(ACL_ERROR_INVALID_PARAM, text), None
    return ACL_SUCCESS, np.full(size, POISON, np.uint8)


def aclrtFreeHost(hostPtr: Array | None) -> int:
    """Give back memory of the host, which Python keeps for as long as it is used; the status."""
    if hostPtr is None:
        return fail(ACL_ERROR_INVALID_PARAM, "aclrtFreeHost: hostPtr is null")
    return ACL_SUCCESS


def _copied(
    dst: Any, destMax: int, src: Any, count: int, kind: aclrtMemcpyKind | int
) -> tuple[Array, Array]:
    """The bytes a copy writes and those it reads; ``ArgumentError`` where there are too few."""
    try:
        sides = _ON_DEVICE[aclrtMemcpyKind(kind)]
    except ValueError:
        known = ", ".join(k.name for k in aclrtMemcpyKind)
        raise ArgumentError(f"kind is {kind!r}; it is one of {known}") from None
    source = _bytes("src", src, on_device=sides[0])
    target = _bytes("dst", dst, on_device=sides[1])
    if not target.flags.writeable:
        raise ArgumentError("dst is read-only; pass a copy")
    if destMax > target.size:
        raise ArgumentError(f"destMax is {destMax}; dst has {target.size} bytes")
    if count > destMax:
        raise ArgumentError(f"count is {count}; destMax leaves room for {destMax} bytes")
    if not 0 <= count <= source.size:
        raise ArgumentError(f"count is {count}; src has {source.size} bytes")
    return target[:count], source[:count]


def _bytes(name: str, value: Any, *, on_device: bool) -> Array:
    """One side of a copy as bytes that share its memory."""
    if isinstance(value, DeviceMemory) != on_device:
        wanted = "memory of aclrtMalloc" if on_device else "a NumPy array or a buffer"
        raise ArgumentError(f"{name} is a {type(value).__name__}; kind makes it {wanted}")
    if isinstance(value, DeviceMemory):
        if value.fault is not None:
            raise ArgumentError(f"{name}: {value.fault}")
        return value.content
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(memoryview(value))
    except TypeError:
        what = type(value).__name__
        raise ArgumentError(f"{name} is a {what}; pass a NumPy array or a buffer") from None
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{name} has gaps between its elements; pass a contiguous array")
    return array.reshape(-1).view(np.uint8)
