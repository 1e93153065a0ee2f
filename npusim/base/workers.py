"""A function for many things at once, in processes that share nothing.

What is sent to a process is pickled in the thread that sends it, before anything else happens to
the objects. A pool pickles in a thread of its own, while the caller goes on: objects that fill
their caches meanwhile, or tables that grow, then change while they are being pickled. Answers and
errors come back as bytes too, and are read by the thread that waits for them.
"""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from npusim.base.errors import (
    ArgumentError,
    NpusimError,
    RoomError,
    TaskError,
    as_npusim_error,
    naming,
)
from npusim.base.streams import ensure_stream

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self

Item = TypeVar("Item")
Found = TypeVar("Found")

#: Items that wait for a process, per process: enough that none is idle, few enough to stop soon.
AHEAD = 3


def check_jobs(jobs: int) -> None:
    """Raise ``ArgumentError`` for what is no number of processes."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ArgumentError(f"jobs is {jobs!r}; it must be at least 1 process")


class Workers:
    """Context manager of ``jobs`` processes (1: this one alone), each of which calls ``begin``.

    They start when first needed and stay until the end. They are fresh, because a forked one would
    inherit locks that other threads hold; and they do not import the caller's script again, so that
    it may call npusim outside of any ``if __name__ == "__main__":``. What the script itself defines
    is sent to them as code, and so is what the modules in ``code`` define. An interrupt is for the
    process that waits for the answers; what leaves the block early, an interrupt too, ends the
    processes at once.

    A process of others starts none itself: there ``jobs`` is 1, whatever is asked for.
    """

    def __init__(
        self,
        jobs: int,
        begin: Callable[[], object] | None = None,
        code: Collection[ModuleType] = (),
    ) -> None:
        self.jobs = 1 if _Process.works_for_another else jobs
        self._begin, self._code = begin, code
        self._pool: Any = None

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *raised: Any) -> None:
        """End the processes."""
        self._end(at_once=bool(raised and raised[0]))

    def each(
        self,
        function: Callable[[Item], Found],
        items: Iterable[Item],
        name: Callable[[Item], str],
        died: Callable[[Item], Found] | None = None,
        parts: Callable[[Item], Iterable[Item]] = lambda item: [item],
    ) -> Iterator[tuple[int, Found]]:
        """The place of each item and what ``function`` makes of it, as they are ready.

        Items are taken as processes have time for them. Where ``function`` raises, or an item or
        its answer cannot be pickled, an ``NpusimError`` is raised here whose message begins with
        the ``name`` of the item, for any number of jobs. Where a process dies, what was under way
        is tried again in ``parts``, each in a process of its own; for one that kills this too
        there is what ``died`` says, else a ``RoomError``.
        """
        if self.jobs == 1 or (isinstance(items, Sized) and len(items) < 2):
            for place, item in enumerate(items):
                with naming(partial(name, item)):
                    answer = function(item)
                yield place, answer
            return
        numbered = enumerate(items)
        while lost := (yield from self._together(function, numbered, name)):
            for place, part in ((place, part) for place, item in lost for part in parts(item)):
                with Workers(1, self._begin, self._code) as alone:
                    if (yield from alone._together(function, iter([(place, part)]), name)):
                        yield place, died(part) if died else self._died(name(part))

    @staticmethod
    def _died(name: str) -> Any:
        raise RoomError(
            f"{name}: the process that did this died, also when it was the only one, out of "
            "memory, perhaps; a smaller problem needs less"
        )

    def _together(
        self,
        function: Callable[[Item], Found],
        items: Iterator[tuple[int, Item]],
        name: Callable[[Item], str],
    ) -> Generator[tuple[int, Found], None, list[tuple[int, Item]]]:
        """Numbered items in the processes; returns those that were under way when one died."""
        # These take a hundredth of a second to load, which most calls need not spend.
        from concurrent.futures import FIRST_COMPLETED, wait  # noqa: PLC0415
        from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415

        waiting: dict[Future[bytes], tuple[int, Item]] = {}
        code = b""
        try:
            while True:
                with _uninterrupted():
                    for place, item in islice(items, AHEAD * self.jobs - len(waiting)):
                        with naming(partial(name, item)):
                            code = code or packed(function, self._code)
                            content = packed(item, self._code)
                        waiting[self._started().submit(answered, code, content)] = place, item
                if not waiting:
                    return []
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    place, item = waiting[future]
                    answer = future.result()
                    with naming(partial(name, item)):
                        content = unpacked(answer)
                    yield place, content
                    del waiting[future]
        except BrokenProcessPool:
            self._end(at_once=True)
            return [*waiting.values()]
        except BaseException:  # what it leaves waiting must not keep the next items
            self._end(at_once=True)
            raise

    def _started(self) -> Any:
        """The processes; new ones after an end."""
        if self._pool is None:
            from loky import ProcessPoolExecutor  # noqa: PLC0415 - most calls need none

            _ensure_streams()
            begin = b"" if self._begin is None else packed(self._begin, self._code)
            self._pool = ProcessPoolExecutor(self.jobs, initializer=_enter, initargs=(begin,))
        return self._pool

    def _end(self, *, at_once: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=at_once)


# -- what is sent ---------------------------------------------------------------------------------


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


def answered(code: bytes, content: bytes) -> bytes:
    """In another process: the answer of a packed function to a packed item, or its failure."""
    try:
        if _Process.begin:
            _call(_Process.begin)
        return _packed_answer(_read(code)(pickle.loads(content)))
    except BaseException as error:  # whatever it is, the process that waits must know of it
        return _Failure.of(error)


def _packed_answer(answer: object) -> bytes:
    """Bytes of an answer; those of npusim's own classes are made three times as fast by pickle."""
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception:  # a class that came here as code
        return packed(answer)


def unpacked(answer: bytes) -> Any:
    """The content of an answer; raises the ``NpusimError`` of a failure."""
    content = pickle.loads(answer)
    if isinstance(content, _Failure):
        raise content.error from _RemoteError(content.traceback)
    return content


@lru_cache(maxsize=1)
def _read(code: bytes) -> Callable[[Any], Any]:
    """A function, read once for all items that it is sent with."""
    return cast("Callable[[Any], Any]", pickle.loads(code))


@lru_cache(maxsize=1)
def _call(code: bytes) -> None:
    """Call a function that takes nothing, once."""
    pickle.loads(code)()


# -- in the other processes -----------------------------------------------------------------------


class _Process:
    """The state of this process as one that works for another."""

    works_for_another = False
    #: The packed function that is called before the first task.
    begin = b""


def _enter(begin: bytes) -> None:
    """Work for another process from now on, without an ear for interrupts.

    ``begin`` is called with the first task, so that what it raises is an error of a task.
    """
    _ensure_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Process.works_for_another, _Process.begin = True, begin


def _ensure_streams() -> None:
    """Have both streams: loky flushes them here, and its processes end at once without them."""
    ensure_stream("stdout")
    ensure_stream("stderr")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started within know of no interrupt, not even before they ignore it.

    Python's tracker of resources starts with the first of them and, up to 3.13, permits interrupts
    when it has; so it is started before.
    """
    from multiprocessing import resource_tracker  # noqa: PLC0415 - most calls start no process

    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
