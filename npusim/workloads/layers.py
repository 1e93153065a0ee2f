"""The layers of a network: convolutions and linear layers, each with how often it occurs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from npusim.convolution import Convolution
from npusim.errors import ArgumentError
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.yamltree import suggest


@dataclass(frozen=True, kw_only=True)
class ConvLayer(Convolution):
    """One convolution of a network, and ``count``, how often the network has it.

    ``input_gradient`` is False where nothing trained comes before the layer, so that a training
    step does without the gradient of its input.
    """

    name: str
    count: int = 1
    input_gradient: bool = True


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """A linear layer: ``rows`` vectors of an image, each from ``cin`` to ``cout`` features."""

    name: str
    cin: int
    cout: int
    rows: int = 1
    n: int = 1
    count: int = 1
    input_gradient: bool = True

    @property
    def macs(self) -> int:
        """Multiply-adds of any one of its three products."""
        return self.n * self.rows * self.cin * self.cout


Layer = ConvLayer | LinearLayer


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A named list of layers, in the order of the network.

    ``layers`` are those that multiply, ``elementwise`` what is known of the others.
    """

    name: str
    description: str
    layers: tuple[Layer, ...]
    elementwise: tuple[ElementwiseLayer, ...] = ()

    def __repr__(self) -> str:
        """One line: name, layers with repetitions, multiply-adds."""
        layers = sum(layer.count for layer in self.layers)
        return f"<Workload {self.name}: {layers} layers, {self.macs:,} multiply-adds an image>"

    @property
    def convolutions(self) -> tuple[ConvLayer, ...]:
        """The layers that are convolutions."""
        return tuple(layer for layer in self.layers if isinstance(layer, ConvLayer))

    @property
    def macs(self) -> int:
        """Multiply-adds of one forward pass of one image."""
        return sum(layer.count * layer.macs for layer in self.layers)

    def layer(self, name: str) -> Layer:
        """Return the layer called ``name``."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        known = [layer.name for layer in self.layers]
        raise ArgumentError(f"workload {self.name} has no layer {name!r}{suggest(name, known)}")


def merged(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Layers of one shape as one, named after the first of them, with the sum of their counts."""
    found: dict[Layer, Layer] = {}
    for layer in layers:
        shape = replace(layer, name="", count=1)
        first = found.get(shape)
        count = layer.count + (first.count if first is not None else 0)
        found[shape] = replace(first if first is not None else layer, count=count)
    return tuple(found.values())
