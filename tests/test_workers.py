"""Work in processes: the same results, and nothing left behind when it stops."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npusim.base.errors import CapacityError
from npusim.base.workers import Workers
from tests.cli.test_cli_tune import KERNEL


def test_results_come_with_their_places() -> None:
    assert dict(Workers(2).each(math.sqrt, [1.0, 4.0, 9.0])) == {0: 1.0, 1: 2.0, 2: 3.0}


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(ValueError, match="math domain error"):
        dict(Workers(2).each(math.sqrt, [1.0, -1.0]))


def test_a_process_that_dies_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(CapacityError, match=r"one of 2 processes died.*fewer jobs"):
        dict(Workers(2).each(os._exit, [1, 1]))


def test_an_interrupt_ends_the_processes() -> None:
    code = (
        "import os, signal, time\nfrom npusim.base.workers import Workers\n"
        "if __name__ == '__main__':\n"
        # A shell's job in the background inherits interrupts as ignored.
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    print(os.getpid(), flush=True)\n"
        "    try:\n        list(Workers(2).each(time.sleep, [0, 600, 600]))\n"
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
        "print(all(dict(Workers(2).each(blocked, range(4))).values()))\n"
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


def test_a_plain_script_may_use_processes(tmp_path: Path) -> None:
    """Without ``if __name__ == "__main__":``, and with a kernel that the script itself defines."""
    script = tmp_path / "plain.py"
    script.write_text(
        KERNEL
        + "\nimport npusim\nfrom npusim.study import runner\n"
        + 'tuned = npusim.tune(Copy.example(), device="ascend910b2", jobs=2, store=None)\n'
        + "print(tuned.best.piece, (tuned.table.state == 'illegal').sum())\n"
        + "runner._SOON_S = 0  # points this few would not be worth processes\n"
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
