"""``npusim run``: arrays in and out, and the files it writes."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.cli.main import main
from npusim.layout import fracz_grouped_to_oihw, to_5hd
from npusim.results import Result
from npusim.shapes.reference import conv_filter_grad, relative_error

Capture = pytest.CaptureFixture[str]

MATMUL = ("run", "matmul", "--device", "tiny", "--m", "32", "--k", "48", "--n", "16")


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

    monkeypatch.setattr(sys.modules["npusim.ops.matmul"], "matmul", spy)
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
