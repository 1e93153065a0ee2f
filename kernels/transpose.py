"""Permute the axes of a tensor in framework layout on the vector cores.

    y[i of perm[0], i of perm[1], ...] = x[i0, i1, ...]

Layouts: both row-major. Axes that stay neighbours are one axis. A tile is a box that takes part
of the last axes of x and of the last axes of y, so that rows are long on both sides.

    for tile of this core:                             # one task, cores take runs of them
        UB <- rows of x, each from 32 B on             # MTE2
        UB <- the tile, axes rotated until y's order   # V; none where rows move as they are
        rows of y <- UB                                # MTE3

The transposing instruction turns 16- and 32-bit elements; those of 8 bits are widened to fp16
before and narrowed after, which is exact. A box fills UB where rows of x and of y are whole blocks
of 32 B. Where they are not and the last axis moves, a box is `vector.odd_tile` of the device:
measured transposes of odd matrices take 13 to 20 cycles of a core for 32 B on a 910B, a start-up
per fractal of 512 B, and a third of that on a 950.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np
from msgspec import Struct

from npusim.kernels.parts.conversion import SMALL_TASK, unit_counts
from npusim.kernels.parts.room import converted
from npusim.kernels.parts.spread import Spread
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    BLOCK_BYTES,
    FP16,
    INT8,
    ArgumentError,
    BufferHandle,
    Device,
    DType,
    GmRegion,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
    round_up,
)


class Axes(Struct, frozen=True):
    """A permutation with neighbours merged: ``sizes`` of x's axes, ``perm`` names them for y."""

    sizes: tuple[int, ...]
    perm: tuple[int, ...]

    def strides(self, order: Sequence[int]) -> dict[int, int]:
        """Elements between neighbours along each axis where the axes lie in ``order``."""
        after = list(order[::-1])
        return {a: prod(self.sizes[b] for b in after[:i]) for i, a in enumerate(after)}

    def ragged(self, size: int) -> bool:
        """Whether rows of elements of ``size`` bytes are turned into rows, not all whole blocks."""
        into, out = len(self.sizes) - 1, self.perm[-1]
        return into != out and any(self.sizes[a] * size % BLOCK_BYTES for a in (into, out))


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


