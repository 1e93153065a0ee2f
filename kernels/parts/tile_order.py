"""The order of the tiles of a matrix product over the cores: the core and the turn of each.

The result is cut into single-core blocks, and K into parts; blocks follow each other in windows,
are dealt to the cores, and each is walked tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.language import ArgumentError, IntArray, ceil_div, in_runs, round_up


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a product's blocks on the cores; 0 leaves a size to the tile or the matrix.

    A block is ``single_core_m`` x ``single_core_n`` elements of C (0: one tile) over
    ``single_core_k`` of K (0: all of it). Blocks follow each other along M, with ``n_fastest``
    along N, within windows of ``window`` blocks (0: all) of that axis, with ``last_wide`` the last
    of them all that remain; with ``snake`` every other window walks the other axis backwards. Parts
    of K come slowest. ``strided`` deals block i to core i modulo the cores, else each core takes a
    contiguous run. Inside a block tiles follow each
    other along M, with ``n_inner`` along N. ``tail_m`` x ``tail_n`` cuts each tile of a last round
    that does not fill the cores.
    """

    single_core_m: int = 0
    single_core_n: int = 0
    single_core_k: int = 0
    n_fastest: bool = False
    window: int = 0
    last_wide: bool = False
    snake: bool = False
    strided: bool = False
    n_inner: bool = False
    tail_m: int = 1
    tail_n: int = 1

    def check_order(self, *more: str) -> None:
        """Raise ``ArgumentError`` for sizes and ``more`` fields below 0, and for tails of runs."""
        for name in ("single_core_m", "single_core_n", "single_core_k", "window", *more):
            if getattr(self, name) < 0:
                raise ArgumentError(f"tiling {name} is {getattr(self, name)}; it must be >= 0")
        if self.tail_m * self.tail_n > 1 and not self.strided:
            raise ArgumentError(
                f"tiling tail {self.tail_m}x{self.tail_n}: runs of tiles have no last round to "
                "cut; set strided, or leave the tail at 1x1"
            )


#: Fields of those that are tried: how tiles may follow each other over the cores.
ORDERS: tuple[dict[str, Any], ...] = (
    {"n_fastest": False, "window": 0, "snake": False, "strided": False},
    {"strided": True},
    {"n_fastest": True, "window": 4, "snake": True, "strided": True},
)


class Tiles(NamedTuple):
    """One row per tile in the order of its core: its core, first element, extents and part of K."""

    core: IntArray
    m0: IntArray
    n0: IntArray
    k0: IntArray
    m: IntArray
    n: IntArray
    k: IntArray
    part: IntArray

    def where(self, chosen: npt.NDArray[np.bool_]) -> Tiles:
        """Some of the tiles."""
        return Tiles(*(column[chosen] for column in self))


class _Blocks(NamedTuple):
    """For each block its part of K, and its number along M and along N."""

    part: IntArray
    m: IntArray
    n: IntArray


def tiles(
    shape: tuple[int, int, int], base: tuple[int, int], order: Order, cores: int, groups: int = 1
) -> Tiles:
    """The tiles of an (m, k, n) product in ``base`` = (rows, columns), laid over ``cores``.

    Of several ``groups``, products one after another, the rows are counted through all of them.
    """
    m, k, n = shape
    base_m, base_n = base
    block_m = order.single_core_m or base_m
    block_n = order.single_core_n or base_n
    depth = order.single_core_k or k
    parts = ceil_div(k, depth)
    blocks = _blocks(ceil_div(m, block_m), ceil_div(n, block_n), groups * parts, order)
    count = len(blocks.part)
    core = np.arange(count) % cores if order.strided else in_runs(count, cores)
    inner_m, inner_n = _inside(ceil_div(block_m, base_m), ceil_div(block_n, base_n), order)
    block = np.repeat(np.arange(count), len(inner_m))
    group = blocks.part[block] // parts
    part = blocks.part[block] % parts
    m0 = (blocks.m[:, None] * block_m + inner_m * base_m).reshape(-1)
    n0 = (blocks.n[:, None] * block_n + inner_n * base_n).reshape(-1)
    rest_m = np.minimum(m, (blocks.m[block] + 1) * block_m) - m0
    rest_n = np.minimum(n, (blocks.n[block] + 1) * block_n) - n0
    k0 = part * depth
    table = Tiles(
        core[block],
        m0 + group * m,
        n0,
        k0,
        np.minimum(base_m, rest_m),
        np.minimum(base_n, rest_n),
        np.minimum(depth, k - k0),
        part,
    )
    table = table.where((rest_m > 0) & (rest_n > 0))
    if order.tail_m * order.tail_n > 1:
        return _cut_tail(table, order, count, cores)
    return table


def successors(core: IntArray) -> IntArray:
    """The row that follows each row on its core, -1 for none."""
    order = np.argsort(core, kind="stable")
    later = np.full(len(core), -1)
    later[order[:-1]] = np.where(np.diff(core[order]) == 0, order[1:], -1)
    return later


def _blocks(nm: int, nn: int, nk: int, order: Order) -> _Blocks:
    """Every block in order."""
    fast_count, slow_count = (nn, nm) if order.n_fastest else (nm, nn)
    fast = np.tile(np.arange(fast_count), slow_count * nk)
    slow = np.tile(np.repeat(np.arange(slow_count), fast_count), nk)
    part = np.repeat(np.arange(nk), fast_count * slow_count)
    window = fast // (order.window or fast_count)
    if order.last_wide and order.window:
        window = np.minimum(window, max(1, fast_count // order.window) - 1)
    backwards = (window % 2 == 1) & order.snake
    walked = np.lexsort((fast, np.where(backwards, -slow, slow), window, part))
    if order.n_fastest:
        return _Blocks(part[walked], slow[walked], fast[walked])
    return _Blocks(part[walked], fast[walked], slow[walked])


def _inside(nm: int, nn: int, order: Order) -> tuple[IntArray, IntArray]:
    """(index along M, index along N) of a block's tiles in order."""
    if order.n_inner:
        return np.repeat(np.arange(nm), nn), np.tile(np.arange(nn), nm)
    return np.tile(np.arange(nm), nn), np.repeat(np.arange(nn), nm)


def _cut_tail(table: Tiles, order: Order, blocks: int, cores: int) -> Tiles:
    """Tiles of the last, partial round cut into pieces of whole sixteens, dealt like blocks."""
    if len(table.core) != blocks:
        raise ArgumentError(
            f"tiling tail {order.tail_m}x{order.tail_n}: only blocks of one tile are cut; leave "
            "single_core_m and single_core_n at 0, or the tail at 1x1"
        )
    tail = blocks % cores
    if not tail:
        return table
    pieces = order.tail_m * order.tail_n
    head = table.where(np.arange(blocks) < blocks - tail)
    last = Tiles(*(np.repeat(column[blocks - tail :], pieces) for column in table))
    number = np.tile(np.arange(pieces), tail)
    step_m = round_up(ceil_div(last.m, order.tail_m), 16)
    step_n = round_up(ceil_div(last.n, order.tail_n), 16)
    skip_m = number // order.tail_n * step_m
    skip_n = number % order.tail_n * step_n
    cut = last._replace(
        core=np.arange(len(number)) % cores,
        m0=last.m0 + skip_m,
        n0=last.n0 + skip_n,
        m=np.minimum(step_m, last.m - skip_m),
        n=np.minimum(step_n, last.n - skip_n),
    )
    cut = cut.where((cut.m > 0) & (cut.n > 0))
    return Tiles(*(np.concatenate(columns) for columns in zip(head, cut, strict=True)))
