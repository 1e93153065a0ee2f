"""Twenty seeded regressions, each caught by its line, and twenty refactorings, none flagged.

A seed is one edit of one file. Those of a batch go into one commit: each regression must be found
in its case, by its line, among all the other changes, and no other case may be flagged.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from npusim.cli.main import main
from tests.documents.pages import files
from tests.gate.conftest import commit, git

ROOT = Path(__file__).parents[2]


class Seed(NamedTuple):
    """An edit of ``file``, of every ``old``; ``case`` is a line whose time it may change."""

    file: str
    old: str
    new: str
    case: str


REGRESSIONS, REFACTORINGS = (
    [Seed(**row) for row in rows]
    for rows in yaml.safe_load(
        (ROOT / "tests" / "data" / "gate_seeds.yaml").read_text(encoding="utf-8")
    ).values()
)

#: Of each that many go into one commit.
BATCH = 4


@pytest.fixture
def npusim_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_of_children: None
) -> Path:
    """A repository of npusim, with the kernels of the guide beside it."""
    folder = tmp_path / "npusim-repository"
    for name in ("npusim", "kernels", "configs"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for name, code in files().items():
        if name.endswith(".py"):
            (folder / name).write_text(code, encoding="utf-8")
    (folder / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    git(folder, "init", "--quiet", "--initial-branch=main")
    monkeypatch.chdir(folder)
    return folder


def line_of(folder: Path, seed: Seed) -> int:
    """The first line that a seed changes."""
    old = git(folder, "show", f"HEAD:{seed.file}").split("\n")
    new = (folder / seed.file).read_text(encoding="utf-8").split("\n")
    return next(n for n, pair in enumerate(zip(old, new, strict=False), 1) if pair[0] != pair[1])


@pytest.mark.parametrize("seed", [*REGRESSIONS, *REFACTORINGS], ids=lambda seed: seed.file)
def test_what_a_seed_changes_stands_in_its_file(seed: Seed) -> None:
    text = files().get(seed.file) or (ROOT / seed.file).read_text(encoding="utf-8")
    assert seed.old in text


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("batch", range(len(REGRESSIONS) // BATCH))
def test_a_batch_of_changes(
    batch: int, npusim_itself: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = npusim_itself
    bad, good = (of[BATCH * batch :][:BATCH] for of in (REGRESSIONS, REFACTORINGS))
    lines = [json.dumps(seed.case) for seed in (*bad, *good)]
    text = "tolerance: {percent: 0.9, cycles: 0}\ncases:\n" + "".join(
        f"  - run: {n}\n" for n in lines
    )
    (folder / "gate.yaml").write_text(text, encoding="utf-8")
    commit(folder)
    for seed in (*bad, *good):
        file = folder / seed.file
        before = file.read_text(encoding="utf-8")
        assert seed.old in before, seed
        file.write_text(before.replace(seed.old, seed.new), encoding="utf-8")
    capsys.readouterr()
    assert main(["gate", "gate.yaml", "--against", "main", "--json"]) == 1
    found = {one["case"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    for seed in good:
        one = found[seed.case]
        assert (one["verdict"], one["before"]) == ("", one["after"]), seed
    first = 0
    for seed in bad:
        one = found[seed.case]
        assert one["verdict"] == "slower", seed
        assert one["grown"], seed
        lines_first = [(c["file"], c["line"]) for c in one["culprits"][:1]]
        first += lines_first == [(seed.file, line_of(folder, seed))]
    assert first == len(bad), "of all twenty, what is promised is 18"
