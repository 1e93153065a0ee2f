"""Gradient of a bias: the output gradient summed over everything but its channels.

    db[q] = sum over images n and positions p of dy[n, q, p]

Layouts: dy (N, C, positions...) and db (C) of one float type, or db fp32. Sums are fp32, rounded
once at the end. The order is fixed by the shape and the number of cores: there are no atomic adds.

for job (channel block, part of all images and positions) of this core:
    for item (run of images, or piece of a long row) of the job:      # one task each
        UB dy tile <- GM, as fp32                                     # MTE2, V
        UB acc += tile of every image, element by element             # V
    UB sums <- acc summed along its rows                              # V
    db, or one column of the workspace if there are parts <- sums     # V, MTE3
if there are parts: all cores meet; one sums the rows of the workspace into db
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.hand_over import with_meeting
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import converted, piece
from npusim.language import (
    FP32,
    ArgumentError,
    Device,
    IntArray,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    grid,
    in_pieces,
    in_runs,
    round_up,
)

#: Largest tile in elements: its load has full bandwidth.
TILE = 16 * 1024
#: Elements of a channel below which another part costs more than it saves.
LEAST_PART = 4 * 1024
#: Images in UB begin at multiples of so many elements: whole blocks in any type.
GRAIN = 16


def channel_parts(shape: tuple[int, ...], cores: int) -> int:
    """Into how many parts, summed on different cores, the channels of dy are worth cutting.

    Above 1 the kernel needs a workspace of shape (C, parts) in fp32.
    """
    images, channels = shape[:2]
    return max(1, min(cores // channels, images * prod(shape[2:]) // LEAST_PART))


class Item(NamedTuple):
    """``columns`` positions of ``images`` images and some channels.

    ``width`` is that of the accumulator, also for a short piece. An item without channels is where
    all cores meet; one of them then sums as many parts as it has ``columns``.
    """

    channels: int
    images: int
    columns: int
    width: int
    first: bool
    last: bool


@dataclass(frozen=True)
class BiasGrad(Spread):
    """Sum ``dy`` into ``db``; ``partial`` (C, parts) fp32 is the workspace of cut channels.

    ``saturate`` keeps fp16 results finite (see ``Device.saturates``).
    """

    dy: Tensor
    db: Tensor
    partial: Tensor | None = None
    saturate: bool = False

    name: ClassVar[str] = "bias_grad"
    computes: ClassVar[str] = "bias"

    def __post_init__(self) -> None:
        dy = self.dy
        db = self.db
        partial = self.partial
        if len(dy.shape) < 2 or min(dy.shape) < 1 or dy.dtype.kind != "float":
            raise ArgumentError(
                f"bias_grad: {dy.name} is {dy.dtype} of shape {dy.shape}; it must be floats "
                "(N, C, positions...) with every size at least 1 (clear db where nothing is summed)"
            )
        if db.shape != (self.channels,) or db.dtype not in (dy.dtype, FP32):
            raise ArgumentError(
                f"bias_grad: {db.name} is {db.dtype} of shape {db.shape}; {dy.name} makes it "
                f"{dy.dtype} of shape {(self.channels,)}, or fp32"
            )
        if partial and (partial.shape[:1] != db.shape or partial.dtype != FP32):
            raise ArgumentError(
                f"bias_grad: {partial.name} is {partial.dtype} of shape {partial.shape}; it must "
                f"be fp32 ({self.channels}, parts)"
            )

    @property
    def tiling_text(self) -> str:
        parts = "part" if self.parts == 1 else "parts"
        return f"tile up to {TILE}, {self.parts} {parts} of a channel"

    @property
    def images(self) -> int:
        """Images of dy."""
        return self.dy.shape[0]

    @property
    def channels(self) -> int:
        """Channels of dy."""
        return self.dy.shape[1]

    @property
    def positions(self) -> int:
        """Positions of a channel in an image."""
        return prod(self.dy.shape[2:])

    @property
    def parts(self) -> int:
        """Parts of a channel that the workspace has room for, 1 without it."""
        return self.partial.shape[1] if self.partial else 1

    def stream(self, device: Device, cores: int) -> Stream:
        count = prod(self.dy.shape)
        tasks = np.maximum(np.arange(1, cores + 1), ceil_div(count, TILE))
        wide = 4 * count
        vector = (("add", wide), ("reduce_add", wide // max(1, self.images)))
        return Stream(self.dy.size_bytes, self.db.size_bytes, tasks, vector)

    def plan(self, k: Language, cores: int) -> Plan[Item]:
        nest = _Nest(self, k)
        return Plan(self._tasks(nest.tile, cores), nest.emit)

    # -- who computes what -----------------------------------------------------------------

    def _tasks(self, tile: int, cores: int) -> Tasks[Item]:
        """Items of every job in order; behind them, with parts, the meeting of all cores."""
        channels = self._block(tile, cores)
        items = self._items(tile, channels)
        count = len(items["dy"])
        starts = np.arange(0, self.channels, channels)
        parts = min(self.parts, count)  # others would be left without an item
        jobs = parts * len(starts)
        job, item = grid(np.arange(jobs), np.arange(count))
        in_part = ((item + 1) * parts - 1) // count == job // len(starts)
        job = job[in_part]
        item = item[in_part]
        part = job // len(starts)
        channel = starts[job % len(starts)]
        begins = np.diff(job, prepend=-1) != 0
        columns = {
            "channels": np.minimum(channels, self.channels - channel),
            "images": items["images"][item],
            "columns": items["columns"][item],
            "width": items["width"][item],
            "first": begins,
            "last": np.append(begins[1:], True),
        }
        bases = {
            "dy": (items["dy"][item] + channel * self.positions) * self.dy.dtype.bytes,
            "db": channel * self.db.dtype.bytes,
            "partial": (channel * self.parts + part) * 4,
        }
        tasks = Tasks(in_runs(jobs, cores)[job], Item, columns, bases)
        if self.partial:
            tasks = with_meeting(tasks, cores, last=True)
            tasks.columns["columns"][-cores] = parts  # the first core goes on to sum them
        return tasks

    def _block(self, tile: int, cores: int) -> int:
        """Channels of one job: several only if their whole rows fit a tile."""
        if self.partial or self.positions > tile:
            return 1
        return min(ceil_div(self.channels, cores), tile // self.positions)

    def _items(self, tile: int, channels: int) -> dict[str, IntArray]:
        """The pieces a block of channels is read in: their sizes and place in dy, in elements."""
        share = ceil_div(self.images * self.positions, self.parts)
        piece = min(self.positions, tile, share)
        run = 1
        if piece == self.positions:
            run = max(1, min(tile // round_up(channels * piece, GRAIN), share // piece))
        (image, position), (images, columns) = in_pieces(
            (self.images, run), (self.positions, piece)
        )
        return {
            "images": images,
            "columns": columns,
            "width": np.full(len(image), piece),
            "dy": image * self.channels * self.positions + position,
        }


class _Nest:
    """The program of an item, on the buffers of one core."""

    def __init__(self, kernel: BiasGrad, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        dtype = kernel.dy.dtype
        result = kernel.db.dtype
        gathered = kernel.channels, round_up(kernel.parts, GRAIN)
        tile = self._tile(prod(gathered) * 4 if kernel.partial else 0)
        blocks = min(tile, kernel.channels)
        self.tile = tile
        self.dy = k.buffer("UB", (tile,), dtype, slots=2, name="dy_ub")
        self.acc = k.buffer("UB", (tile,), FP32, name="acc_ub")
        self.sums = k.buffer("UB", (blocks,), FP32, name="sum_ub")
        self.wide = None
        self.db = None
        self.parts = None
        if dtype != FP32:
            self.wide = k.buffer("UB", (tile,), FP32, name="fp32_ub")
        if result is not FP32:
            self.db = k.buffer("UB", (blocks,), result, name="db_ub")
        if kernel.partial:
            self.parts = k.buffer("UB", gathered, FP32, name="parts_ub")

    def _tile(self, gathered: int) -> int:
        """Elements of the largest tile beside so many bytes of parts."""
        dtype = self.kernel.dy.dtype
        # Two tiles, one as fp32, the accumulator, and two sums and a result per channel.
        element = 2 * dtype.bytes + 4 + 8
        if dtype != FP32:
            element += 4
        return piece(self.k, self.kernel.name, TILE, element, multiple=16, besides=gathered + 1024)

    def emit(self, u: Item) -> None:
        """Sum a piece into the accumulator; at the end its rows; or meet and gather."""
        k = self.k
        if not u.channels:
            k.core_barrier()
            if u.columns:
                self._gather(u.columns)
            return
        acc = self.acc.next() if u.first else self.acc.last()
        totals = acc.at(0, u.channels * u.width * 4)
        if u.first:
            k.vec_dup(totals, 0.0, FP32)
        self._accumulate(u, acc)
        if not u.last:
            return
        sums = self.sums.next()
        k.vec_reduce("add", sums, totals, u.channels, u.width, FP32)
        if self.kernel.partial:
            row = sums.at(0, u.channels * 4)
            k.data_move(self.kernel.partial.at(0, 4, base="partial"), row, FP32)
        else:
            self._store(sums, u.channels)

    def _accumulate(self, u: Item, acc: Slot) -> None:
        """Add the images of a piece."""
        k = self.k
        tile = self._load(u)
        size = u.channels * u.columns
        apart = round_up(size, GRAIN) * 4
        for image in range(u.images):
            target = acc.at(0, size * 4)
            k.vec_binary("add", target, target, tile.at(image * apart, size * 4), FP32)

    def _load(self, u: Item) -> Slot:
        """The item's piece of dy as fp32, image after image."""
        dy = self.kernel.dy
        element = dy.dtype.bytes
        size = u.channels * u.columns * element
        apart = round_up(u.channels * u.columns, GRAIN) * element
        tile = self.dy.next()
        pitch = prod(dy.shape[1:]) * element
        source = dy.at(0, size, base="dy", rows=u.images, pitch=pitch)
        self.k.data_move(tile.at(0, size, rows=u.images, pitch=apart), source, dy.dtype)
        if self.wide is None:
            return tile
        wide = self.wide.next()
        self.k.vec_cast(wide, tile.at(0, (u.images - 1) * apart + size), dy.dtype, FP32)
        return wide

    def _store(self, sums: Slot, channels: int) -> None:
        """Round the sums once and write them to db."""
        db = self.kernel.db
        totals = sums.at(0, channels * FP32.bytes)
        saturate = self.kernel.saturate
        result = converted(self.k, totals, FP32, db.dtype, self.db, saturate=saturate)
        self.k.data_move(db.at(0, result.size, base="db"), result, db.dtype)

    def _gather(self, parts: int) -> None:
        """Sum the parts of every channel in order and write db."""
        assert self.kernel.partial is not None
        assert self.parts is not None
        channels = self.kernel.channels
        pitch = self.kernel.parts * 4
        apart = round_up(parts, GRAIN) * 4
        rows = self.parts.next().at(0, parts * 4, rows=channels, pitch=apart)
        sums = self.sums.next()
        self.k.data_move(
            rows, self.kernel.partial.at(0, parts * 4, rows=channels, pitch=pitch), FP32
        )
        self.k.vec_reduce("add", sums, rows, channels, parts, FP32)
        self._store(sums, channels)
