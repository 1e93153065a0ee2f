"""A function for many things at once, in processes that share nothing.

How many processes is a number, or None: as many as there are processors for this process, once the
work ahead is worth their start. The answers are the same in any case.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from npusim.base.errors import ArgumentError, RoomError, naming
from npusim.base.processes import (
    BUFFERED,
    Helper,
    ProcessDiedError,
    is_helper,
    start_seconds,
    works_for_another,
)
from npusim.base.resources import processors
from npusim.base.sent import Work, answered, packed, unpacked

if TYPE_CHECKING:
    from typing_extensions import Self

Item = TypeVar("Item")
Found = TypeVar("Found")

#: Items that a process has at most, the one in work among them: enough that it is not idle, few
#: enough that none waits while another process is.
AHEAD = 3

#: What work in processes is to gain, as a multiple of what starting them takes: a copy goes on to
#: take about as long for the memory that it changes.
_WORTH = 2


def check_jobs(jobs: int | None) -> None:
    """Raise ``ArgumentError`` for what is no number of processes; None is any."""
    if jobs is None:
        return
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ArgumentError(f"jobs is {jobs!r}; it must be at least 1 process")


def job_count(jobs: int | None) -> int:
    """The number of processes that ``jobs`` are at most; None is one per processor.

    A process that works for another one of npusim starts none itself: it is 1 there, whatever is
    asked for. In a process of any other pool it is 1 unless asked for.
    """
    if is_helper():
        return 1
    if jobs is not None:
        return jobs
    return 1 if works_for_another() else processors()


def is_worth(seconds: float, count: int, jobs: int) -> bool:
    """Whether ``jobs`` processes save more time on ``count`` items than their start takes.

    An item takes ``seconds``.
    """
    jobs = max(1, min(jobs, count))
    return seconds * (count - count / jobs) >= _WORTH * start_seconds(jobs)


class Workers:
    """Context manager of ``jobs`` processes (1: this one alone), each of which calls ``begin``.

    None stands for one process per processor. They start then when what is left to do, each item
    as long as those that were done here, takes less time with them than without; a number of
    processes starts when first needed. They stay until the end.

    They are copies of this process or fresh ones (``npusim.base.processes``), and do not run the
    caller's script again, so that it may call npusim outside of any
    ``if __name__ == "__main__":``. What the script itself defines is sent to them as code, and so
    is what the modules in ``code`` define. An interrupt is for the process that waits for the
    answers; what leaves the block early, an interrupt too, ends the processes at once.
    """

    def __init__(
        self,
        jobs: int | None,
        begin: Callable[[], object] | None = None,
        code: Collection[ModuleType] = (),
    ) -> None:
        self.jobs = job_count(jobs)
        self._if_worth = jobs is None
        self._begin = begin
        self._code = code
        self._workers: list[_Worker] = []
        self._work: tuple[Work, bytes] | None = None
        #: Of each kind of items, the process that has done some before.
        self._homes: dict[Hashable, _Home] = defaultdict(_Home)

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
        kind: Callable[[Item], Hashable] | None = None,
        shared: Sequence[object] = (),
    ) -> Iterator[tuple[int, Found]]:
        """The place of each item and what ``function`` makes of it, as they are ready.

        Items are taken as processes have time for them; where callers know which take long, those
        come first. Items of one ``kind`` have work in common, and one process does them as far as
        no other is idle. Large objects of ``function`` that are in its answers too are ``shared``:
        they are not sent back.

        Where ``function`` raises, or an item or its answer cannot be pickled, an ``NpusimError`` is
        raised here whose message begins with the ``name`` of the item, for any number of jobs.
        Where a process dies, what was under way is tried again in ``parts``, each in a process of
        its own; for one that kills this too there is what ``died`` says, else a ``RoomError``.
        """
        homes = None if kind is None else lambda item: self._homes[kind(item)]
        queue, work = _Queue(items, homes), Work(function, shared)
        yield from self._here(function, queue, name)
        while lost := (yield from self._together(work, queue, name)):
            for place, part in ((place, part) for place, item in lost for part in parts(item)):
                with Workers(1, self._begin, self._code) as alone:
                    single = _Queue([part], first=place)
                    if (yield from alone._together(work, single, name)):
                        yield place, died(part) if died else self._died(name(part))

    @staticmethod
    def _died(name: str) -> Any:
        raise RoomError(
            f"{name}: the process that did this died, also when it was the only one, out of "
            "memory, perhaps; a smaller problem needs less"
        )

    def _here(
        self,
        function: Callable[[Item], Found],
        queue: _Queue[Item],
        name: Callable[[Item], str],
    ) -> Iterator[tuple[int, Found]]:
        """Items done in this process: all of them, or as long as other processes are not worth it.

        Those at the end come first then, which are the shortest where it is known which are long.
        """
        alone = self.jobs == 1 or (queue.left is not None and queue.left < 2)
        seconds, done = 0.0, 0
        while alone or self.waits(seconds, done, queue.left):
            taken = queue.first() if alone else queue.last()
            if taken is None:
                return
            place, item = taken
            begin = time.perf_counter()
            with naming(partial(name, item)):
                answer = function(item)
            seconds, done = seconds + time.perf_counter() - begin, done + 1
            yield place, answer

    def waits(self, seconds: float, done: int, left: int | None = None) -> bool:
        """Whether processes that nobody asked for are not yet worth their start.

        ``done`` items took ``seconds`` here. Where it is not known how many are ``left``, as many
        are expected.
        """
        if not self._if_worth or self._workers:
            return False
        if not done:
            return True
        # Once they are worth it they are from then on: what follows has no first item here.
        self._if_worth = not is_worth(seconds / done, done if left is None else left, self.jobs)
        return self._if_worth

    def _together(
        self, work: Work, queue: _Queue[Item], name: Callable[[Item], str]
    ) -> Generator[tuple[int, Found], None, list[tuple[int, Item]]]:
        """Items in the processes; returns those that were under way when one died."""
        if queue.left == 0:
            return []
        from multiprocessing.connection import wait  # noqa: PLC0415 - most calls start no process

        try:
            self._start(self.jobs if queue.left is None else min(self.jobs, queue.left))
            while True:
                self._hand_out(work, queue, name)
                busy = {each.helper.connection: each for each in self._workers if each.items}
                if not busy:
                    return []
                for connection in wait([*busy]):
                    worker = busy[cast(Any, connection)]
                    answer = worker.helper.receive()
                    if answer is None:
                        continue
                    place, item = worker.items[0]
                    with naming(partial(name, item)):
                        found = unpacked(answer, work.shared)
                    yield place, found
                    worker.next()
        except ProcessDiedError:
            lost = [item for worker in self._workers for item in worker.items]
            self._end(at_once=True)
            return lost
        except BaseException:  # what it leaves waiting must not keep the next items
            self._end(at_once=True)
            raise

    def _hand_out(self, work: Work, queue: _Queue[Item], name: Callable[[Item], str]) -> None:
        """Give items to the processes that have room for them."""
        for worker in self._workers:
            while worker.has_room(queue.left, self.jobs):
                taken = queue.first(worker)
                if taken is None:
                    break
                with naming(partial(name, taken[1])):
                    content = packed(taken[1], self._code)
                    if worker.work is not work:
                        worker.begin(work, self._packed(work))
                worker.give(taken, content)

    def _packed(self, work: Work) -> bytes:
        """Bytes of what items are done with, which are made once."""
        if self._work is None or self._work[0] is not work:
            self._work = work, packed(work, self._code)
        return self._work[1]

    def _start(self, count: int) -> None:
        """Have as many processes."""
        begin = b"" if self._begin is None else packed(self._begin, self._code)
        while len(self._workers) < count:
            self._workers.append(_Worker(begin))

    def _end(self, *, at_once: bool) -> None:
        workers, self._workers = self._workers, []
        self._homes.clear()
        for worker in workers:
            worker.helper.end(at_once=at_once)


class _Worker:
    """A process with the items that it has and has not answered, in their order."""

    def __init__(self, begin: bytes) -> None:
        self.helper = Helper(answer_message)
        self.items: deque[tuple[int, Any]] = deque()
        #: What it does with its items.
        self.work: Work | None = None
        #: Messages that wait here: too long ones are not sent while it works.
        self._unsent = deque([_BEGIN + begin])

    def has_room(self, left: int | None, jobs: int) -> bool:
        """Whether it may have another item; the last of ``left`` wait for no process in work."""
        return not self.items or (len(self.items) < AHEAD and (left is None or left > AHEAD * jobs))

    def begin(self, work: Work, content: bytes) -> None:
        """Have it do other work, packed as ``content``."""
        self.work = work
        self._unsent.append(_WORK + content)

    def give(self, item: tuple[int, Any], content: bytes) -> None:
        """Give it an item that is packed as ``content``."""
        self.items.append(item)
        self._unsent.append(_ITEM + content)
        self._send(idle=len(self.items) == 1)

    def next(self) -> None:
        """Go on after the first item."""
        self.items.popleft()
        self._send(idle=len(self.items) == sum(text[:1] == _ITEM for text in self._unsent))

    def _send(self, *, idle: bool) -> None:
        while self._unsent and (idle or len(self._unsent[0]) <= BUFFERED):
            message = self._unsent.popleft()
            self.helper.send(message)
            idle = idle and message[:1] != _ITEM


class _Home:
    """The process that does items of a kind; None before the first of them."""

    worker: _Worker | None = None


class _Queue(Generic[Item]):
    """Items with their places; how many are ``left`` is not known of an iterator."""

    def __init__(
        self, items: Iterable[Item], home: Callable[[Item], _Home] | None = None, first: int = 0
    ) -> None:
        self._numbered = enumerate(items, first)
        self._listed: deque[tuple[int, Item]] | None = None
        if isinstance(items, Sequence):
            self._listed = deque(self._numbered)
        #: The homes of listed items, in their order.
        self._homes = deque(map(home, items)) if home and self._listed else None

    @property
    def left(self) -> int | None:
        """How many there are."""
        return None if self._listed is None else len(self._listed)

    def first(self, worker: _Worker | None = None) -> tuple[int, Item] | None:
        """Take the first whose home is a process, or becomes it, else the first.

        None where there are no more.
        """
        if self._listed is None:
            return next(self._numbered, None)
        if not self._listed:
            return None
        if self._homes is None:
            return self._listed.popleft()
        at_home = (n for n, home in enumerate(self._homes) if home.worker in (None, worker))
        place = next(at_home, 0)
        taken, home = self._listed[place], self._homes[place]
        del self._listed[place], self._homes[place]
        home.worker = home.worker or worker
        return taken

    def last(self) -> tuple[int, Item] | None:
        """Take the last, or the next of an iterator; None where there are no more."""
        if self._listed is None:
            return next(self._numbered, None)
        if self._homes:
            self._homes.pop()
        return self._listed.pop() if self._listed else None


# -- in the other processes -----------------------------------------------------------------------

#: What a message is, by its first byte.
_BEGIN, _WORK, _ITEM = b"b", b"w", b"i"


class _Received:
    """What this process was sent as one that works for another, packed."""

    begin = work = b""


def answer_message(message: bytes) -> bytes | None:
    """The answer of an item; None for what is to be kept for the items after it."""
    kind, content = message[:1], message[1:]
    if kind == _BEGIN:
        _Received.begin = content
    elif kind == _WORK:
        _Received.work = content
    else:
        return answered(_Received.work, content, begin=_Received.begin)
    return None
