"""The networks that ship, as PyTorch modules written from their papers: a second opinion.

Each gives the layers of one forward pass; nothing is trained. Convolutions have biases where no
normalisation follows at once, except in DCGAN and DenseNet.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.networks.measured import densenet121, efficientnet_b0, inception_v3, poolformer_s12
from tests.networks.pieces import ChannelsLast, Module, Residual, Scale, by_channel, normal

torch = pytest.importorskip("torch")
nn = torch.nn


def resnet(blocks: tuple[int, ...], *, bottleneck: bool) -> Module:
    """He et al. 2016 (arXiv:1512.03385), table 1; stride in the 3x3 convolution."""
    layers: list[Module] = [
        normal(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU()),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        out = 4 * width if bottleneck else width
        for i in range(count):
            stride = 2 if stage and i == 0 else 1
            if bottleneck:
                branch = nn.Sequential(
                    normal(nn.Conv2d(channels, width, 1), nn.ReLU()),
                    normal(nn.Conv2d(width, width, 3, stride, 1), nn.ReLU()),
                    normal(nn.Conv2d(width, out, 1)),
                )
            else:
                branch = nn.Sequential(
                    normal(nn.Conv2d(channels, width, 3, stride, 1), nn.ReLU()),
                    normal(nn.Conv2d(width, width, 3, 1, 1)),
                )
            change = stride > 1 or channels != out
            shortcut = normal(nn.Conv2d(channels, out, 1, stride)) if change else None
            layers.append(Residual(branch, shortcut, nn.ReLU()))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def vgg(*counts: int) -> Module:
    """Simonyan and Zisserman 2015 (arXiv:1409.1556), so many convolutions before each pooling."""
    layers: list[Module] = []
    channels = 3
    for width, count in zip((64, 128, 256, 512, 512), counts, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, 1, 1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head: list[Module] = []
    for cin in (512 * 49, 4096):
        head += [nn.Linear(cin, 4096), nn.ReLU(), nn.Dropout()]
    head.append(nn.Linear(4096, 1000))
    return nn.Sequential(*layers, nn.Flatten(), *head)


def mobilenet_v1() -> Module:
    """Howard et al. 2017 (arXiv:1704.04861), table 1, with stride 1 in its last depth-wise."""
    layers: list[Module] = [normal(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU())]
    channels = 32
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5)
    for out, stride in (*plan, (1024, 2), (1024, 1)):
        layers += [
            normal(nn.Conv2d(channels, channels, 3, stride, 1, groups=channels), nn.ReLU()),
            normal(nn.Conv2d(channels, out, 1), nn.ReLU()),
        ]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


def mobilenet_v2() -> Module:
    """Sandler et al. 2018 (arXiv:1801.04381), table 2."""
    layers: list[Module] = [normal(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU6())]
    channels = 32
    plan = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    for expansion, out, count, first in plan:
        for i in range(count):
            wide = channels * expansion
            stride = first if i == 0 else 1
            branch = nn.Sequential(
                *((normal(nn.Conv2d(channels, wide, 1), nn.ReLU6()),) if wide > channels else ()),
                normal(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide), nn.ReLU6()),
                normal(nn.Conv2d(wide, out, 1)),
            )
            layers.append(branch if i == 0 else Residual(branch))
            channels = out
    layers.append(normal(nn.Conv2d(channels, 1280, 1), nn.ReLU6()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def convnext_tiny() -> Module:
    """Liu et al. 2022 (arXiv:2201.03545), table 9."""
    layers: list[Module] = [nn.Conv2d(3, 96, 4, 4), *by_channel(96)]
    channels = 96
    for width, count in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if width != channels:
            layers += [*by_channel(channels), nn.Conv2d(channels, width, 2, 2)]
            channels = width
        for _ in range(count):
            branch = nn.Sequential(
                nn.Conv2d(width, width, 7, 1, 3, groups=width),
                ChannelsLast(),
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
                ChannelsLast(back=True),
                Scale(width),
            )
            layers.append(Residual(branch))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000))
    return nn.Sequential(*layers, *head)


class UNet(nn.Module):  # type: ignore[misc, name-defined]
    """An encoder and a decoder that reads the encoder's maps, cropped to its own size."""

    def __init__(self, down: list[Module], up: list[tuple[Module, Module]], last: Module) -> None:
        super().__init__()
        self.down = nn.ModuleList(down)
        self.up = nn.ModuleList(module for pair in up for module in pair)
        self.last = last

    def forward(self, x: Any) -> Any:
        pool = nn.MaxPool2d(2) if x.dim() == 4 else nn.MaxPool3d(2)
        held = []
        for i, level in enumerate(self.down):
            x = level(pool(x) if i else x)
            held.append(x)
        held.pop()
        for i in range(0, len(self.up), 2):
            x = self.up[i](x)
            skip = held.pop()
            for axis in range(2, x.dim()):
                extra = skip.shape[axis] - x.shape[axis]
                skip = skip.narrow(axis, extra // 2, x.shape[axis])
            x = self.up[i + 1](torch.cat((skip, x), 1))
        return self.last(x)


def unet() -> Module:
    """Ronneberger et al. 2015 (arXiv:1505.04597), figure 1: unpadded, 572 x 572 in."""

    def twice(cin: int, cout: int) -> Module:
        return nn.Sequential(
            nn.Conv2d(cin, cout, 3), nn.ReLU(), nn.Conv2d(cout, cout, 3), nn.ReLU()
        )

    widths = (64, 128, 256, 512, 1024)
    down = [twice(a, b) for a, b in zip((1, *widths), widths, strict=False)]
    up = [
        (nn.ConvTranspose2d(2 * w, w, 2, 2), twice(2 * w, w)) for w in reversed(widths[:-1])
    ]  # fmt: skip
    return UNet(down, list(up), nn.Conv2d(64, 2, 1))


def unet_3d() -> Module:
    """Cicek et al. 2016 (arXiv:1606.06650), figure 2: unpadded, three channels of 116x132x132."""

    def twice(cin: int, half: int, cout: int) -> Module:
        return nn.Sequential(
            normal(nn.Conv3d(cin, half, 3), nn.ReLU()), normal(nn.Conv3d(half, cout, 3), nn.ReLU())
        )

    down = [twice(3, 32, 64), twice(64, 64, 128), twice(128, 128, 256), twice(256, 256, 512)]
    up: list[tuple[Module, Module]] = [
        (nn.ConvTranspose3d(2 * w, 2 * w, 2, 2), twice(3 * w, w, w)) for w in (256, 128, 64)
    ]
    return UNet(down, up, nn.Conv3d(64, 3, 1))


def r2plus1d_18() -> Module:
    """Tran et al. 2018 (arXiv:1711.11248): every 3-D convolution as one of space, one of time."""

    def split(cin: int, middle: int, cout: int, stride: int = 1) -> Module:
        space = nn.Conv3d(cin, middle, (1, 3, 3), (1, stride, stride), (0, 1, 1))
        time = nn.Conv3d(middle, cout, (3, 1, 1), (stride, 1, 1), (1, 0, 0))
        return nn.Sequential(normal(space, nn.ReLU()), normal(time))

    def block(cin: int, cout: int, stride: int) -> Module:
        # As many weights as the 3-D convolution; torchvision's second has the width of the first.
        middle = 27 * cin * cout // (9 * cin + 3 * cout)
        change = normal(nn.Conv3d(cin, cout, 1, stride)) if stride > 1 else None
        branch = nn.Sequential(
            split(cin, middle, cout, stride), nn.ReLU(), split(cout, middle, cout)
        )
        return Residual(branch, change, nn.ReLU())

    layers: list[Module] = [
        normal(nn.Conv3d(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3)), nn.ReLU()),
        normal(nn.Conv3d(45, 64, (3, 1, 1), 1, (1, 0, 0)), nn.ReLU()),
    ]
    channels = 64
    for stage in range(4):
        width = 64 << stage
        layers += [block(channels, width, 2 if stage else 1), block(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400))


