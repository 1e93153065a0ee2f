"""Training in NumPy: what a step of a small network computes, in float64 or as fp16 keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from npusim.networks.rules.table import tables
from npusim.workloads import INPUT, ConvLayer, LinearLayer, Workload
from tests.networks.blocks import Array


class Reference:
    """A network of convolutions, normalisations, ReLU, sums, a mean and a linear layer at the end.

    With ``half`` maps, their gradients and the weights that are multiplied are rounded to fp16, as
    the chip stores them; all else is float64. Momentum and decay are those of PyTorch's SGD.
    """

    def __init__(self, workload: Workload, begun: Mapping[str, Array], *, half: bool) -> None:
        self.nodes, self.half = workload.nodes, half
        self.weights = {name: array.astype(np.float64) for name, array in begun.items()}
        self.momenta = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.losses: list[float] = []

    def stored(self, values: Array) -> Array:
        return values.astype(np.float16).astype(np.float64) if self.half else values

    def step(self, images: Array, labels: Array, rate: float) -> None:
        """Forward, backward and update; notes the loss before it."""
        values = {INPUT: self.stored(images.astype(np.float64))}
        for node in self.nodes:
            values[node.name] = self.stored(self.forward(node, [values[n] for n in node.inputs]))
        last = values[self.nodes[-1].name]
        powers = np.exp(last - last.max(1, keepdims=True))
        shares = powers / powers.sum(1, keepdims=True)
        at = np.arange(len(labels))
        self.losses.append(float(-np.log(shares[at, labels]).mean()))
        shares[at, labels] -= 1
        gradients = {self.nodes[-1].name: self.stored(shares / len(labels))}
        made: dict[str, Array] = {}
        for node in reversed(self.nodes):
            given = [values[n] for n in node.inputs]
            found = self.backward(node, given, gradients.pop(node.name), values[node.name], made)
            for name, gradient in zip(node.inputs, found, strict=True):
                before = gradients.get(name)
                gradients[name] = self.stored(gradient if before is None else before + gradient)
        settings = tables().settings
        for name, gradient in made.items():
            decay = settings["decay"] if gradient.ndim > 1 else 0.0
            more = gradient + decay * self.weights[name]
            self.momenta[name] = settings["momentum"] * self.momenta[name] + more
            self.weights[name] = self.weights[name] - rate * self.momenta[name]

    def forward(self, node: Any, x: Any) -> Any:
        layer = node.layer
        if isinstance(layer, ConvLayer):
            return np.einsum(
                "nchwij,ocij->nohw", windows(x[0], layer), self.weight(node), optimize=True
            )
        if isinstance(layer, LinearLayer):
            return (
                x[0].reshape(len(x[0]), -1) @ self.weight(node).T + self.weights[owned(node, "b")]
            )
        if layer.kind == "batch_norm":
            gamma, beta = (self.weights[owned(node, s)][:, None, None] for s in ("gamma", "beta"))
            return normal(x[0])[0] * gamma + beta
        if layer.kind == "avg_pool":
            return x[0].mean((2, 3), keepdims=True)
        return {"relu": lambda: np.maximum(x[0], 0), "add": lambda: sum(x)}[layer.kind]()

    def backward(self, node: Any, x: Any, dy: Any, y: Any, made: Any) -> Any:
        """Gradients of the inputs; those of parameters are noted in ``made``."""
        layer = node.layer
        if isinstance(layer, ConvLayer):
            made[owned(node, "w")] = np.einsum(
                "nchwij,nohw->ocij", windows(x[0], layer), dy, optimize=True
            )
            return [spread(dy, self.weight(node), layer, x[0].shape)]
        if isinstance(layer, LinearLayer):
            made[owned(node, "w")] = dy.T @ x[0].reshape(len(dy), -1)
            made[owned(node, "b")] = dy.sum(0)
            return [(dy @ self.weight(node)).reshape(x[0].shape)]
        if layer.kind == "batch_norm":
            norm, rstd = normal(x[0])
            made[owned(node, "gamma")], made[owned(node, "beta")] = (
                (dy * norm).sum((0, 2, 3)),
                dy.sum((0, 2, 3)),
            )
            mean = dy.mean((0, 2, 3), keepdims=True)
            slope = (dy * norm).mean((0, 2, 3), keepdims=True)
            return [
                self.weights[owned(node, "gamma")][:, None, None]
                * rstd
                * (dy - mean - norm * slope)
            ]
        if layer.kind == "avg_pool":
            return [np.broadcast_to(dy / x[0][0, 0].size, x[0].shape)]
        return [dy * (y > 0)] if layer.kind == "relu" else [dy, dy]

    def weight(self, node: Any) -> Array:
        return self.stored(self.weights[owned(node, "w")])


def owned(node: Any, symbol: str) -> str:
    """The name of a parameter of a node: its own, or in a file of layers after the node."""
    return f"{node.name}.{symbol}" if node.parameters is None else node.parameters[symbol]


def normal(x: Array) -> tuple[Array, Array]:
    """A map with mean 0 and variance 1 in each channel, and what it was multiplied with."""
    rstd = 1 / np.sqrt(x.var((0, 2, 3), keepdims=True) + tables().settings["epsilon"])
    return (x - x.mean((0, 2, 3), keepdims=True)) * rstd, rstd


def windows(x: Array, layer: ConvLayer) -> Array:
    """What each output sees: (images, channels, height, width, rows, columns)."""
    wide = np.pad(x, ((0, 0), (0, 0), *layer.padding))
    (down, right) = layer.stride
    found: Array = sliding_window_view(wide, layer.kernel, (2, 3))[:, :, ::down, ::right]
    return found


def spread(dy: Array, w: Array, layer: ConvLayer, shape: tuple[int, ...]) -> Array:
    """The gradient of a convolution's input."""
    (top, bottom), (left, right) = layer.padding
    wide = np.zeros((*shape[:2], shape[2] + top + bottom, shape[3] + left + right))
    parts = np.einsum("nohw,ocij->nchwij", dy, w, optimize=True)
    for i, j in np.ndindex(*layer.kernel):
        rows = slice(i, i + layer.stride[0] * dy.shape[2], layer.stride[0])
        columns = slice(j, j + layer.stride[1] * dy.shape[3], layer.stride[1])
        wide[:, :, rows, columns] += parts[..., i, j]
    return wide[:, :, top : top + shape[2], left : left + shape[3]]
