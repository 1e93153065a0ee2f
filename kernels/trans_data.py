"""Layout conversions between plain tensors and the blocked ones the cube reads.

    to_blocked            x[n, c, d, h, w] -> [n, d, c div C0, h, w, c mod C0]     zeros from C on
    from_blocked          the reverse
    to_fracz              w[q, c, kd, kh, kw] -> per real group, one dense matrix per tap with
                          zeros between its groups: [kd, c div C0, kh, kw, q, c mod C0]
    to_fracz_transposed   the same with q and c exchanged: [kd, q div C0, kh, kw, c, q mod C0]
    from_fracz            the reverse of to_fracz, diagonal blocks only

Layouts: plain is (N, C, [D, [H,]] W) or (Cout, Cin/groups, [KD, [KH,]] KW); C0 is 8 or 16 and
elements have 2 or 4 bytes. A *lane* is C0 channels at one place; blocks and taps hold lanes.

    for tile of lanes of this core:                    # one task, cores take runs of them
        UB <- tile as it lies in GM (zeros around it)  # MTE2, and V for the zeros
        UB <- tile transposed, once or twice           # V
        GM <- tile in the other layout                 # MTE3

Tiles fill a quarter of UB: two are loaded or turned while two others are turned or stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.parts.conversion import (
    Conversion,
    Pieces,
    even,
    most_in_task,
    move,
    task_counts,
)
from npusim.kernels.parts.fractal_weights import WeightWork
from npusim.kernels.parts.room import piece
from npusim.kernels.parts.spread import Spread
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    BLOCK_BYTES,
    FRACTAL_BYTES,
    ArgumentError,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    grid,
    in_runs,
    round_down,
    round_up,
)

__all__ = ["Conversion", "TransData"]


@dataclass(frozen=True)
class TransData(Spread):
    """Convert ``src`` into ``dst``; the plain one of them says the sizes."""

    conversion: Conversion
    src: Tensor
    dst: Tensor

    name: ClassVar[str] = "trans_data"
    library: ClassVar[tuple[str, ...]] = ("TransData",)
    role: ClassVar[str] = "vector"

    def __post_init__(self) -> None:
        src, dst, conversion = self.src, self.dst, self.conversion
        plain, blocked = self.plain, self.blocked
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

    @property
    def plain(self) -> Tensor:
        """The tensor in framework layout."""
        return self.src if self.conversion.loads_plain else self.dst

    @property
    def blocked(self) -> Tensor:
        """The tensor in blocks of C0."""
        return self.dst if self.conversion.loads_plain else self.src

    @property
    def clears(self) -> bool:
        """Whether ``dst`` must be cleared before."""
        return False

    @property
    def anywhere(self) -> bool:
        return not self.conversion.kind.endswith("blocked")  # groups begin at any element

    @property
    def tiling_text(self) -> str:
        return self.conversion.kind

    def stream(self, device: Device, cores: int) -> Stream:
        size = self.blocked.size_bytes
        return Stream(
            read=self.src.size_bytes,
            written=self.dst.size_bytes,
            tasks=task_counts(size, device.memory("UB").size_bytes // 4, cores),
            vector=(("transpose", size),),
            cold=self.conversion.loads_plain,
        )

    def plan(self, k: Language, cores: int) -> Plan[Any]:
        ub = k.memory("UB")
        align = ub.align_bytes
        size = piece(k, self.name, ub.size_bytes, 4, multiple=align, least=FRACTAL_BYTES)
        first = k.buffer("UB", (size,), None, slots=2, name="as_loaded")
        second = k.buffer("UB", (size,), None, slots=2, name="turned")
        maps = self.conversion.kind.endswith("blocked")
        work: Any = (MapWork if maps else WeightWork)(self.conversion, self.plain, self.blocked)
        return Plan(
            work.tasks(size, cores),
            lambda tile: work.emit(k, first.next(), second.next(), tile),
        )


class MapTile(NamedTuple):
    """``blocks`` of C0 with ``channels`` that exist, by positions of depth planes."""

    blocks: int
    channels: int
    planes: int
    positions: int


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
        """(blocks, depth planes, positions) of a task; whole planes where one fits."""
        step = 32 // self.e  # rows of channels start at 32 B in UB
        total = self.n * self.d * self.c1 * self.hw * self.lane
        size = step * self.lane
        lanes = step * most_in_task(size, total, slot_bytes, cores)
        if self.hw > lanes:
            return 1, 1, even(self.hw, lanes, step)
        planes = even(self.d, lanes // self.hw)
        run = planes * self.hw
        if planes < self.d:
            run = round_up(run, step)
        return even(self.c1, max(1, lanes // run)), planes, self.hw

    def tasks(self, slot_bytes: int, cores: int) -> Tasks[MapTile]:
        """Whole planes of several blocks, or a chunk of one plane."""
        blocks, planes, positions = self._tile(slot_bytes, cores)
        n, b0, d0, p0 = grid(
            np.arange(self.n),
            np.arange(0, self.c1, blocks),
            np.arange(0, self.d, planes),
            np.arange(0, self.hw, positions),
        )
        count = np.minimum(blocks, self.c1 - b0)
        place = d0 * self.hw + p0
        return Tasks(
            in_runs(len(n), cores),
            MapTile,
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

    def emit(self, k: Language, first: Slot, second: Slot, u: MapTile) -> None:
        """Channel rows on one side, lanes on the other."""
        run, dtype = u.planes * u.positions, self.plain.dtype
        rows, row, whole = u.blocks * self.c0, run * self.e, run == self.d * self.hw
        pitch = row if whole else round_up(row, 32)
        plain = Pieces(u.channels, row, 0, self.d * self.hw * self.e, 0, pitch)
        slot, lanes = (first, second) if self.load else (second, first)
        matrix = slot.at(0, row, rows=rows, pitch=pitch)
        if self.load:
            missing = u.channels < rows
            tail = round_down(u.channels * pitch, BLOCK_BYTES)
            shared = tail < u.channels * pitch  # a block that channels end in: cleared before them
            if missing and shared:
                k.vec_dup(slot.at(tail, rows * pitch - tail), 0.0, dtype)
            move(k, self.plain, slot, plain, store=False)
            if missing and not shared:
                k.vec_dup(slot.at(tail, rows * pitch - tail), 0.0, dtype)
            k.vec_transpose(lanes, matrix, self.c0, run, dtype, count=u.blocks)
        for pieces in self._blocked(u):
            move(k, self.blocked, lanes, pieces, store=self.load)
        if not self.load:
            k.vec_transpose(matrix, lanes, run, self.c0, dtype, count=u.blocks)
            move(k, self.plain, slot, plain, store=True)

    def _blocked(self, u: MapTile) -> Iterator[Pieces]:
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
