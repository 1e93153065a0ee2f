"""The tiles of an input gradient on a DSP, and those that are good at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from npusim.kernels.dsp.filter_tiling import DMA_FIELD, chunk_cycles, columns_in
from npusim.kernels.estimate.checks import check_tiling
from npusim.language import Device, DType, ceil_div

#: Least positions of a tile to try: more of them reuse the weights, fewer leave room for taps.
LEAST_POSITIONS = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """A tile is ``rows`` x ``width`` positions by ``columns``; a chunk adds taps times channels.

    A chunk of several ``taps`` has all channels of a group, so that products are added in one
    order whatever the tiling. ``width`` less than the map's goes with one row.
    """

    rows: int
    width: int
    columns: int
    taps: int
    channels: int

    def __post_init__(self) -> None:
        check_tiling(self, (), ("rows", "width", "columns", "taps", "channels"))

    def __str__(self) -> str:
        return (
            f"tile {self.rows}x{self.width} positions x {self.columns}, chunk {self.taps} taps x "
            f"{self.channels} channels, 2 slots"
        )


class Extents(NamedTuple):
    """Images, rows and columns of the result, groups, channels read and made by one, and taps."""

    images: int
    height: int
    width: int
    groups: int
    read: int
    made: int
    taps: int


def auto_tiling(s: Extents, dtype: DType, device: Device, cores: int) -> Tiling:
    """The tiling that a closed form holds for the fastest."""
    candidates = _fitting(s, dtype, device, cores)
    return min(candidates, key=lambda tiling: _estimate(s, dtype, device, cores, tiling))


def _fitting(s: Extents, dtype: DType, device: Device, cores: int) -> Iterator[Tiling]:
    """Tiles that fill half of SM with A, and AM with two slots of B and the accumulator."""
    positions = s.height * s.width
    slot = device.memory("SM").size_bytes // 2 // dtype.bytes
    for least in LEAST_POSITIONS:
        least_rows = min(least, positions, slot)
        channels = min(s.read, slot // least_rows)
        taps = 1
        if channels == s.read:
            taps = min(s.taps, slot // (least_rows * channels))
        depth = taps * channels
        share = max(least_rows, ceil_div(s.images * positions, cores))  # a tile for every core
        room = min(slot // depth, share, DMA_FIELD)
        rows = 1
        width = room
        if room >= s.width:
            rows = min(s.height, room // s.width)
            width = s.width
        columns = columns_in(device, dtype, rows * width, depth, s.made)
        if columns:
            yield Tiling(rows=rows, width=width, columns=columns, taps=taps, channels=channels)
    yield Tiling(rows=1, width=1, columns=1, taps=1, channels=1)


def _estimate(s: Extents, dtype: DType, device: Device, cores: int, t: Tiling) -> float:
    """Cycles of the busiest core: the products of a chunk, or the loads that it waits for."""
    count = t.rows * t.width
    depth = t.taps * t.channels
    tiles = s.images * s.groups * ceil_div(s.height, t.rows) * ceil_div(s.width, t.width)
    tiles *= ceil_div(s.made, t.columns)
    chunks = ceil_div(s.taps, t.taps) * ceil_div(s.read, t.channels)
    frames = [(t.channels * dtype.bytes, t.taps * count), (t.columns * dtype.bytes, depth)]
    product = count, t.columns, depth
    chunk = chunk_cycles(device, dtype, product, t.taps * (t.rows + 1), frames)
    return ceil_div(tiles, cores) * chunks * chunk
