"""A function for many things at once, in processes that share nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from npusim.base.errors import RoomError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self

Item = TypeVar("Item")
Found = TypeVar("Found")

#: Items that wait for a process, per process: enough that none is idle, few enough to stop soon.
AHEAD = 3


class Workers:
    """Context manager of ``jobs`` processes (1: this one alone), each of which calls ``begin``.

    They start when first needed and stay until the end. They are fresh, because a forked one would
    inherit locks that other threads hold; and they do not import the caller's script again, so that
    it may call npusim outside of any ``if __name__ == "__main__":``. What the script itself defines
    is sent to them as code. An interrupt is for the process that waits for the answers; what leaves
    the block early, an interrupt too, ends the processes at once.
    """

    def __init__(self, jobs: int, begin: Callable[[], None] | None = None) -> None:
        self.jobs, self._begin = jobs, begin
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
        died: Callable[[Item], Found] | None = None,
        parts: Callable[[Item], Iterable[Item]] = lambda item: [item],
    ) -> Iterator[tuple[int, Found]]:
        """The place of each item and what ``function`` makes of it, as they are ready.

        Items are taken as processes have time for them. What ``function`` raises is raised here.
        Where a process dies, what was under way is tried again in ``parts``, each in a process of
        its own; for one that kills this too there is what ``died`` says, else a ``RoomError``.
        """
        if self.jobs == 1 or (isinstance(items, Sized) and len(items) < 2):
            yield from ((place, function(item)) for place, item in enumerate(items))
            return
        numbered = enumerate(items)
        while lost := (yield from self._together(function, numbered)):
            for place, part in ((place, one) for place, item in lost for one in parts(item)):
                with Workers(1, self._begin) as alone:
                    if (yield from alone._together(function, iter([(place, part)]))):
                        yield place, (died or self._died)(part)

    def _died(self, _: Item) -> Any:
        what = f"one of {self.jobs} processes died, out of memory, perhaps"
        raise RoomError(f"{what}; fewer jobs need less")

    def _together(
        self, function: Callable[[Item], Found], items: Iterator[tuple[int, Item]]
    ) -> Generator[tuple[int, Found], None, list[tuple[int, Item]]]:
        """Numbered items in the processes; returns those that were under way when one died."""
        # These take a hundredth of a second to load, which most calls need not spend.
        from concurrent.futures import FIRST_COMPLETED, wait  # noqa: PLC0415
        from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415

        waiting: dict[Future[Found], tuple[int, Item]] = {}
        try:
            while True:
                with _uninterrupted():
                    for place, item in islice(items, AHEAD * self.jobs - len(waiting)):
                        waiting[self._started().submit(function, item)] = place, item
                if not waiting:
                    return []
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield waiting[future][0], future.result()
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

            self._pool = ProcessPoolExecutor(self.jobs, initializer=_deaf, initargs=(self._begin,))
        return self._pool

    def _end(self, *, at_once: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=at_once)


def _deaf(begin: Callable[[], None] | None) -> None:
    """Begin, without an ear for interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if begin is not None:
        begin()


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
