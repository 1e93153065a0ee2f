# ruff: noqa: N802, N816 - functions carry the names of the C interface
"""The runtime of the C interface: initialisation, devices, streams and the text of errors.

What C keeps for a process is here kept for a process (``aclInit``), what it keeps for a thread
for a thread: its device and its last error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from threading import local
from typing import Any

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.call.options import Options
from npusim.compat.acl_codes import (
    ACL_ERROR_INVALID_PARAM,
    ACL_ERROR_REPEAT_FINALIZE,
    ACL_ERROR_REPEAT_INITIALIZE,
    ACL_ERROR_RT_CONTEXT_NULL,
    ACL_ERROR_RT_INVALID_DEVICEID,
    ACL_ERROR_RT_STREAM_CONTEXT,
    ACL_ERROR_UNINITIALIZE,
    ACL_SUCCESS,
)
from npusim.device.catalog import load_device
from npusim.device.spec import Device

#: What device numbers mean in a thread that has named no device.
USUAL_DEVICE = "ascend910b2"

#: Devices of the simulated host, all alike.
DEVICE_COUNT = 8


@dataclass
class Context:
    """The device calls are planned for, the keywords of ``npusim.call.Options``, and its number.

    ``over`` is the device's own context of one that ``aclrtCreateContext`` made; ``ended`` tells
    that it was given back.
    """

    device: Device
    options: tuple[tuple[str, Any], ...]
    index: int = 0
    ended: bool = field(default=False, compare=False)
    over: Context | None = field(default=None, compare=False, repr=False)

    @property
    def own(self) -> Context:
        """The device's own context, on which memory lies."""
        return self.over or self

    @property
    def lost(self) -> bool:
        """Whether it, or the device with all that was made on it, was given back."""
        return self.ended or self.own.ended

    @property
    def keywords(self) -> dict[str, Any]:
        """All keyword arguments of an operator."""
        return {"device": self.device, **dict(self.options)}

    @property
    def rules(self) -> str:
        """Which limits hold, one of ``npusim.limits.table.RULES``."""
        return str(dict(self.options).get("rules", "documented"))

    def __str__(self) -> str:
        return self.device.name + (f" (device {self.index})" if self.index else "")


aclrtContext = Context


class aclrtStream:  # noqa: N801 - the C interface's own name
    """A queue of a device; phase two runs in it, and has finished when the call returns.

    It unpacks as what ``aclrtCreateStream`` gives in C: ``status, stream = aclrtCreateStream()``.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.destroyed = False

    def __iter__(self) -> Iterator[Any]:
        return iter((ACL_SUCCESS, self))

    def __repr__(self) -> str:
        return f"<aclrtStream on {self.context}>"


@dataclass
class _Process:
    """What ``aclInit`` and ``aclFinalize`` have left."""

    initialised: bool = False
    finalised: bool = False


class _Thread(local):
    """What the interface remembers, for every thread apart."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self.chosen: Context | None = None  # by name: what device numbers mean from then on
        self.numbered: dict[int, Context] = {}
        self.message: str | None = None


_process = _Process()
_thread = _Thread()


def aclInit(configPath: str | None = None) -> int:
    """Start the interface, once for all threads; the status.

    A configuration file asks for dumps or profiles, which do not exist here: pass None.
    """
    if configPath:
        text = f"configPath is {configPath!r}; dumps and profiles do not exist here, pass None"
        return fail(ACL_ERROR_INVALID_PARAM, f"aclInit: {text}")
    if _process.initialised:
        return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit: called before; call aclFinalize first")
    _process.initialised, _process.finalised = True, False
    return ACL_SUCCESS


def aclFinalize() -> int:
    """End what ``aclInit`` started; the status."""
    if not _process.initialised:
        status = ACL_ERROR_REPEAT_FINALIZE if _process.finalised else ACL_ERROR_UNINITIALIZE
        return fail(status, "aclFinalize: there is nothing to end; call aclInit first")
    _process.initialised, _process.finalised = False, True
    return ACL_SUCCESS


def aclrtSetDevice(deviceId: int | np.integer[Any] | str | Device, **options: Any) -> int:
    """Choose what this thread's calls are planned for: a device and operator keywords.

    A number, as in C, is one of 8 devices of the kind that this thread named last, or else of
    ``ascend910b2``; it needs ``aclInit``, and takes no keywords. With a name, a YAML path or a
    ``Device`` ``options`` are those of ``npusim.call.Options``, such as ``cores`` and ``rules``.
    Raises ``ArgumentError`` for a name or a keyword that does not exist.
    """
    if isinstance(deviceId, (int, np.integer)):
        return _set_number("aclrtSetDevice", int(deviceId), options)
    loaded = load_device(deviceId)
    Options.of(aclrtSetDevice, options | {"device": loaded})
    _thread.context = _thread.chosen = Context(loaded, tuple(sorted(options.items())))
    _thread.numbered = {}
    return ACL_SUCCESS


