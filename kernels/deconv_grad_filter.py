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

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.base.objects import replace
from npusim.kernels.parts.dsp import DspGradient, DspNest, Place
from npusim.kernels.tilings.deconv_grad_filter import DMA_FIELD, Tiling, ranked_tilings
from npusim.language import (
    ArgumentError,
    Device,
    IntArray,
    Kernel,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    ceil_div,
    grid,
    in_pieces,
)

__all__ = ["ConvGradFilter", "DeconvGradFilter", "Tiling"]


class Chunk(NamedTuple):
    """A tile (channels ``oc``, taps from ``t0``, ``n`` columns) and a chunk of positions.

    The positions look like ``pattern``. The ``first`` chunk of a tile starts its sums, the ``last``
    stores them.
    """

    oc: int
    t0: int
    taps: int
    n: int
    pattern: int
    first: bool
    last: bool


@dataclass(frozen=True)
class DeconvGradFilter(DspGradient):
    """The kernel for ``x``, ``dy`` and ``dw`` in the layouts above.

    ``rows`` (cores, elements) is the workspace of the documentation that a caller may pass: rows of
    im2row are written to the core's chunk of it, and the multiplication reads them from there.
    """

    tiling: Tiling
    x: Tensor
    dy: Tensor
    dw: Tensor
    rows: Tensor | None = None

    name: ClassVar[str] = "deconv_grad_filter"
    uses: ClassVar[Mapping[str, str]] = {"dy": "inputs", "x": "outputs", "dw": "taps"}
    #: Whether the axes of channels are the other way round in dw: those of x outside the taps.
    turned: ClassVar[bool] = False

    def __post_init__(self) -> None:
        wide, tiling = self.shape.spatial[1], self.tiling
        if tiling.width < wide and tiling.rows > 1:
            raise ArgumentError(
                f"tiling has {tiling.rows} rows of width {tiling.width}; the input is {wide} wide, "
                "use one row or the full width"
            )

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
        return Plan(self._tasks(min(cores, self.tiling.cores or cores)), _Nest(self, k).emit)

    # -- who computes what -----------------------------------------------------------------

    def _tasks(self, cores: int) -> Tasks[Chunk]:
        s, e = self.shape, self.x.dtype.bytes
        tile, chunks = self._tiles(cores), len(self.pieces)
        t, b, c = grid(*map(np.arange, (len(tile["core"]), s.n, chunks)))
        columns = {
            **{name: tile[name][t] for name in ("oc", "t0", "taps", "n")},
            "pattern": np.array(self.numbered)[c],
            "first": (b == 0) & (c == 0),
            "last": (b == s.n - 1) & (c == chunks - 1),
        }
        channel = tile["group"] * s.cout_per_group + tile["oc0"]
        image_x, image_dy = (h * w * n for (h, w), n in ((s.spatial, s.cin), (s.out, s.cout)))
        places = np.array([(i.start, j.start, i.base, j.base) for i, j in self.pieces]).T
        row, column, row_dy, column_dy = places[:, c]
        x = b * image_x + (row * s.spatial[1] + column) * s.cin
        x = x + (tile["group"] * s.cin_per_group + tile["n0"])[t]
        dy = b * image_dy + (row_dy * s.out[1] + column_dy) * s.cout + channel[t]
        sides = [(s.cout_per_group, tile["oc0"]), (s.cin_per_group, tile["n0"])]
        (outer, first), (inner, second) = sides[::-1] if self.turned else sides
        dw = ((tile["group"] * outer + first) * s.taps + tile["t0"]) * inner + second
        bases = {"x": x * e, "dy": dy * e, "dw": dw[t] * e}
        if self.rows is not None:
            bases["rows"] = tile["core"][t] * self.rows.shape[1] * e
        return Tasks(tile["core"][t], Chunk, columns, bases)

    def _tiles(self, cores: int) -> dict[str, IntArray]:
        """Core, group, first and count of channels, of taps and of columns, core by core."""
        s, t, tables = self.shape, self.tiling, []
        taps, columns = (s.taps, t.taps), (s.cin_per_group, t.columns)
        for core in range(cores):
            first, end = s.cout * core // cores, s.cout * (core + 1) // cores
            for group in range(first // s.cout_per_group, ceil_div(end, s.cout_per_group)):
                low, high = (at - group * s.cout_per_group for at in (first, end))
                low, high = max(low, 0), min(high, s.cout_per_group)
                found, sizes = in_pieces((high - low, t.channels), taps, columns)
                same = np.full_like(found[0], core), np.full_like(found[0], group)
                tables.append((*same, low + found[0], *found[1:], *sizes))
        names = ("core", "group", "oc0", "t0", "n0", "oc", "taps", "n")
        return dict(zip(names, np.concatenate(tables, axis=1), strict=True))


class ConvGradFilter(DeconvGradFilter):
    """The filter gradient of an ordinary layer: that of the transposed one, turned.

        dw[g*OCG + oc, kh * KW + kw, ic] = sum over b, oh, ow of
            dy[b, oh, ow, g*OCG + oc] * x[b, oh*sh - pad_u + kh*dh, ow*sw - pad_l + kw*dw, ...]

    The layer that has dy for its input and x for its output is transposed, and its filter gradient
    is this one with the two channel axes exchanged: ``x`` and ``dy`` here are dy and x of the layer
    underneath. Only the way out differs:

        dw (OC, KH * KW, ICG) <- acc (taps, channels, columns)    # DMA, per tap and channel of x,
                                                                  # an element for every one of dy
    """

    name: ClassVar[str] = "conv_grad_filter"
    turned: ClassVar[bool] = True


class _Nest(DspNest):
    """The program of a chunk."""

    kernel: DeconvGradFilter

    def __init__(self, kernel: DeconvGradFilter, k: Language) -> None:
        s, t = kernel.shape, kernel.tiling
        positions = min(t.rows, s.spatial[0]) * min(t.width, s.spatial[1])
        rows = min(t.taps, s.taps) * min(t.channels, s.cout_per_group)
        columns = min(t.columns, s.cin_per_group)
        sizes = (positions, rows), (positions, columns), (rows, columns)
        super().__init__(kernel, k, sizes, ("x", "dw"))

    def emit(self, u: Chunk) -> None:
        """Load x, gather dy, multiply; store after the last chunk."""
        sides, dtype = self.kernel.patterns[u.pattern], self.dtype
        m, positions = u.taps * u.oc, sides[0].size * sides[1].size
        a, b = self.a.next(), self.b.next()
        self._load_x(b, positions, u.n)
        found = {tap.number: tap for tap in self.kernel.taps(sides)}
        taps = [found.get(i, Place(i)) for i in range(u.t0, u.t0 + u.taps)]
        self.im2row(a, u.oc, taps, sides, gaps=True)
        if self.kernel.rows is not None:
            a = self._through(self.kernel.rows, a, positions * m)
        acc = self.acc.next() if u.first else self.acc.last()
        self.k.dsp_gemm(acc, a, b, m, positions, u.n, dtype, init=u.first, transpose_a=True)
        if u.last:
            self._store(acc, u)

    def _load_x(self, b: Slot, positions: int, n: int) -> None:
        """A chunk of x: a frame of columns per position, or one piece where that is contiguous."""
        x, e = self.kernel.x, self.dtype.bytes
        pitch, size = self.kernel.shape.cin * e, n * e
        whole = size == pitch and positions * size <= DMA_FIELD * 4
        rows, run = (1, positions * size) if whole else (positions, size)
        self.k.data_move(b, x.at(0, run, base="x", rows=rows, pitch=pitch), x.dtype)

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

    def _store(self, acc: Slot, u: Chunk) -> None:
        """acc (taps, channels, columns) to dw: rows of columns, or columns of single elements."""
        s, dw, turned = self.kernel.shape, self.kernel.dw, self.kernel.turned
        done, e = self.rounded(acc, u.taps * u.oc * u.n), dw.dtype.bytes
        row = (s.cout_per_group if turned else s.cin_per_group) * e
        each, rows, count = (e, u.n, u.oc) if turned else (u.n * e, u.oc, 1)
        for tap, channel in product(range(u.taps), range(count)):
            at, size = tap * row + channel * e, each * rows
            self.k.data_move(
                dw.at(at, each, base="dw", rows=rows, pitch=s.taps * row),
                done.at((tap * count + channel) * size, size),
                dw.dtype,
            )
