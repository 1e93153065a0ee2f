"""Work in processes: the same results, and nothing left behind when it stops."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import (
    ArgumentError,
    CapacityError,
    NpusimError,
    RoomError,
    RuleError,
    TaskError,
    naming,
)
from npusim.base.sent import Work, answered, packed, unpacked
from npusim.base.workers import Workers, check_jobs
from npusim.workloads import Workload
from tests.cli.test_cli_tune import KERNEL
from tests.networks.blocks import ONE_BLOCK, network


def test_results_come_with_their_places() -> None:
    assert dict(Workers(2).each(math.sqrt, [1.0, 4.0, 9.0], str)) == {0: 1.0, 1: 2.0, 2: 3.0}


def failure(
    function: Callable[[Any], object], item: object, jobs: int | None = None
) -> NpusimError:
    """The error of a function that fails for an item: with ``jobs``, or sent, without a process."""

    def run() -> None:
        if jobs is not None:
            dict(Workers(jobs).each(function, [1, item], lambda item: f"item {item!r}"))
        with naming(lambda: f"item {item!r}"):
            unpacked(answered(packed(Work(function)), packed(item)))

    with pytest.raises(NpusimError) as caught:
        run()
    return caught.value


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_foreign_exception_is_an_error_that_names_the_task_and_the_line(jobs: int) -> None:
    error = failure(_inverse, 0, jobs)
    assert isinstance(error, TaskError)
    assert str(error).startswith("item 0: ZeroDivisionError: division by zero (test_workers.py:")
    cause = error.__cause__
    assert cause is not None
    shown = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
    assert "in _inverse" in shown, "the traceback is there for who asks for it"


def _inverse(number: int) -> float:
    return 1 / number


@pytest.mark.parametrize("jobs", [None, 1])
def test_an_error_of_npusim_keeps_its_kind_and_names_the_task(jobs: int | None) -> None:
    error = failure(_refuse, 0, jobs)
    assert isinstance(error, RuleError)
    assert (str(error), error.parameter, error.task) == ("item 0: it is 0", "number", "item 0")


def _refuse(number: int) -> None:
    if not number:
        raise RuleError("it is 0", parameter="number")


@pytest.mark.parametrize("jobs", [None, 1])
def test_the_innermost_name_of_a_task_stays(jobs: int | None) -> None:
    assert str(failure(_within, 0, jobs)).startswith("part 0 of 0: ZeroDivisionError")


def _within(number: int) -> None:
    with naming(lambda: f"part 0 of {number}"):
        _inverse(number)


@pytest.mark.parametrize("jobs", [None, 1])
def test_errors_of_files_and_of_memory_say_which(jobs: int | None) -> None:
    assert str(failure(_open, "/none/there", jobs)) == (
        "item '/none/there': /none/there: No such file or directory"
    )
    error = failure(_fill, 0, jobs)
    assert isinstance(error, RoomError)
    assert str(error).startswith("item 0: out of memory (64 GiB); ")


def _open(path: object) -> None:
    if isinstance(path, str):
        Path(path).open().close()


def _fill(number: int) -> None:
    if not number:
        raise MemoryError("64 GiB")


def test_what_cannot_be_sent_is_an_error_that_names_the_task() -> None:
    lock = "cannot be sent from one process to another: TypeError: cannot pickle '_thread.lock'"
    assert f"item 'a': it {lock}" in str(failure(_locked, "a")), "an answer"
    assert f"it {lock}" in str(failure(str, threading.Lock(), 2)), "an item"
    assert f"item 1: it {lock}" in str(failure(partial(_first, threading.Lock()), 2, 2)), "a call"
    error = failure(_raise_a_lock, 0)
    assert type(error) is TaskError
    assert str(error) == "item 0: it holds a lock", "an exception"


def _locked(_: object) -> threading.Lock:
    return threading.Lock()


def _first(lock: threading.Lock, _: object) -> None:
    del lock


class _LockError(NpusimError):
    """An error that cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def _raise_a_lock(_: object) -> None:
    raise _LockError("it holds a lock")


def test_a_task_that_leaves_python_is_an_error_too() -> None:
    assert str(failure(sys.exit, 3)).startswith("item 3: SystemExit: 3")


def test_workers_can_be_used_after_an_error() -> None:
    with Workers(2) as workers:
        with pytest.raises(TaskError):
            dict(workers.each(_inverse, [0, 0], str))
        assert dict(workers.each(math.sqrt, [1.0, 4.0], str)) == {0: 1.0, 1: 2.0}


def test_what_a_process_begins_with_may_fail() -> None:
    with pytest.raises(TaskError, match=r"^item [12]: ZeroDivisionError"):
        dict(Workers(2, partial(_inverse, 0)).each(abs, [1, 2], lambda item: f"item {item}"))


def test_a_process_that_dies_is_an_error_that_says_what_to_do() -> None:
    message = r"^task 1: the process that did this died.*out of memory.*a smaller problem"
    with pytest.raises(CapacityError, match=message):
        dict(Workers(2).each(os._exit, [1, 1], lambda item: f"task {item}"))


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True])
def test_a_number_of_processes_is_at_least_one(jobs: Any) -> None:
    with pytest.raises(ArgumentError, match=f"jobs is {jobs!r}; it must be at least 1 process"):
        check_jobs(jobs)


