"""The rule of ``tiling="library"``: what its estimates leave out would choose something slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import npusim
from npusim.base.dtypes import FP16
from npusim.call.spec import spec
from npusim.device.catalog import load_device
from npusim.kernels.conv_backprop_input import ConvBackpropInput
from npusim.kernels.tilings.library_filter import library_tiling as of_filter
from npusim.kernels.tilings.library_input import library_tiling as of_input
from npusim.workloads import find_layer

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize(
    ("kernel", "device", "layer", "batch", "other"),
    [
        # Without the bandwidth that cores share.
        ("conv_backprop_filter", "ascend910b2", "res2_1x1_out", 8, {"base_m": 48, "base_n": 16}),
        # Without the drain.
        ("conv_backprop_input", "ascend910", "res2_1x1_in", 8, {"base_n": 256, "l0c_slots": 1}),
        ("conv_backprop_input", "ascend910", "res2_1x1_out", 8,
         {"base_m": 784, "base_k": 16, "l0c_slots": 1}),
    ],
)  # fmt: skip
def test_each_part_of_an_estimate_counts(
    kernel: str, device: str, layer: str, batch: int, other: dict[str, int]
) -> None:
    c = replace(find_layer(f"resnet50/{layer}"), n=batch)
    # Where the vendor's rules are known they take the place of the estimates.
    machine, whole = load_device(device).replace("library_rules", "no"), c.lifted()
    tiling: Any
    if kernel == "conv_backprop_filter":
        tiling = of_filter(whole, machine, machine.groups)
    else:
        tiling = of_input(ConvBackpropInput.geometry_of(whole), machine, machine.groups, FP16)
    backward = npusim.ops.convolution_backward
    mask = (kernel == "conv_backprop_input", kernel == "conv_backprop_filter", False)
    dy, x, w = (spec(shape, "fp16") for shape in (c.dy_shape, c.x_shape, c.w_shape))

    def cycles(one: Any) -> int:
        tilings = {kernel: one}
        result: npusim.Result = backward(
            dy, x, w, output_mask=mask, device=machine, tiling=tilings, timeline=False
        )
        return result.cycles

    assert cycles("library") == cycles(tiling) < cycles(replace(tiling, **other))
