"""The tiling in a report is the one that ran: sizes beyond the shape's are cut to it."""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim import ops
from npusim.kernels.conv_backprop_filter import Tiling as FilterTiling
from npusim.kernels.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.matmul import Tiling as MatmulTiling
from npusim.results import Result

DEVICE = "ascend910b2"


def product(tiling: Any) -> Result:
    a = npusim.spec((64, 64), "fp16")
    return ops.matmul(a, a, tiling=tiling, device=DEVICE)


def gradient(mask: tuple[bool, bool, bool], tiling: Any) -> Result:
    x, w = npusim.spec((2, 128, 14, 14), "fp16"), npusim.spec((128, 128, 3, 3), "fp16")
    options = {"padding": 1, "output_mask": mask, "tiling": tiling, "device": DEVICE}
    return ops.convolution_backward(x, x, w, **options)


def dx(tiling: Any) -> Result:
    return gradient((True, False, False), tiling)


def dw(tiling: Any) -> Result:
    return gradient((False, True, False), tiling)


#: What is asked for, what runs, and how a report says it: M x N x K of one mmad.
CASES: dict[str, tuple[Any, Any, Any, str]] = {
    "matmul": (
        product,
        MatmulTiling(base_m=64, base_n=4096, base_k=80, step_ka=7),
        MatmulTiling(base_m=64, base_n=64, base_k=64, step_ka=1, step_kb=1),
        "base 64x64x64, step 1+1, ",
    ),
    "filter gradient": (
        dw,
        FilterTiling(base_m=256, base_n=192, base_k=80, slab_k=4096, k_parts=99),
        FilterTiling(base_m=128, base_n=192, base_k=80, slab_k=196, k_parts=2),
        "base 128x192x80, slab 196, K in 2, ",
    ),
    "input gradient": (
        dx,
        GemmTiling(base_m=999, base_n=512, base_k=64, step_planes=50, step_columns=4),
        GemmTiling(base_m=196, base_n=128, base_k=64, step_planes=8, step_columns=4),
        "base 196x128x64, planes 8, columns 4, ",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tiling_that_ran_is_reported(case: str) -> None:
    run, asked, ran, text = CASES[case]
    first, second = run(asked), run(ran)
    assert first.cycles == second.cycles
    (told,) = {one.tiling for one in (*first.runs, *second.runs) if one.macs}
    assert told.startswith(text)
