"""``npusim compare``: files, lines, and lines with further options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.cli.main import main

Capture = pytest.CaptureFixture[str]
LINE = "matmul --device tiny --m 32 --k 48 --n 16"


def result(**options: Any) -> npusim.Result:
    a, b = npusim.spec((32, 48), "fp16"), npusim.spec((48, 16), "fp16")
    return npusim.ops.matmul(a, b, **{"device": "tiny", **options})


@pytest.mark.parametrize("further", ["--cores 0", f"{LINE} --cores 0", "--start warm --cores 0"])
def test_further_options_come_after_those_of_a(further: str, capsys: Capture) -> None:
    assert main(["compare", LINE, further, "--json"]) == 0
    start = "warm" if "warm" in further else "cold"
    b = result(cores=[0], start=start)
    want = npusim.compare(result(), b, labels=(LINE, further))
    assert json.loads(capsys.readouterr().out) == want.to_json()


def test_files_are_what_run_wrote(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", *LINE.split(), "--json"]) == 0
    file = tmp_path / "before.json"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["compare", str(file), LINE]) == 0
    assert capsys.readouterr().out.endswith("\nno difference\n")
    assert main(["compare", str(file), f"{LINE} --cores 0"]) == 0
    assert "KERNELS" in capsys.readouterr().out


def test_a_figure_and_a_trace_are_written(tmp_path: Path, capsys: Capture) -> None:
    plot, trace = tmp_path / "both.png", tmp_path / "both.json.gz"
    words = ["compare", LINE, "--device ascend910", "--plot", str(plot), "--trace", str(trace)]
    assert main(words) == 0
    out = capsys.readouterr().out
    for path in (plot, trace):
        assert path.stat().st_size > 1000
        assert f"wrote {path}: " in out


def test_an_own_kernel_in_two_sizes(tmp_path: Path, capsys: Capture) -> None:
    from tests.documents.pages import files  # noqa: PLC0415 - the file of the guide

    (tmp_path / "scale.py").write_text(files()["scale.py"], encoding="utf-8")
    line = f"--kernel {tmp_path / 'scale.py'} --arg count=9000 --device tiny"
    assert main(["compare", line, "--arg chunk=1024"]) == 0
    out = capsys.readouterr().out
    assert "scale" in out
    assert "scale instructions: 9 -> 27" in out
