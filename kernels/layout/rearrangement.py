"""Rearrangements of tensors on the vector cores: the same elements at other places.

Both tensors are seen as boxes of the same axes, along each of which neighbours lie so many elements
apart, in x and in y. Axes that stay neighbours on both sides are one axis. A tile is a box that
takes part of the last axes of x and of the last axes of y, so that rows are long on both sides.

    for tile of this core:                             # one task, cores take runs of them
        UB <- rows of x, each from 32 B on             # MTE2
        UB <- the tile, axes rotated until y's order   # V; none where rows move as they are
        UB <- each element as often as x repeats it    # V; along y's last axis
        rows of y <- UB                                # MTE3

The transposing instruction turns 16- and 32-bit elements; those of 8 bits are widened to fp16
before and narrowed after, which is exact. A box fills UB where rows of x and of y are whole blocks
of 32 B. Where they are not and the last axis moves, a box is `vector.odd_tile` of the device:
measured transposes of odd matrices take 13 to 20 cycles of a core for 32 B on a 910B, a start-up
per fractal of 512 B, and a third of that on a 950.

An axis along which x repeats its elements (0 apart) is no part of what is loaded: where it is the
last one of y, the transposing instruction repeats what is in UB, elsewhere each of its positions is
a tile of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.layout.conversion import SMALL_TASK, unit_counts
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import converted
from npusim.language import (
    BLOCK_BYTES,
    FP16,
    INT8,
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


def dense_strides(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours along each axis where axes in this ``order`` have no gaps."""
    strides = [0] * len(sizes)
    apart = 1
    for axis in reversed(order):
        strides[axis] = apart
        apart *= sizes[axis]
    return tuple(strides)


