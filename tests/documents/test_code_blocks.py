"""The Python of the documents runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.pages import python_blocks

CODE = python_blocks()


@pytest.mark.parametrize("name", CODE)
def test_python_blocks_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where the block writes its files
    code = CODE[name]
    if "import torch" in code:
        pytest.importorskip("torch")
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert bool(printed) == ("print(" in code)
    written = re.findall(r'"([\w.]+\.(?:json|html|png))"', code)
    assert all((tmp_path / file).stat().st_size > 1000 for file in written)


def test_python_blocks_were_found() -> None:
    for word in ("(Kernel)", "import torch", ".time_range", ".replace("):
        assert any(word in code for code in CODE.values()), word