class _Growing:
    """A task whose table grows while others wait: as objects do that fill their caches."""

    def __init__(self) -> None:
        self.table = {0: 0}

    def __getstate__(self) -> dict[str, object]:
        for _ in self.table:  # as long as pickling takes, another thread may run
            time.sleep(0.001)
        return {"table": self.table}

    def size(self) -> int:
        return len(self.table)


def test_what_changes_after_it_was_handed_over_is_sent_as_it_was() -> None:
    """Pools pickle in a thread of their own: tables that grew meanwhile were an error there."""
    tasks = [_Growing() for _ in range(12)]
    sizes = []
    for _, size in Workers(2).each(_Growing.size, tasks, str):
        sizes.append(size)
        for task in tasks:
            task.table.update({len(task.table): 0, len(task.table) + 1: 0})
    assert len(sizes) == len(tasks)
    assert sizes[0] == 1
    assert min(sizes) == 1 < max(sizes), "later ones are taken later"


class _Counted:
    """A large item that counts how often it is pickled."""

    pickled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        _Counted.pickled += 1
        return bytes, (10**6,)


def test_items_and_function_are_pickled_once() -> None:
    _Counted.pickled = 0
    function = partial(_size_of_both, _Counted())
    sizes = dict(Workers(2).each(function, [_Counted() for _ in range(4)], str))
    assert sizes == dict.fromkeys(range(4), 2 * 10**6)
    assert _Counted.pickled == 1 + 4


def _size_of_both(first: Any, second: Any) -> int:
    return len(first) + len(second)


@pytest.mark.compiled
@pytest.mark.parametrize("measured", [npusim.network, npusim.step])
def test_a_process_of_others_starts_none(measured: Callable[..., Any], tmp_path: Path) -> None:
    """A network in a sweep, say: two processes that start two each would be six."""
    net = network(ONE_BLOCK, tmp_path)
    started = partial(_started_by, measured, net)
    assert dict(Workers(2).each(started, [1, 2], str)) == {0: [], 1: []}


def _started_by(measured: Callable[..., Any], net: Workload, batch: int) -> list[str]:
    """The processes that there are while a network is measured with two jobs."""
    started: list[str] = []

    def look(*_: object) -> None:
        listed = subprocess.run(
            ["ps", "-e", "-o", "ppid=,args="], capture_output=True, text=True, check=True
        )
        for line in listed.stdout.splitlines():
            parent, command = line.split(None, 1)
            if int(parent) == os.getpid() and not command.startswith("ps "):
                started.append(command)

    result = measured(net, device="ascend910b2", batch=batch, jobs=2, progress=look)
    assert not result.failed
    return started


def test_an_interrupt_ends_the_processes() -> None:
    code = (
        "import os, signal, time\nfrom npusim.base.workers import Workers\n"
        "if __name__ == '__main__':\n"
        # A shell's job in the background inherits interrupts as ignored.
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    print(os.getpid(), flush=True)\n"
        "    try:\n        list(Workers(2).each(time.sleep, [0, 600, 600], str))\n"
        "    except KeyboardInterrupt:\n        print('stopped')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    group = int(process.stdout.readline())
    time.sleep(1)  # the processes start
    os.killpg(group, signal.SIGINT)  # as a terminal does
    out, _ = process.communicate(timeout=60)
    assert out == "stopped\n"
    assert process.returncode == 0
    deadline = time.monotonic() + 30
    while left := alive(group):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_no_process_knows_of_interrupts_not_even_at_its_start() -> None:
    """The first ones did: the tracker of resources, started with them, unblocked interrupts."""
    code = (
        "import signal\nfrom npusim.base.workers import Workers\n"
        "def blocked(_):\n"
        "    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "print(all(dict(Workers(2).each(blocked, range(4), str)).values()))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"


def alive(group: int) -> list[str]:
    """What runs in a process group, from the process table; what has ended is not alive."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [" ".join(row) for row in rows if int(row[0]) == group and "Z" not in row[1]]


@pytest.mark.compiled
def test_a_plain_script_may_use_processes(tmp_path: Path) -> None:
    """Without ``if __name__ == "__main__":``, and with a kernel that the script itself defines."""
    script = tmp_path / "plain.py"
    script.write_text(
        KERNEL
        + "\nimport npusim\nfrom npusim.base import workers\n"
        + 'tuned = npusim.tune(Copy.example(), device="ascend910b2", jobs=2, store=None)\n'
        + "print(tuned.best.piece, (tuned.table.state == 'illegal').sum())\n"
        + "workers._WORTH = 0  # points this few would not be worth processes\n"
        + 'grid = {"clock": [f"{rate}MHz" for rate in range(500, 1500, 25)]}\n'
        + 'swept = npusim.sweep(operator="matmul", m=32, k=32, n=32, device="tiny", vary=grid, '
        + "jobs=2, store=None)\n"
        + "print(len(swept.frame))\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.returncode) == ("4096 1\n40\n", 0), done.stderr
