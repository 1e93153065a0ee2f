"""``npusim run``: every backward operator, from sizes or files to checked numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npusim
from npusim.cli.main import main
from npusim.problem.layouts import to_6hd, to_fracz_3d
from npusim.problem.reference import conv_filter_grad, conv_input_grad
from npusim.results import Result
from tests.tables import rows

Capture = pytest.CaptureFixture[str]
Fails = Callable[..., str]

BACKWARD = ("run", "convolution_backward", "--device", "tiny", "--cin", "16", "--cout", "12",
            "--size", "6x5", "--kernel", "3", "--padding", "1")  # fmt: skip
INPUT = ("run", "conv3d_backprop_input", "--device", "tiny", "--cin", "20", "--cout", "16",
         "--size", "3x6x5", "--kernel", "2x3x3")  # fmt: skip
FOLD = ("run", "im2col_backward", "--device", "tiny", "--channels", "3", "--size", "7x9",
        "--kernel", "3x2")  # fmt: skip
DECONV = ("run", "deconv_grad_filter", "--cin", "6", "--cout", "8", "--size", "4x5",
          "--kernel", "3x2")  # fmt: skip


def checked(capsys: Capture, *words: str) -> dict[str, Any]:
    """Runs a line with --check --json, which must pass; the result with its checks by output."""
    assert main([*words, "--check", "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert value["check"]["passed"]
    value["check"] = {row["output"]: row for row in value["check"]["outputs"]}
    return value


def limits(value: dict[str, Any]) -> dict[str, float]:
    """The limit of every output checked."""
    return {name: row["limit"] for name, row in value["check"].items()}


@rows("tests/data/rows/cli.yaml", "backward_of_one_to_three_dimensions", "device, words")
def test_backward_of_one_to_three_dimensions(
    device: str, words: list[str], capsys: Capture
) -> None:
    value = checked(capsys, "run", "convolution_backward", "--device", device, "--cin", "16",
                    "--cout", "12", *words)  # fmt: skip
    assert limits(value) == {"grad_input": 1e-3, "grad_weight": 1e-3, "grad_bias": 1e-3}


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("110", ["grad_input", "grad_weight"]),
        ("bias,input", ["grad_input", "grad_bias"]),
        ("001", ["grad_bias"]),
    ],
)
def test_only_wanted_gradients_are_computed(mask: str, names: list[str], capsys: Capture) -> None:
    value = checked(capsys, *BACKWARD, "--mask", mask)
    assert list(value["check"]) == names
    kernels = {row["name"] for row in value["kernels"]}
    assert ("conv_backprop_input" in kernels) == ("grad_input" in names)
    assert ("conv_backprop_filter" in kernels) == ("grad_weight" in names)
    assert ("bias_grad" in kernels) == ("grad_bias" in names)


def test_one_wrong_gradient_fails_alone(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    right = npusim.ops.convolution_backward

    def wrong(*inputs: Any, **options: Any) -> Result:
        result = right(*inputs, **options)
        assert result.grad_weight is not None
        result.grad_weight[0] = 0
        return result

    module = sys.modules["npusim.ops.conv_backward"]
    monkeypatch.setattr(module, "convolution_backward", wrong)
    assert main([*BACKWARD, "--check"]) == 1
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("check  ")]
    verdicts = [(line.split()[1], "fail" in line, "pass" in line) for line in lines]
    passed, failed = (False, True), (True, False)
    assert verdicts == [("grad_input", *passed), ("grad_weight", *failed), ("grad_bias", *passed)]


@pytest.mark.parametrize("kind", ["fp16", "fp32", "bf16"])
def test_operands_in_and_gradients_out(kind: str, tmp_path: Path, capsys: Capture) -> None:
    """Files show all sizes and the type; bf16 comes out as float32, which loses nothing."""
    rng = np.random.default_rng(5)
    stored: Any = {"fp16": np.float16, "fp32": np.float32, "bf16": ml_dtypes.bfloat16}[kind]
    shapes = {"x": (2, 6, 7, 6), "w": (4, 3, 3, 2), "dy": (2, 4, 4, 5)}
    arrays = {k: rng.integers(-3, 4, shape).astype(stored) for k, shape in shapes.items()}
    words = ["run", "convolution_backward", "--device", "ascend910b2", "--groups", "2",
             "--stride", "2x1", "--padding", "1x0", "--mask", "110"]  # fmt: skip
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        words += ["--input", f"{name}={tmp_path / name}.npy"]
    out = tmp_path / "g.npz"
    assert main([*words, "--check", "--output", str(out)]) == 0
    assert ("stored as float32" in capsys.readouterr().out) == (kind == "bf16")
    x, w, dy = (arrays[name].astype(np.float64) for name in shapes)
    how = ((2, 1), ((1, 1), (0, 0)), (1, 1), 2)
    want = {
        "grad_input": conv_input_grad(dy, w, x.shape, *how),
        "grad_weight": conv_filter_grad(x, dy, (3, 2), *how),
    }
    with np.load(out) as archive:
        assert sorted(archive) == sorted(want)
        for name, array in want.items():
            np.testing.assert_array_equal(archive[name], array.astype(stored).astype(np.float64))


def test_float32_files_are_rounded_to_bf16_where_asked(tmp_path: Path, capsys: Capture) -> None:
    x = np.full((1, 16, 6, 5), 1 + 2.0**-8, np.float32)  # a tie: rounds to 1
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "one.npy", np.ones_like(x))
    found = []
    for name in ("x", "one"):
        words = [*BACKWARD[:2], "--device", "ascend910b2", *BACKWARD[4:], "--dtype", "bf16",
                 "--mask", "weight", "--output", str(tmp_path / "dw.npy"), "--input",
                 f"x={tmp_path / name}.npy"]  # fmt: skip
        checked(capsys, *words)
        found.append(np.load(tmp_path / "dw.npy"))
    np.testing.assert_array_equal(*found)


def test_a_filter_in_either_layout(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    w = rng.integers(-3, 4, (16, 20, 2, 3, 3)).astype(np.float16)
    dy = rng.integers(-3, 4, (1, 16, 2, 4, 3)).astype(np.float16)
    bias = np.arange(20, dtype=np.float16)
    want = conv_input_grad(dy, w, (1, 20, 3, 6, 5), (1,) * 3, ((0, 0),) * 3, (1,) * 3, 1)
    want = want + bias[:, None, None, None]
    np.save(tmp_path / "bias.npy", bias)
    for forms in ((w, dy), (to_fracz_3d(w, 1, 16), to_6hd(dy, 16))):
        words = [*INPUT, "--output", str(tmp_path / "dx.npy"), "--output-layout", "framework",
                 "--input", f"bias={tmp_path / 'bias.npy'}"]  # fmt: skip
        for name, array in zip(("w", "dy"), forms, strict=True):
            np.save(tmp_path / f"{name}.npy", array)
            words += ["--input", f"{name}={tmp_path / name}.npy"]
        assert main(words) == 0
        np.testing.assert_array_equal(np.load(tmp_path / "dx.npy"), want.astype(np.float16))


@pytest.mark.parametrize(
    ("device", "kind", "limit"),
    [
        ("ascend910", "fp16", 2.0**-11 * 6**0.5),  # six taps, each rounds to fp16
        ("ascend950pr", "fp16", 1e-3),  # one rounding
        ("ascend910b2", "fp32", 1e-5),
    ],
)
@pytest.mark.parametrize("batch", ["0", "1", "3"])
def test_fold_is_checked(
    device: str, kind: str, limit: float, batch: str, capsys: Capture, tmp_path: Path
) -> None:
    words = [device if word == "tiny" else word for word in FOLD]
    more = ("--dtype", kind, "--batch", batch, "--padding", "1x0", "--stride", "2x1",
            "--dilation", "1x2", "--output", str(tmp_path / "x.npy"))  # fmt: skip
    value = checked(capsys, *words, *more)
    assert limits(value) == {"grad_input": pytest.approx(max(limit, 1e-5))}
    want = (3, 7, 9) if batch == "0" else (int(batch), 3, 7, 9)
    assert np.load(tmp_path / "x.npy").shape == want


def test_fold_of_a_file_counts_the_windows(tmp_path: Path, fails: Fails) -> None:
    """Ones fold to the number of windows that cover each pixel; the file shows the channels."""
    np.save(tmp_path / "dy.npy", np.ones((2 * 9, 16), np.float32))
    base = ["run", "im2col_backward", "--device", "tiny", "--size", "4", "--kernel", "3",
            "--input", f"dy={tmp_path / 'dy.npy'}"]  # fmt: skip
    assert fails(*base) == (
        f"--input dy={tmp_path / 'dy.npy'} has shape (18, 16); this call takes (18, 4) (C*KH*KW, L)"
    )
    assert "which makes --channels 2, but --channels is 3" in fails(*base, "--channels", "3")
    assert "which makes --batch 0, but --batch is 1" in fails(*base, "--batch", "1")
    assert main([*base, "--padding", "1", "--output", str(tmp_path / "x.npy")]) == 0
    count = np.outer([2, 3, 3, 2], [2, 3, 3, 2])
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.stack([count, count]))


@rows("tests/data/rows/cli.yaml", "filters_of_transposed_layers", "words, cores")
@pytest.mark.parametrize("device", [[], ["--device", "mt7004", "--dtype", "fp16"]])
def test_filters_of_transposed_layers(
    words: list[str], cores: int, device: list[str], capsys: Capture
) -> None:
    """Without --device on the cluster that only knows fp32."""
    value = checked(capsys, *DECONV, *words, *device)
    assert value["device"] == ("mt7004" if device else "ft78ne")
    assert limits(value) == {"dw": 1e-3 if device else 1e-5}
    assert value["kernels"][0]["cores"] == cores


def test_a_gradient_smaller_than_natural(tmp_path: Path) -> None:
    """The size of dy in a file counts: reads beyond it are zero."""
    rng = np.random.default_rng(8)
    x = rng.integers(-3, 4, (2, 4, 5, 6)).astype(np.float32)
    dy = rng.integers(-3, 4, (2, 5, 3, 8)).astype(np.float32)
    words = [*DECONV, "--check", "--output", str(tmp_path / "dw.npy"), "--output-layout",
             "framework"]  # fmt: skip
    for name, array in (("x", x), ("dy", dy)):
        np.save(tmp_path / f"{name}.npy", array)
        words += ["--input", f"{name}={tmp_path / name}.npy"]
    assert main(words) == 0
    whole = np.zeros((2, 6, 6, 8))  # what stride 1 without padding gives of 4 x 5
    whole[:, :5, :3] = dy
    want = np.zeros((6, 8, 3, 2))
    for kh, kw in np.ndindex(3, 2):
        read = whole[:, kh : kh + 4, kw : kw + 5]
        want[:, :, kh, kw] = np.einsum("nhwi,nhwo->io", x, read)
    np.testing.assert_array_equal(np.load(tmp_path / "dw.npy"), want)


def test_rules_can_be_left_to_the_hardware(fails: Fails) -> None:
    words = ["run", "conv3d_backprop_input", "--device", "ascend910", "--cin", "16", "--cout",
             "16", "--size", "1x18x18", "--kernel", "1", "--stride", "1x17x17"]  # fmt: skip
    assert "stride H * W is 289; Atlas training products (910) permit up to 256" in fails(*words)
    assert main([*words, "--rules", "hardware", "--check"]) == 0


def test_operands_of_a_wrong_rank(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 6), np.float16))
    assert fails(*BACKWARD, "--input", f"x={path}") == (
        f"--input x={path} has shape (4, 6); it must have 3 (NCL), 4 (NCHW) or 5 axes (NCDHW)"
    )
    assert fails(*FOLD, "--input", f"dy={path}", "--kernel", "5") == (
        f"--input dy={path} has shape (4, 6); it must be (N, C*KH*KW, L), or (C*KH*KW, L), with "
        "KH*KW = 25"
    )
