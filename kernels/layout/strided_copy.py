"""Copies between a view with gaps or with its axes in another order, and a tensor without gaps.

    contiguous:  y[i0, i1, ...] = x[first + i0 * s0 + i1 * s1 + ...]
    view_copy:   y[first + i0 * s0 + i1 * s1 + ...] = x[i0, i1, ...]

The view is a storage, the strides s of its axes and its first element; the other is row-major. Of
a view that is read, an axis may repeat its elements (stride 0).
``npusim.kernels.layout.rearrangement`` has the loop nest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from npusim.base.records import replace
from npusim.kernels.layout.rearrangement import Axes, Rearrangement, dense_strides
from npusim.language import ArgumentError, Tensor

Sizes = tuple[int, ...]


def elements_spanned(shape: Sizes, strides: Sizes) -> int:
    """Elements of storage from the first to the last of a view that has any."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def between(shape: Sizes, x: Sizes, y: Sizes) -> Axes:
    """The rearrangement between two views of one ``shape``, with their strides in x and in y."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    axes.sort(key=lambda axis: -y[axis])
    groups: list[list[int]] = []
    for axis in axes:
        if groups and all(
            strides[groups[-1][-1]] == shape[axis] * strides[axis] for strides in (x, y)
        ):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if not groups:
        return Axes((1,), (0,), (1,), (1,))
    # What is repeated comes first, then the slowest axis of x.
    groups.sort(key=lambda group: (x[group[-1]] != 0, -x[group[-1]]))
    last = [group[-1] for group in groups]
    order = sorted(range(len(groups)), key=lambda i: -y[last[i]])
    return Axes(
        tuple(prod(shape[axis] for axis in group) for group in groups),
        tuple(order),
        tuple(x[axis] for axis in last),
        tuple(y[axis] for axis in last),
    )


@dataclass(frozen=True)
class _StridedCopy(Rearrangement):
    """A copy between a view of ``shape`` with these ``strides`` and a tensor without gaps.

    The view begins at element ``first`` of its storage.
    """

    shape: Sizes
    strides: Sizes
    x: Tensor
    y: Tensor
    first: int = 0

    def _require(self, view: Tensor, plain: Tensor) -> None:
        """Raise ``ArgumentError`` unless the view lies in its storage and both have equal size."""
        name = self.name
        if len(self.shape) != len(self.strides) or min(self.strides, default=0) < 0:
            raise ArgumentError(
                f"{name}: strides are {self.strides} of a view of shape {self.shape}; there must "
                "be one for each axis, of at least 0"
            )
        elements = prod(self.shape)
        if not elements or plain.dtype != view.dtype or prod(plain.shape) != elements:
            raise ArgumentError(
                f"{name}: the view has {elements} elements of {view.dtype}, {plain.name} "
                f"{plain.shape} is {plain.dtype}; both need one type, as many elements, and one at "
                "least"
            )
        spanned = self.first + elements_spanned(self.shape, self.strides)
        if self.first < 0 or spanned > prod(view.shape):
            begin = f" from element {self.first} on" if self.first else ""
            raise ArgumentError(
                f"{name}: shape {self.shape} with strides {self.strides}{begin} reaches element "
                f"{spanned - 1} of {view.name}, which has {prod(view.shape)}"
            )

    @property
    def _plain_strides(self) -> Sizes:
        return dense_strides(self.shape, range(len(self.shape)))

    @property
    def tiling_text(self) -> str:
        begin = f", from element {self.first} on" if self.first else ""
        return f"shape {self.shape}, strides {self.strides}{begin}"


@dataclass(frozen=True)
class Contiguous(_StridedCopy):
    """``y`` = the view of ``shape`` in the storage ``x``, without gaps and in row-major order."""

    name: ClassVar[str] = "contiguous"

    def __post_init__(self) -> None:
        self._require(self.x, self.y)

    @property
    def axes(self) -> Axes:
        axes = between(self.shape, self.strides, self._plain_strides)
        return replace(axes, x_first=self.first)


@dataclass(frozen=True)
class ViewCopy(_StridedCopy):
    """The view of ``shape`` in the storage ``y`` = ``x``, which is row-major.

    What lies between the elements of the view stays as it is. Raises ``ArgumentError`` also where
    an axis repeats its elements, which cannot be written in order.
    """

    name: ClassVar[str] = "view_copy"
    library: ClassVar[tuple[str, ...]] = ("ViewCopy",)

    def __post_init__(self) -> None:
        self._require(self.y, self.x)
        sizes = zip(self.shape, self.strides, strict=True)
        if any(size > 1 and not stride for size, stride in sizes):
            raise ArgumentError(
                f"{self.name}: strides are {self.strides}; an axis of stride 0 would be written "
                "several times"
            )

    @property
    def axes(self) -> Axes:
        axes = between(self.shape, self._plain_strides, self.strides)
        return replace(axes, y_first=self.first)
