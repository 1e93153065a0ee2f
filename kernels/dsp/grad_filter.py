"""Filter gradient of a transposed convolution on a DSP: im2row of dy, then GEMM.

dw[g, (oc*KH + kh)*KW + kw, ic] = sum over b, ih, iw of dy[b, r, c, g*OCG + oc] * x[b, ih, iw, ...]
with r = ih*sh - pad_u + kh*dh, c = iw*sw - pad_l + kw*dw; dy outside its rows and columns is 0.

    x (B, H, W, IC)   dy (B, OH, OW, OC)   dw (G, OCG*KH*KW, ICG)             NHWC, in GM
    A (positions, taps, channels) in SM    B (positions, columns) in AM       one chunk
    acc (taps, channels, columns) fp32 in AM

for tile (channels of a group, taps, columns of the group's input) of this core:
    for chunk of this core: whole input rows of an image (or pieces of one row):      # one task
        B <- x                                                       # DMA
        A <- 0 where the tap falls outside dy                        # S, scalar stores
        A <- dy, per tap: a frame of channels for every position     # DMA, strided
        workspace of the core <- A;  A <- workspace                  # DMA, if there is one
        acc (+)= A^T @ B                                             # VPU
    dw <- acc, through a cast for fp16                               # VPU, DMA

Channels of dy are innermost, so a frame is contiguous and im2row needs no transposition: A is
kept with the positions outside, an order the micro-kernel reads as fast, and the axes of dw are
put right as it is stored.

Cores stand in a grid and share channels, taps, columns and images evenly. Of the first three a core
owns whole elements of dw: nobody else adds to them, and who shares changes no bit. Cores that share
images have sums of the same elements. These are added up at the end, in the order of the images:

    sums[p] (G, OCG*KH*KW, ICG) fp32 <- acc of run p of the chunks   # DMA, in place of dw
    all cores meet                                                   # S
    for piece of dw of this core:                                    # one task
        parts (runs, elements) in AM <- sums                         # DMA
        sum <- ones (1, runs) in SM @ parts                          # S, VPU
        dw <- sum, through a cast for fp16                           # VPU, DMA

Rounding then depends on where the runs begin, so on how many cores share images.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.base.records import replace
from npusim.kernels.dsp.filter_space import ranked_tilings, searched_tilings
from npusim.kernels.dsp.filter_tiling import (
    DMA_FIELD,
    Tiling,
    cut_runs,
    sum_elements,
)
from npusim.kernels.dsp.filter_work import Gradient
from npusim.kernels.dsp.parts import DspGradient, DspNest, Place
from npusim.kernels.parts.hand_over import joined, with_meeting
from npusim.language import (
    FP32,
    ArgumentError,
    Device,
    IntArray,
    Kernel,
    Language,
    Least,
    Plan,
    Slot,
    Tasks,
    Tensor,
    grid,
)

__all__ = ["ConvGradFilter", "DeconvGradFilter", "Tiling"]


class Step(NamedTuple):
    """A tile (channels ``oc``, taps from ``t0``, ``n`` columns) and a chunk of positions.

    The positions look like ``pattern``. The ``first`` chunk of a tile starts its sums, the ``last``
    stores them. A step without channels adds up ``adds`` elements of dw; without these as well the
    cores meet in it.
    """

    oc: int
    t0: int
    taps: int
    n: int
    pattern: int
    first: bool
    last: bool
    adds: int


@dataclass(frozen=True)
class DeconvGradFilter(DspGradient):
    """The kernel for ``x``, ``dy`` and ``dw`` in the layouts above.

    ``rows`` (cores, elements) is the workspace of the documentation that a caller may pass: rows of
    im2row are written to the core's chunk of it, and the multiplication reads them from there.
    Sums of cores that share images may take ``spare_bytes`` of GM; without any, tilings that share
    them are not among the candidates.
    """

    tiling: Tiling
    x: Tensor
    dy: Tensor
    dw: Tensor
    rows: Tensor | None = None
    spare_bytes: int = 0

    name: ClassVar[str] = "deconv_grad_filter"
    uses: ClassVar[Mapping[str, str]] = {"dy": "inputs", "x": "outputs", "dw": "taps"}
    ranks_by_bound: ClassVar[bool] = True
    #: Whether the axes of channels are the other way round in dw: those of x outside the taps.
    turned: ClassVar[bool] = False

    def __post_init__(self) -> None:
        wide, tiling = self.shape.spatial[1], self.tiling
        if tiling.width < wide and tiling.rows > 1:
            raise ArgumentError(
                f"tiling has {tiling.rows} rows of width {tiling.width}; the input is {wide} wide, "
                "use one row or the full width"
            )

    # -- tilings ---------------------------------------------------------------------------

    @cached_property
    def ran(self) -> Tiling:
        """What the problem leaves of the tiling."""
        return self.tiling.clipped(self.shape)

    @cached_property
    def sums(self) -> Tensor | None:
        """The partial sums (runs of images, *dw) of cores that share images; None where none do."""
        runs = self.ran.image_cores
        return Tensor("sums", (runs, *self.dw.shape), FP32, "out") if runs > 1 else None

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return super().tensors if self.sums is None else (*super().tensors, self.sums)

    def used(self, cores: int) -> int:
        """The cores that the tiling shares the work among; ``ArgumentError`` beyond ``cores``."""
        used = self.ran.working
        if used > cores:
            raise ArgumentError(
                f"tiling shares the work among {used} cores ({self.ran}), the mask has {cores}: "
                "lower channel_cores, tap_cores, column_cores or image_cores, or use a larger mask"
            )
        return used

    def idle(self, cores: int) -> str:
        used = self.ran.working
        if used >= cores:
            return ""
        s = self.shape
        parts = s.cout * s.taps * s.cin_per_group * s.n * prod(s.spatial)  # of single positions
        more = used < min(cores, parts)
        why = "the tiling shares the work among no more" if more else "there is no more to share"
        return f"{used} of {cores} cores of the mask work: {why}"

    def gradient(self, device: Device) -> Gradient:
        """What its time depends on besides its tiling."""
        through = self.rows is not None
        return Gradient(self.shape, self.x.dtype, device, self.turned, through, self.spare_bytes)

    def ranked(
        self, device: Device, cores: int, few: int, warm: Collection[str] = ()
    ) -> list[tuple[float, Kernel]]:
        """The tilings that bounds hold to be the fastest for each number of cores, best first.

        All are given, so that what is looked at for fewer cores is looked at for more.
        """
        ranked = ranked_tilings(self.gradient(device), cores)
        return [(bound, replace(self, tiling=tiling)) for bound, tiling in ranked]

    def candidates(self, device: Device, cores: int) -> Iterator[Kernel]:
        """The same gradient with every tiling worth comparing."""
        for tiling in searched_tilings(self.gradient(device), cores):
            yield replace(self, tiling=tiling)

    def bounded(self, device: Device, cores: int) -> Iterator[tuple[Kernel, Least]]:
        gradient = self.gradient(device)
        for tiling in searched_tilings(gradient, cores):
            least = Least(gradient.least(tiling), tiling.working)
            yield replace(self, tiling=tiling), least

    def least(self, device: Device, cores: int) -> Least:
        return Least(self.gradient(device).least(self.ran), self.ran.working)

    # -- who computes what -----------------------------------------------------------------

    def plan(self, k: Language, cores: int) -> Plan[Step]:
        tasks = self._chunk_tasks()
        if self.sums is not None:
            tasks = joined(with_meeting(tasks, cores, last=True), self._sum_tasks(cores))
        return Plan(tasks, _Nest(self, k).emit)

    def _chunk_tasks(self) -> Tasks[Step]:
        """The chunks of every tile, those of a core tile by tile."""
        s, t, e = self.shape, self.ran, self.x.dtype.bytes
        tile, chunks = self._tiles(), len(self.pieces)
        every = s.n * chunks
        begins = np.array([run.first for run in cut_runs(every, t.image_cores, every)])
        i, chunk = grid(np.arange(len(tile["core"])), np.arange(every))
        b, c = np.divmod(chunk, chunks)
        run = np.searchsorted(begins, chunk, side="right") - 1
        columns = {
            **{name: tile[name][i] for name in ("oc", "t0", "taps", "n")},
            "pattern": np.array(self.numbered)[c],
            "first": np.isin(chunk, begins),
            "last": np.isin(chunk + 1, [*begins, every]),
            "adds": np.zeros(len(i), np.int64),
        }
        channel = tile["group"] * s.cout_per_group + tile["oc0"]
        image_x, image_dy = (h * w * n for (h, w), n in ((s.spatial, s.cin), (s.out, s.cout)))
        places = np.array([(p.start, q.start, p.base, q.base) for p, q in self.pieces]).T
        row, column, row_dy, column_dy = places[:, c]
        x = b * image_x + (row * s.spatial[1] + column) * s.cin
        x = x + (tile["group"] * s.cin_per_group + tile["n0"])[i]
        dy = b * image_dy + (row_dy * s.out[1] + column_dy) * s.cout + channel[i]
        sides = [(s.cout_per_group, tile["oc0"]), (s.cin_per_group, tile["n0"])]
        (outer, first), (inner, second) = sides[::-1] if self.turned else sides
        dw = (((tile["group"] * outer + first) * s.taps + tile["t0"]) * inner + second)[i]
        core = run * (t.working // t.image_cores) + tile["core"][i]
        bases = {"x": x * e, "dy": dy * e, "dw": dw * e}
        if self.sums is not None:
            bases["sums"] = (run * prod(self.dw.shape) + dw) * FP32.bytes
        if self.rows is not None:
            bases["rows"] = core * self.rows.shape[1] * e
        return Tasks(core, Step, columns, bases)

    def _tiles(self) -> dict[str, IntArray]:
        """Core of those that have the same images, group, first and count of all that a tile has.

        They stand core by core.
        """
        s, t = self.shape, self.ran
        channels = np.array(cut_runs(s.cout, t.channel_cores, t.channels, s.cout_per_group)).T
        taps = np.array(cut_runs(s.taps, t.tap_cores, t.taps)).T
        columns = np.array(cut_runs(s.cin_per_group, t.column_cores, t.columns)).T
        axes = channels, taps, columns
        places = grid(*(np.arange(axis.shape[1]) for axis in axes))
        channels, taps, columns = (axis[:, at] for axis, at in zip(axes, places, strict=True))
        of_channels, first_channel, oc = channels
        of_taps, t0, some_taps = taps
        of_columns, n0, n = columns
        group, oc0 = np.divmod(first_channel, s.cout_per_group)
        tiles = {
            "core": (of_channels * t.tap_cores + of_taps) * t.column_cores + of_columns,
            "group": group,
            "oc0": oc0,
            "t0": t0,
            "n0": n0,
            "oc": oc,
            "taps": some_taps,
            "n": n,
        }
        order = np.argsort(tiles["core"], kind="stable")
        return {name: column[order] for name, column in tiles.items()}

    def _sum_tasks(self, cores: int) -> Tasks[Step]:
        """The elements of dw whose partial sums each core adds up, in pieces."""
        pieces = cut_runs(prod(self.dw.shape), cores, sum_elements(self.ran.image_cores))
        core, first, size = np.array(pieces, np.int64).T
        none = np.zeros(len(core), np.int64)
        columns = dict.fromkeys(Step._fields, none) | {"adds": size}
        bases = {"sums": first * FP32.bytes, "dw": first * self.dw.dtype.bytes}
        return Tasks(core, Step, columns, bases)


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
    """The program of a step."""

    kernel: DeconvGradFilter

    def __init__(self, kernel: DeconvGradFilter, k: Language) -> None:
        t = kernel.ran
        positions, rows = t.rows * t.width, t.taps * t.channels
        sizes = (positions, rows), (positions, t.columns), (rows, t.columns)
        super().__init__(kernel, k, sizes, ("x", "dw"))
        if kernel.sums is None:
            return
        runs, elements = t.image_cores, sum_elements(t.image_cores)
        self.ones = k.buffer("SM", (runs,), FP32, name="ones")
        self.parts = k.buffer("AM", (runs, elements), FP32, slots=2, name="parts_am")
        self.sum = k.buffer("AM", (elements,), FP32, name="sum")
        if self.dtype != FP32:
            self.rounded_sum = k.buffer("AM", (elements,), self.dtype, name="rounded_sum")

    def emit(self, u: Step) -> None:
        """Load x, gather dy, multiply; store after the last chunk. Or meet; or add partial sums."""
        if u.adds:
            self._add(u.adds)
            return
        if not u.oc:
            self.k.core_barrier()
            return
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

    def _add(self, elements: int) -> None:
        """The partial sums of so many elements added up, in the order of the images."""
        k, sums, dw = self.k, self.kernel.sums, self.kernel.dw
        assert sums is not None  # no other kernel has such steps
        runs, whole = sums.shape[0], prod(dw.shape) * FP32.bytes
        size = elements * FP32.bytes
        ones, parts, total = self.ones.next(), self.parts.next(), self.sum.next()
        k.fill(ones, 1, FP32)
        source = sums.at(0, size, base="sums", rows=runs, pitch=whole)
        k.data_move(parts.at(0, runs * size), source, FP32)
        k.dsp_gemm(total, ones, parts, 1, runs, elements, FP32, init=True)
        done, stored = total, elements * dw.dtype.bytes
        if self.dtype != FP32:
            done = self.rounded_sum.next()
            k.dsp_cast(done, total.at(0, size), FP32, self.dtype)
        k.data_move(dw.at(0, stored, base="dw"), done.at(0, stored), dw.dtype)

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

    def _store(self, acc: Slot, u: Step) -> None:
        """acc (taps, channels, columns) to dw, or as it is to where the partial sums are."""
        count, sums = u.taps * u.oc * u.n, self.kernel.sums
        if sums is None:
            self._store_in(self.kernel.dw, "dw", self.rounded(acc, count), u)
        else:
            self._store_in(sums, "sums", acc, u)

    def _store_in(self, to: Tensor, base: str, done: Slot, u: Step) -> None:
        """A tile to a tensor that is as dw: rows of columns, or columns of single elements."""
        s, turned, e = self.kernel.shape, self.kernel.turned, to.dtype.bytes
        row = (s.cout_per_group if turned else s.cin_per_group) * e
        each, rows, count = (e, u.n, u.oc) if turned else (u.n * e, u.oc, 1)
        for tap, channel in product(range(u.taps), range(count)):
            offset, size = tap * row + channel * e, each * rows
            self.k.data_move(
                to.at(offset, each, base=base, rows=rows, pitch=s.taps * row),
                done.at((tap * count + channel) * size, size),
                to.dtype,
            )
