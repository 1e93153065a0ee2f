"""``npusim run``: reports, checks, files in and out, and every message it refuses with."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.cli import matmul, run
from npusim.cli.main import main
from npusim.layout import fracz_grouped_to_oihw, to_5hd
from npusim.numerics.reference import conv_filter_grad, relative_error
from npusim.ops import operators
from npusim.results import Result

Capture = pytest.CaptureFixture[str]
Fails = Callable[..., str]

MATMUL = ("run", "matmul", "--device", "tiny", "--m", "32", "--k", "48", "--n", "16")
CONV = ("run", "conv2d_backprop_filter", "--device", "tiny", "--cin", "16", "--cout", "32",
        "--size", "6x5", "--kernel", "3", "--padding", "1")  # fmt: skip


@pytest.fixture
def fails(capsys: Capture) -> Fails:
    """Runs a command line that must fail with status 2; returns its one line on stderr."""

    def run_it(*words: str) -> str:
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("npusim: error: ")
        assert err.count("\n") == 1, "one message, no traceback"
        return err.removeprefix("npusim: error: ").rstrip("\n")

    return run_it


def test_every_operator_can_be_run_and_nothing_else() -> None:
    assert sorted(run.OPERATORS) == operators()


def test_the_report_is_what_the_library_gives(capsys: Capture) -> None:
    assert main([*MATMUL, "--timing-only"]) == 0
    inputs = npusim.spec((32, 48), "fp16"), npusim.spec((48, 16), "fp16")
    assert capsys.readouterr().out == npusim.ops.matmul(*inputs, device="tiny").text()


@pytest.mark.parametrize("device", ["tiny", "ascend910"])
def test_a_checked_convolution_passes(device: str, capsys: Capture) -> None:
    words = [device if word == "tiny" else word for word in CONV]
    assert main([*words, "--batch", "2", "--stride", "2x1", "--groups", "2", "--check"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("check  gradient against float64: relative error ")
    assert last.endswith(" (limit 1e-05): pass")


def test_a_checked_product_passes(capsys: Capture) -> None:
    assert main([*MATMUL, "--check"]) == 0
    assert "check  product against float64: relative error" in capsys.readouterr().out


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

    monkeypatch.setattr(matmul, "matmul", wrong)
    assert main([*MATMUL, "--check", *["--json"][: int(as_json)]]) == 1
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["check"]["passed"] is False
    else:
        assert out.startswith("operator    matmul")
        assert out.endswith("(limit 1e-05): fail\n")


def test_a_check_without_finite_error_fails_and_stays_json() -> None:
    check = run.Check(what="product", error=float("nan"))
    assert not check.passed
    assert check.to_json() == {"relative_error": None, "limit": 1e-5, "passed": False}


def test_json_is_the_result_and_the_check_alone(capsys: Capture, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main([*CONV, "--json", "--check", "--report", str(page)]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    check = value.pop("check")
    assert check["passed"]
    assert 0 < check["relative_error"] < check["limit"] == 1e-5
    assert value["operator"] == "conv2d_backprop_filter"
    assert value["cycles"] > 0
    assert f"wrote {page}" in err


def test_json_without_check_says_null(capsys: Capture) -> None:
    assert main([*MATMUL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["check"] is None


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
    assert _cycles(capsys, *big) < want


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
    assert "base 16x16x32, step 4" in capsys.readouterr().out


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


def test_matrices_go_in_and_out(tmp_path: Path) -> None:
    a = np.arange(48, dtype=np.float16).reshape(6, 8)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", np.eye(8, dtype=np.float16))
    words = ["run", "matmul", "--device", "tiny", "--input", f"a={tmp_path / 'a.npy'}",
             "--input", f"b={tmp_path / 'b.npy'}", "--output", str(tmp_path / "c.npy")]  # fmt: skip
    assert main(words) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a)


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


@pytest.mark.parametrize(
    ("words", "keep"),
    [
        ([], None),
        (["--timeline"], True),
        (["--no-timeline"], False),
        (["--trace", "t.json"], True),
        (["--report", "r.html"], None),
        (["--report", "r.html", "--no-timeline"], False),
    ],
)
def test_a_timeline_is_kept_where_a_file_needs_it(
    words: list[str], keep: bool | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[object] = []
    right = npusim.ops.matmul

    def spy(*inputs: Any, **options: Any) -> Result:
        seen.append(options["timeline"])
        return right(*inputs, **options)

    monkeypatch.setattr(matmul, "matmul", spy)
    monkeypatch.chdir(tmp_path)
    assert main([*MATMUL, *words]) == 0
    assert seen == [keep]


def test_a_failed_write_loses_neither_the_report_nor_the_other_files(
    tmp_path: Path, capsys: Capture
) -> None:
    folder, page = tmp_path / "c.npy", tmp_path / "page.html"
    folder.mkdir()
    assert main([*MATMUL, "--output", str(folder), "--report", str(page)]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("operator    matmul")
    assert f"wrote {page}" in out
    assert err.startswith(f"npusim: error: --output {folder} was not written: ")
    assert page.is_file()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--cin", "3"],
         "--cin is an option of conv2d_backprop_filter; matmul takes --m, --k, --n"),
        (["--timing-only", "--check"],
         "--check needs numbers, which --timing-only leaves out; drop one"),
        (["--timing-only", "--input", "a=a.npy"],
         "--input needs numbers, which --timing-only leaves out; drop one"),
        (["--timing-only", "--output", "c.npy"],
         "--output needs numbers, which --timing-only leaves out; drop one"),
        (["--no-timeline", "--trace", "t.json"],
         "--trace needs the timeline; drop --no-timeline"),
        (["--plot", "p.pdf"], "--plot p.pdf: the file's name must end in .png or .svg"),
        (["--output", "c.txt"], "--output c.txt: the file's name must end in .npy"),
        (["--report", "none/r.html"],
         "--report none/r.html: there is no folder 'none'; create it first"),
        (["--plot", "p.png", "--plot-roofline", "p.png"],
         "--plot-roofline and --plot both write p.png; give two names"),
        (["--cores", "0b12"],
         "--cores is '0b12'; it must be groups such as 0-3,5, or a mask such as 0b1111 or 0xf"),
        (["--cores", "0x1f"],
         "core mask 0x1f has bit 4 set; tiny has groups 0-3, the mask of all is 0xf"),
        (["--cores", "7"], "there is no core group 7; tiny has groups 0-3"),
        (["--set", "groups=1", "--set", "groups=2"],
         "--set gives groups twice, '1' and '2'; keep one of them"),
        (["--set", "groups"],
         "argument --set: expected NAME=VALUE, got 'groups'; see 'npusim run --help'"),
        (["--engine", "none"], "engine is 'none'; it is one of simpy"),
        (["--start", "wram"],
         "argument --start: unknown 'wram'; did you mean 'warm'? (known: cold, warm); "
         "see 'npusim run --help'"),
        (["--seed", "-1"],
         "argument --seed: expected an integer of at least 0, got '-1'; see 'npusim run --help'"),
        (["--chek"],
         "unrecognized argument '--chek'; did you mean '--check'?; see 'npusim run --help'"),
        (["--tim"],
         "unrecognized argument '--tim'; did you mean '--timeline' or '--timing-only'?; "
         "see 'npusim run --help'"),
        (["stray"], "unrecognized argument 'stray'; see 'npusim run --help'"),
        (["--tiling", "base_m=16,basen=16"],
         "--tiling: unknown field 'basen'; did you mean 'base_n'?"),
        (["--tiling", "base_m=16,base_m=32"], "--tiling gives base_m twice; keep one of them"),
        (["--tiling", "base_m=big"], "--tiling: base_m is 'big'; it must be an integer >= 1"),
        (["--tiling", "base_m=16,base_n=16"],
         "--tiling lacks base_k, which has no default; complete it, or leave --tiling away "
         "(auto)"),
        (["--tiling", "base_m=8,base_n=16,base_k=16"],
         "tiling base_m is 8; it must be a multiple of 16, >= 16"),
        (["--input", "c=c.npy"], "--input c=...: unknown operand; known: a, b"),
    ],
)  # fmt: skip
def test_options_are_refused_before_anything_runs(
    extra: list[str],
    message: str,
    fails: Fails,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fails(*MATMUL, *extra) == message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cin", "16"],
         "conv2d_backprop_filter needs --layer WORKLOAD/LAYER, or --cin, --cout, --size and "
         "--kernel; missing: --cout, --size, --kernel"),
        (["--layer", "resnet50/conv1", "--cin", "3", "--stride", "2"],
         "--layer resnet50/conv1 gives all sizes, so --cin, --stride cannot be given too; drop "
         "--layer or the sizes"),
        (["--layer", "resnet50/res4_3x4"],
         "workload resnet50 has no layer 'res4_3x4'; did you mean 'res4_3x3'?"),
        (["--layer", "conv1"],
         "expected WORKLOAD/LAYER such as resnet50/conv1, got 'conv1'"),
        (["--cin", "16", "--cout", "16", "--size", "4", "--kernel", "3", "--groups", "3"],
         "--groups is 3, which must divide both --cin (16) and --cout (16); change one of them"),
        (["--cin", "16", "--cout", "16", "--size", "4", "--kernel", "5"],
         "output H would be 0: the filter reaches 5 but the padded input has 4; enlarge input "
         "or padding, or shrink kernel or dilation"),
        (["--size", "3by4"],
         "argument --size: expected HxW such as 3x5, or one number for both, each at least 1, "
         "got '3by4'; see 'npusim run --help'"),
        (["--stride", "0"],
         "argument --stride: expected HxW such as 3x5, or one number for both, each at least 1, "
         "got '0'; see 'npusim run --help'"),
        (["--padding", "1,2"],
         "argument --padding: expected U,D,L,R such as 1,1,0,0, or one number for all four, got "
         "'1,2'; see 'npusim run --help'"),
        (["--batch", "0"],
         "argument --batch: expected an integer of at least 1, got '0'; see 'npusim run --help'"),
    ],
)  # fmt: skip
def test_problems_that_cannot_be(words: list[str], message: str, fails: Fails) -> None:
    assert fails("run", "conv2d_backprop_filter", "--device", "tiny", *words) == message


def test_a_layer_of_another_dimension(fails: Fails, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "description: one\nlayers:\n  a: {cin: 16, cout: 16, spatial: [4, 4, 4], kernel: 1}\n"
    )
    said = fails(*CONV[:4], "--layer", f"{own}/a")
    assert said == (
        f"--layer {own}/a has 3 spatial dimensions; conv2d_backprop_filter takes layers with 2"
    )


def test_names_are_corrected(fails: Fails) -> None:
    assert fails("run", "matmull", "--device", "tiny").startswith(
        "argument OPERATOR: unknown 'matmull'; did you mean 'matmul'?"
    )
    assert fails("run", "matmul", "--device", "tinny", *MATMUL[4:]).startswith(
        "unknown device 'tinny'; did you mean 'tiny'?"
    )
    assert fails("run", "matmul") == (
        "the following arguments are required: --device; see 'npusim run --help'"
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
    assert fails(*CONV, *given) == (
        f"--input x={path} is float32 of shape (1, 16, 6, 5); this convolution takes float16 of "
        "shape (1, 16, 6, 5) (NCHW) or (1, 1, 6, 5, 16) (5HD)"
    )
    np.save(path, np.zeros((16, 6, 5), np.float16))
    assert "takes float16 of shape" in fails(*CONV, *given)
    np.save(path, np.zeros((1, 16, 6, 6), np.float16))
    assert "is float16 of shape (1, 16, 6, 6); this" in fails(*CONV, *given)
    assert fails(*MATMUL, "--input", f"a={path}") == (
        f"--input a={path} has shape (1, 16, 6, 6); matmul takes matrices, with 2 axes"
    )


def test_help_states_defaults_and_two_examples(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.count("  npusim run ") == 2
    # One line per option: a continued help text is indented by 22 columns or more.
    entries = re.sub(r"\n {22,}", " ", text).splitlines()
    silent = [e.split()[0] for e in entries if e.startswith("  --") and "default" not in e]
    # What has no default: a layer replaces sizes, and a device must be named.
    assert silent == ["--layer", "--device"]