class Axes(Struct, frozen=True):
    """A rearrangement with neighbours merged.

    ``sizes`` are those of x's axes, slowest first; ``perm`` names them in the order of y. ``x`` and
    ``y`` are the elements between neighbours along each axis, None in a tensor without gaps. Axes
    along which x repeats its elements have 0 in ``x``; they come first. ``x_first`` and ``y_first``
    are the elements before the first one on each side.
    """

    sizes: tuple[int, ...]
    perm: tuple[int, ...]
    x: tuple[int, ...] | None = None
    y: tuple[int, ...] | None = None
    x_first: int = 0
    y_first: int = 0

    @property
    def order(self) -> tuple[int, ...]:
        """The axes in the order of x."""
        return tuple(range(len(self.sizes)))

    @property
    def x_strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis in x."""
        return self.x or dense_strides(self.sizes, self.order)

    @property
    def y_strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis in y."""
        return self.y or dense_strides(self.sizes, self.perm)

    @property
    def read(self) -> tuple[int, ...]:
        """The axes along which elements of x differ, in the order of x."""
        return tuple(axis for axis in self.order if self.x_strides[axis])

    @property
    def written(self) -> tuple[int, ...]:
        """The axes of a tile of y: all that are read, and a last one that is repeated."""
        last = self.perm[-1]
        return tuple(axis for axis in self.perm if axis == last or self.x_strides[axis])

    @property
    def repeats_last(self) -> bool:
        """Whether x repeats its elements along the last axis of y."""
        return not self.x_strides[self.perm[-1]]

    @property
    def keeps_rows(self) -> bool:
        """Whether rows of x are rows of y."""
        last = len(self.sizes) - 1
        return self.perm[-1] == last and self.x_strides[last] == self.y_strides[last] == 1

    def apart(self, size: int) -> bool:
        """Whether x has gaps between rows of less than a block, of elements of ``size`` bytes."""
        if self.x is None:
            return False
        last = len(self.sizes) - 1
        row = self.sizes[last] if self.x[last] == 1 else 1
        return row * size < BLOCK_BYTES

    def load(self, tile: Sequence[int]) -> Walk:
        """The walk through what is loaded of x for a tile of so many elements of each axis."""
        return walk(self.x_strides, self.read, tile)

    def store(self, tile: Sequence[int]) -> Walk:
        """The walk through a tile of y."""
        return walk(self.y_strides, self.written, tile)

    def ragged(self, size: int) -> bool:
        """Whether rows of elements of ``size`` bytes are turned into rows, not all whole blocks."""
        into, out = len(self.sizes) - 1, self.perm[-1]
        return into != out and any(self.sizes[a] * size % BLOCK_BYTES for a in (into, out))


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

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.run

    def pitch(self, size: int) -> int:
        """Bytes from run to run in UB: whole blocks of 32 B, unless there is only one."""
        row = self.run * size
        return row if self.rows == 1 else round_up(row, BLOCK_BYTES)

    def size(self, size: int) -> int:
        """Bytes that the runs take in UB, of elements of ``size`` bytes."""
        return self.rows * self.pitch(size)

    def in_runs_of(self, run: int) -> Walk:
        """The same walk in shorter runs, which divide its own."""
        if run == self.run:
            return self
        return Walk((*self.levels, (self.run // run, run)), run)


def walk(strides: Sequence[int], order: Sequence[int], tile: Sequence[int]) -> Walk:
    """The walk through ``tile`` elements of each axis of ``order``, its neighbours so far apart."""
    levels: list[tuple[int, int]] = []
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
    """(count, rows, columns) of the transposes that bring a loaded tile into y's order."""
    now = [axis for axis in axes.read if tile[axis] > 1]
    wanted = [axis for axis in axes.perm if axis in now]
    turns = []
    for i, axis in enumerate(wanted):
        place = now.index(axis)
        if place == i:
            continue
        before, between, behind = now[:i], now[i:place], now[place:]
        count, rows, columns = (prod(tile[a] for a in part) for part in (before, between, behind))
        turns.append((count, rows, columns))
        now = [*before, *behind, *between]
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
    sides = ((axes.read, axes.load), (axes.written, axes.store))
    kept = axes.keeps_rows and axes.sizes[-1] * size >= BLOCK_BYTES and not turns

    def fits(tile: Sequence[int]) -> bool:
        if kept and rotations(axes, tile):
            return False
        return max(axes.load(tile).size(size), axes.store(tile).size(size)) <= budget

    tile = [1] * len(axes.sizes)
    while True:
        shorter_first = sorted(sides, key=lambda side: side[1](tile).run)
        larger = (grown for order, _ in shorter_first for grown in _grown(axes, order, tile))
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


class Rearrangement(Spread):
    """A kernel that puts the elements of ``x`` at other places of ``y``, which are its fields.

    One that ``turns`` turns tiles in UB also where rows of whole blocks could move as they are.
    """

    x: Tensor
    y: Tensor
    turns: bool = False

    @property
    @abstractmethod
    def axes(self) -> Axes:
        """The rearrangement of as few axes as possible."""

    def stream(self, device: Device, cores: int) -> Stream:
        axes, e = self.axes, self.x.dtype.bytes
        size = prod(axes.sizes) * e
        slot = device.memory("UB").size_bytes // (8 if e == 1 else 4)
        if axes.ragged(e):
            slot = min(slot, device.vector.odd_tile_bytes)
        if self.turns:
            return self._turned_stream(device, cores, slot)
        return Stream(
            read=prod(axes.sizes[axis] for axis in axes.read) * e,
            written=size,
            tasks=unit_counts(size, slot, cores),
            vector=(("transpose", size),),
            cold=self.x.role == "in",
        )

    def _turned_stream(self, device: Device, cores: int, slot: int) -> Stream:
        """What it does to its data where boxes are turned, which come and leave in many moves."""
        axes, e = self.axes, self.x.dtype.bytes
        size = prod(axes.sizes) * e
        boxes, loads, stores = np.ones((3, cores), np.int64)
        tile, used = choose_tile(axes, e, slot, 1, turns=True), 1
        turns = len(rotations(axes, tile))
        for count in range(1, cores + 1):
            if count > used:  # of some more cores boxes are much the same
                used = min(2 * used, cores)
                tile = choose_tile(axes, e, slot, used, turns=True)
            parts = (ceil_div(n, part) for n, part in zip(axes.sizes, tile, strict=True))
            boxes[count - 1] = prod(parts)
            loads[count - 1] = axes.load(tile).moves
            stores[count - 1] = axes.store(tile).moves
        return Stream(
            read=prod(axes.sizes[axis] for axis in axes.read) * e,
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
            load, store = axes.load(tile), axes.store(tile)
            turns = rotations(axes, tile)
            repeats = tile[axes.perm[-1]] if axes.repeats_last else 1
            if not turns and load.rows > 1 and (repeats > 1 or axes.apart(e)):
                turns = [(1, 1, load.elements)]  # a copy that joins the rows
            moved = not turns and repeats == 1
            if moved:
                run = min(load.run, store.run)
                load, store = load.in_runs_of(run), store.in_runs_of(run)
            slot = loaded.next()
            for gm, ub in _pieces(self.x, slot, load):
                k.data_move(ub, gm, dtype)
            if not moved:
                slot = turner.turn(_region(slot, load, e), turns, store, repeats)
            for gm, ub in _pieces(self.y, slot, store):
                k.data_move(gm, ub, dtype)

        return Plan(tasks, emit)

    def _tasks(self, tile: tuple[int, ...], cores: int) -> tuple[list[list[int]], Tasks[Box]]:
        """The extents that occur, and boxes of at most ``tile`` in contiguous runs per core."""
        axes, e = self.axes, self.x.dtype.bytes
        starts, extents = in_pieces(*zip(axes.sizes, tile, strict=True))
        found, which = np.unique(np.stack(extents, axis=1), axis=0, return_inverse=True)
        places = np.stack(starts, axis=1)
        tasks = Tasks(
            in_runs(len(places), cores),
            Box,
            {"extents": which.reshape(-1)},
            {
                self.x.name: places @ (np.array(axes.x_strides) * e) + axes.x_first * e,
                self.y.name: places @ (np.array(axes.y_strides) * e) + axes.y_first * e,
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

    def turn(
        self,
        region: SlotRegion,
        turns: list[tuple[int, int, int]],
        store: Walk,
        repeats: int,
    ) -> Slot:
        """Issue the transposes, then repeat each element; returns the slot with rows to store."""
        k, dtype, wide = self.k, self.turned, self.narrowed is not None
        elements = region.size // self.dtype.bytes
        size = elements * dtype.bytes
        region = converted(k, region, self.dtype, dtype, self.turning if wide else None)
        steps = list(turns)
        if repeats > 1:
            steps.append((1, repeats, elements))
        for i, (count, rows, columns) in enumerate(steps):
            slot = self.turning.next()
            last = i == len(steps) - 1
            if last and repeats > 1:  # rows of pitch 0 are the same row again
                region = region.slot.at(0, size, rows=repeats)
                size *= repeats
            padded = last and not wide
            target = _region(slot, store, dtype.bytes) if padded else slot.at(0, size)
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
