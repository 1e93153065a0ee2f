"""The command that searches tilings: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from npusim.cli.main import main
from tests.texts import text_of

pytestmark = pytest.mark.compiled

MATMUL = ("matmul", "--m", "96", "--k", "96", "--n", "96", "--device", "ascend310p")
ALONE = ("--jobs", "1", "--store", "none")

Capture = pytest.CaptureFixture[str]

KERNEL = text_of("tuned_kernel.txt")


def test_the_tiling_printed_is_one_that_run_takes(capsys: Capture) -> None:
    assert main(["tune", *MATMUL, *ALONE]) == 0
    out = capsys.readouterr().out.splitlines()
    (words,) = (line.removeprefix("tiling: ") for line in out if line.startswith("tiling: "))
    cycles = int(out[0].split(": ")[1].split()[0].replace(",", ""))
    assert main(["run", *MATMUL, "--timing-only", "--json", "--tiling", words]) == 0
    assert json.loads(capsys.readouterr().out)["cycles"] == cycles


def test_json_csv_and_plot(tmp_path: Path, capsys: Capture) -> None:
    files = ["--csv", str(tmp_path / "t.csv"), "--plot", str(tmp_path / "t.png")]
    assert main(["tune", *MATMUL, *ALONE, "--json", *files]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["proved"] is True
    assert told["gap"] == 0
    assert err.count("wrote ") == 2
    table = pd.read_csv(tmp_path / "t.csv")
    assert len(table) == told["candidates"]
    assert table.cycles.min() == told["cycles"]
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_a_kernel_of_a_file_in_two_processes(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "own_copy.py"
    file.write_text(KERNEL)
    store = str(tmp_path / "tuned.sqlite")
    words = ["--kernel", str(file), "--device", "ascend910b2", "--jobs", "2", "--store", store]
    assert main(["tune", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["proved"]
    assert told["illegal"] == 1
    assert main(["tune", *words]) == 0
    assert "known from before" in capsys.readouterr().out


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_kernel_that_is_wrong_for_one_candidate_names_it(
    jobs: str, tmp_path: Path, fails: Callable[..., str]
) -> None:
    file = tmp_path / "own_copy.py"
    wrong = "        def emit(task):\n            1 / (self.piece - 256)\n"
    file.write_text(KERNEL.replace("        def emit(task):\n", wrong))
    words = ["--kernel", str(file), "--device", "ascend910b2", "--jobs", jobs, "--store", "none"]
    told = fails("tune", *words)
    assert told.startswith("candidate copy piece 256: ZeroDivisionError: division by zero (")
    assert told.endswith("the code there is wrong, not the input: --debug shows the traceback")


@pytest.mark.parametrize("operator", ["matmul", "conv2d_backprop_filter"])
def test_help_names_the_tilings_that_a_search_finds(operator: str, capsys: Capture) -> None:
    assert main(["run", operator, "--help"]) == 0
    assert "tuned (the fastest that a search finds)" in " ".join(capsys.readouterr().out.split())


LAYER = ("--batch", "4", "--cin", "64", "--cout", "64", "--size", "16x16", "--kernel", "1x1")


def test_the_vendors_words_of_the_fastest_tiling(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "words.json"
    call = ("convolution_backward", *LAYER, "--device", "ascend310")
    search = ("--which", "conv_backprop_input", "--budget", "1", "--cann", str(file))
    assert main(["tune", *call, *ALONE, *search]) == 0
    assert f"wrote {file}" in capsys.readouterr().out
    words = json.loads(file.read_text(encoding="utf-8"))
    assert {"baseM", "baseN", "baseK", "stepKa"} <= set(words)
    tiling = f"conv_backprop_input:@{file}"
    assert main(["run", *call, "--timing-only", "--tiling", tiling]) == 0
    assert "CANN tiling of conv_backprop_input" in capsys.readouterr().out


def test_what_the_vendors_words_cannot_say(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "words.json"
    call = ("conv2d_backprop_filter", *LAYER, "--device", "ascend310", "--budget", "1")
    assert main(["tune", *call, *ALONE, "--cann", str(file)]) == 2
    assert "the vendor's kernel shares out blocks" in capsys.readouterr().err
    assert not file.exists()
