"""A function for many things at once, in processes that share nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from npusim.base.errors import RoomError

if TYPE_CHECKING:
    from typing_extensions import Self

Item = TypeVar("Item")
Found = TypeVar("Found")


@contextmanager
def pool(jobs: int, begin: Callable[..., None] | None = None, *given: Any) -> Iterator[Executor]:
    """``jobs`` processes, each of which calls ``begin(*given)`` first.

    They are fresh, because a forked one would inherit locks that other threads hold; and they do
    not import the caller's script again, so that it may call npusim outside of any
    ``if __name__ == "__main__":``. What the script itself defines is sent to them as code. An
    interrupt is for the process that waits for the answers; when the block is left early, by an
    interrupt too, the processes end at once.
    """
    from loky import ProcessPoolExecutor  # noqa: PLC0415 - most calls need none

    processes = ProcessPoolExecutor(jobs, initializer=_begin, initargs=(begin, given))
    try:
        yield processes
    except BaseException:
        processes.shutdown(wait=True, kill_workers=True)
        raise
    processes.shutdown(wait=True)


class Lasting:
    """Context manager of processes that start when first needed and stay until the end.

    ``make`` opens a pool of them. An error that leaves the block ends them at once.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Executor]]) -> None:
        self._make, self._open = make, ExitStack()
        self._held: Executor | None = None

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *raised: Any) -> None:
        """End the processes; what has not begun is dropped."""
        self._held = None
        self._open.__exit__(*raised)

    @property
    def pool(self) -> Executor:
        """The processes; new ones after an end."""
        if self._held is None:
            self._held = self._open.enter_context(self._make())
        return self._held


def _begin(begin: Callable[..., None] | None, given: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if begin is not None:
        begin(*given)


@contextmanager
def uninterrupted() -> Iterator[None]:
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


def in_processes(
    function: Callable[[Item], Found], items: Sequence[Item], jobs: int
) -> Iterator[tuple[int, Found]]:
    """The place of each item and what ``function`` makes of it, as they are ready.

    What ``function`` raises is raised here. Whoever stops, by an interrupt too, ends the processes.
    Raises ``RoomError`` where one dies.
    """
    jobs = min(jobs, len(items))
    try:
        with pool(jobs) as processes:
            with uninterrupted():
                places = {
                    processes.submit(function, item): place for place, item in enumerate(items)
                }
            for future in as_completed(places):
                yield places[future], future.result()
    except BrokenProcessPool as error:
        raise RoomError(
            f"one of {jobs} processes died, out of memory, perhaps; fewer jobs need less"
        ) from error
