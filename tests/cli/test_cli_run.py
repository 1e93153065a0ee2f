"""``npusim run``: reports, checks, and options that reach the library."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.cli import run as command
from npusim.cli.main import main
from npusim.ops import CARDS, operators
from npusim.results import Result

Capture = pytest.CaptureFixture[str]

MATMUL = ("run", "matmul", "--device", "tiny", "--m", "32", "--k", "48", "--n", "16")
CONV = ("run", "conv2d_backprop_filter", "--device", "tiny", "--cin", "16", "--cout", "32",
        "--size", "6x5", "--kernel", "3", "--padding", "1")  # fmt: skip


def test_every_operator_can_be_run_and_nothing_else() -> None:
    assert sorted(CARDS) == operators()


def test_the_report_is_what_the_library_gives(capsys: Capture) -> None:
    assert main([*MATMUL, "--timing-only"]) == 0
    inputs = npusim.spec((32, 48), "fp16"), npusim.spec((48, 16), "fp16")
    assert capsys.readouterr().out == npusim.ops.matmul(*inputs, device="tiny").text()


@pytest.mark.parametrize("as_json", [False, True])
def test_wrong_numbers_fail_the_check(
    as_json: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = npusim.ops.matmul

    def wrong(*inputs: Any, **options: Any) -> Result:
        result = right(*inputs, **options)
        assert result.outputs is not None
        assert result.outputs[0] is not None
        result.outputs[0][0, 0] += 1
        return result

    monkeypatch.setattr(sys.modules["npusim.ops.matmul"], "matmul", wrong)
    assert main([*MATMUL, "--check", *["--json"][: int(as_json)]]) == 1
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["check"]["passed"] is False
    else:
        assert out.startswith("operator    matmul")
        told = (
            r"1\.0e-05\): fail; 1 of [\d,]+ elements differ, most at \[0, 0\]: .+, expected .+\n$"
        )
        assert re.search(told, out)


def test_a_check_without_finite_error_fails_and_stays_json() -> None:
    check = command.Check(output="c", error=float("nan"), limit=1e-5)
    assert not check.passed
    assert check.to_json() == {
        "output": "c", "relative_error": None, "limit": 1e-5, "passed": False
    }  # fmt: skip


def test_json_is_the_result_and_the_check_alone(capsys: Capture, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main([*CONV, "--json", "--check", "--report", str(page)]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    check = value.pop("check")
    assert check["passed"]
    (output,) = check["outputs"]
    assert output["output"] == "grad_weight"
    assert 0 < output["relative_error"] < output["limit"] == 1e-5
    assert value["operator"] == "conv2d_backprop_filter"
    assert value["cycles"] > 0
    assert f"wrote {page}" in err


def _cycles(capsys: Capture, *words: str) -> int:
    assert main([*words, "--json"]) == 0
    cycles: int = json.loads(capsys.readouterr().out)["cycles"]
    return cycles


def test_a_layer_stands_for_its_sizes(capsys: Capture) -> None:
    base = ("run", "conv2d_backprop_filter", "--device", "ascend910", "--timing-only")
    sizes = ("--cin", "512", "--cout", "512", "--size", "7", "--kernel", "3", "--padding", "1")
    by_layer = _cycles(capsys, *base, "--layer", "resnet50/res5_3x3")
    assert by_layer == _cycles(capsys, *base, *sizes)
    assert by_layer < _cycles(capsys, *base, *sizes, "--batch", "4")


@pytest.mark.parametrize("cores", ["0-1", "0,1", "0b11", "0X3"])
def test_cores_are_groups_or_a_mask(cores: str, capsys: Capture) -> None:
    big = ("run", "matmul", "--device", "tiny", "--m", "256", "--k", "64", "--n", "256",
           "--timing-only")  # fmt: skip
    options = npusim.spec((256, 64), "fp16"), npusim.spec((64, 256), "fp16")
    want = npusim.ops.matmul(*options, device="tiny", cores=[0, 1]).cycles
    assert _cycles(capsys, *big, "--cores", cores) == want
    assert want < _cycles(capsys, *big, "--cores", "0")


def test_figures_start_and_tiling_reach_the_library(capsys: Capture) -> None:
    plain = _cycles(capsys, *MATMUL)
    slow = _cycles(capsys, *MATMUL, "--set", "launch.kernel=777cycle", "--set", "groups=1")
    assert slow > plain + 600
    fetched = {}
    for start in ("cold", "warm"):
        assert main([*MATMUL, "--start", start, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["traffic"]
        fetched[start] = sum(row["bytes"] for row in rows if row["dst"] == "L2")
    assert fetched == {"cold": (32 * 48 + 48 * 16) * 2, "warm": 0}
    assert main([*MATMUL, "--tiling", "base_m=16, base_n=16,base_k=32"]) == 0
    assert "base 16x16x32, step 2" in capsys.readouterr().out


@pytest.mark.parametrize("operator", CARDS)
def test_help_states_defaults_and_an_example_of_its_operator_only(
    operator: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run", operator, "--help"]) == 0
    text = capsys.readouterr().out
    assert CARDS[operator].computes in " ".join(text.split())
    assert re.findall(r"^  npusim run (\w+) ", text.partition("\nexample:\n")[2], re.M) == [
        operator
    ]
    # One line per option: a continued help text is indented by 22 columns or more.
    entries = re.sub(r"\n {22,}", " ", text).splitlines()
    silent = [e.split()[0] for e in entries if e.startswith("  --") and "default" not in e]
    assert set(silent) <= {"--layer"}  # which replaces sizes, and has no default
    own = {f"--{option.name.replace('_', '-')}" for option in CARDS[operator].options}
    shown = {e.split()[0] for e in entries if e.startswith("  --")}
    others = {f"--{o.name.replace('_', '-')}" for card in CARDS.values() for o in card.options}
    assert own <= shown
    assert not (others - own) & shown


def test_the_operator_may_stand_anywhere_on_the_line(capsys: Capture) -> None:
    words = [*MATMUL[:1], *MATMUL[2:], MATMUL[1]]
    assert _cycles(capsys, *words) == _cycles(capsys, *MATMUL)


def test_a_failed_check_says_where_and_how_many() -> None:
    got, want = np.array([[1.0, 2.5], [np.nan, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])
    found = command._differences(got, want, 1e-3)
    assert found == "2 of 4 elements differ, most at [1, 0]: nan, expected 3"
    assert command._differences(got[0], want[0], 0.1).startswith(
        "1 of 2 elements differ, most at [1]"
    )
