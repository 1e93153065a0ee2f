"""Small networks of random layers of every kind that a step has kernels for, as PyTorch modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

#: Sizes of one image: maps of one, two and three axes of places, rows, and rows of several vectors.
SHAPES = ((3, 8, 8), (16, 6, 6), (32, 5, 7), (8, 12), (4, 4, 4, 4), (16,), (6, 16))

Rng = np.random.Generator
Make = Callable[[tuple[int, ...], Rng], Any]


class Function(nn.Module):  # type: ignore[misc, name-defined]
    """A function as a module, and the modules whose results it reads beside its input."""

    def __init__(self, function: Callable[..., Any], *modules: Any) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(modules)

    def forward(self, x: Any) -> Any:
        return self.function(x, *(module(x) for module in self.inner))


class Weighted(nn.Module):  # type: ignore[misc, name-defined]
    """A function of its input and of a trained tensor of these sizes."""

    def __init__(self, function: Callable[..., Any], *sizes: int) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(sizes))

    def forward(self, x: Any) -> Any:
        return self.function(x, self.weight)


def drawn(seed: int) -> tuple[Any, tuple[int, ...]]:
    """A network of up to seven layers and a head of ten classes, and the shape of an image."""
    rng = np.random.default_rng(seed)
    shape = SHAPES[rng.integers(len(SHAPES))]
    count = rng.integers(2, 8)
    names = [str(rng.choice([*LAYERS] if rng.random() < 0.6 else FREQUENT)) for _ in range(count)]
    return network(names, shape, rng), shape


def network(names: Sequence[str], shape: tuple[int, ...], rng: Rng) -> Any:
    """The layers of these names that take what comes before them, and a head of ten classes."""
    # They run without numbers, to see what sizes they leave.
    x = torch.zeros(2, *shape, device="meta")
    modules = []
    for name in names:
        module = made(name, tuple(x.shape[1:]), rng)
        if module is not None:
            modules.append(module)
            x = module(x)
    if x.dim() > 2:
        modules.append(Function(lambda x: x.mean(tuple(range(2, x.dim())))))
    modules.append(nn.Linear(x.shape[1], 10))
    return nn.Sequential(*modules).to_empty(device="cpu")


def made(name: str, shape: tuple[int, ...], rng: Rng) -> Any:
    """A layer for maps or rows of this shape, None where it takes none of them."""
    try:
        module = LAYERS[name](shape, rng).to("meta")
        out = module(torch.zeros(2, *shape, device="meta"))
    except (AttributeError, RuntimeError, ValueError, IndexError, TypeError, ZeroDivisionError):
        return None  # PyTorch refuses the shape, or has no such layer of so many axes
    return module if 0 < out.numel() < 20_000 else None


def of_axes(name: str, shape: tuple[int, ...]) -> Any:
    """PyTorch's class for maps of so many axes of places."""
    return getattr(nn, f"{name}{len(shape) - 1}d")


def convolution(kernel: int, stride: int, *, bias: bool, name: str = "Conv") -> Make:
    """A convolution to a drawn number of channels; some have a group for each channel."""

    def make(shape: tuple[int, ...], rng: Rng) -> Any:
        depthwise = rng.random() < 0.15
        channels = shape[0] if depthwise else int(rng.choice([8, 16, 20, 32]))
        groups = shape[0] if depthwise else 1
        return of_axes(name, shape)(
            shape[0], channels, kernel, stride, kernel // 2, groups=groups, bias=bias
        )

    return make


def window(shape: tuple[int, ...], rng: Rng) -> Any:
    """A convolution whose filter is as large as the map."""
    return of_axes("Conv", shape)(shape[0], int(rng.choice([16, 20])), shape[1:])


def simple(make: Callable[[], Any]) -> Make:
    """A layer that takes any sizes."""
    return lambda shape, rng: make()


def function(function: Callable[..., Any]) -> Make:
    """A function of one value."""
    return lambda shape, rng: Function(function)


def beside(function: Callable[..., Any]) -> Make:
    """A function of a value and of what an activation makes of it."""
    return lambda shape, rng: Function(function, rng.choice([nn.ReLU, nn.Sigmoid, nn.Hardtanh])())


def by_channel(function: Callable[..., Any]) -> Make:
    """A function of a map and of a number for each of its channels: the mean, or a gate."""

    def make(shape: tuple[int, ...], rng: Rng) -> Any:
        mean = Function(lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True))
        gate = nn.Sequential(mean, of_axes("Conv", shape)(shape[0], shape[0], 1), nn.Sigmoid())
        return Function(function, gate if rng.random() < 0.5 else mean)

    return make


def of_channels(function: Callable[..., Any]) -> Make:
    """A trained number for each channel."""
    return lambda shape, rng: Weighted(function, shape[0], *(1 for _ in shape[1:]))


def of_rows(function: Callable[..., Any]) -> Make:
    """A trained number for each element of a row."""
    return lambda shape, rng: Weighted(function, shape[-1])


def halves(x: Any) -> Any:
    """The product of half of the channels with gates of the other half."""
    first, second = x.chunk(2, 1)
    return first * torch.sigmoid(second)


def attention(x: Any) -> Any:
    """Scores of rows with each other, as shares, times the rows."""
    return (x @ x.transpose(-1, -2)).softmax(-1) @ x


