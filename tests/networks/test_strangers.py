"""Networks that users bring: steps of them have the numbers of PyTorch and leave nothing out."""

from __future__ import annotations

from typing import Any

import pytest

import npusim
from npusim.workloads import read_network

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
        ((0, 0), (-before, before - 32)) for before in (0, 16, 32)
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
    assert dict(step.workload.untimed) == {"linalg_vector_norm": 1, "div of few elements": 1}
    assert step.complete
