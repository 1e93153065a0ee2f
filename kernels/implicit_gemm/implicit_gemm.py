"""An implicit matrix product, img2col of one operand times weights: forward and input gradient.

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

from npusim.base.records import with_values
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
    BufferHandle,
    Device,
    IntArray,
    Kernel,
    Language,
    Line,
    Plan,
    Slot,
    SlotRegion,
    Tensor,
    Window,
    ceil_div,
    round_up,
)
from npusim.problem.convolution import Convolution
from npusim.problem.work import DEPTH_WISE, FORWARD

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

    #: True if columns of img2col meet the filter's taps backwards.
    rotated: ClassVar[bool]

    def __post_init__(self) -> None:
        g = self.geometry
        if self.tiling.form == "window" and not (g.h.fits_window() and g.w.fits_window()):
            raise ArgumentError(
                "tiling form is 'window', but img2col loads know strides to 63, and padding and "
                "dilation to 255; use form 'taps' or 'phases', or tiling 'auto'"
            )
        self._check_resident()
        self._check_sums()
        self._check_images()
        if self.epilogue:
            self.epilogue.check_over(self.name, self.y, g.all_out * g.c0)
            if self.needs_clear or self.zeros:
                raise ArgumentError(
                    f"{self.name}: some outputs are reached by no input and cleared before, so "
                    "that they would miss the epilogue; launch it as an element-wise kernel"
                )

    def _check_resident(self) -> None:
        """Raise ``ArgumentError`` where operands that stay in L1 do not come at once."""
        planes = self.geometry.planes_in
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

    def _check_sums(self) -> None:
        """Raise ``ArgumentError`` for several tiles in L1 where several products add up in one."""
        g = self.geometry
        t = self.tiling
        several = g.adds_up(t.form)
        if (g.kernel_d > 1 or several) and t.step_m * t.step_n > 1:
            terms = "filter depths"
            if several:
                terms = "single taps" if t.form == "taps" else "bands of a wide filter"
            raise ArgumentError(
                f"tiling has {t.step_m} x {t.step_n} tiles in L1, but {terms} "
                "add up in one tile at a time; leave step_m and step_n at 1"
            )

    def _check_images(self) -> None:
        """Raise ``ArgumentError`` for several images in a slab where each is loaded by itself."""
        g = self.geometry
        t = self.tiling
        if t.images > 1 and g.adds_up(t.form):
            raise ArgumentError(
                f"tiling images is {t.images}, but a filter of {g.h.kernel} x {g.w.kernel} adds "
                "up in bands, each of which reads other rows or columns of an image; set images=1"
            )
        if t.images > 1 and not self._dense:
            raise ArgumentError(
                f"tiling images is {t.images}, but form {t.form!r} brings rows or columns to L1 "
                "with gaps between them; set images=1, or form='phases'"
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
        c0 = self.geometry.c0
        rows = weight_rows(places, columns, self.geometry.taps)
        size = ceil_div(len(n) * c0, 16) * FRACTAL_BYTES
        self.load_rows(k, b1, rows, n.start * c0 // 16 * FRACTAL_BYTES, size)

    def load_rows(self, k: Language, b1: Slot, rows: list[Rows], offset: int, size: int) -> None:
        """L1 <- of each row of the weights the ``size`` bytes from ``offset`` on."""
        row = self.weight_row
        for r in rows:
            pitch = r.gm_pitch * row
            source = self.w.at(r.gm * row + offset, size, base="w", rows=r.number, pitch=pitch)
            target = b1.at(r.l1 * size, size, rows=r.number, pitch=r.l1_pitch * size)
            k.data_move(target, source, self.x.dtype)

    @abstractmethod
    def feed_weights(
        self, k: Language, b: Slot, b1: Slot, n: int, columns: range, step: range, taps: int
    ) -> None:
        """L0B <- the columns ``step``, of ``n`` output blocks, of the L1 slot with ``columns``."""

    @property
    def useful_macs(self) -> int:
        return self.shape.useful_macs

    @property
    def work_class(self) -> str:
        return DEPTH_WISE if self.shape.is_depth_wise else FORWARD

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        operands = [self.x, self.w, self.y]
        if self.epilogue:
            operands += self.epilogue.tensors
        return tuple(dict.fromkeys(operands))

    @cached_property
    def geometry(self) -> Geometry:
        """Sizes of the product."""
        return self.geometry_of(self.shape)

    @cached_property
    def plane(self) -> Plane:
        """The slabs of an output plane."""
        t = self.tiling
        g = self.geometry
        slab = t.base_m * t.step_m
        return cut_plane(g.h, g.w, slab, self.height, form=t.form, whole_rows=t.whole_rows)

    @property
    def _dense(self) -> bool:
        """True if neither rows nor columns of the input lie apart, in L1 or in GM."""
        axes = (self.plane.rows, self.plane.columns)
        readings = [reading for axis in axes for reading in axis.readings[0]]
        return all(r.insert == 1 == r.inputs_apart for r in readings)

    @property
    def zeros(self) -> bool:
        """True if zeros between positions are stored with them, in whole rows of one phase."""
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
        t = self.tiling
        g = self.geometry
        live = self.plane.live()
        columns = min(t.step_columns, g.planes_in * live.most_taps)
        positions = live.most_positions
        channels = round_up(g.planes_out * g.c0, 16)
        base_m = min(t.base_m, max(1, positions))
        base_n = min(t.base_n, channels)
        return with_values(
            t,
            base_m=base_m,
            base_n=base_n,
            step_m=min(t.step_m, max(1, ceil_div(positions, base_m))),
            step_n=min(t.step_n, ceil_div(channels, base_n)),
            images=min(t.images, g.images),
            zeros=self.zeros,
            whole_rows=bool(live.columns.most("offset")),
            base_k=max(g.c0, min(t.base_k, columns * g.c0)),  # whole columns, at least one
            step_planes=min(t.step_planes, g.planes_in),
            step_columns=columns,
        )

    @property
    def needs_clear(self) -> bool:
        """True if some outputs are reached by no input and must be cleared before."""
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
        g = self.geometry
        rate = "hf32" if self.hf32 else self.x.dtype.name
        for forms in (g.forms, ("taps",)):
            space = Products(device, cores, held[:2], g, self.x.dtype, rate, self.rotated, forms)
            if forms and len(space.rows["cut"]):
                return [space]
        raise no_product(device, g.c0, self.x.dtype)

    def plan(self, k: Language, cores: int) -> Plan[Step]:
        return Plan(Walk(self).tasks(min(cores, self.tiling.cores or cores)), _Nest(self, k).emit)


class _Slab(NamedTuple):
    """A slab of ``images``, with the numbers of the readings of its rows and columns."""

    h: int
    w: int
    images: int


class _Tile(NamedTuple):
    """Positions of a slab and blocks of a step's output channels that are summed in ``c``."""

    m: range
    n: range
    c: Slot


