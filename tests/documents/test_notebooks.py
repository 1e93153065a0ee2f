"""Every notebook runs from top to bottom and shows what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.documents.notebooks import NOTEBOOKS, executed, is_long, texts

SHORT, LONG = ([p for p in NOTEBOOKS if is_long(p) is long] for long in (False, True))


@pytest.mark.parametrize(
    "path",
    [*SHORT, *(pytest.param(path, marks=pytest.mark.slow) for path in LONG)],
    ids=lambda path: path.stem,
)
def test_notebook_shows_what_it_prints(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    saved = json.loads(path.read_text(encoding="utf-8"))
    run = executed(path)
    assert texts(run)
    assert texts(saved) == texts(run), "renew it: python -m tests.documents notebooks"
    for cell, again in zip(saved["cells"], run["cells"], strict=True):
        kinds = [[output["output_type"] for output in c.get("outputs", ())] for c in (cell, again)]
        assert kinds[0] == kinds[1]


#: The notebook of a training step, whose calls the guide and the tests of the trainer make too.
TRAINED = "09_training_step"


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] if p.stem == TRAINED else []) for p in LONG],
    ids=lambda path: path.stem,
)
def test_notebook_runs_in_a_small_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells have outputs, and the saved ones are of the same kinds."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    saved = json.loads(path.read_text(encoding="utf-8"))
    for cell, small in zip(saved["cells"], executed(path, small=True)["cells"], strict=True):
        kinds = [[output["output_type"] for output in c.get("outputs", ())] for c in (cell, small)]
        assert kinds[0] == kinds[1]
