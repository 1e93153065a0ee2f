"""What forward convolution and input gradient share: img2col of one operand times weights.

    out[o, q] = sum over kd, c1, kh, kw, c0 of  in[v(o, tap), c] * w[tap, c, q]

A "virtual" input position of output o through tap k is ``o * stride - before + k * dilation``;
the virtual input is the real one with ``insert - 1`` zeros between its rows and columns (1: none).
Feature maps are blocked (N, D, C1, H, W, C0); M = output positions, N = output channels,
K = (c1, kh, kw, c0) of one filter depth.

    for item in (slab of positions, image and depth, real group, n tile):  # spread over cores
        for kd that reaches the depth:                                     # one task each
            for planes of c1:
                L1 <- input rows the slab reads (zeros inserted in L1)     # MTE2
                for columns of (c1, kh, kw):
                    L1 <- weights of the columns and the n tile            # MTE2
                    for k in columns step base_k:
                        L0A <- img2col(input)   L0B <- weights             # MTE1
                        L0C += L0A @ L0B                                   # M
        out tile <- L0C, rounded to the result's type                      # FIX, or V and MTE3
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import ClassVar, NamedTuple

from npusim.base.records import replace
from npusim.kernels.estimate.fit import columns_in_ub, no_product
from npusim.kernels.implicit_gemm.geometry import (
    Geometry,
    Rows,
    filter_places,
    product_of,
    stack,
    weight_loads,
    weight_rows,
    window,
)
from npusim.kernels.implicit_gemm.loads import Part, load_input, side_by_side
from npusim.kernels.implicit_gemm.space import Products
from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.implicit_gemm.walk import Step, Walk
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.parts.plane import Plane, cut_plane
from npusim.kernels.parts.tiled import Tiled
from npusim.kernels.parts.transposed import images_window
from npusim.kernels.vector.epilogue import Epilogue, EpilogueStore, Target
from npusim.language import (
    FP32,
    FRACTAL_BYTES,
    ArgumentError,
    Device,
    IntArray,
    Kernel,
    Language,
    Line,
    Plan,
    Slot,
    SlotRegion,
    Tensor,
    ceil_div,
    round_up,
)
from npusim.problem.axis import Reading
from npusim.problem.convolution import Convolution

__all__ = ["Epilogue", "ImplicitGemm", "Tiling"]


@dataclass(frozen=True)
class ImplicitGemm(Tiled):
    """Base of the two kernels; a subclass says which way it goes, and how weights feed L0B.

    An ``epilogue`` works on tiles of the output before they are stored, where they pass UB.
    Estimates of tilings do not know it.
    """

    shape: Convolution
    tiling: Tiling
    x: Tensor
    w: Tensor
    y: Tensor
    hf32: bool = False
    epilogue: Epilogue | None = None

    #: Whether columns of img2col meet the filter's taps backwards.
    rotated: ClassVar[bool]

    def __post_init__(self) -> None:
        g = self.geometry
        if self.tiling.form == "window" and not (g.h.fits_window() and g.w.fits_window()):
            raise ArgumentError(
                "tiling form is 'window', but img2col loads know strides to 63, and padding and "
                "dilation to 255; use form 'taps' or 'phases', or tiling 'auto'"
            )
        planes = g.planes_in
        if self.tiling.resident:  # to cut a huge plane takes time
            columns = planes * self.plane.live().most_taps
            if self.tiling.step_columns < columns:
                raise ArgumentError(
                    f"tiling is resident with step_columns {self.tiling.step_columns}; weights "
                    f"that stay in L1 are loaded at once, all {columns} columns"
                )
        if self.tiling.resident_input and self.tiling.step_planes < planes:
            raise ArgumentError(
                f"tiling is resident_input with step_planes {self.tiling.step_planes}; a slab that "
                f"stays in L1 is loaded at once, all {planes} planes"
            )
        several = g.adds_up(self.tiling.form)
        if (g.kernel_d > 1 or several) and self.tiling.step_m * self.tiling.step_n > 1:
            parts = "single taps" if self.tiling.form == "taps" else "bands of a wide filter"
            what = parts if several else "filter depths"
            raise ArgumentError(
                f"tiling has {self.tiling.step_m} x {self.tiling.step_n} tiles in L1, but {what} "
                "add up in one tile at a time; leave step_m and step_n at 1"
            )
        if self.epilogue:
            self.epilogue.check_over(self.name, self.y, g.all_out * g.c0)
            if self.needs_clear or self.zeros:
                raise ArgumentError(
                    f"{self.name}: some outputs are reached by no input and cleared before, so "
                    "that they would miss the epilogue; launch it as an element-wise kernel"
                )
        if self.tiling.images > 1 and several:
            raise ArgumentError(
                f"tiling images is {self.tiling.images}, but a filter of {g.h.kernel} x "
                f"{g.w.kernel} adds up in bands, each of which reads other rows or columns of an "
                "image; set images=1"
            )
        if self.tiling.images > 1 and not self._dense:
            raise ArgumentError(
                f"tiling images is {self.tiling.images}, but form {self.tiling.form!r} brings rows "
                "or columns to L1 with gaps between them; set images=1, or form='phases'"
            )

    @classmethod
    def geometry_of(cls, shape: Convolution) -> Geometry:
        """The product this kernel makes of a convolution."""
        return product_of(shape, gradient=cls.rotated)

    def weight_base(self, group: IntArray, kd: IntArray, n0: IntArray) -> IntArray:
        """Byte offset of the weights of a real group, filter depth and first output plane."""
        g = self.geometry
        row = (group * g.kernel_d + kd) * g.planes_in * g.taps
        return row * self.weight_row + n0 * g.c0 // 16 * FRACTAL_BYTES

    @property
    def weight_row(self) -> int:
        """Bytes of a row of the weights: a filter place of a plane."""
        return ceil_div(self.geometry.planes_out * self.geometry.c0, 16) * FRACTAL_BYTES

    def load_weights(
        self, k: Language, n: range, b1: Slot, columns: range, places: Sequence[int]
    ) -> None:
        """L1 <- weights of ``columns`` (c1 * taps + tap of ``places``) for output blocks ``n``."""
        c0, rows = self.geometry.c0, weight_rows(places, columns, self.geometry.taps)
        size = ceil_div(len(n) * c0, 16) * FRACTAL_BYTES
        self.load_rows(k, b1, rows, n.start * c0 // 16 * FRACTAL_BYTES, size)

    def load_rows(self, k: Language, b1: Slot, rows: list[Rows], at: int, size: int) -> None:
        """L1 <- the ``size`` bytes of each row of the weights that lie ``at`` bytes in it."""
        row = self.weight_row
        for r in rows:
            pitch = r.gm_pitch * row
            source = self.w.at(r.gm * row + at, size, base="w", rows=r.number, pitch=pitch)
            target = b1.at(r.l1 * size, size, rows=r.number, pitch=r.l1_pitch * size)
            k.data_move(target, source, self.x.dtype)

    @abstractmethod
    def feed_weights(
        self, k: Language, n: int, slots: tuple[Slot, Slot], at: tuple[range, range], taps: int
    ) -> None:
        """L0B <- the columns ``at[1]`` of the L1 slot that holds the columns ``at[0]``."""

    @property
    def useful_macs(self) -> int:
        return self.shape.useful_macs

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        every = (self.x, self.w, self.y, *(self.epilogue.tensors if self.epilogue else ()))
        return tuple(dict.fromkeys(every))

    @cached_property
    def geometry(self) -> Geometry:
        """The sizes of the product."""
        return self.geometry_of(self.shape)

    @cached_property
    def plane(self) -> Plane:
        """The slabs of an output plane."""
        t, g = self.tiling, self.geometry
        return cut_plane(g.h, g.w, t.base_m * t.step_m, self.height, form=t.form)

    @property
    def _dense(self) -> bool:
        """Whether neither rows nor columns of the input lie apart, in L1 or in GM."""
        axes = (self.plane.rows, self.plane.columns)
        readings = [reading for axis in axes for reading in axis.readings[0]]
        return all(r.insert == 1 == r.inputs_apart for r in readings)

    @property
    def zeros(self) -> bool:
        """Whether zeros between positions are stored with them, in whole rows of one phase."""
        return self.tiling.zeros and self.plane.live().filled(self.geometry.h.out)

    @property
    def height(self) -> int:
        """Rows whose slabs a core takes one after another, 0 where slabs are shared out singly."""
        t = self.tiling
        return max(1, t.single_core_m // self.geometry.w.out) if t.single_core_m else 0

    @property
    def c0_out(self) -> int:
        """Channels in a block of the output."""
        return 8 if self.y.dtype.bytes == 4 and self.x.dtype.bytes == 4 else 16

    @property
    def block(self) -> int:
        """Bytes of a block of output channels at one position."""
        return self.c0_out * self.y.dtype.bytes

    @cached_property
    def ran(self) -> Tiling:
        """The tiling with the sizes that the shape leaves of it."""
        t, g = self.tiling, self.geometry
        columns = min(t.step_columns, g.planes_in * self.plane.live().most_taps)
        positions, channels = self.plane.live().most_positions, round_up(g.planes_out * g.c0, 16)
        base_m, base_n = min(t.base_m, max(1, positions)), min(t.base_n, channels)
        return replace(
            t,
            base_m=base_m,
            base_n=base_n,
            step_m=min(t.step_m, max(1, ceil_div(positions, base_m))),
            step_n=min(t.step_n, ceil_div(channels, base_n)),
            images=min(t.images, g.images),
            zeros=self.zeros,
            base_k=max(g.c0, min(t.base_k, columns * g.c0)),  # whole columns, at least one
            step_planes=min(t.step_planes, g.planes_in),
            step_columns=columns,
        )

    @property
    def needs_clear(self) -> bool:
        """Whether some outputs are reached by no input and must be cleared before."""
        g = self.geometry
        if not self.shape.reads_any:
            return True
        gaps = self.plane.live().positions < g.h.out * g.w.out and not self.zeros
        return gaps or not all(g.live) or (g.groups - 1) * g.planes_in >= g.all_in

    @property
    def before(self) -> tuple[Kernel, ...]:
        """Clears outputs that no input reaches."""
        return (MemSet(self.y, few=True),) if self.needs_clear else ()

    def spaces(self, device: Device, cores: int, held: tuple[bool, ...]) -> list[Products]:
        """The tilings to choose from: single taps only where no other form fits."""
        g, rate = self.geometry, "hf32" if self.hf32 else self.x.dtype.name
        for some in (g.forms, ("taps",)):
            space = Products(device, cores, held[:2], g, self.x.dtype, rate, self.rotated, some)
            if some and len(space.rows["cut"]):
                return [space]
        raise no_product(device, g.c0, self.x.dtype)

    def plan(self, k: Language, cores: int) -> Plan[Step]:
        return Plan(Walk(self).tasks(min(cores, self.tiling.cores or cores)), _Nest(self, k).emit)


class _Tile(NamedTuple):
    """Positions of a slab and blocks of a step's output channels that are summed in ``c``."""

    m: range
    n: range
    c: Slot