def _set_number(function: str, index: int, options: dict[str, Any]) -> int:
    """``aclrtSetDevice`` as C has it, for ``function``."""
    if options:
        raise ArgumentError(
            f"aclrtSetDevice: a number takes no keywords, got {', '.join(options)}; name the "
            "device, as in aclrtSetDevice('ascend910b2', cores='0-3'), before the number"
        )
    if not _process.initialised:
        return fail(ACL_ERROR_UNINITIALIZE, f"{function}: call aclInit first")
    if not 0 <= index < DEVICE_COUNT:
        text = f"deviceId is {index}; the host has devices 0 to {DEVICE_COUNT - 1}"
        return fail(ACL_ERROR_RT_INVALID_DEVICEID, f"{function}: {text}")
    if index not in _thread.numbered:
        chosen = _thread.chosen or Context(load_device(USUAL_DEVICE), ())
        _thread.numbered[index] = Context(chosen.device, chosen.options, index)
    _thread.context = _thread.numbered[index]
    return ACL_SUCCESS


def aclrtResetDevice(deviceId: int) -> int:
    """Give back the device of this thread with its memory and streams; the status."""
    context = _thread.context
    if context is None:
        return no_device("aclrtResetDevice")
    if deviceId != context.index:
        text = f"deviceId is {deviceId}; this thread has device {context.index}"
        return fail(ACL_ERROR_RT_INVALID_DEVICEID, f"aclrtResetDevice: {text}")
    context.own.ended, _thread.context = True, None
    _thread.numbered.pop(context.index, None)
    return ACL_SUCCESS


def no_device(function: str) -> int:
    """The status of a call that needs a device in a thread that has none."""
    text = "this thread has no device; call aclrtSetDevice first"
    return fail(ACL_ERROR_RT_CONTEXT_NULL, f"{function}: {text}")


def aclrtCreateContext(deviceId: int) -> tuple[int, Context | None]:
    """(status, a context of a device), which becomes this thread's."""
    status = _set_number("aclrtCreateContext", int(deviceId), {})
    if status == ACL_SUCCESS and _thread.context is not None:
        _thread.context = replace(_thread.context, over=_thread.context)
        return ACL_SUCCESS, _thread.context
    return status, None


def aclrtSetCurrentContext(context: Context | None) -> int:
    """Let this thread's calls be those of ``context``, of whichever thread it is; the status."""
    if context is None or context.lost:
        text = "context is null" if context is None else "context was given back"
        return fail(ACL_ERROR_INVALID_PARAM, f"aclrtSetCurrentContext: {text}")
    _thread.context = context
    _thread.numbered[context.index] = context.own
    return ACL_SUCCESS


def aclrtGetCurrentContext() -> tuple[int, Context | None]:
    """(status, this thread's context)."""
    status = ACL_SUCCESS if _thread.context else no_device("aclrtGetCurrentContext")
    return status, _thread.context


def aclrtDestroyContext(context: Context | None) -> int:
    """Give back what ``aclrtCreateContext`` made, with its streams; the status."""
    if context is None or context.over is None or context.lost:
        text = "context is none of aclrtCreateContext, or was given back"
        return fail(ACL_ERROR_INVALID_PARAM, f"aclrtDestroyContext: {text}")
    context.ended = True
    if _thread.context is context:
        _thread.context = context.over
    return ACL_SUCCESS


def aclrtGetDeviceCount() -> tuple[int, int]:
    """(status, devices of the host)."""
    return ACL_SUCCESS, DEVICE_COUNT


def aclrtSynchronizeDevice() -> int:
    """Wait for this thread's device, where nothing is left to wait for; the status."""
    return ACL_SUCCESS if _thread.context else no_device("aclrtSynchronizeDevice")


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


def aclrtSynchronizeStream(stream: aclrtStream | None) -> int:
    """Wait for a stream (None: the default one), where nothing is left to wait for; the status."""
    return _refused("aclrtSynchronizeStream", stream)


def aclrtDestroyStream(stream: aclrtStream | None) -> int:
    """Give back a stream; the status."""
    if stream is None:
        return fail(ACL_ERROR_INVALID_PARAM, "aclrtDestroyStream: stream is null")
    status = _refused("aclrtDestroyStream", stream)
    stream.destroyed = True
    return status


def stream_fault(stream: aclrtStream) -> str | None:
    """Why a stream can no longer be used, None where it can."""
    if stream.destroyed:
        return "the stream was destroyed by aclrtDestroyStream"
    if stream.context.lost:
        reset = stream.context.own.ended
        return (
            "the device of the stream was reset by aclrtResetDevice"
            if reset
            else "the context of the stream was destroyed by aclrtDestroyContext"
        )
    return None


def _refused(function: str, stream: aclrtStream | None) -> int:
    """The status of a call that only needs a living stream."""
    text = None if stream is None else stream_fault(stream)
    if text is None:
        return ACL_SUCCESS
    return fail(ACL_ERROR_RT_STREAM_CONTEXT, f"{function}: {text}")


def aclGetRecentErrMsg() -> str | None:
    """The text of this thread's last error, once; None if there was none since the last query."""
    message, _thread.message = _thread.message, None
    return message


def current_context() -> Context | None:
    """The device of this thread, whichever its context; None before one was chosen."""
    return None if _thread.context is None else _thread.context.own


def fail(status: int, message: str) -> int:
    """Keep the text of an error for ``aclGetRecentErrMsg`` and return its status."""
    _thread.message = message
    return status
