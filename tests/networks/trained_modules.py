"""Small modules whose steps ``npusim.Trainer`` computes: one operation each, or a way of writing.

Each entry of ``MODULES`` makes a module and names the shapes of its inputs, without the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

#: A ``torch.nn.Module`` or ``torch.Tensor``: type checkers have no PyTorch.
Module = Any
Tensor = Any


class Small(NamedTuple):
    """How a module is made, and the shapes of its inputs."""

    make: Callable[[], Module]
    shapes: tuple[tuple[int, ...], ...]


class Between(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution, a function of the map that it leaves, and a linear layer of the mean."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        parameters: Sequence[Tensor] = (),
        *,
        channels: int = 8,
        width: int = 8,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.own = nn.ParameterList(parameters)
        self.function = function
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.conv(x), *self.own)
        return self.head(y if y.ndim == 2 else y.mean((2, 3)))


class OfRows(nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer on tokens, a function of the rows that it leaves, and one of their mean."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        parameters: Sequence[Tensor] = (),
        *,
        width: int = 16,
        layers: Sequence[Module] = (),
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.own = nn.ParameterList(parameters)
        self.layers = nn.ModuleList(layers)
        self.function = function
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.embed(x), *self.own, *self.layers)
        return self.head(y.mean(1) if y.ndim == 3 else y)


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """A recurrent layer and a linear layer of its last state."""

    def __init__(self, layer: Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def random(*shape: int) -> Tensor:
    """A parameter of numbers around zero."""
    return nn.Parameter(torch.randn(shape) * 0.5)


def attention_by_hand(x: Tensor, qkv: Tensor) -> Tensor:
    """Attention of two heads, with products of tensors that are seen in other orders."""
    batch, tokens, width = x.shape
    heads = (x @ qkv).view(batch, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
    query, key, value = heads[0], heads[1], heads[2]
    weights = (query @ key.transpose(-2, -1) * (width // 2) ** -0.5).softmax(-1)
    return (weights @ value).transpose(1, 2).reshape(batch, tokens, width)


def fused_attention(x: Tensor, qkv: Tensor) -> Tensor:
    """The same by PyTorch's own function."""
    batch, tokens, width = x.shape
    query, key, value = (x @ qkv).view(batch, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
    made = F.scaled_dot_product_attention(query, key, value)
    return made.transpose(1, 2).reshape(batch, tokens, width)


def with_class_token(x: Tensor, token: Tensor, position: Tensor) -> Tensor:
    """The first row behind a layer of tokens with one that is trained, and positions."""
    rows = torch.cat([token.expand(x.shape[0], -1, -1), x], 1) + position
    return torch.tanh(rows * rows)[:, 0]


def channels_last_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """A layer normalisation of channels, as ConvNeXt has it."""
    rows = F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), gamma, beta)
    return rows.permute(0, 3, 1, 2)


def normal(norm: Module) -> Module:
    """A normalisation whose scale and shift are not one and zero."""
    with torch.no_grad():
        for weight in norm.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return norm


def frozen(layer: Module, *names: str) -> Module:
    """A layer with parameters that are not trained."""
    for name in names:
        getattr(layer, name).requires_grad_(False)
    return layer


class Layers(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution, layers on the map that it leaves, and a linear layer of the mean."""

    def __init__(self, *layers: Module, channels: int = 8, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layers(self.conv(x))).mean((2, 3)))


class Twice(nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer whose weight is also read as a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).tanh() @ self.layer.weight)


class PartsWithGradients(nn.Module):  # type: ignore[misc, name-defined]
    """A concatenation of values of which some have gradients, of a split of which one part has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fixed = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 6, 1)
        self.fixed.requires_grad_(False)
        self.head = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.conv(x).chunk(2, 1)
        with torch.no_grad():
            unseen = torch.relu(second)
        parts = [first, self.fixed(x), second.detach(), unseen, torch.relu(first)[:, :2]]
        return self.head(torch.cat(parts, 1).mean((2, 3)))


def _map(function: Callable[..., Tensor], *parameters: tuple[int, ...], **sizes: int) -> Small:
    return Small(lambda: Between(function, [random(*each) for each in parameters], **sizes), MAP)


def _rows(function: Callable[..., Tensor], *parameters: tuple[int, ...], **sizes: Any) -> Small:
    return Small(lambda: OfRows(function, [random(*each) for each in parameters], **sizes), ROWS)


def _layers(*make: Callable[[], Module], **sizes: int) -> Small:
    return Small(lambda: Layers(*(each() for each in make), **sizes), MAP)


MAP = ((3, 6, 5),)
ROWS = ((7, 6),)


