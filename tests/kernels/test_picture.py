"""Strided gradients of 1x1 filters whose zeros are stored with what lies between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.problem.reference import conv_input_grad
from npusim.results import Result

TILING = Tiling(base_m=32, base_n=32, base_k=32, step_columns=2, form="phases", zeros=True)


def gradient(
    tiling: Tiling, *, device: str = "ascend910", size: Any = (12, 13), **more: Any
) -> Any:
    """Of 40 -> 24 channels with stride 2, of two images."""
    rng = np.random.default_rng(0)
    down = [-(-side // 2) for side in size]
    dy = rng.integers(-3, 4, (2, 24, *down)).astype(np.float16)
    w = rng.integers(-3, 4, (24, 40, 1, 1)).astype(np.float16)
    result = npusim.ops.convolution_backward(
        dy, np.zeros((2, 40, *size), np.float16), w, None, 2, 0, output_mask=(True, False, False),
        device=device, tiling={ConvBackpropInput.name: tiling}, **more,
    )  # fmt: skip
    wanted = conv_input_grad(
        dy, w, (2, 40, *size), stride=(2, 2), padding=((0, 0),) * 2, dilation=(1, 1), groups=1
    )
    np.testing.assert_array_equal(np.asarray(result.grad_input), wanted)
    return result


def kernels(result: Result) -> list[str]:
    return [run.name for run in result.runs if run.name in ("mem_set", ConvBackpropInput.name)]


def test_zeros_between_positions_are_stored_with_them() -> None:
    """Nothing is cleared, and whole rows are stored, in less time than block by block."""
    stored, cleared = (gradient(replace(TILING, zeros=zeros)) for zeros in (True, False))
    assert kernels(stored) == [ConvBackpropInput.name]
    assert kernels(cleared) == ["mem_set", ConvBackpropInput.name]
    took = [next(r for r in one.runs if r.computes == "input").cycles for one in (stored, cleared)]
    assert took[0] < 0.9 * took[1]


@pytest.mark.parametrize("size", [(2, 2), (13, 12), (12, 31)])
def test_elsewhere_they_are_cleared(size: Any) -> None:
    """A picture of two rows, an odd number of rows, and rows that a tile has no room for."""
    found = kernels(gradient(replace(TILING, base_m=15), size=size))
    assert found == ["mem_set"] * (size != (2, 2)) + [ConvBackpropInput.name]


@pytest.mark.parametrize("device", ["ascend910b2", "ascend950pr", "tiny"])
def test_a_chip_whose_tiles_do_not_pass_ub_has_no_picture(device: str) -> None:
    """Cores with UB once left positions between the others unwritten."""
    with pytest.raises(ArgumentError, match=f"tiling zeros: L0C of {device} drains to global"):
        gradient(TILING, device=device)
