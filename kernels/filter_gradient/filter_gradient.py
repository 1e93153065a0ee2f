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

from npusim.base.records import replace
from npusim.kernels.estimate.fit import no_filter
from npusim.kernels.filter_gradient.filter_walk import Step, Walk
from npusim.kernels.filter_gradient.space import Space
from npusim.kernels.filter_gradient.tiling import Tiling, require_form, runs_on
from npusim.kernels.parts.mem_set import MemSet
from npusim.kernels.parts.tiled import Tiled
from npusim.kernels.parts.transposed import MOST_BLOCKS, images_window, load_images, load_transposed
from npusim.language import (
    FP32,
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

__all__ = ["ConvBackpropFilter", "Tiling"]

#: Rows of a filter above which bands of them are compared with all of them, how many bands, and the
#: fewest rows of one. A gradient of 255 x 1 taps over 8 maps of 400x600 takes 29.9 ms on a 910B2
#: with all rows, 15.4, 7.9, 6.6, 6.5 and 6.6 ms with 2, 4, 8, 16 and 32 bands, and 8.0 and 8.8 ms
#: with 64 and 128, of which estimates say 6.8 and 4.8 ms.
_HIGH, _BANDS, _LEAST_ROWS = 32, (2, 4, 8, 16, 32), 8


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
        t, s, positions = self.tiling, self.shape, max(1, self.walk.plane.most_positions)
        columns, on = round_up(s.plan.cin1_g * self.taps * s.c0, 16), runs_on(s, t.form)
        return replace(
            t,
            base_m=min(t.base_m, s.plan.cout_g),
            base_n=min(t.base_n, columns),
            base_k=min(t.base_k, round_up(positions * (t.images if on else 1), 16)),
            slab_k=min(t.slab_k, positions),
            k_parts=t.k_parts if t.single_core_k else self.parts,
            single_core_m=min(t.single_core_m, s.plan.cout_g),
            single_core_n=min(t.single_core_n, columns),
            single_core_k=min(t.single_core_k, s.out[1] * s.out[2]),
            images=min(t.images, ceil_div(s.n, self.parts)),
        )

    @cached_property
    def walk(self) -> Walk:
        """Who adds which part of dw, and when."""
        return Walk(self.shape, self.tiling)

    @property
    def useful_macs(self) -> int:
        return self.shape.useful_macs

    @property
    def needed_bytes(self) -> Mapping[str, int]:
        return {**super().needed_bytes, self.dw.name: self.shape.used("taps", self.copy_bytes)}

    @property
    def taps(self) -> int:
        """Filter places in the plane that lie in a tile's columns."""
        return 1 if self.tiling.form == "taps" else self.shape.taps

    @property
    def apart(self) -> tuple[int, int]:
        """How far apart the rows and columns of x are that come to L1."""
        s, form = self.shape, self.tiling.form
        whole = form in ("window", "bands")
        return (1 if whole else s.step(1), s.step(2) if form == "taps" else 1)

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
        s, plan = self.shape, self.shape.plan
        columns = plan.real_groups * s.kernel[0] * plan.cin1_g * s.taps
        return columns * plan.cout_g * self.row_bytes

    @property
    def atomic(self) -> bool:
        """Whether parts add into one gradient."""
        return self.parts > 1 and self.dw.size_bytes == self.copy_bytes

    @property
    def needs_clear(self) -> bool:
        """Whether dw must be zero before: parts add into it, or some of it is never written."""
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
        apart = any(axis.wide or axis.kernel > axis.out for axis in axes)
        found: list[Space] = []
        if window:
            found.append(self._space(device, cores, held, "window"))
        if window and self.shape.kernel[1] == 1 < self.shape.step(1):
            found.append(self._space(device, cores, held, "rows"))
        found += [self._space(device, cores, held, "bands", one) for one in self._bands(window)]
        found = [space for space in found if len(space.rows["cut"])]
        if apart or not found:
            found.append(self._space(device, cores, held, "taps"))
        found = [space for space in found if len(space.rows["cut"])]
        if found:
            return found
        raise no_filter(device, self.shape.c0)

    def _space(
        self,
        device: Device,
        cores: int,
        held: tuple[bool, ...],
        form: str,
        widest: tuple[int, int] = (WIDEST_FILTER, WIDEST_FILTER),
    ) -> Space:
        """The tilings of a form; of bands with at most the rows and columns of the ``widest``."""
        rate, kind = "hf32" if self.hf32 else self.x.dtype.name, self.x.dtype
        ordered = self.tiling.deterministic
        operands = device, cores, held[:2], self.shape
        return Space(*operands, rate, kind.bytes, ordered, form, widest)

    def _bands(self, window: bool) -> list[tuple[int, int]]:
        """The most rows and columns of the filter in bands that are worth comparing."""
        s, (_, high, wide) = self.shape, self.shape.kernel
        if not (s.axis(1).fits_bands and s.axis(2).fits_bands):
            return []
        if wide > WIDEST_FILTER:
            return [(1, WIDEST_FILTER)]
        if window and high <= _HIGH:
            return []
        rows = [ceil_div(high, count) for count in _BANDS]
        return [(some, wide) for some in rows if _LEAST_ROWS <= some <= WIDEST_FILTER]

    def plan(self, k: Language, cores: int) -> Plan[Step]:
        return Plan(self.tasks(min(cores, self.tiling.cores or cores)), _Nest(self, k).emit)

    def tasks(self, cores: int) -> Tasks[Step]:
        """The steps of the walk, shares in contiguous runs per core."""
        walk, at, c0 = self.walk, self.walk.steps(), self.shape.c0
        taps, all_taps = self.taps, self.shape.taps
        tile = {name: column[at["tile"]] for name, column in walk.tiles.items()}
        slab = {name: column[at["slab"]] for name, column in walk.plane.table().items()}
        columns = {
            **{"m": tile["m"], "f": tile["f"], "tap": (tile["f0"] - tile["band"]) % taps},
            **{"dy_m": tile["m_size"], "dy_at": (tile["m0"] - tile["m_start"]) // c0},
            **{"x_f": tile["n_size"], "x_tap": (tile["n_start"] - tile["band"]) % taps},
            "x_at": tile["f0"] // all_taps - tile["n_start"] // all_taps,
            **{name: slab[name] for name in Step._fields if name in slab},
            **walk.held(at),
            **{"first": at["turn"] == 0, "last": at["turn"] == at["count"] - 1},
            **{"adds": at["lap"] > 0, "images": at["images"]},
        }
        shares = int(at["share"][-1]) + 1 if len(at["share"]) else 0
        core = in_runs(shares, cores)[at["share"]]
        return Tasks(core, Step, columns, self._bases(tile, at, slab))

    def _bases(
        self, tile: dict[str, IntArray], at: dict[str, IntArray], slab: dict[str, IntArray]
    ) -> dict[str, IntArray]:
        """Byte offsets: of x and dy where their loads begin, of dw where the tile does."""
        s, plan = self.shape, self.shape.plan
        (_, ho, wo), (_, h, w) = s.out, s.spatial
        x_plane = (at["image"] * s.spatial[0] + at["depth_in"]) * s.cin1
        x_plane = x_plane + tile["g"] * plan.cin1_g + tile["n_start"] // s.taps
        y_plane = (at["image"] * s.out[0] + at["depth_out"]) * s.cout1
        y_plane = y_plane + (tile["g"] * plan.cout_g + tile["m_start"]) // s.c0
        column = (tile["g"] * s.kernel[0] + tile["kd"]) * plan.cin1_g * s.taps + tile["f0"]
        dw = (column * plan.cout_g + tile["m0"]) * self.row_bytes
        return {
            "x": ((x_plane * h + slab["real_row"]) * w + slab["real_column"]) * 32,
            "dy": ((y_plane * ho + slab["row"]) * wo + slab["column"]) * 32,
            "dw": dw if self.atomic else dw + at["part"] * self.copy_bytes,
        }


class _Nest:
    """The program of a step, on the buffers of one core."""

    def __init__(self, kernel: ConvBackpropFilter, k: Language) -> None:
        self.kernel, self.k = kernel, k
        t, s, dtype, tiles = kernel.ran, kernel.shape, kernel.x.dtype, kernel.walk.tiles
        # Columns of a load from its first plane on.
        first = (tiles["n_start"] - tiles["band"]) % kernel.taps
        reach = int((first + tiles["n_size"]).max())
        plane, m, n, base_k = kernel.walk.plane, t.base_m, t.base_n, t.base_k
        self.together = t.images > 1
        self.whole = self.together and t.form == "window"
        pixels = s.spatial[1] * s.spatial[2] if self.whole else plane.most_pixels
        # Where img2col fills L0A, columns of dy need no rows between them.
        self.close = self.together and k.has_path("L1", "L0A", "load3d_transpose")
        planes = max(m // s.c0, ceil_div(reach, kernel.taps))
        self.runs_on = self.close and runs_on(s, t.form) and planes <= MOST_BLOCKS
        positions = plane.most_positions if self.close else round_up(plane.most_positions, 16)
        x_l1 = (t.images, ceil_div(reach, kernel.taps), pixels, s.c0)
        dy_l1 = (t.images, min(t.step_m * m, s.plan.cout_g) // s.c0, positions, s.c0)
        self.x1 = k.buffer("L1", x_l1, dtype, slots=t.slots_of_x, name="x_l1")
        self.y1 = k.buffer("L1", dy_l1, dtype, slots=t.slots_of_dy, name="dy_l1")
        self.a = k.buffer("L0A", (m, base_k), dtype, slots=t.l0_slots, name="dy_l0a")
        self.b = k.buffer("L0B", (base_k, n), dtype, slots=t.l0_slots, name="x_l0b")
        self.c = k.buffer(
            "L0C", (m, n), FP32, slots=t.l0c_slots, name="dw_l0c", unit_flag=t.unit_flag
        )
        self.staging = k.fixpipe_staging(m, FP32, columns=n // 16)

    def emit(self, u: Step) -> None:
        """Load what is not there, expand and transpose into L0, accumulate; drain last."""
        if u.x_load:
            self._load_x(u, self.x1.next())
        if u.dy_load:
            self._load_dy(u, self.y1.next())
        x1, y1 = self.x1.last(u.x_back), self.y1.last(u.dy_back)
        c = self.c.next() if u.first else self.c.last()
        alike = u._replace(x_load=False, dy_load=False, x_back=0, dy_back=0, last=False, adds=False)
        self.k.once(self._products, alike, c, x1, y1)
        if u.last:
            self.k.once(self._store, u.m, u.f, u.adds, c)

    def _products(self, u: Step, c: Slot, x1: Slot, y1: Slot) -> None:
        """Expand and transpose into L0 what lies in L1, and accumulate."""
        kernel, k, c0, dtype = self.kernel, self.k, self.kernel.shape.c0, self.kernel.x.dtype
        window, columns = self._window(u), (u.tap * c0, u.f * c0)
        plane, positions = window.h * window.w * 32, u.rows * u.columns
        of_x, of_dy = _planes(u.x_tap, u.x_f, kernel.taps) * plane, self._dy_bytes(u)
        maps = (
            images_window(u.images, u.dy_m // c0, positions),
            images_window(u.images, of_x // plane, plane // 32, kernel.shape.step(2)),
        )
        runs, length = (1, u.images * positions) if self.runs_on else (u.images, positions)
        for i, k0 in product(range(runs), range(0, length, kernel.tiling.base_k)):
            kk = min(kernel.tiling.base_k, length - k0)
            a, b = self.a.next(), self.b.next()
            if self.runs_on:
                load_images(k, a, (y1, maps[0]), (k0, kk), (u.dy_at * c0, u.m), dtype)
                load_images(k, b, (x1, maps[1]), (k0, kk), columns, dtype)
            else:
                planes = x1.at(i * of_x + u.x_at * plane, _planes(u.tap, u.f, kernel.taps) * plane)
                slab = y1.behind(i * of_dy), u.dy_at, positions
                load_transposed(k, a, slab, u.m, (k0, kk), dtype, close=self.close)
                k.load3d(b, planes, window, dtype, m=(k0, kk), k=columns)
            init = u.first and i == k0 == 0
            k.mmad(c, a, b, u.m, kk, u.f * c0, dtype, init=init, hf32=kernel.hf32)

    def _store(self, m: int, f: int, adds: bool, c: Slot) -> None:
        """Drain a tile of ``m`` rows and ``f`` columns of fractals."""
        kernel, c0, staging = self.kernel, self.kernel.shape.c0, self.staging
        pitch = kernel.shape.plan.cout_g * kernel.row_bytes * (kernel.shape.taps // kernel.taps)
        out = kernel.dw.at(0, m * kernel.row_bytes, base="dw", rows=f, pitch=pitch)
        atomic = kernel.atomic or adds
        self.k.fixpipe(out, c, m, f * c0, FP32, staging=staging, atomic=atomic, c0=c0)

    def _window(self, u: Step) -> Window:
        """The img2col geometry of the part of x in L1."""
        s, taps = self.kernel.shape, {}
        if self.kernel.tiling.form != "taps":
            taps = {
                **{"kernel_h": u.high, "kernel_w": u.wide},
                **{"stride_h": s.step(1) // self.kernel.apart[0], "stride_w": s.step(2)},
                **{"dilation_h": s.dilation[1], "dilation_w": s.dilation[2]},
            }
        h, w = s.spatial[1:] if self.whole else (u.h, u.w)
        pads = {"pad_top": u.top, "pad_bottom": u.bottom}
        return Window(h, w, pad_left=u.left, pad_right=u.right, **pads, **taps)

    def _load_x(self, u: Step, x1: Slot) -> None:
        """x rows of every plane the loaded columns lie in."""
        k, x, s = self.k, self.kernel.x, self.kernel.shape
        planes, (down, across) = _planes(u.x_tap, u.x_f, self.kernel.taps), self.kernel.apart
        plane, row, size = s.spatial[1] * s.spatial[2] * 32, s.spatial[2] * 32, u.w * 32
        if self.whole:  # whole planes of every image
            source = x.at(0, planes * plane, base="x", rows=u.images, pitch=s.cin1 * plane)
            k.data_move(x1, source, x.dtype)
            return
        if size == row and (down == 1 or u.h * down == s.spatial[1]):  # whole rows of all planes
            rows, run, pitch = planes * u.h, row, down * row
            if down == 1:
                rows, run, pitch = planes, u.h * row, plane
            for i in range(u.images):
                source = x.at(i * s.cin1 * plane, run, base="x", rows=rows, pitch=pitch)
                k.data_move(x1.at(i * rows * run, rows * run), source, x.dtype)
            return
        for p in range(planes):
            if 1 in (across, u.w):
                source = x.at(p * plane, size, base="x", rows=u.h, pitch=down * row)
                k.data_move(x1.at(p * u.h * size, u.h * size), source, x.dtype)
                continue
            for i in range(u.h):  # single blocks of 32 B
                source = x.at(p * plane + i * down * row, 32, base="x", rows=u.w, pitch=across * 32)
                k.data_move(x1.at((p * u.h + i) * size, size), source, x.dtype)

    def _load_dy(self, u: Step, y1: Slot) -> None:
        """The slab's positions of every loaded plane of dy, planes padded to 16 positions.

        Planes that lie close are not, and those of several images are one move.
        """
        dy, s, size = self.kernel.dy, self.kernel.shape, u.rows * u.columns * 32
        _, ho, wo = s.out
        planes, pitch = u.dy_m // s.c0, ceil_div(u.rows * u.columns, 16) * 512
        if self.together:
            image, each = s.cout1 * ho * wo * 32, self._dy_bytes(u)
            if self.close:
                source = dy.at(0, each, base="dy", rows=u.images, pitch=image)
                self.k.data_move(y1, source, dy.dtype)
                return
            for i in range(u.images):
                source = dy.at(i * image, size, base="dy", rows=planes, pitch=size)
                to = y1.at(i * each, size, rows=planes, pitch=pitch)
                self.k.data_move(to, source, dy.dtype)
            return
        if u.rows > 1 and u.columns < wo:  # parts of several rows
            for p in range(planes):
                source = dy.at(
                    p * ho * wo * 32, u.columns * 32, base="dy", rows=u.rows, pitch=wo * 32
                )
                self.k.data_move(y1.at(p * pitch, size), source, dy.dtype)
            return
        source = dy.at(0, size, base="dy", rows=planes, pitch=ho * wo * 32)
        self.k.data_move(y1.at(0, size, rows=planes, pitch=pitch), source, dy.dtype)

    def _dy_bytes(self, u: Step) -> int:
        """Bytes of dy of one image in L1."""
        positions = u.rows * u.columns
        each = positions if self.close else round_up(positions, 16)
        return u.dy_m // self.kernel.shape.c0 * 32 * each


def _planes(tap: int, columns: int, taps: int) -> int:
    """Planes of x that so many fractal columns from filter place ``tap`` on lie in."""
    return (tap + columns - 1) // taps + 1
