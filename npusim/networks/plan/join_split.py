"""Parts of values that operations join or take apart: concatenation and split, padding and crop."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from typing import NamedTuple

from npusim.networks.rules.values import SLICE, Operation, Value
from npusim.workloads import ElementwiseLayer

#: Cores of such operations.
_CORES = ("concat", "pad", "split", "crop", SLICE)


class Parts(NamedTuple):
    """Values that are ``parts`` of another, of plain ``shape``, side by side along ``axis``.

    Each part is a value and its shape; one value may be several parts. With a ``place``, the index
    where it begins, there is one part, which has every ``step``-th element along each axis.
    ``alike`` says that all values have these sizes themselves, so that blocks of channels hold the
    same elements; ``joins`` that the parts are read, and the whole is written.
    """

    whole: str
    shape: tuple[int, ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    axis: int
    place: tuple[int, ...]
    step: tuple[int, ...]
    alike: bool
    joins: bool

    def in_blocks(self, c0: int) -> bool:
        """Return whether each part begins and ends with a block of channels, or with the whole."""
        if len(self.shape) < 3 or not self.alike or set(self.step) - {1}:
            return False
        channels = [shape[1] for _, shape in self.parts]
        if self.place:
            ends = [self.place[1], self.place[1] + channels[0]]
        else:
            ends = list(accumulate(channels)) if self.axis == 1 else []
        return all(end % c0 == 0 or end == self.shape[1] for end in ends)


def parts_of(operation: Operation, values: Mapping[str, Value]) -> Parts | None:
    """The parts that an operation joins or takes apart; None where no kernel does it."""
    layer = operation.layer
    if operation.core not in _CORES or not isinstance(layer, ElementwiseLayer):
        return None
    joins = operation.core in ("concat", "pad")
    if joins:
        (whole,) = operation.outputs
        names = operation.inputs
    else:
        (whole,) = operation.inputs
        names = operation.outputs
    shapes = [values[name].shape for name in names]
    if operation.core in ("concat", "split"):
        parts = list(zip(names, shapes, strict=True))
        return _side_by_side(whole, values[whole].shape, parts, joins=joins)
    large = layer.out
    small = layer.shape
    sign = 1
    if layer.kind == "slice":
        large = layer.shape
        small = layer.out
        sign = -1
    place = tuple(sign * before for before, _ in layer.padding)
    if min(place, default=-1) < 0 or prod(shapes[0]) != prod(small):
        return None
    alike = (values[whole].shape, shapes[0]) == (large, small)
    step = layer.stride or (1,) * len(large)
    return Parts(whole, large, ((names[0], small),), 1, place, step, alike, joins)


def _side_by_side(
    whole: str, shape: tuple[int, ...], parts: list[tuple[str, tuple[int, ...]]], *, joins: bool
) -> Parts | None:
    """Parts that are all of a value along one of its axes, if there is such an axis."""
    for axis in range(len(shape)):
        rest = {(len(part), *part[:axis], *part[axis + 1 :]) for _, part in parts}
        alike = rest == {(len(shape), *shape[:axis], *shape[axis + 1 :])}
        if alike and sum(part[axis] for _, part in parts) == shape[axis]:
            step = (1,) * len(shape)
            return Parts(whole, shape, tuple(parts), axis, (), step, True, joins)
    return None
