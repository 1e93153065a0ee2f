"""The tiles of a transposed convolution's filter gradient on a DSP, and those worth comparing."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.base.objects import replace
from npusim.kernels.tilings.checks import check_tiling
from npusim.kernels.tilings.costs import launch_cycles
from npusim.language import FP32, Device, DType, ceil_div
from npusim.shapes.convolution import Convolution

#: Largest count of frames, and of 32-bit words in a frame, of one DMA descriptor.
DMA_FIELD = 65535

#: Least positions of a chunk to try, and the most: 6 cycles each, they bury the overhead of the
#: micro-kernel, but fewer of them leave room for more channels, whose frames are longer.
LEAST_CHUNKS, FULL_CHUNK = (8, 16, 32, 64, 128), 512

#: Chunks of a tile worth having: the first is loaded before anything is multiplied.
MANY_CHUNKS = 8


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """A tile is ``channels`` x ``taps`` rows by ``columns``; a chunk is ``rows`` x ``width``.

    ``width`` less than the input's goes with one row, so that positions run in one order.
    ``cores`` are those that work, 0 for all that are given.
    """

    channels: int
    taps: int
    columns: int
    rows: int
    width: int
    cores: int = 0

    def __post_init__(self) -> None:
        check_tiling(self, (), ("channels", "taps", "columns", "rows", "width"))

    def __str__(self) -> str:
        some = f", {self.cores} cores" if self.cores else ""
        return (
            f"tile {self.channels} channels x {self.taps} taps x {self.columns}, "
            f"chunk {self.rows}x{self.width}, 2 slots{some}"
        )


def ranked_tilings(
    s: Convolution, dtype: DType, device: Device, cores: int
) -> list[tuple[float, Tiling]]:
    """Tiles that fit, for so many cores or fewer, with the cycles a closed form holds they take.

    The best estimate comes first. Those of fewer cores are among them, so that where a count does
    not divide the channels well the rest of the cores may stay idle.
    """
    found: dict[Tiling, float] = {}
    for used in range(cores, 0, -1):
        for least in LEAST_CHUNKS:
            tiling = _fitted(s, dtype, device, used, least)
            if used < cores:
                tiling = replace(tiling, cores=used)
            found.setdefault(tiling, _estimate(s, dtype, device, tiling, used))
    return sorted(((time, tiling) for tiling, time in found.items()), key=lambda one: one[0])


def _fitted(s: Convolution, dtype: DType, device: Device, cores: int, least: int) -> Tiling:
    """Tiles that fill SM with two chunks of A, and AM with two of B and the accumulator.

    A chunk has ``least`` positions or more where the image has so many.
    """
    slot = device.memory("SM").size_bytes // 2 // dtype.bytes  # elements of one chunk of A
    height, wide = s.spatial
    most = max(1, slot // min(height * wide, least))  # rows of the tile
    taps = min(s.taps, most)
    own = min(ceil_div(s.cout, cores), s.cout_per_group)
    channels = min(own, most // taps)
    channels = ceil_div(own, ceil_div(own, channels))  # equal tiles
    wanted = min(FULL_CHUNK, max(least, s.n * height * wide // MANY_CHUNKS))
    room = min(wanted, slot // (taps * channels))  # positions of a chunk
    rows, width = (min(height, room // wide), wide) if room >= wide else (1, room)
    columns = columns_in(device, dtype, taps * channels, rows * width, s.cin_per_group)
    return Tiling(channels=channels, taps=taps, columns=max(1, columns), rows=rows, width=width)


def columns_in(device: Device, dtype: DType, rows: int, depth: int, most: int) -> int:
    """Columns of ``rows`` sums and of two slots of B that AM holds, of at most so many; or 0.

    They are whole blocks of the micro-kernel where they are some of all.
    """
    per_column = rows * (FP32.bytes + (dtype.bytes if dtype is not FP32 else 0))
    per_column += 2 * depth * dtype.bytes
    # Buffers are rounded up to the alignment of AM: leave one such piece to each of the four.
    am = device.memory("AM")
    fit = max(0, (am.size_bytes - 4 * am.align_bytes) // per_column)
    block = device.gemm.rates[dtype.name].n if device.gemm else 1
    if block < fit < most:
        fit -= fit % block
    return min(most, fit, DMA_FIELD * 4 // dtype.bytes)


def _estimate(s: Convolution, dtype: DType, device: Device, t: Tiling, cores: int) -> float:
    """Cycles of the busiest core or of main memory, whichever takes longer, with the launch."""
    tiles = ceil_div(ceil_div(s.cout, cores), t.channels) * ceil_div(s.taps, t.taps)
    tiles *= ceil_div(s.cin_per_group, t.columns)
    chunks = s.n * ceil_div(s.spatial[0], t.rows) * ceil_div(s.spatial[1], t.width)
    positions, e = t.rows * t.width, dtype.bytes
    frames = [(t.channels * e, t.taps * positions), (t.columns * e, positions)]
    product = t.taps * t.channels, t.columns, positions
    chunk = chunk_cycles(device, dtype, product, t.taps * t.rows + 1, frames)
    shared = sum(n * size for size, n in frames) * chunks * tiles * cores
    memory = shared / float(device.main_memory.read_bytes_per_cycle)
    return max(tiles * chunks * chunk, memory) + float(launch_cycles(device, "dsp", cores))


def chunk_cycles(
    device: Device,
    dtype: DType,
    product: tuple[int, int, int],
    starts: int,
    frames: list[tuple[int, int]],
) -> float:
    """Cycles of a chunk: of its product, or of the loads that this waits for.

    ``product`` are rows, columns and depth; ``starts`` moves bring ``frames``, each of them the
    bytes of one and how many there are.
    """
    path, gemm, (rows, columns, depth) = device.path("GM", "SM"), device.gemm, product
    assert gemm is not None  # the operator has asked for it
    rate = gemm.rates[dtype.name]
    blocks = ceil_div(rows, rate.m) * ceil_div(columns, rate.n)
    move = sum(n * max(size / path.rate, float(path.row_cycles)) for size, n in frames)
    move += starts * path.startup_cycles
    return max(float(blocks * (gemm.overhead_cycles + depth * rate.cycles)), move)
