"""Every notebook runs from top to bottom and shows what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.documents.notebooks import NOTEBOOKS, executed, texts


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_shows_what_it_prints(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    saved = json.loads(path.read_text(encoding="utf-8"))
    run = executed(path)
    assert texts(run)
    assert texts(saved) == texts(run), "renew it: python -m tests.documents notebooks"
    for cell, again in zip(saved["cells"], run["cells"], strict=True):
        kinds = [[output["output_type"] for output in c.get("outputs", ())] for c in (cell, again)]
        assert kinds[0] == kinds[1]
