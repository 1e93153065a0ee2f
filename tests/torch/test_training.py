"""A module trained by PyTorch and on simulated kernels: the same weights and losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.workloads import read_network
from tests.networks.blocks import Array, images
from tests.networks.reference import Reference

torch = pytest.importorskip("torch")
nn = torch.nn

BATCH, RATE = 16, 0.05


class Block(nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions with normalisations, and what goes around them."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        stride = cout // cin
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.around = nn.Identity()
        if stride > 1:
            conv = nn.Conv2d(cin, cout, 1, stride, bias=False)
            self.around = nn.Sequential(conv, nn.BatchNorm2d(cout))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.around(x))


def model() -> Any:
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return nn.Sequential(*first, Block(16, 16), Block(16, 32), *last)


def names(trainer: npusim.Trainer, module: Any) -> dict[str, Any]:
    """The parameters of a module, which the trainer has by the same names."""
    found = dict(module.named_parameters())
    assert set(found) == set(trainer.parameters)
    return found


def by_torch(module: Any, steps: int) -> list[float]:
    """Losses of steps of SGD with momentum, weights alone with decay."""
    decayed = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": others}]
    optimizer, losses = torch.optim.SGD(groups, lr=RATE, momentum=0.9), []
    for xs, labels in batches(steps):
        kind = next(module.parameters()).dtype
        out = module(torch.tensor(xs, dtype=kind))
        loss = nn.functional.cross_entropy(out, torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def batches(steps: int) -> list[tuple[Array, Array]]:
    xs, labels = images(20 * BATCH)
    return [(xs[at : at + BATCH], labels[at : at + BATCH]) for at in range(0, steps * BATCH, BATCH)]


@pytest.mark.parametrize("steps", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_module_is_trained_as_by_pytorch(steps: int) -> None:
    """In float64 NumPy's steps are PyTorch's, and the chip is no further off than fp16 explains."""
    module, wide = model(), model().double()
    workload = read_network(module, (3, 16, 16))
    trainer = npusim.Trainer(
        workload, device="ascend910b2", batch=BATCH, settings={"rate": RATE}
    )  # fmt: skip
    own, exact = names(trainer, module), names(trainer, wide)
    assert set(own) == set(trainer.parameters)
    begun = {name: value.detach().numpy().copy() for name, value in own.items()}
    for name, value in begun.items():
        trainer[name] = value
    reference, half = (Reference(workload, begun, half=one) for one in (False, True))
    for xs, labels in batches(steps):
        trainer.step(xs, labels)
        reference.step(xs, labels, RATE)
        half.step(xs, labels, RATE)
    single, double = by_torch(module, steps), by_torch(wide, steps)
    np.testing.assert_allclose(reference.losses, double, rtol=1e-9)
    explained = np.abs(np.array(half.losses) - double).max()
    assert np.abs(np.array(trainer.losses) - single).max() <= 2 * explained + 1e-3
    for name, value in exact.items():
        wanted = value.detach().numpy()
        np.testing.assert_allclose(reference.weights[name], wanted, rtol=1e-6, atol=1e-9)
        moved = np.linalg.norm(wanted - begun[name])
        off, fp16 = (
            np.linalg.norm(one - wanted) / moved for one in (trainer[name], half.weights[name])
        )
        assert off <= 1.5 * fp16 + 0.01, name


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """A gate whose first state is a constant, and dropped features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.seen, self.held = nn.Linear(16, 32), nn.Linear(16, 32)
        self.fc = nn.Sequential(nn.Dropout(), nn.Linear(16, 10))

    def forward(self, x: Any) -> Any:
        x = self.conv(x).mean((2, 3))
        state = torch.zeros_like(x)
        kept, new = (self.seen(x) + self.held(state)).chunk(2, 1)
        return self.fc(torch.sigmoid(kept) * state + torch.tanh(new))


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_constants_and_dropped_features_are_values_of_a_step(mode: str) -> None:
    step = npusim.step(Recurrent(), (3, 8, 8), device="ascend910b2", batch=4, mode=mode)
    assert step.complete
    names = {one.name for one in step.launched}
    assert {"seen.input", "held.weight"} <= names
    assert "held.input" not in names, "a constant has no gradient"


class Gate(nn.Module):  # type: ignore[misc, name-defined]
    """Factors by image and channel that a linear layer computes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, channels)

    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(self.fc(x.mean((2, 3))))[:, :, None, None]


#: Features of a linear layer are rows, which kernels that sum by channel take in blocks; 24 fill no
#: whole ones. Activations of which PyTorch has several under one name, and one that is trained.
NETWORKS: dict[str, Any] = {
    "normalised features": lambda: (
        *(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10)),
    ),
    "gate of features": lambda: (
        *(nn.Conv2d(3, 24, 3, 2), Gate(24), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(24, 10),
    ),
    "activations": lambda: (
        *(nn.Conv2d(3, 24, 3, 2), nn.BatchNorm2d(24), nn.PReLU(24), nn.ELU(0.5), nn.SELU()),
        *(nn.Softplus(), nn.Mish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)),
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_layers_are_trained_as_by_pytorch(network: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*NETWORKS[network]())
    trainer = npusim.Trainer(
        module, (3, 16, 16), device="ascend910b2", batch=BATCH, settings={"rate": RATE}
    )
    own = names(trainer, module)
    begun = {name: value.detach().numpy().copy() for name, value in own.items()}
    for name, value in begun.items():
        trainer[name] = value
    for xs, labels in batches(3):
        trainer.step(xs, labels)
    np.testing.assert_allclose(trainer.losses, by_torch(module, 3), rtol=2e-3)
    for name, value in own.items():
        wanted = value.detach().numpy()
        moved, off = (np.linalg.norm(wanted - one) for one in (begun[name], trainer[name]))
        assert off <= 0.05 * moved + 1e-4, name  # a bias before a normalisation does not move
    assert trainer.steps[0].complete
