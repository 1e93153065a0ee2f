"""Moves and products of a filter gradient on a DSP with a tiling, and their time.

Everything is counted core by core: pieces of axes are few and alike, and what chunks load of dy is
added up over chunks and over taps, so that a part of both is a difference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product
from math import prod
from typing import NamedTuple

import numpy as np

from npusim.kernels.dsp.filter_tiling import Run, Tiling, cut_runs, sum_elements
from npusim.kernels.windows.windows import window_cuts
from npusim.language import FP32, Device, DType, IntArray, ceil_div
from npusim.machine.device.parts import CubeRate, Gemm, Path
from npusim.machine.isa.base import Move, transfer_cycles
from npusim.machine.isa.dsp import DspGemm
from npusim.problem.convolution import Convolution


class Loads(NamedTuple):
    """Loads of chunks of dy, by tap and added up over the taps before, and of x.

    ``moves`` and ``frames`` have an entry more than there are taps.
    """

    moves: IntArray
    frames: IntArray
    positions: int
    chunks: int

    def plus(self, other: Loads, times: int) -> Loads:
        """These and so many times the others."""
        return Loads(
            self.moves + times * other.moves,
            self.frames + times * other.frames,
            self.positions + times * other.positions,
            self.chunks + times * other.chunks,
        )

    def of_taps(self, first: int, end: int) -> tuple[int, int]:
        """Moves and frames of taps ``first`` up to ``end``."""
        return int(self.moves[end] - self.moves[first]), int(self.frames[end] - self.frames[first])


class RunLoads(NamedTuple):
    """The loads of a run of chunks, and of its first and its last chunk."""

    all: Loads
    first: Loads
    last: Loads


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
        self._before: dict[int, Loads] = {}
        self._runs: dict[Run, RunLoads] = {}

    def before(self, chunk: int) -> Loads:
        """The loads of all chunks of all images before one, which is counted over all images."""
        if chunk not in self._before:
            images, rest = divmod(chunk, self.count)
            self._before[chunk] = self._in_image(rest).plus(self._whole, images)
        return self._before[chunk]

    def of_run(self, run: Run) -> RunLoads:
        """The loads of a run of chunks of all images."""
        if run not in self._runs:
            first, end = run.first, run.first + run.size
            sides = (first, end), (first, first + 1), (end - 1, end)
            self._runs[run] = RunLoads(*(self._between(*side) for side in sides))
        return self._runs[run]

    def _between(self, first: int, end: int) -> Loads:
        return self.before(end).plus(self.before(first), -1)

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


class Share(NamedTuple):
    """A core's share of an axis: its pieces by size, how many they are, and all together."""

    sizes: tuple[tuple[int, int], ...]  # a size, and how many pieces have it
    pieces: int
    total: int


def _frames_cycles(path: Path, moves: int, frames: int, size: int) -> float:
    """Cycles of moves with so many ``frames`` of ``size`` bytes in all, of means: not rounded."""
    return float(Move.cycles(path, float(frames * size), frames, moves=moves))


class Part(NamedTuple):
    """The part of a core: cycles at least, and the bytes of GM that it reads and writes."""

    cycles: float
    read: int
    written: int


