"""The tiles of a filter gradient on a DSP, who shares them, and those worth comparing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise, product
from math import prod
from typing import NamedTuple

import numpy as np

from npusim.base.integers import even_parts
from npusim.kernels.parts.windows import window_cuts
from npusim.kernels.tilings.checks import check_tiling
from npusim.language import FP32, Device, DType, IntArray, ceil_div, round_up
from npusim.shapes.convolution import Convolution

#: Largest count of frames, and of 32-bit words in a frame, of one DMA descriptor.
DMA_FIELD = 65535

#: Least positions of a chunk to try, and the most: 6 cycles each, they bury the overhead of the
#: micro-kernel, but fewer of them leave room for more channels, whose frames are longer.
LEAST_CHUNKS, FULL_CHUNK = (8, 16, 32, 64, 128), 512

#: Chunks of a tile worth having: the first is loaded before anything is multiplied.
MANY_CHUNKS = 8

#: Bytes of the partial sums that are added up at once, two slots of which AM holds.
SUM_BYTES = 32 * 1024

#: Tilings that "auto" looks at for each number of cores at work.
LEADING = 4

#: Sizes of tiles along channels, taps and columns that a search looks at.
SEARCHED = (3, 4, 3)


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
    def cores(self) -> int:
        """The cores that work."""
        return prod(self.grid)

    def clipped(self, s: Convolution) -> Tiling:
        """What a transposed layer leaves of it."""
        grid = Grid(*map(min, self.grid, self.most(s)))
        channels, taps, columns = _share(s, grid)
        return Tiling(
            channels=min(self.channels, channels),
            taps=min(self.taps, taps),
            columns=min(self.columns, columns),
            rows=min(self.rows, s.spatial[0]),
            width=min(self.width, s.spatial[1]),
            **grid.fields,
        )

    def most(self, s: Convolution) -> Grid:
        """What there is of a transposed layer along each axis, of images their chunks."""
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
        return f"{tile}, {self.cores} cores share {' x '.join(shared)}"


#: What cores share, in the order of a grid.
_SHARED = ("channel", "tap", "column", "image")


def _share(s: Convolution, grid: Grid) -> tuple[int, int, int]:
    """The most channels of a group, taps and columns that a core of a grid has."""
    channels = min(ceil_div(s.cout, grid.channels), s.cout_per_group)
    return channels, ceil_div(s.taps, grid.taps), ceil_div(s.cin_per_group, grid.columns)


class Run(NamedTuple):
    """A piece of an axis: which of its runs it is in, where it begins, and its size."""

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


# -- what a tiling takes -----------------------------------------------------------------------


class Loads(NamedTuple):
    """What chunks load of dy, by tap and added up over the taps before, and of x.

    ``moves`` and ``frames`` have an entry more than there are taps.
    """

    moves: IntArray
    frames: IntArray
    positions: int
    chunks: int


class Chunks:
    """The chunks of an image of ``rows`` x ``width`` positions, and what they load.

    ``layer`` is the ordinary convolution whose windows read dy.
    """

    def __init__(self, layer: Convolution, rows: int, width: int) -> None:
        down, across = window_cuts(layer, 0, rows), window_cuts(layer, 1, width)
        self._high = np.array([[tap[2] for tap in cut.taps] for cut in down], np.int64)
        self._wide = np.array([[tap[2] for tap in cut.taps] for cut in across], np.int64)
        self._heights = np.array([cut.size for cut in down], np.int64)
        self._widths = np.array([cut.size for cut in across], np.int64)
        # Rows that follow each other without a gap on both sides are one move.
        (ry, rx), wide = layer.stride, layer.spatial[1]
        joined = (self._wide == self._widths[:, None]) & (ry * wide == self._wide * rx)
        self._joined = joined & (self._wide > 0)
        self._apart = ~joined & (self._wide > 0)
        self.count = len(down) * len(across)
        self._found: dict[int, Loads] = {}

    def before(self, chunk: int) -> Loads:
        """The loads of all chunks of all images before one, which is counted over all images."""
        if chunk not in self._found:
            images, rest = divmod(chunk, self.count)
            part, image = self._in_image(rest), self._whole
            self._found[chunk] = Loads(*(a + images * b for a, b in zip(part, image, strict=True)))
        return self._found[chunk]

    def between(self, first: int, end: int) -> Loads:
        """The loads of chunks from ``first`` up to ``end``."""
        pairs = zip(self.before(end), self.before(first), strict=True)
        return Loads(*(a - b for a, b in pairs))

    @cached_property
    def _whole(self) -> Loads:
        return self._in_image(self.count)

    def _in_image(self, rest: int) -> Loads:
        """Of the first chunks of one image: whole rows of them, and some of one more."""
        row, column = divmod(rest, len(self._widths))
        moves, frames = self._of(slice(0, row), slice(None))
        positions = int(self._heights[:row].sum() * self._widths.sum())
        if column:
            more = self._of(slice(row, row + 1), slice(0, column))
            moves, frames = moves + more[0], frames + more[1]
            positions += int(self._heights[row] * self._widths[:column].sum())
        return Loads(_added(moves), _added(frames), positions, rest)

    def _of(self, down: slice, across: slice) -> tuple[IntArray, IntArray]:
        """Moves and frames of each tap in chunks of some rows and columns."""
        high = self._high[down]
        lines, touched = high.sum(axis=0), (high > 0).sum(axis=0)
        joined, apart = self._joined[across].sum(axis=0), self._apart[across].sum(axis=0)
        moves = np.outer(touched, joined) + np.outer(lines, apart)
        return moves.ravel(), np.outer(lines, self._wide[across].sum(axis=0)).ravel()


def _added(counts: IntArray) -> IntArray:
    """The sums of all counts before each, and of all."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


