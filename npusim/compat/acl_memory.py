# ruff: noqa: N802 - functions carry the names of the C interface
"""Memory of the simulated devices and of the host: allocation and copies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.call.spec import Array
from npusim.compat import acl_codes as codes
from npusim.compat.acl_codes import aclrtMemcpyKind, aclrtMemMallocPolicy
from npusim.compat.acl_runtime import (
    Context,
    Handle,
    Refused,
    aclrtStream,
    aclrtSynchronizeStream,
    answering,
    give_back,
)
from npusim.numerics.executor import POISON


@dataclass(eq=False)
class DeviceMemory(Handle):
    """``size_bytes`` of memory on a simulated device: what ``aclrtMalloc`` points to in C.

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
        """Why it can no longer be used, "" where it can."""
        lost = self.context is not None and self.context.lost
        return self.gone or "its memory was lost when aclrtResetDevice reset the device" * lost


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
        return DeviceMemory(int(size), Context.of_device())
    _require_size(size)
    return codes.ACL_SUCCESS, DeviceMemory(int(size), Context.of_thread().own)


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
        known = ", ".join(k.name for k in aclrtMemcpyKind)
        raise _bad(f"kind is {kind!r}; it is one of {known}")
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
    """One side of a copy as bytes that share its memory."""
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
