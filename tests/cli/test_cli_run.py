"""``npusim run``: reports, checks, and options that reach the library.

``npusim run``: arrays in and out, and the files it writes.

``npusim run``: every message it refuses with.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.cli import checks
from npusim.cli.main import main
from npusim.ops import CARDS, operators
from npusim.problem.layouts import fracz_grouped_to_oihw, to_5hd
from npusim.problem.reference import conv_filter_grad, relative_error
from npusim.results import Result
from tests.tables import rows

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

    monkeypatch.setattr(sys.modules["npusim.ops.matrix_product"], "matmul", wrong)
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
    check = checks.Check(output="c", error=float("nan"), limit=1e-5)
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
    got = np.array([[1.0, 2.5], [np.nan, 4.0]], np.float32)
    want = np.array([[1.0, 2.0], [3.0, 4.0]])
    found = checks._differences(got, want, 1e-3)
    assert found == "2 of 4 elements differ, most at [1, 0]: nan, expected 3"
    assert checks._differences(got[0], want[0], 0.1).startswith(
        "1 of 2 elements differ, most at [1]"
    )


def test_a_failed_check_says_what_is_beyond_the_range_of_the_type() -> None:
    """An infinity of an overflow, and the largest number where the chip saturates."""
    want = np.array([131072.0, 1.0])
    for overflow in (np.inf, 65504):
        found = checks._differences(np.array([overflow, 1], np.float16), want, 1e-3)
        assert found.endswith("expected 131072; 1 are expected beyond the range of fp16, 65,504")


def test_arrays_go_in_and_out(tmp_path: Path, capsys: Capture) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 20, 6, 5)).astype(np.float16)
    dy = rng.standard_normal((2, 32, 6, 5)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "dy.npy", to_5hd(dy, 16))
    base = ["run", "conv2d_backprop_filter", "--device", "tiny", "--cout", "32", "--kernel", "3x3",
            "--padding", "1,1,1,1", "--check", "--input", f"x={tmp_path / 'x.npy'}",
            "--input", f"dy={tmp_path / 'dy.npy'}",
            "--output", str(tmp_path / "dw.npy")]  # fmt: skip
    assert main(base) == 0
    assert f"wrote {tmp_path / 'dw.npy'}: grad_weight (1, 18, 32, 16) float32, FRACTAL_Z" in (
        capsys.readouterr().out
    )
    own = fracz_grouped_to_oihw(np.load(tmp_path / "dw.npy"), 32, 20, (3, 3), 1, 16)
    assert main([*base, "--output-layout", "framework"]) == 0
    assert "(32, 20, 3, 3) float32, (Cout, Cin/groups, KH, KW)" in capsys.readouterr().out
    oihw = np.load(tmp_path / "dw.npy")
    np.testing.assert_array_equal(oihw, own)
    want = conv_filter_grad(x, dy, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    assert relative_error(oihw, want) < 1e-6


def test_random_inputs_follow_the_seed(tmp_path: Path) -> None:
    def product(seed: str) -> bytes:
        path = tmp_path / "c.npy"
        assert main([*MATMUL, "--seed", seed, "--output", str(path)]) == 0
        return path.read_bytes()

    assert product("5") == product("5") != product("6")


def test_every_file_is_written_and_named(tmp_path: Path, capsys: Capture) -> None:
    trace, plain = tmp_path / "t.json.gz", tmp_path / "t.json"
    plot, roofline, page = tmp_path / "p.png", tmp_path / "r.SVG", tmp_path / "r.html"
    words = [*MATMUL, "--plot", str(plot), "--plot-roofline", str(roofline), "--report", str(page)]
    assert main([*words, "--trace", str(trace)]) == 0
    out = capsys.readouterr().out
    for path in (trace, plot, roofline, page):
        assert f"wrote {path}" in out
    assert "drag it into https://ui.perfetto.dev" in out
    assert main([*MATMUL, "--trace", str(plain)]) == 0
    assert gzip.decompress(trace.read_bytes()) == plain.read_bytes()
    assert json.loads(plain.read_bytes())["traceEvents"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in roofline.read_bytes()
    assert "<!doctype html>" in page.read_text(encoding="utf-8")


def test_a_trace_shows_the_cores_and_the_time_asked_for(tmp_path: Path, capsys: Capture) -> None:
    whole, part, plot = tmp_path / "t.json", tmp_path / "part.json", tmp_path / "p.png"
    assert main([*MATMUL, "--trace", str(whole)]) == 0
    words = ["--from", "0.1", "--to", "0.2", "--core", "core0", "--plot", str(plot)]
    core = next(
        event["args"]["name"]
        for event in json.loads(whole.read_bytes())["traceEvents"]
        if event.get("name") == "process_name" and event["pid"]
    )
    words[words.index("core0")] = core
    assert main([*MATMUL, "--trace", str(part), *words]) == 0
    assert 0 < part.stat().st_size < whole.stat().st_size
    assert plot.is_file()
    capsys.readouterr()
    assert main([*MATMUL, "--from", "0.5"]) == 2
    assert "--from says what --trace and --plot show; add one of them" in capsys.readouterr().err
    assert main([*MATMUL, "--trace", str(part), "--from", "9", "--to", "1"]) == 2
    assert "window 9 to 1 us shows nothing" in capsys.readouterr().err


@rows("tests/data/rows/cli.yaml", "a_timeline_is_kept_where_a_file_needs_it", "words, keep")
def test_a_timeline_is_kept_where_a_file_needs_it(
    words: list[str], keep: bool | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[object] = []
    right = npusim.ops.matmul

    def spy(*inputs: Any, **options: Any) -> Result:
        seen.append(options["timeline"])
        return right(*inputs, **options)

    monkeypatch.setattr(sys.modules["npusim.ops.matrix_product"], "matmul", spy)
    monkeypatch.chdir(tmp_path)
    assert main([*MATMUL, *words]) == 0
    assert seen == [keep]


def test_a_failed_write_loses_neither_the_report_nor_the_other_files(
    tmp_path: Path, capsys: Capture
) -> None:
    full, page = tmp_path / "c.npy", tmp_path / "page.html"
    full.symlink_to("/dev/full")
    assert main([*MATMUL, "--output", str(full), "--report", str(page)]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("operator    matmul")
    assert f"wrote {page}" in out
    assert err.startswith(f"npusim: error: --output {full} was not written: ")
    assert page.is_file()


Fails = Callable[..., str]


def test_a_layer_of_another_dimension(fails: Fails, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "description: one\nlayers:\n  a: {cin: 16, cout: 16, spatial: [4, 4, 4], kernel: 1}\n"
    )
    said = fails(*CONV[:4], "--layer", f"{own}/a")
    assert said == (
        f"--layer {own}/a has 3 spatial dimensions; conv2d_backprop_filter takes layers with 2"
    )


def test_missing_and_contradicting_sizes(fails: Fails, tmp_path: Path) -> None:
    assert fails(*MATMUL[:-2]) == (
        "--n is missing; give it, or with --input an operand whose shape shows it"
    )
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((32, 40), np.float16))
    assert fails(*MATMUL, "--input", f"a={path}") == (
        f"--input a={path} has shape (32, 40), which makes --k 40, but --k is 48; correct one of "
        "them"
    )
    other = tmp_path / "b.npy"
    np.save(other, np.zeros((8, 16), np.float16))
    said = fails(*MATMUL[:4], "--input", f"a={path}", "--input", f"b={other}")
    assert said == (
        f"--input b={other} has shape (8, 16), which makes --k 8, but --input a makes it 40; "
        "correct one of them"
    )


def test_input_files_that_do_not_fit(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    given = ("--input", f"x={path}")
    assert fails(*CONV, *given).startswith(f"--input x={path}: cannot be read: ")
    path.write_bytes(b"")
    assert fails(*CONV, *given).endswith("; give a file that numpy.save wrote")
    with path.open("wb") as file:
        np.savez(file, one=np.zeros(1))
    assert fails(*CONV, *given) == (
        f"--input x={path}: holds several arrays; give a .npy file with one"
    )
    np.save(path, np.zeros((1, 16, 6, 5), np.float32))
    assert fails(*CONV, *given) == (f"--input x={path} is float32; this call takes float16")
    np.save(path, np.zeros((16, 6, 5), np.float16))
    assert fails(*CONV, *given) == (
        f"--input x={path} has shape (16, 6, 5); this call takes (16, 16, 6, 5) (NCHW) or "
        "(16, 1, 6, 5, 16) (5HD)"
    )
    np.save(path, np.zeros((1, 16, 6, 6), np.float16))
    assert f"--input x={path} has shape (1, 16, 6, 6); this call takes" in fails(*CONV, *given)
    assert fails(*MATMUL, "--input", f"a={path}") == (
        f"--input a={path} has shape (1, 16, 6, 6); it must have 2 axes (M, K), or 3 with a batch"
    )
