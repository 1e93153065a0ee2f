"""Random small trainable modules, their steps in float64, and what fp16 explains of a difference.

``python -m tests.networks.random_modules COUNT FIRST_SEED`` trains COUNT modules for a step with
``npusim.Trainer``, and prints those whose loss or gradients are not PyTorch's.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import npusim

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

dispatch = pytest.importorskip("torch.utils._python_dispatch")
pytree = pytest.importorskip("torch.utils._pytree")

#: A ``torch.nn.Module`` or ``torch.Tensor``: type checkers have no PyTorch.
Module = Any
Tensor = Any
Array = Any

#: Devices and modes that a seed draws from; the 910B2 is the one that most people have.
DEVICES = ("ascend910b2", "ascend910b2", "ascend910b2", "ascend910", "ascend310p")
MODES = ("graph", "graph", "eager")

#: Of each pass through a network in fp16 so many are drawn.
NOISES = 6

#: How far a gradient may be from float64, in the largest distance of those drawn: the chip stores
#: other values than PyTorch's operations have, and the largest of six is no upper bound.
FACTOR = 3.0


# -- modules -----------------------------------------------------------------------------------


class Operation(NamedTuple):
    """An operation on the map so far: a method of ``Drawn``, its layers, and a number."""

    kind: str
    layers: tuple[int, ...] = ()
    number: int = 0


class Drawn(nn.Module):  # type: ignore[misc, name-defined]
    """A module that does one drawn operation after another and ends in a linear layer of classes.

    ``frames`` are folded into the batch, 0 where the input is one image. ``second`` is "none", or
    what the second input is: a "vector" or an "image". ``pooled`` is how maps become rows.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        layers: Sequence[Module],
        shapes: Sequence[tuple[int, ...]],
        classes: int,
        *,
        frames: int,
        second: str,
        pooled: str,
    ) -> None:
        super().__init__()
        self.operations, self.layers = tuple(operations), nn.ModuleList(layers)
        self.shapes, self.classes = tuple(shapes), classes
        self.frames, self.second, self.pooled = frames, second, pooled
        self.beside: Module = None
        self.head: Module = None

    def complete(self, width: int, beside: Module, hidden: int) -> None:
        """Add what follows the maps: the layer of the second input, and the linear layers."""
        self.beside = beside
        last = nn.Linear(hidden or width, self.classes)
        if hidden:
            self.head = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), last)
        else:
            self.head = last

    def describe(self) -> str:
        """One line for the inputs and the head, and one for every operation."""
        lines = [
            f"inputs {self.shapes}, frames {self.frames}, second {self.second}, "
            f"pooled {self.pooled}, head {self.head}"
        ]
        for operation in self.operations:
            layers = "; ".join(f"{i}: {_described(self.layers[i])}" for i in operation.layers)
            lines.append(f"{operation.kind} {operation.number} {layers}")
        return "\n".join(lines)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = inputs[0].flatten(0, 1) if self.frames else inputs[0]
        for operation in self.operations:
            layers = [self.layers[index] for index in operation.layers]
            x = getattr(self, f"_{operation.kind}")(x, layers, operation.number)
        rows = self._rows(x)
        if self.frames:
            rows = rows.view(-1, self.frames, rows.shape[1]).mean(1)
        if self.second == "vector":
            rows = rows + self.beside(inputs[1])
        if self.second == "image":
            rows = torch.cat([rows, torch.relu(self.beside(inputs[1])).mean((2, 3))], 1)
        return self.head(rows)

    def _rows(self, x: Tensor) -> Tensor:
        if self.pooled == "flat":
            return x.flatten(1)
        return x.amax((2, 3)) if self.pooled == "most" else x.mean((2, 3))

    # -- operations, each of the map so far, its layers and its number

    def _layer(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        return layers[0](x)

    def _residual(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        return x + layers[0](x)

    def _residual_in_place(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        y = layers[0](x)
        y.add_(x)
        return y.relu_()

    def _branches(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        return torch.cat([layer(x) for layer in layers], 1)

    def _twice(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        return torch.cat([x, x], 1)

    def _swap(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        first, second = x.chunk(2, 1)
        return torch.cat([second, first], 1)

    def _gate(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        first, second = x.chunk(2, 1)
        return first * torch.sigmoid(second)

    def _write_part(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        y = x * 1.5
        y[:, :number] = torch.tanh(x[:, :number])
        return y

    def _scale_part(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        y = x.clone()
        y[:, number:].mul_(0.5)
        return y

    def _no_grad(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        with torch.no_grad():
            return layers[0](x)

    def _detach(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        return x.detach()

    def _detached_branch(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        return x + layers[0](x.detach())

    def _squeeze_excite(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        gate = torch.sigmoid(layers[0](x.mean((2, 3))))
        return x * gate[:, :, None, None]

    def _last_axis(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        return layers[0](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _weights_of_image(self, x: Tensor, layers: Sequence[Module], number: int) -> Tensor:
        batch, channels, rows, columns = x.shape
        weights = layers[0](x.mean((2, 3))).view(batch * number, channels, 3, 3)
        folded = x.reshape(1, batch * channels, rows, columns)
        y = F.conv2d(folded, weights, padding=1, groups=batch)
        return y.view(batch, number, rows, columns)


def _described(layer: Module) -> str:
    trained = {name: weight.requires_grad for name, weight in layer.named_parameters()}
    frozen = [name for name, trains in trained.items() if not trains]
    return f"{layer}" + (f" frozen {', '.join(frozen)}" if frozen else "")


class Drawing:
    """Draws a module: operations that fit the map so far, with layers that are new or used again.

    The map so far has ``channels`` of ``size``.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.channels = self.random.choice((1, 3, 4, 6))
        self.size = (self.random.randint(5, 11), self.random.randint(5, 11))
        self.operations: list[Operation] = []
        self.layers: list[Module] = []

    def module(self) -> Drawn:
        """A module of three to seven operations and a head."""
        frames = self.random.choice((0, 0, 0, 2, 3))
        image = (self.channels, *self.size)
        shapes: list[tuple[int, ...]] = [(frames, *image) if frames else image]
        if self.random.random() < 0.1:
            self._prefix_without_gradient()
        else:
            self._convolution()
        for _ in range(self.random.randint(2, 6)):
            self._operation()
        small = self.channels * self.size[0] * self.size[1] <= 200
        pooled = self.random.choice(("mean", "mean", "most", "flat" if small else "mean"))
        second = self.random.choice(("none", "none", "none", "vector", "image"))
        width = self.channels * (self.size[0] * self.size[1] if pooled == "flat" else 1)
        beside = None
        if second == "vector":
            shapes.append((5,))
            beside = nn.Linear(5, width)
        if second == "image":
            shapes.append((2, 6, 7))
            beside = nn.Conv2d(2, 4, 3, self.random.randint(1, 2))
            width += 4
        drawn = Drawn(
            self.operations,
            self.layers,
            shapes,
            self.random.randint(3, 10),
            frames=frames,
            second=second,
            pooled=pooled,
        )
        drawn.complete(width, beside, self.random.choice((0, 0, 7, 12)))
        return drawn

    # -- one operation

    def _operation(self) -> None:
        choices = [
            *(self._convolution,) * 4,
            *(self._activation,) * 3,
            *(self._normalisation,) * 3,
            self._shared,
            self._shared,
            self._residual,
            self._residual,
            self._branches,
            self._pool,
            self._enlarged,
            self._parts,
            self._parts,
            self._detached,
            self._squeeze_excite,
            self._last_axis,
            self._weights_of_image,
        ]
        self.random.choice(choices)()

    def _add(self, kind: str, *layers: Module, number: int = 0) -> None:
        indices = []
        for layer in layers:
            known = [i for i, each in enumerate(self.layers) if each is layer]
            if not known:
                self.layers.append(layer)
                known = [len(self.layers) - 1]
            indices.append(known[0])
        self.operations.append(Operation(kind, tuple(indices), number))

    def _same_size(self, cout: int) -> Module:
        """A convolution that keeps the size, with a weight of its own or another's."""
        reach = self.random.choice((0, 1, 1, 2))
        dilation = self.random.choice((1, 1, 2))
        groups = self._groups(cout)
        conv = nn.Conv2d(
            self.channels,
            cout,
            2 * reach + 1,
            padding=reach * dilation,
            dilation=dilation,
            groups=groups,
            bias=self.random.random() < 0.7,
        )
        return self._perhaps_tied(conv)

    def _groups(self, cout: int) -> int:
        common = [g for g in range(1, cout + 1) if self.channels % g == 0 and cout % g == 0]
        return self.random.choice([1, 1, *common])

    def _perhaps_tied(self, conv: Module) -> Module:
        """The convolution with the weight of another of that shape, or frozen in part."""
        alike = [
            layer.weight
            for layer in self.layers
            if isinstance(layer, nn.Conv2d) and layer.weight.shape == conv.weight.shape
        ]
        if alike and self.random.random() < 0.5:
            conv.weight = self.random.choice(alike)
        return self._perhaps_frozen(conv)

    def _perhaps_frozen(self, layer: Module) -> Module:
        chance = self.random.random()
        if chance < 0.08:
            layer.requires_grad_(False)
        elif chance < 0.12:
            layer.weight.requires_grad_(False)
        return layer

    def _convolution(self) -> None:
        kernel = tuple(self.random.randint(1, min(3, each)) for each in self.size)
        stride = self.random.choice((1, 1, 1, 2, 3, (2, 1)))
        padding = tuple(self.random.randint(0, each // 2) for each in kernel)
        cout = self.random.choice((4, 6, 8, 12, 16))
        conv = nn.Conv2d(
            self.channels,
            cout,
            kernel,
            stride,
            padding,
            groups=self._groups(cout),
            bias=self.random.random() < 0.7,
        )
        strides = (stride, stride) if isinstance(stride, int) else stride
        self._add("layer", self._perhaps_tied(conv))
        self.channels = cout
        height, width = (
            (x + 2 * p - k) // s + 1
            for x, p, k, s in zip(self.size, padding, kernel, strides, strict=True)
        )
        self.size = (height, width)

    def _prefix_without_gradient(self) -> None:
        cout = self.random.choice((4, 8))
        self._add("no_grad", self._same_size(cout))
        self.channels = cout

    def _activation(self) -> None:
        kinds = (
            nn.ReLU(),
            nn.LeakyReLU(0.1),
            nn.SiLU(),
            nn.GELU(),
            nn.Sigmoid(),
            nn.Tanh(),
            nn.Hardswish(),
            nn.ELU(),
        )
        previous = self.operations[-1]
        fresh = previous.kind == "layer" and isinstance(self.layers[previous.layers[0]], nn.Conv2d)
        if fresh and self.random.random() < 0.5:
            self._add("layer", nn.ReLU(inplace=True))
        else:
            self._add("layer", self.random.choice(kinds))

    def _normalisation(self) -> None:
        groups = [g for g in range(1, self.channels + 1) if self.channels % g == 0]
        norm = self.random.choice(
            (
                nn.BatchNorm2d(self.channels),
                nn.BatchNorm2d(self.channels, affine=False),
                nn.GroupNorm(self.random.choice(groups), self.channels),
                nn.LayerNorm((self.channels, *self.size)),
            )
        )
        values = self.channels * self.size[0] * self.size[1]
        if isinstance(norm, nn.GroupNorm) and values // norm.num_groups < 4:
            norm = nn.GroupNorm(1, self.channels)  # of one value it were always zero
        with torch.no_grad():
            for weight in norm.parameters():
                weight.add_(0.2 * torch.randn_like(weight))
        self._add("layer", norm if norm.weight is None else self._perhaps_frozen(norm))

    def _shared(self) -> None:
        """A convolution that keeps the shape, used several times, or another with its weight."""
        fits = [
            layer
            for layer in self.layers
            if isinstance(layer, nn.Conv2d)
            and layer.in_channels == layer.out_channels == self.channels
            and layer.stride == (1, 1)
            and all(
                2 * p == d * (k - 1)
                for p, d, k in zip(layer.padding, layer.dilation, layer.kernel_size, strict=True)
            )
        ]
        layer = self.random.choice(fits) if fits else self._same_size(self.channels)
        if self.random.random() < 0.3:
            twin = copy.deepcopy(layer)
            twin.weight = layer.weight
            self._add("layer", layer)
            self._add("layer", twin)
            return
        for _ in range(1 if fits else 2):
            self._add("layer", layer)
            if self.random.random() < 0.5:
                self._add("layer", nn.ReLU())

    def _residual(self) -> None:
        kind = self.random.choice(("residual", "residual_in_place"))
        self._add(kind, self._same_size(self.channels))

    def _branches(self) -> None:
        widths = [self.random.choice((3, 4, 8)) for _ in range(2)]
        self._add("branches", *(self._same_size(width) for width in widths))
        self.channels = sum(widths)

    def _pool(self) -> None:
        if min(self.size) < 4:
            return
        kinds = (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, 2, 1))
        pool = self.random.choice(kinds)
        self._add("layer", pool)
        up = 1 if pool.kernel_size == 3 else 0
        self.size = ((self.size[0] + up) // 2, (self.size[1] + up) // 2)

    def _enlarged(self) -> None:
        if max(self.size) > 6:
            return
        kind = self.random.choice(("nearest", "bilinear"))
        self._add("layer", nn.Upsample(scale_factor=2, mode=kind))
        self.size = (2 * self.size[0], 2 * self.size[1])

    def _parts(self) -> None:
        kinds = ["twice"]
        if self.channels % 2 == 0:
            kinds += ["swap", "gate"]
        if self.channels > 1:
            kinds += ["write_part", "scale_part"]
        kind = self.random.choice(kinds)
        number = self.random.randint(1, self.channels - 1) if kind.endswith("_part") else 0
        self._add(kind, number=number)
        if kind == "twice":
            self.channels *= 2
        if kind == "gate":
            self.channels //= 2

    def _detached(self) -> None:
        if self.random.random() < 0.3:
            self._add("detach")
        else:
            self._add("detached_branch", self._same_size(self.channels))

    def _squeeze_excite(self) -> None:
        self._add("squeeze_excite", self._perhaps_frozen(nn.Linear(self.channels, self.channels)))

    def _last_axis(self) -> None:
        layer = nn.Linear(self.channels, self.channels)
        if self.random.random() < 0.5 and self.channels >= 4:
            layer = nn.LayerNorm(self.channels)
        self._add("last_axis", self._perhaps_frozen(layer))

    def _weights_of_image(self) -> None:
        if self.channels > 8:
            return
        cout = self.random.choice((2, 4))
        self._add(
            "weights_of_image", nn.Linear(self.channels, cout * self.channels * 9), number=cout
        )
        self.channels = cout


def drawn_module(seed: int) -> Drawn:
    """The module of a seed, with the same numbers every time."""
    torch.manual_seed(seed)
    return Drawing(seed).module()


def drawn_batch(module: Drawn, seed: int, batch: int) -> tuple[tuple[Array, ...], Array]:
    """Inputs of a module that fp16 holds exactly, and the class of each of ``batch`` images."""
    generator = np.random.default_rng(seed)
    inputs = tuple(
        generator.standard_normal((batch, *shape)).astype(np.float16).astype(np.float32)
        for shape in module.shapes
    )
    return inputs, generator.integers(module.classes, size=batch)


# -- the reference -----------------------------------------------------------------------------


class ReferenceStep(NamedTuple):
    """The loss before a step, and the gradient of every parameter that has one, in float64."""

    loss: float
    gradients: dict[str, Array]


def reference_step(
    module: Module, images: Any, labels: Array, settings: Mapping[str, float] | None = None
) -> ReferenceStep:
    """The mean softmax cross entropy of a batch and its gradients, by PyTorch in float64.

    ``images`` is an array or, of several inputs, a tuple of arrays. The ``decay`` of ``settings``
    is added to the gradients of what has more than one axis, as ``npusim.Trainer`` decays weights.
    """
    exact = module.double()
    tensors = [torch.from_numpy(np.asarray(each)) for each in _each(images)]
    tensors = [each.double() if each.is_floating_point() else each for each in tensors]
    exact.zero_grad()
    loss = F.cross_entropy(exact(*tensors), torch.as_tensor(labels))
    loss.backward()
    decay = (settings or {}).get("decay", 0.0)
    gradients = {
        name: (weight.grad + (decay if weight.ndim > 1 else 0.0) * weight).detach().numpy().copy()
        for name, weight in exact.named_parameters()
        if weight.grad is not None
    }
    return ReferenceStep(float(loss.detach()), gradients)


def _each(images: Any) -> Sequence[Any]:
    return images if isinstance(images, (tuple, list)) else (images,)


class InHalf(dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
    """Rounds what every operation reads and writes to fp16, in a context.

    Each element is first moved by up to half a unit of its last place, by ``seed``; sums within an
    operation stay exact, as the chip adds up in fp32. What is only seen in another shape stays.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        named = named or {}
        aliases = [each.alias_info for each in function._schema.returns]
        written = any(each is not None and each.is_write for each in aliases)
        if any(aliases) and not written:
            return function(*arguments, **named)
        if written:  # in place: its first operand must stay the tensor that it is
            rest = pytree.tree_map(self.rounded, arguments[1:])
            result = function(arguments[0], *rest, **named)
            if _is_rounded(result):
                result.copy_(self.rounded(result))
            return result
        result = function(
            *pytree.tree_map(self.rounded, arguments), **pytree.tree_map(self.rounded, named)
        )
        return pytree.tree_map(self.rounded, result)

    def rounded(self, value: Any) -> Any:
        if not _is_rounded(value):
            return value
        moves = torch.rand(value.shape, generator=self.generator, dtype=torch.float64) - 0.5
        moved = value * (1 + moves * 2**-11)
        return moved.to(torch.float16).to(torch.float64)


def _is_rounded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def noisy_steps(
    module: Module, images: Any, labels: Array, settings: Mapping[str, float] | None = None
) -> list[ReferenceStep]:
    """The same step ``NOISES`` times with every value rounded to fp16."""
    steps = []
    for seed in range(NOISES):
        with InHalf(seed):
            steps.append(reference_step(module, images, labels, settings))
    return steps


# -- the judgement -----------------------------------------------------------------------------


class Difference(NamedTuple):
    """A quantity that is further from float64 than fp16 explains: a norm, and what is explained."""

    name: str
    distance: float
    explained: float
    size: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.distance:.3g} from float64, of which fp16 explains "
            f"{self.explained:.3g}; its norm is {self.size:.3g}"
        )


def differences(
    loss: float,
    gradients: Mapping[str, Array],
    exact: ReferenceStep,
    noisy: Sequence[ReferenceStep],
    resolution: Mapping[str, float] | None = None,
) -> list[Difference]:
    """What of a step is not PyTorch's: the loss, gradients, and gradients that one side lacks.

    A distance is a Euclidean norm. It is explained up to ``FACTOR`` times the largest of the noisy
    steps, and by the ``resolution`` in which a gradient was read, a norm too.
    """
    found = []
    loss_noise = max(abs(each.loss - exact.loss) for each in noisy)
    allowed = FACTOR * loss_noise + 2**-11 * abs(exact.loss)
    if not abs(loss - exact.loss) <= allowed:
        found.append(Difference("loss", abs(loss - exact.loss), allowed, abs(exact.loss)))
    for name in sorted({*exact.gradients, *gradients}):
        if name not in gradients or name not in exact.gradients:
            side = "is missing" if name in exact.gradients else "should not be"
            present = (exact.gradients if name in exact.gradients else gradients)[name]
            size = float(np.linalg.norm(present))
            found.append(Difference(f"{name} {side}", size, 0.0, size))
            continue
        right = exact.gradients[name]
        noise = max(float(np.linalg.norm(each.gradients[name] - right)) for each in noisy)
        allowed = FACTOR * noise + (resolution or {}).get(name, 0.0)
        distance = float(np.linalg.norm(np.reshape(gradients[name], right.shape) - right))
        if not distance <= allowed:  # also where it is no number
            found.append(Difference(name, distance, allowed, float(np.linalg.norm(right))))
    return found


# -- the trainer -------------------------------------------------------------------------------

#: Plain gradients: what a parameter moves by is its gradient.
SETTINGS = {"rate": 1.0, "decay": 0.0}


class Verdict(NamedTuple):
    """What of a step is not PyTorch's, its cycles, and those that ``npusim.step`` has."""

    differences: list[Difference]
    trained_cycles: int
    step_cycles: int
    complete: bool


def judged(module: Module, inputs: tuple[Array, ...], labels: Array, **options: Any) -> Verdict:
    """A step of ``npusim.Trainer``, held to PyTorch, and to the time that ``npusim.step`` gives.

    ``options`` are those of the trainer. The parameters are set to what the module has, in fp32.
    """
    module = module.float()
    arguments = _arguments(inputs)
    batch = len(labels)
    trainer = npusim.Trainer(
        module, **arguments, batch=batch, optimizer="sgd", settings=SETTINGS, **options
    )
    before = {}
    for name, weight in module.named_parameters():
        if name in _settable(trainer):
            trainer[name] = weight.detach().numpy().reshape(trainer[name].shape)
        if name in trainer.parameters:
            before[name] = np.array(trainer[name], np.float64)
    loss = trainer.step(inputs if len(inputs) > 1 else inputs[0], labels)
    gradients = {
        name: (before[name] - trainer[name]) / SETTINGS["rate"] for name in trainer.parameters
    }
    # An fp32 weight moves in steps of its last place.
    resolution = {name: float(np.linalg.norm(each)) * 2**-23 for name, each in before.items()}
    timed = npusim.step(module, **arguments, batch=batch, optimizer="sgd", **options)
    exact = reference_step(module, inputs, labels)
    noisy = noisy_steps(module, inputs, labels)
    return Verdict(
        differences(loss, gradients, exact, noisy, resolution),
        trainer.steps[0].cycles,
        timed.cycles,
        timed.complete,
    )


def _arguments(inputs: tuple[Array, ...]) -> dict[str, Any]:
    """How the functions of the package are told the shapes of one image."""
    if len(inputs) == 1:
        return {"input_shape": inputs[0].shape[1:]}
    return {"inputs": tuple(torch.from_numpy(each) for each in inputs)}


def _settable(trainer: Any) -> set[str]:
    return {*trainer.parameters, *getattr(trainer, "fixed", ())}


def tried(seed: int, **options: Any) -> list[str]:
    """What is wrong with the step of the module of a seed, a line each; none if it is right.

    Rounding may push a value across the kink of a ReLU where none of the noisy steps did, so a
    difference of numbers counts only if a second batch has one in the same parameter.
    """
    chosen = random.Random(seed)
    how = {"device": chosen.choice(DEVICES), "mode": chosen.choice(MODES), **options}
    batch = chosen.randint(2, 4)
    names: list[set[str]] = []
    lines: list[str] = []
    for data in (seed, seed + 1_000_000):
        module = drawn_module(seed)
        inputs, labels = drawn_batch(module, data, batch)
        verdict = judged(module, inputs, labels, **how)
        if verdict.trained_cycles != verdict.step_cycles:
            lines.append(f"cycles {verdict.trained_cycles}, and of step {verdict.step_cycles}")
        if not verdict.complete:
            lines.append("the step is not complete")
        names.append({each.name for each in verdict.differences})
        if not verdict.differences:
            return lines
        last = verdict.differences
    lines += [str(each) for each in last if each.name in names[0]]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Try modules and print those that are wrong; 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.networks.random_modules")
    parser.add_argument("count", type=int, help="how many modules")
    parser.add_argument("first_seed", type=int, help="the seed of the first")
    parser.add_argument("--device", help="a device for all, otherwise drawn")
    parser.add_argument("--mode", choices=("graph", "eager"), help="a mode for all")
    chosen = parser.parse_args(arguments)
    options = {
        name: value for name in ("device", "mode") if (value := getattr(chosen, name)) is not None
    }
    wrong = 0
    for seed in range(chosen.first_seed, chosen.first_seed + chosen.count):
        try:
            lines = tried(seed, **options)
        except Exception as error:  # a module that cannot be trained is a finding like others
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
            lines = [f"{type(error).__name__} ({where}): {error}"]
            if "torch" in place.filename and isinstance(error, RuntimeError):
                print(f"seed {seed}: PyTorch itself fails: {error}")
                continue
        if lines:
            wrong += 1
            print(f"seed {seed}", *lines, drawn_module(seed).describe(), sep="\n  ")
            sys.stdout.flush()
    print(f"{wrong} of {chosen.count} modules are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
