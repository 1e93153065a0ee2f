"""What is written stays whole: full disks, SIGTERM, Ctrl-C and a closed standard output."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from npusim.errors import ArgumentError
from npusim.written import replacing

OLD = "the file that was there"
SIZES = ["--m", "48", "--k", "48", "--n", "48"]
CALL = ["run", "matmul", "--device", "tiny", "--engine", "simpy", *SIZES]

#: Every output of a run, by option.
OUTPUTS = {
    "--trace": "t.json",
    "--plot": "p.png",
    "--plot-roofline": "r.svg",
    "--report": "r.html",
    "--output": "o.npz",
}


def command(*words: str, shell: str = 'exec "$@"') -> subprocess.Popen[str]:
    """``npusim`` in a process of its own, started by a line of shell."""
    return subprocess.Popen(
        ["sh", "-c", shell, "sh", sys.executable, "-m", "npusim", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def whole(folder: Path, name: str) -> None:
    """The old file is alone in its folder and as it was."""
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text(encoding="utf-8") == OLD


def test_a_block_that_ends_well_replaces_the_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    with replacing(target) as part:
        part.write_text("new", encoding="utf-8")
        assert not target.exists()
        assert part.suffix == ".txt"
    assert target.read_text(encoding="utf-8") == "new"
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("error", [ArgumentError, OSError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "a.txt"
    target.write_text(OLD, encoding="utf-8")

    def write() -> None:
        with replacing(target) as part:
            part.write_text("half", encoding="utf-8")
            raise error("stop")

    with pytest.raises(error):
        write()
    whole(tmp_path, "a.txt")


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "a.txt", tmp_path / "link.txt"
    target.write_text(OLD, encoding="utf-8")
    target.chmod(0o640)
    link.symlink_to(target)
    with replacing(link) as part:
        part.write_text("new", encoding="utf-8")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    with replacing("/dev/null") as part:
        assert part == Path("/dev/null")
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none" / "a.txt"):
        raise AssertionError


@pytest.mark.compiled
@pytest.mark.parametrize("option", OUTPUTS)
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, option: str) -> None:
    name = OUTPUTS[option]
    (tmp_path / name).write_text(OLD, encoding="utf-8")
    process = command(*CALL, option, str(tmp_path / name), shell='ulimit -f 1; exec "$@"')
    out, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "KERNELS" in out  # what was computed is told
    last = error.strip().splitlines()[-1]
    assert "was not written" in last
    assert "Traceback" not in error
    whole(tmp_path, name)


def stopped(folder: Path, number: int, wait: Callable[[subprocess.Popen[str]], None]) -> int:
    """Send a signal to a run that writes a long trace, after ``wait``; its exit status."""
    name = "t.json"
    (folder / name).write_text(OLD, encoding="utf-8")
    words = ["run", "matmul", "--device", "tiny", "--timing-only"]
    words += ["--m", "768", "--k", "768", "--n", "768"]
    process = command(*words, "--trace", str(folder / name))
    wait(process)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert "Traceback" not in error
    if process.returncode == 0:  # it was done before
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text(encoding="utf-8") != OLD
    else:
        assert error.count("\n") <= 1, error
        whole(folder, name)
    return process.returncode


def until_written(folder: Path) -> Callable[[subprocess.Popen[str]], None]:
    """Wait until the process has begun to write beside the file."""

    def wait(process: subprocess.Popen[str]) -> None:
        while process.poll() is None and not list(folder.glob(".part-*")):
            time.sleep(0.002)

    return wait


@pytest.mark.compiled
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_leaves_the_old_file(tmp_path: Path, number: int, status: int) -> None:
    assert stopped(tmp_path, number, until_written(tmp_path)) in (status, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_run_stopped_at_any_moment_leaves_the_old_file(tmp_path: Path, seed: int) -> None:
    moment = random.Random(seed).uniform(1.5, 8.0)
    assert stopped(tmp_path, signal.SIGTERM, lambda _: time.sleep(moment)) in (143, 0)


def test_a_closed_output_is_one_line() -> None:
    process = command(*CALL, shell='exec "$@" >&-')
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert error == (
        "npusim: error: standard output is closed; redirect it to a file or to /dev/null\n"
    )
