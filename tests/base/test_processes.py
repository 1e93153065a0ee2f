"""Processes that work for this one: copies of it and fresh ones, and when they start."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from npusim.base import processes, resources, workers
from npusim.base.processes import Helper, ProcessDiedError
from npusim.base.resources import processors
from npusim.base.workers import Workers, job_count
from tests.base.test_workers import alive

#: A script whose processes say whether they have what only it had in memory.
SCRIPT = """
import sys, threading, time
from npusim.base import processes
from npusim.base.workers import Workers
processes.MARK = True
if sys.argv[1:] == ["thread"]:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def marked(item):
    from npusim.base import processes
    return hasattr(processes, "MARK")
print(sorted(Workers(2).each(marked, [1, 2], str)))
"""


@pytest.mark.parametrize(
    ("words", "is_copy"),
    [
        pytest.param([], True, marks=pytest.mark.skipif(sys.platform != "linux", reason="a copy")),
        (["thread"], False),
    ],
)
def test_a_process_with_one_thread_is_copied(words: Sequence[str], is_copy: bool) -> None:
    """With another thread, whose locks a copy would never see released, processes are fresh."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{[(0, is_copy), (1, is_copy)]}\n"


def test_threads_that_python_does_not_know_are_a_reason_against_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes._State, "has_foreign_threads", False)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    is_late = partial(time.sleep, 0.2)  # the copy says that it has started before it is looked at
    monkeypatch.setattr(processes, "_threads", lambda: (is_late(), 2)[1])
    assert dict(Workers(2).each(math.sqrt, [1.0, 4.0], str)) == {0: 1.0, 1: 2.0}
    assert processes._State.has_foreign_threads == (sys.platform == "linux")
    assert processes.start_seconds(2) == processes._State.fresh_s


def test_helpers_end_with_the_process_they_work_for() -> None:
    """Killed, too: it cannot tell them, and they must not hold each other's connections."""
    code = (
        "import os, time\nfrom npusim.base.workers import Workers\n"
        "print(os.getpid(), flush=True)\n"
        "def work(item):\n    os.write(1, b'begun\\n')\n    time.sleep(item)\n"
        "list(Workers(3).each(work, [0.5] * 600, str))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout as printed:
        group = int(printed.readline())
        assert printed.readline() == "begun\n"
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        while left := alive(group):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


def _echo(message: bytes) -> bytes:
    if message == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    return message


def _answer(helper: Helper) -> bytes:
    while (answer := helper.receive()) is None:
        pass
    return answer


def test_a_helper_answers_in_order_until_it_dies() -> None:
    helper = Helper(_echo)
    helper.send(b"1")
    helper.send(b"2")
    assert [_answer(helper), _answer(helper)] == [b"1", b"2"]
    helper.send(b"die")
    with pytest.raises(ProcessDiedError):
        helper.receive()
    helper.end(at_once=False)


def test_long_items_and_answers_do_not_wait_for_each_other() -> None:
    """Neither side reads while it writes: what fills the buffers of both would wait for ever."""
    items = [bytes([number]) * 2_000_000 for number in range(9)]
    assert dict(Workers(2).each(bytes, iter(items), lambda item: "")) == dict(enumerate(items))


def test_shared_objects_are_not_sent_back() -> None:
    table = _Table([1, 2, 3])
    answers = dict(Workers(2).each(table.pair, [1, 2], str, shared=(table,)))
    assert all(answer[0] is table for answer in answers.values())
    assert [answers[place][1].numbers for place in (0, 1)] == [[1], [2]]


class _Table:
    """An object that answers contain."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def pair(self, number: int) -> tuple[_Table, _Table]:
        """This table, and another one."""
        return self, _Table([number])


# -- how many, and when ---------------------------------------------------------------------------


def _process(_: object) -> int:
    return os.getpid()


@pytest.mark.parametrize("items", [range(8), iter(range(8))])
def test_processes_that_nobody_asked_for_start_when_they_are_worth_it(
    items: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first item at the earliest: it tells how long one takes."""
    monkeypatch.setattr(workers, "processors", lambda: 2)
    monkeypatch.setattr(workers, "start_seconds", lambda _: 0.0)
    pids = [pid for _, pid in Workers(None).each(_process, items, str)]
    assert len(pids) == 8
    assert pids.count(os.getpid()) == 1


def test_short_work_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "processors", lambda: 2)
    monkeypatch.setattr(workers, "start_seconds", lambda _: 60.0)
    with Workers(None) as several:
        assert {pid for _, pid in several.each(_process, range(8), str)} == {os.getpid()}
    monkeypatch.setattr(workers, "start_seconds", lambda _: 0.0)
    with Workers(None) as several:
        assert os.getpid() in {pid for _, pid in several.each(_process, range(8), str)}
        left = {pid for _, pid in several.each(_process, range(8), str)}
        assert os.getpid() not in left, "once worth it, from then on"


@pytest.mark.parametrize(
    ("seconds", "count", "jobs", "worth"),
    [(1.0, 10, 2, True), (0.01, 10, 2, False), (1.0, 1, 8, False), (1.0, 0, 8, False)],
)
def test_what_is_worth_a_start(
    seconds: float, count: int, jobs: int, worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten items of a second save five seconds in two processes, whose start takes half a second."""
    monkeypatch.setattr(workers, "start_seconds", lambda _: 0.5)
    assert workers.is_worth(seconds, count, jobs) == worth


def test_a_process_of_a_pool_uses_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "processors", lambda: 3)
    assert (job_count(None), job_count(2)) == (3, 2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(job_count, (None,)) == 1
    asked = partial(_count_of, 2)
    assert dict(Workers(2).each(asked, [1, 2], str)) == {0: 1, 1: 1}, "nor where it is asked for"


def _count_of(jobs: int, _: object) -> int:
    return job_count(jobs)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 0),
        ({"cpu.max": "max 100000\n"}, 0),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_a_control_group_has_its_share_of_the_processors(
    files: dict[str, str], count: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="ascii")
    assert resources._share_of_group(tmp_path) == count


def test_processors_are_those_that_the_process_is_bound_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4}, raising=False)
    assert processors() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    monkeypatch.setattr(resources, "_share_of_group", lambda _: 2)
    assert processors() == 2
    monkeypatch.setattr(resources, "_share_of_group", lambda _: 0)
    assert processors() == 3
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert processors() == 1


# -- which item for which process -----------------------------------------------------------------


def test_items_of_a_kind_go_to_the_process_that_did_others() -> None:
    homes: dict[str, Any] = {"a": workers._Home(), "b": workers._Home()}
    queue = workers._Queue(["a1", "b1", "a2", "a3", "b2"], lambda item: homes[item[0]])
    first, second = (
        workers._Worker.__new__(workers._Worker),
        workers._Worker.__new__(workers._Worker),
    )
    taken = [queue.first(worker) for worker in (first, second, second, second, first)]
    assert [item and item[1] for item in taken] == ["a1", "b1", "b2", "a2", "a3"]
    assert queue.first() is None
