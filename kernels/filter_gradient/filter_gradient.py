"""Filter gradient of a convolution on the cube.

    dw[q, c, k] = sum over batch n and output positions o of  dy[n, q, o] * x[n, c, o*s - p + k*d]

Layouts: x (N, D, C1, H, W, C0) and dy (N, Do, Co1, Ho, Wo, C0) of one type (5HD is D = 1); dw fp32
FRACTAL_Z(_3D): (real_g * KD * cin1_g * KH * KW, cout_g, 16).

As a matrix product, per real group and kd: M = output channels, N = (c1, kh, kw, c0),
K = output positions. x is expanded by img2col on its way into L0B; dy is only transposed.

    for share, its tiles of dw:                                   # shares spread over cores
        for slab of output rows of each run through L0C:          # one task
            L1 <- x rows the slab reads, all planes of its block  # MTE2, unless there
            L1 <- dy slab, all planes of its block                # MTE2, unless there
            for k in slab step base_k:
                L0A <- dy^T   L0B <- img2col(x)                   # MTE1
                L0C += L0A @ L0B                                  # M
        dw tile <- L0C    (added, or an own copy per part of K)   # FIX, or V and MTE3

The tiling says what a share is (``kernels/filter_gradient/filter_walk.py``): one part of K of one
tile, or as the vendor's library has it a block of dw for some rows of one image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import ClassVar

from npusim.base.records import replace, with_values
from npusim.kernels.estimate.fit import no_filter
from npusim.kernels.filter_gradient.filter_walk import Step, Walk
from npusim.kernels.filter_gradient.space import Space
from npusim.kernels.filter_gradient.tiling import Tiling, require_form, runs_on
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.parts.tiled import Tiled
from npusim.kernels.parts.transposed import (
    MOST_BLOCKS,
    PIXEL,
    NzColumns,
    images_window,
    load_images,
    load_transposed,
)
from npusim.language import (
    FP32,
    FRACTAL_BYTES,
    Device,
    IntArray,
    Kernel,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    Window,
    ceil_div,
    in_runs,
    round_up,
)
from npusim.problem.axis import WIDEST_FILTER
from npusim.problem.convolution import Convolution
from npusim.problem.work import DEPTH_WISE, FILTER_GRADIENT

__all__ = ["ConvBackpropFilter", "Tiling"]

#: Rows of a filter above which bands of them are compared with all of them, how many bands, and the
#: fewest rows of one. A gradient of 255 x 1 taps over 8 maps of 400x600 takes 29.9 ms on a 910B2
#: with all rows, 15.4, 7.9, 6.6, 6.5 and 6.6 ms with 2, 4, 8, 16 and 32 bands, and 8.0 and 8.8 ms
#: with 64 and 128, of which estimates say 6.8 and 4.8 ms.
_HIGH = 32
_BANDS = (2, 4, 8, 16, 32)
_LEAST_ROWS = 8


@dataclass(frozen=True)
class ConvBackpropFilter(Tiled):
    """The kernel for one shape and tiling; ``x``, ``dy`` and ``dw`` are its tensors."""

    shape: Convolution
    tiling: Tiling
    x: Tensor
    dy: Tensor
    dw: Tensor
    hf32: bool = False

    name: ClassVar[str] = "conv_backprop_filter"
    computes: ClassVar[str] = "weight"
    uses: ClassVar[Mapping[str, str]] = {"x": "inputs", "dy": "outputs"}
    library: ClassVar[tuple[str, ...]] = ("Conv2DBackpropFilter", "Conv3DBackpropFilter")
    vendor_rule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_form(self.shape, self.tiling)

    @cached_property
    def ran(self) -> Tiling:
        """The tiling with the sizes that the shape leaves of it."""
        t = self.tiling
        s = self.shape
        positions = max(1, self.walk.plane.most_positions)
        columns = round_up(s.plan.cin1_g * self.taps * s.c0, 16)
        depth = positions * t.images if runs_on(s, t.form) else positions
        return with_values(
            t,
            base_m=min(t.base_m, s.plan.cout_g),
            base_n=min(t.base_n, columns),
            base_k=min(t.base_k, round_up(depth, 16)),
            slab_k=min(t.slab_k, positions),
            k_parts=t.k_parts if t.single_core_k else self.parts,
            single_core_m=min(t.single_core_m, s.plan.cout_g),
            single_core_n=min(t.single_core_n, columns),
            single_core_k=min(t.single_core_k, s.out[1] * s.out[2]),
            images=min(t.images, ceil_div(s.n, self.parts)),
        )

    @cached_property
    def walk(self) -> Walk:
        """The order in which parts of dw are added."""
        return Walk(self.shape, self.tiling)

    @property
    def useful_macs(self) -> int:
        return self.shape.useful_macs

    @property
    def work_class(self) -> str:
        return DEPTH_WISE if self.shape.is_depth_wise else FILTER_GRADIENT

    @property
    def needed_bytes(self) -> Mapping[str, int]:
        return {**super().needed_bytes, self.dw.name: self.shape.used("taps", self.copy_bytes)}

    @property
    def taps(self) -> int:
        """Filter places in the plane that lie in a tile's columns."""
        return 1 if self.tiling.form == "taps" else self.shape.taps

    @property
    def rows_apart(self) -> int:
        """Rows of x from one that comes to L1 to the next."""
        every_row = self.tiling.form in ("window", "bands")
        return 1 if every_row else self.shape.step(1)

    @property
    def columns_apart(self) -> int:
        """Columns of x from one that comes to L1 to the next."""
        return self.shape.step(2) if self.tiling.form == "taps" else 1

    @property
    def parts(self) -> int:
        """The most sums that are added into one tile."""
        return self.walk.parts

    @property
    def row_bytes(self) -> int:
        """Size of one output channel in a fractal column of dw."""
        return self.shape.c0 * FP32.bytes

    @property
    def copy_bytes(self) -> int:
        """Size of one whole gradient; dw holds one, or one per part."""
        s = self.shape
        plan = self.shape.plan
        columns = plan.real_groups * s.kernel[0] * plan.cin1_g * s.taps
        return columns * plan.cout_g * self.row_bytes

    @property
    def atomic(self) -> bool:
        """True if parts add into one gradient."""
        return self.parts > 1 and self.dw.size_bytes == self.copy_bytes

    @property
    def needs_clear(self) -> bool:
        """True if dw must be zero before: parts add into it, or some of it is never written."""
        if not self.shape.reads_any:
            return True
        written = self.walk.written * FP32.bytes
        return self.atomic or not self.walk.plane.slabs or written < self.copy_bytes

    @property
    def before(self) -> tuple[Kernel, ...]:
        """Clears what parts are added into, and what is never written."""
        return (MemSet(self.dw, few=True),) if self.needs_clear else ()

    def spaces(self, device: Device, cores: int, held: tuple[bool, ...]) -> list[Space]:
        """The tilings to choose from, by form.

        Single taps are for what no img2col load can do, or L1 not hold, and where most of what a
        window reads is of no use to most taps. Bands of taps are for filters that are too wide for
        a load, or so high that little of the input has room beside what a window reads.
        """
        axes = [self.shape.axis(i) for i in (1, 2)]
        window = all(axis.fits_window(whole=True) for axis in axes)
        spaces: list[Space] = []
        if window:
            spaces.append(self._space(device, cores, held, "window"))
        if window and self.shape.kernel[1] == 1 < self.shape.step(1):
            spaces.append(self._space(device, cores, held, "rows"))
        spaces += [
            self._space(device, cores, held, "bands", widest) for widest in self._bands(window)
        ]
        spaces = [space for space in spaces if len(space.rows["cut"])]
        if not spaces or any(axis.wide or axis.kernel > axis.out for axis in axes):
            taps = self._space(device, cores, held, "taps")
            if len(taps.rows["cut"]):
                spaces.append(taps)
        if not spaces:
            raise no_filter(device, self.shape.c0)
        return spaces

    def _space(
        self,
        device: Device,
        cores: int,
        held: tuple[bool, ...],
        form: str,
        widest: tuple[int, int] = (WIDEST_FILTER, WIDEST_FILTER),
    ) -> Space:
        """The tilings of a form; of bands with at most the rows and columns of the ``widest``."""
        dtype = self.x.dtype
        rate = "hf32" if self.hf32 else dtype.name
        ordered = self.tiling.deterministic
        return Space(device, cores, held[:2], self.shape, rate, dtype.bytes, ordered, form, widest)

    def _bands(self, window: bool) -> list[tuple[int, int]]:
        """The most rows and columns of the filter in bands that are worth comparing."""
        s = self.shape
        _, high, wide = s.kernel
        if not (s.axis(1).fits_bands and s.axis(2).fits_bands):
            return []
        if wide > WIDEST_FILTER:
            return [(1, WIDEST_FILTER)]
        if window and high <= _HIGH:
            return []
        heights = [ceil_div(high, count) for count in _BANDS]
        return [(height, wide) for height in heights if _LEAST_ROWS <= height <= WIDEST_FILTER]

    def plan(self, k: Language, cores: int) -> Plan[Step]:
        return Plan(self.tasks(min(cores, self.tiling.cores or cores)), _Nest(self, k).emit)

    def tasks(self, cores: int) -> Tasks[Step]:
        """The steps of the walk, shares in contiguous runs per core."""
        walk = self.walk
        steps = walk.steps()
        c0 = self.shape.c0
        all_taps = self.shape.taps
        tile = {name: column[steps["tile"]] for name, column in walk.tiles.items()}
        slab = {name: column[steps["slab"]] for name, column in walk.plane.table().items()}
        loads = walk.loads(steps)
        columns = {
            "m": tile["m"],
            "f": tile["f"],
            "tap": (tile["f0"] - tile["band"]) % self.taps,
            "dy_m": tile["m_size"],
            "dy_at": (tile["m0"] - tile["m_start"]) // c0,
            "x_f": tile["n_size"],
            "x_tap": (tile["n_start"] - tile["band"]) % self.taps,
            "x_at": tile["f0"] // all_taps - tile["n_start"] // all_taps,
            "rows": slab["rows"],
            "h": slab["h"],
            "top": slab["top"],
            "bottom": slab["bottom"],
            "columns": slab["columns"],
            "w": slab["w"],
            "left": slab["left"],
            "right": slab["right"],
            "high": slab["high"],
            "wide": slab["wide"],
            "dy_load": loads.dy,
            "dy_back": loads.dy_back,
            "x_load": loads.x,
            "x_back": loads.x_back,
            "first": steps["turn"] == 0,
            "last": steps["turn"] == steps["count"] - 1,
            "adds": steps["lap"] > 0,
            "images": steps["images"],
        }
        shares = int(steps["share"][-1]) + 1 if len(steps["share"]) else 0
        core = in_runs(shares, cores)[steps["share"]]
        return Tasks(core, Step, columns, self._bases(tile, steps, slab))

    def _bases(
        self, tile: dict[str, IntArray], steps: dict[str, IntArray], slab: dict[str, IntArray]
    ) -> dict[str, IntArray]:
        """Byte offsets: of x and dy where their loads begin, of dw where the tile does."""
        s = self.shape
        plan = s.plan
        x_plane = (steps["image"] * s.spatial[0] + steps["depth_in"]) * s.cin1
        x_plane = x_plane + tile["g"] * plan.cin1_g + tile["n_start"] // s.taps
        x_row = x_plane * s.spatial[1] + slab["real_row"]
        dy_plane = (steps["image"] * s.out[0] + steps["depth_out"]) * s.cout1
        dy_plane = dy_plane + (tile["g"] * plan.cout_g + tile["m_start"]) // s.c0
        dy_row = dy_plane * s.out[1] + slab["row"]
        column = (tile["g"] * s.kernel[0] + tile["kd"]) * plan.cin1_g * s.taps + tile["f0"]
        dw = (column * plan.cout_g + tile["m0"]) * self.row_bytes
        if not self.atomic:
            dw = dw + steps["part"] * self.copy_bytes
        return {
            "x": (x_row * s.spatial[2] + slab["real_column"]) * PIXEL,
            "dy": (dy_row * s.out[2] + slab["column"]) * PIXEL,
            "dw": dw,
        }


