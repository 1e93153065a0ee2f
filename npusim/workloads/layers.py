"""The layers of a network: convolutions and linear layers, each with how often it occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest
from npusim.shapes.convolution import Convolution
from npusim.workloads.elementwise import ElementwiseLayer


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
    """A linear layer: ``rows`` vectors of an image, each from ``cin`` to ``cout`` features.

    With ``products`` an image has so many products of two computed matrices (rows, cin) and
    (cin, cout), as attention has two for each head; 0 is one matrix of weights for all images. The
    gradient of the right matrix is called that of the weight. With ``bias`` a number is added to
    each of the ``cout`` features; products of two computed matrices have none.
    """

    name: str
    cin: int
    cout: int
    rows: int = 1
    n: int = 1
    count: int = 1
    input_gradient: bool = True
    products: int = 0
    bias: bool = False

    @property
    def macs(self) -> int:
        """Multiply-adds of any one of its three products."""
        return self.n * max(1, self.products) * self.rows * self.cin * self.cout


Layer = ConvLayer | LinearLayer


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A named list of layers, in the order of the network.

    ``layers`` are those that multiply, ``elementwise`` what is known of the others, ``untimed``
    what of these nothing is known: operations by name, and how often each occurs.
    """

    name: str
    description: str
    layers: tuple[Layer, ...]
    elementwise: tuple[ElementwiseLayer, ...] = ()
    untimed: tuple[tuple[str, int], ...] = ()

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
    """Layers of one shape as one, named after the first of them, with the sum of their counts.

    Names that several shapes have are numbered.
    """
    found: dict[Layer, Layer] = {}
    named: Counter[str] = Counter()
    for layer in layers:
        shape = replace(layer, name="", count=1)
        if shape in found:
            found[shape] = replace(found[shape], count=found[shape].count + layer.count)
            continue
        named[layer.name] += 1
        number = f"_{named[layer.name]}" if named[layer.name] > 1 else ""
        found[shape] = replace(layer, name=layer.name + number)
    return tuple(found.values())
