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
from npusim.kernels.dsp.im2row import DspGradient, DspNest, Place
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
from npusim.problem.work import FILTER_GRADIENT

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
    #: True if the axes of channels are the other way round in dw: those of x outside the taps.
    turned: ClassVar[bool] = False

    @property
    def work_class(self) -> str:
        return FILTER_GRADIENT

    def __post_init__(self) -> None:
        wide = self.shape.spatial[1]
        tiling = self.tiling
        if tiling.width < wide and tiling.rows > 1:
            raise ArgumentError(
                f"tiling has {tiling.rows} rows of width {tiling.width}; the input is {wide} wide, "
                "use one row or the full width"
            )

    # -- tilings ---------------------------------------------------------------------------

    @cached_property
    def ran(self) -> Tiling:
        """The tiling with the sizes that the problem leaves of it."""
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
        """All that its time depends on besides its tiling."""
        workspace = self.rows is not None
        return Gradient(self.shape, self.x.dtype, device, self.turned, workspace, self.spare_bytes)

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
        s = self.shape
        t = self.ran
        tiles = self._tiles()
        every = s.n * len(self.pieces)  # chunks of a tile
        begins = np.array([run.first for run in cut_runs(every, t.image_cores, every)])
        i, chunk = grid(np.arange(len(tiles["core"])), np.arange(every))
        run = np.searchsorted(begins, chunk, side="right") - 1
        tile = {name: column[i] for name, column in tiles.items()}
        columns = {
            "oc": tile["oc"],
            "t0": tile["t0"],
            "taps": tile["taps"],
            "n": tile["n"],
            "pattern": np.array(self.numbered)[chunk % len(self.pieces)],
            "first": np.isin(chunk, begins),
            "last": np.isin(chunk + 1, [*begins, every]),
            "adds": np.zeros(len(i), np.int64),
        }
        core = run * (t.working // t.image_cores) + tile["core"]
        return Tasks(core, Step, columns, self._bases(tile, chunk, run, core))

    def _bases(
        self, tile: dict[str, IntArray], chunk: IntArray, run: IntArray, core: IntArray
    ) -> dict[str, IntArray]:
        """Byte offsets of what the chunks of a run of images on a core load and store."""
        s = self.shape
        element = self.x.dtype.bytes
        image, piece = np.divmod(chunk, len(self.pieces))
        places = [(rows.start, columns.start) for rows, columns in self.pieces]
        row, column = np.array(places).T[:, piece]
        x = image * (prod(s.spatial) * s.cin) + (row * s.spatial[1] + column) * s.cin
        x = x + tile["group"] * s.cin_per_group + tile["n0"]
        read = [(rows.base, columns.base) for rows, columns in self.pieces]
        row, column = np.array(read).T[:, piece]
        dy = image * (prod(s.out) * s.cout) + (row * s.out[1] + column) * s.cout
        dy = dy + tile["group"] * s.cout_per_group + tile["oc0"]
        dw = self._place_in_dw(tile)
        bases = {"x": x * element, "dy": dy * element, "dw": dw * element}
        if self.sums is not None:
            bases["sums"] = (run * prod(self.dw.shape) + dw) * FP32.bytes
        if self.rows is not None:
            bases["rows"] = core * self.rows.shape[1] * element
        return bases

    def _place_in_dw(self, tile: dict[str, IntArray]) -> IntArray:
        """The first element of each tile in dw."""
        s = self.shape
        if self.turned:
            outer = tile["group"] * s.cin_per_group + tile["n0"]
            return (outer * s.taps + tile["t0"]) * s.cout_per_group + tile["oc0"]
        outer = tile["group"] * s.cout_per_group + tile["oc0"]
        return (outer * s.taps + tile["t0"]) * s.cin_per_group + tile["n0"]

    def _tiles(self) -> dict[str, IntArray]:
        """The tiles of cores that have the same images, core by core.

        Each has its core, its group, and the first and count of channels, taps and columns.
        """
        s = self.shape
        t = self.ran
        channel_runs = np.array(cut_runs(s.cout, t.channel_cores, t.channels, s.cout_per_group))
        tap_runs = np.array(cut_runs(s.taps, t.tap_cores, t.taps))
        column_runs = np.array(cut_runs(s.cin_per_group, t.column_cores, t.columns))
        channel, tap, column = grid(
            np.arange(len(channel_runs)), np.arange(len(tap_runs)), np.arange(len(column_runs))
        )
        channel_run, first_channel, oc = channel_runs[channel].T
        tap_run, t0, taps = tap_runs[tap].T
        column_run, n0, n = column_runs[column].T
        group, oc0 = np.divmod(first_channel, s.cout_per_group)
        tiles = {
            "core": (channel_run * t.tap_cores + tap_run) * t.column_cores + column_run,
            "group": group,
            "oc0": oc0,
            "t0": t0,
            "n0": n0,
            "oc": oc,
            "taps": taps,
            "n": n,
        }
        order = np.argsort(tiles["core"], kind="stable")
        return {name: column[order] for name, column in tiles.items()}

    def _sum_tasks(self, cores: int) -> Tasks[Step]:
        """The elements of dw whose partial sums each core adds up, in pieces."""
        pieces = cut_runs(prod(self.dw.shape), cores, sum_elements(self.ran.image_cores))
        core, first, size = np.array(pieces, np.int64).T
        columns = dict.fromkeys(Step._fields, np.zeros(len(core), np.int64))
        columns["adds"] = size
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
        positions = t.rows * t.width
        rows = t.taps * t.channels
        super().__init__(
            kernel,
            k,
            (positions, rows),
            (positions, t.columns),
            (rows, t.columns),
            b_name="x",
            out_name="dw",
        )
        if kernel.sums is None:
            return
        runs = t.image_cores
        elements = sum_elements(runs)
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
        sides = self.kernel.patterns[u.pattern]
        rows, columns = sides
        positions = rows.size * columns.size
        m = u.taps * u.oc
        a = self.a.next()
        b = self.b.next()
        self._load_x(b, positions, u.n)
        reading = {tap.number: tap for tap in self.kernel.taps(sides)}
        taps = [reading.get(i, Place(i)) for i in range(u.t0, u.t0 + u.taps)]
        self.im2row(a, u.oc, taps, sides, gaps=True)
        if self.kernel.rows is not None:
            a = self._through(self.kernel.rows, a, positions * m)
        acc = self.acc.next() if u.first else self.acc.last()
        self.k.dsp_gemm(acc, a, b, m, positions, u.n, self.dtype, init=u.first, transpose_a=True)
        if u.last:
            self._store(acc, u)

    def _add(self, elements: int) -> None:
        """The partial sums of so many elements added up, in the order of the images."""
        k = self.k
        sums = self.kernel.sums
        dw = self.kernel.dw
        assert sums is not None  # no other kernel has such steps
        runs = sums.shape[0]
        size = elements * FP32.bytes
        ones = self.ones.next()
        parts = self.parts.next()
        total = self.sum.next()
        k.fill(ones, 1, FP32)
        source = sums.at(0, size, base="sums", rows=runs, pitch=prod(dw.shape) * FP32.bytes)
        k.data_move(parts.at(0, runs * size), source, FP32)
        k.dsp_gemm(total, ones, parts, 1, runs, elements, FP32, init=True)
        result = total
        if self.dtype != FP32:
            result = self.rounded_sum.next()
            k.dsp_cast(result, total.at(0, size), FP32, self.dtype)
        stored = elements * dw.dtype.bytes
        k.data_move(dw.at(0, stored, base="dw"), result.at(0, stored), dw.dtype)

    def _load_x(self, b: Slot, positions: int, n: int) -> None:
        """A chunk of x: a frame of columns per position, or one piece where that is contiguous."""
        x = self.kernel.x
        pitch = self.kernel.shape.cin * x.dtype.bytes
        size = n * x.dtype.bytes
        if size == pitch and positions * size <= DMA_FIELD * 4:
            source = x.at(0, positions * size, base="x", pitch=pitch)
        else:
            source = x.at(0, size, base="x", rows=positions, pitch=pitch)
        self.k.data_move(b, source, x.dtype)

    def _through(self, rows: Tensor, built: Slot, count: int) -> Slot:
        """Write a chunk of ``count`` elements to the workspace, and read it as the product does."""
        read = self.a.next()
        element = rows.dtype.bytes
        step = DMA_FIELD * 4 // element  # of one descriptor
        pieces = [
            (first * element, min(step, count - first) * element) for first in range(0, count, step)
        ]
        for first, size in pieces:
            target = rows.at(first, size, base="rows")
            self.k.data_move(target, built.at(first, size), rows.dtype)
        for first, size in pieces:
            source = rows.at(first, size, base="rows")
            self.k.data_move(read.at(first, size), source, rows.dtype)
        return read

    def _store(self, acc: Slot, u: Step) -> None:
        """acc (taps, channels, columns) to dw, or as it is to where the partial sums are."""
        target = self.kernel.sums
        base = "sums"
        values = acc
        if target is None:
            target = self.kernel.dw
            base = "dw"
            values = self.rounded(acc, u.taps * u.oc * u.n)
        if self.kernel.turned:
            self._store_turned(target, base, values, u)
        else:
            self._store_rows(target, base, values, u)

    def _store_rows(self, target: Tensor, base: str, values: Slot, u: Step) -> None:
        """A tile to a tensor that is as dw: tap by tap, rows of columns."""
        s = self.kernel.shape
        element = target.dtype.bytes
        row = s.cin_per_group * element
        frame = u.n * element
        for tap in range(u.taps):
            place = target.at(tap * row, frame, base=base, rows=u.oc, pitch=s.taps * row)
            size = u.oc * frame
            self.k.data_move(place, values.at(tap * size, size), target.dtype)

    def _store_turned(self, target: Tensor, base: str, values: Slot, u: Step) -> None:
        """The same turned: tap by tap and channel by channel, columns of single elements."""
        s = self.kernel.shape
        element = target.dtype.bytes
        row = s.cout_per_group * element
        size = u.n * element
        for tap, channel in product(range(u.taps), range(u.oc)):
            offset = tap * row + channel * element
            place = target.at(offset, element, base=base, rows=u.n, pitch=s.taps * row)
            self.k.data_move(place, values.at((tap * u.oc + channel) * size, size), target.dtype)
