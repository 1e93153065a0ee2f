"""Filter gradient of a transposed convolution on a DSP: im2row of dy, then GEMM.

dw[g, (oc*KH + kh)*KW + kw, ic] = sum over b, ih, iw of dy[b, r, c, g*OCG + oc] * x[b, ih, iw, ...]
with r = ih*sh - pad_u + kh*dh, c = iw*sw - pad_l + kw*dw; dy outside its rows and columns is 0.

    x (B, H, W, IC)   dy (B, OH, OW, OC)   dw (G, OCG*KH*KW, ICG)             NHWC, in GM
    A (positions, taps, channels) in SM    B (positions, columns) in AM       one chunk
    acc (taps, channels, columns) fp32 in AM

for tile (channels of a group, taps, columns of the group's input) of this core:
    for image b:
        for chunk of whole input rows (pieces of a row where one does not fit):   # one task
            B <- x                                                       # DMA
            A <- 0 where the tap falls outside dy                        # S, scalar stores
            A <- dy, per tap: a frame of channels for every position     # DMA, strided
            workspace of the core <- A;  A <- workspace                  # DMA, if there is one
            acc (+)= A^T @ B                                             # VPU
    dw <- acc, through a cast for fp16                                   # VPU, DMA

Channels of dy are innermost, so a frame is contiguous and im2row needs no transposition: A is
kept with the positions outside, an order the micro-kernel reads as fast, and the axes of dw are
put right as it is stored. A core owns whole output channels: no element is added to by two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.tilings.deconv_grad_filter import DMA_FIELD, Tiling, ranked_tilings
from npusim.language import (
    FP32,
    ArgumentError,
    IntArray,
    Kernel,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    grid,
)
from npusim.shapes.convolution import Convolution

__all__ = ["DeconvGradFilter", "Tiling"]


class Chunk(NamedTuple):
    """A tile (channels ``oc``, taps from ``t0``, ``n`` columns) and a chunk of positions.

    Of the chunk's reach in dy the rows ``above`` to ``below`` and columns ``left`` to ``right``
    exist. The ``first`` chunk of a tile starts its sums, the ``last`` stores them.
    """

    oc: int
    t0: int
    taps: int
    n: int
    rows: int
    cols: int
    above: int
    below: int
    left: int
    right: int
    first: bool
    last: bool


@dataclass(frozen=True)
class DeconvGradFilter(Kernel):
    """The kernel for ``x``, ``dy`` and ``dw`` in the layouts above.

    ``rows`` (cores, elements) is the workspace of the documentation that a caller may pass: rows of
    im2row are written to the core's chunk of it, and the multiplication reads them from there.
    """

    shape: Convolution
    tiling: Tiling
    x: Tensor
    dy: Tensor
    dw: Tensor
    rows: Tensor | None = None

    name: ClassVar[str] = "deconv_grad_filter"
    role: ClassVar[str] = "dsp"

    def __post_init__(self) -> None:
        wide, tiling = self.shape.spatial[1], self.tiling
        if tiling.width < wide and tiling.rows > 1:
            raise ArgumentError(
                f"tiling has {tiling.rows} rows of width {tiling.width}; the input is {wide} wide, "
                "use one row or the full width"
            )

    @property
    def useful_macs(self) -> int:
        return self.shape.useful_macs

    @property
    def needed_bytes(self) -> dict[str, int]:
        s = self.shape
        return {
            self.dy.name: s.used("inputs", self.dy.size_bytes),
            self.x.name: s.used("outputs", self.x.size_bytes),
            self.dw.name: s.used("taps", self.dw.size_bytes),
        }

    def candidates(self, device: Device, cores: int) -> Iterator[Kernel]:
        """The same gradient with every tiling worth comparing, the best estimate first."""
        for _, tiling in ranked_tilings(self.shape, self.x.dtype, device, cores):
            yield replace(self, tiling=tiling)

    def ranked(
        self, device: Device, cores: int, few: int, warm: Collection[str] = ()
    ) -> list[tuple[float, Kernel]]:
        found = ranked_tilings(self.shape, self.x.dtype, device, cores)[:few]
        return [(time, replace(self, tiling=tiling)) for time, tiling in found]

    def plan(self, k: Language, cores: int) -> Plan[Chunk]:
        return Plan(self._tasks(min(cores, self.tiling.cores or cores)), self.nest(k).emit)

    def nest(self, k: Language) -> Nest:
        """The program of a chunk."""
        return Nest(self, k)

    def places(self, tile: dict[str, IntArray]) -> IntArray:
        """The element of dw where each tile begins."""
        s = self.shape
        channel = tile["group"] * s.cout_per_group + tile["oc0"]
        return (channel * s.taps + tile["t0"]) * s.cin_per_group + tile["n0"]

    # -- who computes what -----------------------------------------------------------------

    def _tasks(self, cores: int) -> Tasks[Chunk]:
        s, e = self.shape, self.x.dtype.bytes
        tiles, chunks = list(self._tiles(cores)), list(self._chunks())
        tile = _columns(tiles, ("core", "group", "oc0", "oc", "t0", "taps", "n0", "n"))
        chunk = _columns(chunks, ("x", "dy", "rows", "cols", "above", "below", "left", "right"))
        t, b, c = grid(*map(np.arange, (len(tiles), s.n, len(chunks))))
        borders = ("rows", "cols", "above", "below", "left", "right")
        columns = {
            **{name: tile[name][t] for name in ("oc", "t0", "taps", "n")},
            **{name: chunk[name][c] for name in borders},
            "first": (b == 0) & (c == 0),
            "last": (b == s.n - 1) & (c == len(chunks) - 1),
        }
        channel = tile["group"] * s.cout_per_group + tile["oc0"]
        image_x, image_dy = (h * w * n for (h, w), n in ((s.spatial, s.cin), (s.out, s.cout)))
        x = (b * image_x + chunk["x"][c]) + (tile["group"] * s.cin_per_group + tile["n0"])[t]
        dy = (b * image_dy + chunk["dy"][c]) + channel[t]
        dw = self.places(tile)[t]
        bases = {"x": x * e, "dy": dy * e, "dw": dw * e}
        if self.rows is not None:
            bases["rows"] = tile["core"][t] * self.rows.shape[1] * e
        return Tasks(tile["core"][t], Chunk, columns, bases)

    def _tiles(self, cores: int) -> Iterator[tuple[int, ...]]:
        """(core, group, first and count of channels, of taps, of columns), core by core."""
        s, t = self.shape, self.tiling
        for core in range(cores):
            first, end = s.cout * core // cores, s.cout * (core + 1) // cores
            for group in range(first // s.cout_per_group, ceil_div(end, s.cout_per_group)):
                low, high = (
                    max(first - group * s.cout_per_group, 0),
                    min(end - group * s.cout_per_group, s.cout_per_group),
                )
                channels, taps, columns = (
                    [(i, min(step, stop - i)) for i in range(start, stop, step)]
                    for start, stop, step in (
                        (low, high, t.channels),
                        (0, s.taps, t.taps),
                        (0, s.cin_per_group, t.columns),
                    )
                )
                for (oc0, oc), (t0, tn), (n0, n) in product(channels, taps, columns):
                    yield core, group, oc0, oc, t0, tn, n0, n

    def _chunks(self) -> Iterator[tuple[int, ...]]:
        """(offsets in an image of x and dy, extents, border distances), in order of positions.

        ``above`` and ``below`` bound the rows of dy that exist, ``left`` and ``right`` the
        columns, both counted from where tap (0, 0) of the chunk's first position falls and cut
        to the chunk's reach: chunks inside dy are alike.
        """
        s, t = self.shape, self.tiling
        (height, wide), (oh, ow) = s.spatial, s.out
        for ih, iw in product(range(0, height, t.rows), range(0, wide, t.width)):
            rows, cols = min(t.rows, height - ih), min(t.width, wide - iw)
            r, c = (i * st - p for i, st, (p, _) in zip((ih, iw), s.stride, s.padding, strict=True))
            reach = [
                (count - 1) * st + (k - 1) * d + 1
                for count, st, k, d in zip(
                    (rows, cols), s.stride, s.kernel, s.dilation, strict=True
                )
            ]
            above, below = _inside(r, oh, reach[0])
            left, right = _inside(c, ow, reach[1])
            seen = above < below and left < right
            dy = (r * ow + c) * s.cout if seen else 0
            yield (ih * wide + iw) * s.cin, dy, rows, cols, above, below, left, right


class Nest:
    """The program of a chunk, on the buffers of one core."""

    def __init__(self, kernel: DeconvGradFilter, k: Language) -> None:
        self.kernel, self.k = kernel, k
        s, t, dtype = kernel.shape, kernel.tiling, kernel.x.dtype
        positions = min(t.rows, s.spatial[0]) * min(t.width, s.spatial[1])
        rows, columns = (
            min(t.taps, s.taps) * min(t.channels, s.cout_per_group),
            min(t.columns, s.cin_per_group),
        )
        self.a = k.buffer("SM", (positions, rows), dtype, slots=2, name="im2row")
        self.b = k.buffer("AM", (positions, columns), dtype, slots=2, name="x_am")
        self.acc = k.buffer("AM", (rows, columns), FP32, name="acc")
        self.out = (
            k.buffer("AM", (rows, columns), dtype, name="dw_am") if dtype is not FP32 else None
        )

    def emit(self, u: Chunk) -> None:
        """Load x, gather dy, multiply; store after the last chunk."""
        m, positions, dtype = u.taps * u.oc, u.rows * u.cols, self.kernel.x.dtype
        a, b = self.a.next(), self.b.next()
        self._load_x(b, u)
        self._im2row(a, u)
        if self.kernel.rows is not None:
            a = self._through(self.kernel.rows, a, positions * m)
        acc = self.acc.next() if u.first else self.acc.last()
        self.k.dsp_gemm(acc, a, b, m, positions, u.n, dtype, init=u.first, transpose_a=True)
        if u.last:
            self.store(acc, u)

    def _load_x(self, b: Slot, u: Chunk) -> None:
        """A chunk of x: a frame of columns per position, or one piece where that is contiguous."""
        x, positions = self.kernel.x, u.rows * u.cols
        pitch, size = self.kernel.shape.cin * x.dtype.bytes, u.n * x.dtype.bytes
        whole = size == pitch and positions * size <= DMA_FIELD * 4
        source = (
            x.at(0, positions * size, base="x")
            if whole
            else x.at(0, size, base="x", rows=positions, pitch=pitch)
        )
        self.k.data_move(b, source, x.dtype)

    def _im2row(self, a: Slot, u: Chunk) -> None:
        """A chunk of im2row(dy): per tap, frames of channels, and zeros outside dy."""
        k, dy, s = self.k, self.kernel.dy, self.kernel.shape
        e = dy.dtype.bytes
        frame, row = u.oc * e, u.taps * u.oc * e
        pitch = s.stride[1] * s.cout * e
        loads = []
        # Zeros first: a scalar store after a DMA into the same slot would wait for it.
        for tap in range(u.taps):
            inside = self._frames(u, u.t0 + tap)
            for first, count in _gaps(inside, u.rows * u.cols):
                k.fill(a.at(first * row + tap * frame, frame, rows=count, pitch=row), 0, dy.dtype)
            loads += [(tap, *run) for run in inside]
        for tap, first, count, offset in loads:
            k.data_move(
                a.at(first * row + tap * frame, frame, rows=count, pitch=row),
                dy.at(offset * e, frame, base="dy", rows=count, pitch=pitch),
                dy.dtype,
            )

    def _through(self, rows: Tensor, built: Slot, count: int) -> Slot:
        """Write a chunk of ``count`` elements to the workspace, and read it as the product does."""
        read, e = self.a.next(), rows.dtype.bytes
        step = DMA_FIELD * 4 // e  # of one descriptor
        pieces = [(at * e, min(step, count - at) * e) for at in range(0, count, step)]
        for at, size in pieces:
            self.k.data_move(rows.at(at, size, base="rows"), built.at(at, size), rows.dtype)
        for at, size in pieces:
            self.k.data_move(read.at(at, size), rows.at(at, size, base="rows"), rows.dtype)
        return read

    def _frames(self, u: Chunk, tap: int) -> list[tuple[int, int, int]]:
        """Runs of positions that ``tap`` finds in dy: (first, count, element offset in dy)."""
        s = self.kernel.shape
        (sh, sw), out_w = s.stride, s.out[1]
        dr, dc = tap // s.kernel[1] * s.dilation[0], tap % s.kernel[1] * s.dilation[1]
        low = min(max(ceil_div(u.left - dc, sw), 0), u.cols)
        high = min(max(ceil_div(u.right - dc, sw), low), u.cols)
        runs: list[tuple[int, int, int]] = []
        for i in range(u.rows):
            if not u.above <= i * sh + dr < u.below or low == high:
                continue
            first, count = i * u.cols + low, high - low
            offset = ((i * sh + dr) * out_w + low * sw + dc) * s.cout
            if runs:
                start, length, begin = runs[-1]
                if start + length == first and begin + length * sw * s.cout == offset:
                    runs[-1] = (start, length + count, begin)
                    continue
            runs.append((first, count, offset))
        return runs

    def store(self, acc: Slot, u: Chunk) -> None:
        """acc (taps, channels, columns) to dw, where channels are outside the taps."""
        s, dw = self.kernel.shape, self.kernel.dw
        done, e = acc, dw.dtype.bytes
        if self.out is not None:
            done, count = self.out.next(), u.taps * u.oc * u.n
            self.k.dsp_cast(done, acc.at(0, count * FP32.bytes), FP32, dw.dtype)
        row, frame = s.cin_per_group * e, u.n * e
        for tap in range(u.taps):
            self.k.data_move(
                dw.at(tap * row, frame, base="dw", rows=u.oc, pitch=s.taps * row),
                done.at(tap * u.oc * frame, u.oc * frame),
                dw.dtype,
            )


def _columns(rows: list[tuple[int, ...]], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """A table as named columns."""
    return dict(zip(names, np.array(rows, np.int64).T, strict=True))


def _inside(start: int, size: int, reach: int) -> tuple[int, int]:
    """Which of ``reach`` places from ``start`` on lie in 0..size-1: from, to (excluded)."""
    return min(max(-start, 0), reach), min(max(size - start, 0), reach)


def _gaps(runs: list[tuple[int, int, int]], total: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the positions below ``total`` that no run covers."""
    at = 0
    for first, count, _ in (*runs, (total, 0, 0)):
        if first > at:
            yield at, first - at
        at = first + count
