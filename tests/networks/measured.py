"""More networks that ship, whose steps others have measured: see ``definitions``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.networks.pieces import Module, Residual, Scale, normal

torch = pytest.importorskip("torch")
nn = torch.nn


class Dense(nn.Module):  # type: ignore[misc, name-defined]
    """A layer of a dense block: its maps behind those that it has read."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            normal(nn.Conv2d(channels, 128, 1), nn.ReLU()),
            nn.Conv2d(128, 32, 3, 1, 1, bias=False),
        )

    def forward(self, x: Any) -> Any:
        return torch.cat((x, self.layers(x)), 1)


def densenet121() -> Module:
    """Huang et al. 2017 (arXiv:1608.06993), table 1, with growth 32."""
    layers: list[Module] = [
        normal(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU()),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for block, count in enumerate((6, 12, 24, 16)):
        if block:
            narrow = nn.Conv2d(channels, channels // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), narrow, nn.AvgPool2d(2)]
            channels //= 2
        layers += [Dense(channels + 32 * i) for i in range(count)]
        channels += 32 * count
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *last)


class Branches(nn.Module):  # type: ignore[misc, name-defined]
    """Several modules that read the same maps: their results behind each other."""

    def __init__(self, *branches: Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Any) -> Any:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Inception(nn.Module):  # type: ignore[misc, name-defined]
    """A classifier behind a network, and in training a second one behind its first part."""

    def __init__(self, first: Module, auxiliary: Module, second: Module) -> None:
        super().__init__()
        self.first, self.auxiliary, self.second = first, auxiliary, second

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.auxiliary(x), self.second(x)


def rectified(cin: int, *steps: tuple[Any, ...]) -> Module:
    """Convolutions (channels, kernel, stride, padding), each with normalisation and ReLU."""
    made = []
    for cout, *window in steps:
        made.append(normal(nn.Conv2d(cin, cout, *window), nn.ReLU()))
        cin = cout
    return nn.Sequential(*made)


def inception_v3() -> Module:
    """Szegedy et al. 2016 (arXiv:1512.00567), as torchvision has it, auxiliary head included."""
    chain = rectified

    def pooled(cin: int, cout: int) -> Module:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), chain(cin, (cout, 1)))

    def across(cout: int) -> tuple[Any, ...]:
        return (cout, (1, 7), 1, (0, 3))

    def along(cout: int) -> tuple[Any, ...]:
        return (cout, (7, 1), 1, (3, 0))

    def split(cin: int) -> Module:
        steps = (384, (1, 3), 1, (0, 1)), (384, (3, 1), 1, (1, 0))
        return Branches(*(chain(cin, step) for step in steps))

    first: list[Module] = [
        chain(3, (32, 3, 2), (32, 3), (64, 3, 1, 1)),
        nn.MaxPool2d(3, 2),
        chain(64, (80, 1), (192, 3)),
        nn.MaxPool2d(3, 2),
    ]
    for cin, out in ((192, 32), (256, 64), (288, 64)):  # 35 x 35
        five = chain(cin, (48, 1), (64, 5, 1, 2))
        three = chain(cin, (64, 1), (96, 3, 1, 1), (96, 3, 1, 1))
        first.append(Branches(chain(cin, (64, 1)), five, three, pooled(cin, out)))
    three = chain(288, (64, 1), (96, 3, 1, 1), (96, 3, 2))
    first.append(Branches(chain(288, (384, 3, 2)), three, nn.MaxPool2d(3, 2)))
    for w in (128, 160, 160, 192):  # 17 x 17
        seven = chain(768, (w, 1), across(w), along(192))
        twice = chain(768, (w, 1), along(w), across(w), along(w), across(192))
        first.append(Branches(chain(768, (192, 1)), seven, twice, pooled(768, 192)))
    three = chain(768, (192, 1), (320, 3, 2))
    seven = chain(768, (192, 1), across(192), along(192), (192, 3, 2))
    second: list[Module] = [Branches(three, seven, nn.MaxPool2d(3, 2))]
    for cin in (1280, 2048):  # 8 x 8
        three = nn.Sequential(chain(cin, (384, 1)), split(384))
        twice = nn.Sequential(chain(cin, (448, 1), (384, 3, 1, 1)), split(384))
        second.append(Branches(chain(cin, (320, 1)), three, twice, pooled(cin, 192)))
    last = (nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(2048, 1000))
    auxiliary = nn.Sequential(
        nn.AvgPool2d(5, 3), chain(768, (128, 1), (768, 5)), nn.Flatten(), nn.Linear(768, 1000)
    )
    return Inception(nn.Sequential(*first), auxiliary, nn.Sequential(*second, *last))


class Excited(nn.Module):  # type: ignore[misc, name-defined]
    """Squeeze and excitation: every channel by a factor of what its mean is."""

    def __init__(self, channels: int, inside: int) -> None:
        super().__init__()
        self.factor = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inside, 1),
            nn.SiLU(),
            nn.Conv2d(inside, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Any) -> Any:
        return x * self.factor(x)


def efficientnet_b0() -> Module:
    """Tan and Le 2019 (arXiv:1905.11946), table 1."""
    layers: list[Module] = [normal(nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU())]
    channels = 32
    plan = (
        *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
        *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    )
    for expansion, out, count, first, kernel in plan:
        for i in range(count):
            wide = channels * expansion
            space = nn.Conv2d(wide, wide, kernel, 1 if i else first, kernel // 2, groups=wide)
            branch = nn.Sequential(
                *((normal(nn.Conv2d(channels, wide, 1), nn.SiLU()),) if wide > channels else ()),
                normal(space, nn.SiLU()),
                Excited(wide, channels // 4),
                normal(nn.Conv2d(wide, out, 1)),
            )
            layers.append(Residual(branch) if i else branch)
            channels = out
    layers.append(normal(nn.Conv2d(channels, 1280, 1), nn.SiLU()))
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(1280, 1000))
    return nn.Sequential(*layers, *last)


class MeanLess(nn.Module):  # type: ignore[misc, name-defined]
    """The mean of the neighbours of every position, less itself."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, x: Any) -> Any:
        return self.pool(x) - x


def poolformer_s12() -> Module:
    """Yu et al. 2022 (arXiv:2111.11418), table 1, with factors of channels."""
    layers: list[Module] = [nn.Conv2d(3, 64, 7, 4, 2)]
    channels = 64
    for width, count in ((64, 2), (128, 2), (320, 6), (512, 2)):
        if width != channels:
            layers.append(nn.Conv2d(channels, width, 3, 2, 1))
            channels = width
        for _ in range(count):
            wide = nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1)
            layers += [
                Residual(nn.Sequential(nn.GroupNorm(1, width), MeanLess(), Scale(width))),
                Residual(nn.Sequential(nn.GroupNorm(1, width), *wide, Scale(width))),
            ]
    head = (nn.GroupNorm(1, 512), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    return nn.Sequential(*layers, *head)
