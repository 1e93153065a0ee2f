"""A process that works for this one: a copy of it where that is safe, else a fresh one.

A copy is ready within some ten milliseconds and has all that this process has imported; a fresh
process starts Python and imports npusim, which takes half a second. But a copy has one thread: a
lock that another thread held would never be released in it. So a process is copied only where no
other thread runs, of which the system has the last word: numerical libraries end their idle threads
before a copy is made, and whatever is left then is a reason against it. Notebooks and servers have
threads, and get fresh processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast
from weakref import WeakSet, finalize

from npusim.base.errors import NpusimError
from npusim.base.streams import ensure_stream

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.connection import Connection

#: Makes the answer of a message, or None of one that needs none.
Answer = Callable[[bytes], bytes | None]

#: Bytes of a message that is sent without waiting until it is read; the system holds more.
BUFFERED = 1 << 15

#: What a fresh process runs: it finds modules where the process that starts it finds them.
_FRESH = """\
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv.pop()))
sys.path[:] = connection.recv()
from npusim.base.processes import serve
serve(connection, connection.recv())
"""

#: What a helper sends first: it has started.
_READY = b""


class ProcessDiedError(NpusimError):
    """A process that worked for this one ended by itself."""


class _State:
    """What this process is, and what it knows of others."""

    is_helper = works_for_another = False
    #: This process's ends of the connections to its helpers.
    ends: ClassVar[WeakSet[Any]] = WeakSet()
    #: True once a copy showed threads that Python does not know.
    has_foreign_threads = False
    #: Seconds that the start of a copy and of a fresh process take: those of the latest that
    #: started; until then what they took on the machines that npusim was written on.
    copy_s, fresh_s = 0.02, 0.5


#: What is to be ready before a helper starts: functions that see to it.
BEFORE_START: list[Callable[[], object]] = []

#: What a helper does when no more messages come, before it ends.
AT_END: list[Callable[[], object]] = []


def is_helper() -> bool:
    """True in a process that works for another one of npusim."""
    return _State.is_helper


def works_for_another() -> bool:
    """True in a process that another one started for its own work: npusim's, or a pool's."""
    # A child of ``multiprocessing`` has imported it; others need not.
    module = sys.modules.get("multiprocessing.process")
    return _State.works_for_another or (module is not None and module.parent_process() is not None)


def work_for_another() -> None:
    """Say that this process is one of several that share some work."""
    _State.works_for_another = True


def start_seconds(helpers: int) -> float:
    """Seconds until so many helpers have started, as the latest one did.

    Copies are made one after another, while fresh processes start at the same time.
    """
    return helpers * _State.copy_s if _can_be_copied() else _State.fresh_s


class Helper:
    """A process that answers messages of this one, in their order, until it is ended.

    ``answer`` makes the answers: a function of a module, which a fresh process imports. Where the
    process ends by itself ``send`` and ``receive`` raise ``ProcessDiedError``. It ignores
    interrupts, which are for the process that waits for the answers, and it ends when that does.
    """

    def __init__(self, answer: Answer) -> None:
        from multiprocessing.connection import Pipe  # noqa: PLC0415 - most calls start no process

        for see_to in BEFORE_START:
            see_to()
        self._begun = time.perf_counter()
        self._process: subprocess.Popen[bytes] | None = None
        with _uninterrupted():
            ensure_stream("stdout")
            ensure_stream("stderr")
            self.connection, theirs = Pipe()
            self._pid = self._copied(answer, theirs)
            if not self._pid:
                # A copy that is not taken may have said by the first connection that it started.
                self.connection.close()
                theirs.close()
                self.connection, theirs = Pipe()
                self._pid = self._started(answer, theirs)
        theirs.close()
        _State.ends.add(self.connection)
        # Also where nobody ends it: when this is forgotten, and at the end of this process.
        self._end = finalize(self, _end, self.connection, self._process or self._pid, os.getpid())

    def _copied(self, answer: Answer, theirs: Connection) -> int:
        """Copy this process, if that is safe; the number of the copy, 0 where there is none."""
        if not _can_be_copied():
            return 0
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # what is buffered is for this process to write
                stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, looked at below
            pid = os.fork()
        if not pid:
            self._work_in_copy(answer, theirs)
        if _threads() == 1:
            return pid
        _State.has_foreign_threads = True
        _kill(pid)
        _wait(pid)
        return 0

    def _work_in_copy(self, answer: Answer, theirs: Connection) -> NoReturn:
        """Answer messages and end; nothing of what this process was doing goes on in its copy."""
        try:
            self.connection.close()
            for end in list(_State.ends):
                end.close()  # so that a helper ends when its process does
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            Context().run(_serve, theirs, answer)
        finally:
            os._exit(0)  # without what the process was to do at its end

    def _started(self, answer: Answer, theirs: Connection) -> int:
        """Start a fresh process, and return its number."""
        import subprocess  # noqa: PLC0415 - most calls start no process

        flags = cast(Any, subprocess)._args_from_interpreter_flags()
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-c", _FRESH, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        self.connection.send([*sys.path])
        self.connection.send((answer.__module__, answer.__qualname__))
        return self._process.pid

    def send(self, message: bytes) -> None:
        """Send a message; waits until it is read, unless it has at most ``BUFFERED`` bytes."""
        with _death():
            self.connection.send_bytes(message)

    def receive(self) -> bytes | None:
        """The answer of the next message; None where the process says that it has started."""
        with _death():
            answer = self.connection.recv_bytes()
        if self._begun and answer == _READY:
            seconds, self._begun = time.perf_counter() - self._begun, 0.0
            if self._process is None:
                _State.copy_s = seconds
            else:
                _State.fresh_s = seconds
            return None
        return answer

    def end(self, *, at_once: bool) -> None:
        """End the process: ``at_once``, or when it has answered what was sent."""
        if at_once:
            _kill(self._process or self._pid)
        self._end()


def _end(connection: Connection, process: subprocess.Popen[bytes] | int, starter: int) -> None:
    """Say that there are no more messages, and wait until the process ends.

    A copy of its ``starter``, which knows it too, leaves it alone.
    """
    if os.getpid() != starter:
        return
    with suppress(OSError):  # it has ended
        connection.send_bytes(b"")
    connection.close()
    _wait(process)


def _kill(process: subprocess.Popen[bytes] | int) -> None:
    """End a fresh process, or the copy with this number, at once."""
    with suppress(ProcessLookupError):
        if isinstance(process, int):
            os.kill(process, signal.SIGKILL)
        else:
            process.kill()


def _wait(process: subprocess.Popen[bytes] | int) -> None:
    """Wait for the end of a fresh process, or of the copy with this number."""
    if isinstance(process, int):
        with suppress(ChildProcessError):  # a handler of the caller's waited for it
            os.waitpid(process, 0)
    else:
        process.wait()


def _can_be_copied() -> bool:
    """True where this process has one thread, as far as Python knows."""
    return (
        sys.platform == "linux" and threading.active_count() == 1 and not _State.has_foreign_threads
    )


def _threads() -> int:
    """The number of this process's threads, of any language; 0 where the system does not say."""
    try:
        return len([*Path("/proc/self/task").iterdir()])
    except OSError:
        return 0


@contextmanager
def _death() -> Iterator[None]:
    """The end of a connection is that of the process at its other side."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise ProcessDiedError("a process that worked for this one ended") from error


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started within know of no interrupt, not even before they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in the other process -------------------------------------------------------------------------


def serve(connection: Connection, answer: tuple[str, str]) -> None:
    """Answer messages in a fresh process, by the function of this module and name."""
    module, name = answer
    _serve(connection, getattr(import_module(module), name))


def _serve(connection: Connection, answer: Answer) -> None:
    """Answer messages until there are no more; the process that sent them may have ended."""
    _State.is_helper = _State.works_for_another = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ensure_stream("stdout")
    ensure_stream("stderr")
    try:
        with suppress(EOFError, OSError):
            connection.send_bytes(_READY)
            while message := connection.recv_bytes():
                content = answer(message)
                if content is None:
                    continue
                for stream in (sys.stdout, sys.stderr):
                    with suppress(OSError, ValueError):
                        stream.flush()
                connection.send_bytes(content)
    finally:
        for finish in AT_END:  # also where the other process is gone
            finish()
