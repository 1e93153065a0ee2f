"""Gradient of a bias: the output gradient summed over everything but its channels.

    db[q] = sum over images n and positions p of dy[n, q, p]

Layouts: dy (N, C, positions...) and db (C) of one float type. Sums are fp32, rounded once at the
end. The order is fixed by the shape and the number of cores: there are no atomic adds.

for job (channel block, part of all images and positions) of this core:
    for item (run of images, or piece of a long row) of the job:      # one *unit* each
        UB dy tile <- GM, as fp32                                     # MTE2, V
        UB acc += tile of every image, element by element             # V
    UB sums <- acc summed along its rows                              # V
    db, or one column of the workspace if there are parts <- sums     # V, MTE3
if there are parts: all cores meet; one sums the rows of the workspace into db
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from npusim.dtypes import FP32
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import Slot, Tensor
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

IntArray = npt.NDArray[np.int64]

#: Largest tile in elements: its load has full bandwidth.
TILE = 16 * 1024
#: Elements of a channel below which another part costs more than it saves.
LEAST_PART = 4 * 1024
#: What the cores do after their sums: nothing, meet, or meet and then sum the parts.
SUM, MEET, GATHER = range(3)


def channel_parts(shape: tuple[int, ...], cores: int) -> int:
    """Into how many parts, summed on different cores, the channels of dy are worth cutting.

    Above 1 the kernel needs a workspace of shape (C, parts) in fp32.
    """
    images, channels = shape[:2]
    return max(1, min(cores // channels, images * prod(shape[2:]) // LEAST_PART))


class BiasGrad(Kernel):
    """Sum ``dy`` into ``db``; ``partial`` (C, parts) fp32 is the workspace of cut channels.

    ``saturate`` keeps fp16 results finite (see ``Device.saturates``).
    """

    name: ClassVar[str] = "bias_grad"
    role: ClassVar[str] = "vector"

    def __init__(
        self, dy: Tensor, db: Tensor, partial: Tensor | None = None, *, saturate: bool = False
    ) -> None:
        if len(dy.shape) < 2 or min(dy.shape) < 1 or dy.dtype.kind != "float":
            raise ArgumentError(
                f"bias_grad: {dy.name} is {dy.dtype} of shape {dy.shape}; it must be floats "
                "(N, C, positions...) with every size at least 1 (clear db where nothing is summed)"
            )
        self.images, self.channels = dy.shape[:2]
        if db.shape != (self.channels,) or db.dtype != dy.dtype:
            raise ArgumentError(
                f"bias_grad: {db.name} is {db.dtype} of shape {db.shape}; {dy.name} makes it "
                f"{dy.dtype} of shape {(self.channels,)}"
            )
        if partial and (partial.shape[:1] != db.shape or partial.dtype != FP32):
            raise ArgumentError(
                f"bias_grad: {partial.name} is {partial.dtype} of shape {partial.shape}; it must "
                f"be fp32 ({self.channels}, parts)"
            )
        self.dy, self.db, self.partial, self.saturate = dy, db, partial, saturate
        self.positions = prod(dy.shape[2:])
        self.parts = partial.shape[1] if partial else 1
        self.tiling_text = f"tile up to {TILE}, {self.parts} parts of a channel"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.dy, self.db, *([self.partial] if self.partial else []))

    # -- the unit table --------------------------------------------------------------------

    def units(self, cores: int) -> Units:
        """Items of every job in order; behind them, with parts, the meeting of all cores."""
        channels = self._block(cores)
        items = self._items(channels)
        parts = min(self.parts, len(items["dy"]))  # others would be left without an item
        jobs = [(c, part) for part in range(parts) for c in range(0, self.channels, channels)]
        tables = [
            self._job(i * min(cores, len(jobs)) // len(jobs), c, channels, (part, parts), items)
            for i, (c, part) in enumerate(jobs)
        ]
        if self.partial:
            tables.append(_meeting(cores, parts))
        table = {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}
        core = table.pop("core")
        return Units(core, table, {name: table.pop(name) for name in ("dy", "db", "partial")})

    def _block(self, cores: int) -> int:
        """Channels of one job: several only if their whole rows fit a tile."""
        if self.partial or self.positions > self.tile:
            return 1
        return min(ceil_div(self.channels, cores), self.tile // self.positions)

    def _items(self, channels: int) -> dict[str, IntArray]:
        """The pieces a block of channels is read in: their sizes and place in dy, in elements."""
        share = ceil_div(self.images * self.positions, self.parts)
        piece = min(self.positions, self.tile, share)
        run = 1
        if piece == self.positions:
            run = max(1, min(self.tile // (channels * piece), share // piece))
        grid = np.meshgrid(
            np.arange(0, self.images, run), np.arange(0, self.positions, piece), indexing="ij"
        )
        image, position = (axis.reshape(-1).astype(np.int64) for axis in grid)
        return {
            "images": np.minimum(run, self.images - image),
            "columns": np.minimum(piece, self.positions - position),
            "width": np.full(len(image), piece),  # of the accumulator, also for a short piece
            "dy": image * self.channels * self.positions + position,
        }

    def _job(
        self,
        core: int,
        channel: int,
        channels: int,
        part: tuple[int, int],
        items: dict[str, IntArray],
    ) -> dict[str, IntArray]:
        """The units of one job: share ``part`` = (i, of how many) of a channel block's items."""
        (i, parts), total, e = part, len(items["dy"]), self.dy.dtype.bytes
        own = {
            name: column[total * i // parts : total * (i + 1) // parts]
            for name, column in items.items()
        }
        count = len(own["dy"])
        same = {
            "core": core,
            "stage": SUM,
            "channels": min(channels, self.channels - channel),
            "db": channel * e,
            "partial": (channel * self.parts + i) * 4,
        }
        return {
            **{name: np.full(count, value) for name, value in same.items()},
            **own,
            "first": (np.arange(count) == 0).astype(np.int64),
            "last": (np.arange(count) == count - 1).astype(np.int64),
            "dy": (own["dy"] + channel * self.positions) * e,
        }

    # -- the program -----------------------------------------------------------------------

    def buffers(self, k: Language) -> None:
        kind, wide = self.dy.dtype, 4 if self.dy.dtype != FP32 else 0
        gather = self.channels * self.parts * 4 if self.partial else 0
        # Two tiles, one as fp32, the accumulator, and a sum and a result per channel.
        element = 2 * kind.bytes + wide + 4 + 8
        free = k.device.memories["UB"].size_bytes - gather - 1024
        self.tile = max(16, min(TILE, free // element // 16 * 16))
        self.dy_ub = k.buffer("UB", (self.tile,), kind, slots=2, name="dy_ub")
        self.acc_ub = k.buffer("UB", (self.tile,), FP32, name="acc_ub")
        blocks = min(self.tile, self.channels)
        self.sum_ub = k.buffer("UB", (blocks,), FP32, name="sum_ub")
        if wide:
            self.wide_ub = k.buffer("UB", (self.tile,), FP32, name="fp32_ub")
            self.db_ub = k.buffer("UB", (blocks,), kind, name="db_ub")
        if self.partial:
            self.parts_ub = k.buffer("UB", (self.channels, self.parts), FP32, name="parts_ub")

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        if unit.stage != SUM:
            k.core_barrier()
            if unit.stage == GATHER:
                self._gather(k, unit.columns)
            return
        acc = self.acc_ub.next() if unit.first else self.acc_ub.last()
        whole = unit.channels * unit.width * 4
        if unit.first:
            k.vec_dup(acc.at(0, whole), 0.0, FP32)
        tile = self._load(k, unit)
        piece = unit.channels * unit.columns * 4
        target = acc.at(0, piece)
        for image in range(unit.images):
            k.vec_binary("add", target, target, tile.at(image * piece, piece), FP32)
        if unit.last:
            sums = self.sum_ub.next()
            row = sums.at(0, unit.channels * 4)
            k.vec_reduce("add", row, acc.at(0, whole), unit.channels, unit.width, FP32)
            if self.partial:
                k.data_move(self.partial.at(0, 4, base="partial"), row, FP32)
            else:
                self._store(k, sums, unit.channels)

    def _load(self, k: Language, unit: SimpleNamespace) -> Slot:
        """The unit's piece of dy as fp32, image after image."""
        kind, count = self.dy.dtype, unit.channels * unit.columns
        image, size = self.channels * self.positions * kind.bytes, count * kind.bytes
        tile = self.dy_ub.next()
        k.data_move(
            tile.at(0, unit.images * size),
            self.dy.at(0, size, base="dy", rows=unit.images, pitch=image),
            kind,
        )
        if kind == FP32:
            return tile
        wide = self.wide_ub.next()
        k.vec_cast(wide.at(0, unit.images * count * 4), tile.at(0, unit.images * size), kind, FP32)
        return wide

    def _store(self, k: Language, sums: Slot, channels: int) -> None:
        """Round the sums once and write them to db."""
        kind, result = self.db.dtype, sums
        if kind != FP32:
            result = self.db_ub.next()
            target = result.at(0, channels * kind.bytes)
            k.vec_cast(target, sums.at(0, channels * 4), FP32, kind, saturate=self.saturate)
        k.data_move(
            self.db.at(0, channels * kind.bytes, base="db"),
            result.at(0, channels * kind.bytes),
            kind,
        )

    def _gather(self, k: Language, parts: int) -> None:
        """Sum the parts of every channel in order and write db."""
        assert self.partial is not None
        size = self.channels * parts * 4
        rows, sums = self.parts_ub.next(), self.sum_ub.next()
        source = self.partial.at(0, parts * 4, rows=self.channels, pitch=self.parts * 4)
        k.data_move(rows.at(0, size), source, FP32)
        k.vec_reduce(
            "add",
            sums.at(0, self.channels * 4),
            rows.at(0, size),
            self.channels,
            parts,
            FP32,
        )
        self._store(k, sums, self.channels)


def _meeting(cores: int, parts: int) -> dict[str, IntArray]:
    """One unit per core; the first core goes on to sum the parts in use."""
    core = np.arange(cores)
    unused = ("channels", "images", "width", "first", "last", "dy", "db", "partial")
    return {
        **{name: np.zeros(cores, np.int64) for name in unused},
        "core": core,
        "stage": np.where(core == 0, GATHER, MEET),
        "columns": np.full(cores, parts),
    }
