"""``npusim run``: every message it refuses with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npusim.timing.run import ENGINES

Fails = Callable[..., str]

MATMUL = ("run", "matmul", "--device", "tiny", "--m", "32", "--k", "48", "--n", "16")
CONV = ("run", "conv2d_backprop_filter", "--device", "tiny", "--cin", "16", "--cout", "32",
        "--size", "6x5", "--kernel", "3", "--padding", "1")  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--cin", "3"],
         "--cin is an option of conv2d_backprop_filter, conv2d_backprop_input, "
         "conv3d_backprop_filter, conv3d_backprop_input, conv_grad_filter, conv_grad_input, "
         "conv_tbc_backward, convolution, convolution_backward, deconv_grad_filter, "
         "deconv_grad_input, depthwise_conv2d_backprop_filter, depthwise_conv2d_backprop_input; "
         "this command has none of that name; see 'npusim run matmul --help'"),
        (["--dtype", "int32"],
         "--dtype is int32; matmul takes fp16 or bf16 or fp32 or int8 or mxfp8 or mxfp4"),
        (["--dtype", "mxfp8"], "no array holds mxfp8: it is timed only; add --timing-only"),
        (["--dtype", "fp8"],
         "argument --dtype: unknown dtype 'fp8'; use one of fp16, bf16, fp32, int8, mxfp8, "
         "mxfp4; see 'npusim run matmul --help'"),
        (["--rules", "hardware"],
         "--rules is an option of conv2d_backprop_filter, conv2d_backprop_input, "
         "conv3d_backprop_filter, conv3d_backprop_input, conv_grad_filter, conv_grad_input, "
         "conv_tbc_backward, convolution_backward, deconv_grad_filter, deconv_grad_input, "
         "depthwise_conv2d_backprop_filter, depthwise_conv2d_backprop_input, im2col, "
         "im2col_backward; this command has none of that name; see 'npusim run matmul "
         "--help'"),
        (["--timing-only", "--check"],
         "--check needs numbers, which --timing-only leaves out; drop one"),
        (["--timing-only", "--input", "a=a.npy"],
         "--input needs numbers, which --timing-only leaves out; drop one"),
        (["--timing-only", "--output", "c.npy"],
         "--output needs numbers, which --timing-only leaves out; drop one"),
        (["--no-timeline", "--trace", "t.json"],
         "--trace needs the timeline; drop --no-timeline"),
        (["--plot", "p.pdf"], "--plot p.pdf: the file's name must end in .png or .svg"),
        (["--output", "c.txt"], "--output c.txt: the file's name must end in .npy or .npz"),
        (["--report", "none/r.html"],
         "--report none/r.html: there is no folder 'none'; create it first"),
        (["--plot", "p.png", "--plot-roofline", "p.png"],
         "--plot-roofline and --plot both write p.png; give two names"),
        (["--cores", "0b12"],
         "argument --cores: expected groups such as 0-3,5, or a mask such as 0b1111 or 0xf, got "
         "'0b12'; see 'npusim run matmul --help'"),
        (["--cores", "0x1f"],
         "core mask 0x1f has bit 4 set; tiny has groups 0-3, the mask of all is 0xf"),
        (["--cores", "7"], "there is no core group 7; tiny has groups 0-3"),
        (["--set", "groups=1", "--set", "groups=2"],
         "--set gives groups twice, '1' and '2'; keep one of them"),
        (["--set", "groups"],
         "argument --set: expected NAME=VALUE, got 'groups'; see 'npusim run matmul --help'"),
        (["--engine", "none"], f"engine is 'none'; it is one of {', '.join(ENGINES)}"),
        (["--start", "wram"],
         "argument --start: unknown 'wram'; did you mean 'warm'? (known: cold, warm); "
         "see 'npusim run matmul --help'"),
        (["--launch", "grap"],
         "argument --launch: unknown 'grap'; did you mean 'graph'? (known: single, graph); "
         "see 'npusim run matmul --help'"),
        (["--seed", "-1"],
         "argument --seed: expected an integer of at least 0, got '-1'; "
         "see 'npusim run matmul --help'"),
        (["--chek"],
         "unrecognized argument '--chek'; did you mean '--check'?; see 'npusim run matmul --help'"),
        (["--tim"],
         "unrecognized argument '--tim'; did you mean '--timeline' or '--timing-only'?; "
         "see 'npusim run matmul --help'"),
        (["stray"], "unrecognized argument 'stray'; see 'npusim run matmul --help'"),
        (["--tiling", "base_m=16,basen=16"],
         "--tiling: unknown field 'basen'; did you mean 'base_n'?"),
        (["--tiling", "base_m=16,base_m=32"], "--tiling gives base_m twice; keep one of them"),
        (["--tiling", "base_m=big"], "--tiling: base_m is 'big'; it must be an integer >= 1"),
        (["--tiling", "base_m=16,base_n=16"],
         "--tiling lacks base_k, which has no default; complete it, or leave --tiling away "
         "(auto)"),
        (["--tiling", "base_m=8,base_n=16,base_k=16"],
         "tiling base_m is 8; it must be a multiple of 16, >= 16"),
        (["--input", "c=c.npy"], "--input c=...: unknown operand; known: a, b, bias"),
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
         "--kernel; missing: --cout, --size, --kernel; --input of an operand that shows a size "
         "will do too"),
        (["--layer", "resnet50/conv1", "--cin", "3", "--stride", "2"],
         "--layer resnet50/conv1 gives all sizes, so --cin, --stride cannot be given too; drop "
         "--layer or the sizes"),
        (["--layer", "resnet50/res4_3x4"],
         "argument --layer: workload resnet50 has no layer 'res4_3x4'; did you mean 'res4_3x3'?; "
         "see 'npusim run conv2d_backprop_filter --help'"),
        (["--layer", "conv1"],
         "argument --layer: expected WORKLOAD/LAYER such as resnet50/conv1, got 'conv1'; "
         "see 'npusim run conv2d_backprop_filter --help'"),
        (["--cin", "16", "--cout", "16", "--size", "4", "--kernel", "3", "--groups", "3"],
         "--groups is 3, which must divide both --cin (16) and --cout (16); change one of them"),
        (["--cin", "16", "--cout", "16", "--size", "4", "--kernel", "5"],
         "output H would be 0: the filter reaches 5 but the padded input has 4; enlarge input or "
         "padding, or shrink filter or dilation"),
        (["--size", "3by4"],
         "argument --size: expected one number, HxW such as 3x5 or DxHxW such as 2x3x5, each at "
         "least 1, got '3by4'; see 'npusim run conv2d_backprop_filter --help'"),
        (["--stride", "0"],
         "argument --stride: expected one number, HxW such as 3x5 or DxHxW such as 2x3x5, each at "
         "least 1, got '0'; see 'npusim run conv2d_backprop_filter --help'"),
        (["--padding", "1,2,3"],
         "argument --padding: expected one number for all sides, HxW such as 1x2, or all sides "
         "U,D,L,R such as 1,1,0,0, got '1,2,3'; see 'npusim run conv2d_backprop_filter --help'"),
        ([*CONV[4:], "--rules", "none"],
         "argument --rules: unknown 'none'; known: documented, strict, hardware; "
         "see 'npusim run conv2d_backprop_filter --help'"),
        ([*CONV[4:-1], "1,2"],
         "--padding has 1 pair of sides (1,2); this call has 2 spatial dimensions, so give 4 "
         "sides, or one number"),
        ([*CONV[4:], "--stride", "1x2x3"],
         "--stride 1x2x3 has 3 entries; this call has 2 spatial dimensions, so give 2, or one for "
         "all"),
        ([*CONV[4:], "--batch", "0"],
         "--batch is 0; conv2d_backprop_filter needs at least 1 image"),
        (["--batch", "-1"],
         "argument --batch: expected an integer of at least 0, got '-1'; "
         "see 'npusim run conv2d_backprop_filter --help'"),
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
        "matmul needs --device NAME; 'npusim devices' lists the names"
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
