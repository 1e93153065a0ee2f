# ruff: noqa: N801, N802, N816 - classes and functions carry the names of the C interface
"""The runtime of the C interface: devices, contexts and streams, as handles with a status.

What C keeps for a process is here kept for a process (``aclInit``), what it keeps for a thread
for a thread: its device and its last error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from threading import local
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import Struct

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.options import Options
from npusim.compat import acl_codes as codes
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device

#: What device numbers mean in a thread that has named no device.
USUAL_DEVICE = "ascend910b2"

#: Devices of the simulated host, all alike.
DEVICE_COUNT = 8

F = TypeVar("F", bound=Callable[..., Any])


# -- statuses ------------------------------------------------------------------------------


class Refused(Exception):  # noqa: N818 - no error of Python's: C returns a status
    """A call that returns ``status``, with a text for ``aclGetRecentErrMsg``."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def answering(*outputs: Any) -> Callable[[F], F]:
    """Let a function that refuses return its status, and ``outputs`` behind it."""

    def answers(function: F) -> F:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except Refused as error:
                note_refusal(function.__name__, error)
                return (error.status, *outputs) if outputs else error.status

        return cast(F, call)

    return answers


def note_refusal(function: str, error: Refused) -> None:
    """Keep the text of a refusal for this thread's next ``aclGetRecentErrMsg``."""
    _thread.message = f"{function}: {error}"


def aclGetRecentErrMsg() -> str | None:
    """The text of this thread's last error, once; None if there was none since the last query."""
    message, _thread.message = _thread.message, None
    return message


# -- handles -------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Handle:
    """An object that a create function returns and a destroy function takes away.

    ``gone`` says how it was given back, "" while it was not.
    """

    gone: str = ""

    @property
    def fault(self) -> str:
        """The reason why it can no longer be used, "" where it can."""
        return self.gone


def give_back(
    name: str,
    handle: Handle | None,
    gone: str = "it was destroyed before",
    status: int = codes.ACL_ERROR_INVALID_PARAM,
) -> int:
    """Take away the handle that a function calls ``name``; ``status`` if it cannot be used."""
    if handle is None:
        raise Refused(codes.ACL_ERROR_INVALID_PARAM, f"{name} is null")
    fault, handle.gone = handle.fault, handle.gone or gone
    if fault:
        raise Refused(status, f"{name}: {fault}")
    return codes.ACL_SUCCESS


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
    def of_device(self) -> Context:
        """The device's own context, on which memory lies."""
        return self.over or self

    @property
    def lost(self) -> bool:
        """True if it, or the device with all that was made on it, was given back."""
        return self.ended or self.of_device.ended

    @property
    def keywords(self) -> dict[str, Any]:
        """All keyword arguments of an operator."""
        return {"device": self.device, **dict(self.options)}

    def __str__(self) -> str:
        return self.device.name + (f" (device {self.index})" if self.index else "")

    @staticmethod
    def of_thread_device() -> Context | None:
        """The own context of this thread's device; None before a device was chosen."""
        return None if _thread.context is None else _thread.context.of_device

    @staticmethod
    def of_thread() -> Context:
        """The context of this thread; ``Refused`` where it has none."""
        if _thread.context is None:
            text = "this thread has no device; call aclrtSetDevice first"
            raise Refused(codes.ACL_ERROR_RT_CONTEXT_NULL, text)
        return _thread.context


aclrtContext = Context


@dataclass(eq=False)
class aclrtStream(Handle):
    """A queue of a device; phase two runs in it, and has finished when the call returns.

    It unpacks as what ``aclrtCreateStream`` gives in C: ``status, stream = aclrtCreateStream()``.
    """

    context: Context

    def __iter__(self) -> Iterator[Any]:
        return iter((codes.ACL_SUCCESS, self))

    def __repr__(self) -> str:
        return f"<aclrtStream on {self.context}>"

    @property
    def fault(self) -> str:
        """The reason why it can no longer be used, "" where it can."""
        if self.gone:
            return self.gone
        if self.context.of_device.ended:
            return "the device of the stream was reset by aclrtResetDevice"
        if self.context.lost:
            return "the context of the stream was destroyed by aclrtDestroyContext"
        return ""


# -- the process and its threads -----------------------------------------------------------


class _Process(Struct):
    """The state of the interface, which ``aclInit`` and ``aclFinalize`` change.

    ``idle`` is the status of ending it, 0 while it runs.
    """

    idle: int = codes.ACL_ERROR_UNINITIALIZE


class _Thread(local):
    """The memory of the interface, for every thread apart.

    ``chosen`` is the context that was named last, whose device numbers mean from then on;
    ``numbered`` are the contexts by device number.
    """

    def __init__(self) -> None:
        self.context: Context | None = None
        self.chosen: Context | None = None
        self.numbered: dict[int, Context] = {}
        self.message: str | None = None


_process = _Process()
_thread = _Thread()


@answering()
def aclInit(configPath: str | None = None) -> int:
    """Start the interface, once for all threads; the status.

    A configuration file asks for dumps or profiles, which do not exist here: pass None.
    """
    if configPath:
        text = f"configPath is {configPath!r}; dumps and profiles do not exist here, pass None"
        raise Refused(codes.ACL_ERROR_INVALID_PARAM, text)
    if not _process.idle:
        raise Refused(codes.ACL_ERROR_REPEAT_INITIALIZE, "called before; call aclFinalize first")
    _process.idle = 0
    return codes.ACL_SUCCESS


