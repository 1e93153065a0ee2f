"""Standard streams that are missing or full, and a folder that is gone."""

from __future__ import annotations

import shlex
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from npusim.base.streams import stderr_is_terminal
from npusim.cli.main import main
from npusim.cli.study import progress_bar
from npusim.machine.timing import compile_once
from npusim.results.writers import progress
from npusim.results.writers.progress import ProgressBar
from tests.sampled import crossed

Capture = pytest.CaptureFixture[str]

RUN = "run matmul --device tiny --m 48 --k 48 --n 48 --timing-only --engine simpy"
SWEEP = (
    "sweep matmul --device tiny --m 16 --k 16 --n 16 --vary groups=1,2 --jobs 1 --engine simpy "
    "--store kept.sqlite"
)


def in_shell(line: str, redirection: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own, whose streams a shell redirects."""
    words = [sys.executable, "-m", "npusim", *shlex.split(line)]
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize(("line", "status"), [(RUN, 0), (SWEEP, 0), ("run nonsense", 2)])
def test_without_a_standard_error_a_command_works_and_tells_nobody(
    line: str, status: int, tmp_path: Path
) -> None:
    """Python's print then writes to standard output, and files that are opened get its number."""
    done = in_shell(line, "2>&-", tmp_path)
    assert done.returncode == status
    assert "npusim: error" not in done.stdout
    assert bool(done.stdout) == (status == 0)
    if line == SWEEP:
        with sqlite3.connect(tmp_path / "kept.sqlite") as store:
            assert store.execute("pragma integrity_check").fetchone() == ("ok",)


def test_the_library_needs_no_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    assert not stderr_is_terminal()
    with ProgressBar() as bar:
        bar("matmul", "timing", 1, 2)
    compile_once._say("it compiles")
    assert capsys.readouterr().out == "", "print would write it there"


def test_a_bar_is_drawn_without_a_thread(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """No process is copied beside a thread: work after the first second had fresh ones."""
    before = threading.active_count()
    monkeypatch.setattr(progress, "stderr_is_terminal", lambda: True)
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar(delay_s=0.0) as bar:
        bar("matmul", "timing", 1, 2)
        bar("matmul", "timing", 2, 2)
        assert threading.active_count() == before
    assert "matmul: timing" in capsys.readouterr().err


def test_a_trace_needs_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(sys, "stderr", None)
    conv = torch.nn.Conv2d(2, 3, 1)
    bridge = import_module("npusim.torch")
    with bridge.trace(device="tiny", model=conv, engine="simpy") as log:
        conv(torch.ones(1, 2, 4, 4)).sum().backward()
    assert log.time_us > 0


def test_processes_need_no_streams(tmp_path: Path) -> None:
    """Daemons have none; without them, those of the pool were not started, or ended at once."""
    code = (
        "from npusim.base.workers import Workers\n"
        "answers = sorted(Workers(2).each(abs, [-1, -2], str))\n"
        "open('answers', 'w').write(str(answers))\n"
    )
    command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-c", code]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "answers").read_text() == "[(0, 1), (1, 2)]"


@pytest.mark.parametrize(
    ("line", "unbuffered"),
    crossed([RUN, "devices", "run --help", "--version", "net --help"], ["", "1"]),
)
def test_a_full_standard_output_is_named(
    line: str, unbuffered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = in_shell(line, ">/dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "npusim: error: standard output cannot be written: No space left on device; redirect it "
        "to a file where there is room, or to /dev/null\n",
    )


@pytest.mark.parametrize(
    "line",
    [
        "gate kernels --against main",
        f"{RUN} --report page.html",
        f"{SWEEP} --csv points.csv",
        "tune matmul --device tiny --m 16 --k 16 --n 16 --csv t.csv",
    ],
)
def test_a_folder_that_is_gone_is_named(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    try:
        told = fails(*shlex.split(line))
    finally:
        monkeypatch.chdir(tmp_path)
    assert told == "the folder in which npusim was started is gone; change into one that exists"


def test_a_long_study_tells_logs_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    now = iter((0.0, 30.0, 70.0, 90.0, 131.0))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with progress_bar() as report:
        for done, known in ((1, 0), (2, 0), (3, 1), (4, 1)):
            report(done, 12, known)
    assert capsys.readouterr().err == (
        "measured, 2 of 12 points\nmeasured, 4 of 12 points, 1 known\n"
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tune matmul --device tiny --m 16 --k 16 --n 16 --jobs 1 --store none", "ruled out"),
        (SWEEP.replace("sweep", "explore"), "measured, 2 of 2 points"),
        (SWEEP, "measured, 2 of 2 points"),
    ],
)
def test_every_long_command_tells_logs_how_far_it_is(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    assert main(shlex.split(line)) == 0
    assert told in capsys.readouterr().err
