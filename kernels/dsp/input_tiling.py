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
    found = list(_fitting(s, dtype, device, cores))
    return min(found, key=lambda tiling: _estimate(s, dtype, device, cores, tiling))


def _fitting(s: Extents, dtype: DType, device: Device, cores: int) -> Iterator[Tiling]:
    """Tiles that fill half of SM with A, and AM with two slots of B and the accumulator."""
    height, wide = s.height, s.width
    slot = device.memory("SM").size_bytes // 2 // dtype.bytes
    for least in LEAST_POSITIONS:
        few = min(least, height * wide, slot)
        channels = min(s.read, slot // few)
        chunk = min(s.taps, slot // (few * channels)) if channels == s.read else 1
        share = max(few, ceil_div(s.images * height * wide, cores))  # so that every core has a tile
        room = min(slot // (chunk * channels), share, DMA_FIELD)
        rows, width = (min(height, room // wide), wide) if room >= wide else (1, room)
        columns = columns_in(device, dtype, rows * width, chunk * channels, s.made)
        if columns:
            yield Tiling(rows=rows, width=width, columns=columns, taps=chunk, channels=channels)
    yield Tiling(rows=1, width=1, columns=1, taps=1, channels=1)


def _estimate(s: Extents, dtype: DType, device: Device, cores: int, t: Tiling) -> float:
    """Cycles of the busiest core: the products of a chunk, or the loads that it waits for."""
    e, count, depth = dtype.bytes, t.rows * t.width, t.taps * t.channels
    tiles = s.images * s.groups * ceil_div(s.height, t.rows) * ceil_div(s.width, t.width)
    tiles *= ceil_div(s.made, t.columns)
    chunks = ceil_div(s.taps, t.taps) * ceil_div(s.read, t.channels)
    frames = [(t.channels * e, t.taps * count), (t.columns * e, depth)]
    product = count, t.columns, depth
    chunk = chunk_cycles(device, dtype, product, t.taps * (t.rows + 1), frames)
    return ceil_div(tiles, cores) * chunks * chunk