class _Operands(NamedTuple):
    """The operands in L1: ``planes`` of a slab's input, and weights of ``columns``.

    Columns count from the first of these planes.
    """

    slab: _Slab
    planes: int
    x: SlotRegion
    w: Slot
    columns: range


class _Nest:
    """The program of a step, on the buffers of one core."""

    def __init__(self, kernel: ImplicitGemm, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        t = kernel.ran
        dtype = kernel.x.dtype
        live = kernel.plane.live()
        self.rows = live.rows.readings[0]
        self.columns = live.columns.readings[0]
        pixels = self._most_rows("size") * max(1, live.columns.most("size"))
        positions = self._most_rows("outputs") * max(1, live.columns.most("count"))
        if t.step_m > 1:
            positions = min(positions, t.base_m)
        m = round_up(positions, 16)
        n = t.base_n
        x_l1 = (t.step_planes, pixels, 32 // dtype.bytes)
        w_l1 = (t.step_columns, n * t.step_n, kernel.geometry.c0)
        self.x1 = k.buffer("L1", x_l1, dtype, slots=t.l1_slots, name="x_l1")
        self.w1 = k.buffer("L1", w_l1, dtype, slots=t.weight_slots, name="w_l1")
        self.a = k.buffer("L0A", (m, t.base_k), dtype, slots=t.l0_slots, name="x_l0a")
        self.b = k.buffer("L0B", (t.base_k, n), dtype, slots=t.l0_slots, name="w_l0b")
        self.c = k.buffer(
            "L0C", (m, n), FP32, slots=t.l0c_slots, name="y_l0c", unit_flag=t.unit_flag
        )
        self.epilogue = self._epilogue(m, n)
        self.picture = None
        self.staging = None
        if not self.epilogue:
            if kernel.zeros:
                self.picture = self._picture(m, n)
            self.staging = self._staging(m, n)

    def _most_rows(self, name: str) -> int:
        """The most rows that slabs read ("size") or write ("outputs"), of stacked images."""
        stacks = [stack(h, self.kernel.ran.images).h for h in self.rows]
        most: int = max([1, *(getattr(h, name) for h in stacks)])
        return most

    def _epilogue(self, m: int, n: int) -> EpilogueStore | None:
        """The epilogue's way out of L0C for tiles of ``m`` positions and ``n`` channels."""
        kernel = self.kernel
        if not kernel.epilogue:
            return None
        images = kernel.ran.images
        lines = max(
            len(kernel.geometry.output_lines(images, h, w, kernel.block))
            for h, w in product(self.rows, self.columns)
        )
        return EpilogueStore(self.k, kernel.epilogue, kernel.y, (m, n // 16), lines)

    def _picture_rows(self) -> int:
        """Positions of a slab's rows and of those behind each, of the slab that has most."""
        return max(map(self.kernel.geometry.spread, self.rows))

    def _blocks_in_ub(self, m: int, n: int) -> int:
        """Blocks of 16 channels that are drained to UB at once."""
        if not self.kernel.zeros:
            return n // 16
        rows = m + self._picture_rows()
        fit = columns_in_ub(self.k, rows, self.kernel.y.dtype.bytes)
        return min(n // 16, fit) or 1

    def _picture(self, m: int, n: int) -> BufferHandle:
        """The buffer in which outputs get the zeros between them."""
        k = self.k
        if k.has_path("L0C", "GM"):
            raise ArgumentError(
                f"tiling zeros: L0C of {k.device_name} drains to global memory; zeros are "
                "stored with other positions in UB only: leave it out"
            )
        shape = (self._blocks_in_ub(m, n), self._picture_rows() * 16)
        return k.buffer("UB", shape, self.kernel.y.dtype, slots=2, name="picture_ub")

    def _staging(self, m: int, n: int) -> BufferHandle | None:
        """The buffer through which tiles are drained where L0C has no way to GM."""
        return self.k.fixpipe_staging(m, self.kernel.y.dtype, columns=self._blocks_in_ub(m, n))

    def emit(self, u: Step) -> None:
        """One filter depth of the tiles of one slab and load of weights, through some taps."""
        t = self.kernel.tiling
        slab = _Slab(u.h, u.w, u.images)
        positions = stack(self.rows[u.h], u.images).h.outputs * self.columns[u.w].outputs
        base_m = positions if t.step_m == 1 else t.base_m
        for n, m in product(self._tiles_n(u), range(0, positions, base_m)):
            c = self.c.next() if u.first else self.c.last()
            tile = _Tile(range(m, min(m + base_m, positions)), n, c)
            self._sum(u, slab, tile, again=n.start + m > 0)
            if u.last:
                self.k.once(self._store, slab, tile)

    def _sum(self, u: Step, slab: _Slab, tile: _Tile, *, again: bool) -> None:
        """All products of a tile.

        Operands complete in K that came for a tile before are there ``again``.
        """
        t = self.kernel.tiling
        h = self.rows[u.h]
        w = self.columns[u.w]
        taps = h.kernel * w.kernel
        steps = (t.step_planes * taps, t.step_columns, taps)
        plane_bytes = stack(h, u.images).h.size * w.size * 32
        init = u.first
        for plane in range(0, u.planes, t.step_planes):
            part = Part(h, w, u.images, plane, min(t.step_planes, u.planes - plane))
            in_l1 = u.input_stays or (again and part.planes == u.planes)
            x1 = self.x1.last() if in_l1 else self._load_input(part)
            first = plane * taps
            for columns, used in weight_loads(plane, part.planes, u.planes, steps):
                in_l1 = u.weights_stay or (again and len(columns) == u.planes * taps)
                w1 = self.w1.last() if in_l1 else self._load_weights(u, columns, used)
                operands = _Operands(
                    slab,
                    part.planes,
                    x1.at(0, part.planes * plane_bytes),
                    self._behind(w1, columns, tile.n),
                    _shifted(columns, -first),
                )
                self.k.once(self._products, tile, operands, _shifted(used, -first), init)
                init = False

    def _load_input(self, part: Part) -> Slot:
        """The next L1 slot of the input, with a part loaded into it."""
        x1 = self.x1.next()
        load_input(self.k, x1, self.kernel.x, self.kernel.geometry, part)
        return x1

    def _products(self, tile: _Tile, operands: _Operands, used: range, init: bool) -> None:
        """The products of the columns that are ``used`` of what lies in L1.

        With ``init`` the sums of the tile begin with the first of them.
        """
        k = self.k
        kernel = self.kernel
        c0 = kernel.geometry.c0
        h = self.rows[operands.slab.h]
        w = self.columns[operands.slab.w]
        taps = h.kernel * w.kernel
        window = self._window(operands)
        rows = len(tile.m)
        n = len(tile.n)
        step = max(1, kernel.tiling.base_k // c0)
        for j in range(used.start, used.stop, step):
            columns = range(j, min(j + step, used.stop))
            depth = len(columns) * c0
            a = self.a.next()
            b = self.b.next()
            first = w.offset + tile.m.start
            k.load3d(a, operands.x, window, kernel.x.dtype, m=(first, rows), k=(j * c0, depth))
            kernel.feed_weights(k, b, operands.w, n, operands.columns, columns, taps)
            k.mmad(
                tile.c,
                a,
                b,
                rows,
                depth,
                n * c0,
                kernel.x.dtype,
                init=init and j == used.start,
                hf32=kernel.hf32,
            )

    def _window(self, operands: _Operands) -> Window:
        """The img2col geometry of the input in L1."""
        slab = operands.slab
        h = self.rows[slab.h]
        w = self.columns[slab.w]
        if side_by_side(self.kernel.geometry, Part(h, w, slab.images, 0, operands.planes)):
            return images_window(slab.images, operands.planes, h.size * w.size)
        return window(stack(h, slab.images).h, w)

    def _load_weights(self, u: Step, columns: range, used: range) -> Slot:
        """The L1 slot with the task's weights of ``columns``, loaded unless it has them."""
        if used.start != columns.start:
            return self.w1.last()
        w1 = self.w1.next()
        row = self.kernel.geometry.w.kernel
        places = filter_places(self.rows[u.h], self.columns[u.w], row)
        for n in self._tiles_n(u):
            target = self._behind(w1, columns, n)
            self.kernel.load_weights(self.k, n, target, columns, places)
        return w1

    def _tiles_n(self, u: Step) -> list[range]:
        """The output channels of each tile along N, in blocks."""
        step = self.kernel.tiling.base_n // self.kernel.geometry.c0
        return [range(n, min(n + step, u.n)) for n in range(0, u.n, step)]

    def _behind(self, w1: Slot, columns: range, n: range) -> Slot:
        """The weights of a tile in a slot: those of one tile lie behind those of another."""
        return w1.behind(len(columns) * n.start * self.kernel.geometry.c0 * 32)

    def _store(self, slab: _Slab, tile: _Tile) -> None:
        """Y <- the tile, one piece where its outputs follow each other."""
        kernel = self.kernel
        g = kernel.geometry
        block = kernel.block
        h = self.rows[slab.h]
        plane = g.h.out * g.w.out * block
        m = len(tile.m)
        n = len(tile.n) * g.c0
        first_channel = tile.n.start * g.c0
        lines = g.output_lines(slab.images, h, self.columns[slab.w], block)
        offset = first_channel // kernel.c0_out * plane + tile.m.start * block
        in_one_piece = len(lines) == 1 and (m == 1 or lines[0].pitch == block)
        if self.epilogue:
            if in_one_piece:
                lines = [Line(0, m, 0, block)]
            self.epilogue.store(Target(offset, plane, lines, first_channel * 4), tile.c, m, n)
            return
        size = block
        if in_one_piece and not self.picture:
            size = m * block
        elif self.picture:
            size = g.spread(h) * block
        out = kernel.y.at(offset, size, base="y", rows=n // kernel.c0_out, pitch=plane)
        if in_one_piece and not self.picture:
            self.k.fixpipe(
                out, tile.c, m, n, kernel.y.dtype, staging=self.staging, c0=kernel.c0_out
            )
            return
        self.k.fixpipe_scatter(
            out,
            lines,
            tile.c,
            m,
            n,
            kernel.y.dtype,
            self.staging,
            self.picture,
            c0=kernel.c0_out,
        )


def _shifted(columns: range, by: int) -> range:
    """The range of numbers that lie ``by`` higher."""
    return range(columns.start + by, columns.stop + by)