@dataclass(frozen=True)
class Gradient:
    """A filter gradient: all that its time depends on besides its tiling.

    ``shape`` is the transposed layer, ``turned`` says that the channels of x are outside the taps
    in dw, and ``through`` that im2row goes through a workspace. Partial sums may take
    ``spare_bytes`` of GM.
    """

    shape: Convolution
    dtype: DType
    device: Device
    turned: bool
    through: bool
    spare_bytes: int

    @property
    def elements(self) -> int:
        """Elements of dw."""
        s = self.shape
        return s.cout * s.taps * s.cin_per_group

    @cached_property
    def gemm(self) -> Gemm:
        """The micro-kernel of the device; the operator has asked for it."""
        assert self.device.gemm is not None
        return self.device.gemm

    def least(self, t: Tiling) -> int:
        """Cycles that no simulation of a tiling, which is ``clipped``, takes less than.

        Its launch is not part of them. No pipe of a core works faster than alone, a tile's first
        product waits for its operands and its result for the last one, and all bytes cross the main
        memory.
        """
        s, memory, chunks = self.shape, self.device.main_memory, self._chunks(t.rows, t.width)
        every = s.n * chunks.count
        runs = [chunks.of_run(run) for run in cut_runs(every, t.image_cores, every)]
        taps = _by_run(cut_runs(s.taps, t.tap_cores, t.taps))
        # Cores whose channels and columns are cut alike take as long.
        channels = Counter(self._shares(s.cout, t.channel_cores, t.channels, s.cout_per_group))
        columns = Counter(self._shares(s.cin_per_group, t.column_cores, t.columns))
        element = FP32.bytes if t.image_cores > 1 else self.dtype.bytes
        busiest, read, written = 0.0, 0, 0
        for run, pieces, channel_share, column_share in product(runs, taps, channels, columns):
            first_tap, tap_share = pieces[0].first, _share(pieces)
            part = self._part(run, element, channel_share, first_tap, tap_share, column_share)
            cores = channels[channel_share] * columns[column_share]
            busiest = max(busiest, part.cycles)
            read += cores * part.read
            written += cores * part.written
        reading = read / float(memory.read_bytes_per_cycle)
        writing = written / float(memory.write_bytes_per_cycle)
        return int(max(busiest, reading, writing) + self._adding(t))

    # -- a core ----------------------------------------------------------------------------

    def _part(
        self, run: RunLoads, element: int, channels: Share, tap: int, taps: Share, columns: Share
    ) -> Part:
        """Cycles and bytes of a core's share, from ``tap`` on; sums leave it as ``element`` bytes.

        A tile's way out is queued before the loads of the next one. So it waits for the tile's last
        product, and the first product of the next tile for it.
        """
        loads = run.all
        load, read, through = self._loads(loads, channels, tap, taps, columns)
        begin, _, _ = self._loads(run.first, channels, tap, taps, columns)
        down = sum(
            tiles * tap_tiles * ceil_div(oc * some_taps, self._rate.m)
            for (oc, tiles), (some_taps, tap_tiles) in product(channels.sizes, taps.sizes)
        )
        across = sum(tiles * ceil_div(n, self._rate.n) for n, tiles in columns.sizes)
        products = down * across * self._block_cycles(loads)
        end_products = down * across * self._block_cycles(run.last)
        store = 0.0
        for axes in product(channels.sizes, taps.sizes, columns.sizes):
            sizes, counts = zip(*axes, strict=True)
            store += prod(counts) * self._store_cycles(*sizes, element)
        _, frames = loads.of_taps(tap, tap + taps.total)
        gaps = columns.pieces * channels.total * (loads.positions * taps.total - frames)
        busy = (
            load + end_products + store,
            begin + products + store,
            transfer_cycles(self._zeros, float(gaps * self.dtype.bytes)),
        )
        written = channels.total * taps.total * columns.total * element
        return Part(max(busy), read + through, written + through)

    def _loads(
        self, loads: Loads, channels: Share, tap: int, taps: Share, columns: Share
    ) -> tuple[float, int, int]:
        """Cycles to load some chunks, bytes of dy and x, and those through the workspace.

        im2row is loaded once for each tile of columns, and x once for each tile of rows.
        """
        e, tiles = self.dtype.bytes, channels.pieces * taps.pieces
        moves, frames = loads.of_taps(tap, tap + taps.total)
        gather = sum(
            many * _frames_cycles(self._into_sm, moves, frames, size * e)
            for size, many in channels.sizes
        )
        x = sum(many * self._x_cycles(loads, size) for size, many in columns.sizes)
        cycles = columns.pieces * gather + tiles * x
        read = columns.pieces * channels.total * frames + tiles * loads.positions * columns.total
        if not self.through:
            return cycles, read * e, 0
        # Rows of im2row go out and come back.
        moves = columns.pieces * tiles * loads.chunks
        size = columns.pieces * channels.total * taps.total * loads.positions * e
        for path in (self._into_sm, self._out_of_sm):
            cycles += Move.cycles(path, float(size), moves=moves)
        return cycles, read * e, size

    def _block_cycles(self, loads: Loads) -> float:
        """Cycles of the micro-kernel for one block of sums over some chunks."""
        cycles = DspGemm.cycles(self.gemm, self._rate, 1, loads.positions, calls=loads.chunks)
        return float(cycles)

    def _x_cycles(self, loads: Loads, columns: int) -> float:
        """Cycles to load so many columns of x; whole pixels of chunks are one frame."""
        size = columns * self.dtype.bytes
        if columns < self.shape.cin:
            return _frames_cycles(self._into_am, loads.chunks, loads.positions, size)
        every = float(loads.positions * size)
        return float(Move.cycles(self._into_am, every, moves=loads.chunks))

    def _store_cycles(self, channels: int, taps: int, columns: int, element: int) -> float:
        """Cycles in which a tile leaves the core."""
        count = channels * taps
        if self.turned:
            return _frames_cycles(self._out_of_am, count, count * columns, element)
        return _frames_cycles(self._out_of_am, taps, count, columns * element)

    def _adding(self, t: Tiling) -> float:
        """Cycles in which the cores meet and add up their partial sums."""
        if t.image_cores == 1:
            return 0
        rate, share = self.gemm.rates[FP32.name], ceil_div(self.elements, t.working)
        read, written = t.image_cores * FP32.bytes, self.dtype.bytes  # for an element
        into, out = self._into_am, self._out_of_am
        pieces = ceil_div(share, sum_elements(t.image_cores))
        loads = Move.cycles(into, float(share * read), moves=pieces)
        stores = Move.cycles(out, float(share * written), moves=pieces)
        adds = DspGemm.cycles(self.gemm, rate, ceil_div(share, rate.n), t.image_cores)
        memory = self.elements * read / float(self.device.main_memory.read_bytes_per_cycle)
        busy = max(loads + stores, into.startup_cycles + adds + out.startup_cycles, memory)
        return float(self.device.sync.core_barrier_cycles + busy)

    # -- what is the same for many tilings ---------------------------------------------------

    def _chunks(self, rows: int, width: int) -> Chunks:
        """The chunks of an image."""
        if (rows, width) not in self._chunks_known:
            self._chunks_known[rows, width] = Chunks(self._layer, rows, width)
        return self._chunks_known[rows, width]

    def _shares(self, size: int, runs: int, step: int, whole: int = 0) -> list[Share]:
        """Shares of the cores along an axis: see ``cut_runs``."""
        key = size, runs, step, whole
        if key not in self._shares_known:
            self._shares_known[key] = [_share(run) for run in _by_run(cut_runs(*key))]
        return self._shares_known[key]

    @cached_property
    def _chunks_known(self) -> dict[tuple[int, int], Chunks]:
        return {}

    @cached_property
    def _shares_known(self) -> dict[tuple[int, int, int, int], list[Share]]:
        return {}

    @cached_property
    def _layer(self) -> Convolution:
        return self.shape.plain()

    @cached_property
    def _rate(self) -> CubeRate:
        return self.gemm.rates[self.dtype.name]

    @cached_property
    def _into_sm(self) -> Path:
        return self.device.path("GM", "SM")

    @cached_property
    def _out_of_sm(self) -> Path:
        return self.device.path("SM", "GM")

    @cached_property
    def _into_am(self) -> Path:
        return self.device.path("GM", "AM")

    @cached_property
    def _out_of_am(self) -> Path:
        return self.device.path("AM", "GM")

    @cached_property
    def _zeros(self) -> Path:
        return self.device.path("IMM", "SM")


def _by_run(pieces: list[Run]) -> list[list[Run]]:
    """The pieces of each run of an axis."""
    return [list(group) for _, group in groupby(pieces, key=lambda piece: piece.run)]


def _share(pieces: list[Run]) -> Share:
    """The pieces of a run together."""
    sizes = [piece.size for piece in pieces]
    return Share(tuple(sorted(Counter(sizes).items())), len(sizes), sum(sizes))