def reshaped(shape: tuple[int, ...], rng: Rng) -> Any:
    """A view of other axes: rows of a map, or maps of rows."""
    if len(shape) == 1:
        return nn.Unflatten(1, (8, shape[0] // 8, 1))
    return nn.Flatten(int(rng.integers(1, len(shape))))


def residual(shape: tuple[int, ...], rng: Rng) -> Any:
    """The sum of a value and of what one or two layers make of it, some with an activation."""
    modules: list[Any] = []
    names = [*ALIKE, "convolution", "biased convolution"]
    for name in rng.choice(names, rng.integers(1, 3)):
        module = made(str(name), shape, rng)
        x = torch.zeros(2, *shape, device="meta")
        if module is not None and module(x).shape == x.shape:
            modules.append(module)
    total = Function(torch.add, nn.Sequential(*modules))
    return nn.Sequential(total, nn.ReLU()) if rng.random() < 0.5 else total


#: Layers that leave a shape as it is.
ALIKE: dict[str, Make] = {
    "relu": simple(nn.ReLU),
    "clip": simple(nn.ReLU6),
    "leaky_relu": simple(nn.LeakyReLU),
    "prelu": lambda shape, rng: nn.PReLU(shape[0]),
    "elu": simple(nn.ELU),
    "selu": simple(nn.SELU),
    "softplus": simple(nn.Softplus),
    "mish": simple(nn.Mish),
    "sigmoid": simple(nn.Sigmoid),
    "tanh": simple(nn.Tanh),
    "silu": simple(nn.SiLU),
    "gelu": simple(nn.GELU),
    "hard_swish": simple(nn.Hardswish),
    "hard_sigmoid": simple(nn.Hardsigmoid),
    "softmax": function(lambda x: x.softmax(-1)),
    "log_softmax": function(lambda x: x.log_softmax(-1)),
    "dropout": simple(nn.Dropout),
    "batch_norm": lambda shape, rng: getattr(nn, f"BatchNorm{max(1, len(shape) - 1)}d")(shape[0]),
    "instance_norm": lambda shape, rng: of_axes("InstanceNorm", shape)(shape[0], affine=True),
    "group_norm": lambda shape, rng: nn.GroupNorm(2 - shape[0] % 2, shape[0]),
    "layer_norm": lambda shape, rng: nn.LayerNorm(shape[-1]),
    "scale": function(lambda x: x * 0.5),
    "shift": function(lambda x: x + 1.0),
    "scale of channels": of_channels(torch.mul),
    "shift of channels": of_channels(torch.add),
    "scale of rows": of_rows(torch.mul),
    "shift of rows": of_rows(torch.add),
    "add": beside(torch.add),
    "sub": beside(torch.sub),
    "mul": beside(torch.mul),
    "div": beside(torch.div),
    "abs": function(torch.abs),
    "exp": function(lambda x: torch.exp(-x * x)),
    "log": function(lambda x: torch.log(x * x + 1.0)),
    "sqrt": function(lambda x: torch.sqrt(x * x + 1.0)),
    "rsqrt": function(lambda x: torch.rsqrt(x * x + 1.0)),
    "reciprocal": function(lambda x: torch.reciprocal(x * x + 1.0)),
    "power": function(lambda x: torch.pow(x * x + 1.0, 0.75)),
    "celu": simple(nn.CELU),
    "traffic": function(torch.erf),
}

#: All layers.
LAYERS: dict[str, Make] = {
    **ALIKE,
    "residual": residual,
    "scale by channel": by_channel(torch.mul),
    "shift by channel": by_channel(torch.add),
    "convolution": convolution(3, 1, bias=False),
    "biased convolution": convolution(3, 1, bias=True),
    "strided convolution": convolution(3, 2, bias=True),
    "convolution of places": convolution(1, 1, bias=False),
    "transposed convolution": convolution(2, 2, bias=True, name="ConvTranspose"),
    "convolution of one window": window,
    "max_pool": lambda shape, rng: of_axes("MaxPool", shape)(2),
    "avg_pool": lambda shape, rng: of_axes("AvgPool", shape)(2),
    "mean": lambda shape, rng: of_axes("AdaptiveAvgPool", shape)(1),
    "upsample": simple(lambda: nn.Upsample(scale_factor=2)),
    "interpolate": simple(lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    "pad": function(lambda x: F.pad(x, (0, 1))),
    "slice": function(lambda x: x[..., 1:]),
    "permute": function(lambda x: x.transpose(1, -1)),
    "expand": function(lambda x: x[:, :1].expand(x.shape)),
    "roll": function(lambda x: torch.roll(x, 1, -1)),
    "reduce_sum": function(lambda x: x.sum(-1, keepdim=True)),
    "concat": function(lambda x: torch.cat([x, torch.tanh(x)], 1)),
    "halves": function(halves),
    "linear": lambda shape, rng: nn.Linear(shape[-1], 16, bias=bool(rng.integers(2))),
    "product": function(attention),
    "reshape": reshaped,
}

#: Layers between which values keep the blocks of channels that others convert.
FREQUENT = ("relu", "clip", "batch_norm", "biased convolution", "convolution", "residual")
