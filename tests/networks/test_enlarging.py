"""Enlarged maps in a training step: numbers as PyTorch's, and what stays traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.workloads import load_workload, read_network, workload_yaml
from tests.networks.graphs import canonical

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tests.networks.steps import same_as_torch, traffic  # noqa: E402  # it needs PyTorch


class Up(nn.Module):  # type: ignore[misc, name-defined]
    """A map is enlarged by 2 and by 3 times 4, with channels that fill no block."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how
        self.first = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.second, self.third = nn.Conv2d(24, 16, 3), nn.Conv2d(16, 16, 5, stride=4)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = self.second(F.interpolate(self.first(x), scale_factor=2, **self.how))
        x = self.third(F.interpolate(x, scale_factor=(3, 4), **self.how))
        return self.fc(F.relu(x).mean((2, 3)))


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("device", ["ascend910", "ascend910b2", "ascend950pr"])
def test_a_step_is_that_of_pytorch(mode: str, device: str) -> None:
    assert not traffic(same_as_torch(Up, (3, 9, 7), device=device, mode=mode))


def test_other_ways_to_enlarge_are_traffic(tmp_path: Path) -> None:
    """So are factors that are not whole, and maps of three dimensions."""
    found = read_network(Up(mode="bilinear"), (3, 9, 7))
    assert traffic(npusim.step(found, device="ascend910b2")) == {"Up": 4}
    assert {node.layer.kind for node in found.nodes if "interpolate" in node.name} == {  # type: ignore[union-attr]
        "interpolate"
    }
    path = tmp_path / "net.yaml"
    path.write_text(workload_yaml(found), encoding="utf-8")
    assert canonical(load_workload(path)) == canonical(found)
    odd = nn.Sequential(nn.Conv2d(3, 16, 1), nn.Upsample((7, 8)), nn.Conv2d(16, 16, 1))
    assert sum(traffic(npusim.step(odd, (3, 4, 4), device="ascend910b2")).values()) == 2
    deep = nn.Sequential(nn.Conv3d(3, 16, 1), nn.Upsample(scale_factor=2), nn.Conv3d(16, 16, 1))
    assert sum(traffic(npusim.step(deep, (3, 2, 4, 4), device="ascend910b2")).values()) == 2


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_an_exported_file_enlarges_alike(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    torch.onnx.export(Up(mode=mode).eval(), torch.zeros(2, 3, 9, 7), str(path), dynamo=False)
    wanted, found = read_network(Up(mode=mode), (3, 9, 7)), read_network(path)
    assert found.elementwise == wanted.elementwise
