"""Input gradients of strided layers by phases: no zeros are moved, patch embeddings are fast."""

from __future__ import annotations

import pytest

import npusim
from npusim import spec
from npusim.kernels.estimate import costs
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling
from npusim.machine.timing.trace import KernelRun
from npusim.ops import conv_launch


def gradient(tiling: str, stride: int, kernel: int, kind: str = "fp16") -> KernelRun:
    """The kernel of an input gradient, 16 <- 32 channels, dy 14 x 14."""
    size = 13 * stride + kernel
    result = npusim.ops.convolution_backward(
        spec((1, 32, 14, 14), kind),
        spec((1, 16, size, size), kind),
        spec((32, 16, kernel, kernel), kind),
        None,
        stride,
        output_mask=(True, False, False),
        device="ascend910b2",
        tiling=tiling,
    )
    (run,) = (run for run in result.runs if run.computes == "input")
    return run


def moved(run: KernelRun) -> dict[tuple[str, str], int]:
    """Bytes by path, of GM to L1 those of dy."""
    return {
        (row.src, row.dst): row.bytes
        for row in run.traffic
        if row.dst != "L1" or row.operand != "weight_fractal"
    }


@pytest.mark.parametrize("stride", [2, 4])
def test_phases_move_no_inserted_zeros(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many taps as the stride every phase reads dy once; a window reads stride^2 zeros.

    Products of matrices would take less time.
    """
    monkeypatch.setattr(conv_launch, "multiplied", lambda *_: False)
    dy, dx = 32 * 14 * 14 * 2, 16 * (14 * stride) ** 2 * 2
    phases, window = (moved(gradient(t, stride, stride)) for t in ("auto", "library"))
    assert phases["GM", "L1"] == stride**2 * dy
    assert ("IMM", "L1") not in phases
    assert phases["L0C", "GM"] == dx
    # To L0A goes each element of dy once per phase, rows padded to fractals of 16.
    assert stride**2 * dy <= phases["L1", "L0A"] <= 1.25 * stride**2 * dy
    assert window["IMM", "L1"] > 0
    assert window["L1", "L0A"] >= stride**2 * phases["L1", "L0A"] / 1.25


def test_estimates_count_both_halves_of_a_column_that_leaves_row_by_row() -> None:
    """A column of sums is two blocks of 8 channels in fp32, which one move stores per position."""
    device = npusim.load_device("ascend910b2").replace("paths.L0C->GM.floor", "0cycle")
    tiling = Tiling(base_m=14, base_n=64, base_k=32, form="phases", step_planes=4, step_columns=4)
    shapes = (1, 64, 14, 14), (1, 64, 28, 28), (64, 64, 2, 2)
    dy, x, w = (spec(shape, "fp32") for shape in shapes)
    result = npusim.ops.convolution_backward(
        dy, x, w, stride=2, output_mask=(True, False, False), device=device, tiling=tiling
    )
    (run,) = (run for run in result.runs if run.computes == "input")
    (busy,) = (bound.cycles for bound in run.bounds if bound.resource == "pipe FIX")
    tile = costs.scatter_cycles(device, 14, 64, 32, 2, 1, 28 * 28, halves=True)[0]
    rounds = -(-28 * 28 // 14 // device.count("cube"))
    assert rounds * tile <= busy <= rounds * (tile + 14)  # whole cycles of each of 14 moves


@pytest.mark.parametrize(("stride", "kernel"), [(2, 3), (3, 4), (3, 7)])
def test_other_filters_move_none_either(stride: int, kernel: int) -> None:
    phases, window = (moved(gradient(t, stride, kernel)) for t in ("auto", "library"))
    assert ("IMM", "L1") not in phases
    assert phases["L1", "L0A"] * 2 < window["L1", "L0A"]
    taps = kernel**2 * 14 * 14 * 32 * 2  # what all taps read of dy
    assert phases["L1", "L0A"] <= 1.5 * taps


@pytest.mark.parametrize("kind", ["fp16", "fp32"])
def test_a_patch_embedding_takes_less_than_a_millisecond(kind: str) -> None:
    """Results of three channels leave L0C as rows of 32 B, one instruction for many of them."""
    result = npusim.ops.convolution_backward(
        spec((8, 768, 14, 14), kind),
        spec((8, 3, 224, 224), kind),
        spec((768, 3, 16, 16), kind),
        (768,),
        stride=16,
        device="ascend910b2",
        timeline=False,
    )
    assert result.time_us < 1000
