"""The tiles of a filter gradient on a DSP, who shares them, and those worth comparing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

from npusim.kernels.estimate.checks import check_tiling
from npusim.language import FP32, Device, DType, ceil_div
from npusim.machine.isa.base import Move
from npusim.machine.isa.dsp import DspGemm
from npusim.problem.convolution import Convolution

#: Largest count of frames, and of 32-bit words in a frame, of one DMA descriptor.
DMA_FIELD = 65535

#: Bytes of the partial sums that are added up at once, two slots of which AM holds.
SUM_BYTES = 32 * 1024


class Grid(NamedTuple):
    """Counts along channels, taps, columns and images: of cores, or of what they can share."""

    channels: int
    taps: int
    columns: int
    images: int

    @property
    def fields(self) -> dict[str, int]:
        """The fields of a tiling whose cores stand so."""
        return {f"{name}_cores": cores for name, cores in zip(_SHARED, self, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """A tile is ``channels`` x ``taps`` rows by ``columns``; a chunk is ``rows`` x ``width``.

    ``width`` less than the input's goes with one row, so that positions run in one order.

    Cores stand in a grid of ``channel_cores`` x ``tap_cores`` x ``column_cores`` x ``image_cores``
    and have even runs of the channels, taps and columns, which nobody else adds to, and of the
    chunks of all images, whose sums are added up at the end.
    """

    channels: int
    taps: int
    columns: int
    rows: int
    width: int
    channel_cores: int = 1
    tap_cores: int = 1
    column_cores: int = 1
    image_cores: int = 1

    def __post_init__(self) -> None:
        sizes = ("channels", "taps", "columns", "rows", "width")
        check_tiling(self, (), (*sizes, *(f"{name}_cores" for name in _SHARED)))

    @property
    def grid(self) -> Grid:
        """The cores along each axis."""
        return Grid(self.channel_cores, self.tap_cores, self.column_cores, self.image_cores)

    @property
    def working(self) -> int:
        """The cores that work."""
        return prod(self.grid)

    def clipped(self, s: Convolution) -> Tiling:
        """The tiling with the sizes that a transposed layer leaves of it."""
        grid = Grid(*map(min, self.grid, self.most(s)))
        channels, taps, columns = core_share(s, grid)
        return Tiling(
            channels=min(self.channels, channels),
            taps=min(self.taps, taps),
            columns=min(self.columns, columns),
            rows=min(self.rows, s.spatial[0]),
            width=min(self.width, s.spatial[1]),
            **grid.fields,
        )

    def most(self, s: Convolution) -> Grid:
        """The size of a transposed layer along each axis, of images their chunks."""
        chunks = ceil_div(s.spatial[0], self.rows) * ceil_div(s.spatial[1], self.width)
        return Grid(s.cout, s.taps, s.cin_per_group, s.n * chunks)

    def __str__(self) -> str:
        tile = (
            f"tile {self.channels} channels x {self.taps} taps x {self.columns}, "
            f"chunk {self.rows}x{self.width}, 2 slots"
        )
        shared = [
            f"{name}s in {cores}"
            for name, cores in zip(_SHARED, self.grid, strict=True)
            if cores > 1
        ]
        if not shared:
            return f"{tile}, 1 core"
        return f"{tile}, {self.working} cores share {' x '.join(shared)}"


#: What cores share, in the order of a grid.
_SHARED = ("channel", "tap", "column", "image")


def core_share(s: Convolution, grid: Grid) -> tuple[int, int, int]:
    """The most channels of a group, taps and columns that a core of a grid has."""
    channels = min(ceil_div(s.cout, grid.channels), s.cout_per_group)
    return channels, ceil_div(s.taps, grid.taps), ceil_div(s.cin_per_group, grid.columns)


class Run(NamedTuple):
    """A piece of an axis: the number of its run, where it begins, and its size."""

    run: int
    first: int
    size: int


def cut_runs(size: int, runs: int, step: int, whole: int = 0) -> list[Run]:
    """An axis of ``size`` in even runs, each in pieces of ``step`` that stay in ``whole`` blocks.

    No block is cut into more than its own pieces where ``whole`` is 0.
    """
    edges = {size * i // runs for i in range(runs)}
    if whole:
        edges |= set(range(0, size, whole))
    pieces = []
    for low, high in pairwise([*sorted(edges), size]):
        run = ((low + 1) * runs - 1) // size
        pieces += [Run(run, first, min(step, high - first)) for first in range(low, high, step)]
    return pieces


def sum_elements(images: int) -> int:
    """Elements whose partial sums, one for each run of images, a core adds up at once."""
    return max(1, SUM_BYTES // images // FP32.bytes)


def columns_in(
    device: Device, dtype: DType, rows: int, depth: int, most: int, taken: int = 0
) -> int:
    """Columns of ``rows`` sums and of two slots of B that AM holds, of at most so many; or 0.

    They are whole blocks of the micro-kernel where they are some of all. Other buffers have
    ``taken`` bytes of AM.
    """
    per_column = rows * (FP32.bytes + (dtype.bytes if dtype is not FP32 else 0))
    per_column += 2 * depth * dtype.bytes
    # Buffers are rounded up to the alignment of AM: leave one such piece to each of the four.
    am = device.memory("AM")
    fit = max(0, (am.size_bytes - taken - 4 * am.align_bytes) // per_column)
    block = device.gemm.rates[dtype.name].n if device.gemm else 1
    if block < fit < most:
        fit -= fit % block
    return min(most, fit, DMA_FIELD * 4 // dtype.bytes)


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
    path = device.path("GM", "SM")
    gemm = device.gemm
    assert gemm is not None  # the operator has asked for it
    rows, columns, depth = product
    rate = gemm.rates[dtype.name]
    blocks = ceil_div(rows, rate.m) * ceil_div(columns, rate.n)
    move = starts * path.startup_cycles
    for size, count in frames:
        move += Move.cycles(path, float(count * size), count, moves=0)
    return max(float(DspGemm.cycles(gemm, rate, blocks, depth)), move)
