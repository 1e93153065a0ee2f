"""Element-wise layers of a network, those that multiply no matrices: their kinds and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.workloads.kinds import KINDS, UNKNOWN, WEIGHTED

#: (before, after) of each axis of an image.
Sides = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class ElementwiseLayer:
    """A layer that multiplies no matrices, and ``count``, how often the network has such a one.

    ``shape`` is that of its input (of the largest of them, of "concat" of all together) and ``out``
    that of its output, both with the images of the batch. ``input_gradient`` is False where a
    training step has no gradient of its inputs. Pooling has the ``kernel`` of its windows with
    ``stride`` and ``padding``, one entry for each of the last axes; none where a window is a whole
    map, or where windows differ in size. Of "pad" and "slice" ``padding`` has an entry for every
    axis of ``shape``: how many zeros are added before and after, or how many elements are left out,
    as negative numbers; none where others are added. A "slice" has a ``stride`` for every axis
    where it takes not every element. ``axes`` are those of an operation along some: a "permute" has
    its order of all, a "roll" those along which its ``numbers`` move elements. ``numbers`` are
    those of the operation where they are not the usual ones: the factor of a "scale" and what a
    "shift" adds (without one it has another operand of fewer elements, or a ``weight``), the limits
    of a "clip", the slope of a "leaky_relu", slope and offset of a "hard_sigmoid", share and factor
    of an "elu", 1 of an "interpolate" that keeps corners and of an "avg_pool" that counts the
    padding, what a normalisation adds to variances, of a "group_norm" behind the number of its
    groups. ``weight`` are the sizes of the numbers with which a "scale" multiplies and that a
    "shift" adds: those of the last axes, or of all axes of an image with 1 for those that share a
    number. An operation of kind "unknown" is ``called`` something. Raises ``ArgumentError`` for a
    ``kind`` that is not among ``KINDS``.
    """

    kind: str
    shape: tuple[int, ...]
    out: tuple[int, ...] = ()
    count: int = 1
    input_gradient: bool = True
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: Sides = ()
    axes: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    weight: tuple[int, ...] = ()
    called: str = ""

    def __post_init__(self) -> None:
        """Complete the shape of the output, and of windows what goes without saying."""
        if self.kind not in KINDS and self.kind != UNKNOWN:
            raise ArgumentError(f"unknown kind {self.kind!r}{suggest(self.kind, KINDS)}")
        if bool(self.called) != (self.kind == UNKNOWN):
            raise ArgumentError("operations of kind unknown, and no others, are called something")
        if not self.shape:  # of a single number
            object.__setattr__(self, "shape", (1,))
        if not self.out:
            object.__setattr__(self, "out", self.shape)
        if self.kind.endswith("_pool") and self.out == self.shape[: len(self.out)]:
            ones = (1,) * (len(self.shape) - len(self.out))  # a mean of maps without their axes
            object.__setattr__(self, "out", self.out + ones)
        if self.kernel and not self.stride:
            object.__setattr__(self, "stride", self.kernel)
        if self.kernel and not self.padding:
            object.__setattr__(self, "padding", ((0, 0),) * len(self.kernel))

    @property
    def has_parameters(self) -> bool:
        """Return whether it has trained numbers of its own, as files of layers state it."""
        return self.kind in WEIGHTED or bool(self.weight)


def together(layers: Iterable[ElementwiseLayer]) -> tuple[ElementwiseLayer, ...]:
    """Layers of one kind and shape as one with the sum of their counts."""
    counts: Counter[ElementwiseLayer] = Counter()
    for layer in layers:
        counts[replace(layer, count=1)] += layer.count
    return tuple(replace(layer, count=count) for layer, count in counts.items())
