"""Normalisations of groups of channels, of images, and what is added to variances: as PyTorch's."""

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


class Normal(nn.Module):  # type: ignore[misc, name-defined]
    """A normalisation between two convolutions."""

    def __init__(self, norm: Any, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, bias=False)
        self.norm, self.second = norm, nn.Conv2d(width, 16, 3, stride=2)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = F.silu(self.norm(self.first(x)))
        return self.fc(F.silu(self.second(x)).mean((2, 3)))


#: Some whose channels fill no block, whose group is all of them, and an unusual epsilon.
NORMS: dict[str, Any] = {
    "groups": lambda: Normal(nn.GroupNorm(4, 32), 32),
    "odd groups": lambda: Normal(nn.GroupNorm(3, 24, eps=0.1), 24),
    "one group": lambda: Normal(nn.GroupNorm(1, 40), 40),
    "images": lambda: Normal(nn.InstanceNorm2d(24, affine=True, eps=0.1), 24),
    "batch": lambda: Normal(nn.BatchNorm2d(24, eps=0.5), 24),
    "rows": lambda: Normal(nn.LayerNorm(8, eps=0.5), 24),
}


@pytest.mark.parametrize(("device", "mode", "norm"), crossed(DEVICES, MODES, [*NORMS]))
def test_a_step_is_that_of_pytorch(device: str, mode: str, norm: str) -> None:
    assert not traffic(same_as_torch(NORMS[norm], (3, 11, 10), device=device, mode=mode))


def test_volumes_and_signals_have_groups() -> None:
    for conv, shape in ((nn.Conv3d, (3, 4, 5, 6)), (nn.Conv1d, (3, 30))):
        model = nn.Sequential(conv(3, 32, 3), nn.GroupNorm(8, 32), nn.GELU(), conv(32, 16, 1))
        step = npusim.step(model, shape, device="ascend910b2", batch=2)
        assert step.complete
        assert not traffic(step)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_files_have_the_same_numbers(tmp_path: Path) -> None:
    for name, make in NORMS.items():
        found = read_network(make(), (3, 11, 10))
        path = tmp_path / "net.yaml"
        path.write_text(workload_yaml(found), encoding="utf-8")
        assert canonical(load_workload(path)) == canonical(found), name
    pytest.importorskip("onnx")
    for name in ("images", "rows"):
        path, model = tmp_path / "net.onnx", NORMS[name]().eval()
        torch.onnx.export(
            model, torch.zeros(2, 3, 11, 10), str(path), dynamo=False, opset_version=17
        )
        norms = [
            [one for one in read.elementwise if one.kind.endswith("_norm")]
            for read in (read_network(path), read_network(model, (3, 11, 10)))
        ]
        assert norms[0] == norms[1]
        assert norms[0], name
