"""Networks that users bring: steps of them have the numbers of PyTorch and leave nothing out."""

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


class Audio(nn.Module):  # type: ignore[misc, name-defined]
    """Signals of one axis: depth-wise convolutions, poolings with and without a window."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 16, 8, stride=4)
        self.down = nn.MaxPool1d(3)
        self.wide, self.point = nn.Conv1d(16, 16, 5, groups=16, padding=2), nn.Conv1d(16, 24, 1)
        self.mean, self.fc = nn.AvgPool1d(2), nn.Linear(24, 10)

    def forward(self, x: Any) -> Any:
        x = self.point(self.wide(self.down(F.relu(self.first(x)))))
        return self.fc(self.mean(x).mean(-1))


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_signals_are_pooled(mode: str) -> None:
    assert not traffic(same_as_torch(Audio, (2, 100), device="ascend910b2", mode=mode))


class Cell(nn.Module):  # type: ignore[misc, name-defined]
    """Gates that are written in place, side by side in one product, as PyTorch's LSTM has them."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.fc = nn.Linear(12, 64), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        i, f, g, o = self.gates(x).unsafe_chunk(4, 1)
        i, f, g, o = i.sigmoid_(), f.sigmoid_(), g.tanh_(), o.sigmoid_()
        return self.fc(o * torch.tanh(f * g + i))


def test_gates_written_in_place_are_read_by_themselves() -> None:
    nodes = {node.name: node for node in read_network(Cell(), (12,)).nodes}
    read = [nodes[name] for name in nodes["Cell.mul"].inputs]
    assert [node.inputs for node in read] == [("gates.slice_2",), ("gates.slice_3",)]
    assert not traffic(same_as_torch(Cell, (12,), device="ascend910b2"))


class Windows(nn.Module):  # type: ignore[misc, name-defined]
    """Attention within windows: queries, keys and values are parts of rows of all windows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        x = x.reshape(-1, 16, 2, 4, 2, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, 16)
        q, k, v = self.qkv(x).reshape(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        x = F.softmax((q * 0.3) @ k.transpose(-2, -1), -1) @ v
        return self.out(x.transpose(1, 2).reshape(-1, 16, 16))


def test_windows_have_parts_of_the_rows_of_all() -> None:
    found = read_network(Windows(), (16, 8, 8))
    nodes = {node.name: node for node in found.nodes}
    parts = [nodes[f"qkv.slice{end}"].layer for end in ("", "_2", "_3")]
    assert [one.padding for one in parts] == [  # type: ignore[union-attr]
        ((0, 0), (0, 0), (-before, before - 2), (0, 0), (0, 0)) for before in (0, 1, 2)
    ]
    step = npusim.step(found, device="ascend910b2", batch=2)
    assert step.complete
    assert not traffic(step)


def test_what_is_expanded_has_fewer_elements() -> None:
    class Cosine(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.fc = nn.Linear(12, 16), nn.Linear(16, 10)

        def forward(self, x: Any) -> Any:
            return self.fc(F.normalize(self.first(x)))

    step = npusim.step(Cosine(), (12,), device="ascend910b2")
    assert dict(step.workload.untimed) == {"linalg_vector_norm": 1}
    assert step.complete


class Pooled(nn.Module):  # type: ignore[misc, name-defined]
    """Means that count the zeros around a map, of maps and of volumes."""

    def __init__(self, conv: Any, mean: Any) -> None:
        super().__init__()
        self.first, self.mean, self.fc = conv(3, 24, 3), mean(3, 2, 1), nn.Linear(24, 10)

    def forward(self, x: Any) -> Any:
        x = F.silu(self.mean(self.first(x)))
        return self.fc(x.mean(tuple(range(2, x.dim()))))


@pytest.mark.parametrize(
    ("conv", "mean", "shape"),
    [(nn.Conv2d, nn.AvgPool2d, (3, 9, 10)), (nn.Conv3d, nn.AvgPool3d, (3, 6, 7, 8))],
)
def test_means_count_the_padding(conv: Any, mean: Any, shape: Any, tmp_path: Path) -> None:
    def made() -> Pooled:
        return Pooled(conv, mean)

    assert not traffic(same_as_torch(made, shape, device="ascend910b2"))
    found, path = read_network(made(), shape), tmp_path / "net.yaml"
    path.write_text(workload_yaml(found), encoding="utf-8")
    assert "> avg_pool (1) 3/2 p1 >" in path.read_text(encoding="utf-8")
    assert canonical(load_workload(path)) == canonical(found)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about its older exporter
def test_windows_with_gaps_are_known_by_name(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(2, 1, 0, 2), nn.Conv2d(16, 8, 1))
    pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    torch.onnx.export(model, torch.zeros(2, 3, 9, 9), str(path), dynamo=False)
    for found in (read_network(model, (3, 9, 9)), read_network(path)):
        assert dict(found.untimed) == {"dilated max_pool": 1}
        assert npusim.step(found, device="ascend910b2").complete


def test_normalised_features_of_a_map_seen_as_a_row_leave_nothing_out() -> None:
    layers = nn.Conv2d(3, 24, 3), nn.Flatten(), nn.BatchNorm1d(24 * 49), nn.Linear(24 * 49, 10)
    step = npusim.step(nn.Sequential(*layers), (3, 9, 9), device="ascend910b2", batch=2)
    assert step.complete
    assert not traffic(step)
