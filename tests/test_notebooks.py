"""Every notebook runs from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    names: dict[str, Any] = {}
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code
    for number, text in enumerate(code):
        exec(compile(text, f"{path.name}[{number}]", "exec"), names)
    assert all(cell.get("outputs") for cell in cells if cell["cell_type"] == "code")
