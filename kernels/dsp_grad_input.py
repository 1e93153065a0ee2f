"""Input gradients on a DSP: im2row of dy, then GEMM with the weight.

    dx[b, h, w, g*ICG + ic] = sum over taps (kh, kw) and oc of
        dy[b, r, c, g*OCG + oc] * w[g*OCG + oc, kh * KW + kw, ic]

where tap (kh, kw) of an ordinary layer reads r * sh = h + pad_u - kh * dh, if there is such a row,
and of a transposed one r = h * sh - pad_u + kh * dh; columns likewise. Outside of dy is 0.

    dy (B, OH, OW, OC)   w (OC, KH * KW, ICG)   dx (B, H, W, IC)              NHWC, in GM
    A (positions, taps, channels) in SM    B (taps, channels, columns) in AM   one chunk
    acc (positions, columns) fp32 in AM

for tile (image, positions of dx, columns of a group's input) of this core:
    for chunk (taps x channels of dy):                                   # one task
        B <- w, per tap                                                  # DMA
        A <- 0, per tap that does not find dy everywhere                 # S, scalar stores
        A <- dy, per tap: a frame of channels for every position         # DMA, strided
        acc (+)= A @ B                                                   # VPU
    dx <- acc, through a cast for fp16                                   # VPU, DMA

Every element takes its products in one order, taps outside channels: how the work is cut and how
many cores share it changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.convolution import Convolution, Sizes
from npusim.kernels.parts.windows import Cut, WindowCut, cuts, window_cuts
from npusim.kernels.tilings.dsp_grad_input import Extents, Tiling
from npusim.language import (
    FP32,
    ArgumentError,
    Kernel,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    grid,
    in_runs,
)

__all__ = ["ConvGradInput", "DeconvGradInput", "Tiling"]


class Chunk(NamedTuple):
    """Taps from ``t0`` on and ``oc`` channels, for ``n`` columns at positions of a pattern.

    The ``first`` chunk of a tile starts its sums, the ``last`` stores them.
    """

    pattern: int
    t0: int
    taps: int
    oc: int
    n: int
    first: bool
    last: bool


class Side(NamedTuple):
    """Positions along one axis, and per tap (first of them, what it reads after a base, count)."""

    size: int
    taps: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ConvGradInput(Kernel):
    """The kernel of an ordinary layer; ``shape`` is the plain convolution of both kinds."""

    shape: Convolution
    tiling: Tiling
    dy: Tensor
    w: Tensor
    dx: Tensor

    name: ClassVar[str] = "conv_grad_input"
    role: ClassVar[str] = "dsp"

    def __post_init__(self) -> None:
        s, t = self.shape, self.tiling
        if t.width < self.positions[1] and t.rows > 1:
            raise ArgumentError(
                f"tiling has {t.rows} rows of width {t.width}; the result is {self.positions[1]} "
                "wide, use one row or the full width"
            )
        if t.taps > 1 and t.channels < self.depth:
            raise ArgumentError(
                f"tiling has {t.taps} taps of {t.channels} channels; a chunk of several taps needs "
                f"all {self.depth} channels of a group of {s.groups}, so that no bit depends on it"
            )

    @property
    def positions(self) -> Sizes:
        """Height and width of dx."""
        return self.shape.spatial

    @property
    def read(self) -> Sizes:
        """Height and width of dy."""
        return self.shape.out

    @property
    def depth(self) -> int:
        """Channels of dy in a group."""
        return self.shape.cout_per_group

    @property
    def width(self) -> int:
        """Channels of dx in a group."""
        return self.shape.cin_per_group

    @property
    def extents(self) -> Extents:
        """What its tiling depends on."""
        s, (height, wide) = self.shape, self.positions
        return Extents(s.n, height, wide, s.groups, self.depth, self.width, s.taps)

    @property
    def steps(self) -> tuple[Sizes, Sizes]:
        """Between neighbouring reads of a tap: how far apart positions are, and pixels of dy."""
        return self.shape.stride, (1, 1)

    def cuts(self, axis: int, step: int) -> list[Cut] | list[WindowCut]:
        """The positions along an axis in pieces, with what every tap reads."""
        return cuts(self.shape, axis, step)

    @property
    def useful_macs(self) -> int:
        return self.shape.useful_macs

    @property
    def needed_bytes(self) -> dict[str, int]:
        return {self.w.name: self.shape.used("taps", self.w.size_bytes)}

    @cached_property
    def pieces(self) -> list[tuple[Cut | WindowCut, Cut | WindowCut]]:
        """The positions of an image: a cut of their rows and one of their columns."""
        return list(product(self.cuts(0, self.tiling.rows), self.cuts(1, self.tiling.width)))

    @cached_property
    def patterns(self) -> list[tuple[Side, Side]]:
        """Pieces that look alike share a pattern."""
        return list(dict.fromkeys(map(_pattern, self.pieces)))

    def plan(self, k: Language, cores: int) -> Plan[Chunk]:
        return Plan(self._tasks(cores), _Nest(self, k).emit)

    def _tasks(self, cores: int) -> Tasks[Chunk]:
        s, t, e, width = self.shape, self.tiling, self.dy.dtype.bytes, self.width
        (_, wide), (height_read, wide_read) = self.positions, self.read
        chunks = [
            (tap, min(t.taps, s.taps - tap), o, min(t.channels, self.depth - o))
            for tap, o in product(range(0, s.taps, t.taps), range(0, self.depth, t.channels))
        ]
        number = {pattern: i for i, pattern in enumerate(self.patterns)}
        pattern = np.array([number[_pattern(piece)] for piece in self.pieces], np.int64)
        read = np.array([r.base * wide_read + c.base for r, c in self.pieces], np.int64)
        made = np.array([r.start * wide + c.start for r, c in self.pieces], np.int64)
        b, p, g, n0, i = (
            one.ravel()
            for one in grid(
                np.arange(s.n),
                np.arange(len(self.pieces)),
                np.arange(s.groups),
                np.arange(0, width, t.columns),
                np.arange(len(chunks)),
            )
        )
        tap, taps, o, oc = (np.array(column)[i] for column in zip(*chunks, strict=True))
        channel, cin = g * self.depth + o, width * s.groups
        dy = (b * height_read * wide_read + read[p]) * (self.depth * s.groups) + channel
        dx = (b * self.positions[0] * wide + made[p]) * cin + g * width + n0
        return Tasks(
            np.repeat(in_runs(len(b) // len(chunks), cores), len(chunks)),
            Chunk,
            {
                "pattern": pattern[p],
                "t0": tap,
                "taps": taps,
                "oc": oc,
                "n": np.minimum(t.columns, width - n0),
                "first": i == 0,
                "last": i == len(chunks) - 1,
            },
            {
                "dy": dy * e,
                "w": ((channel * s.taps + tap) * width + n0) * e,
                "dx": dx * e,
            },
        )


class DeconvGradInput(ConvGradInput):
    """The kernel of a transposed layer, whose gradient is an ordinary convolution of dy."""

    name: ClassVar[str] = "deconv_grad_input"

    @property
    def positions(self) -> Sizes:
        return self.shape.out

    @property
    def read(self) -> Sizes:
        return self.shape.spatial

    @property
    def depth(self) -> int:
        return self.shape.cin_per_group

    @property
    def width(self) -> int:
        return self.shape.cout_per_group

    @property
    def steps(self) -> tuple[Sizes, Sizes]:
        return (1, 1), self.shape.stride

    def cuts(self, axis: int, step: int) -> list[Cut] | list[WindowCut]:
        return window_cuts(self.shape, axis, step)


class _Nest:
    """The program of a chunk, on the buffers of one core."""

    def __init__(self, kernel: ConvGradInput, k: Language) -> None:
        self.kernel, self.k = kernel, k
        s, t, dtype = kernel.shape, kernel.tiling, kernel.dy.dtype
        rows = min(t.rows, kernel.positions[0]) * min(t.width, kernel.positions[1])
        chunk = min(t.taps, s.taps) * min(t.channels, kernel.depth)
        columns = min(t.columns, kernel.width)
        self.a = k.buffer("SM", (rows, chunk), dtype, slots=2, name="im2row")
        self.b = k.buffer("AM", (chunk, columns), dtype, slots=2, name="w_am")
        self.acc = k.buffer("AM", (rows, columns), FP32, name="acc")
        self.out = k.buffer("AM", (rows, columns), dtype, name="dx_am") if dtype != FP32 else None

    def emit(self, u: Chunk) -> None:
        """Load the weights, gather dy, multiply; store after the last chunk."""
        rows, columns = self.kernel.patterns[u.pattern]
        a, b, dtype = self.a.next(), self.b.next(), self.kernel.dy.dtype
        positions = rows.size * columns.size
        self._load_weights(b, u)
        self._im2row(a, u, rows, columns)
        acc = self.acc.next() if u.first else self.acc.last()
        self.k.dsp_gemm(acc, a, b, positions, u.taps * u.oc, u.n, dtype, init=u.first)
        if u.last:
            self._store(acc, u, rows.size, columns.size)

    def _load_weights(self, b: Slot, u: Chunk) -> None:
        """Per tap, a row of columns for every channel."""
        w, s = self.kernel.w, self.kernel.shape
        e = w.dtype.bytes
        row, size = self.kernel.width * e, u.n * e
        for tap in range(u.taps):
            source = w.at(tap * row, size, base="w", rows=u.oc, pitch=s.taps * row)
            self.k.data_move(b.at(tap * u.oc * size, u.oc * size), source, w.dtype)

    def _im2row(self, a: Slot, u: Chunk, rows: Side, columns: Side) -> None:
        """Per tap, frames of channels; zeros where a tap does not find dy at every position."""
        k, dy, kw, e = (
            self.k,
            self.kernel.dy,
            self.kernel.shape.kernel[1],
            self.kernel.dy.dtype.bytes,
        )
        frame, row, positions = u.oc * e, u.taps * u.oc * e, rows.size * columns.size
        found = []
        for tap in range(u.taps):
            down, across = rows.taps[(u.t0 + tap) // kw], columns.taps[(u.t0 + tap) % kw]
            if down[2] * across[2] < positions:
                k.fill(a.at(tap * frame, frame, rows=positions, pitch=row), 0, dy.dtype)
            if down[2] and across[2]:
                found.append((tap, down, across))
        for tap, down, across in found:
            for first, count, step, pixel, hop in self._runs(down, across, columns.size):
                k.data_move(
                    a.at(first * row + tap * frame, frame, rows=count, pitch=step * row),
                    dy.at(pixel * e, frame, base="dy", rows=count, pitch=hop * e),
                    dy.dtype,
                )

    def _runs(
        self, down: tuple[int, int, int], across: tuple[int, int, int], columns: int
    ) -> list[tuple[int, int, int, int, int]]:
        """(first position, count, positions apart, element of dy, elements apart), row by row."""
        (y, r, high), (x, c, wide) = down, across
        (py, px), (ry, rx) = self.kernel.steps
        channels, width = self.kernel.depth * self.kernel.shape.groups, self.kernel.read[1]
        if wide == columns and px == 1 and py == 1 and ry * width == wide * rx:
            return [(y * columns + x, high * wide, 1, (r * width + c) * channels, rx * channels)]
        return [
            (
                (y + i * py) * columns + x,
                wide,
                px,
                ((r + i * ry) * width + c) * channels,
                rx * channels,
            )
            for i in range(high)
        ]

    def _store(self, acc: Slot, u: Chunk, rows: int, columns: int) -> None:
        """acc (positions, columns) to dx, a row of positions at a time where they are not all."""
        kernel, dx = self.kernel, self.kernel.dx
        done, count, e = acc, rows * columns, dx.dtype.bytes
        if self.out is not None:
            done = self.out.next()
            self.k.dsp_cast(done, acc.at(0, count * u.n * FP32.bytes), FP32, dx.dtype)
        frame, pitch = u.n * e, kernel.width * kernel.shape.groups * e
        wide = kernel.positions[1]
        runs = [(0, count)] if columns == wide else [(i, columns) for i in range(rows)]
        for row, size in runs:
            self.k.data_move(
                dx.at(row * wide * pitch, frame, base="dx", rows=size, pitch=pitch),
                done.at(row * columns * frame, size * frame),
                dx.dtype,
            )


def _pattern(piece: tuple[Cut | WindowCut, Cut | WindowCut]) -> tuple[Side, Side]:
    rows, columns = piece
    return Side(rows.size, rows.taps), Side(columns.size, columns.taps)
