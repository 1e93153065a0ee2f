"""Slices, splits, crops and paddings in a training step: numbers as PyTorch's, in both layouts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.networks.step_result import StepResult
from npusim.results.network_text import TRAFFIC
from npusim.workloads import load_workload, read_network, workload_yaml
from tests.networks.graphs import canonical

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

RATE = 0.05


class Pieces(nn.Module):  # type: ignore[misc, name-defined]
    """A split, a crop on three axes, paddings of both signs, and parts that fill no blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.second = nn.Conv2d(24, 16, 3, bias=False)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = F.pad(self.first(x), (1, 2, 0, 1))
        filtered, gated = x.chunk(2, 1)
        x = torch.tanh(filtered) * torch.sigmoid(gated)
        x = torch.cat([x[:, 3:11, 1:], x[:, :, 1:]], 1)
        return self.fc(F.relu(F.pad(self.second(x), (-1, -2, -1, 0)).mean((2, 3))))


def by_torch(trainer: npusim.Trainer, images: Any, labels: Any) -> tuple[float, dict[str, Any]]:
    """The loss, and the weights after a step of PyTorch in float64 from those of the trainer."""
    model = Pieces().double()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            own = name.replace("weight", "w").replace("bias", "b")
            weights.copy_(torch.from_numpy(trainer[own].astype(np.float64)))
    optimizer = torch.optim.SGD(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 1e-4},
            {"params": [p for p in model.parameters() if p.dim() == 1]},
        ],
        lr=RATE,
    )
    loss = F.cross_entropy(model(torch.from_numpy(images).double()), torch.tensor(labels))
    loss.backward()
    optimizer.step()
    found = {name: weights.detach().numpy() for name, weights in model.named_parameters()}
    return float(loss.detach()), found


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_a_step_is_that_of_pytorch(mode: str, device: str) -> None:
    options: dict[str, Any] = {"mode": mode, "settings": {"rate": RATE}, "optimizer": "sgd"}
    trainer = npusim.Trainer(Pieces(), (3, 8, 8), device=device, batch=4, **options)
    begun = {name: trainer[name].copy() for name in trainer.parameters}
    images = np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32)
    loss, weights = by_torch(trainer, images, [1, 9, 4, 0])
    assert trainer.step(images, [1, 9, 4, 0]) == pytest.approx(loss, rel=2e-3)
    for name, wanted in weights.items():
        own = name.replace("weight", "w").replace("bias", "b")
        moved = np.abs(wanted - begun[own]).max()
        assert moved > 0, name
        np.testing.assert_allclose(trainer[own], wanted, atol=0.02 * moved, err_msg=name)
    (step,) = trainer.steps
    assert step.complete
    assert not traffic(step)
    (joined,) = (one for one in step.launched if one.name == "Pieces.concat.output")
    assert joined.written_bytes == 4 * 24 * 8 * 11 * 2, "plain: 8 channels fill no block of 16"


def traffic(step: StepResult) -> Counter[str]:
    """Kinds of which only the traffic is known."""
    runs = ((one.name, run.name) for one in step.launched for run in one.timed.runs)
    return Counter(
        one.partition(".")[0].rstrip("_0123456789") for one, run in runs if run == TRAFFIC
    )


def test_halves_that_are_all_of_a_value_are_one_split() -> None:
    step = npusim.step(Pieces(), (3, 8, 8), device="ascend910b2", batch=4)
    copies = {
        phase: [(one.name, len(one.reads), len(one.writes)) for one in step.launched
                if one.kind == "copies" and one.phase == phase]
        for phase in ("forward", "backward")
    }  # fmt: skip
    for phase, found in copies.items():
        sizes = [one[1:] for one in found]
        assert sizes == [(1, 1), (1, 2), (1, 1), (1, 1), (2, 1), (1, 1)], phase


@pytest.mark.parametrize("name", ["wavenet", "unet_3d"])
def test_nothing_of_a_network_with_crops_and_splits_is_left_out(name: str) -> None:
    step = npusim.step(name, device="ascend910b2", batch=1, passes="forward")
    assert step.complete
    assert traffic(step) == {"wavenet": {"softmax": 1}, "unet_3d": {"max_pool": 3}}[name]


def test_slices_are_written_and_read_back(tmp_path: Path) -> None:
    found = read_network(Pieces(), (3, 8, 8))
    path = tmp_path / "net.yaml"
    path.write_text(workload_yaml(found), encoding="utf-8")
    assert canonical(load_workload(path)) == canonical(found)
    assert "pad p0x0:1x1:2" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_the_heads_of_an_encoder_are_parts_of_one_product(device: str) -> None:
    """Query, key and value are slices of a linear layer, whose images are no leading axis."""
    layer = nn.TransformerEncoderLayer(48, 3, 96, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Conv2d(3, 48, 4, 4), nn.Flatten(2), nn.Linear(16, 16), Turned(), layer)
    step = npusim.step(model, (3, 16, 16), device=device, batch=2)
    assert step.complete, step.failed[0].timed.error
    copies = [one for one in step.launched if one.kind == "copies"]
    assert [(one.phase, len(one.reads), len(one.writes)) for one in copies] == [
        ("forward", 1, 3),
        ("backward", 3, 1),
    ]


class Turned(nn.Module):  # type: ignore[misc, name-defined]
    """Channels behind positions."""

    def forward(self, x: Any) -> Any:
        return x.transpose(1, 2)
