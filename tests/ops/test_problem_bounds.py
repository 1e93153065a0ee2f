"""Least cycles of a problem, whatever program solves it: by hand on ``tiny``, and never undercut.

A core of ``tiny`` multiplies 16 x 16 x 16 fp16 numbers a cycle and there are four; main memory
gives 64 B a cycle and has nothing of the results while they fit an L2 of 1 MiB, which takes 128 B.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import ops
from npusim.base.dtypes import FP16, FP32
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.machine.isa.operands import Tensor
from npusim.machine.timing.trace import KernelRun
from npusim.problem.axis import Axis, Use
from npusim.problem.convolution import Convolution
from npusim.results import Result
from tests.replay.calls import CALLS

TILING = Tiling(base_m=32, base_n=16, base_k=48)
PARA = {"strides": [1, 1], "padding": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]}


def cycles(bounded: Result | KernelRun) -> dict[str, int]:
    """Cycles of the problem's bounds by resource."""
    return {bound.resource: bound.cycles for bound in bounded.problem_bounds}


def specs(*shapes: tuple[int, ...]) -> list[Any]:
    return [npusim.spec(shape, "fp16") for shape in shapes]


def test_a_product_needs_its_sizes_and_each_operand_once() -> None:
    r = ops.matmul(*specs((32, 48), (48, 16)), device="tiny")
    want = {
        "HBM read": 72,  # (32 * 48 + 48 * 16) * 2 B at 64 B
        "L2 read": 36,  # the same at 128 B
        "L2 write": 16,  # 32 * 16 * 4 B at 128 B
        "cube": 2,  # 32 * 48 * 16 multiply-adds at 4 * 4096
    }
    assert cycles(r.runs[0]) == cycles(r) == want
    assert [bound.resource for bound in r.problem_bounds] == list(want), "longest first"
    assert r.problem_us == pytest.approx(0.072)
    assert list(r.kernels["problem_us"]) == [0.072]
    assert list(r.kernels["problem_bound"]) == ["HBM read"]
    assert r.bounds[r.bounds["of"] == "problem"]["cycles"].max() == 72
    assert r.bounds[r.bounds["of"] == "program"]["cycles"].max() > 72


def test_cores_that_the_program_leaves_idle_count_and_masked_ones_do_not() -> None:
    operands = specs((16, 4096), (4096, 16))
    for cores, share in ((None, 4), ("0", 1)):
        r = ops.matmul(*operands, out_dtype="fp16", device="tiny", cores=cores)
        assert r.runs[0].cores == 1  # rounded sums are not split
        assert cycles(r)["cube"] == 16 * 16 * 4096 // (4096 * share)


def test_results_beyond_the_l2_reach_main_memory() -> None:
    r = ops.matmul(*specs((1024, 16), (16, 512)), device="tiny")
    assert cycles(r)["L2 write"] == 1024 * 512 * 4 // 128
    assert cycles(r)["HBM write"] == (1024 * 512 * 4 - (1 << 20)) // 64


