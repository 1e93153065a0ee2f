"""``npusim run``: every message it refuses with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

Fails = Callable[..., str]

MATMUL = ("run", "matmul", "--device", "tiny", "--m", "32", "--k", "48", "--n", "16")
CONV = ("run", "conv2d_backprop_filter", "--device", "tiny", "--cin", "16", "--cout", "32",
        "--size", "6x5", "--kernel", "3", "--padding", "1")  # fmt: skip


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
