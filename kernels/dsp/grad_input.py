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
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.kernels.dsp.input_tiling import Extents, Tiling
from npusim.kernels.dsp.parts import DspGradient, DspNest, Ends, Place, Side, Sides
from npusim.kernels.windows.windows import Cut, phase_cuts
from npusim.language import ArgumentError, Language, Plan, Slot, Tasks, Tensor, in_pieces, in_runs

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

    def __post_init__(self) -> None:
        s, t = self.shape, self.tiling
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
        """What its tiling depends on; residues modulo the stride count as images."""
        s = self.shape
        rows, columns = (
            [p for p in self.cut(axis, max(self.ends.positions)) if p.reads] for axis in (0, 1)
        )
        high, wide = (max((p.size for p in pieces), default=1) for pieces in (rows, columns))
        taps = [max((len(p.reads) for p in pieces), default=1) for pieces in (rows, columns)]
        images = s.n * max(1, len(rows) * len(columns))
        return Extents(images, high, wide, s.groups, self.ends.depth, self.ends.width, prod(taps))

    @cached_property
    def pieces(self) -> list[tuple[Cut, Cut]]:
        """The positions of an image; of rows that read nothing as many neighbours as fit."""
        found: list[tuple[Cut, Cut]] = []
        t, wide = self.tiling, self.ends.positions[1]
        columns = self.cut(1, t.width)
        room = min(t.rows, self.extents.height) * min(t.width, self.extents.width)
        zeros = [Cut(at, min(room, wide - at), 0, 0, ()) for at in range(0, wide, room)]
        for row in self.cut(0, t.rows):
            each = [row] if row.reads else _apart(row)
            found += product(each, columns if row.reads else zeros)
        return found

    def chunks(self, pattern: Sides) -> list[tuple[int, int, int, int]]:
        """(first tap, taps, first channel, channels) of the chunks of a tile."""
        t, (rows, columns) = self.tiling, pattern
        taps = len(rows.reads) * len(columns.reads)
        if not taps:
            return [(0, 1, 0, 1)]
        return [
            (tap, min(t.taps, taps - tap), o, min(t.channels, self.ends.depth - o))
            for tap, o in product(range(0, taps, t.taps), range(0, self.ends.depth, t.channels))
        ]

    def plan(self, k: Language, cores: int) -> Plan[Chunk]:
        return Plan(self._tasks(cores), _Nest(self, k).emit)

    def _tasks(self, cores: int) -> Tasks[Chunk]:
        s, t, e, width = self.shape, self.tiling, self.dy.dtype.bytes, self.ends.width
        (_, wide), (height_read, wide_read) = self.ends.positions, self.ends.read
        pattern = np.array(self.numbered, np.int64)
        read = np.array([r.base * wide_read + c.base for r, c in self.pieces], np.int64)
        made = np.array([r.start * wide + c.start for r, c in self.pieces], np.int64)
        chunks = [self.chunks(one) for one in self.patterns]
        counts = np.array([len(one) for one in chunks], np.int64)
        axes = (s.n, 1), (len(self.pieces), 1), (s.groups, 1), (width, t.columns)
        (b, p, g, n0), _ = in_pieces(*axes)
        core = np.zeros(len(p), np.int64)
        empty = np.array([not r.reads or not c.reads for r, c in self.pieces])[p]
        for alike in (empty, ~empty):  # every core has its part of the work and of the zeros
            core[alike] = in_runs(int(alike.sum()), cores)
        many = counts[pattern[p]]
        i = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        b, p, g, n0, core = (np.repeat(one, many) for one in (b, p, g, n0, core))
        begin = (np.cumsum(counts) - counts)[pattern[p]]
        every = [chunk for one in chunks for chunk in one]
        tap, taps, o, oc = (np.array(column)[begin + i] for column in zip(*every, strict=True))
        channel, cin = g * self.ends.depth + o, width * s.groups
        dy = (b * height_read * wide_read + read[p]) * (self.ends.depth * s.groups) + channel
        dx = (b * self.ends.positions[0] * wide + made[p]) * cin + g * width + n0
        return Tasks(
            core,
            Chunk,
            {
                "pattern": pattern[p],
                "t0": tap,
                "taps": taps,
                "oc": oc,
                "n": np.minimum(t.columns, width - n0),
                "first": i == 0,
                "last": i == counts[pattern[p]] - 1,
            },
            {
                "dy": dy * e,
                "w": (channel * s.taps * width + n0) * e,
                "dx": dx * e,
            },
        )


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
        s, t = kernel.shape, kernel.tiling
        rows = max((r.size * c.size for r, c in kernel.pieces), default=1)
        chunk = min(t.taps, s.taps) * min(t.channels, kernel.ends.depth)
        columns = min(t.columns, kernel.ends.width)
        sizes = (rows, chunk), (chunk, columns), (rows, columns)
        super().__init__(kernel, k, sizes, ("w", "dx"))

    def emit(self, u: Chunk) -> None:
        """Load the weights, gather dy, multiply; store after the last chunk."""
        sides = rows, columns = self.kernel.patterns[u.pattern]
        a, b, dtype = self.a.next(), self.b.next(), self.dtype
        positions = rows.size * columns.size
        # Where no tap reads anything the first stands for zeros.
        taps = (self.kernel.taps(sides) or [Place(0)])[u.t0 : u.t0 + u.taps]
        self._load_weights(b, u, taps)
        self.im2row(a, u.oc, taps, sides, gaps=False)
        acc = self.acc.next() if u.first else self.acc.last()
        self.k.dsp_gemm(acc, a, b, positions, u.taps * u.oc, u.n, dtype, init=u.first)
        if u.last:
            self._store(acc, u, rows, columns)

    def _load_weights(self, b: Slot, u: Chunk, taps: list[Place]) -> None:
        """Per tap, a row of columns for every channel."""
        w, s = self.kernel.w, self.kernel.shape
        e = w.dtype.bytes
        row, size = self.kernel.ends.width * e, u.n * e
        for i, tap in enumerate(taps):
            source = w.at(tap.number * row, size, base="w", rows=u.oc, pitch=s.taps * row)
            self.k.data_move(b.at(i * u.oc * size, u.oc * size), source, w.dtype)

    def _store(self, acc: Slot, u: Chunk, rows: Side, columns: Side) -> None:
        """acc (positions, columns) to dx, a row of positions at a time where they are not all."""
        kernel, dx = self.kernel, self.kernel.dx
        count, e = rows.size * columns.size, dx.dtype.bytes
        done = self.rounded(acc, count * u.n)
        frame, pitch = u.n * e, kernel.ends.width * kernel.shape.groups * e
        wide = kernel.ends.positions[1]
        # One column alone still carries the hop of its phase, which rows in one move must not take.
        whole = columns.size == wide and rows.hop == 1
        runs = [(0, count)] if whole else [(i, columns.size) for i in range(rows.size)]
        for row, size in runs:
            to = dx.at(
                *(row * rows.hop * wide * pitch, frame),
                base="dx", rows=size, pitch=(1 if whole else columns.hop) * pitch,
            )  # fmt: skip
            self.k.data_move(to, done.at(row * columns.size * frame, size * frame), dx.dtype)


def _apart(row: Cut) -> list[Cut]:
    """The rows of a piece that reads nothing, one by one."""
    return [Cut(row.start + i * row.hop, 1, 0, 0, ()) for i in range(row.size)]
