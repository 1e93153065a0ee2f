"""Normalisations and softmax over rows in a training step: numbers as PyTorch's."""

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
    DEVICES,
    MODES,
    same_as_torch,
    traffic,
)


class Rows(nn.Module):  # type: ignore[misc, name-defined]
    """A normalisation, softmax and its logarithm along the last axis, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm, self.last = nn.LayerNorm(24), nn.LayerNorm(48)
        self.mix, self.fc = nn.Linear(24, 24), nn.Linear(48, 10)
        self.second = nn.Conv2d(16, 48, 3)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.first(x))
        x = x * F.softmax(self.mix(x), -1) + F.log_softmax(x, -1)
        return self.fc(self.last(self.second(x).mean((2, 3))))


@pytest.mark.parametrize(("mode", "device"), crossed(MODES, DEVICES))
def test_a_step_is_that_of_pytorch(mode: str, device: str) -> None:
    assert not traffic(same_as_torch(Rows, (3, 5, 24), device=device, mode=mode))


def test_other_axes_are_rows_of_their_own_order() -> None:
    class Others(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 1), nn.LayerNorm((4, 6))

        def forward(self, x: Any) -> Any:
            return F.softmax(self.norm(self.conv(x)), 1)

    found = read_network(Others(), (3, 4, 6))
    assert [(one.kind, one.shape, one.out, one.axes) for one in found.elementwise] == [
        ("layer_norm", (1, 8, 24), (1, 8, 24), ()),
        ("permute", (1, 8, 4, 6), (1, 4, 6, 8), (0, 2, 3, 1)),
        ("softmax", (1, 4, 6, 8), (1, 4, 6, 8), ()),
    ]
    step = npusim.step(found, device="ascend910b2")
    assert step.complete
    assert not traffic(step)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_files_have_the_same_rows(tmp_path: Path) -> None:
    found = read_network(Rows(), (3, 5, 24))
    path = tmp_path / "net.yaml"
    path.write_text(workload_yaml(found), encoding="utf-8")
    assert canonical(load_workload(path)) == canonical(found)
    pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    args = (Rows().eval(), torch.zeros(2, 3, 5, 24), str(path))
    torch.onnx.export(*args, dynamo=False, opset_version=17)
    assert read_network(path).elementwise == found.elementwise


def test_the_rows_of_an_encoder_are_those_of_its_heads() -> None:
    layer = nn.TransformerEncoderLayer(48, 3, 96, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Conv1d(3, 16, 1), nn.Linear(20, 48), layer)
    step = npusim.step(model, (3, 20), device="ascend910b2", batch=2)
    assert not traffic(step)
    rows = [node.layer for node in step.workload.nodes if "soft" in node.name]
    assert [one.shape for one in rows] == [(2, 3, 16, 16)]  # type: ignore[union-attr]
