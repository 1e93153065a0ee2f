"""``--jobs``: every command that has it answers with two processes as with one."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base import workers
from npusim.cli.commands import COMMANDS as ALL_COMMANDS
from npusim.cli.main import main, parser
from tests.sampled import slow_if
from tools import jobs

#: Public functions that take ``jobs``, and the command of ``tools/jobs.py`` that calls each.
FUNCTIONS = {
    "alternatives": "alternatives",
    "calibrate": "fit",
    "explore": "explore",
    "largest_batch": "largest-batch",
    "network": "net",
    "sensitivities": "tornado",
    "step": "step",
    "sweep": "sweep",
    "tune": "tune",
}

#: Commands of which the tests of their own room start no processes.
DIFFERENT = ("step", "tune")


def answer(
    name: str,
    count: int,
    folder: Path,
    patch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> str:
    """What a command answers in a new folder, with nothing known; nothing is said of failures."""
    jobs.prepare(folder)
    patch.chdir(folder)
    patch.setenv("NPUSIM_CACHE", str(folder / "stores"))
    assert main([*shlex.split(jobs.COMMANDS[name]), "--jobs", str(count)]) == 0
    printed, errors = capfd.readouterr()
    assert "Traceback" not in errors
    assert "Error" not in errors
    return jobs.answer(printed, folder)


def same(
    name: str,
    counts: Sequence[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> bool:
    """Whether a command answers the same for each number of processes."""
    monkeypatch.setattr(workers, "_WORTH", 0)  # points as few would not be worth processes
    answers = {answer(name, n, tmp_path / f"{n}", monkeypatch, capfd) for n in counts}
    return len(answers) == 1


@pytest.mark.compiled
@pytest.mark.parametrize("name", [slow_if(name not in DIFFERENT, name) for name in jobs.COMMANDS])
def test_two_processes_answer_as_one(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert same(name, (1, 2), tmp_path, monkeypatch, capfd)


@pytest.mark.parametrize(
    ("name", "broken", "task"),
    [
        ("net", "npusim.ops.network_layers.spec", "layer one (1/3): "),
        ("step", "npusim.networks.run.launches.OperationLauncher.run", "operation input.fp16: "),
        (
            "sweep",
            "npusim.study.runner.measure",
            "point device=ascend910b2, operator=matmul, m=512, k=256, n=512: ",
        ),
        ("explore", "npusim.study.runner.measure", "point device=ascend910b2, operator=matmul, "),
    ],
)
def test_what_fails_is_named(
    name: str,
    broken: str,
    task: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With one process, where the test can break something; with several the same names it."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("broken")

    jobs.prepare(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("NPUSIM_CACHE", str(tmp_path / "stores"))
    monkeypatch.setattr(broken, fail)
    assert main([*shlex.split(jobs.COMMANDS[name]), "--jobs", "1"]) == 2
    told = capfd.readouterr().err.splitlines()[-1]
    assert told.startswith(f"npusim: error: {task}")
    assert "ZeroDivisionError: broken (test_cli_jobs.py:" in told


@pytest.mark.slow
def test_no_run_of_many_fails_or_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["jobs", "--times", "5"])
    assert jobs.main() == 0


def test_every_command_with_jobs_is_tried() -> None:
    with_jobs = {name for name in ALL_COMMANDS if any("--jobs" in text for text in _help(name))}
    assert with_jobs == {line.split()[0] for line in jobs.COMMANDS.values()}


def _help(name: str) -> list[str]:
    """The usages of a command and of those below it."""
    top = parser([name, "net"])  # what takes calls and steps declares the one that is named
    leaves: list[Any] = [top]
    texts = []
    while leaves:
        leaf = leaves.pop()
        texts.append(leaf.format_usage())
        for action in leaf._actions:
            if isinstance(action.choices, dict):
                leaves += [
                    one for key, one in action.choices.items() if leaf is not top or key == name
                ]
    return texts


def test_every_function_with_jobs_is_tried() -> None:
    functions = {
        name
        for name in dir(npusim)
        if inspect.isfunction(value := getattr(npusim, name))
        and "jobs" in inspect.signature(value).parameters
    }
    assert functions == {*FUNCTIONS}
    assert {*FUNCTIONS.values()} <= {*jobs.COMMANDS}
