"""The entry point: statuses, tracebacks, interrupts, and what importing it costs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import npusim
from npusim.cli import main as entry
from npusim.cli import ops, run
from npusim.cli.commands import COMMANDS
from npusim.cli.main import main
from npusim.ops import CARDS
from npusim.results.writers import progress
from npusim.results.writers.progress import ProgressBar

Capture = pytest.CaptureFixture[str]

ROOT = Path(__file__).parents[2]


def _python(*words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "npusim"]
    return subprocess.run(
        [sys.executable, *start, *words], capture_output=True, text=True, check=False
    )


def test_the_module_runs() -> None:
    done = _python("--version")
    assert (done.returncode, done.stderr) == (0, "")
    version, which = done.stdout.splitlines()
    assert version == f"npusim {npusim.__version__}"
    assert "not the CANN toolkit's" in which


@pytest.mark.parametrize(
    "words", [["msprof"], ["--soc-version=Ascend910B"], ["devices", "--soc-version=Ascend910B"]]
)
def test_what_another_program_takes_is_answered_with_which_program_this_is(
    words: list[str], capsys: Capture
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.count("not the CANN toolkit's") == 1
    assert "npusim-py" in told


def test_the_command_has_a_second_name() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    scripts = dict(line.split(" = ") for line in lines if '"npusim.cli.main:main"' in line)
    assert set(scripts) == {"npusim", "npusim-py"}


def test_importing_the_entry_point_is_light() -> None:
    heavy = ("rich", "pandas", "matplotlib", "numpy", "npusim.cli.run")
    code = f"import sys, npusim.cli.main; print([m for m in {heavy} if m in sys.modules])"
    done = _python(code=code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs the threads in /proc")
@pytest.mark.parametrize("line", ["net alexnet", "run matmul --m 16 --k 16 --n 16 --timing-only"])
def test_a_line_that_computes_no_numbers_starts_no_threads(line: str, tmp_path: Path) -> None:
    """NumPy's library would start one for each further processor."""
    words = ["npusim", *line.split(), "--device", "ascend910b2"]
    code = (
        f"import os, sys; sys.argv = {words}; from npusim.cli.main import main; main(); "
        "print(len(os.listdir('/proc/self/task')), 'numpy' in sys.modules)"
    )
    assert _python(code=code).stdout.splitlines()[-1] == "1 True"


def test_help_names_every_command(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text and about in text for name, about in COMMANDS.items())


def test_no_command_prints_the_help_on_stderr(capsys: Capture) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: npusim")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(
    name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: npusim {name} ")
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_examples_are_folded_as_a_shell_reads_them(capsys: Capture) -> None:
    assert main(["run", "--help"]) == 0
    commands = capsys.readouterr().out.replace(" \\\n", " ").splitlines()
    words = {" ".join(line.split()) for line in commands if line.startswith("  npusim run ")}
    assert words == {" ".join(card.example.replace("\\\n", " ").split()) for card in CARDS.values()}


@pytest.mark.parametrize(
    "words",
    [
        ("--debug", "devices", "show", "none"),
        ("devices", "--debug", "show", "none"),
        ("devices", "show", "none", "--debug"),
    ],
)
def test_debug_shows_the_traceback(words: tuple[str, ...], capsys: Capture) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1].startswith("npusim: error: unknown device 'none'")


def _raiser(error: BaseException) -> Callable[[object], int]:
    def execute(arguments: object) -> int:
        raise error

    return execute


#: The line of this file that raises.
_RAISED = _raiser.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "npusim: stopped; files that were there are as they were\n"),
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left on device"), 2,
         f"npusim: error: No space left on device (test_cli_main.py:{_RAISED})\n"),
        (OSError(28, "No space left on device", "a.csv"), 2,
         "npusim: error: a.csv: No space left on device\n"),
        (MemoryError("Unable to allocate 95 GiB"), 2,
         "npusim: error: out of memory: Unable to allocate 95 GiB; --timing-only needs no arrays, "
         "and a smaller problem needs less\n"),
    ],
)  # fmt: skip
def test_what_ends_a_command(
    error: BaseException,
    status: int,
    message: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ops, "execute", _raiser(error))
    monkeypatch.setattr(entry, "_drop_stdout", lambda: None)  # the descriptor here is pytest's
    assert main(["ops"]) == status
    assert capsys.readouterr().err == message


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "execute", _raiser(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["ops"])


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "npusim", "workloads", "show", "resnet50"],
            stdout=gone, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, b"")


class _Screen(io.StringIO):
    """A stderr that says whether it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(("delay_s", "shown"), [(0.0, True), (60.0, False)])
def test_progress_is_for_long_runs(
    delay_s: float, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = _Screen(terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar(delay_s) as bar:
        bar("mem_set", "timing", 10, 20)
        bar("matmul", "numbers", 500, 2000)
    text = screen.getvalue()
    assert ("matmul: numbers" in text and "500/2000" in text) == shown
    assert bool(text) == shown


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_terminals(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(run, "ProgressBar", partial(ProgressBar, 0.0))
    sizes = ("--m", "16", "--k", "16", "--n", "16")
    assert main(["run", "matmul", "--device", "tiny", *sizes, "--engine", "simpy"]) == 0
    assert ("matmul" in screen.getvalue()) == terminal


def test_without_a_terminal_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter((0.0, 30.0, 60.0, 90.0))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with ProgressBar() as bar:
        for done in (100, 500, 900):
            bar("matmul", "numbers", done, 2000)
    assert capsys.readouterr().err == "matmul: numbers, 500 of 2,000 instructions\n"


def test_progress_waits_a_second() -> None:
    assert progress.DELAY_S == 1.0