class Part(NamedTuple):
    """What one core takes: cycles of its pipes, and bytes that it reads and writes."""

    cycles: float
    read: int
    written: int


@dataclass(frozen=True)
class Gradient:
    """What the time of a filter gradient depends on besides its tiling.

    ``shape`` is the transposed layer, ``turned`` says that columns are outside the taps in dw, and
    ``through`` that im2row goes through a workspace. Partial sums may take ``spare_bytes`` of GM.
    """

    shape: Convolution
    dtype: DType
    device: Device
    turned: bool
    through: bool
    spare_bytes: int

    @cached_property
    def _chunks(self) -> dict[tuple[int, int], Chunks]:
        return {}

    def chunks(self, t: Tiling) -> Chunks:
        """The chunks of a tiling."""
        size = t.rows, t.width
        if size not in self._chunks:
            self._chunks[size] = Chunks(self.shape.plain(), *size)
        return self._chunks[size]

    # -- tilings ---------------------------------------------------------------------------

    def ranked(self, cores: int) -> list[tuple[float, Tiling]]:
        """Tilings worth simulating, with bounds on their cycles, the least first.

        They are the ``LEADING`` ones of each number of cores up to ``cores``, so that what is
        looked at for fewer cores is looked at for more.
        """
        leading = []
        for used in range(1, cores + 1):
            tilings = {
                t.clipped(self.shape) for grid in self._grids(used) for t in self._fitting(grid)
            }
            bounds = [(self.bound(t), t) for t in tilings if t.cores == used]
            leading += sorted(bounds, key=_by_bound)[:LEADING]
        return sorted(leading, key=_by_bound)

    def searched(self, cores: int) -> Iterator[Tiling]:
        """The tilings that a search looks at: those of ``ranked`` and many more."""
        tilings = dict.fromkeys(tiling for _, tiling in self.ranked(cores))
        for used in range(1, cores + 1):
            for grid in self._grids(used):
                sizes = zip(_share(self.shape, grid), SEARCHED, strict=True)
                axes = [even_parts(size, size, many) for size, many in sizes]
                for *tile, positions in product(*axes, (*LEAST_CHUNKS, FULL_CHUNK)):
                    tiling = self._tiling(grid, *tile, positions)
                    if tiling is not None:
                        tilings[tiling.clipped(self.shape)] = None
        return iter(tilings)

    def _grids(self, cores: int) -> Iterator[Grid]:
        """All grids of so many cores that the problem has work for."""
        s = self.shape
        positions = s.n * s.spatial[0] * s.spatial[1]
        most = Grid(s.cout, s.taps, s.cin_per_group, positions if self.adds else 1)
        for channels in _divisors(cores, most.channels):
            for taps in _divisors(cores // channels, most.taps):
                rest = cores // channels // taps
                for columns in _divisors(rest, most.columns):
                    images = rest // columns
                    if images <= most.images and (images == 1 or self._room(images)):
                        yield Grid(channels, taps, columns, images)

    @property
    def adds(self) -> bool:
        """Whether the device can add up partial sums, which are fp32."""
        return self.device.gemm is not None and FP32.name in self.device.gemm.rates

    def _room(self, images: int) -> bool:
        """Whether GM holds so many partial sums."""
        return images * self.elements * FP32.bytes <= self.spare_bytes

    @property
    def elements(self) -> int:
        """Elements of dw."""
        s = self.shape
        return s.cout * s.taps * s.cin_per_group

    def _fitting(self, grid: Grid) -> Iterator[Tiling]:
        """Tiles that fill SM with two chunks of A, and AM with two of B and the accumulator.

        A chunk has a least number of positions where the image has so many. Where a core's rows
        have no room at once a tile has all taps of some channels, or some taps of all channels.
        """
        s, (channels, taps, columns) = self.shape, _share(self.shape, grid)
        image = s.spatial[0] * s.spatial[1]
        for least in LEAST_CHUNKS:
            most = max(1, self._slot // min(image, least))  # rows of the tile
            wanted = min(FULL_CHUNK, max(least, s.n * image // (MANY_CHUNKS * grid.images)))
            some_taps, some_channels = min(taps, most), min(channels, most)
            for tile in dict.fromkeys(
                (
                    (_even(channels, most // some_taps), _even(taps, some_taps)),
                    (_even(channels, some_channels), _even(taps, most // some_channels)),
                )
            ):
                tiling = self._tiling(grid, *tile, columns, wanted)
                if tiling is not None:
                    yield tiling

    def _tiling(
        self, grid: Grid, channels: int, taps: int, columns: int, positions: int
    ) -> Tiling | None:
        """Tiles of such sizes, with chunks of at most so many positions and columns that fit.

        None where a tile has no room.
        """
        high, wide = self.shape.spatial
        room = min(positions, self._slot // (taps * channels))
        if room < 1:
            return None
        rows, width = (min(high, room // wide), wide) if room >= wide else (1, room)
        left = self._sums_in_am(grid.images)
        columns = columns_in(self.device, self.dtype, taps * channels, rows * width, columns, left)
        if columns < 1:
            return None
        return Tiling(
            channels=channels,
            taps=taps,
            columns=columns,
            rows=rows,
            width=width,
            **grid.fields,
        )

    @property
    def _slot(self) -> int:
        """Elements of one of two chunks of A that SM holds."""
        return self.device.memory("SM").size_bytes // 2 // self.dtype.bytes

    # -- bounds ----------------------------------------------------------------------------

    def bound(self, t: Tiling) -> int:
        """Cycles that no simulation of a tiling, which is as of ``ran``, takes less than.

        Its launch is part of them.
        """
        return self.least(t) + self.device.launch.beside("dsp", t.cores)

    def least(self, t: Tiling) -> int:
        """The same without the launch.

        No pipe of a core works faster than alone, the first product waits for its operands, the
        last result for the last product, and all bytes cross the main memory.
        """
        s, memory = self.shape, self.device.main_memory
        chunks = self.chunks(t)
        every = s.n * chunks.count
        axes = (
            _by_run(cut_runs(s.cout, t.channel_cores, t.channels, s.cout_per_group)),
            _by_run(cut_runs(s.taps, t.tap_cores, t.taps)),
            _by_run(cut_runs(s.cin_per_group, t.column_cores, t.columns)),
            _by_run(cut_runs(every, t.image_cores, every)),
        )
        parts = [self._part(t, *share) for share in product(*axes)]
        busiest = max(part.cycles for part in parts)
        read = sum(part.read for part in parts) / float(memory.read_bytes_per_cycle)
        written = sum(part.written for part in parts) / float(memory.write_bytes_per_cycle)
        return int(max(busiest, read, written) + self._adding(t))

    def _part(
        self, t: Tiling, channels: list[Run], taps: list[Run], columns: list[Run], images: list[Run]
    ) -> Part:
        """What one core takes of its tiles, the last one in each list being its last tile's."""
        chunks, gemm, e = self.chunks(t), self.device.gemm, self.dtype.bytes
        assert gemm is not None  # the operator has asked for it
        rate = gemm.rates[self.dtype.name]
        (share,) = images
        end = share.first + share.size
        loads, first = (chunks.between(share.first, until) for until in (end, share.first + 1))
        last = chunks.between(end - 1, end)
        # im2row, once for each tile of columns.
        low, high = taps[0].first, taps[-1].first + taps[-1].size
        moves, frames = (int(sums[high] - sums[low]) for sums in (loads.moves, loads.frames))
        gaps = loads.positions * (high - low) - frames
        wide = _total(channels)
        gather = sum(self._move("SM", moves, frames, run.size * e) for run in channels)
        stored = wide * gaps * e / self.device.path("IMM", "SM").rate
        # x, once for each tile of rows.
        x = sum(self._load_x(loads, run.size) for run in columns)
        rows = [run.size * tap.size for run, tap in product(channels, taps)]
        load = len(columns) * gather + len(rows) * x
        read = len(columns) * wide * frames + len(rows) * loads.positions * _total(columns)
        # Rows of im2row that go through a workspace, out and back.
        rows_bytes = len(columns) * sum(rows) * loads.positions * e if self.through else 0
        if self.through:
            each = len(columns) * len(rows) * loads.chunks
            load += self._move("SM", each, 0, 0) + self._move("SM", each, 0, 0, out=True)
            load += rows_bytes / self.device.path("GM", "SM").rate
            load += rows_bytes / self.device.path("SM", "GM").rate
        # Products.
        down = [ceil_div(size, rate.m) for size in rows]
        across = [ceil_div(run.size, rate.n) for run in columns]
        per_block = loads.chunks * gemm.overhead_cycles + loads.positions * rate.cycles
        gemms = sum(down) * sum(across) * per_block
        last_gemm = down[-1] * across[-1] * (gemm.overhead_cycles + last.positions * rate.cycles)
        # The way out.
        element = FP32.bytes if t.image_cores > 1 else e
        tiles = list(product(channels, taps, columns))
        out = sum(self._store(*(run.size for run in tile), element) for tile in tiles)
        last_out = self._store(*(run.size for run in tiles[-1]), element)
        # What comes before the first product.
        low, high = taps[0].first, taps[0].first + taps[0].size
        moves, frames = (int(sums[high] - sums[low]) for sums in (first.moves, first.frames))
        head = self._load_x(first, columns[0].size)
        head += self._move("SM", moves, frames, channels[0].size * e)
        return Part(
            max(
                load + last_gemm + out,
                head + gemms + last_out,
                len(columns) * stored + last_gemm + last_out,
            ),
            read * e + rows_bytes,
            sum(rows) * _total(columns) * element + rows_bytes,
        )

    def _move(self, memory: str, moves: int, frames: int, size: int, *, out: bool = False) -> float:
        """Cycles of moves between GM and a memory with so many ``frames`` of ``size`` bytes."""
        path = self.device.path(memory, "GM") if out else self.device.path("GM", memory)
        return moves * path.startup_cycles + frames * max(size / path.rate, float(path.row_cycles))

    def _load_x(self, loads: Loads, columns: int) -> float:
        """Cycles to load so many columns of x."""
        size = columns * self.dtype.bytes
        if columns < self.shape.cin:
            return self._move("AM", loads.chunks, loads.positions, size)
        path = self.device.path("GM", "AM")
        return self._move("AM", loads.chunks, 0, 0) + loads.positions * size / path.rate

    def _store(self, channels: int, taps: int, columns: int, element: int) -> float:
        """Cycles in which a tile leaves the core."""
        if self.turned:
            return self._move("AM", taps * channels, taps * channels * columns, element, out=True)
        return self._move("AM", taps, taps * channels, columns * element, out=True)

    def _adding(self, t: Tiling) -> float:
        """Cycles in which the cores meet and add up their partial sums."""
        if t.image_cores == 1:
            return 0
        gemm, memory = self.device.gemm, self.device.main_memory
        assert gemm is not None  # the operator has asked for it
        rate, share = gemm.rates[FP32.name], ceil_div(self.elements, t.cores)
        read, written = t.image_cores * FP32.bytes, self.dtype.bytes  # for an element
        pieces = ceil_div(share, sum_elements(t.image_cores))
        into = pieces * self.device.path("GM", "AM").startup_cycles
        into += share * read / self.device.path("GM", "AM").rate
        out = pieces * self.device.path("AM", "GM").startup_cycles
        out += share * written / self.device.path("AM", "GM").rate
        blocks = ceil_div(share, rate.n)
        adds = blocks * (gemm.overhead_cycles + t.image_cores * rate.cycles)
        shared = self.elements * read / float(memory.read_bytes_per_cycle)
        barrier = self.device.sync.core_barrier_cycles
        return barrier + max(into + out, (into + out) / pieces + adds, shared)

    def _sums_in_am(self, images: int) -> int:
        """Bytes of AM that buffers take in which partial sums of runs of images are added up."""
        if images == 1:
            return 0
        elements, align = sum_elements(images), self.device.memory("AM").align_bytes
        sizes = [elements * images * FP32.bytes] * 2 + [elements * FP32.bytes]
        if self.dtype is not FP32:
            sizes.append(elements * self.dtype.bytes)
        return sum(round_up(size, align) for size in sizes)


def sum_elements(images: int) -> int:
    """Elements whose partial sums, one for each run of images, a core adds up at once."""
    return max(1, SUM_BYTES // images // FP32.bytes)


def _by_bound(ranked: tuple[int, Tiling]) -> tuple[int, int]:
    """The order of tilings: fewer cores where bounds are equal."""
    bound, tiling = ranked
    return bound, tiling.cores


def _by_run(pieces: list[Run]) -> list[list[Run]]:
    """The pieces of each run of an axis."""
    return [list(group) for _, group in groupby(pieces, key=lambda piece: piece.run)]


def _total(pieces: list[Run]) -> int:
    """The size of some pieces together."""
    return sum(piece.size for piece in pieces)


def _even(size: int, most: int) -> int:
    """The size of even pieces of an axis that are at most so large."""
    return ceil_div(size, ceil_div(size, most))


def _divisors(cores: int, most: int) -> Iterator[int]:
    """The numbers up to ``most`` that divide ``cores``."""
    return (number for number in range(1, min(cores, most) + 1) if cores % number == 0)


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
    path, gemm, (rows, columns, depth) = device.path("GM", "SM"), device.gemm, product
    assert gemm is not None  # the operator has asked for it
    rate = gemm.rates[dtype.name]
    blocks = ceil_div(rows, rate.m) * ceil_div(columns, rate.n)
    move = sum(n * max(size / path.rate, float(path.row_cycles)) for size, n in frames)
    move += starts * path.startup_cycles
    return max(float(blocks * (gemm.overhead_cycles + depth * rate.cycles)), move)
