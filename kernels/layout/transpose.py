"""Permute the axes of a tensor in framework layout on the vector cores.

    y[i of perm[0], i of perm[1], ...] = x[i0, i1, ...]

Layouts: both row-major. ``npusim.kernels.layout.rearrangement`` has the loop nest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from npusim.kernels.layout.rearrangement import Axes, Rearrangement
from npusim.language import ArgumentError, Tensor


def merged(shape: tuple[int, ...], perm: tuple[int, ...]) -> Axes:
    """The same permutation of as few axes as possible, at least one."""
    groups: list[list[int]] = []
    for axis in (a for a in perm if shape[a] > 1):
        between = range(groups[-1][-1] + 1, axis) if groups else range(0)
        if groups and groups[-1][-1] < axis and all(shape[b] == 1 for b in between):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    ordered = sorted(groups) or [[0]]
    sizes = tuple(prod(shape[a] for a in group) for group in ordered)
    return Axes(sizes, tuple(ordered.index(group) for group in groups) or (0,))


@dataclass(frozen=True)
class Transpose(Rearrangement):
    """``y`` = ``x`` with its axes in the order ``perm``, as of ``numpy.transpose``.

    With ``turns`` elements of tiles are turned also where rows of whole blocks could move as they
    are. Of rows of 32 B that takes half to a seventh of the time, of rows of 256 B up to twice as
    long.
    """

    perm: tuple[int, ...]
    x: Tensor
    y: Tensor
    turns: bool = False

    name: ClassVar[str] = "transpose"
    library: ClassVar[tuple[str, ...]] = ("Transpose",)

    def __post_init__(self) -> None:
        perm = self.perm
        x = self.x
        y = self.y
        if sorted(perm) != list(range(len(x.shape))) or not perm:
            raise ArgumentError(
                f"transpose: perm is {perm}; it must name each of the {len(x.shape)} axes of "
                f"{x.name} {x.shape} once"
            )
        want = tuple(x.shape[a] for a in perm)
        if y.shape != want or y.dtype != x.dtype or not x.size_bytes:
            raise ArgumentError(
                f"transpose: {x.name} {x.shape} {x.dtype} by {perm} gives {want}, not {y.name} "
                f"{y.shape} {y.dtype}; both need one type and at least one element"
            )

    @property
    def axes(self) -> Axes:
        return merged(self.x.shape, self.perm)

    @property
    def tiling_text(self) -> str:
        return f"axes {self.axes.sizes} by {self.axes.perm}"
