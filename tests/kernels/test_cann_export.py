"""Our tilings in the vendor's words: read back they are the same kernel.

The tiling in a report is the one that ran: sizes beyond the shape's are cut to it.
"""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim import ops
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import planning
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.matmul.matmul import Tiling as MatmulTiling
from npusim.kernels.vendor import cann_filter, cann_input
from npusim.machine.program.kernel import Kernel
from npusim.results import Result
from npusim.workloads import find_layer

#: Layers for which the vendor's rules hold.
LAYERS = ["res3_3x3", "res4_3x3", "res4_3x3_down", "res5_3x3", "res5_shortcut"]


def gradients(layer: str, tiling: Any) -> list[Kernel]:
    """The gradient kernels of a layer of ResNet-50 on a 910B2, planned only."""
    c = find_layer(f"resnet50/{layer}")
    x = npusim.spec((2, c.cin, *c.spatial), "fp16")
    w = npusim.spec((c.cout, c.cin, *c.kernel), "fp16")
    dy = npusim.spec((2, c.cout, *c.out), "fp16")
    pads = [side[0] for side in c.padding]
    with planning() as kernels:
        npusim.ops.convolution_backward(
            *(dy, x, w, None, list(c.stride), pads, list(c.dilation), False, [0, 0], 1),
            output_mask=[True, True, False],
            device="ascend910b2",
            tiling=tiling,
        )
    return [k for k in kernels if isinstance(k, (ConvBackpropFilter, ConvBackpropInput))]


@pytest.mark.parametrize("layer", LAYERS)
def test_the_vendors_choice_survives_the_way_there_and_back(layer: str) -> None:
    device = npusim.load_device("ascend910b2")
    kernels = gradients(layer, "production")
    assert len(kernels) == 2
    for kernel in kernels:
        assert isinstance(kernel, (ConvBackpropFilter, ConvBackpropInput))
        words = npusim.cann_tiling(npusim.cann_of(kernel).words)
        read = cann_filter if isinstance(kernel, ConvBackpropFilter) else cann_input
        back, _ = read.kernel_tiling(words, kernel.shape, device, kernel.x.dtype)
        assert back == kernel.tiling


def test_what_the_words_cannot_say() -> None:
    dx, dw = gradients("res5_3x3", "library"), gradients("res5_3x3", "production")
    filters = [k for k in dx if isinstance(k, ConvBackpropFilter)]
    with pytest.raises(ArgumentError, match="shares out parts of K of single tiles"):
        npusim.cann_of(filters[0])
    inputs = [k for k in dw if isinstance(k, ConvBackpropInput)]
    taps = replace(inputs[0].tiling, form="taps", single_core_m=0, resident=False)
    by_taps = replace(inputs[0], tiling=taps)
    with pytest.raises(ArgumentError, match="cannot say form 'taps'"):
        npusim.cann_of(by_taps)
    odd = replace(inputs[0], tiling=replace(inputs[0].tiling, base_m=17, single_core_m=0))
    with pytest.raises(ArgumentError, match="not whole rows of dx"):
        npusim.cann_of(odd)
    a, b = npusim.spec((16, 16), "fp16"), npusim.spec((16, 16), "fp16")
    with planning() as kernels:
        npusim.ops.matmul(a, b, device="ascend910b2")
    with pytest.raises(ArgumentError, match="matmul has no words"):
        npusim.cann_of(kernels[0])


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
