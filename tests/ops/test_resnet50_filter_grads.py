"""The filter gradients of ResNet-50, every distinct shape at batch 1, numbers and account."""

from __future__ import annotations

import numpy as np
import pytest

import npusim
from npusim.layout import fracz_grouped_to_oihw, to_5hd
from npusim.shapes.reference import conv_filter_grad, relative_error
from npusim.workloads import ConvLayer, load_workload

LAYERS = {layer.name: layer for layer in load_workload("resnet50").convolutions}

#: One of each kind for every run of the tests; the others are slow on a busy machine.
QUICK = ("res2_3x3", "res3_shortcut", "res4_3x3", "res5_1x1_in")


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layer, id=name, marks=() if name in QUICK else (pytest.mark.slow,))
        for name, layer in LAYERS.items()
    ],
)
def test_filter_gradient_of_a_layer(layer: ConvLayer, device: str) -> None:
    rng = np.random.default_rng(50)
    x = rng.normal(size=(1, layer.cin, *layer.spatial)).astype(np.float16)
    dy = rng.normal(size=(1, layer.cout, *layer.out)).astype(np.float16)
    para = {
        "strides": list(layer.stride),
        "padding": [p for pair in layer.padding for p in pair],
        "dilations": [1, 1, *layer.dilation],
        "groups": layer.groups,
    }
    cin_g = layer.cin // layer.groups
    sizes = [layer.cout, cin_g, *layer.kernel]
    result = npusim.ops.conv2d_backprop_filter(
        to_5hd(x, 16), to_5hd(dy, 16), sizes, para, device=device
    )
    assert result.outputs is not None
    (dw,) = result.outputs
    assert dw is not None
    got = fracz_grouped_to_oihw(dw, layer.cout, cin_g, layer.kernel, layer.groups, 16)
    window = layer.kernel, layer.stride, layer.padding, layer.dilation, layer.groups
    assert relative_error(got, conv_filter_grad(x, dy, *window)) <= 1e-5
    for kernel in result.runs:
        assert all(sum(row.cycles) == kernel.cycles for row in kernel.pipes)
        assert all(bound.cycles <= kernel.cycles for bound in kernel.bounds)