def dcgan() -> Module:
    """Radford et al. 2016 (arXiv:1511.06434), figure 1: noise of 100 numbers to 64 x 64 images."""
    widths = (1024, 512, 256, 128)
    layers: list[Module] = [normal(nn.ConvTranspose2d(100, 1024, 4), nn.ReLU())]
    for cin, cout in pairwise(widths):
        layers.append(normal(nn.ConvTranspose2d(cin, cout, 4, 2, 1), nn.ReLU()))
    return nn.Sequential(*layers, nn.ConvTranspose2d(128, 3, 4, 2, 1, bias=False), nn.Tanh())


class WaveNet(nn.Module):  # type: ignore[misc, name-defined]
    """van den Oord et al. 2016 (arXiv:1609.03499): gated dilated causal convolutions in 1-D."""

    def __init__(self, layers: int, residual: int, skip: int, levels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(levels, residual, 1)
        self.dilations = [1 << i % 10 for i in range(layers)]
        self.gates = nn.ModuleList(
            nn.Conv1d(residual, 2 * residual, 2, dilation=d) for d in self.dilations
        )
        self.outs = nn.ModuleList(nn.Conv1d(residual, residual, 1) for _ in self.dilations[1:])
        self.skips = nn.ModuleList(nn.Conv1d(residual, skip, 1) for _ in self.dilations)
        last = (nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, levels, 1), nn.Softmax(1))
        self.head = nn.Sequential(nn.ReLU(), *last)

    def forward(self, x: Any) -> Any:
        x, total = self.first(x), None
        outs = (*self.outs, None)  # nothing reads the last layer's residual
        parts = zip(self.dilations, self.gates, outs, self.skips, strict=True)
        for dilation, gate, out, skip in parts:
            before = nn.functional.pad(x, (dilation, 0))
            filtered, gated = gate(before).chunk(2, 1)
            now = torch.tanh(filtered) * torch.sigmoid(gated)
            total = skip(now) if total is None else total + skip(now)
            x = x if out is None else x + out(now)
        return self.head(total)


