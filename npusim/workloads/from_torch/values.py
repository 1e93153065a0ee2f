"""Tensors of a program as values of a graph: which one, which part of it, in which order.

A tensor is a view of a value: of a ``window`` of its elements along axes of its ``base`` shape, and
of these in any order, expanded or not. The order is that of a tensor without data, on which PyTorch
itself computes what views, reshapes and permutations do, so that only what a reader needs in
another order than it lies becomes a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple

from npusim.base.records import replace

Sizes = tuple[int, ...]

#: (first, behind the last, step) along an axis.
Range = tuple[int, int, int]


class Later:
    """The name of a value that is made when it is read for the first time."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make: Callable[[], str] | None = make
        self._name = ""

    def __call__(self) -> str:
        """Make the value, once."""
        if self._make is not None:
            make = self._make
            self._make = None
            self._name = make()
        return self._name


@dataclass(frozen=True, eq=False)
class TracedValue:
    """A tensor: ``view``, without data, of the ``window`` of the value that ``source`` names.

    ``view`` has the sizes and strides, in elements of the window, which lies without gaps.
    ``dtype`` is PyTorch's type of the elements; no ``gradient``: nothing flows back to the
    source. ``constant`` is the tensor with its data where these do not depend on inputs or
    parameters.
    """

    source: Later
    base: Sizes
    window: tuple[Range, ...]
    view: Any
    dtype: Any
    gradient: bool = True
    constant: Any = None

    @property
    def shape(self) -> Sizes:
        """The sizes of the tensor."""
        return tuple(self.view.shape)

    @property
    def elements(self) -> int:
        """How many elements the tensor has."""
        return prod(self.view.shape)

    @property
    def floats(self) -> bool:
        """Return whether its elements are floating-point or complex numbers."""
        return bool(self.dtype.is_floating_point or self.dtype.is_complex)

    @property
    def is_complex(self) -> bool:
        """Return whether its elements are complex numbers, each two elements of the value."""
        return bool(self.dtype.is_complex)

    @property
    def is_part(self) -> bool:
        """Return whether it leaves out some of the value's elements."""
        return self.window != whole(self.base)

    @property
    def lies(self) -> AxisOrder:
        """The order of its axes in memory."""
        return order_of(self.view)

    @property
    def is_plain(self) -> bool:
        """Return whether it has all elements of its source in their own order, once each."""
        return not self.is_part and self.lies.is_plain

    def seen(self, view: Any, constant: Any = None) -> TracedValue:
        """The same elements in another view."""
        return replace(self, view=view, constant=constant)

    def detached(self) -> TracedValue:
        """The same, and no gradient flows back."""
        return replace(self, gradient=False)


class AxisOrder(NamedTuple):
    """How a tensor lies in memory: its axes without those that are repeated, outermost first.

    ``axes`` are their numbers in the tensor, ``sizes`` their sizes; ``repeated`` are the axes along
    which one element is repeated, ``unrepeated`` has the sizes of the tensor with 1 for these.
    """

    axes: Sizes
    sizes: Sizes
    repeated: Sizes
    unrepeated: Sizes

    @property
    def is_plain(self) -> bool:
        """Return whether the order is that of the tensor, and no element is repeated."""
        return not self.repeated and self.axes == tuple(sorted(self.axes))


def order_of(view: Any) -> AxisOrder:
    """The order of a tensor whose elements lie without gaps.

    An axis of one element goes with the axis behind it, the first of a tensor stays in front.
    """
    sizes = tuple(view.shape)
    strides = view.stride()
    repeated = tuple(
        axis for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        if size > 1 and stride == 0
    )  # fmt: skip
    outer: list[float] = [0.0] * len(sizes)
    behind = 1.0
    for axis in reversed(range(len(sizes))):
        if sizes[axis] > 1 and axis not in repeated:
            outer[axis] = strides[axis]
            behind = strides[axis] * sizes[axis]
        else:
            outer[axis] = inf if axis == 0 else behind
    unrepeated = tuple(1 if axis in repeated else size for axis, size in enumerate(sizes))
    axes = tuple(sorted(range(len(sizes)), key=lambda axis: (-outer[axis], axis)))
    return AxisOrder(axes, tuple(unrepeated[axis] for axis in axes), repeated, unrepeated)


def whole(shape: Sizes) -> tuple[Range, ...]:
    """The window of all elements."""
    return tuple((0, size, 1) for size in shape)


def sizes_of(window: tuple[Range, ...]) -> Sizes:
    """The sizes of a window."""
    return tuple(len(range(*part)) for part in window)


def narrowed(part: Range, first: int, behind: int, step: int) -> Range:
    """The range that a range of a range is."""
    return (part[0] + first * part[2], part[0] + (behind - 1) * part[2] + 1, part[2] * step)
