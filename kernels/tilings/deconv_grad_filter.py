"""The tiles of a transposed convolution's filter gradient on a DSP, and tiles good at once."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.convolution import Convolution
from npusim.device.spec import Device
from npusim.dtypes import FP32, DType
from npusim.errors import ArgumentError
from npusim.integers import ceil_div

#: Largest count of frames, and of 32-bit words in a frame, of one DMA descriptor.
DMA_FIELD = 65535

#: Positions of a chunk worth having: 6 cycles each, they bury the micro-kernel's overhead.
GOOD_CHUNK, FULL_CHUNK = 64, 512

#: Chunks of a tile worth having: the first is loaded before anything is multiplied.
MANY_CHUNKS = 8


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """A tile is ``channels`` x ``taps`` rows by ``columns``; a chunk is ``rows`` x ``width``.

    ``width`` less than the input's goes with one row, so that positions run in one order.
    """

    channels: int
    taps: int
    columns: int
    rows: int
    width: int

    def __post_init__(self) -> None:
        for name in ("channels", "taps", "columns", "rows", "width"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"tiling {name} is {getattr(self, name)}; it must be >= 1")

    def __str__(self) -> str:
        return (
            f"tile {self.channels} channels x {self.taps} taps x {self.columns}, "
            f"chunk {self.rows}x{self.width}, 2 slots"
        )


def auto_tiling(s: Convolution, dtype: DType, device: Device, cores: int) -> Tiling:
    """Tiles that fill SM with two chunks of A, and AM with two of B and the accumulator."""
    slot = device.memory("SM").size_bytes // 2 // dtype.bytes  # elements of one chunk of A
    height, wide = s.spatial
    most = max(1, slot // min(height * wide, GOOD_CHUNK))  # rows of the tile
    taps = min(s.taps, most)
    own = min(ceil_div(s.cout, cores), s.cout_per_group)
    channels = min(own, most // taps)
    channels = ceil_div(own, ceil_div(own, channels))  # equal tiles
    wanted = min(FULL_CHUNK, max(GOOD_CHUNK, s.n * height * wide // MANY_CHUNKS))
    room = min(wanted, slot // (taps * channels))  # positions of a chunk
    rows, width = (min(height, room // wide), wide) if room >= wide else (1, room)
    per_column = taps * channels * (FP32.bytes + (dtype.bytes if dtype is not FP32 else 0))
    per_column += 2 * rows * width * dtype.bytes
    # Buffers are rounded up to the alignment of AM: leave one such piece to each of the four.
    am = device.memory("AM")
    fit = max(1, (am.size_bytes - 4 * am.align_bytes) // per_column)
    block = device.gemm.rates[dtype.name].n if device.gemm else 1
    if fit < s.cin_per_group and fit > block:
        fit -= fit % block
    columns = min(s.cin_per_group, fit, DMA_FIELD * 4 // dtype.bytes)
    return Tiling(channels=channels, taps=taps, columns=columns, rows=rows, width=width)
