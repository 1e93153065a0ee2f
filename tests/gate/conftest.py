"""Repositories for the gate, and the compiled engine for the processes that it starts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from npusim.timing.fast import library
from tests.conftest import ENGINE

SCALE = '''"""A kernel that is quick to simulate."""

from dataclasses import dataclass

import numpy as np

from npusim.language import FP16, Alike, Kernel, Language, Plan, Tasks, Tensor


@dataclass(frozen=True)
class Scale(Kernel):
    """y = 2 x, 4096 elements at a time."""

    x: Tensor
    y: Tensor

    name, role = "scale", "vector"

    @classmethod
    def example(cls, chunks: int = 40):
        shape = (chunks * 4096,)
        return cls(Tensor("x", shape, FP16), Tensor("y", shape, FP16, "out"))

    def plan(self, k: Language, cores: int):
        a_ub = k.buffer("UB", (4096,), FP16, slots=2)
        b_ub = k.buffer("UB", (4096,), FP16, slots=2)

        def emit(_):
            a, b = a_ub.next(), b_ub.next()
            k.data_move(a, self.x.at(0, 8192, base="at"), FP16)
            k.vec_scalar("muls", b, a, 2.0, FP16)
            k.data_move(self.y.at(0, 8192, base="at"), b, FP16)

        start = np.arange(0, self.x.size_bytes, 8192)
        return Plan(Tasks(np.zeros(len(start), np.int64), Alike, bases={"at": start}), emit)
'''

GATE = """tolerance: {percent: 1, cycles: 50}
cases:
  - run: --kernel scale.py:Scale --device tiny
  - run: --kernel scale.py:Scale --arg chunks=20
    name: twenty
    devices: [tiny]
"""


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
    places = [ENGINE, *(library.folder() / library.name(one) for one in library.levels())]
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