#: Name of a workload: how to make its module, and the shape of one input.
NETWORKS: dict[str, tuple[Callable[[], Module], tuple[int, ...]]] = {
    "resnet18": (lambda: resnet((2, 2, 2, 2), bottleneck=False), (3, 224, 224)),
    "resnet50": (lambda: resnet((3, 4, 6, 3), bottleneck=True), (3, 224, 224)),
    "resnet34": (lambda: resnet((3, 4, 6, 3), bottleneck=False), (3, 224, 224)),
    "vgg13": (lambda: vgg(2, 2, 2, 2, 2), (3, 224, 224)),
    "vgg16": (lambda: vgg(2, 2, 3, 3, 3), (3, 224, 224)),
    "densenet121": (densenet121, (3, 224, 224)),
    "inception_v3": (inception_v3, (3, 299, 299)),
    "efficientnet_b0": (efficientnet_b0, (3, 224, 224)),
    "poolformer_s12": (poolformer_s12, (3, 224, 224)),
    "mobilenet_v1": (mobilenet_v1, (3, 224, 224)),
    "mobilenet_v2": (mobilenet_v2, (3, 224, 224)),
    "convnext_tiny": (convnext_tiny, (3, 224, 224)),
    "unet": (unet, (1, 572, 572)),
    "unet_3d": (unet_3d, (3, 116, 132, 132)),
    "r2plus1d_18": (r2plus1d_18, (3, 16, 112, 112)),
    "dcgan": (dcgan, (100, 1, 1)),
    "wavenet": (lambda: WaveNet(40, 64, 256, 256), (256, 16000)),
}
