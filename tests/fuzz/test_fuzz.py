"""A short campaign, and every input that once broke something; CONTRIBUTING.md has long ones."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest

from npusim.base.errors import NpusimError
from tools.fuzz.__main__ import CORPUS, campaign, corpus
from tools.fuzz.mutations import mutated, mutated_words
from tools.fuzz.targets import TARGETS, Target, tried

pytestmark = pytest.mark.compiled


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write files, and targets read theirs from the temporary files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_taken(name: str) -> None:
    """What is changed at random is right before."""
    for text in TARGETS[name].seeds():
        assert tried(TARGETS[name], text) is None


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_foreign_comes_out(name: str, tmp_path: Path) -> None:
    outcomes, _ = campaign(name, 60, 1, tmp_path / "findings")
    assert not outcomes["findings"], list(tmp_path.glob("findings/*"))
    assert outcomes["taken"] + outcomes["refused"] == 60
    assert name == "command" or outcomes["refused"]


@pytest.mark.parametrize("name", TARGETS)
def test_what_once_broke_stays_mended(name: str) -> None:
    for text in corpus(name):
        error = tried(TARGETS[name], text)
        assert error is None or isinstance(error, NpusimError)


def test_the_corpus_is_of_targets_that_exist() -> None:
    assert {place.name for place in CORPUS.iterdir()} <= TARGETS.keys()


def test_guided_inputs_reach_more_code_in_every_target(tmp_path: Path) -> None:
    """Atheris ends its process after a target, and sees modules that it has prepared alone."""
    pytest.importorskip("atheris", reason="guided inputs need Atheris")
    words = ["choices", "tiling", "--guided", "--count", "150", "--findings", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.fuzz", *words],
        cwd=CORPUS.parents[2], check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if line.endswith(":")] == [
        "choices:",
        "tiling:",
    ]
    reached = [int(count) for count in re.findall(r"DONE +cov: (\d+)", done.stderr)]
    assert len(reached) == 2
    assert min(reached) > 20


def test_a_foreign_exception_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(text: str) -> None:
        raise KeyError(text)

    target = Target(broken, lambda texts, random: texts[0], lambda: ["seed"])
    monkeypatch.setitem(TARGETS, "broken", target)
    outcomes, _ = campaign("broken", 3, 0, tmp_path)
    assert outcomes == {"findings": 3}
    (file,) = tmp_path.glob("broken-*.txt")  # one of a kind
    assert file.read_text(encoding="utf-8") == "seed"
    assert "KeyError" in capsys.readouterr().out


def test_changes_are_those_of_the_seed() -> None:
    text, words = "a: 1\nb: [2, 3]\n", ["run", "matmul", "--m", "3"]
    for seed in range(50):
        once, again = (mutated(text, [text], Random(seed)) for _ in range(2))
        assert once == again
        assert mutated_words(words, words, Random(seed)) == mutated_words(
            words, words, Random(seed)
        )
    assert len({mutated(text, [text], Random(seed)) for seed in range(50)}) > 30