class _Nest:
    """The program of a step, on the buffers of one core."""

    def __init__(self, kernel: ImplicitGemm, k: Language) -> None:
        self.kernel, self.k = kernel, k
        t, dtype, n, base_k = kernel.ran, kernel.x.dtype, kernel.ran.base_n, kernel.ran.base_k
        live = kernel.plane.live()
        self.readings = (live.rows.readings[0], live.columns.readings[0])
        stacks = [stack(h, t.images).h for h in self.readings[0]]
        wide, columns = (live.columns.most(name) for name in ("size", "count"))
        pixels = max([1, *(h.size for h in stacks)]) * max(1, wide)
        m = max([1, *(h.outputs for h in stacks)]) * max(1, columns)
        m = round_up(m if t.step_m == 1 else min(m, t.base_m), 16)
        x_l1 = (t.step_planes, pixels, 32 // dtype.bytes)
        w_l1 = (t.step_columns, n * t.step_n, kernel.geometry.c0)
        self.x1 = k.buffer("L1", x_l1, dtype, slots=t.l1_slots, name="x_l1")
        self.w1 = k.buffer("L1", w_l1, dtype, slots=t.weight_slots, name="w_l1")
        self.a = k.buffer("L0A", (m, base_k), dtype, slots=t.l0_slots, name="x_l0a")
        self.b = k.buffer("L0B", (base_k, n), dtype, slots=t.l0_slots, name="w_l0b")
        self.c = k.buffer(
            "L0C", (m, n), FP32, slots=t.l0c_slots, name="y_l0c", unit_flag=t.unit_flag
        )
        self.staging = self.epilogue = self.picture = None
        if kernel.epilogue:
            g, pairs = kernel.geometry, product(*self.readings)
            lines = max(len(g.output_lines(t.images, *pair, kernel.block)) for pair in pairs)
            self.epilogue = EpilogueStore(k, kernel.epilogue, kernel.y, (m, n // 16), lines)
            return
        count, y = n // 16, kernel.y.dtype
        if kernel.zeros:
            if k.has_path("L0C", "GM"):
                raise ArgumentError(
                    f"tiling zeros: L0C of {k.device_name} drains to global memory; zeros are "
                    "stored with other positions in UB only: leave it out"
                )
            around = max(map(kernel.geometry.spread, self.readings[0]))
            count = min(count, columns_in_ub(k.device, m + around, y.bytes)) or 1
            self.picture = k.buffer("UB", (count, around * 16), y, slots=2, name="picture_ub")
        self.staging = k.fixpipe_staging(m, y, columns=count)

    def emit(self, u: Step) -> None:
        """One filter depth of the tiles of one slab and load of weights, through some taps."""
        t, (h, w) = self.kernel.tiling, self._reading(u.h, u.w)
        positions = stack(h, u.images).h.outputs * w.outputs
        rows = positions if t.step_m == 1 else t.base_m
        for n, m in product(self._tiles_n(u), range(0, positions, rows)):
            c = self.c.next() if u.first else self.c.last()
            tile = _Tile(range(m, min(m + rows, positions)), n, c)
            self._sum(u, tile, again=n.start + m > 0)
            if u.last:
                self.k.once(self._store, u[:3], tile)

    def _reading(self, h: int, w: int) -> tuple[Reading, Reading]:
        """How rows and columns of a slab read the input, by the numbers of a step."""
        return self.readings[0][h], self.readings[1][w]

    def _sum(self, u: Step, tile: _Tile, *, again: bool) -> None:
        """All products of a tile; operands complete in K that came for one before are there."""
        t, g, (h, w) = self.kernel.tiling, self.kernel.geometry, self._reading(u.h, u.w)
        taps = h.kernel * w.kernel
        started, steps = not u.first, (t.step_planes * taps, t.step_columns, taps)
        for plane in range(0, u.planes, t.step_planes):
            planes = min(t.step_planes, u.planes - plane)
            part = Part(h, w, u.images, plane, planes)
            there = u.held or (again and planes == u.planes)
            x1 = self.x1.last() if there else self.x1.next()
            if not there:
                load_input(self.k, x1, self.kernel.x, g, part)
            held = x1.at(0, planes * stack(h, u.images).h.size * w.size * 32)
            for columns, used in weight_loads(plane, planes, u.planes, steps):
                there = u.kept or (again and len(columns) == u.planes * taps)
                w1 = self.w1.last() if there else self._load_weights(u, columns, used)
                first = plane * taps
                at = tuple(range(r.start - first, r.stop - first) for r in (columns, used))
                operands = held, self._behind(w1, columns, tile.n)
                self.k.once(self._products, (*u[:3], planes), tile, operands, at, not started)
                started = True

    def _products(
        self,
        loaded: tuple[int, int, int, int],
        tile: _Tile,
        operands: tuple[SlotRegion, Slot],
        columns: tuple[range, range],
        init: bool,
    ) -> None:
        """The products of what lies in L1: of a load of weights those columns that are used.

        ``loaded`` are the numbers of the readings, images and planes; columns count from the first
        plane of the input that is loaded.
        """
        (h, w), (images, planes), g = self._reading(*loaded[:2]), loaded[2:], self.kernel.geometry
        over = window(stack(h, images).h, w)
        if side_by_side(g, Part(h, w, images, 0, planes)):
            over = images_window(images, planes, h.size * w.size)
        k, dtype, (x1, w1), (held, used) = self.k, self.kernel.x.dtype, operands, columns
        rows, n, taps = len(tile.m), len(tile.n), h.kernel * w.kernel
        step = max(1, self.kernel.tiling.base_k // g.c0)
        for j in range(used.start, used.stop, step):
            now, first = range(j, min(j + step, used.stop)), init and j == used.start
            kk, a, b = len(now) * g.c0, self.a.next(), self.b.next()
            k.load3d(a, x1, over, dtype, m=(tile.m.start, rows), k=(j * g.c0, kk))
            self.kernel.feed_weights(k, n, (b, w1), (held, now), taps)
            k.mmad(tile.c, a, b, rows, kk, n * g.c0, dtype, init=first, hf32=self.kernel.hf32)

    def _load_weights(self, u: Step, columns: range, used: range) -> Slot:
        """The L1 slot with the task's weights of ``columns``, loaded unless it has them."""
        if used.start != columns.start:
            return self.w1.last()
        w1, (h, w) = self.w1.next(), self._reading(u.h, u.w)
        places = filter_places(h, w, self.kernel.geometry.w.kernel)
        for n in self._tiles_n(u):
            at = self._behind(w1, columns, n)
            self.kernel.load_weights(self.k, n, at, columns, places)
        return w1

    def _tiles_n(self, u: Step) -> list[range]:
        """The output channels of each tile along N, in blocks."""
        step = self.kernel.tiling.base_n // self.kernel.geometry.c0
        return [range(n, min(n + step, u.n)) for n in range(0, u.n, step)]

    def _behind(self, w1: Slot, columns: range, n: range) -> Slot:
        """Where the weights of a tile lie: those of one tile behind those of another."""
        return w1.behind(len(columns) * n.start * self.kernel.geometry.c0 * 32)

    def _store(self, slab: tuple[int, int, int], tile: _Tile) -> None:
        """Y <- the tile, one piece where its outputs follow each other.

        ``slab`` are the numbers of its readings and images.
        """
        k, g, y, c0 = self.k, self.kernel.geometry, self.kernel.y, self.kernel.c0_out
        block, n, m = self.kernel.block, len(tile.n) * g.c0, len(tile.m)
        (h, w, images), plane = slab, g.h.out * g.w.out * block
        lines = g.output_lines(images, *self._reading(h, w), block)
        at = tile.n.start * g.c0 // c0 * plane + tile.m.start * block
        whole = len(lines) == 1 and (m == 1 or lines[0].pitch == block)
        if self.epilogue:
            lines = [Line(0, m, 0, block)] if whole else lines
            self.epilogue.store(Target(at, plane, lines, tile.n.start * g.c0 * 4), tile.c, m, n)
            return
        if whole and not self.picture:
            out = y.at(at, m * block, base="y", rows=n // c0, pitch=plane)
            k.fixpipe(out, tile.c, m, n, y.dtype, staging=self.staging, c0=c0)
            return
        size = g.spread(self._reading(h, w)[0]) * block if self.picture else block
        out, ub = y.at(at, size, base="y", rows=n // c0, pitch=plane), self.staging
        k.fixpipe_scatter(out, lines, tile.c, m, n, y.dtype, ub, self.picture, c0=c0)
