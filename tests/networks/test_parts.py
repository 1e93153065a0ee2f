"""Slices, splits, crops and paddings in a training step: numbers as PyTorch's, in both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.workloads import load_workload, read_network, workload_yaml
from tests.networks.graphs import canonical
from tests.sampled import crossed

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tests.networks.steps import (  # noqa: E402  # they need PyTorch
    MODES,
    same_as_torch,
    traffic,
)


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


@pytest.mark.parametrize(("mode", "device"), crossed(MODES, ["ascend910b2", "ascend910"]))
def test_a_step_is_that_of_pytorch(mode: str, device: str) -> None:
    step = same_as_torch(Pieces, (3, 8, 8), device=device, mode=mode)
    assert not traffic(step)
    (joined,) = (one for one in step.launched if one.name == "Pieces.concat.output")
    assert joined.written_bytes == 4 * 24 * 8 * 11 * 2, "plain: 8 channels fill no block of 16"


def test_halves_that_are_all_of_a_value_are_one_split() -> None:
    step = npusim.step(Pieces(), (3, 8, 8), device="ascend910b2", batch=4)
    copies = {
        phase: [(one.name, len(one.reads), len(one.writes)) for one in step.launched
                if one.kind == "copies" and one.phase == phase]
        for phase in ("forward", "backward")
    }  # fmt: skip
    for phase, found in copies.items():
        sizes = [one[1:] for one in found]
        if phase == "backward":  # the parts that are joined differ, and have a slice each
            slices = sizes.index((1, 1), 1)
            assert [name[-1] for name, *_ in found[slices : slices + 2]] == ["1", "2"]
            assert sizes == [(1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (2, 1), (1, 1)]
        else:
            assert sizes == [(1, 1), (1, 2), (1, 1), (1, 1), (2, 1), (1, 1)]


@pytest.mark.parametrize("name", ["wavenet", "unet_3d"])
def test_nothing_of_a_network_with_crops_and_splits_is_left_out(name: str) -> None:
    step = npusim.step(name, device="ascend910b2", batch=1, passes="forward")
    assert step.complete
    left = {"wavenet": {}, "unet_3d": {"max_pool": 3}}
    assert traffic(step) == left[name]


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
