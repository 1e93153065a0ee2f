"""Add one number per channel to a feature map, in the map's type.

    y[n, d, c1, p, c0] += bias[C0 * c1 + c0]            over all positions p

Layouts: y (N, D, C1, positions, C0), in place, C0 8 or 16; bias (C), C <= C0 * C1, of y's type.
Channels from C on are padding and keep their value. Or y (rows, C), row-major: a row is an image
of one position, and its channels are cut into blocks that UB has room for.

for (c1, run of images n * D + d, run of positions) of this core:     # one task
    UB bias block <- GM, zeros behind C (when c1 changes)             # MTE2, V
    UB y tile <- GM                                                   # MTE2
    UB y tile += bias block, repeated for every position              # V
    GM y tile <- UB                                                   # MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.estimate.streams import Stream
from npusim.kernels.parts.spread import Spread
from npusim.kernels.parts.ub_room import piece
from npusim.language import (
    BLOCK_BYTES,
    ArgumentError,
    Device,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    in_pieces,
    in_runs,
    round_up,
)

#: Channels to a block: 16, or 8 where operands were fp32.
BLOCKS = (8, 16)
#: Channels to a block of row-major matrices, at most.
WIDEST = 1024
#: Largest tile in bytes: long enough for full bandwidth and small beside any UB.
TILE_BYTES = 32 * 1024
#: Tiles in flight: one loading, one in the vector unit, one being stored.
SLOTS = 3


class Tile(NamedTuple):
    """``positions`` of some images; ``fresh`` where the core comes to new channels."""

    images: int
    positions: int
    channels: int
    fresh: bool


@dataclass(frozen=True)
class BiasAdd(Spread):
    """Add ``bias`` to ``y``; ``saturate`` keeps fp16 sums finite (see ``Device.saturates``)."""

    y: Tensor
    bias: Tensor
    saturate: bool = False

    name: ClassVar[str] = "bias_add"

    def __post_init__(self) -> None:
        y = self.y
        bias = self.bias
        blocked = len(y.shape) == 5 and y.shape[4] in BLOCKS
        if not (blocked or len(y.shape) == 2) or min(y.shape) < 1:
            raise ArgumentError(
                f"bias_add: {y.name} has shape {y.shape}; it must be (N, D, C1, positions, 16 or "
                "8) or (rows, C) with every size at least 1"
            )
        _, c1, _, c0 = self.sizes
        low = (c1 - 1) * c0 + 1 if blocked else y.shape[1]
        high = c1 * c0 if blocked else y.shape[1]
        if len(bias.shape) != 1 or not low <= bias.shape[0] <= high or bias.dtype != y.dtype:
            raise ArgumentError(
                f"bias_add: {bias.name} is {bias.dtype} of shape {bias.shape}; {y.name} with "
                f"{c1} channel blocks takes {low} to {high} numbers of {y.dtype}"
            )

    tiling_text = f"tile up to {TILE_BYTES} B"

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Images in all, blocks of channels, positions, and channels to a block."""
        if len(self.y.shape) == 2:
            rows, channels = self.y.shape
            c0 = min(round_up(channels, 16), WIDEST)
            return rows, ceil_div(channels, c0), 1, c0
        n, d, c1, positions, c0 = self.y.shape
        return n * d, c1, positions, c0

    def stream(self, device: Device, cores: int) -> Stream:
        size = self.y.size_bytes
        tasks = np.maximum(np.arange(1, cores + 1), ceil_div(size, TILE_BYTES))
        return Stream(size, size, tasks, vector=(("add", size),), cold=False)

    def plan(self, k: Language, cores: int) -> Plan[Tile]:
        dtype = self.y.dtype
        c0 = self.sizes[3]
        block = c0 * dtype.bytes
        most = piece(k, self.name, TILE_BYTES // block, SLOTS * block, besides=2 * block)
        bias_ub = k.buffer("UB", (c0,), dtype, slots=2, name="bias_ub")
        y_ub = k.buffer("UB", (most, c0), dtype, slots=SLOTS, name="y_ub")

        def emit(tile: Tile) -> None:
            bias = self._load_bias(k, bias_ub.next(), tile) if tile.fresh else bias_ub.last()
            self._add(k, y_ub.next(), bias, tile)

        return Plan(self._tasks(most, cores), emit)

    @property
    def _image_bytes(self) -> int:
        """Bytes from one image of y to the next."""
        return self.y.size_bytes // self.sizes[0]

    def _load_bias(self, k: Language, slot: Slot, tile: Tile) -> Slot:
        """UB <- the bias of a block, zeros behind the last channel."""
        dtype = self.y.dtype
        c0 = self.sizes[3]
        size = tile.channels * dtype.bytes
        if tile.channels < c0:
            k.vec_dup(slot.at(0, c0 * dtype.bytes), 0.0, dtype)
        k.data_move(slot, self.bias.at(0, size, base="bias"), dtype)
        return slot

    def _add(self, k: Language, slot: Slot, bias: Slot, tile: Tile) -> None:
        """Load a tile of y, add the bias to every position, store."""
        dtype = self.y.dtype
        row = tile.positions * self.sizes[3] * dtype.bytes
        if len(self.y.shape) == 2:
            row = tile.channels * dtype.bytes
        place = self.y.at(0, row, base="y", rows=tile.images, pitch=self._image_bytes)
        apart = round_up(row, BLOCK_BYTES)
        values = slot.at(0, row, rows=tile.images, pitch=apart)
        padded = slot.at(0, tile.images * apart)
        count = tile.images * tile.positions
        k.data_move(values, place, dtype)
        repeated = bias.at(0, padded.size // count, rows=count, pitch=0)
        k.vec_binary("add", padded, padded, repeated, dtype, saturate=self.saturate)
        k.data_move(place, values, dtype)

    def _tasks(self, most: int, cores: int) -> Tasks[Tile]:
        """Tiles of ``most`` pixels, channels outermost: a core rarely changes its bias."""
        images, blocks, positions, c0 = self.sizes
        block = c0 * self.y.dtype.bytes
        tile = min(most, ceil_div(blocks * images * positions, cores))
        (c1, image, position), (_, tile_images, tile_positions) = in_pieces(
            (blocks, 1),
            (images, max(1, tile // positions)),
            (positions, min(tile, positions)),
        )
        core = in_runs(len(c1), cores)
        return Tasks(
            core,
            Tile,
            {
                "images": tile_images,
                "positions": tile_positions,
                "channels": np.minimum(c0, self.bias.shape[0] - c1 * c0),
                "fresh": (np.diff(core, prepend=-1) != 0) | (np.diff(c1, prepend=-1) != 0),
            },
            {
                "y": image * self._image_bytes + (c1 * positions + position) * block,
                "bias": c1 * block,
            },
        )
