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
from npusim.networks.rules.table import Chain
from npusim.networks.rules.values import Operation
from npusim.networks.run import moves

#: Elements of fp32 in a block of UB.
_BLOCK = 8


def _row_elements(operation: Operation, tensors: Mapping[str, Tensor]) -> int:
    """Elements of a row of which a chain has numbers; 0 of a chain without."""
    chain = operation.chain
    if chain is None or not chain.by_row:
        return 0
    numbers = [*chain.vectors, *(name for name, _ in chain.sums)]
    return prod(tensors[numbers[0]].shape) if numbers else 0


def odd_rows(operation: Operation, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a chain has numbers for the elements of rows that are no whole blocks."""
    return _row_elements(operation, tensors) % _BLOCK > 0


def launch_odd_rows(call: Call, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
    """Launch the kernels of a chain over odd rows; ``tensors`` are plain."""
    chain = operation.chain
    assert chain is not None
    width = _row_elements(operation, tensors)
    outside = (*chain.reads, *chain.writes)
    shape = (prod(tensors[outside[0]].shape) // width, width)
    maps = {name: replace(tensors[name], shape=shape) for name in outside}
    repeats = {
        name: _repeated(call, tensors[name], f"{name}_rows", shape) for name in chain.vectors
    }
    summed = {}
    for _, value in chain.sums:
        if value not in maps and value not in summed:
            summed[value] = Tensor(value, shape, FP32, "out")
            call.workspace(value, shape, FP32)
    if chain.steps:
        kernel = Elementwise(
            called=operation.kind.replace(" ", "_"),
            steps=_renamed(chain, repeats).steps,
            reads=(*(maps[name] for name in chain.reads), *repeats.values()),
            writes=(*(maps[name] for name in chain.writes), *summed.values()),
            saturate=call.device.saturates,
        )
        call.launch_spread(kernel)
    for name, value in chain.sums:
        source = maps[value] if value in maps else summed[value]
        total = replace(tensors[name], shape=(width,), role="out")
        moves.sum_axes(call, replace(source, role="in"), total, (0,))


def _repeated(call: Call, vector: Tensor, name: str, shape: tuple[int, int]) -> Tensor:
    """Launch copies of a vector for every row of a map of this (rows, width); returns them."""
    repeated = call.workspace(name, shape, vector.dtype)
    row = replace(vector, shape=(1, shape[1]))
    moves.expand(call, row, replace(repeated, role="out"))
    return replace(repeated, role="in")


def _renamed(chain: Chain, repeats: Mapping[str, Tensor]) -> Chain:
    """The chain with the ``repeats`` of vectors in their place, all other values as they are."""
    results = (step.result for step in chain.steps)
    sums = (vector for vector, _ in chain.sums)
    names = {name: name for name in (*chain.reads, *chain.vectors, *results, *sums)}
    return chain.renamed(names | {name: repeated.name for name, repeated in repeats.items()})
