"""``npusim explain``: text, JSON, and colours on a terminal.

``npusim compare``: files, lines, and lines with further options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.cli.main import main
from npusim.results.explanation import Explanation
from tests.documents.pages import files

Capture = pytest.CaptureFixture[str]

MATMUL = ("explain", "matmul", "--device", "tiny", "--m", "33", "--k", "48", "--n", "16")


def explained(*, what_if: bool = True) -> Explanation:
    a, b = npusim.spec((33, 48), "fp16"), npusim.spec((48, 16), "fp16")
    return npusim.ops.matmul(a, b, device="tiny").explain(what_if=what_if)


def test_the_text_is_what_the_library_gives(capsys: Capture) -> None:
    assert main(MATMUL) == 0
    assert capsys.readouterr().out == explained().text()
    assert main([*MATMUL, "--no-what-if"]) == 0
    out = capsys.readouterr().out
    assert out == explained(what_if=False).text()
    assert "M = 33 wastes 31 % of the cube" in out


def test_json(capsys: Capture) -> None:
    assert main([*MATMUL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == explained().to_json()


def test_a_terminal_gets_colours_in_80_columns(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "132")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main([*MATMUL, "--no-what-if"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[" in out
    assert "CRITICAL PATH" in out


def test_sizes_tilings_and_devices_are_those_of_run(capsys: Capture) -> None:
    words = ["explain", "--device", "ascend910", "conv2d_backprop_filter", "--layer",
             "resnet50/res4_3x3", "--set", "paths.GM->L1.startup=100cycle", "--no-what-if",
             "--tiling", "base_m=16,base_n=16,base_k=16,slab_k=196", "--json"]  # fmt: skip
    assert main(words) == 0
    value = json.loads(capsys.readouterr().out)
    assert main(["run", *words[1:-4], *words[-3:], "--timing-only"]) == 0
    assert value["cycles"] == json.loads(capsys.readouterr().out)["cycles"]


def test_a_kernel_of_a_file_is_explained(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "scale.py").write_text(files()["scale.py"], encoding="utf-8")
    words = ["--kernel", str(tmp_path / "scale.py"), "--arg", "count=9000", "--device", "tiny"]
    assert main(["explain", *words]) == 0
    out = capsys.readouterr().out
    assert "CRITICAL PATH through scale.py" in out
    line = 1 + next(
        i for i, text in enumerate(files()["scale.py"].splitlines()) if "GM -> UB" in text
    )
    assert any(row.split()[:3] == ["MTE2", "data_move", str(line)] for row in out.splitlines())


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
