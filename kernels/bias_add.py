"""Add one number per channel to a feature map, in the map's type.

    y[n, d, c1, p, c0] += bias[16 * c1 + c0]            over all positions p

Layouts: y (N, D, C1, positions, 16), in place; bias (C), C <= 16 * C1, of y's type. Channels
from C on are padding and keep their value.

for (c1, run of images n * D + d, run of positions) of this core:     # one *unit*
    UB bias block <- GM, zeros behind C (when c1 changes)             # MTE2, V
    UB y tile <- GM                                                   # MTE2
    UB y tile += bias block, repeated for every position              # V
    GM y tile <- UB                                                   # MTE3
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import Tensor
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

C0 = 16
#: Largest tile in bytes: long enough for full bandwidth and small beside any UB.
TILE_BYTES = 32 * 1024
#: Tiles in flight: one loading, one in the vector unit, one being stored.
SLOTS = 3


class BiasAdd(Kernel):
    """Add ``bias`` to ``y``; ``saturate`` keeps fp16 sums finite (see ``Device.saturates``)."""

    name: ClassVar[str] = "bias_add"
    role: ClassVar[str] = "vector"

    def __init__(self, y: Tensor, bias: Tensor, *, saturate: bool = False) -> None:
        if len(y.shape) != 5 or y.shape[4] != C0 or min(y.shape) < 1:
            raise ArgumentError(
                f"bias_add: {y.name} has shape {y.shape}; it must be (N, D, C1, positions, {C0}) "
                "with every size at least 1"
            )
        n, d, self.c1, self.positions, _ = y.shape
        low, high = (self.c1 - 1) * C0 + 1, self.c1 * C0
        if len(bias.shape) != 1 or not low <= bias.shape[0] <= high or bias.dtype != y.dtype:
            raise ArgumentError(
                f"bias_add: {bias.name} is {bias.dtype} of shape {bias.shape}; {y.name} with "
                f"{self.c1} channel blocks takes {low} to {high} numbers of {y.dtype}"
            )
        self.y, self.bias, self.saturate = y, bias, saturate
        self.images, self.block = n * d, C0 * y.dtype.bytes
        self.tiling_text = f"tile up to {TILE_BYTES} B"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.y, self.bias)

    def units(self, cores: int) -> Units:
        """Tiles with the channel block outermost, so that a core rarely changes its bias."""
        share = ceil_div(self.c1 * self.images * self.positions, cores)
        tile = min(self.tile, share)
        images, positions = max(1, tile // self.positions), min(tile, self.positions)
        grid = np.meshgrid(
            np.arange(self.c1),
            np.arange(0, self.images, images),
            np.arange(0, self.positions, positions),
            indexing="ij",
        )
        c1, image, position = (axis.reshape(-1) for axis in grid)
        core = np.arange(len(c1)) * min(cores, len(c1)) // len(c1)
        fresh = (np.diff(core, prepend=-1) != 0) | (np.diff(c1, prepend=-1) != 0)
        plane = image * self.c1 + c1
        return Units(
            core,
            {
                "images": np.minimum(images, self.images - image),
                "positions": np.minimum(positions, self.positions - position),
                "channels": np.minimum(C0, self.bias.shape[0] - c1 * C0),
                "fresh": fresh.astype(np.int64),
            },
            {
                "y": (plane * self.positions + position) * self.block,
                "bias": c1 * self.block,
            },
        )

    def buffers(self, k: Language) -> None:
        free = k.device.memories["UB"].size_bytes - 2 * self.block
        self.tile = min(TILE_BYTES, free // SLOTS) // self.block
        self.bias_ub = k.buffer("UB", (C0,), self.bias.dtype, slots=2, name="bias_ub")
        self.y_ub = k.buffer("UB", (self.tile, C0), self.y.dtype, slots=SLOTS, name="y_ub")

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        bias = self.bias_ub.next() if unit.fresh else self.bias_ub.last()
        if unit.fresh:
            if unit.channels < C0:
                k.vec_dup(bias.at(0, self.block), 0.0, self.bias.dtype)
            size = unit.channels * self.bias.dtype.bytes
            k.data_move(bias.at(0, size), self.bias.at(0, size, base="bias"), self.bias.dtype)
        row, rows = unit.positions * self.block, unit.images * unit.positions
        tile = self.y_ub.next().at(0, unit.images * row)
        place = self.y.at(
            0, row, base="y", rows=unit.images, pitch=self.c1 * self.positions * self.block
        )
        k.data_move(tile, place, self.y.dtype)
        repeated = bias.at(0, self.block, rows=rows, pitch=0)
        k.vec_binary("add", tile, tile, repeated, self.y.dtype, saturate=self.saturate)
        k.data_move(place, tile, self.y.dtype)
