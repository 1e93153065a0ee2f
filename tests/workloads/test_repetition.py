"""A network of one batch, repeated, is the network of the larger batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.workloads import Edge, ElementwiseLayer, GraphBuilder, Workload, read_network
from npusim.workloads.repetition import for_batch

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class ClassToken(nn.Module):  # type: ignore[misc, name-defined]
    """Patches behind a learned token, in an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.encoder = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.head = nn.Linear(32, 10)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.position = nn.Parameter(torch.zeros(1, 17, 32))

    def forward(self, x: Any) -> Any:
        rows = self.patches(x).flatten(2).transpose(1, 2)
        rows = torch.cat([self.token.expand(x.shape[0], -1, -1), rows], 1) + self.position
        return self.head(self.encoder(rows)[:, 0])


class Frames(nn.Module):  # type: ignore[misc, name-defined]
    """Frames of a clip, folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 16, 3, 2, 1), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        maps = self.conv(x.flatten(0, 1)).relu().mean((2, 3))
        return self.head(maps.view(x.shape[0], x.shape[1], 16).mean(1))


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """Steps before images, as recurrent layers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(16, 16, bidirectional=True), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.cell(x.transpose(0, 1))[0].mean(0))


class OwnWeights(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution with weights of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.head = nn.Linear(8, 16 * 8 * 9), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        b, c, h, w = x.shape
        kernel = self.weights(x.mean((2, 3))).view(b * 16, c, 3, 3)
        maps = F.conv2d(x.reshape(1, b * c, h, w), kernel, padding=1, groups=b)
        return self.head(maps.view(b, 16, h, w).mean((2, 3)))


CASES = {
    "class token": (ClassToken, (3, 32, 32)),
    "frames": (Frames, (4, 3, 16, 16)),
    "weights of each image": (OwnWeights, (8, 10, 10)),
}


def multiplied(workload: Workload) -> Counter[Any]:
    """Multiply-adds of the layers by their weights, whatever they are called."""
    found: Counter[Any] = Counter()
    for layer in workload.layers:
        found[type(layer).__name__, layer.cin, layer.cout] += layer.count * layer.macs
    return found


@pytest.mark.compiled
@pytest.mark.parametrize("name", CASES)
def test_a_repeated_network_is_that_of_the_larger_batch(name: str) -> None:
    make, shape = CASES[name]
    module = make()
    two = replace(read_network(module, shape, batch=2), reread=None)
    larger, traced = for_batch(two, 6), read_network(module, shape, batch=6)
    assert larger.batch == traced.batch == 6
    assert multiplied(larger) == multiplied(traced)
    assert prod(larger.inputs[0].shape) == prod(traced.inputs[0].shape)
    step = npusim.step(larger, device="ascend910b2", batch=6)
    assert step.complete, [launched.timed.error for launched in step.failed]


def test_steps_of_a_cell_before_the_images_are_not_repeated() -> None:
    """The first step is a part of rows that hold steps and images alike."""
    two = replace(read_network(Recurrent(), (12, 16), batch=2), reread=None)
    with pytest.raises(ArgumentError, match="export it with an open batch, or for this one"):
        for_batch(two, 6)


def test_what_works_along_the_images_is_named() -> None:
    graph = GraphBuilder("net")
    image = graph.input("image", (2, 8, 4, 4))
    total = ElementwiseLayer(kind="reduce_sum", shape=(2, 8, 4, 4), out=(8, 4, 4), axes=(0,))
    graph.add("total", total, [Edge(image, (2, 8, 4, 4))], parameters={})
    workload = graph.workload("a sum over images", batch=2)
    with pytest.raises(ArgumentError, match=r"node total \(reduce_sum\) works along the axis of"):
        for_batch(workload, 4)
    with pytest.raises(ArgumentError, match="batch is 3; net states its sizes for 2 images"):
        for_batch(workload, 3)
