"""Networks that users bring: steps of them have the numbers of PyTorch and leave nothing out."""

from __future__ import annotations

from typing import Any

import pytest

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
