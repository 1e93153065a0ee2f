"""``npusim run --kernel``: kernels from files that lie anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npusim.base.dtypes import FP32
from npusim.base.errors import ArgumentError
from npusim.call.own_kernel import load_kernel, make_kernel
from npusim.cli.main import main
from npusim.machine.isa.operands import Tensor
from tests.documents.pages import files
from tests.tables import rows
from tests.texts import text_of

Capture = pytest.CaptureFixture[str]
Fails = Callable[..., str]

#: A kernel without a class method of sizes: its tensors are given in words.
COPY = text_of("copy_kernel.txt")


@pytest.fixture
def scale(tmp_path: Path) -> str:
    """The file of the guide, somewhere."""
    code = files()["scale.py"]
    assert len(code.splitlines()) < 60
    (tmp_path / "scale.py").write_text(code, encoding="utf-8")
    return f"{tmp_path / 'scale.py'}:Scale"


@pytest.fixture
def copy(tmp_path: Path) -> str:
    (tmp_path / "sizes.py").write_text("CHUNK = 64\n", encoding="utf-8")
    (tmp_path / "copy.py").write_text(COPY, encoding="utf-8")
    return str(tmp_path / "copy.py")


def test_a_file_runs_and_its_numbers_are_checked(scale: str, capsys: Capture) -> None:
    words = ["run", "--kernel", scale, "--arg", "count=5000", "--device", "tiny", "--check"]
    assert main([*words, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["operator"] == "scale"
    assert value["problem"] == "x 5000 fp16, y 5000 fp16 (out)"
    assert value["check"]["outputs"] == [
        {"output": "y", "relative_error": 0.0, "limit": 1e-3, "passed": True}
    ]
    # 1,000 bytes of x each way: the kernel's own words reach it.
    moved = {row["dst"]: row["bytes"] for row in value["traffic"] if row["operand"]}
    assert moved == {"UB": 10_000, "GM": 10_000}
    assert len({row["core"] for row in value["pipes"] if row["done"] < value["cycles"]}) == 4


def test_a_race_is_told_with_its_lines(tmp_path: Path, fails: Fails) -> None:
    """Every core writes all of y."""
    code = files()["scale.py"].replace('{"at": start * 2}', '{"at": start * 0}')
    (tmp_path / "race.py").write_text(code, encoding="utf-8")
    words = ["--kernel", str(tmp_path / "race.py"), "--device", "tiny", "--engine", "simpy"]
    told = fails("run", *words, "--arg", "count=16384", "--check")
    assert told.count("race.py:") == 2
    assert "both access bytes 0..8192 of y in kernel scale, and nothing orders them" in told


@pytest.mark.parametrize("spelling", ["--kernel {}", "--kernel={}", "kernel {}"])
def test_it_may_stand_anywhere_and_be_spelled_three_ways(
    spelling: str, scale: str, capsys: Capture
) -> None:
    own = spelling.format(scale).split()
    assert main(["run", "--device", "tiny", *own, "--timing-only", "--arg", "count=64"]) == 0
    assert "scale" in capsys.readouterr().out


def test_wrong_numbers_fail_the_check(tmp_path: Path, capsys: Capture) -> None:
    code = files()["scale.py"].replace("return 2 * x", "return 3 * x")
    (tmp_path / "wrong.py").write_text(code, encoding="utf-8")
    words = ["--kernel", str(tmp_path / "wrong.py"), "--arg", "count=100", "--device", "tiny"]
    assert main(["run", *words, "--check"]) == 1
    assert "fail; 99 of 100 elements differ, most at [" in capsys.readouterr().out


def test_fields_are_given_in_words(copy: str, tmp_path: Path, capsys: Capture) -> None:
    x = np.arange(512, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "y.npy"
    words = ["--arg", "x=512:fp32", "--arg", "y=512:fp32:out", "--arg", "tiling=chunk=128,slots=1"]
    assert main(["run", "--kernel", copy, *words, "--device", "tiny", "--arg", "turn=yes",
                 "--arg", "scale=1.5", "--arg", "kind=fp32", "--input", f"x={tmp_path / 'x.npy'}",
                 "--output", str(out)]) == 0  # fmt: skip
    assert (np.load(out) == x).all()
    assert "Tiling(chunk=128, slots=1)" in capsys.readouterr().out


def test_a_changed_file_is_read_anew(copy: str) -> None:
    tensors = {"x": "64:fp32", "y": "64:fp32:out"}
    kernel = make_kernel(load_kernel(copy), tensors)
    assert kernel.tensors == (Tensor("x", (64,), FP32), Tensor("y", (64,), FP32, "out"))
    Path(copy).write_text(COPY.replace('"copy"', '"other"'), encoding="utf-8")
    assert make_kernel(load_kernel(copy), tensors).name == "other"


@rows("tests/data/mistakes/cli.yaml", "wrong_words_are_told", "arguments, message")
def test_wrong_words_are_told(arguments: list[str], message: str, copy: str, fails: Fails) -> None:
    told = {text.partition("=")[0] for text in arguments}
    usual = {"x": "x=64:fp32", "y": "y=64:fp32:out"} if "needs" not in message else {}
    every = [*arguments, *(text for name, text in usual.items() if name not in told)]
    given = [word for text in every for word in ("--arg", text)]
    assert message in fails("run", "--kernel", copy, *given, "--device", "tiny")


@rows("tests/data/mistakes/cli.yaml", "a_broken_file_is_told_with_its_line", "code, message")
def test_a_broken_file_is_told_with_its_line(
    code: str, message: str, tmp_path: Path, fails: Fails
) -> None:
    (tmp_path / "sizes.py").write_text("CHUNK = 64\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text(code, encoding="utf-8")
    words = ("--kernel", str(tmp_path / "broken.py"), "--device", "tiny")
    assert message in fails("run", *words)


def test_what_is_not_there_is_told(scale: str, copy: str, tmp_path: Path, fails: Fails) -> None:
    near = scale.replace(":Scale", ":Scala")
    assert "has no kernel 'Scala'; did you mean 'Scale'?" in fails("run", "--kernel", near)
    assert "there is no file" in fails("run", "--kernel", str(tmp_path / "no.py"))
    assert "kernel is 'scale'; it must be FILE.py:CLASS" in fails("run", "--kernel", "scale")
    assert "the following arguments are required: FILE.py:CLASS" in fails("run", "--kernel")
    assert "scale needs --device NAME" in fails("run", "--kernel", scale)
    tensors = ["--arg", "x=64:fp32", "--arg", "y=64:fp32:out", "--device", "tiny"]
    assert "--check needs the method expected of Copy" in fails(
        "run", "--kernel", copy, *tensors, "--check"
    )


def test_an_example_that_fails_is_told_with_its_line(tmp_path: Path, fails: Fails) -> None:
    code = files()["scale.py"].replace("return cls(", "return cls(1 // (count - 7), ")
    (tmp_path / "wrong.py").write_text(code, encoding="utf-8")
    words = ("--kernel", str(tmp_path / "wrong.py"), "--arg", "count=7", "--device", "tiny")
    line = code.splitlines().index(next(one for one in code.splitlines() if "(count - 7)" in one))
    assert f"wrong.py:{line + 1}: Scale: ZeroDivisionError" in fails("run", *words)
    code = files()["scale.py"].replace("return cls(", "return (")
    (tmp_path / "wrong.py").write_text(code, encoding="utf-8")
    with pytest.raises(ArgumentError, match="it must return a kernel"):
        make_kernel(load_kernel(str(tmp_path / "wrong.py")), {})


def test_what_is_expected_in_another_shape_is_told(
    copy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = Path(copy.partition(":")[0]).read_text(encoding="utf-8")
    own = "\n    def expected(self, x):\n        return x[:32], x\n"
    (tmp_path / "halved.py").write_text(code + own, encoding="utf-8")
    words = ("--arg", "x=64:fp32", "--arg", "y=64:fp32:out", "--device", "tiny", "--check")
    assert main(["run", "--kernel", f"{tmp_path / 'halved.py'}:Copy", *words]) == 2
    assert (
        "expected of Copy returns an array of shape (32,) and an array of shape (64,); the kernel "
        "writes an array of shape (64,)"
    ) in capsys.readouterr().err
