"""The Python of the documents runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.pages import python_blocks

CODE = python_blocks()

#: Parts of blocks that take seconds, and what stands for them but in `make slow`.
LONG = {
    '"l2.size": "64KiB:1MiB:*2"': '"l2.size": "64KiB:1MiB:*16"',
    "trials=30": "trials=6",
    'npusim.spec((256, 256), "fp16")': 'npusim.spec((64, 64), "fp16")',
    '"4:24:4"': '"4:24:20"',
}


def shortened(code: str) -> str:
    """A block with smaller sizes in place of the long parts."""
    for part, smaller in LONG.items():
        code = code.replace(part, smaller)
    return code


#: Blocks by name, those with long parts shortened.
SHORT = {name: shortened(code) for name, code in CODE.items()}


def test_every_long_part_is_there() -> None:
    assert all(any(part in code for code in CODE.values()) for part in LONG)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *(pytest.param(name, code, id=name) for name, code in SHORT.items()),
        *(
            pytest.param(name, code, id=f"{name}, whole", marks=pytest.mark.slow)
            for name, code in CODE.items()
            if code != SHORT[name]
        ),
    ],
)
def test_python_blocks_run(
    name: str,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # where the block writes its files
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
