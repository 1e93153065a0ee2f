"""Kernels that join values or take them apart: concatenation and split, padding and crop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npusim.call.call import Call
from npusim.kernels.layout.concat import Concat
from npusim.machine.isa.operands import Tensor
from npusim.networks.plan.join_split import Parts
from npusim.networks.run import moves


def launch(call: Call, split: Parts, tensors: Mapping[str, Tensor]) -> None:
    """Launch the kernel that moves the parts, in blocks or plain, as the tensors are."""
    whole = tensors[split.whole]
    if len(whole.shape) == 6:
        _launch_blocks(call, split, whole, [tensors[name] for name, _ in split.parts])
        return
    whole = call.view(whole, split.shape)
    parts = [call.view(tensors[name], shape) for name, shape in split.parts]
    if split.place and split.joins:
        moves.uncrop(call, parts[0], whole, split.place, split.step)
    elif split.place:
        moves.crop(call, whole, parts[0], split.place, split.step)
    elif split.joins:
        moves.join(call, parts, whole, split.axis)
    else:
        moves.split(call, whole, parts, split.axis)


def _launch_blocks(call: Call, split: Parts, whole: Tensor, parts: Sequence[Tensor]) -> None:
    """Launch the kernel that moves whole blocks of channels, (N, D, C1, H, W, C0)."""
    axis = _in_order(range(len(split.shape)), -1).index(split.axis)
    place = split.place
    if place:
        n, d, c, h, w = _in_order(place, 0)
        place = (n, d, c // whole.shape[-1], h, w, 0)
    call.launch_spread(Concat(tuple(parts), whole, axis, place))


def _in_order(plain: Sequence[int], fill: int) -> tuple[int, ...]:
    """Items of the axes (n, c, ...) of a map, put in the order (n, d, c, h, w)."""
    n, c, *places = plain
    d, h, w = (fill, fill, fill, *places)[-3:]
    return n, d, c, h, w
