"""Functions, data, answers and errors as bytes, which one process sends to another.

What is sent is pickled in the thread that sends it, before anything else happens to the objects:
objects that fill their caches meanwhile, or tables that grow, would change while they are being
pickled.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, cast

from npusim.base.errors import NpusimError, TaskError, as_npusim_error


def packed(content: object, code: Collection[ModuleType] = ()) -> bytes:
    """Bytes of a function or of data, to be sent to a process.

    What the caller's script and the modules in ``code`` define is in them as code. Raises
    ``TaskError`` for what cannot be pickled.
    """
    import cloudpickle  # noqa: PLC0415 - most calls start no process

    with ExitStack() as registered:
        for module in code:
            cloudpickle.register_pickle_by_value(module)
            registered.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return cast(bytes, cloudpickle.dumps(content))
        except Exception as error:  # what reading an attribute or an own __reduce__ raises
            raise TaskError(
                f"it cannot be sent from one process to another: {type(error).__name__}: {error}; "
                "one process (jobs=1) needs no sending"
            ) from error


class Work(NamedTuple):
    """A function as it is sent, and large objects that its answers have in common.

    An answer has the places of the ``shared`` objects in it, not the objects themselves.
    """

    function: Callable[[Any], Any]
    shared: Sequence[object] = ()


def answered(work: bytes, content: bytes, begin: bytes = b"") -> bytes:
    """In another process: the answer of packed ``Work`` to a packed item, or its failure.

    The function packed as ``begin`` is called before the first of them, with nothing.
    """
    try:
        if begin:
            _call(begin)
        function, shared = _read(work)
        return _packed_answer(function(pickle.loads(content)), shared)
    except BaseException as error:  # whatever it is, the process that waits must know of it
        return _Failure.of(error)


def unpacked(answer: bytes, shared: Sequence[object] = ()) -> Any:
    """The content of an answer to ``Work``; raises the ``NpusimError`` of a failure."""
    token = _shared.set(shared)
    try:
        content = pickle.loads(answer)
    finally:
        _shared.reset(token)
    if isinstance(content, _Failure):
        raise content.error from _RemoteError(content.traceback)
    return content


class _Failure(NamedTuple):
    """The error a task raised in its process, and the traceback there as text."""

    error: NpusimError
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> bytes:
        """The bytes of a failure; an error that cannot be pickled is told by its text."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        converted = as_npusim_error(error)
        try:
            return packed(cls(converted, text))
        except TaskError:
            without_data = TaskError(str(converted))
            without_data.task = converted.task
            return packed(cls(without_data, text))


class _RemoteError(Exception):
    """The cause of an error that another process raised: its traceback there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


#: The shared objects of the answer that is being read.
_shared: ContextVar[Sequence[object]] = ContextVar("shared", default=())


def _shared_object(place: int) -> object:
    return _shared.get()[place]


def _packed_answer(answer: object, shared: Sequence[object]) -> bytes:
    """Bytes of an answer; those of npusim's own classes are made three times as fast by pickle."""
    places = {id(value): place for place, value in enumerate(shared)}

    def reduced(value: object) -> Any:
        place = places.get(id(value))
        if place is None:
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return _shared_object, (place,)

    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table | {type(value): reduced for value in shared}
    try:
        pickler.dump(answer)
    except Exception:  # a class that came here as code
        return packed(answer)
    return buffer.getvalue()


@lru_cache(maxsize=1)
def _read(work: bytes) -> Work:
    """A function, read once for all items that it is sent with."""
    return cast(Work, pickle.loads(work))


@lru_cache(maxsize=1)
def _call(code: bytes) -> None:
    """Call a function that takes nothing, once."""
    pickle.loads(code)()
