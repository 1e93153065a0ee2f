"""Peaks of steps against the bytes that are alive in a step of PyTorch, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.networks.definitions import NETWORKS  # it needs PyTorch
from tests.networks.live_tensors import keep_bits, live_bytes
from tests.networks.test_step_memory import planned

BATCH = 32

#: Networks whose modules keep nothing that autograd does not: U-Net's has its loop's maps too.
PEAKS = (
    "resnet18",
    "resnet50",
    "vgg16",
    "efficientnet_b0",
    "poolformer_s12",
    "mobilenet_v1",
    "mobilenet_v2",
    "convnext_tiny",
    "r2plus1d_18",
    "unet_3d",
    "wavenet",
    "dcgan",
)


@pytest.mark.parametrize("name", PEAKS)
def test_an_eager_peak_is_that_of_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of layers against a module that is written from the paper, both at batch 32.

    ReLU, ReLU6 and pooling by the maximum keep bits in both.
    """
    keep_bits(monkeypatch)
    build, shape = NETWORKS[name]
    counted = live_bytes(build, shape, BATCH)
    assert planned(name, BATCH, mode="eager").peak_bytes == pytest.approx(counted.peak, rel=0.1)


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v1", "efficientnet_b0", "poolformer_s12"])
def test_a_peak_is_that_of_autograd_as_it_is(name: str) -> None:
    """Where the next layer reads the result of a ReLU, keeping that or bits is much the same."""
    build, shape = NETWORKS[name]
    counted = live_bytes(build, shape, BATCH)
    assert planned(name, BATCH, mode="eager").peak_bytes == pytest.approx(counted.peak, rel=0.1)


def test_live_bytes_are_those_of_tensors_that_are_alive() -> None:
    """A linear layer, a ReLU and another: by hand, with numbers of two bytes."""
    torch = pytest.importorskip("torch")
    build: Callable[[], Any] = lambda: torch.nn.Sequential(  # noqa: E731
        torch.nn.Linear(100, 1000, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(1000, 10, bias=False),
    )
    counted = live_bytes(build, (100,), 8)
    weights = 100 * 1000 + 1000 * 10
    always = 8 * weights + 2 * (weights + 8 * 100)
    # The result of the ReLU, logarithms of the softmax, the loss and its weight.
    assert counted.kept - always == 2 * (8 * 1000 + 8 * 10 + 1 + 1)
    # Gradients of both weights in fp32 while the larger one is decayed.
    assert counted.peak - always >= 4 * (2 * 100 * 1000 + 1000 * 10)
