"""Steps of small modules, held to those of PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.networks.run.step_result import StepResult
from npusim.results.shown.network_words import TRAFFIC

torch = pytest.importorskip("torch")
F = torch.nn.functional

RATE = 0.05

#: Modes and devices that steps are held to PyTorch in.
MODES = ("graph", "eager")
DEVICES = ("ascend910", "ascend910b2", "ascend950pr")


def by_torch(
    model: Any, trainer: npusim.Trainer, images: Any, labels: Any
) -> tuple[float, dict[str, Any]]:
    """The loss, and the weights after a step of PyTorch in float64 from those of the trainer."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            begun = torch.from_numpy(trainer[name].astype(np.float64))
            weights.copy_(begun.reshape(weights.shape))
    named = [(p, trainer[name].ndim > 1) for name, p in model.named_parameters()]
    optimizer = torch.optim.SGD(
        [
            {"params": [p for p, many in named if many], "weight_decay": 1e-4},
            {"params": [p for p, many in named if not many]},
        ],
        lr=RATE,
    )
    loss = F.cross_entropy(model(torch.from_numpy(images).double()), torch.tensor(labels))
    loss.backward()
    optimizer.step()
    found = {name: weights.detach().numpy() for name, weights in model.named_parameters()}
    return float(loss.detach()), found


def same_as_torch(make: Callable[[], Any], shape: tuple[int, ...], **options: Any) -> StepResult:
    """A step of four images, whose loss and weights are those of PyTorch within fp16."""
    options |= {"settings": {"rate": RATE}, "optimizer": "sgd"}
    trainer = npusim.Trainer(make(), shape, batch=4, **options)
    generator = np.random.default_rng(1)
    for name in trainer.parameters:  # scales and shifts that are not all alike
        if trainer[name].ndim == 1:
            trainer[name] = trainer[name] + 0.3 * generator.standard_normal(trainer[name].shape)
    begun = {name: trainer[name].copy() for name in trainer.parameters}
    images = generator.standard_normal((4, *shape)).astype(np.float32)
    loss, weights = by_torch(make().double(), trainer, images, [1, 9, 4, 0])
    assert trainer.step(images, [1, 9, 4, 0]) == pytest.approx(loss, rel=2e-3)
    for name, wanted in weights.items():
        moved = np.abs(wanted - begun[name].reshape(wanted.shape)).max()
        assert moved > 0, name
        found = trainer[name].reshape(wanted.shape)
        np.testing.assert_allclose(found, wanted, atol=0.02 * moved, err_msg=name)
    (step,) = trainer.steps
    assert step.complete
    return step


def traffic(step: StepResult) -> Counter[str]:
    """Kinds of which only the traffic is known."""
    runs = ((one.name, run.name) for one in step.launched for run in one.timed.runs)
    return Counter(
        one.partition(".")[0].rstrip("_0123456789") for one, run in runs if run == TRAFFIC
    )