class _Nest:
    """The program of a step, on the buffers of one core."""

    def __init__(self, kernel: ConvBackpropFilter, k: Language) -> None:
        self.kernel = kernel
        self.k = k
        t = kernel.ran
        s = kernel.shape
        dtype = kernel.x.dtype
        m = t.base_m
        n = t.base_n
        positions = kernel.walk.plane.most_positions
        x_planes = ceil_div(self._most_columns(), kernel.taps)
        self.together = t.images > 1
        self.whole_planes = self.together and t.form == "window"
        # Where img2col fills L0A, columns of dy need no rows between them.
        self.close = self.together and k.has_path("L1", "L0A", "load3d_transpose")
        planes = max(m // s.c0, x_planes)
        self.runs_on = self.close and runs_on(s, t.form) and planes <= MOST_BLOCKS
        pixels = kernel.walk.plane.most_pixels
        if self.whole_planes:
            pixels = s.spatial[1] * s.spatial[2]
        if not self.close:
            positions = round_up(positions, 16)
        x_l1 = (t.images, x_planes, pixels, s.c0)
        dy_l1 = (t.images, min(t.step_m * m, s.plan.cout_g) // s.c0, positions, s.c0)
        self.x1 = k.buffer("L1", x_l1, dtype, slots=t.slots_of_x, name="x_l1")
        self.y1 = k.buffer("L1", dy_l1, dtype, slots=t.slots_of_dy, name="dy_l1")
        self.a = k.buffer("L0A", (m, t.base_k), dtype, slots=t.l0_slots, name="dy_l0a")
        self.b = k.buffer("L0B", (t.base_k, n), dtype, slots=t.l0_slots, name="x_l0b")
        self.c = k.buffer(
            "L0C", (m, n), FP32, slots=t.l0c_slots, name="dw_l0c", unit_flag=t.unit_flag
        )
        self.staging = k.fixpipe_staging(m, FP32, columns=n // 16)

    def _most_columns(self) -> int:
        """Fractal columns of the largest load of x, from its first plane on."""
        tiles = self.kernel.walk.tiles
        first = (tiles["n_start"] - tiles["band"]) % self.kernel.taps
        return int((first + tiles["n_size"]).max())

    def emit(self, u: Step) -> None:
        """Load what is not there, expand and transpose into L0, accumulate; drain last."""
        if u.x_load:
            self._load_x(u, self.x1.next())
        if u.dy_load:
            self._load_dy(u, self.y1.next())
        x1 = self.x1.last(u.x_back)
        y1 = self.y1.last(u.dy_back)
        c = self.c.next() if u.first else self.c.last()
        # Products do not depend on what is loaded and stored around them.
        alike = u._replace(x_load=False, dy_load=False, x_back=0, dy_back=0, last=False, adds=False)
        products = self._products_of_images if self.runs_on else self._products
        self.k.once(products, alike, c, x1, y1)
        if u.last:
            self.k.once(self._store, u.m, u.f, u.adds, c)

    def _products(self, u: Step, c: Slot, x1: Slot, y1: Slot) -> None:
        """Expand and transpose into L0 what lies in L1, image by image, and accumulate."""
        k = self.k
        kernel = self.kernel
        c0 = kernel.shape.c0
        dtype = kernel.x.dtype
        window = self._window(u)
        plane = window.h * window.w * PIXEL
        x_image = _planes(u.x_tap, u.x_f, kernel.taps) * plane
        x_size = _planes(u.tap, u.f, kernel.taps) * plane
        dy_image = self._dy_bytes(u)
        positions = u.rows * u.columns
        base_k = kernel.tiling.base_k
        for image, k0 in product(range(u.images), range(0, positions, base_k)):
            depth = min(base_k, positions - k0)
            a = self.a.next()
            b = self.b.next()
            planes = x1.at(image * x_image + u.x_at * plane, x_size)
            dy = NzColumns(y1.behind(image * dy_image), u.dy_at, positions)
            load_transposed(k, a, dy, u.m, k0, depth, dtype, close=self.close)
            k.load3d(b, planes, window, dtype, m=(k0, depth), k=(u.tap * c0, u.f * c0))
            self._accumulate(u, c, a, b, depth, init=u.first and image == k0 == 0)

    def _products_of_images(self, u: Step, c: Slot, x1: Slot, y1: Slot) -> None:
        """The same where steps of K go on from one image to the next."""
        k = self.k
        kernel = self.kernel
        c0 = kernel.shape.c0
        dtype = kernel.x.dtype
        window = self._window(u)
        positions = u.rows * u.columns
        x_planes = _planes(u.x_tap, u.x_f, kernel.taps)
        dy_images = images_window(u.images, u.dy_m // c0, positions)
        x_images = images_window(u.images, x_planes, window.h * window.w, kernel.shape.step(2))
        length = u.images * positions
        for k0 in range(0, length, kernel.tiling.base_k):
            depth = min(kernel.tiling.base_k, length - k0)
            a = self.a.next()
            b = self.b.next()
            load_images(k, a, y1, dy_images, (k0, depth), (u.dy_at * c0, u.m), dtype)
            load_images(k, b, x1, x_images, (k0, depth), (u.tap * c0, u.f * c0), dtype)
            self._accumulate(u, c, a, b, depth, init=u.first and k0 == 0)

    def _accumulate(self, u: Step, c: Slot, a: Slot, b: Slot, depth: int, *, init: bool) -> None:
        """Add a product over ``depth`` positions to the tile, or begin it."""
        kernel = self.kernel
        n = u.f * kernel.shape.c0
        self.k.mmad(c, a, b, u.m, depth, n, kernel.x.dtype, init=init, hf32=kernel.hf32)

    def _store(self, m: int, f: int, adds: bool, c: Slot) -> None:
        """Drain a tile of ``m`` rows and ``f`` columns of fractals."""
        kernel = self.kernel
        c0 = kernel.shape.c0
        pitch = kernel.shape.plan.cout_g * kernel.row_bytes * (kernel.shape.taps // kernel.taps)
        out = kernel.dw.at(0, m * kernel.row_bytes, base="dw", rows=f, pitch=pitch)
        atomic = kernel.atomic or adds
        self.k.fixpipe(out, c, m, f * c0, FP32, staging=self.staging, atomic=atomic, c0=c0)

    def _window(self, u: Step) -> Window:
        """The img2col geometry of the part of x in L1."""
        s = self.kernel.shape
        h = u.h
        w = u.w
        if self.whole_planes:
            _, h, w = s.spatial
        single = Window(
            h, w, pad_left=u.left, pad_right=u.right, pad_top=u.top, pad_bottom=u.bottom
        )
        if self.kernel.tiling.form == "taps":
            return single
        return replace(
            single,
            kernel_h=u.high,
            kernel_w=u.wide,
            stride_h=s.step(1) // self.kernel.rows_apart,
            stride_w=s.step(2),
            dilation_h=s.dilation[1],
            dilation_w=s.dilation[2],
        )

    def _load_x(self, u: Step, x1: Slot) -> None:
        """L1 <- x rows of every plane the loaded columns lie in."""
        s = self.kernel.shape
        rows_apart = self.kernel.rows_apart
        planes = _planes(u.x_tap, u.x_f, self.kernel.taps)
        if self.whole_planes:
            plane = s.spatial[1] * s.spatial[2] * PIXEL
            x = self.kernel.x
            source = x.at(0, planes * plane, base="x", rows=u.images, pitch=s.cin1 * plane)
            self.k.data_move(x1, source, x.dtype)
        elif u.w == s.spatial[2] and (rows_apart == 1 or u.h * rows_apart == s.spatial[1]):
            self._load_whole_rows(u, x1, planes)
        elif 1 in (self.kernel.columns_apart, u.w):
            self._load_parts_of_rows(u, x1, planes)
        else:
            self._load_pixels(u, x1, planes)

    def _load_whole_rows(self, u: Step, x1: Slot, planes: int) -> None:
        """Whole rows of all planes of an image in one move: all rows, or some equally far apart."""
        x = self.kernel.x
        s = self.kernel.shape
        row = s.spatial[2] * PIXEL
        plane = s.spatial[1] * row
        rows = planes * u.h
        run = row
        pitch = self.kernel.rows_apart * row
        if self.kernel.rows_apart == 1:
            rows = planes
            run = u.h * row
            pitch = plane
        for image in range(u.images):
            source = x.at(image * s.cin1 * plane, run, base="x", rows=rows, pitch=pitch)
            self.k.data_move(x1.at(image * rows * run, rows * run), source, x.dtype)

    def _load_parts_of_rows(self, u: Step, x1: Slot, planes: int) -> None:
        """Parts of rows, one plane after another."""
        x = self.kernel.x
        s = self.kernel.shape
        row = s.spatial[2] * PIXEL
        pitch = self.kernel.rows_apart * row
        size = u.w * PIXEL
        for plane in range(planes):
            source = x.at(plane * s.spatial[1] * row, size, base="x", rows=u.h, pitch=pitch)
            self.k.data_move(x1.at(plane * u.h * size, u.h * size), source, x.dtype)

    def _load_pixels(self, u: Step, x1: Slot, planes: int) -> None:
        """Single blocks of 32 B, one row after another."""
        x = self.kernel.x
        s = self.kernel.shape
        row = s.spatial[2] * PIXEL
        pitch = self.kernel.columns_apart * PIXEL
        size = u.w * PIXEL
        for plane, i in product(range(planes), range(u.h)):
            offset = (plane * s.spatial[1] + i * self.kernel.rows_apart) * row
            source = x.at(offset, PIXEL, base="x", rows=u.w, pitch=pitch)
            self.k.data_move(x1.at((plane * u.h + i) * size, size), source, x.dtype)

    def _load_dy(self, u: Step, y1: Slot) -> None:
        """L1 <- the slab's positions of every loaded plane of dy.

        Planes are padded to 16 positions, but not those that lie close.
        """
        if self.close:
            self._load_close_images(u, y1)
        elif self.together:
            self._load_padded_images(u, y1)
        else:
            self._load_dy_planes(u, y1)

    def _load_close_images(self, u: Step, y1: Slot) -> None:
        """Planes without padding, those of several images in one move."""
        dy = self.kernel.dy
        pitch = self._dy_image_bytes()
        source = dy.at(0, self._dy_bytes(u), base="dy", rows=u.images, pitch=pitch)
        self.k.data_move(y1, source, dy.dtype)

    def _load_padded_images(self, u: Step, y1: Slot) -> None:
        """Whole planes, one image after another."""
        dy = self.kernel.dy
        planes = u.dy_m // self.kernel.shape.c0
        size = u.rows * u.columns * PIXEL
        slot_plane = ceil_div(u.rows * u.columns, 16) * FRACTAL_BYTES
        for image in range(u.images):
            offset = image * self._dy_image_bytes()
            source = dy.at(offset, size, base="dy", rows=planes, pitch=size)
            target = y1.at(image * self._dy_bytes(u), size, rows=planes, pitch=slot_plane)
            self.k.data_move(target, source, dy.dtype)

    def _load_dy_planes(self, u: Step, y1: Slot) -> None:
        """Runs of rows of all planes in one move; parts of several rows plane by plane."""
        dy = self.kernel.dy
        _, high, wide = self.kernel.shape.out
        planes = u.dy_m // self.kernel.shape.c0
        plane = high * wide * PIXEL
        size = u.rows * u.columns * PIXEL
        slot_plane = ceil_div(u.rows * u.columns, 16) * FRACTAL_BYTES
        if u.rows == 1 or u.columns == wide:
            source = dy.at(0, size, base="dy", rows=planes, pitch=plane)
            self.k.data_move(y1.at(0, size, rows=planes, pitch=slot_plane), source, dy.dtype)
            return
        row = u.columns * PIXEL
        for i in range(planes):
            source = dy.at(i * plane, row, base="dy", rows=u.rows, pitch=wide * PIXEL)
            self.k.data_move(y1.at(i * slot_plane, size), source, dy.dtype)

    def _dy_image_bytes(self) -> int:
        """Bytes from one image of dy to the next."""
        s = self.kernel.shape
        return s.cout1 * s.out[1] * s.out[2] * PIXEL

    def _dy_bytes(self, u: Step) -> int:
        """Bytes of dy of one image in L1."""
        positions = u.rows * u.columns
        each = positions if self.close else round_up(positions, 16)
        return u.dy_m // self.kernel.shape.c0 * 32 * each


def _planes(tap: int, columns: int, taps: int) -> int:
    """Planes of x that so many fractal columns from filter place ``tap`` on lie in."""
    return (tap + columns - 1) // taps + 1
