"""Small modules after the papers that people's networks follow, and those that readers got wrong.

``CASES`` has them by name. They are small enough that a step of each takes a second or two; those
that are ``slow`` take longer. Each is one way of writing a network that occurs outside, not a
network that is worth training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

#: A ``torch.nn.Module`` or ``torch.Tensor``: type checkers have no PyTorch.
Module = Any
Tensor = Any


class Case(NamedTuple):
    """A module, and inputs of it for a number of images.

    ``macs`` are the multiply-adds of a forward pass of ``batch`` images, worked out by hand; the
    comment beside a figure says how. ``slow`` cases take more than some seconds.
    """

    name: str
    kind: str
    build: Callable[[], Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    macs: int | None = None
    batch: int = 1
    slow: bool = False


def numbers(*shapes: Sequence[int]) -> Callable[[int], tuple[Tensor, ...]]:
    """Inputs of normally distributed numbers, a tensor for each shape of one image."""

    def drawn(batch: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(len(shapes))
        return tuple(torch.randn(batch, *shape, generator=generator) for shape in shapes)

    return drawn


def tokens(length: int, words: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Inputs of ``length`` integers below ``words``."""

    def drawn(batch: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(length)
        return (torch.randint(words, (batch, length), generator=generator),)

    return drawn


def with_time(*shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    """An image and the integer of its time step."""

    def drawn(batch: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(3)
        times = torch.randint(1000, (batch,), generator=generator)
        return torch.randn(batch, *shape, generator=generator), times

    return drawn


def conv_norm(cin: int, cout: int, kernel: int = 3, **options: Any) -> Module:
    """A convolution that keeps the size, its normalisation and a ReLU in place."""
    options.setdefault("padding", kernel // 2)
    conv = nn.Conv2d(cin, cout, kernel, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Classifier(nn.Module):  # type: ignore[misc, name-defined]
    """A body of maps, the mean of each map, and a linear layer of ten classes."""

    def __init__(self, body: Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


# -- batches that hold more than images ------------------------------------------------------


class Frames(nn.Module):  # type: ignore[misc, name-defined]
    """Frames of a clip folded into the batch, classified by their mean (TSN, 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.f = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        batch, frames = x.shape[:2]
        y = self.b(self.a(x.flatten(0, 1)).relu()).relu().mean((2, 3))
        return self.f(y.view(batch, frames, 32).mean(1))


class Heads(nn.Module):  # type: ignore[misc, name-defined]
    """Heads of attention folded into the batch of a depth-wise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, 2, 1, groups=8)

    def forward(self, q: Tensor) -> Tensor:
        batch = q.shape[0]
        return self.conv(q.reshape(batch * 4, 8, 8, 8)).reshape(batch, 32, 4, 4)


class Patches(nn.Module):  # type: ignore[misc, name-defined]
    """Sixteen patches of an image, each through the same convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        patches = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5)
        y = self.conv(patches.reshape(-1, 3, 8, 8)).relu()
        return self.head(y.mean((2, 3)).view(batch, 16, 8).mean(1))


class Views(nn.Module):  # type: ignore[misc, name-defined]
    """Two views of an image one behind the other in the batch (SimCLR, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        y = self.conv(torch.cat([first, second], 0)).relu().mean((2, 3))
        one, other = y.chunk(2, 0)
        return one * other


class Positions(nn.Module):  # type: ignore[misc, name-defined]
    """One map of sines through a convolution, added to every image (XCiT, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.conv = nn.Conv2d(8, 16, 1), nn.Conv2d(3, 16, 4, 4)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        rows = torch.arange(8, device=x.device, dtype=torch.float32)[:, None, None] + 1
        place = torch.arange(y.shape[2], device=x.device, dtype=torch.float32)
        waves = torch.sin(rows * (place[:, None] + place)).unsqueeze(0)
        return self.head((y + self.project(waves)).mean((2, 3)))


class Shift(nn.Module):  # type: ignore[misc, name-defined]
    """Channels of neighbouring frames change places, by parts written in place (TSM, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.f = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        batch, frames = x.shape[:2]
        y = self.a(x.flatten(0, 1)).relu()
        y = y.view(batch, frames, *y.shape[1:])
        moved = torch.zeros_like(y)
        moved[:, :-1, :2] = y[:, 1:, :2]
        moved[:, 1:, 2:4] = y[:, :-1, 2:4]
        moved[:, :, 4:] = y[:, :, 4:]
        return self.f(self.b(moved.flatten(0, 1)).mean((2, 3)).view(batch, frames, 16).mean(1))


# -- weights of each image ---------------------------------------------------------------------


class Dynamic(nn.Module):  # type: ignore[misc, name-defined]
    """Weights made from the image itself, images folded into groups (StyleGAN2's trick, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.r, self.f = nn.Linear(16, 32 * 16 * 9), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        weights = self.r(x.mean((2, 3))).view(batch * 32, 16, 3, 3)
        folded = x.reshape(1, batch * channels, height, width)
        y = F.conv2d(folded, weights, padding=1, groups=batch).view(batch, 32, height, width)
        return self.f(y.mean((2, 3)))


class Modulated(nn.Module):  # type: ignore[misc, name-defined]
    """A style scales the weights, which are then normalised; with noise and an enlarging form."""

    def __init__(self, *, up: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 8, 3, 3))
        self.style, self.up = nn.Linear(6, 8), up
        self.noise = nn.Parameter(torch.zeros(1))
        self.rgb = nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        batch, cin, height, width = x.shape
        weights = self.weight * self.style(style).view(batch, 1, cin, 1, 1)
        weights = weights * torch.rsqrt(weights.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        folded = x.reshape(1, batch * cin, height, width)
        if self.up:
            turned = weights.transpose(1, 2).reshape(batch * cin, 12, 3, 3)
            y = F.conv_transpose2d(folded, turned, stride=2, groups=batch)
        else:
            y = F.conv2d(folded, weights.view(batch * 12, cin, 3, 3), padding=1, groups=batch)
        y = y.view(batch, 12, *y.shape[2:])
        y = y + self.noise * torch.randn_like(y[:, :1])
        return self.rgb(F.leaky_relu(y, 0.2))


class Tracker(nn.Module):  # type: ignore[misc, name-defined]
    """A template and a search region through one stem, then correlated (SiamRPN++, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 32, 1), nn.Conv2d(32, 4, 1)

    def forward(self, search: Tensor, template: Tensor) -> Tensor:
        y, z = self.stem(search), self.stem(template)
        batch, channels = y.shape[:2]
        kernel = z.reshape(batch * channels, 1, *z.shape[2:])
        y = F.conv2d(y.reshape(1, -1, *y.shape[2:]), kernel, groups=batch * channels)
        return self.head(y.reshape(batch, channels, *y.shape[2:]))


class Experts(nn.Module):  # type: ignore[misc, name-defined]
    """Every image mixes the weights of three experts (CondConv, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.head = nn.Linear(6, 3), nn.Linear(8, 10)
        self.weight = nn.Parameter(torch.randn(3, 8 * 6 * 9) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        routes = torch.sigmoid(self.route(x.mean((2, 3))))
        weights = (routes @ self.weight).view(batch * 8, 6, 3, 3)
        y = F.conv2d(x.reshape(1, batch * 6, *x.shape[2:]), weights, padding=1, groups=batch)
        return self.head(y.view(batch, 8, *x.shape[2:]).relu().mean((2, 3)))


class Involution(nn.Module):  # type: ignore[misc, name-defined]
    """A filter of its own for every place, without a product of matrices (2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.reduce, self.span = conv_norm(8, 4, 1), nn.Conv2d(4, 9 * 2, 1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        batch, channels, height, width = y.shape
        filters = self.span(self.reduce(y)).view(batch, 2, 1, 9, height, width)
        taps = F.unfold(y, 3, padding=1).view(batch, 2, channels // 2, 9, height, width)
        mixed = (filters * taps).sum(3).view(batch, channels, height, width)
        return self.head(mixed.mean((2, 3)))


# -- parameters that are shared, frozen or made -----------------------------------------------


class Shared(nn.Module):  # type: ignore[misc, name-defined]
    """One convolution four times in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.f = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.relu(self.c(x))
        return self.f(x.mean((2, 3)))


class Tied(nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions with one weight and biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.b.weight = self.a.weight
        self.f = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(torch.relu(self.b(torch.relu(self.a(x)))).mean((2, 3)))


class Backbone(nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions that learn, are frozen, run without gradients, or are detached."""

    def __init__(self, how: str = "learns") -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.f, self.how = nn.Linear(16, 10), how
        if how == "frozen":
            for weight in (*self.a.parameters(), *self.b.parameters()):
                weight.requires_grad_(False)
        if how == "frozen_first":
            self.a.requires_grad_(False)

    def maps(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.a(x))))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "no_grad":
            with torch.no_grad():
                y = self.maps(x)
        else:
            y = self.maps(x)
        if self.how == "detached":
            y = y.detach()
        return self.f(y.mean((2, 3)))


class StopGradient(nn.Module):  # type: ignore[misc, name-defined]
    """Two views; the projection of one is compared with the detached other (SimSiam, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = Classifier(conv_norm(3, 8, stride=2), 8)
        self.predict = nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 10))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        z, w = self.encode(first), self.encode(second)
        p, q = self.predict(z), self.predict(w)
        return F.cosine_similarity(p, w.detach()) + F.cosine_similarity(q, z.detach())


class LowRank(nn.Module):  # type: ignore[misc, name-defined]
    """A low-rank change of a convolution's weight (LoRA, 2021)."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.c = nn.Conv2d(16, 32, 3, padding=1)
        self.a, self.b = nn.Parameter(torch.randn(4, 144)), nn.Parameter(torch.randn(32, 4))
        self.c.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.c.weight + (self.b @ self.a).view_as(self.c.weight)
        return F.conv2d(x, weight, self.c.bias, padding=1)


class LowRankLinear(nn.Module):  # type: ignore[misc, name-defined]
    """A frozen linear layer beside two thin ones that learn, as fine-tuning libraries have it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(24, 32).requires_grad_(False)
        self.down, self.up = nn.Linear(24, 4, bias=False), nn.Linear(4, 32, bias=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.base(x) + 0.5 * self.up(self.down(x))).relu().mean(1))


class Standardised(nn.Module):  # type: ignore[misc, name-defined]
    """Weights with mean 0 and variance 1, and group normalisation (BiT, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        w = self.conv.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return self.head(self.norm(F.conv2d(x, w, stride=2, padding=1)).relu().mean((2, 3)))


class Pyramid(nn.Module):  # type: ignore[misc, name-defined]
    """One head on three levels of a pyramid (RetinaNet, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, stride=2)
        self.c3, self.c4, self.c5 = (conv_norm(8, 8, stride=2) for _ in range(3))
        self.lateral = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(3))
        self.tower = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.classes, self.boxes = nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c3 = self.c3(self.stem(x))
        c4 = self.c4(c3)
        c5 = self.c5(c4)
        p5 = self.lateral[2](c5)
        p4 = self.lateral[1](c4) + F.interpolate(p5, scale_factor=2, mode="nearest")
        p3 = self.lateral[0](c3) + F.interpolate(p4, scale_factor=2, mode="nearest")
        levels = [self.tower(level) for level in (p3, p4, p5)]
        classes = torch.cat([self.classes(level).flatten(2) for level in levels], 2)
        boxes = torch.cat([self.boxes(level).flatten(2) for level in levels], 2)
        return classes.transpose(1, 2), boxes.transpose(1, 2)


class SharedLayers(nn.Module):  # type: ignore[misc, name-defined]
    """One encoder layer three times over tokens (ALBERT, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.widen = nn.Embedding(50, 8), nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, words: Tensor) -> Tensor:
        x = self.widen(self.words(words))
        for _ in range(3):
            x = self.layer(x)
        return self.head(x[:, 0])


class TiedEmbedding(nn.Module):  # type: ignore[misc, name-defined]
    """A causal language model whose last layer has the weights of its embedding (GPT-2, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(12, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.last = nn.Linear(16, 50, bias=False)
        self.last.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        batch, length = words.shape
        x = self.words(words) + self.places(torch.arange(length, device=words.device))
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, 16))
        return self.last(x + self.down(F.gelu(self.up(x))))


def spectral(*, old: bool) -> Module:
    """A discriminator with spectral normalisation, in the form that is asked."""
    norm = nn.utils.spectral_norm if old else nn.utils.parametrizations.spectral_norm
    first, second = norm(nn.Conv2d(3, 16, 4, 2, 1)), norm(nn.Conv2d(16, 16, 4, 2, 1))
    return nn.Sequential(first, nn.LeakyReLU(0.2), second, nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4))


def weight_normal(layer: Module, *, old: bool) -> Module:
    """A layer whose weight has a length and a direction, in the form that is asked."""
    if not old:
        return nn.utils.parametrizations.weight_norm(layer)
    import warnings  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's: this form is old, and what public code has
        return nn.utils.weight_norm(layer)


class Vocoder(nn.Module):  # type: ignore[misc, name-defined]
    """Transposed convolutions and dilated residual ones, all weight-normal (HiFi-GAN, 2020)."""

    def __init__(self, *, old: bool) -> None:
        super().__init__()
        self.first = weight_normal(nn.Conv1d(8, 16, 7, padding=3), old=old)
        ups = [nn.ConvTranspose1d(16, 8, 8, 4, 2), nn.ConvTranspose1d(8, 4, 4, 2, 1)]
        self.ups = nn.ModuleList(weight_normal(each, old=old) for each in ups)
        self.dilated = nn.ModuleList(
            weight_normal(nn.Conv1d(width, width, 3, padding=d, dilation=d), old=old)
            for width in (8, 4)
            for d in (1, 3)
        )
        self.last = weight_normal(nn.Conv1d(4, 1, 7, padding=3), old=old)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for index, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            one, other = self.dilated[2 * index : 2 * index + 2]
            x = (x + one(F.leaky_relu(x, 0.1)) + other(F.leaky_relu(x, 0.1))) / 2
        return torch.tanh(self.last(F.leaky_relu(x)))


# -- classification ----------------------------------------------------------------------------


class Bottleneck(nn.Module):  # type: ignore[misc, name-defined]
    """A residual block with grouped convolution and a projection (ResNeXt, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, stride=2)
        self.branch = nn.Sequential(
            conv_norm(8, 8, 1),
            conv_norm(8, 8, stride=2, groups=4),
            nn.Conv2d(8, 16, 1, bias=False),
            nn.BatchNorm2d(16),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.branch(x)
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class SqueezeExcite(nn.Module):  # type: ignore[misc, name-defined]
    """An inverted residual with squeeze and excitation (MobileNetV3, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.wide = conv_norm(3, 12, 1), conv_norm(12, 12, 5, groups=12, stride=2)
        self.less, self.more = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.down = nn.Sequential(nn.Conv2d(12, 8, 1, bias=False), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.wide(self.up(x)))
        gate = self.more(F.relu(self.less(F.adaptive_avg_pool2d(x, 1))))
        return self.down(x * F.hardsigmoid(gate))


class Dense(nn.Module):  # type: ignore[misc, name-defined]
    """Concatenations that grow, each normalised before its convolution (DenseNet, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 4 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(8 + 4 * i, 4, 3, padding=1) for i in range(3))
        self.transition = nn.Sequential(nn.Conv2d(20, 8, 1), nn.AvgPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            maps.append(conv(F.relu(norm(torch.cat(maps, 1)))))
        return self.transition(torch.cat(maps, 1))


class ChannelShuffle(nn.Module):  # type: ignore[misc, name-defined]
    """Halves of the channels, one of which passes, then shuffled (ShuffleNetV2, 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 16, stride=2)
        self.branch = nn.Sequential(
            conv_norm(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), conv_norm(8, 8, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.stem(x).chunk(2, 1)
        y = torch.cat((one, self.branch(other)), 1)
        batch, channels, height, width = y.shape
        y = y.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        return y.reshape(batch, channels, height, width)


class Inception(nn.Module):  # type: ignore[misc, name-defined]
    """Branches of different filters, asymmetric ones among them (2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.pool = conv_norm(6, 4, 1), conv_norm(6, 4, 1)
        self.long = nn.Sequential(
            nn.Conv2d(6, 4, (1, 7), padding=(0, 3)), nn.Conv2d(4, 4, (7, 1), padding=(3, 0))
        )
        self.down = conv_norm(6, 4, stride=1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(F.avg_pool2d(x, 3, 1, 1))
        return torch.cat([self.one(x), self.long(x), self.down(x), pooled], 1)


class ConvNext(nn.Module):  # type: ignore[misc, name-defined]
    """A wide depth-wise filter, then linear layers with channels last and a scale (2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale = nn.Parameter(torch.full((16,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.wide(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Ghost(nn.Module):  # type: ignore[misc, name-defined]
    """Cheap maps beside computed ones, with a part that is cut off (GhostNet, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.primary, self.cheap = conv_norm(3, 8, stride=2), conv_norm(8, 8, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        one = self.primary(x)
        return torch.cat([one, self.cheap(one)], 1)[:, :14]


class Reparametrised(nn.Module):  # type: ignore[misc, name-defined]
    """Sums of a 3x3, a 1x1 and the map itself, each normalised (RepVGG, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, stride=2)
        self.three, self.one = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        branches = (self.three(x), self.one(x), x)
        return F.relu(sum(norm(each) for norm, each in zip(self.norms, branches, strict=True)))


class Scales(nn.Module):  # type: ignore[misc, name-defined]
    """Parts of the channels, each convolved with what the one before gave (Res2Net, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 16, stride=2)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first, *parts = torch.split(self.stem(x), 4, 1)
        outputs, y = [first], 0
        for conv, part in zip(self.convs, parts, strict=True):
            y = F.relu(conv(part + y))
            outputs.append(y)
        return torch.cat(outputs, 1)


class Blurred(nn.Module):  # type: ignore[misc, name-defined]
    """A fixed filter before every stride, reflected at the border (BlurPool, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.after = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        line = torch.tensor([1.0, 2.0, 1.0])
        square = line[:, None] * line / 16
        self.register_buffer("filter", square.expand(8, 1, 3, 3).contiguous())

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(F.relu(self.conv(x)), (1, 1, 1, 1), mode="reflect")
        return self.after(F.conv2d(y, self.filter, stride=2, groups=8))


class Spatial(nn.Module):  # type: ignore[misc, name-defined]
    """Attention over channels by means and maxima, then over places (CBAM, 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, stride=2)
        self.mlp = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
        self.place = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate = torch.sigmoid(self.mlp(x.mean((2, 3))) + self.mlp(x.amax((2, 3))))
        x = x * gate[:, :, None, None]
        both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.place(both))


class SelectiveKernel(nn.Module):  # type: ignore[misc, name-defined]
    """A softmax over two branches of different reach (SKNet, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = conv_norm(3, 8), conv_norm(3, 8, dilation=2, padding=2)
        self.less, self.more = nn.Linear(8, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.stack([self.near(x), self.far(x)], 1)
        gate = self.more(F.relu(self.less(both.sum(1).mean((2, 3)))))
        gate = gate.view(-1, 2, 8).softmax(1)[..., None, None]
        return (both * gate).sum(1)


class Twice(nn.Module):  # type: ignore[misc, name-defined]
    """A map beside itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.f = nn.Conv2d(3, 8, 3), nn.Conv2d(16, 8, 3), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu()
        return self.f(self.b(torch.cat([y, y], 1)).mean((2, 3)))


class InPlace(nn.Module):  # type: ignore[misc, name-defined]
    """Parts of a map that are written in place, as decoders of boxes do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.f = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) * 1.0
        y[:, 4:].mul_(0.5).add_(1)
        y[:, 2:4] = torch.exp(y[:, 2:4])
        y[:, :2].sigmoid_()
        z = self.b(y)
        z.add_(y).relu_()
        return self.f(z.mean((2, 3)))


class Focus(nn.Module):  # type: ignore[misc, name-defined]
    """Every second row and column side by side in the channels (YOLOv5, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_norm(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return self.conv(torch.cat(parts, 1))


def convolutions() -> Module:
    """Strides, dilations, groups, paddings and shapes of filters that occur seldom."""
    return nn.Sequential(
        nn.Conv2d(3, 12, (5, 3), (2, 1), (2, 0), padding_mode="circular"),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, padding="same", dilation=2, groups=3),
        nn.PReLU(24),
        nn.Conv2d(24, 24, 2, padding="same", groups=24),
        nn.Hardswish(),
        nn.Conv2d(24, 8, 1, 3),
        nn.ELU(),
        nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1, groups=2),
        nn.ZeroPad2d((1, 2, 0, 1)),
        nn.Conv2d(6, 4, (1, 4), bias=False),
    )


# -- transformers of images --------------------------------------------------------------------


class Vision(nn.Module):  # type: ignore[misc, name-defined]
    """Patches, one encoder layer, and a head that reads one token, or their mean (ViT, 2020)."""

    def __init__(self, pick: str = "first") -> None:
        super().__init__()
        self.p = nn.Conv2d(3, 32, 8, 8)
        self.e = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.h, self.pick = nn.Linear(32, 10), pick

    def forward(self, x: Tensor) -> Tensor:
        y = self.e(self.p(x).flatten(2).transpose(1, 2))
        if self.pick == "chunk":
            return self.h(y.chunk(4, 1)[0])
        return self.h({"first": y[:, 0], "last": y[:, -1], "mean": y.mean(1)}[self.pick])


class ClassToken(nn.Module):  # type: ignore[misc, name-defined]
    """A learned token before the patches, learned positions, two blocks (DeiT, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 17, 16) * 0.02)
        self.blocks = nn.Sequential(*(Block(16, 4) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.places
        return self.head(self.norm(self.blocks(y))[:, 0])


class Block(nn.Module):  # type: ignore[misc, name-defined]
    """Attention and two linear layers, each normalised first and added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).reshape(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(y.reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Windows(nn.Module):  # type: ignore[misc, name-defined]
    """Attention in shifted windows with a table of relative positions (Swin, 2021).

    With ``network`` the table is computed by a small network of the positions (Swin V2, 2022).
    """

    def __init__(self, *, network: bool = False) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 16, 2, 2), nn.LayerNorm(16)
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 10)
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
        places = places.flatten(1)
        offsets = (places[:, :, None] - places[:, None]).permute(1, 2, 0) + 3
        self.register_buffer("index", offsets[..., 0] * 7 + offsets[..., 1])
        self.network = None
        if network:
            steps = torch.arange(-3.0, 4.0) / 3
            grid = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).reshape(49, 2)
            self.register_buffer("grid", grid)
            self.network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2, bias=False))
        else:
            self.table = nn.Parameter(torch.randn(49, 2) * 0.02)
        self.register_buffer("mask", self._mask())

    @staticmethod
    def _mask() -> Tensor:
        """What a token may not see, because the shift put it beside what is far."""
        region = torch.zeros(8, 8)
        for number, (rows, columns) in enumerate(
            (a, b) for a in _SHIFTED_PARTS for b in _SHIFTED_PARTS
        ):
            region[rows, columns] = number
        parts = region.view(2, 4, 2, 4).permute(0, 2, 1, 3).reshape(4, 16)
        return (parts[:, None] != parts[:, :, None]).float() * -100

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        batch = x.shape[0]
        y = torch.roll(self.norm(x), (-2, -2), (1, 2))
        y = y.view(batch, 2, 4, 2, 4, 16).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 16)
        q, k, v = self.qkv(y).reshape(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        weights = (q * 8**-0.5) @ k.transpose(-2, -1)
        table = self.table if self.network is None else 16 * self.network(self.grid).sigmoid()
        weights = weights + table[self.index.view(-1)].view(16, 16, 2).permute(2, 0, 1)
        weights = weights.view(batch, 4, 2, 16, 16) + self.mask[:, None]
        y = (weights.view(-1, 2, 16, 16).softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, 16)
        y = self.out(y).view(batch, 2, 2, 4, 4, 16).permute(0, 1, 3, 2, 4, 5)
        y = torch.roll(y.reshape(batch, 8, 8, 16), (2, 2), (1, 2))
        return self.head((x + y).mean((1, 2)))


#: Rows, or columns, of a map of 8 that a shift by 2 puts into different windows of 4.
_SHIFTED_PARTS = (slice(0, 4), slice(4, 6), slice(6, 8))


class Reduced(nn.Module):  # type: ignore[misc, name-defined]
    """Attention whose keys and values are of a smaller map (PVT, 2021; SegFormer, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.less = nn.Conv2d(3, 16, 7, 4, 3), nn.Conv2d(16, 16, 2, 2)
        self.norm, self.q, self.kv = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 32)
        self.up, self.wide = nn.Linear(16, 32), nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.patches(x)
        batch, width, rows, columns = maps.shape
        x = maps.flatten(2).transpose(1, 2)
        q = self.q(x).view(batch, -1, 2, 8).transpose(1, 2)
        small = self.norm(self.less(maps).flatten(2).transpose(1, 2))
        k, v = self.kv(small).view(batch, -1, 2, 2, 8).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(-2, -1)) * 8**-0.5).softmax(-1) @ v
        x = x + y.transpose(1, 2).reshape(batch, -1, width)
        wide = self.up(x).transpose(1, 2).reshape(batch, 32, rows, columns)
        return x + self.down(F.gelu(self.wide(wide).flatten(2).transpose(1, 2)))


class CrossCovariance(nn.Module):  # type: ignore[misc, name-defined]
    """Attention between channels, of queries and keys of length 1 (XCiT, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.qkv = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 48)
        self.heat, self.head = nn.Parameter(torch.ones(2, 1, 1)), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 4, 1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        y = ((q @ k.transpose(-2, -1)) * self.heat).softmax(-1) @ v
        return self.head((x + y.permute(0, 3, 1, 2).reshape(x.shape)).mean(1))


class Mixer(nn.Module):  # type: ignore[misc, name-defined]
    """Linear layers over places, then over channels (MLP-Mixer, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.places = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 16))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.norms[1](x))).mean(1))


class MobileVision(nn.Module):  # type: ignore[misc, name-defined]
    """Convolutions around attention between equal places of all patches (MobileViT, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.project = conv_norm(3, 8, stride=2), nn.Conv2d(8, 16, 1)
        self.block, self.back = Block(16, 2), nn.Conv2d(16, 8, 1)
        self.fuse = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.near(x)
        y = self.project(x)
        batch, width, rows, columns = y.shape
        y = y.view(batch, width, rows // 2, 2, columns // 2, 2).permute(0, 3, 5, 2, 4, 1)
        y = self.block(y.reshape(batch * 4, -1, width))
        y = y.view(batch, 2, 2, rows // 2, columns // 2, width).permute(0, 5, 3, 1, 4, 2)
        y = self.back(y.reshape(batch, width, rows, columns))
        return self.fuse(torch.cat([x, y], 1))


class Queries(nn.Module):  # type: ignore[misc, name-defined]
    """Learned queries that are projected before the image is read."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.p = nn.Parameter(torch.randn(4, 16)), nn.Linear(16, 16)
        self.c = nn.Conv2d(3, 16, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.p(self.q.expand(x.shape[0], 4, 16))
        k = self.c(x).flatten(2)
        return (q @ k).softmax(-1) @ k.transpose(1, 2)


class LinearAttention(nn.Module):  # type: ignore[misc, name-defined]
    """Attention without a softmax over all pairs, written with einsum (EfficientViT, 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.out = (
            nn.Conv2d(3, 16, 4, 4),
            nn.Conv2d(16, 48, 1),
            nn.Conv2d(16, 8, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        batch, _, rows, columns = x.shape
        q, k, v = self.qkv(x).view(batch, 3, 2, 8, rows * columns).unbind(1)
        q, k = F.relu(q), F.relu(k)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        y = torch.einsum("bhde,bhdn->bhen", context, q)
        norm = torch.einsum("bhd,bhdn->bhn", k.sum(-1), q) + 1e-6
        return self.out((y / norm[:, :, None]).reshape(batch, 16, rows, columns))


class Fourier(nn.Module):  # type: ignore[misc, name-defined]
    """A learned filter for every frequency (GFNet, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.f = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 10)
        self.w = nn.Parameter(torch.randn(8, 8, 5, 2) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.rfft2(self.c(x), norm="ortho")
        y = y * torch.view_as_complex(self.w)
        return self.f(torch.fft.irfft2(y, norm="ortho").mean((2, 3)))


class NeuralOperator(nn.Module):  # type: ignore[misc, name-defined]
    """Complex weights for the lowest frequencies, written into a part (FNO, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.skip = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 1)
        self.w = nn.Parameter(torch.randn(8, 8, 4, 4, 2) * 0.1)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        spectrum = torch.fft.rfft2(x)
        weights = torch.view_as_complex(self.w)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :4], weights)
        out = torch.zeros_like(spectrum)
        out[:, :, :4, :4] = low
        return self.last(F.gelu(torch.fft.irfft2(out, s=x.shape[2:]) + self.skip(x)))


# -- detection, segmentation, super-resolution -------------------------------------------------


class Yolo(nn.Module):  # type: ignore[misc, name-defined]
    """Slices, cross-stage parts, pools of one window in a row, and an enlarged level."""

    def __init__(self) -> None:
        super().__init__()
        self.focus, self.down = Focus(), conv_norm(8, 16, stride=2)
        self.inner = nn.Sequential(conv_norm(8, 8, 1), conv_norm(8, 8))
        self.merge, self.last = nn.Conv2d(24, 16, 1), nn.Conv2d(24, 3 * 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        early = self.focus(x)
        y = F.silu(self.down(early))
        one, other = y.split((8, 8), 1)
        y = self.merge(torch.cat([one, other, other + self.inner(other)], 1))
        pools = [y]
        for _ in range(2):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        y = sum(pools)
        y = torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), early], 1)
        y = self.last(y)
        batch, _, rows, columns = y.shape
        y = y.view(batch, 3, 7, rows, columns).permute(0, 1, 3, 4, 2)
        boxes, scores = y.sigmoid().split((4, 3), -1)
        return torch.cat([boxes * 2 - 0.5, scores], -1).view(batch, -1, 7)


class Centres(nn.Module):  # type: ignore[misc, name-defined]
    """Transposed convolutions before heads of heat and size (CenterNet, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(3, 8, stride=2), conv_norm(8, 16, stride=2))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.heat, self.size = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.up(self.body(x))
        return {"heat": self.heat(y).sigmoid(), "size": self.size(y)}


class Detector(nn.Module):  # type: ignore[misc, name-defined]
    """Learned queries that attend to all places (DETR, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 16, 8, 8)
        self.query = nn.Embedding(5, 16)
        self.rows, self.columns = (nn.Parameter(torch.rand(4, 8)) for _ in range(2))
        self.layers = nn.Transformer(
            16, 2, 1, 1, 32, dropout=0.0, batch_first=True, norm_first=True
        )
        self.classes, self.boxes = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x).flatten(2).transpose(1, 2)
        places = [self.columns[None].expand(4, 4, 8), self.rows[:, None].expand(4, 4, 8)]
        y = y + torch.cat(places, -1).reshape(1, 16, 16)
        y = self.layers(y, self.query.weight[None].expand(len(x), -1, -1))
        return self.classes(y), self.boxes(y).sigmoid()


class Uneven(nn.Module):  # type: ignore[misc, name-defined]
    """Skips that are cropped, and maps of odd sizes that are padded to them (U-Net, 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.one(x))
        two = F.relu(self.two(F.max_pool2d(one, 2)))
        up = self.up(two)
        cut = (one.shape[2] - up.shape[2]) // 2
        crop = one[:, :, cut : cut + up.shape[2], cut : cut + up.shape[3]]
        return self.last(torch.cat([crop, up], 1))


class Atrous(nn.Module):  # type: ignore[misc, name-defined]
    """Dilated branches and a pooled one that is enlarged again (DeepLabV3, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, stride=2)
        self.branches = nn.ModuleList(conv_norm(8, 4, dilation=d, padding=d) for d in (1, 2, 4))
        self.pooled, self.last = nn.Conv2d(8, 4, 1), nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        pooled = F.relu(self.pooled(F.adaptive_avg_pool2d(y, 1)))
        pooled = F.interpolate(pooled, y.shape[2:], mode="bilinear", align_corners=False)
        y = self.last(torch.cat([*(branch(y) for branch in self.branches), pooled], 1))
        return F.interpolate(y, x.shape[2:], mode="bilinear", align_corners=False)


class PoolPyramid(nn.Module):  # type: ignore[misc, name-defined]
    """Means of several sizes, enlarged and put beside the map (PSPNet, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, stride=2)
        self.convs = nn.ModuleList(nn.Conv2d(8, 2, 1) for _ in range(3))
        self.last = nn.Conv2d(14, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        parts = [y]
        for size, conv in zip((1, 2, 4), self.convs, strict=True):
            small = conv(F.adaptive_avg_pool2d(y, size))
            parts.append(F.interpolate(small, y.shape[2:], mode="bilinear", align_corners=True))
        return self.last(torch.cat(parts, 1))


class SubPixel(nn.Module):  # type: ignore[misc, name-defined]
    """Residual blocks, and channels that become pixels (EDSR, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = (nn.Conv2d(cin, 8, 3, padding=1) for cin in (3, 8, 8))
        self.up, self.last = nn.Conv2d(8, 32, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.register_buffer("mean", torch.tensor([0.4, 0.4, 0.5]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x - self.mean)
        y = y + 0.1 * self.b(F.relu(self.a(y)))
        return self.last(F.pixel_shuffle(self.up(y), 2)) + self.mean


class Distilled(nn.Module):  # type: ignore[misc, name-defined]
    """Parts of the channels that are kept at every step, and contrast gates (IMDN, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.c1, self.c2 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.c3, self.merge = nn.Conv2d(6, 2, 3, padding=1), nn.Conv2d(6, 8, 1)
        self.gate, self.up = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        kept1, left = torch.split(F.leaky_relu(self.c1(y), 0.05), (2, 6), 1)
        kept2, left = torch.split(F.leaky_relu(self.c2(left), 0.05), (2, 6), 1)
        z = self.merge(torch.cat([kept1, kept2, self.c3(left)], 1))
        mean = z.mean((2, 3), keepdim=True)
        contrast = ((z - mean) ** 2).mean((2, 3), keepdim=True).sqrt() + mean
        return F.pixel_shuffle(self.up(y + z * torch.sigmoid(self.gate(contrast))), 2)


# -- generators --------------------------------------------------------------------------------


def generator() -> Module:
    """Transposed convolutions from a vector to an image (DCGAN, 2015)."""
    return nn.Sequential(
        nn.Unflatten(1, (12, 1, 1)),
        nn.ConvTranspose2d(12, 16, 4, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(True),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
        nn.Tanh(),
    )


class AdaptiveNorm(nn.Module):  # type: ignore[misc, name-defined]
    """Instance normalisation by the statistics of another image (AdaIN, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.ReLU())
        self.decode = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        x, y = self.encode(content), self.encode(style)
        scale, shift = y.std((2, 3), keepdim=True), y.mean((2, 3), keepdim=True)
        return self.decode(F.instance_norm(x) * scale + shift)


class Spread(nn.Module):  # type: ignore[misc, name-defined]
    """A discriminator that sees how far the images of a batch are apart (Progressive GAN, 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 4, 2, 1), nn.Conv2d(9, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.conv(x), 0.2)
        spread = (y.var(0, unbiased=False) + 1e-8).sqrt().mean()
        return self.last(torch.cat([y, spread.expand(len(y), 1, *y.shape[2:])], 1))


# -- signals -----------------------------------------------------------------------------------


class Gated(nn.Module):  # type: ignore[misc, name-defined]
    """Causal dilated convolutions with gates, skips that are added (WaveNet, 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.wide = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=d) for d in (1, 2, 4))
        self.point = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.last = nn.Conv1d(8, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = 0
        for wide, point in zip(self.wide, self.point, strict=True):
            padded = F.pad(x, (wide.dilation[0], 0))
            value, gate = wide(padded).chunk(2, 1)
            y = point(torch.tanh(value) * torch.sigmoid(gate))
            x, skips = x + y, skips + y
        return self.last(F.relu(skips))


class Separator(nn.Module):  # type: ignore[misc, name-defined]
    """A learned filter bank, masks for two speakers, and the way back (Conv-TasNet, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, 8, 8, 4, bias=False)
        self.norm, self.less = nn.GroupNorm(1, 8, eps=1e-8), nn.Conv1d(8, 6, 1)
        self.wide = nn.Conv1d(6, 6, 3, padding=2, dilation=2, groups=6)
        self.masks, self.decode = nn.Conv1d(6, 16, 1), nn.ConvTranspose1d(8, 1, 8, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.encode(x)
        masks = self.masks(F.prelu(self.wide(self.less(self.norm(y))), y.new_full((1,), 0.2)))
        both = masks.view(len(y), 2, 8, -1).sigmoid() * y[:, None]
        return self.decode(both.flatten(0, 1)).view(len(y), 2, -1)


class Conformer(nn.Module):  # type: ignore[misc, name-defined]
    """Half-step linear layers, attention and a gated depth-wise convolution (2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.sub, self.project = nn.Conv2d(1, 4, 3, 2), nn.Linear(4 * 9, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.glu, self.wide = nn.Conv1d(16, 32, 1), nn.Conv1d(16, 16, 5, padding=2, groups=16)
        self.batch, self.point = nn.BatchNorm1d(16), nn.Conv1d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.sub(x).relu()
        batch, channels, steps, bands = y.shape
        y = self.project(y.transpose(1, 2).reshape(batch, steps, channels * bands))
        y = y + 0.5 * self.down(F.silu(self.up(self.norms[0](y))))
        z = self.norms[1](y)
        y = y + self.attend(z, z, z, need_weights=False)[0]
        z = F.glu(self.glu(self.norms[2](y).transpose(1, 2)), 1)
        return y + self.point(F.silu(self.batch(self.wide(z)))).transpose(1, 2)


class Spectrogram(nn.Module):  # type: ignore[misc, name-defined]
    """A short-time transform as a fixed convolution, logarithm, and a classifier (PANNs, 2019)."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(9)[:, None] * torch.arange(16) * (2 * math.pi / 16)
        waves = torch.cat([angles.cos(), -angles.sin()])[:, None]
        self.register_buffer("waves", waves)
        self.conv, self.head = conv_norm(1, 8, stride=2), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x[:, None], (8, 8), mode="reflect")
        real, imaginary = F.conv1d(padded, self.waves, stride=8).chunk(2, 1)
        power = torch.log(real**2 + imaginary**2 + 1e-5)
        return self.head(self.conv(power[:, None]).mean((2, 3)))


# -- clips and volumes -------------------------------------------------------------------------


class Factored(nn.Module):  # type: ignore[misc, name-defined]
    """Filters over space, then over time (R(2+1)D, 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.space = nn.Conv3d(3, 8, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(8, 8, (3, 1, 1), (2, 1, 1), (1, 0, 0), bias=False)
        self.norm, self.head = nn.BatchNorm3d(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.time(F.relu(self.space(x)))))
        return self.head(F.adaptive_avg_pool3d(y, 1).flatten(1))


class SlowFast(nn.Module):  # type: ignore[misc, name-defined]
    """Two clips of different lengths, and a connection between them (2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Conv3d(3, 8, (1, 3, 3), (1, 2, 2), (0, 1, 1))
        self.fast = nn.Conv3d(3, 4, (3, 3, 3), (1, 2, 2), (1, 1, 1))
        self.lateral = nn.Conv3d(4, 4, (5, 1, 1), (4, 1, 1), (2, 0, 0))
        self.after, self.head = nn.Conv3d(12, 8, 3, padding=1), nn.Linear(12, 10)

    def forward(self, slow: Tensor, fast: Tensor) -> Tensor:
        y = F.relu(self.fast(fast))
        x = self.after(torch.cat([F.relu(self.slow(slow)), self.lateral(y)], 1))
        return self.head(torch.cat([x.mean((2, 3, 4)), y.mean((2, 3, 4))], 1))


class NonLocal(nn.Module):  # type: ignore[misc, name-defined]
    """All places of a clip see a pooled clip (2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv3d(3, 8, 3, (1, 2, 2), 1)
        self.theta, self.phi, self.g = (nn.Conv3d(8, 4, 1) for _ in range(3))
        self.back, self.head = nn.Conv3d(4, 8, 1), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        small = F.max_pool3d(x, (1, 2, 2))
        q = self.theta(x).flatten(2).transpose(1, 2)
        weights = torch.bmm(q, self.phi(small).flatten(2)).softmax(-1)
        y = torch.bmm(weights, self.g(small).flatten(2).transpose(1, 2)).transpose(1, 2)
        y = self.back(y.reshape(len(x), 4, *x.shape[2:]))
        return self.head((x + y).mean((2, 3, 4)))


class Volume(nn.Module):  # type: ignore[misc, name-defined]
    """A small U-Net of volumes, with instance normalisation and a transposed way up (2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(4, 8, 3, 2, 1)
        self.norm, self.up = nn.InstanceNorm3d(8, affine=True), nn.ConvTranspose3d(8, 4, 2, 2)
        self.last = nn.Conv3d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = F.leaky_relu(self.one(x))
        up = self.up(F.leaky_relu(self.norm(self.two(one))))
        return self.last(torch.cat([one, up], 1))


class Cubes(nn.Module):  # type: ignore[misc, name-defined]
    """Patches of two frames, each as long as its filter, as a batch (Qwen2-VL, 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = (
            nn.Conv3d(3, 16, (2, 4, 4), (2, 4, 4), bias=False),
            nn.Linear(16, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        y = self.patches(x.reshape(-1, 3, 2, 4, 4)).view(batch, length, 16)
        return self.head(y.mean(1))


class Points(nn.Module):  # type: ignore[misc, name-defined]
    """Points, a transform that they predict, and a maximum over all (PointNet, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.nine = nn.Conv1d(3, 8, 1), nn.Linear(8, 9)
        self.a, self.b, self.head = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 16, 1), nn.Linear(16, 10)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        turn = self.nine(F.relu(self.turn(x)).max(2)[0]).view(-1, 3, 3) + torch.eye(3)
        y = torch.bmm(x.transpose(2, 1), turn).transpose(2, 1)
        y = self.b(F.relu(self.norm(self.a(y))))
        return self.head(y.max(2)[0])


# -- recurrent ---------------------------------------------------------------------------------


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """A recurrent layer of some kind, the mean over time, and a linear layer."""

    def __init__(self, kind: str, width: int, hidden: int, **options: Any) -> None:
        super().__init__()
        self.r = getattr(nn, kind)(width, hidden, batch_first=True, **options)
        self.f = nn.Linear(hidden * (2 if options.get("bidirectional") else 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.r(x)[0].mean(1))


class LastStep(nn.Module):  # type: ignore[misc, name-defined]
    """The last step of two recurrent layers of tokens into a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.r = nn.Embedding(30, 8), nn.GRU(8, 6, 2, batch_first=True)
        self.f = nn.Linear(6, 10)

    def forward(self, words: Tensor) -> Tensor:
        return self.f(self.r(self.words(words))[0][:, -1])


class Reader(nn.Module):  # type: ignore[misc, name-defined]
    """Columns of a map into a recurrent layer, for lines of text (CRNN, 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_norm(1, 8), nn.MaxPool2d(2), conv_norm(8, 8))
        self.r = nn.LSTM(8, 6, bidirectional=True)
        self.f = nn.Linear(12, 11)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).mean(2).permute(2, 0, 1)
        return self.f(self.r(y)[0]).log_softmax(2)


class Cell(nn.Module):  # type: ignore[misc, name-defined]
    """A cell by hand, that projects its state of zeros first."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.f = nn.GRUCell(8, 6), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 6)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.f(state)


class ConvolutionalCell(nn.Module):  # type: ignore[misc, name-defined]
    """A recurrent cell whose products are convolutions (ConvLSTM, 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.f = nn.Conv2d(3 + 4, 16, 3, padding=1), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, _, rows, columns = x.shape
        h = c = x.new_zeros(batch, 4, rows, columns)
        for step in range(steps):
            i, f, g, o = self.gates(torch.cat([x[:, step], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.f(h.mean((2, 3)))


# -- diffusion, text, others -------------------------------------------------------------------


class Denoiser(nn.Module):  # type: ignore[misc, name-defined]
    """A U-Net that is told its time step by sines and two linear layers (DDPM, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.norm, self.mid = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1)
        self.qkv, self.out = nn.Conv1d(16, 48, 1), nn.Conv1d(16, 16, 1)
        self.up, self.last = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        waves = torch.exp(-math.log(1e4) * torch.arange(4, device=x.device) / 4)
        angles = time[:, None].float() * waves
        told = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        first = self.first(x)
        y = self.down(first)
        y = y + self.mid(F.silu(self.norm(y)) + told[:, :, None, None])
        batch, width, rows, columns = y.shape
        q, k, v = self.qkv(y.flatten(2)).chunk(3, 1)
        weights = torch.einsum("bcn,bcm->bnm", q, k) * width**-0.5
        z = torch.einsum("bnm,bcm->bcn", weights.softmax(-1), v)
        y = y + self.out(z).view(batch, width, rows, columns)
        y = self.up(F.interpolate(y, scale_factor=2.0, mode="nearest"))
        return self.last(torch.cat([y, first], 1))


class DiffusionTransformer(nn.Module):  # type: ignore[misc, name-defined]
    """Scales, shifts and gates of a block come from a condition (DiT, 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.classes = nn.Conv2d(4, 16, 2, 2), nn.Embedding(1000, 16)
        self.condition, self.norm = nn.Linear(16, 48), nn.LayerNorm(16, elementwise_affine=False)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = nn.Linear(16, 16)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        scale, shift, gate = self.condition(F.silu(self.classes(label))).chunk(3, 1)
        z = self.norm(y) * (1 + scale[:, None]) + shift[:, None]
        y = self.last(y + gate[:, None] * self.attend(z, z, z)[0])
        y = y.view(len(x), 4, 4, 2, 2, 4).permute(0, 5, 1, 3, 2, 4)
        return y.reshape(len(x), 4, 8, 8)


class TextFilters(nn.Module):  # type: ignore[misc, name-defined]
    """Filters of three widths over tokens, each with its maximum (TextCNN, 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(60, 8, padding_idx=0)
        self.filters = nn.ModuleList(nn.Conv1d(8, 6, width) for width in (2, 3, 4))
        self.f = nn.Linear(18, 10)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words).transpose(1, 2)
        return self.f(torch.cat([F.relu(conv(x)).amax(2) for conv in self.filters], 1))


class TwoSizes(nn.Module):  # type: ignore[misc, name-defined]
    """A small and a large image, a convolution each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.f = nn.Linear(16, 10)

    def forward(self, small: Tensor, large: Tensor) -> Tensor:
        both = [self.a(small).relu().mean((2, 3)), self.b(large).relu().mean((2, 3))]
        return self.f(torch.cat(both, 1))


class VectorFirst(nn.Module):  # type: ignore[misc, name-defined]
    """An embedding that is projected before the image beside it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.c, self.f = nn.Linear(5, 8), nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 10)

    def forward(self, vector: Tensor, image: Tensor) -> Tensor:
        gate = self.p(vector).sigmoid()
        return self.f((self.c(image) * gate[:, :, None, None]).mean((2, 3)))


class Radiance(nn.Module):  # type: ignore[misc, name-defined]
    """Sines of points along a ray into linear layers, with a skip (NeRF, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3 + 3 * 8, 16), nn.Linear(16 + 27, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        scales = 2.0 ** torch.arange(4, device=x.device)
        angles = (x[..., None] * scales).flatten(-2)
        e = torch.cat([x, angles.sin(), angles.cos()], -1)
        y = self.c(F.relu(self.b(torch.cat([F.relu(self.a(e)), e], -1))))
        colour, density = y[..., :3].sigmoid(), F.softplus(y[..., 3:])
        weights = 1 - torch.exp(-density)
        passed = torch.cumprod(1 - weights + 1e-6, 1)
        return (passed * weights * colour).sum(1)


class GraphLayer(nn.Module):  # type: ignore[misc, name-defined]
    """A matrix of neighbours times features times weights, twice (GCN, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(6, 8) * 0.3)
        self.b = nn.Linear(8, 10)

    def forward(self, features: Tensor, neighbours: Tensor) -> Tensor:
        y = torch.relu(torch.bmm(neighbours, features @ self.a))
        return self.b(torch.bmm(neighbours, y)).mean(1)


class Capsules(nn.Module):  # type: ignore[misc, name-defined]
    """Matrices from every capsule to every other, agreed on in two rounds (2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, 2)
        self.w = nn.Parameter(torch.randn(32, 5, 6, 4) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        u = self.first(x).view(len(x), 2, 4, -1).permute(0, 1, 3, 2).reshape(len(x), -1, 4)
        votes = torch.einsum("iokc,bic->biok", self.w[: u.shape[1]], u)
        v = self.squashed(votes.mean(1))
        agreed = torch.einsum("biok,bok->bio", votes, v)
        return self.squashed(torch.einsum("bio,biok->bok", agreed.softmax(2), votes)).norm(dim=-1)

    @staticmethod
    def squashed(s: Tensor) -> Tensor:
        length = s.norm(dim=-1, keepdim=True)
        return s * length / (1 + length**2)


class Volumes(nn.Module):  # type: ignore[misc, name-defined]
    """Two images side by side at several shifts, then filters of three axes (GC-Net, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.cost = conv_norm(3, 4, stride=2), nn.Conv3d(8, 1, 3, padding=1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        x, y = self.body(left), self.body(right)
        batch, channels, rows, columns = x.shape
        volume = x.new_zeros(batch, 2 * channels, 3, rows, columns)
        for shift in range(3):
            volume[:, :channels, shift, :, shift:] = x[..., shift:]
            volume[:, channels:, shift, :, shift:] = y[..., : columns - shift]
        weights = self.cost(volume).squeeze(1).softmax(1)
        return (weights * torch.arange(3.0).view(1, 3, 1, 1)).sum(1)


class Codebook(nn.Module):  # type: ignore[misc, name-defined]
    """The nearest of 16 vectors, with the gradient passed straight through (VQ-VAE, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv2d(3, 8, 4, 4), nn.ConvTranspose2d(8, 3, 4, 4)
        self.book = nn.Embedding(16, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x).permute(0, 2, 3, 1)
        rows = z.reshape(-1, 8)
        book = self.book.weight
        far = rows.square().sum(1, keepdim=True) - 2 * rows @ book.t() + book.square().sum(1)
        q = self.book(far.argmin(1)).view_as(z)
        return self.decode((z + (q - z).detach()).permute(0, 3, 1, 2)), q - z.detach()


class Aggregated(nn.Module):  # type: ignore[misc, name-defined]
    """Residuals to learned centres, weighted by a softmax (NetVLAD, 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.assign = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 5, 1)
        self.centres, self.head = nn.Parameter(torch.randn(5, 8)), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(self.body(x), dim=1)
        shares = self.assign(x).flatten(2).softmax(1)
        mixed = torch.matmul(shares, x.flatten(2).transpose(1, 2))
        y = F.normalize(mixed - shares.sum(2)[..., None] * self.centres, dim=2)
        return self.head(F.normalize(y.flatten(1), dim=1))


class Enlarged(nn.Module):  # type: ignore[misc, name-defined]
    """A signal enlarged linearly."""

    def __init__(self, length: int, channels: int) -> None:
        super().__init__()
        self.conv, self.length = nn.Conv1d(channels, channels, 1), length

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), self.length, mode="linear", align_corners=False)


def three_dimensional_patches() -> Module:
    """A filter of three axes that is as long as its stride."""
    return nn.Sequential(nn.Conv3d(3, 16, (2, 4, 4), (2, 4, 4)), nn.Flatten(2))


def recurrent_cases() -> list[Case]:
    """Layers of a hundred steps, and short ones of each kind."""
    rows = numbers((100, 64))
    long = [
        # 100 x (64 + 64) x gates x 64 + 640
        Case(f"{kind.lower()}_100", "recurrent", _recurrent(kind), rows, macs, slow=True)
        for kind, macs in (("RNN", 819_840), ("LSTM", 3_277_440), ("GRU", 2_458_240))
    ]
    short = [
        # 5 x (8 + 6) x gates x 6 + 60
        Case(f"{kind.lower()}_5", "recurrent", _recurrent(kind, 8, 6), numbers((5, 8)), macs)
        for kind, macs in (("RNN", 480), ("LSTM", 1_740), ("GRU", 1_320))
    ]
    both = _recurrent("LSTM", 8, 6, num_layers=2, bidirectional=True)
    return [*long, *short, Case("bidirectional", "recurrent", both, numbers((5, 8)))]


def _recurrent(
    kind: str, width: int = 64, hidden: int = 64, **options: Any
) -> Callable[[], Module]:
    return lambda: Recurrent(kind, width, hidden, **options)


IMAGE = numbers((3, 16, 16))
WIDE = numbers((3, 32, 32))
MAPS = numbers((16, 14, 14))
PAIR = numbers((3, 16, 16), (3, 16, 16))
CLIP = numbers((3, 4, 12, 12))

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        # Batches that hold more than images.
        # 8 x (16 x 16 x 16 x 27 + 8 x 8 x 32 x 144) + 320
        Case("frames", "video", Frames, numbers((8, 3, 32, 32)), 3_244_352),
        # 32 maps x 4 x 4 x 9
        Case("heads_in_batch", "hybrid", Heads, numbers((32, 8, 8)), 4_608),
        # 16 patches x 8 x 8 x 8 x 27 + 80
        Case("patches_in_batch", "classification", Patches, WIDE, 221_264),
        # 2 views x 16 x 16 x 8 x 27
        Case("views_in_batch", "classification", Views, PAIR, 110_592),
        # 2 x (4 x 4 x 16 x 48 + 160) + 4 x 4 x 16 x 8 of the one map
        Case("positions_once", "hybrid", Positions, IMAGE, 26_944, batch=2),
        Case("shifted_frames", "video", Shift, numbers((4, 3, 16, 16))),
        # Weights of each image.
        # 196 x 32 x 144 + 16 x 4,608 + 320
        Case("weights_of_image", "GAN", Dynamic, MAPS, 977_216),
        Case("modulated", "GAN", Modulated, numbers((8, 8, 8), (6,))),
        Case("modulated_up", "GAN", lambda: Modulated(up=True), numbers((8, 8, 8), (6,))),
        # 3 x 32 x (784 + 64) + 32 x 21 x 21 x 64 + 441 x 32 x 4
        Case("tracker", "detection", Tracker, numbers((3, 28, 28), (3, 8, 8)), 1_041_024),
        Case("experts", "classification", Experts, numbers((6, 12, 12))),
        Case("involution", "classification", Involution, IMAGE),
        # Parameters that are shared, frozen or made.
        # 4 x 196 x 16 x 144 + 160
        Case("shared", "classification", Shared, MAPS, 1_806_496),
        # 2 x 196 x 16 x 144 + 160, as are the five below
        Case("tied", "classification", Tied, MAPS, 903_328),
        Case("learns", "classification", Backbone, MAPS, 903_328),
        Case("frozen", "classification", lambda: Backbone("frozen"), MAPS, 903_328),
        Case("frozen_first", "classification", lambda: Backbone("frozen_first"), MAPS, 903_328),
        Case("no_grad", "classification", lambda: Backbone("no_grad"), MAPS, 903_328),
        Case("detached", "classification", lambda: Backbone("detached"), MAPS, 903_328),
        Case("stop_gradient", "classification", StopGradient, PAIR),
        # 2 x 196 x 32 x 144 + 32 x 4 x 144 of the weights
        Case("low_rank", "classification", LowRank, MAPS, 1_824_768, batch=2),
        Case("low_rank_frozen", "classification", lambda: LowRank(frozen=True), MAPS),
        Case("low_rank_linear", "text", LowRankLinear, numbers((6, 24))),
        Case("standardised", "classification", Standardised, IMAGE),
        Case("pyramid", "detection", Pyramid, numbers((3, 64, 64))),
        Case("shared_layers", "text", SharedLayers, tokens(7, 50)),
        Case("tied_embedding", "text", TiedEmbedding, tokens(12, 50)),
        # 64 x 16 x 48 + 16 x 16 x 256 + 256, and of the weights 3 x 16 x 48 + 16, 3 x 16 x 256 + 16
        Case("spectral", "GAN", lambda: spectral(old=False), IMAGE, 129_568),
        Case("spectral_old", "GAN", lambda: spectral(old=True), IMAGE, 129_568),
        Case("vocoder", "audio", lambda: Vocoder(old=False), numbers((8, 10))),
        Case("vocoder_old", "audio", lambda: Vocoder(old=True), numbers((8, 10))),
        # Classification.
        Case("bottleneck", "classification", Bottleneck, IMAGE),
        Case("squeeze_excite", "classification", SqueezeExcite, IMAGE),
        Case("dense", "classification", Dense, IMAGE),
        Case("channel_shuffle", "classification", ChannelShuffle, IMAGE),
        Case("inception", "classification", Inception, numbers((6, 12, 12))),
        Case("convnext", "classification", ConvNext, IMAGE),
        Case("ghost", "classification", Ghost, IMAGE),
        Case("reparametrised", "classification", Reparametrised, IMAGE),
        Case("scales", "classification", Scales, IMAGE),
        Case("blurred", "classification", Blurred, IMAGE),
        Case("spatial_attention", "classification", Spatial, IMAGE),
        Case("selective_kernel", "classification", SelectiveKernel, IMAGE),
        # 14 x 14 x 8 x 27 + 12 x 12 x 8 x 144 + 80
        Case("twice", "classification", Twice, IMAGE, 208_304),
        Case("in_place", "classification", InPlace, IMAGE),
        Case("focus", "detection", Focus, IMAGE),
        Case("convolutions", "classification", convolutions, numbers((3, 18, 20))),
        # Transformers of images.
        # 16 tokens x 32 x (192 + 96 + 32 + 2 x 64) + 2 x 2 heads x 16 x 16 x 16 + 320
        *(
            Case(f"vision_{pick}", "ViT", partial(Vision, pick), WIDE, 246_080)
            for pick in ("first", "last", "mean")
        ),
        # as above, and 10 x 32 for each of the four tokens of a part
        Case("vision_chunk", "ViT", lambda: Vision("chunk"), WIDE, 247_040),
        Case("class_token", "ViT", ClassToken, WIDE),
        Case("windows", "ViT", Windows, IMAGE),
        Case("windows_network", "ViT", lambda: Windows(network=True), IMAGE),
        Case("reduced_attention", "hybrid", Reduced, IMAGE),
        Case("cross_covariance", "ViT", CrossCovariance, IMAGE),
        Case("mixer", "ViT", Mixer, WIDE),
        Case("mobile_vision", "hybrid", MobileVision, IMAGE),
        # 16 x 16 x 48 + 3 x 4 x 16 x 16
        Case("queries", "detection", Queries, IMAGE, 15_360),
        Case("linear_attention", "hybrid", LinearAttention, IMAGE),
        # 64 x 8 x 48 + 80
        Case("fourier", "hybrid", Fourier, WIDE, 24_656),
        # 256 x (8 + 64 + 8), and 4 real ones for each of 16 x 8 x 8 complex ones
        Case("neural_operator", "hybrid", NeuralOperator, numbers((1, 16, 16)), 24_576),
        # Detection, segmentation, super-resolution.
        Case("yolo", "detection", Yolo, IMAGE),
        Case("centres", "detection", Centres, IMAGE),
        Case("detector", "detection", Detector, WIDE),
        Case("uneven", "segmentation", Uneven, numbers((1, 20, 20))),
        Case("atrous", "segmentation", Atrous, IMAGE),
        Case("pool_pyramid", "segmentation", PoolPyramid, IMAGE),
        Case("sub_pixel", "super-resolution", SubPixel, numbers((3, 12, 12))),
        Case("distilled", "super-resolution", Distilled, numbers((3, 12, 12))),
        # Generators.
        Case("generator", "GAN", generator, numbers((12,))),
        Case("adaptive_norm", "GAN", AdaptiveNorm, PAIR),
        Case("spread", "GAN", Spread, numbers((3, 8, 8))),
        # Signals.
        Case("gated", "audio", Gated, numbers((1, 24))),
        Case("separator", "audio", Separator, numbers((1, 40))),
        Case("conformer", "audio", Conformer, numbers((1, 12, 19))),
        Case("spectrogram", "audio", Spectrogram, numbers((64,))),
        # 9 x 9 x 518
        Case("enlarged", "audio", lambda: Enlarged(155_400, 9), numbers((9, 518)), 41_958),
        # Clips and volumes.
        Case("factored", "video", Factored, CLIP),
        Case("slow_fast", "video", SlowFast, numbers((3, 2, 12, 12), (3, 8, 12, 12))),
        Case("non_local", "video", NonLocal, CLIP),
        Case("volume", "3-D", Volume, numbers((1, 8, 8, 8))),
        # 6 patches x 16 x 96 + 160
        Case("cubes_in_batch", "3-D", Cubes, numbers((6, 3, 2, 4, 4)), 9_376),
        # 2 x 3 x 3 places x 16 x 96
        Case("cubes", "3-D", three_dimensional_patches, CLIP, 27_648),
        Case("points", "3-D", Points, numbers((3, 20))),
        # Recurrent.
        *recurrent_cases(),
        Case("last_step", "recurrent", LastStep, tokens(4, 30)),
        Case("reader", "recurrent", Reader, numbers((1, 8, 12))),
        Case("cell", "recurrent", Cell, numbers((3, 8))),
        Case("convolutional_cell", "recurrent", ConvolutionalCell, numbers((3, 3, 8, 8))),
        # Diffusion, text, others.
        Case("denoiser", "diffusion", Denoiser, with_time(3, 8, 8)),
        Case("diffusion_transformer", "diffusion", DiffusionTransformer, with_time(4, 8, 8)),
        # 11 x 6 x 16 + 10 x 6 x 24 + 9 x 6 x 32 + 180
        Case("text_filters", "text", TextFilters, tokens(12, 60), 4_404),
        # 32 x 32 x 8 x 27 + 64 x 64 x 8 x 27 + 160
        Case("two_sizes", "classification", TwoSizes, numbers((3, 32, 32), (3, 64, 64)), 1_106_080),
        Case("vector_first", "classification", VectorFirst, numbers((5,), (3, 16, 16))),
        Case("radiance", "3-D", Radiance, numbers((6, 3))),
        Case("graph_layers", "classification", GraphLayer, numbers((5, 6), (5, 5))),
        Case("capsules", "classification", Capsules, numbers((1, 11, 11))),
        Case("volumes", "segmentation", Volumes, PAIR),
        Case("codebook", "GAN", Codebook, IMAGE),
        Case("aggregated", "classification", Aggregated, IMAGE),
    )
}

#: Cases of which PyTorch 2.13 makes no joint graph. The gradient of a real inverse transform
#: doubles a part of a complex spectrum in place; ``slice_scatter``, its functional form, "does not
#: support automatic differentiation for outputs with complex dtype". A real step runs.
WITHOUT_JOINT_GRAPH = frozenset({"fourier", "neural_operator"})

#: Networks of pytorchcv 0.0.67 that run on 2026's NumPy without further packages, and the shape of
#: one input, for tests that take long. Their bodies alone where the heads depend on data.
OF_PYTORCHCV: dict[str, tuple[int, ...]] = {
    "alexnet": (3, 224, 224),
    "bagnet9": (3, 224, 224),
    "bninception": (3, 224, 224),
    "centernet_resnet18_voc": (3, 128, 128),
    "cgnet_cityscapes": (3, 256, 256),
    "dabnet_cityscapes": (3, 256, 256),
    "danet_resnetd50b_cityscapes": (3, 96, 96),
    "darknet53": (3, 224, 224),
    "densenet121": (3, 224, 224),
    "dla34": (3, 224, 224),
    "dpn68": (3, 224, 224),
    "efficientnet_b0": (3, 224, 224),
    "ghostnet": (3, 224, 224),
    "hrnet_w18_small_v1": (3, 224, 224),
    "igcv3_w1": (3, 224, 224),
    "lwopenpose2d_mobilenet_cmupan_coco": (3, 128, 128),
    "mnasnet_b1": (3, 224, 224),
    "mobilenetv3_large_w1": (3, 224, 224),
    "proxylessnas_gpu": (3, 224, 224),
    "resnext14_16x4d": (3, 224, 224),
    "seresnet18": (3, 224, 224),
    "shakeshakeresnet20_2x16d_cifar10": (3, 32, 32),
    "shufflenetv2_w1": (3, 224, 224),
    "sinet_cityscapes": (3, 256, 256),
    "sknet50": (3, 224, 224),
    "squeezenet_v1_1": (3, 224, 224),
    "vovnet27s": (3, 224, 224),
    "wrn16_10_cifar10": (3, 32, 32),
    "xdensenet40_2_k24_bc_cifar10": (3, 32, 32),
}
