"""The kernel of a chain of element-wise steps, on values as they lie in memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.tilings.words import is_library
from npusim.kernels.parts.ub_room import library_step
from npusim.kernels.vector.elementwise import TILE, Elementwise
from npusim.machine.isa.operands import Tensor
from npusim.networks.rules.table import Chain
from npusim.networks.rules.values import Operation

#: Most elements of a row that share vectors in UB.
WIDEST = 2048


def elementwise(operation: Operation, tensors: Mapping[str, Tensor], call: Call) -> Elementwise:
    """The kernel of a chain; with steps of the library's size where it is asked for and known."""
    chain = operation.chain
    assert chain is not None
    blocked = bool(chain.vectors or chain.sums) and not chain.by_row

    few = [*chain.vectors, *(name for name, _ in chain.sums)]
    each = prod(tensors[few[0]].shape) if chain.rows else 0

    def maps(values: tuple[str, ...]) -> tuple[Tensor, ...]:
        if each:
            return tuple(_in_rows(tensors[name], each) for name in values)
        return tuple(_as_map(tensors[name], blocked=blocked) for name in values)

    return Elementwise(
        called=operation.kind.replace(" ", "_"),
        steps=chain.steps,
        reads=maps(chain.reads),
        writes=maps(chain.writes),
        vectors=tuple(_flat(tensors[name]) for name in chain.vectors),
        sums=tuple(_flat(replace(tensors[name], role="inout")) for name, _ in chain.sums),
        summed=tuple(value for _, value in chain.sums),
        saturate=call.device.saturates,
        tile=_tile(chain, call),
    )


def _tile(chain: Chain, call: Call) -> int:
    """Most elements of a tile: our own choice, or that of the library's schedule."""
    device = call.device
    ruled = device.library_rules and is_library(call.options.tiling, Elementwise.name)
    if not (ruled and chain.library_width):
        return TILE
    return library_step(device.memory("UB").size_bytes, chain.library_width)


def _flat(tensor: Tensor) -> Tensor:
    """All of a tensor on one axis."""
    return replace(tensor, shape=(prod(tensor.shape),))


def _in_rows(tensor: Tensor, each: int) -> Tensor:
    """A plain tensor in rows of ``each`` elements, of which long ones are cut into equal blocks."""
    rows = prod(tensor.shape) // each
    c0 = max(size for size in range(8, min(each, WIDEST) + 1, 8) if each % size == 0)
    return replace(tensor, shape=(1, 1, rows, each) if c0 == each else (rows, each // c0, 1, c0))


def _as_map(tensor: Tensor, *, blocked: bool) -> Tensor:
    """A tensor as the kernel of chains takes it: (images, C1, positions, C0), or flat."""
    if not blocked or len(tensor.shape) == 1:
        return _flat(tensor)
    n, d, c1, h, w, c0 = tensor.shape
    return replace(tensor, shape=(n * d, c1, h * w, c0))
