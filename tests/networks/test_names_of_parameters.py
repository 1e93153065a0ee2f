"""Parameters may be called as they like: the optimizer's new values are no matter of names."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from tests.networks.steps import same_as_torch  # noqa: E402 - it needs torch


class Shifted(nn.Module):  # type: ignore[misc, name-defined]
    """Two trained parameters, of which one is called as the new value of the other might be."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 10)
        self.shift = nn.Parameter(torch.zeros(10))
        self.shift_new = nn.Parameter(torch.ones(10))

    def forward(self, x: Any) -> Any:
        return (self.fc(x.flatten(1)) + self.shift) * self.shift_new


def test_a_parameter_whose_name_ends_like_an_update_is_one_of_its_own() -> None:
    same_as_torch(Shifted, (3, 2, 2), device="ascend910b2", mode="graph")