@answering()
def aclFinalize() -> int:
    """End what ``aclInit`` started; the status."""
    if _process.idle:
        raise Refused(_process.idle, "there is nothing to end; call aclInit first")
    _process.idle = codes.ACL_ERROR_REPEAT_FINALIZE
    return codes.ACL_SUCCESS


@answering()
def aclrtSetDevice(deviceId: int | np.integer[Any] | str | Device, **options: Any) -> int:
    """Choose the device and the operator keywords that this thread's calls are planned for.

    A number, as in C, is one of 8 devices of the kind that this thread named last, or else of
    ``ascend910b2``; it needs ``aclInit``, and takes no keywords. With a name, a YAML path or a
    ``Device`` ``options`` are those of ``npusim.call.Options``, such as ``cores`` and ``rules``.
    Raises ``ArgumentError`` for a name or a keyword that does not exist.
    """
    if isinstance(deviceId, (int, np.integer)):
        if options:
            raise ArgumentError(
                f"aclrtSetDevice: a number takes no keywords, got {', '.join(options)}; name the "
                "device, as in aclrtSetDevice('ascend910b2', cores='0-3'), before the number"
            )
        _thread.context = _numbered(int(deviceId))
        return codes.ACL_SUCCESS
    loaded = load_device(deviceId)
    Options.of(aclrtSetDevice, options | {"device": loaded}, without=("layouts",))
    _thread.context = _thread.chosen = Context(loaded, tuple(sorted(options.items())))
    _thread.numbered = {}
    return codes.ACL_SUCCESS


def _numbered(index: int) -> Context:
    """The context of a device by its number."""
    if _process.idle:
        raise Refused(codes.ACL_ERROR_UNINITIALIZE, "call aclInit first")
    if not 0 <= index < DEVICE_COUNT:
        text = f"deviceId is {index}; the host has devices 0 to {DEVICE_COUNT - 1}"
        raise Refused(codes.ACL_ERROR_RT_INVALID_DEVICEID, text)
    if index not in _thread.numbered:
        chosen = _thread.chosen or Context(load_device(USUAL_DEVICE), ())
        _thread.numbered[index] = Context(chosen.device, chosen.options, index)
    return _thread.numbered[index]


@answering()
def aclrtResetDevice(deviceId: int) -> int:
    """Give back the device of this thread with its memory and streams; the status."""
    context = Context.of_thread()
    if deviceId != context.index:
        text = f"deviceId is {deviceId}; this thread has device {context.index}"
        raise Refused(codes.ACL_ERROR_RT_INVALID_DEVICEID, text)
    context.of_device.ended = True
    _thread.context = None
    _thread.numbered.pop(context.index, None)
    return codes.ACL_SUCCESS


@answering(None)
def aclrtCreateContext(deviceId: int) -> tuple[int, Context | None]:
    """(status, a context of a device), which becomes this thread's."""
    of_device = _numbered(int(deviceId))
    _thread.context = replace(of_device, over=of_device)
    return codes.ACL_SUCCESS, _thread.context


@answering()
def aclrtSetCurrentContext(context: Context | None) -> int:
    """Let this thread's calls be those of ``context``, of whichever thread it is; the status."""
    if context is None or context.lost:
        text = "context is null" if context is None else "context was given back"
        raise Refused(codes.ACL_ERROR_INVALID_PARAM, text)
    _thread.context = context
    _thread.numbered[context.index] = context.of_device
    return codes.ACL_SUCCESS


@answering(None)
def aclrtGetCurrentContext() -> tuple[int, Context | None]:
    """(status, this thread's context)."""
    return codes.ACL_SUCCESS, Context.of_thread()


@answering()
def aclrtDestroyContext(context: Context | None) -> int:
    """Give back what ``aclrtCreateContext`` made, with its streams; the status."""
    if context is None or context.over is None or context.lost:
        text = "context is none of aclrtCreateContext, or was given back"
        raise Refused(codes.ACL_ERROR_INVALID_PARAM, text)
    context.ended = True
    if _thread.context is context:
        _thread.context = context.over
    return codes.ACL_SUCCESS


def aclrtGetDeviceCount() -> tuple[int, int]:
    """(status, devices of the host)."""
    return codes.ACL_SUCCESS, DEVICE_COUNT


@answering()
def aclrtSynchronizeDevice() -> int:
    """Wait for this thread's device, where nothing is left to wait for; the status."""
    return codes.ACL_SUCCESS if Context.of_thread() else codes.ACL_ERROR_RT_CONTEXT_NULL


# -- streams -------------------------------------------------------------------------------


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


@answering()
def aclrtSynchronizeStream(stream: aclrtStream | None) -> int:
    """Wait for a stream (None: the default one), where nothing is left to wait for; the status."""
    if stream is not None and stream.fault:
        raise Refused(codes.ACL_ERROR_RT_STREAM_CONTEXT, stream.fault)
    return codes.ACL_SUCCESS


@answering()
def aclrtDestroyStream(stream: aclrtStream | None) -> int:
    """Give back a stream; the status."""
    gone = "the stream was destroyed by aclrtDestroyStream"
    return give_back("stream", stream, gone, codes.ACL_ERROR_RT_STREAM_CONTEXT)
