"""Input gradients on a DSP: im2row of dy, then GEMM with the weight.

    dx[b, h, w, g*ICG + ic] = sum over taps (kh, kw) and oc of
        dy[b, r, c, g*OCG + oc] * w[g*OCG + oc, kh * KW + kw, ic]

where tap (kh, kw) of an ordinary layer reads r * sh = h + pad_u - kh * dh, if there is such a row,
and of a transposed one r = h * sh - pad_u + kh * dh; columns likewise. Outside of dy is 0.
Positions of an ordinary layer are taken by their residue modulo the stride: only some taps read
anything for those of one residue, and these read neighbouring rows. Positions for which no tap does
are a product with a zero.

    dy (B, OH, OW, OC)   w (OC, KH * KW, ICG)   dx (B, H, W, IC)              NHWC, in GM
    A (positions, taps, channels) in SM    B (taps, channels, columns) in AM   one chunk
    acc (positions, columns) fp32 in AM

for tile (image, positions of dx, columns of a group's input) of this core:
    for chunk (taps that read any x channels of dy):                                   # one task
        B <- w, per tap                                                  # DMA
        A <- 0, per tap that does not find dy everywhere                 # S, scalar stores
        A <- dy, per tap: a frame of channels for every position         # DMA, strided
        acc (+)= A @ B                                                   # VPU
    dx <- acc, through a cast for fp16                                   # VPU, DMA

Every element takes its products in one order, taps outside channels: how the work is cut and how
many cores share it changes no bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.dsp.im2row import DspGradient, DspNest, Ends, Place, Side, Sides
from npusim.kernels.dsp.input_tiling import Extents, Tiling
from npusim.kernels.windows.windows import Cut, phase_cuts
from npusim.language import (
    ArgumentError,
    IntArray,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    in_pieces,
    in_runs,
)
from npusim.problem.work import FORWARD

__all__ = ["ConvGradInput", "DeconvGradInput", "Tiling"]


class Chunk(NamedTuple):
    """Taps of a pattern from number ``t0`` on and ``oc`` channels, for ``n`` columns.

    The ``first`` chunk of a tile starts its sums, the ``last`` stores them.
    """

    pattern: int
    t0: int
    taps: int
    oc: int
    n: int
    first: bool
    last: bool


class _Part(NamedTuple):
    """``taps`` from the ``tap`` on of those that read anything, and channels from one on."""

    tap: int
    taps: int
    channel: int
    channels: int


@dataclass(frozen=True)
class DeconvGradInput(DspGradient):
    """The kernel of a transposed layer, whose gradient is an ordinary convolution of dy.

    ``shape`` is the plain convolution underneath.
    """

    tiling: Tiling
    dy: Tensor
    w: Tensor
    dx: Tensor

    name: ClassVar[str] = "deconv_grad_input"
    uses: ClassVar[Mapping[str, str]] = {"w": "taps"}

    @property
    def work_class(self) -> str:
        return FORWARD

    def __post_init__(self) -> None:
        s = self.shape
        t = self.tiling
        wide = self.extents.width
        if t.width < wide and t.rows > 1:
            raise ArgumentError(
                f"tiling has {t.rows} rows of width {t.width}; the result is {wide} wide in each "
                "residue modulo the stride, use one row or the full width"
            )
        if t.taps > 1 and t.channels < self.ends.depth:
            raise ArgumentError(
                f"tiling has {t.taps} taps of {t.channels} channels; a chunk of several taps needs "
                f"all {self.ends.depth} channels of a group of {s.groups}, so that no bit depends "
                "on it"
            )

    @cached_property
    def extents(self) -> Extents:
        """Sizes that its tiling depends on; residues modulo the stride count as images."""
        s = self.shape
        longest = max(self.ends.positions)
        rows = [cut for cut in self.cut(0, longest) if cut.reads]
        columns = [cut for cut in self.cut(1, longest) if cut.reads]
        taps_h = max((len(cut.reads) for cut in rows), default=1)
        taps_w = max((len(cut.reads) for cut in columns), default=1)
        return Extents(
            images=s.n * max(1, len(rows) * len(columns)),
            height=max((cut.size for cut in rows), default=1),
            width=max((cut.size for cut in columns), default=1),
            groups=s.groups,
            read=self.ends.depth,
            made=self.ends.width,
            taps=taps_h * taps_w,
        )

    @cached_property
    def pieces(self) -> list[tuple[Cut, Cut]]:
        """The positions of an image; of rows that read nothing as many neighbours as fit."""
        t = self.tiling
        width = self.ends.positions[1]
        columns = self.cut(1, t.width)
        room = min(t.rows, self.extents.height) * min(t.width, self.extents.width)
        zeros = [Cut(first, min(room, width - first), 0, 0, ()) for first in range(0, width, room)]
        pieces: list[tuple[Cut, Cut]] = []
        for row in self.cut(0, t.rows):
            if row.reads:
                pieces += product([row], columns)
            else:
                pieces += product(_apart(row), zeros)
        return pieces

    def chunks(self, pattern: Sides) -> list[_Part]:
        """The chunks of a tile."""
        t = self.tiling
        rows, columns = pattern
        taps = len(rows.reads) * len(columns.reads)
        if not taps:
            return [_Part(0, 1, 0, 1)]
        return [
            _Part(tap, min(t.taps, taps - tap), channel, min(t.channels, self.ends.depth - channel))
            for tap in range(0, taps, t.taps)
            for channel in range(0, self.ends.depth, t.channels)
        ]

    def plan(self, k: Language, cores: int) -> Plan[Chunk]:
        return Plan(self._tasks(cores), _Nest(self, k).emit)

    def _tasks(self, cores: int) -> Tasks[Chunk]:
        """The chunks of every tile, those of a tile one after another on its core."""
        s = self.shape
        width = self.ends.width
        (image, piece, group, n0), _ = in_pieces(
            (s.n, 1), (len(self.pieces), 1), (s.groups, 1), (width, self.tiling.columns)
        )
        core = self._cores(piece, cores)
        pattern = np.array(self.numbered, np.int64)[piece]
        chunks = [self.chunks(sides) for sides in self.patterns]
        count = np.array([len(parts) for parts in chunks], np.int64)
        begins = np.cumsum(count) - count
        of_tile = count[pattern]
        tile = np.repeat(np.arange(len(piece)), of_tile)
        turn = np.arange(len(tile)) - (np.cumsum(of_tile) - of_tile)[tile]
        parts = np.array([*chain.from_iterable(chunks)], np.int64)
        tap, taps, channel, channels = parts[begins[pattern[tile]] + turn].T
        columns = {
            "pattern": pattern[tile],
            "t0": tap,
            "taps": taps,
            "oc": channels,
            "n": np.minimum(self.tiling.columns, width - n0[tile]),
            "first": turn == 0,
            "last": turn == of_tile[tile] - 1,
        }
        bases = self._bases(image[tile], piece[tile], group[tile], n0[tile], channel)
        return Tasks(core[tile], Chunk, columns, bases)

    def _cores(self, piece: IntArray, cores: int) -> IntArray:
        """The core of each tile: every core has its part of the work and of the zeros."""
        empty = np.array([not rows.reads or not columns.reads for rows, columns in self.pieces])
        core = np.zeros(len(piece), np.int64)
        for alike in (empty[piece], ~empty[piece]):
            core[alike] = in_runs(int(alike.sum()), cores)
        return core

    def _bases(
        self, image: IntArray, piece: IntArray, group: IntArray, n0: IntArray, channel: IntArray
    ) -> dict[str, IntArray]:
        """Byte offsets of what chunks load and store."""
        s = self.shape
        ends = self.ends
        element = self.dy.dtype.bytes
        height_read, width_read = ends.read
        height, width = ends.positions
        read = [rows.base * width_read + columns.base for rows, columns in self.pieces]
        written = [rows.start * width + columns.start for rows, columns in self.pieces]
        pixel_read = image * height_read * width_read + np.array(read, np.int64)[piece]
        pixel = image * height * width + np.array(written, np.int64)[piece]
        channel_read = group * ends.depth + channel
        dy = pixel_read * (ends.depth * s.groups) + channel_read
        dx = pixel * (ends.width * s.groups) + group * ends.width + n0
        return {
            "dy": dy * element,
            "w": (channel_read * s.taps * ends.width + n0) * element,
            "dx": dx * element,
        }


class ConvGradInput(DeconvGradInput):
    """The kernel of an ordinary layer: the positions by their residue modulo the stride."""

    name: ClassVar[str] = "conv_grad_input"

    @cached_property
    def ends(self) -> Ends:
        s = self.layer
        return Ends(s.spatial, s.out, s.cin_per_group, s.cout_per_group, (1, 1))

    def cut(self, axis: int, step: int) -> list[Cut]:
        return phase_cuts(self.layer, axis, step)


class _Nest(DspNest):
    """The program of a chunk."""

    kernel: DeconvGradInput

    def __init__(self, kernel: DeconvGradInput, k: Language) -> None:
        t = kernel.tiling
        rows = max((r.size * c.size for r, c in kernel.pieces), default=1)
        depth = min(t.taps, kernel.shape.taps) * min(t.channels, kernel.ends.depth)
        columns = min(t.columns, kernel.ends.width)
        super().__init__(
            kernel,
            k,
            (rows, depth),
            (depth, columns),
            (rows, columns),
            b_name="w",
            out_name="dx",
        )

    def emit(self, u: Chunk) -> None:
        """Load the weights, gather dy, multiply; store after the last chunk."""
        sides = self.kernel.patterns[u.pattern]
        rows, columns = sides
        a = self.a.next()
        b = self.b.next()
        positions = rows.size * columns.size
        # Where no tap reads anything the first stands for zeros.
        taps = (self.kernel.taps(sides) or [Place(0)])[u.t0 : u.t0 + u.taps]
        self._load_weights(b, u, taps)
        self.im2row(a, u.oc, taps, sides, gaps=False)
        acc = self.acc.next() if u.first else self.acc.last()
        self.k.dsp_gemm(acc, a, b, positions, u.taps * u.oc, u.n, self.dtype, init=u.first)
        if u.last:
            self._store(acc, u, rows, columns)

    def _load_weights(self, b: Slot, u: Chunk, taps: list[Place]) -> None:
        """Per tap, a row of columns for every channel."""
        w = self.kernel.w
        row = self.kernel.ends.width * w.dtype.bytes
        pitch = self.kernel.shape.taps * row
        size = u.n * w.dtype.bytes
        for i, tap in enumerate(taps):
            source = w.at(tap.number * row, size, base="w", rows=u.oc, pitch=pitch)
            self.k.data_move(b.at(i * u.oc * size, u.oc * size), source, w.dtype)

    def _store(self, acc: Slot, u: Chunk, rows: Side, columns: Side) -> None:
        """acc (positions, columns) to dx, a row of positions at a time where they are not all."""
        kernel = self.kernel
        dx = kernel.dx
        count = rows.size * columns.size
        values = self.rounded(acc, count * u.n)
        frame = u.n * dx.dtype.bytes
        pitch = kernel.ends.width * kernel.shape.groups * dx.dtype.bytes
        width = kernel.ends.positions[1]
        # One column alone still carries the hop of its phase, which rows in one move must not take.
        if columns.size == width and rows.hop == 1:
            target = dx.at(0, frame, base="dx", rows=count, pitch=pitch)
            self.k.data_move(target, values.at(0, count * frame), dx.dtype)
            return
        size = columns.size * frame
        for row in range(rows.size):
            target = dx.at(
                row * rows.hop * width * pitch,
                frame,
                base="dx",
                rows=columns.size,
                pitch=columns.hop * pitch,
            )
            self.k.data_move(target, values.at(row * size, size), dx.dtype)


def _apart(row: Cut) -> list[Cut]:
    """The rows of a piece that reads nothing, one by one."""
    return [Cut(row.start + i * row.hop, 1, 0, 0, ()) for i in range(row.size)]
