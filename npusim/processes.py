"""A function for many things at once, in processes that share nothing."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from npusim.errors import CapacityError

Item = TypeVar("Item")
Found = TypeVar("Found")


def in_processes(
    function: Callable[[Item], Found], items: Sequence[Item], jobs: int
) -> Iterator[tuple[int, Found]]:
    """The place of each item and what ``function`` makes of it, as they are ready.

    What ``function`` raises is raised here. Whoever stops, by an interrupt too, ends the processes.
    Raises ``CapacityError`` where one dies.
    """
    context = multiprocessing.get_context("spawn")  # a forked one would inherit held locks
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(jobs, len(items)), mp_context=context, initializer=_begin) as pool:
        try:
            with _uninterrupted():
                places = {pool.submit(function, item): place for place, item in enumerate(items)}
            for future in as_completed(places):
                yield places[future], future.result()
        except BrokenProcessPool as error:
            raise CapacityError(
                f"one of {jobs} processes died, out of memory, perhaps; fewer jobs need less"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started within know of no interrupt, not even before ``_begin``."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """An interrupt is for the process that waits for the answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
