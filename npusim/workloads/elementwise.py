"""Element-wise layers of a network: what each moves to and from main memory in a training step.

They multiply no matrices, and no kernel of them is simulated. What is known of such a layer is its
tensors: how often each is read and written going forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest


class Moved(NamedTuple):
    """Elements, or tensors, that are read and written."""

    read: int
    written: int


class Pass(NamedTuple):
    """Tensors that one pass reads and writes: of the size of the input, and of the output."""

    read_in: int = 0
    read_out: int = 0
    written_in: int = 0
    written_out: int = 0

    def moved(self, inside: int, outside: int) -> Moved:
        """Elements, for an input of ``inside`` and an output of ``outside`` elements."""
        return Moved(
            self.read_in * inside + self.read_out * outside,
            self.written_in * inside + self.written_out * outside,
        )


class Kind(NamedTuple):
    """What a kind of layer moves in each pass; tensors of a few elements are left out."""

    forward: Pass
    backward: Pass


#: x is read and y written; dy and what was saved of the layer are read, and dx is written.
_ACTIVATION = Kind(Pass(read_in=1, written_out=1), Pass(read_in=1, read_out=1, written_in=1))

#: Mean and variance first, then the result; their gradients first, then that of x.
_STATISTICS = Kind(Pass(read_in=2, written_out=1), Pass(read_in=2, read_out=2, written_in=1))

#: Every element of dy goes to elements of dx without another tensor.
_LINEAR = Kind(Pass(read_in=1, written_out=1), Pass(read_out=1, written_in=1))

_ACTIVATIONS = (
    *("relu", "clip", "leaky_relu", "prelu", "elu", "selu", "celu", "gelu", "silu", "mish", "erf"),
    *("sigmoid", "tanh", "hard_sigmoid", "hard_swish", "softplus", "softmax", "scale"),
)

#: Every kind of element-wise layer. An addition passes its gradient on as it is; counted is the
#: sum that the backward pass forms where the added values branch off.
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(_ACTIVATIONS, _ACTIVATION),
    "batch_norm": _STATISTICS,
    "group_norm": _STATISTICS,
    "instance_norm": _STATISTICS,
    "layer_norm": _ACTIVATION,  # a vector stays on the chip between both steps
    "dropout": _LINEAR,  # its mask is of bits
    "add": Kind(Pass(read_in=2, written_out=1), Pass(read_in=2, written_in=1)),
    "mul": Kind(Pass(read_in=2, written_out=1), Pass(read_in=2, read_out=1, written_in=2)),
    "concat": _LINEAR,
    "avg_pool": _LINEAR,
    "upsample": _LINEAR,
    "max_pool": Kind(Pass(read_in=1, written_out=1), Pass(read_in=1, read_out=2, written_in=1)),
}


@dataclass(frozen=True, kw_only=True)
class ElementwiseLayer:
    """A layer that works element by element, and ``count``, how often the network has such a one.

    ``shape`` is that of its input (of each of them, of "concat" of all together) and ``out`` that
    of its output, of one image without the batch. ``input_gradient`` is False where nothing
    trained comes before it. Raises ``ArgumentError`` for a ``kind`` that is not among ``KINDS``.
    """

    kind: str
    shape: tuple[int, ...]
    out: tuple[int, ...] = ()
    count: int = 1
    input_gradient: bool = True

    def __post_init__(self) -> None:
        """Complete the shape of the output."""
        if self.kind not in KINDS:
            raise ArgumentError(f"unknown kind {self.kind!r}{suggest(self.kind, KINDS)}")
        if not self.out:
            object.__setattr__(self, "out", self.shape)

    def moved(self, passes: str) -> Moved:
        """Elements that one image reads and writes: "forward", "backward", or "training" both."""
        kind, sizes = KINDS[self.kind], (prod(self.shape), prod(self.out))
        forward = passes != "backward"
        backward = passes != "forward" and self.input_gradient
        both = [kind.forward.moved(*sizes)] * forward + [kind.backward.moved(*sizes)] * backward
        return Moved(sum(one.read for one in both), sum(one.written for one in both))


def together(layers: Iterable[ElementwiseLayer]) -> tuple[ElementwiseLayer, ...]:
    """Layers of one kind and shape as one with the sum of their counts."""
    found: dict[ElementwiseLayer, int] = {}
    for layer in layers:
        alike = replace(layer, count=1)
        found[alike] = found.get(alike, 0) + layer.count
    return tuple(replace(layer, count=count) for layer, count in found.items())
