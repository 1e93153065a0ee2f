"""Repositories for the gate, and the compiled engine for the processes that it starts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from npusim.gate import trees
from npusim.machine.timing.fast import library
from tests.conftest import ENGINE
from tests.gate.forks import Forks
from tests.texts import text_of

SCALE = text_of("scaling_kernel.txt")

GATE = text_of("gate.yaml")


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    command = ["git", *who, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "as it is")


@pytest.fixture
def engine_of_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiled engine; without one each process would compile its own."""
    places = [ENGINE, *(library.folder() / library.name(level) for level in library.levels())]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        pytest.skip("the engine is not compiled; `make engine` does it")
    monkeypatch.setenv(library.SWITCH, str(file))
    library.found.cache_clear()
    yield
    library.found.cache_clear()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_of_children: None) -> Path:
    """The folder of a repository with one kernel and its gate, where tests are."""
    folder = tmp_path / "kernels of mine"
    folder.mkdir()
    (folder / "scale.py").write_text(SCALE, encoding="utf-8")
    (folder / "gate.yaml").write_text(GATE, encoding="utf-8")
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # edits come within one second
    return folder


@pytest.fixture(scope="module")
def process_of_forks() -> Iterator[Forks]:
    """The process that answers in place of workers, started once."""
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def forked_workers(
    repository: Path, process_of_forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of the gate are forks of a process that has imported npusim already."""
    monkeypatch.setattr(trees, "subprocess", process_of_forks)