class Walk(Struct, frozen=True):
    """How a tile lies in global memory: ``levels`` of (count, elements apart) around runs."""

    levels: tuple[tuple[int, int], ...]  # outermost first
    run: int

    @property
    def rows(self) -> int:
        """Number of runs."""
        return prod(count for count, _ in self.levels)

    @property
    def moves(self) -> int:
        """Number of moves that bring all runs: each takes the longest level as rows."""
        counts = [count for count, _ in self.levels]
        return prod(counts) // max(counts, default=1)

    def pitch(self, size: int) -> int:
        """Bytes from run to run in UB: whole blocks of 32 B, unless there is only one."""
        row = self.run * size
        return row if self.rows == 1 else round_up(row, BLOCK_BYTES)

    def in_runs_of(self, run: int) -> Walk:
        """The same walk in shorter runs, which divide its own."""
        if run == self.run:
            return self
        return Walk((*self.levels, (self.run // run, run)), run)


def walk(axes: Axes, order: Sequence[int], tile: Sequence[int]) -> Walk:
    """The walk through ``tile`` elements of each axis where the axes lie in ``order``."""
    levels: list[tuple[int, int]] = []
    strides = axes.strides(order)
    for axis in order:
        if tile[axis] == 1:
            continue
        whole = tile[axis] * strides[axis]
        if levels and levels[-1][1] == whole:
            levels[-1] = (levels[-1][0] * tile[axis], strides[axis])
        else:
            levels.append((tile[axis], strides[axis]))
    if levels and levels[-1][1] == 1:
        return Walk(tuple(levels[:-1]), levels[-1][0])
    return Walk(tuple(levels), 1)


def rotations(axes: Axes, tile: Sequence[int]) -> list[tuple[int, int, int]]:
    """(count, rows, columns) of the transposes that bring a tile from x's order to y's."""
    now = [a for a in range(len(tile)) if tile[a] > 1]
    turns = []
    for i, axis in enumerate(a for a in axes.perm if tile[a] > 1):
        at = now.index(axis)
        if at == i:
            continue
        parts = (now[:i], now[i:at], now[at:])
        count, rows, columns = (prod(tile[a] for a in part) for part in parts)
        turns.append((count, rows, columns))
        now = [*parts[0], *parts[2], *parts[1]]
    return turns


def choose_tile(
    axes: Axes, size: int, slot_bytes: int, cores: int, *, turns: bool = False
) -> tuple[int, ...]:
    """Extents of a tile of elements of ``size`` bytes: the shorter run grows while all fits.

    Where the last axis stays last and is a block or more, rows move without being turned, unless
    the kernel ``turns`` these too. Small tensors are cut so that every core has a tile.
    """
    share = ceil_div(prod(axes.sizes) * size, cores)
    budget = min(slot_bytes, max(share // 4, min(share, SMALL_TASK)))
    orders = (tuple(range(len(axes.sizes))), axes.perm)
    kept = axes.perm[-1] == len(axes.sizes) - 1 and axes.sizes[-1] * size >= BLOCK_BYTES
    kept = kept and not turns

    def fits(tile: Sequence[int]) -> bool:
        if kept and rotations(axes, tile):
            return False
        ways = [walk(axes, order, tile) for order in orders]
        return max(way.rows * way.pitch(size) for way in ways) <= budget

    tile = [1] * len(axes.sizes)
    while True:
        shorter_first = sorted(orders, key=lambda order: walk(axes, order, tile).run)
        larger = (grown for order in shorter_first for grown in _grown(axes, order, tile))
        found = next(filter(fits, larger), None)
        if found is None:
            return tuple(tile)
        tile = found


def _grown(axes: Axes, order: Sequence[int], tile: Sequence[int]) -> Iterator[list[int]]:
    """The tile with its run in ``order`` twice as long, if it is not whole yet."""
    axis = next((a for a in reversed(order) if tile[a] < axes.sizes[a]), None)
    if axis is not None:
        larger = list(tile)
        larger[axis] = min(2 * tile[axis], axes.sizes[axis])
        yield larger


class Box(NamedTuple):
    """The place of a tile's extents among those that occur."""

    extents: int


@dataclass(frozen=True)
class Transpose(Spread):
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
        perm, x, y = self.perm, self.x, self.y
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
        """The permutation of as few axes as possible."""
        return merged(self.x.shape, self.perm)

    @property
    def tiling_text(self) -> str:
        return f"axes {self.axes.sizes} by {self.axes.perm}"

    def stream(self, device: Device, cores: int) -> Stream:
        size, e = self.x.size_bytes, self.x.dtype.bytes
        slot = device.memory("UB").size_bytes // (8 if e == 1 else 4)
        if self.axes.ragged(e):
            slot = min(slot, device.vector.odd_tile_bytes)
        if self.turns:
            return self._turned_stream(device, cores, slot)
        return Stream(
            read=size,
            written=size,
            tasks=unit_counts(size, slot, cores),
            vector=(("transpose", size),),
            cold=self.x.role == "in",
        )

    def _turned_stream(self, device: Device, cores: int, slot: int) -> Stream:
        """What it does to its data where boxes are turned, which come and leave in many moves."""
        axes, size, e = self.axes, self.x.size_bytes, self.x.dtype.bytes
        boxes, loads, stores = np.ones((3, cores), np.int64)
        tile, used = choose_tile(axes, e, slot, 1, turns=True), 1
        turns = len(rotations(axes, tile))
        for count in range(1, cores + 1):
            if count > used:  # of some more cores boxes are much the same
                used = min(2 * used, cores)
                tile = choose_tile(axes, e, slot, used, turns=True)
            parts = (ceil_div(n, part) for n, part in zip(axes.sizes, tile, strict=True))
            boxes[count - 1] = prod(parts)
            loads[count - 1] = walk(axes, range(len(tile)), tile).moves
            stores[count - 1] = walk(axes, axes.perm, tile).moves
        return Stream(
            read=size,
            written=size,
            tasks=boxes,
            vector=(("transpose", size),) * turns,
            loads=loads,
            cold=self.x.role == "in",
            stores=stores,
        )

    def plan(self, k: Language, cores: int) -> Plan[Box]:
        dtype, axes = self.x.dtype, self.axes
        e, turned = dtype.bytes, FP16 if dtype.bytes == 1 else dtype
        wide = turned is not dtype
        # Two slots each for what is loaded, turned and stored; the last is separate if narrowed.
        parts = 2 * (e + turned.bytes) * (2 if wide else 1)
        fit = k.memory("UB").size_bytes // parts
        odd = axes.ragged(e)  # else the program does not rest on the figure
        elements = min(fit, k.device.vector.odd_tile_bytes // e if odd else fit)
        elements = elements // BLOCK_BYTES * BLOCK_BYTES
        loaded = k.buffer("UB", (elements,), dtype, slots=2, name="as_loaded")
        turning = k.buffer("UB", (elements,), turned, slots=4 if wide else 2, name="turned")
        narrowed = k.buffer("UB", (elements,), INT8, slots=2, name="narrowed") if wide else None
        turner = _Turner(k, dtype, turned, turning, narrowed)
        tile = choose_tile(axes, e, elements * e, cores, turns=self.turns)
        tiles, tasks = self._tasks(tile, cores)

        def emit(box: Box) -> None:
            tile = tiles[box.extents]
            load, store = walk(axes, range(len(tile)), tile), walk(axes, axes.perm, tile)
            turns = rotations(axes, tile)
            if not turns:
                run = min(load.run, store.run)
                load, store = load.in_runs_of(run), store.in_runs_of(run)
            slot = loaded.next()
            for gm, ub in _pieces(self.x, slot, load):
                k.data_move(ub, gm, dtype)
            if turns:
                slot = turner.turn(_region(slot, load, e), turns, store)
            for gm, ub in _pieces(self.y, slot, store):
                k.data_move(gm, ub, dtype)

        return Plan(tasks, emit)

    def _tasks(self, tile: tuple[int, ...], cores: int) -> tuple[list[list[int]], Tasks[Box]]:
        """The extents that occur, and boxes of at most ``tile`` in contiguous runs per core."""
        axes, e, names = self.axes, self.x.dtype.bytes, range(len(tile))
        starts, extents = in_pieces(*zip(axes.sizes, tile, strict=True))
        found, which = np.unique(np.stack(extents, axis=1), axis=0, return_inverse=True)
        into, out = axes.strides(names), axes.strides(axes.perm)
        places = np.stack(starts, axis=1)
        tasks = Tasks(
            in_runs(len(places), cores),
            Box,
            {"extents": which.reshape(-1)},
            {
                self.x.name: places @ np.array([into[a] * e for a in names]),
                self.y.name: places @ np.array([out[a] * e for a in names]),
            },
        )
        return found.tolist(), tasks


class _Turner(Struct, frozen=True):
    """Turns a tile in UB, as elements of type ``turned``; ``narrowed`` takes 8 bits again."""

    k: Language
    dtype: DType
    turned: DType
    turning: BufferHandle
    narrowed: BufferHandle | None

    def turn(self, region: SlotRegion, turns: list[tuple[int, int, int]], store: Walk) -> Slot:
        """Issue the transposes; returns the slot with the tile in the rows ``store`` wants."""
        k, dtype, wide = self.k, self.turned, self.narrowed is not None
        size = region.size // self.dtype.bytes * dtype.bytes
        region = converted(k, region, (self.dtype, dtype), self.turning if wide else None)
        for i, (count, rows, columns) in enumerate(turns):
            last = i == len(turns) - 1 and not wide
            slot = self.turning.next()
            target = _region(slot, store, dtype.bytes) if last else slot.at(0, size)
            k.vec_transpose(target, region, rows, columns, dtype, count=count)
            region = target
        if self.narrowed is not None:
            slot = self.narrowed.next()
            k.vec_cast(_region(slot, store, 1), region, dtype, self.dtype)
        return slot


def _region(slot: Slot, way: Walk, size: int) -> SlotRegion:
    """All runs of a walk in UB."""
    return slot.at(0, way.run * size, rows=way.rows, pitch=way.pitch(size))


def _pieces(tensor: Tensor, slot: Slot, way: Walk) -> Iterator[tuple[GmRegion, SlotRegion]]:
    """The moves of a walk between a tensor and a slot: each takes the longest level as rows."""
    size = tensor.dtype.bytes
    row, pitch = way.run * size, way.pitch(size)
    inner = [prod(count for count, _ in way.levels[i + 1 :]) for i in range(len(way.levels))]
    levels = [
        (n, apart * size, pitch * after)
        for (n, apart), after in zip(way.levels, inner, strict=True)
    ]
    at = max(range(len(levels)), key=lambda i: levels[i][0], default=None)
    rows, gm_pitch, ub_pitch = (1, 0, 0) if at is None else levels[at]
    others = [level for i, level in enumerate(levels) if i != at]
    for index in product(*(range(n) for n, _, _ in others)):
        gm = sum(i * apart for i, (_, apart, _) in zip(index, others, strict=True))
        ub = sum(i * apart for i, (_, _, apart) in zip(index, others, strict=True))
        yield (
            tensor.at(gm, row, base=tensor.name, rows=rows, pitch=gm_pitch),
            slot.at(ub, row, rows=rows, pitch=ub_pitch),
        )
