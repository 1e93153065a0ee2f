"""Operations that only move values: concatenation and split, padding and crop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from npusim.call.call import Call
from npusim.isa.operands import Tensor
from npusim.kernels.concat import Concat
from npusim.networks.rules.training import Operation, Value
from npusim.workloads import ElementwiseLayer

#: Cores of such operations; of the last two a value is taken apart.
_CORES = ("concat", "pad", "split", "crop")


class Parts(NamedTuple):
    """Values that are ``parts`` of another, of plain ``shape``, side by side along ``axis``.

    With a ``place``, the index where it begins, there is one part. ``alike`` says that all values
    have these sizes themselves, so that blocks of channels hold the same elements.
    """

    whole: str
    shape: tuple[int, ...]
    parts: Mapping[str, tuple[int, ...]]
    axis: int
    place: tuple[int, ...]
    alike: bool

    def in_blocks(self, c0: int) -> bool:
        """Whether each part begins and ends with a block of channels, or with the whole."""
        if len(self.shape) < 3 or not self.alike:
            return False
        channels = [shape[1] for shape in self.parts.values()]
        if self.place:
            ends = [self.place[1], self.place[1] + channels[0]]
        else:
            ends = list(accumulate(channels)) if self.axis == 1 else []
        return all(end % c0 == 0 or end == self.shape[1] for end in ends)

    def launch(self, call: Call, tensors: Mapping[str, Tensor]) -> None:
        """Launch the kernel that moves them, in blocks of channels or plain, as the tensors are."""
        whole, axis, place = tensors[self.whole], self.axis, self.place
        parts = [tensors[name] for name in self.parts]
        if len(whole.shape) == 6:  # (N, D, C1, H, W, C0)
            axis = _in_order(range(len(self.shape)), -1).index(axis)
            if place:
                n, d, c, h, w = _in_order(place, 0)
                place = (n, d, c // whole.shape[-1], h, w, 0)
        else:
            whole = call.view(whole, self.shape)
            parts = [call.view(tensors[name], shape) for name, shape in self.parts.items()]
        call.launch_spread(Concat(tuple(parts), whole, axis, place))


def _in_order(plain: Sequence[int], fill: int) -> tuple[int, ...]:
    """What a map has on its axes (n, c, ...) in the order (n, d, c, h, w)."""
    n, c, *places = plain
    d, h, w = (fill, fill, fill, *places)[-3:]
    return n, d, c, h, w


def parts_of(one: Operation, values: Mapping[str, Value]) -> Parts | None:
    """What an operation joins or takes apart; None of others, and where no kernel does."""
    layer = one.layer
    if one.core not in _CORES or not isinstance(layer, ElementwiseLayer):
        return None
    apart = one.core in _CORES[2:]
    (whole,), names = (one.inputs, one.outputs) if apart else (one.outputs, one.inputs)
    own = {name: values[name].shape for name in names}
    sign, small, large = 1, layer.shape, layer.out
    if layer.kind == "slice":
        sign, small, large = -1, layer.out, layer.shape
    shape = large
    axis, inner = 1, own
    place: tuple[int, ...] = ()
    if one.core in ("concat", "split"):
        axes = [at for at in range(len(shape)) if _side_by_side(own.values(), shape, at)]
        if not axes:
            return None
        axis = axes[0]
    else:
        sides = [sign * side for sides in layer.padding for side in sides]
        place, inner = tuple(sides[::2]), dict.fromkeys(names, small)
        if (
            layer.stride
            or min(sides, default=-1) < 0
            or prod(own[names[0]]) != prod(inner[names[0]])
        ):
            return None
    return Parts(whole, shape, inner, axis, place, (values[whole].shape, own) == (shape, inner))


def _side_by_side(parts: Collection[tuple[int, ...]], whole: tuple[int, ...], axis: int) -> bool:
    """Whether parts of these shapes are all of the whole along an axis."""
    rest = {(len(part), *part[:axis], *part[axis + 1 :]) for part in parts}
    alike = rest == {(len(whole), *whole[:axis], *whole[axis + 1 :])}
    return alike and sum(part[axis] for part in parts) == whole[axis]