class TwoGroupings(nn.Module):  # type: ignore[misc, name-defined]
    """Two grouped convolutions whose weights are one parameter, of 4 and of 8 groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.first = nn.Conv2d(4, 8, 1, groups=4)
        self.second = nn.Conv2d(8, 8, 1, groups=8)
        self.second.weight = self.first.weight
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(self.stem(x))
        return self.head((y + self.second(y)).tanh().mean((2, 3)))


def gate_of_channels(x: Tensor, w: Tensor) -> Tensor:
    """A product along the channels of each pixel, and a factor for each image and channel."""
    y = (x.permute(0, 2, 3, 1) @ w).permute(0, 3, 1, 2)
    return y * y.mean((2, 3)).sigmoid()[:, :, None, None]


MODULES: dict[str, Small] = {
    # -- normalisations
    "batch norm without scale": _layers(lambda: nn.BatchNorm2d(8, affine=False)),
    "batch norm with frozen scale": _layers(lambda: frozen(normal(nn.BatchNorm2d(8)), "weight")),
    "batch norm with frozen shift": _layers(lambda: frozen(normal(nn.BatchNorm2d(8)), "bias")),
    "group norm": _layers(lambda: normal(nn.GroupNorm(2, 8))),
    "group norm without scale": _layers(lambda: nn.GroupNorm(4, 8, affine=False)),
    "group norm of odd groups": _layers(
        lambda: normal(nn.GroupNorm(3, 6)), channels=6, width=6
    ),
    "instance norm": _layers(lambda: normal(nn.InstanceNorm2d(8, affine=True))),
    "instance norm without scale": _layers(lambda: nn.InstanceNorm2d(8)),
    "layer norm of a map": _layers(lambda: normal(nn.LayerNorm((8, 6, 5)))),
    "layer norm of an odd map": _layers(
        lambda: normal(nn.LayerNorm((6, 3, 5))), channels=6, width=6
    )._replace(shapes=((3, 3, 5),)),
    "layer norm of an odd map with frozen scale": _layers(
        lambda: frozen(normal(nn.LayerNorm((6, 3, 5))), "weight"), channels=6, width=6
    )._replace(shapes=((3, 3, 5),)),
    "layer norm of channels": _map(channels_last_norm, (8,), (8,)),
    "layer norm of odd rows": _rows(
        lambda x, g, b: F.layer_norm(x, (10,), g, b).tanh(), (10,), (10,), width=10
    ),
    "layer norm without scale": _rows(lambda x: F.layer_norm(x, (16,)).tanh()),
    "batch norm of rows": Small(
        lambda: nn.Sequential(
            nn.Linear(6, 12), normal(nn.BatchNorm1d(12)), nn.Tanh(), nn.Linear(12, 5)
        ),
        ((6,),),
    ),
    "batch norm of signals": Small(
        lambda: nn.Sequential(
            nn.Conv1d(3, 8, 3), normal(nn.BatchNorm1d(8)), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5)
        ),
        ((3, 8),),
    ),
    "root mean square norm": _rows(
        lambda x, g: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * g, (16,)
    ),
    # -- factors, terms and parameters that are read
    "prelu of channels": _layers(lambda: nn.PReLU(8)),
    "factors of channels": _map(lambda x, g: (x * g).tanh(), (8, 1, 1)),
    "terms of channels": _map(lambda x, b: (x + b).tanh(), (1, 8, 1, 1)),
    "layer scale": _rows(lambda x, g: x + g * x.tanh(), (16,)),
    "factors of odd rows": _rows(lambda x, g, b: (x * g + b).tanh(), (10,), (10,), width=10),
    "factors of positions": _map(lambda x, g: (x * g).tanh(), (6, 5)),
    "class token": _rows(with_class_token, (1, 1, 16), (1, 8, 16)),
    "positions": _rows(lambda x, p: (x + p).tanh(), (1, 7, 16)),
    "positions of odd rows": _rows(lambda x, p: (x + p).tanh(), (7, 10), width=10),
    # -- sums and means
    "sum of rows": _map(lambda x: (x.sum(3) * 0.3).tanh().mean(2)),
    "sum of columns": _map(lambda x: (x.sum(2) * 0.3).tanh().sum(2)),
    "sum of all but channels": _map(lambda x: (x.sum((2, 3), keepdim=True) * 0.1).tanh()),
    "sum of tokens": _rows(lambda x: (x.sum(1) * 0.3).tanh()),
    "largest of tokens": _rows(lambda x: x.amax(1)),
    # -- orders and parts
    "softmax of channels": _map(lambda x: x * x.softmax(1)),
    "log softmax of columns": _map(lambda x: x * x.log_softmax(2)),
    "channels last": _map(lambda x: (x.permute(0, 2, 3, 1).tanh() * 2).permute(0, 3, 1, 2)),
    "roll": _map(lambda x: x * torch.roll(x, (1, -2), (2, 3))),
    "every second": _map(lambda x: (x[:, :, ::2, 1::2] * x[:, :, ::2, ::2][..., :2]).tanh()),
    "every second channel": _map(lambda x: torch.tanh(x[:, ::2]) * x[:, 1::2], width=4),
    "transposed maps": _map(lambda x: x.transpose(2, 3).reshape(x.shape).tanh() * x),
    "pixel shuffle": _map(lambda x: F.pixel_shuffle(x, 2).tanh(), width=2),
    "channel shuffle": _map(
        lambda x: (x.view(-1, 2, 4, 6, 5).transpose(1, 2).reshape(x.shape) * x).tanh()
    ),
    "twice": _map(lambda x: torch.cat([x, x.tanh(), x], 1), width=24),
    "stack": _map(lambda x: torch.stack([x, x.tanh()], 1).flatten(1, 2), width=16),
    "padded": _map(lambda x: F.pad(x, (1, 0, 2, 1)).tanh()),
    "a part detached": _map(lambda x: x[:, :4].tanh() * x[:, 4:].detach(), width=4),
    # -- functions
    "negative": _map(lambda x: (-x).sigmoid()),
    "exp": _map(lambda x: (-x).exp()),
    "log": _map(lambda x: (x * x + 0.5).log()),
    "sqrt": _map(lambda x: (x * x + 0.5).sqrt()),
    "rsqrt": _map(lambda x: (x * x + 0.5).rsqrt()),
    "abs": _map(lambda x: x.abs()),
    "reciprocal": _map(lambda x: 1 / (x * x + 1)),
    "square": _map(lambda x: x.square()),
    "cube": _map(lambda x: x**3),
    "power": _map(lambda x: (x * x + 0.5) ** 1.5),
    "quotient": _map(lambda x: x / (x * x + 1)),
    "celu": _map(lambda x: F.celu(x, 0.7)),
    "gelu": _map(F.gelu),
    "softplus": _map(F.softplus),
    # -- attention and recurrent layers
    "attention by hand": _rows(attention_by_hand, (16, 48)),
    "attention": _rows(fused_attention, (16, 48)),
    "attention layer": Small(
        lambda: OfRows(
            lambda x, layer: layer(x, x, x)[0],
            layers=[nn.MultiheadAttention(16, 2, batch_first=True)],
        ),
        ROWS,
    ),
    "lstm": Small(lambda: Recurrent(nn.LSTM(6, 8, batch_first=True), 8), ((4, 6),)),
    "gru": Small(lambda: Recurrent(nn.GRU(6, 8, batch_first=True), 8), ((4, 6),)),
    "rnn": Small(lambda: Recurrent(nn.RNN(6, 8, batch_first=True), 8), ((4, 6),)),
    "two layers of lstm": Small(
        lambda: Recurrent(nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True), 16), ((4, 6),)
    ),
    # -- enlarging and pooling
    "nearest": _layers(lambda: nn.Upsample(scale_factor=2)),
    "bilinear": _layers(lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    "bilinear with corners": _layers(
        lambda: nn.Upsample(scale_factor=3, mode="bilinear", align_corners=True)
    ),
    "nearest to a size": _layers(lambda: nn.Upsample(size=(9, 7))),
    "adaptive pooling": _layers(lambda: nn.AdaptiveAvgPool2d((4, 3))),
    "largest of windows": _layers(lambda: nn.AdaptiveMaxPool2d((3, 5))),
    "a product with a matrix": _rows(lambda x, w: (x @ w).tanh(), (16, 16)),
    "a weight in two ways": Small(Twice, ((6,),)),
    "some parts of a concatenation": Small(PartsWithGradients, MAP),
    "a weight of groups and of channels": Small(TwoGroupings, MAP),
    "factors of channels behind a linear layer of channels": _map(gate_of_channels, (8, 8)),
    # -- views of rows
    "convolution of viewed rows": Small(
        lambda: nn.Sequential(
            nn.Linear(16, 128), nn.ReLU(), nn.Unflatten(1, (32, 2, 2)), nn.Conv2d(32, 16, 1),
            nn.Flatten(), nn.Linear(64, 10),
        ),
        ((16,),),
    ),
}  # fmt: skip

#: Modules that no kernels compute, and what the error says.
REFUSED: dict[str, tuple[Small, str]] = {
    "prelu of one slope": (_layers(nn.PReLU), r"1 of the 8 numbers"),
    "prelu of rows": (Small(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 5)), ((6,),)
    ), r"1 of the 8 numbers"),
    "a trained factor": (_map(lambda x, g: x * g, (1,)), r"of scale|of shift"),
    "a trained factor without axes": (_map(lambda x, g: (x * g).tanh(), ()), r"of scale|of shift"),
    "a trained term": (_map(lambda x, b: (x + b).tanh(), (1,)), r"of scale|of shift"),
    "a parameter squared": (_rows(lambda x, p: x * (p * p), (7, 16)), r"of scale|of shift"),
    "mean of channels": (_map(lambda x: x * x.mean(1, keepdim=True)), r"of scale|of shift"),
    "normalize": (_rows(lambda x: F.normalize(x, dim=-1)), r"linalg_vector_norm"),
    "normalize channels": (_map(lambda x: F.normalize(x, dim=1)), r"linalg_vector_norm"),
}  # fmt: skip
