"""Steps against PyTorch's own joint graph: the same convolutions, products and gradients of both.

The judge (``tests.networks.oracle``) shares nothing with the package's reader or its rules.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest

from npusim.networks.rules.training import Operation as StepOperation
from npusim.networks.rules.training import training
from npusim.workloads import ConvLayer, LinearLayer, Workload

torch = pytest.importorskip("torch")

from tests.networks.oracle import (  # noqa: E402  # it needs PyTorch
    Convolution,
    ConvolutionBackward,
    Operation,
    Product,
    Step,
    product,
)


def step_of(workload: Workload) -> Step:
    """What the package's training step of a network multiplies, in the judge's terms."""
    step = training(workload)
    forward: Counter[Operation] = Counter()
    backward: Counter[Operation] = Counter()
    masks: dict[str, set[str]] = {}
    layers: dict[str, ConvLayer] = {}
    for one in step.operations:
        node, _, part = one.name.rpartition(".")
        if isinstance(one.layer, LinearLayer) and one.core != "linear.bias":
            counts = forward if one.phase == "forward" else backward
            if one.core.startswith("linear."):
                counts[product_of(one)] += one.count
        elif isinstance(one.layer, ConvLayer) and one.core == "convolution.output":
            forward[convolution_of(one.layer)] += one.count
        elif isinstance(one.layer, ConvLayer) and one.phase == "backward" and one.core:
            layers[node] = one.layer
            masks.setdefault(node, set()).add(part)
    for node, parts in masks.items():
        mask = ("input" in parts, "weight" in parts, "bias" in parts)
        backward[ConvolutionBackward(convolution_of(layers[node]), mask)] += 1
    gradients = {name for name in step.parameters if f"{name}.gradient" in step.values}
    return Step(forward, backward, frozenset(gradients), Counter())


def convolution_of(layer: ConvLayer) -> Convolution:
    """The call of ``aten.convolution`` of a layer.

    PyTorch pads an axis before the call where its two sides differ, by the difference.
    """
    w = layer.w_shape
    sides = layer.padding
    sizes = (x + max(pads) - min(pads) for x, pads in zip(layer.spatial, sides, strict=True))
    return Convolution(
        (layer.n, layer.cin, *sizes),
        tuple(w),
        layer.stride,
        tuple(min(pads) for pads in sides),
        layer.dilation,
        layer.groups,
        layer.transposed,
        layer.output_padding or (0,) * layer.dims,
    )


def product_of(one: StepOperation) -> Product:
    """The product of matrices that an operation of a linear layer is."""
    layer = one.layer
    assert isinstance(layer, LinearLayer)
    rows, cin, cout = layer.all_rows, layer.cin, layer.cout
    return {
        "linear.output": product(layer.stack, rows, cin, cout),
        "linear.input": product(layer.stack, rows, cout, cin),
        "linear.weight": product(layer.stack, cin, rows, cout),
    }[one.core]
