"""Chains over rows of any length, with numbers for the elements of a row.

A vector of UB is loaded and repeated in whole blocks of 32 B, so that the kernel of chains takes
such numbers for rows of a multiple of 8 elements. For other rows these kernels are launched: copies
of each vector for every row, the chain of maps alone, and sums over the rows of what it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from npusim.base.dtypes import FP32
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.kernels.vector.elementwise import Elementwise
from npusim.machine.isa.operands import Tensor
from npusim.networks.rules.values import Operation
from npusim.networks.run import moves

#: Elements of fp32 in a block of UB.
_BLOCK = 8


def _row_elements(one: Operation, tensors: Mapping[str, Tensor]) -> int:
    """Elements of a row of which a chain has numbers; 0 of a chain without."""
    chain = one.chain
    if chain is None or not chain.by_row:
        return 0
    numbers = [*chain.vectors, *(name for name, _ in chain.sums)]
    return prod(tensors[numbers[0]].shape) if numbers else 0


def odd_rows(one: Operation, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a chain has numbers for the elements of rows that are no whole blocks."""
    return _row_elements(one, tensors) % _BLOCK > 0


def launch_odd_rows(call: Call, one: Operation, tensors: Mapping[str, Tensor]) -> None:
    """Launch the kernels of a chain over odd rows; ``tensors`` are plain."""
    chain = one.chain
    assert chain is not None
    width = _row_elements(one, tensors)
    first = (*chain.reads, *chain.writes)[0]
    shape = (prod(tensors[first].shape) // width, width)
    maps = {name: replace(tensors[name], shape=shape) for name in (*chain.reads, *chain.writes)}
    repeats = {name: f"{name}_rows" for name in chain.vectors}
    for name, repeat in repeats.items():
        vector = replace(tensors[name], shape=(1, width))
        repeated = call.workspace(repeat, shape, vector.dtype)
        moves.expand(call, vector, replace(repeated, role="out"))
        maps[repeat] = replace(repeated, role="in")
    summed = {}
    for _, value in chain.sums:
        if value not in maps and value not in summed:
            summed[value] = Tensor(value, shape, FP32, "out")
            call.workspace(value, shape, FP32)
    if chain.steps:
        used = (*chain.reads, *chain.vectors, *(step.result for step in chain.steps))
        names = {name: name for name in (*used, *(vector for vector, _ in chain.sums))}
        kernel = Elementwise(
            called=one.kind.replace(" ", "_"),
            steps=chain.renamed({**names, **repeats}).steps,
            reads=tuple(maps[name] for name in (*chain.reads, *repeats.values())),
            writes=(*(maps[name] for name in chain.writes), *summed.values()),
            saturate=call.device.saturates,
        )
        call.launch_spread(kernel)
    for name, value in chain.sums:
        source = maps[value] if value in maps else summed[value]
        total = replace(tensors[name], shape=(width,), role="out")
        moves.sum_axes(call, replace(source, role="in"), total, (0,))
