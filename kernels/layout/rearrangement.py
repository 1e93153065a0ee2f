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
from npusim.problem.work import LAYOUT


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
        """True if x repeats its elements along the last axis of y."""
        return not self.x_strides[self.perm[-1]]

    @property
    def keeps_rows(self) -> bool:
        """True if rows of x are rows of y."""
        last = len(self.sizes) - 1
        return self.perm[-1] == last and self.x_strides[last] == self.y_strides[last] == 1

    def apart(self, size: int) -> bool:
        """True if x has gaps between rows of less than a block, of elements of ``size`` bytes."""
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
        """True if rows of ``size``-byte elements are turned into rows, not all whole blocks."""
        last_read = len(self.sizes) - 1
        last_written = self.perm[-1]
        if last_read == last_written:
            return False
        rows = (self.sizes[last_read], self.sizes[last_written])
        return any(row * size % BLOCK_BYTES for row in rows)


class Walk(Struct, frozen=True):
    """The place of a tile in global memory: ``levels`` of (count, elements apart) around runs."""

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
        extent = tile[axis] * strides[axis]
        if levels and levels[-1][1] == extent:
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
        before = now[:i]
        between = now[i:place]
        behind = now[place:]
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
    rows_stay = axes.keeps_rows and axes.sizes[-1] * size >= BLOCK_BYTES and not turns

    def fits(tile: Sequence[int]) -> bool:
        if rows_stay and rotations(axes, tile):
            return False
        return max(axes.load(tile).size(size), axes.store(tile).size(size)) <= budget

    tile = [1] * len(axes.sizes)
    while True:
        shorter_first = sorted(sides, key=lambda side: side[1](tile).run)
        larger = (longer for order, _ in shorter_first for longer in _grown(axes, order, tile))
        grown = next(filter(fits, larger), None)
        if grown is None:
            return tuple(tile)
        tile = grown


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
    def work_class(self) -> str:
        return LAYOUT

    @property
    @abstractmethod
    def axes(self) -> Axes:
        """The rearrangement of as few axes as possible."""

    def stream(self, device: Device, cores: int) -> Stream:
        axes = self.axes
        e = self.x.dtype.bytes
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
        """The traffic where boxes are turned, which come and leave in many moves."""
        axes = self.axes
        e = self.x.dtype.bytes
        size = prod(axes.sizes) * e
        boxes, loads, stores = np.ones((3, cores), np.int64)
        tile = choose_tile(axes, e, slot, 1, turns=True)
        used = 1
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
        axes = self.axes
        element = self.x.dtype.bytes
        elements = self._elements_of_slot(k)
        loaded = k.buffer("UB", (elements,), self.x.dtype, slots=2, name="as_loaded")
        turner = self._turner(k, elements)
        tile = choose_tile(axes, element, elements * element, cores, turns=self.turns)
        tiles, tasks = self._tasks(tile, cores)
        return Plan(tasks, lambda box: self._emit(k, loaded, turner, tiles[box.extents]))

    @property
    def _turned_type(self) -> DType:
        """The type in which elements are turned."""
        return FP16 if self.x.dtype.bytes == 1 else self.x.dtype

    def _elements_of_slot(self, k: Language) -> int:
        """Elements of a slot: two slots each for what is loaded, turned and stored.

        What is stored has slots of its own if it is narrowed.
        """
        element = self.x.dtype.bytes
        parts = 2 * (element + self._turned_type.bytes)
        if self._turned_type is not self.x.dtype:
            parts *= 2
        elements = k.memory("UB").size_bytes // parts
        if self.axes.ragged(element):  # else the program does not rest on the figure
            elements = min(elements, k.device.vector.odd_tile_bytes // element)
        return elements // BLOCK_BYTES * BLOCK_BYTES

    def _turner(self, k: Language, elements: int) -> _Turner:
        """The buffers in which tiles are turned."""
        turned = self._turned_type
        if turned is self.x.dtype:
            turning = k.buffer("UB", (elements,), turned, slots=2, name="turned")
            return _Turner(k, self.x.dtype, turned, turning, None)
        turning = k.buffer("UB", (elements,), turned, slots=4, name="turned")
        narrowed = k.buffer("UB", (elements,), INT8, slots=2, name="narrowed")
        return _Turner(k, self.x.dtype, turned, turning, narrowed)

    def _emit(
        self, k: Language, loaded: BufferHandle, turner: _Turner, tile: Sequence[int]
    ) -> None:
        """Load the runs of a tile, turn it where its order changes, store."""
        axes = self.axes
        element = self.x.dtype.bytes
        load = axes.load(tile)
        store = axes.store(tile)
        turns = rotations(axes, tile)
        repeats = tile[axes.perm[-1]] if axes.repeats_last else 1
        if not turns and load.rows > 1 and (repeats > 1 or axes.apart(element)):
            turns = [(1, 1, load.elements)]  # a copy that joins the rows
        moved = not turns and repeats == 1
        if moved:
            run = min(load.run, store.run)
            load = load.in_runs_of(run)
            store = store.in_runs_of(run)
        slot = loaded.next()
        for gm, ub in _pieces(self.x, slot, load):
            k.data_move(ub, gm, self.x.dtype)
        if not moved:
            slot = turner.turn(_region(slot, load, element), turns, store, repeats)
        for gm, ub in _pieces(self.y, slot, store):
            k.data_move(gm, ub, self.x.dtype)

    def _tasks(self, tile: tuple[int, ...], cores: int) -> tuple[list[list[int]], Tasks[Box]]:
        """The extents that occur, and boxes of at most ``tile`` in contiguous runs per core."""
        axes = self.axes
        element = self.x.dtype.bytes
        starts, extents = in_pieces(*zip(axes.sizes, tile, strict=True))
        tiles, which = np.unique(np.stack(extents, axis=1), axis=0, return_inverse=True)
        places = np.stack(starts, axis=1)
        x = places @ (np.array(axes.x_strides) * element) + axes.x_first * element
        y = places @ (np.array(axes.y_strides) * element) + axes.y_first * element
        tasks = Tasks(
            in_runs(len(places), cores),
            Box,
            {"extents": which.reshape(-1)},
            {self.x.name: x, self.y.name: y},
        )
        return tiles.tolist(), tasks


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
        k = self.k
        dtype = self.turned
        wide = self.narrowed is not None
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


class _Level(NamedTuple):
    """A ``number`` of neighbours, so many bytes apart in GM and in UB."""

    number: int
    gm: int
    ub: int


def _pieces(tensor: Tensor, slot: Slot, way: Walk) -> Iterator[tuple[GmRegion, SlotRegion]]:
    """The moves of a walk between a tensor and a slot: each takes the longest level as rows."""
    size = tensor.dtype.bytes
    row = way.run * size
    levels = _levels(way, size)
    rows = max(levels, key=lambda level: level.number, default=_Level(1, 0, 0))
    if levels:
        levels.remove(rows)  # the first of the longest
    for index in product(*(range(level.number) for level in levels)):
        gm = sum(i * level.gm for i, level in zip(index, levels, strict=True))
        ub = sum(i * level.ub for i, level in zip(index, levels, strict=True))
        yield (
            tensor.at(gm, row, base=tensor.name, rows=rows.number, pitch=rows.gm),
            slot.at(ub, row, rows=rows.number, pitch=rows.ub),
        )


def _levels(way: Walk, size: int) -> list[_Level]:
    """The levels of a walk, outermost first, of elements of ``size`` bytes."""
    levels: list[_Level] = []
    ub = way.pitch(size)
    for count, apart in reversed(way.levels):
        levels.append(_Level(count, apart * size, ub))
        ub *= count
    return levels[::-1]
