"""Parts that several networks of ``definitions`` and ``measured`` have."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

#: A ``torch.nn.Module``: type checkers have no PyTorch.
Module = Any


class Residual(nn.Module):  # type: ignore[misc, name-defined]
    """A residual block: its branch, a projection where the shape changes, and what follows."""

    def __init__(
        self, branch: Module, shortcut: Module | None = None, after: Module | None = None
    ) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.after(self.branch(x) + self.shortcut(x))


def normal(conv: Module, *after: Module) -> Module:
    """A convolution without a bias, its batch normalisation, and what follows."""
    conv.register_parameter("bias", None)  # the normalisation has one
    norms = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
    return nn.Sequential(conv, norms[len(conv.kernel_size)](conv.out_channels), *after)


class ChannelsLast(nn.Module):  # type: ignore[misc, name-defined]
    """Channels to the end, as ConvNeXt has them for its linear layers, or back."""

    def __init__(self, *, back: bool = False) -> None:
        super().__init__()
        self.axes = (0, 3, 1, 2) if back else (0, 2, 3, 1)

    def forward(self, x: Any) -> Any:
        return x.permute(self.axes)


def by_channel(width: int) -> list[Module]:
    """The normalisation of every position over its channels."""
    return [ChannelsLast(), nn.LayerNorm(width), ChannelsLast(back=True)]


class Scale(nn.Module):  # type: ignore[misc, name-defined]
    """A factor for every channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x: Any) -> Any:
        return x * self.weight
