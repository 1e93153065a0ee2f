"""What is written stays whole: full disks, SIGTERM, Ctrl-C and a closed standard output."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from npusim import network, ops, spec
from npusim.base.atomic_files import replacing
from npusim.base.errors import ArgumentError
from npusim.cli.main import INTERRUPTED, main
from npusim.study.points import keep_points
from tests.sampled import slow_if
from tests.tables import table

OLD = "the file that was there"
SIZES = ["--m", "48", "--k", "48", "--n", "48"]
CALL = ["run", "matmul", "--device", "tiny", "--engine", "simpy", *SIZES]

#: No file becomes longer than 512 bytes, stores of the cache neither.
FULL = 'ulimit -f 1; exec "$@"'

#: Every output of every command: a small call, an option and a file.
EVERY = [
    tuple(row.values())
    for row in table("tests/data/rows/cli.yaml", "outputs_of_commands", "call, option, file")
]

#: Every output of a run, by option.
OUTPUTS = {option: name for call, option, name in EVERY if call == " ".join(CALL)}

#: Commands of which one output is tried; the slow tests have all outputs of all commands.
TRIED = ("net", "sweep", "validate")
ALL = [
    slow_if(row[0].split()[0] not in TRIED or before[0] == row[0], *row)
    for before, row in pairwise(EVERY)
    if row[0] != " ".join(CALL)
]


def command(*words: str, shell: str = 'exec "$@"') -> subprocess.Popen[str]:
    """``npusim`` in a process of its own, started by a line of shell.

    It and its children keep no bytecode: Python would take the half of it that a full disk has
    for the whole, ever after.
    """
    return subprocess.Popen(
        ["sh", "-c", shell, "sh", sys.executable, "-m", "npusim", *words],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def compiled_before() -> None:
    """What is compiled lies in the cache: a process on a full disk could not keep it.

    Each one would compile anew then, for longer than the tests wait.
    """
    network("dcgan", device="ascend910b2", batch=1)


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
@pytest.mark.usefixtures("compiled_before")
@pytest.mark.parametrize(
    "option", [slow_if(option not in ("--trace", "--output"), option) for option in OUTPUTS]
)
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, option: str) -> None:
    name = OUTPUTS[option]
    (tmp_path / name).write_text(OLD, encoding="utf-8")
    process = command(*CALL, option, str(tmp_path / name), shell=FULL)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "KERNELS" in out  # what was computed is told
    last = error.strip().splitlines()[-1]
    assert "was not written" in last
    # An archive that Python 3.10 cannot close complains once more.
    assert "Traceback" not in error or "Exception ignored" in error
    whole(tmp_path, name)


@pytest.mark.compiled
@pytest.mark.usefixtures("compiled_before")
@pytest.mark.parametrize(("call", "option", "name"), ALL)
def test_a_full_disk_leaves_the_old_file_of_every_command(
    tmp_path: Path, call: str, option: str, name: str
) -> None:
    (tmp_path / name).write_text(OLD, encoding="utf-8")
    process = command(*shlex.split(call), option, str(tmp_path / name), shell=FULL)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 2, error
    assert len(out) > 100  # what was computed is told
    last = error.strip().splitlines()[-1]
    assert last == f"npusim: error: {option} {tmp_path / name} was not written: File too large"
    assert "Traceback" not in error
    whole(tmp_path, name)


def stopped(folder: Path, number: int, wait: Callable[[subprocess.Popen[str]], None]) -> int:
    """Send a signal to a run that writes a long trace, after ``wait``; its exit status."""
    words = ["run", "matmul", "--device", "tiny", "--timing-only"]
    words += ["--m", "768", "--k", "768", "--n", "768"]
    return stopped_at(words, "--trace", folder / "t.json", number, wait)


def stopped_at(
    words: Sequence[str],
    option: str,
    file: Path,
    number: int,
    wait: Callable[[subprocess.Popen[str]], None],
) -> int:
    """Send a signal to a command that is to replace a file, after ``wait``; its exit status."""
    file.write_text(OLD, encoding="utf-8")
    process = command(*words, option, str(file))
    wait(process)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    # An exception within a callback of the compiler's is lost: the command goes on to its end.
    assert "Traceback" not in error or "Exception ignored" in error
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    if process.returncode:
        assert error.count("npusim: stopped") <= 1, error
    else:  # it was done before
        assert file.read_bytes() != OLD.encode()
    assert file.read_bytes() == OLD.encode() or complete(file)
    return process.returncode


def complete(file: Path) -> bool:
    """The new file has its end."""
    held = file.read_bytes()
    if file.suffix == ".npz":
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    if file.suffix == ".json":
        return bool(json.loads(held))
    if file.suffix == ".png":
        return held.endswith(b"IEND\xaeB`\x82")
    return held.endswith({".html": b"</html>\n", ".svg": b"</svg>\n", ".csv": b"\n"}[file.suffix])


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


#: Statuses of a command that SIGTERM ends: once npusim runs, before, while Python itself ends; and
#: of one that is done.
ENDED = (143, -signal.SIGTERM, 1, 0)


@pytest.fixture(scope="module")
def nothing_to_compile() -> None:
    """What runs need is compiled: Numba does not survive every exception in the midst of it.

    Users' engines are compiled by a process that no signal to a command reaches.
    """
    ops.matmul(spec((768, 768), "fp16"), spec((768, 768), "fp16"), device="tiny", engine="fast")


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_to_compile")
@pytest.mark.parametrize("seed", range(2 * len(EVERY)))
def test_every_command_may_be_stopped_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Half of them when the file is being written, which takes a moment only."""
    call, option, name = EVERY[seed // 2]
    moment = random.Random(seed).uniform(0.3, 4.0)
    wait = until_written(tmp_path) if seed % 2 else lambda _: time.sleep(moment)
    words = shlex.split(call)
    assert stopped_at(words, option, tmp_path / name, signal.SIGTERM, wait) in ENDED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_disk_that_fills_up_at_any_moment_leaves_the_old_file(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    call, option, name = random_.choice(EVERY)
    (tmp_path / name).write_text(OLD, encoding="utf-8")
    blocks = int(2 ** random_.uniform(0, 12))  # of 512 bytes
    shell = f'ulimit -f {blocks}; exec "$@"'
    process = command(*shlex.split(call), option, str(tmp_path / name), shell=shell)
    _, error = process.communicate(timeout=120)
    assert "Traceback" not in error
    assert process.returncode in (0, 2), error
    if process.returncode:
        assert "was not written: File too large" in error
        whole(tmp_path, name)
    else:
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert (tmp_path / name).read_bytes() != OLD.encode()
        assert complete(tmp_path / name)


def test_a_closed_output_is_one_line() -> None:
    process = command(*CALL, shell='exec "$@" >&-')
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert error == (
        "npusim: error: standard output is closed; redirect it to a file or to /dev/null\n"
    )


def test_a_sweep_that_is_stopped_says_how_much_is_kept_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (
        "sweep matmul --device tiny --m 16 --k 16 --n 16 --vary memories.L1.size=16KiB,32KiB,64KiB"
    )
    words = [*line.split(), "--store", str(tmp_path / "kept.sqlite"), "--jobs", "1"]
    kept = list[int]()

    def stopped(store: Any, answers: Any) -> None:
        answers = list(answers)
        if len(kept) == 2:  # the machine as it is, then the first point
            kept.append(0)
            raise KeyboardInterrupt
        keep_points(store, answers)
        kept.append(len(answers))

    monkeypatch.setattr("npusim.study.runner.keep_points", stopped)
    assert main(words) == INTERRUPTED
    said = capsys.readouterr().err
    assert "stopped; 1 of 3 points are kept: the same command goes on with the rest" in said
    assert main(words) == 0
    assert sum(kept) == 2 + 3  # the machine as it is once a run, each point once
    assert "goes on" not in capsys.readouterr().err
