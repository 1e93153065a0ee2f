"""Layout conversions between plain tensors and the blocked ones the cube reads.

    to_blocked            x[n, c, d, h, w] -> [n, d, c div C0, h, w, c mod C0]     zeros from C on
    from_blocked          the reverse
    to_fracz              w[q, c, kd, kh, kw] -> per real group, one dense matrix per tap with
                          zeros between its groups: [kd, c div C0, kh, kw, q, c mod C0]
    to_fracz_transposed   the same with q and c exchanged: [kd, q div C0, kh, kw, c, q mod C0]
    from_fracz            the reverse of to_fracz, diagonal blocks only

Layouts: plain is (N, C, [D, [H,]] W) or (Cout, Cin/groups, [KD, [KH,]] KW); C0 is 8 or 16 and
elements have 2 or 4 bytes. A *lane* is C0 channels at one place; blocks and taps hold lanes.

    for tile of lanes of this core:                    # one *unit*, cores take runs of them
        UB <- tile as it lies in GM (zeros around it)  # MTE2, and V for the zeros
        UB <- tile transposed, once or twice           # V
        GM <- tile in the other layout                 # MTE3

Tiles fill UB, except where the C0 planes of a block neither follow each other in the plain tensor,
as they do without depth, nor begin at multiples of 32 B: there a tile is one fractal of 512 B, C0
rows of 32 B on the plain side. Measured filter gradients in 3-D spend 15 to 20 cycles of a vector
core on each such row if their planes are odd, half of that or less if they are aligned.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.dtypes import INT8
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import FRACTAL_BYTES, Slot, Tensor
from npusim.kernels.parts.conversion import (
    Conversion,
    Pieces,
    even,
    grid_of,
    most_in_unit,
    move,
    runs,
)
from npusim.kernels.parts.fractal_weights import WeightWork
from npusim.program.kernel import Kernel, Units
from npusim.program.language import BufferHandle, Language

__all__ = ["Conversion", "TransData"]


class TransData(Kernel):
    """Convert ``src`` into ``dst``; the plain one of them says the sizes."""

    name: ClassVar[str] = "trans_data"
    role: ClassVar[str] = "vector"

    def __init__(self, conversion: Conversion, src: Tensor, dst: Tensor) -> None:
        self.conversion, self.src, self.dst = conversion, src, dst
        plain, blocked = (src, dst) if conversion.loads_plain else (dst, src)
        want = conversion.blocked_shape(plain.shape)
        if src.dtype != dst.dtype or src.dtype.bytes not in (2, 4):
            raise ArgumentError(
                f"trans_data {conversion.kind}: {src.name} is {src.dtype}, {dst.name} is "
                f"{dst.dtype}; both must be the same type of 2 or 4 bytes, cast before or after"
            )
        if prod(blocked.shape) != prod(want):
            raise ArgumentError(
                f"trans_data {conversion.kind}: {blocked.name} has shape {blocked.shape}, {want} "
                f"belongs to {plain.name} of shape {plain.shape} (groups {conversion.groups})"
            )
        work = MapWork if conversion.kind.endswith("blocked") else WeightWork
        self.work: MapWork | WeightWork = work(conversion, plain, blocked)
        self.scattered = _is_scattered(plain)
        self.tiling_text = f"{conversion.kind}, by fractals" if self.scattered else conversion.kind

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.src, self.dst)

    def buffers(self, k: Language) -> None:
        memory = k.device.memories["UB"]
        quarter = memory.size_bytes // 4 // memory.align_bytes * memory.align_bytes
        self.slot_bytes = size = FRACTAL_BYTES if self.scattered else quarter
        self.first: BufferHandle = k.buffer("UB", (size,), INT8, slots=2, name="as_loaded")
        self.second: BufferHandle = k.buffer("UB", (size,), INT8, slots=2, name="turned")

    def units(self, cores: int) -> Units:
        """Tiles that fit the slots ``buffers`` declared, in contiguous runs per core."""
        return self.work.units(self.slot_bytes, cores)

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        self.work.emit(k, self.first.next(), self.second.next(), unit)


def _is_scattered(plain: Tensor) -> bool:
    """Whether the planes of a block lie apart and begin anywhere: with depth, at odd sizes."""
    if len(plain.shape) < 5 or plain.shape[2] == 1:
        return False
    return prod(plain.shape[3:]) * plain.dtype.bytes % 32 != 0


class MapWork:
    """Feature maps: a lane is C0 channels of one position, its block is one C1 plane."""

    def __init__(self, conversion: Conversion, plain: Tensor, blocked: Tensor) -> None:
        self.plain, self.blocked, self.load = plain, blocked, conversion.loads_plain
        self.c0, self.e = conversion.c0, plain.dtype.bytes
        self.n, self.c, *spatial = plain.shape
        self.d = spatial[0] if len(spatial) == 3 else 1
        self.hw = prod(spatial) // self.d
        if self.d == 1 and self.c % self.c0 == 0:  # samples follow each other like C1 planes
            self.n, self.c = 1, self.n * self.c
        self.c1 = ceil_div(self.c, self.c0)
        self.lane = self.c0 * self.e

    def _tile(self, slot_bytes: int, cores: int) -> tuple[int, int, int]:
        """(blocks, depth planes, positions) of a unit; whole planes where one fits."""
        step = 32 // self.e  # rows of channels start at 32 B in UB
        total = self.n * self.d * self.c1 * self.hw * self.lane
        size = step * self.lane
        lanes = step * most_in_unit(size, total, slot_bytes, cores)
        if self.hw > lanes:
            return 1, 1, even(self.hw, lanes, step)
        planes = even(self.d, lanes // self.hw)
        run = planes * self.hw
        if planes < self.d:
            run = ceil_div(run, step) * step
        return even(self.c1, max(1, lanes // run)), planes, self.hw

    def units(self, slot_bytes: int, cores: int) -> Units:
        """Whole planes of several blocks, or a chunk of one plane."""
        blocks, planes, positions = self._tile(slot_bytes, cores)
        n, b0, d0, p0 = grid_of(
            np.arange(self.n),
            np.arange(0, self.c1, blocks),
            np.arange(0, self.d, planes),
            np.arange(0, self.hw, positions),
        )
        count = np.minimum(blocks, self.c1 - b0)
        place = d0 * self.hw + p0
        return Units(
            runs(len(n), cores),
            {
                "blocks": count,
                "channels": np.minimum(count * self.c0, self.c - b0 * self.c0),
                "planes": np.minimum(planes, self.d - d0),
                "positions": np.minimum(positions, self.hw - p0),
            },
            {
                self.plain.name: self.e * ((n * self.c + b0 * self.c0) * self.d * self.hw + place),
                self.blocked.name: self.lane * (((n * self.d + d0) * self.c1 + b0) * self.hw + p0),
            },
        )

    def emit(self, k: Language, first: Slot, second: Slot, u: SimpleNamespace) -> None:
        """Channel rows on one side, lanes on the other."""
        run, dtype = u.planes * u.positions, self.plain.dtype
        rows, row, whole = u.blocks * self.c0, run * self.e, run == self.d * self.hw
        pitch = row if whole else ceil_div(row, 32) * 32
        plain = Pieces(u.channels, row, 0, self.d * self.hw * self.e, 0, pitch)
        slot = first if self.load else second
        matrix, lanes = slot.at(0, row, rows=rows, pitch=pitch), (0, run * u.blocks * self.lane)
        if self.load:
            move(k, self.plain, first, plain, store=False)
            if u.channels < rows:
                k.vec_dup(slot.at(u.channels * pitch, (rows - u.channels) * pitch), 0.0, dtype)
            k.vec_transpose(second.at(*lanes), matrix, self.c0, run, dtype, count=u.blocks)
        for pieces in self._blocked(u):
            move(k, self.blocked, second if self.load else first, pieces, store=self.load)
        if not self.load:
            k.vec_transpose(matrix, first.at(*lanes), run, self.c0, dtype, count=u.blocks)
            move(k, self.plain, second, plain, store=True)

    def _blocked(self, u: SimpleNamespace) -> Iterator[Pieces]:
        """Moves of lanes [block][plane][position], along the longer of the first two axes."""
        plane = u.positions * self.lane
        if u.planes <= u.blocks:
            for d in range(u.planes):
                gm, pitch = d * self.c1 * self.hw * self.lane, self.hw * self.lane
                yield Pieces(u.blocks, plane, gm, pitch, d * plane, u.planes * plane)
            return
        for b in range(u.blocks):
            pitch = self.c1 * self.hw * self.lane
            yield Pieces(u.planes, plane, b * plane, pitch, b * u.planes * plane, plane)