def test_zeros_of_padding_are_not_multiplied() -> None:
    """3 taps over 6 and over 5 pixels, one of padding on each side: 16 and 13 pairs."""
    x, dy = specs((2, 1, 6, 5, 16), (2, 3, 6, 5, 16))
    r = ops.conv2d_backprop_filter(x, dy, [33, 16, 3, 3], PARA, device="tiny")
    useful = 2 * 33 * 16 * 16 * 13
    assert r.useful_macs == {"conv_backprop_filter": useful}
    assert cycles(r.runs[-1]) == {
        "cube": -(-useful // (4 * 4096)),
        "HBM read": (2 * 6 * 5 * 16 + 2 * 3 * 6 * 5 * 16) * 2 // 64,
        "L2 read": (2 * 6 * 5 * 16 + 2 * 3 * 6 * 5 * 16) * 2 // 128,
        "L2 write": 9 * 48 * 16 * 4 // 128,  # 33 channels in three fractals of 16
    }


def test_positions_that_nothing_reads_are_not_needed() -> None:
    """A 1x1 filter at stride 2 reads 4 x 3 of 8 x 6 pixels, of which each makes one output."""
    x, dy = specs((2, 1, 8, 6, 16), (2, 1, 4, 3, 16))
    para = PARA | {"strides": [2, 2], "padding": [0, 0, 0, 0]}
    r = ops.conv2d_backprop_filter(x, dy, [16, 16, 1, 1], para, device="tiny")
    assert cycles(r.runs[-1])["HBM read"] == 2 * (2 * 12 * 16 * 2) // 64
    dy, x, w = specs((2, 16, 4, 3), (2, 16, 8, 6), (16, 16, 1, 1))
    backward = ops.convolution_backward(dy, x, w, stride=2, device="tiny")
    by_name = {run.computes: run for run in backward.runs if run.computes}
    # What the conversions left in the L2 need not come from main memory.
    assert "HBM read" not in cycles(by_name["input"])
    assert cycles(by_name["input"])["L2 read"] == (2 * 12 * 16 + 256) * 2 // 128
    assert cycles(by_name["input"])["L2 write"] == 2 * 12 * 16 * 2 // 128
    # The call reads what it needs of x, w and all of dy; it leaves dx, dw and db.
    call = cycles(backward)
    assert call["HBM read"] == (2 * 12 * 16 + 256 + 2 * 12 * 16) * 2 // 64
    assert call["L2 write"] == -(-(2 * 48 * 16 + 256 + 16) * 2 // 128)
    assert call["cube"] == 2 * -(-2 * 12 * 16 * 16 // (4 * 4096))


def test_a_call_without_the_filter_gradient_does_not_need_x() -> None:
    dy, x, w = specs((1, 16, 8, 8), (1, 16, 8, 8), (16, 16, 1, 1))
    r = ops.convolution_backward(dy, x, w, output_mask=(True, False, False), device="tiny")
    assert cycles(r)["HBM read"] == (16 * 64 + 256) * 2 // 64


def test_a_dsp_has_neither_cube_nor_cache() -> None:
    dy, x = np.zeros((2, 13, 11, 12), np.float32), np.zeros((2, 6, 5, 8), np.float32)
    param = [2, 6, 5, 8, 2, 13, 11, 12, 3, 3, 2, 2, 1, 1, 1, 1, 4, 0, 0, 0]
    r = ops.deconv_grad_filter(dy, x, param, device="ft78ne")
    found = cycles(r.runs[-1])
    assert set(found) == {"DDR read", "DDR write", "gemm"}
    device = npusim.load_device("ft78ne")
    pairs = 17 * 14  # of 6 x 5 positions, 3 x 3 taps: one of either axis reads padding
    assert r.useful_macs == {"deconv_grad_filter": 2 * pairs * 12 * 8 // 4}
    read = (2 * 12 * 10 * 12 + 2 * 6 * 5 * 8) * 4  # the last row and column of dy are not read
    assert found["DDR read"] == -(-read // device.main_memory.read_bytes_per_cycle)


def test_work_of_unknown_use_has_no_cube_bound() -> None:
    patches = npusim.spec((2, 54, 81), "fp16")
    r = ops.im2col_backward(patches, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), device="tiny")
    # Of 3 x 3 taps over 9 x 9 positions those on padding are not needed: 25 of 27 either way. The
    # 6 channels are a block of 16 to the kernel, which finds what the one before it left in the L2.
    _, fold, _ = r.runs
    assert cycles(fold)["L2 read"] == -(-2 * 16 * 25 * 25 * 2 // 128) < fold.cycles
    assert "HBM read" not in cycles(fold)
    assert "cube" not in cycles(r)


def test_a_kernel_of_ones_own_says_what_its_problem_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Tensor("a", (32, 48), FP16), Tensor("b", (48, 16), FP16)
    kernel = Matmul(TILING, a, b, Tensor("c", (32, 16), FP32, "out"))
    memory = {"HBM read": 72, "L2 read": 36, "L2 write": 16}
    assert cycles(npusim.simulate(kernel, "tiny")) == memory | {"cube": 2}
    monkeypatch.setattr(Matmul, "useful_macs", 0)
    assert cycles(npusim.simulate(kernel, "tiny")) == memory


SMALL = (
    *("plain", "strided", "asymmetric", "dilated", "three_groups", "depthwise", "pointwise"),
    *("one_dimension", "transposed", "transposed_groups", "deterministic", "only_bias"),
)


@pytest.mark.parametrize("name", SMALL)
def test_no_kernel_is_faster_than_its_problem(name: str) -> None:
    call = CALLS[name]
    for device in call.runs_on()[-2:]:
        for run in call(device).runs:
            assert max(cycles(run).values()) <= run.cycles, (device, run.name, cycles(run))
            assert run.useful_macs <= run.macs


def brute(axis: Axis) -> Use:
    pairs = [
        (o, tap, x)
        for o, tap in product(range(axis.out), range(axis.kernel))
        if (x := axis.real(o, tap)) is not None
    ]
    counts = [len({pair[i] for pair in pairs}) for i in (2, 0, 1)]
    return Use(len(pairs), *counts)


def test_what_of_an_axis_takes_part() -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        size, out, kernel, stride, dilation = rng.integers(1, 9, 5).tolist()
        before = int(rng.integers(-3, 9))
        axis = Axis(
            size=size, out=out, kernel=kernel, stride=stride, before=before, dilation=dilation
        )
        assert axis.use == brute(axis), axis


@pytest.mark.parametrize("transposed", [False, True])
def test_what_a_layer_uses_is_that_of_its_plain_convolution(transposed: bool) -> None:
    sizes: Mapping[str, Any] = {"spatial": (5, 6), "kernel": (3, 2), "stride": (2, 2)}
    c = Convolution(n=3, cin=4, cout=6, padding=((1, 1), (0, 0)), transposed=transposed, **sizes)
    plain = c.plain()
    pairs = [brute(plain.axis(i)).pairs for i in (0, 1)]
    assert c.useful_macs == 3 * 4 * 6 * pairs[0] * pairs[1] <= c.macs
    assert c.used("taps", 6 * 10) == 60
