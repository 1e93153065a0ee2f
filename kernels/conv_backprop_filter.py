"""Filter gradient of a convolution on the cube.

    dw[q, c, k] = sum over batch n and output positions o of  dy[n, q, o] * x[n, c, o*s - p + k*d]

Layouts: x (N, D, C1, H, W, C0) and dy (N, Do, Co1, Ho, Wo, C0) of one type (5HD is D = 1); dw fp32
FRACTAL_Z(_3D): (real_g * KD * cin1_g * KH * KW, cout_g, 16).

As a matrix product, per real group and kd: M = output channels, N = (c1, kh, kw, c0),
K = output positions. x is expanded by img2col on its way into L0B; dy is only transposed.

    for item in (real group, kd, n tile, m tile, part of K):      # items spread over cores
        for (n, do, slab of output rows) in part:                 # one *unit* each
            L1 <- x rows the slab reads, all planes of the n tile # MTE2
            L1 <- dy slab, all planes of the m tile               # MTE2
            for k in slab step base_k:
                L0A <- dy^T   L0B <- img2col(x)                   # MTE1
                L0C += L0A @ L0B                                  # M
        dw tile <- L0C     (atomic add or own copy per part of K) # FIX, or V and MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from npusim.convolution import Convolution
from npusim.dtypes import FP32, DType
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.dma import Window
from npusim.isa.operands import Slot, Tensor
from npusim.kernels.parts.conv_filter_slabs import cut_plane
from npusim.kernels.tilings.checks import check_tiling
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Tile sizes in elements: one mmad is base_m x base_k x base_n.

    ``slab_k`` output positions are brought to L1 at once (whole rows of the output where a row
    fits); K is cut into ``k_parts`` that cores accumulate separately and add atomically, or, if
    ``deterministic``, write side by side for a sum in fixed order. Accumulation runs over images
    with the slabs of each innermost (``k_order`` "image"), or the other way round ("slab").
    """

    base_m: int
    base_n: int
    base_k: int
    slab_k: int
    k_parts: int = 1
    l1_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    deterministic: bool = False
    k_order: str = "image"

    def __post_init__(self) -> None:
        if self.k_order not in ("image", "slab"):
            raise ArgumentError(f"tiling k_order is {self.k_order!r}; it is 'image' or 'slab'")
        check_tiling(
            self,
            sixteens=("base_m", "base_n", "base_k"),
            positive=("slab_k", "k_parts", "l1_slots", "l0_slots", "l0c_slots"),
        )

    def __str__(self) -> str:
        return (
            f"base {self.base_m}x{self.base_n}x{self.base_k}, slab {self.slab_k}, K in "
            f"{self.k_parts}, slots L1 {self.l1_slots} L0 {self.l0_slots} L0C {self.l0c_slots}"
        )


class ConvBackpropFilter(Kernel):
    """The kernel for one shape and tiling; ``x``, ``dy`` and ``dw`` are its tensors."""

    name: ClassVar[str] = "conv_backprop_filter"
    role: ClassVar[str] = "cube"

    def __init__(
        self,
        shape: Convolution,
        tiling: Tiling,
        x: Tensor,
        dy: Tensor,
        dw: Tensor,
        hf32: bool = False,
    ) -> None:
        self.shape, self.tiling, self.hf32 = shape, tiling, hf32
        self.row_bytes = shape.c0 * 4  # one output channel in a fractal column of dw
        self.x, self.dy, self.dw = x, dy, dw
        self.dtype: DType = x.dtype
        self.tiling_text = str(tiling)
        self.cut = cut_plane(shape, tiling.slab_k)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x, self.dy, self.dw)

    @property
    def needs_clear(self) -> bool:
        """Whether dw must be zero before: parts add into it, or some of it is never written."""
        written = sum(
            m * f * self.row_bytes for _, kd, _, m, _, f in self._tiles() if self._depths(kd)
        )
        return self._atomic or not self.cut or written < self._copy_bytes

    @property
    def _copy_bytes(self) -> int:
        """Size of one whole gradient; dw holds one, or one per part."""
        s, plan = self.shape, self.shape.plan
        columns = plan.real_groups * s.kernel[0] * plan.cin1_g * s.taps
        return columns * plan.cout_g * self.row_bytes

    @property
    def _atomic(self) -> bool:
        """Whether parts add into one gradient."""
        return self.parts > 1 and self.dw.size_bytes == self._copy_bytes

    @property
    def has_work(self) -> bool:
        """Whether any output position reads any input at all."""
        return bool(self.cut) and any(self._depths(kd) for kd in range(self.shape.kernel[0]))

    # -- the unit table --------------------------------------------------------------------

    def units(self, cores: int) -> Units:
        """One row per (part of K, tile, image and depth, slab), items in contiguous runs."""
        s, parts = self.shape, self.parts
        depths = [self._depths(kd) for kd in range(s.kernel[0])]
        tiles = [tile for tile in self._tiles() if self.cut and depths[tile[1]]]
        if not tiles:
            return Units(np.zeros(0, np.int64))
        items = np.tile(np.array(tiles, np.int64), (parts, 1))
        part = np.repeat(np.arange(parts), len(tiles))
        reach = np.array([len(pairs) for pairs in depths])[items[:, 1]]  # depths of each item
        total = s.n * reach * len(self.cut)
        start = total * part // parts
        count = total * (part + 1) // parts - start
        row = np.repeat(np.arange(len(items)), count)  # the item of each unit
        turn = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        slab, image, depth = self._along_k(turn + start[row], reach[row])
        cut = {name: column[slab] for name, column in self.cut.table().items()}
        _, kd, _, m, f0, f = (column[row] for column in items.T)
        offset = np.cumsum([0, *map(len, depths)])[kd]
        pairs = np.array([pair for some in depths for pair in some], np.int64)[offset + depth]
        bases = self._bases(items[row].T, image, pairs.T, cut)
        if not self._atomic:
            bases["dw"] = bases["dw"] + part[row] * self._copy_bytes
        places = ("row", "column", "h_start", "w_start")
        signature = {
            "m": m,
            "f": f,
            "tap": f0 % s.taps,
            **{name: column for name, column in cut.items() if name not in places},
            "first": (turn == 0).astype(np.int64),
            "last": (turn == count[row] - 1).astype(np.int64),
        }
        return Units(row * min(cores, len(items)) // len(items), signature, bases)

    def _along_k(self, k: IntArray, depths: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(slab, image, which depth pair) of places ``k`` in K, for tiles of so many depths."""
        if self.tiling.k_order == "image":
            slab, where = k % len(self.cut), k // len(self.cut)
        else:
            where, slab = k % (self.shape.n * depths), k // (self.shape.n * depths)
        return slab, where // depths, where % depths

    def _bases(
        self, tile: IntArray, image: IntArray, depth: IntArray, cut: dict[str, IntArray]
    ) -> dict[str, IntArray]:
        """Byte offsets of the units' x, dy and dw (the first copy)."""
        s, plan = self.shape, self.shape.plan
        g, kd, m0, _, f0, _ = tile
        do, di = depth
        (_, ho, wo), (_, h, w) = s.out, s.spatial
        x_plane = (image * s.spatial[0] + di) * s.cin1 + g * plan.cin1_g + f0 // s.taps
        y_plane = (image * s.out[0] + do) * s.cout1 + (g * plan.cout_g + m0) // s.c0
        column = (g * s.kernel[0] + kd) * plan.cin1_g * s.taps + f0
        return {
            "x": ((x_plane * h + cut["h_start"]) * w + cut["w_start"]) * 32,
            "dy": ((y_plane * ho + cut["row"]) * wo + cut["column"]) * 32,
            "dw": (column * plan.cout_g + m0) * self.row_bytes,
        }

    @property
    def parts(self) -> int:
        """Parts of K, at most one per unit of work along K."""
        along_k = [
            self.shape.n * len(self._depths(kd)) * len(self.cut)
            for kd in range(self.shape.kernel[0])
        ]
        return min(self.tiling.k_parts, min((n for n in along_k if n), default=1))

    def _depths(self, kd: int) -> list[tuple[int, int]]:
        """(output depth, input depth) pairs that meet through filter depth ``kd``."""
        s = self.shape
        pairs = (
            (do, do * s.stride[0] - s.padding[0][0] + kd * s.dilation[0]) for do in range(s.out[0])
        )
        return [(do, di) for do, di in pairs if 0 <= di < s.spatial[0]]

    def _tiles(self) -> list[tuple[int, int, int, int, int, int]]:
        """(real group, kd, m0, m, first fractal column, columns) of every output tile."""
        s, plan = self.shape, self.shape.plan
        step = self.tiling.base_n // s.c0
        tiles = []
        for g in range(plan.real_groups):
            # The last real group may reach past the tensors' channel blocks: nothing is there.
            m_all = min(plan.cout_g, s.cout1 * s.c0 - g * plan.cout_g)
            f_all = min(plan.cin1_g, s.cin1 - g * plan.cin1_g) * s.taps
            for kd in range(s.kernel[0]):
                tiles += [
                    (g, kd, m0, min(self.tiling.base_m, m_all - m0), f0, min(step, f_all - f0))
                    for f0 in range(0, f_all, step)
                    for m0 in range(0, m_all, self.tiling.base_m)
                ]
        return tiles

    # -- the program -----------------------------------------------------------------------

    def buffers(self, k: Language) -> None:
        t, s = self.tiling, self.shape
        planes = min(ceil_div(t.base_n // s.c0 + s.taps - 1, s.taps), s.plan.cin1_g)
        pixels = self.cut.most_pixels or 1
        positions = ceil_div(self.cut.most_positions or 1, 16) * 16
        m = min(t.base_m, s.plan.cout_g)
        n = ceil_div(min(t.base_n, s.plan.cin1_g * s.taps * s.c0), 16) * 16
        base_k = min(t.base_k, positions)
        self.x1 = k.buffer("L1", (planes, pixels, s.c0), self.dtype, slots=t.l1_slots, name="x_l1")
        self.y1 = k.buffer(
            "L1", (m // s.c0, positions, s.c0), self.dtype, slots=t.l1_slots, name="dy_l1"
        )
        self.a = k.buffer("L0A", (m, base_k), self.dtype, slots=t.l0_slots, name="dy_l0a")
        self.b = k.buffer("L0B", (base_k, n), self.dtype, slots=t.l0_slots, name="x_l0b")
        self.c = k.buffer("L0C", (m, n), FP32, slots=t.l0c_slots, name="dw_l0c")
        self.staging = k.fixpipe_staging(m, FP32, columns=n // 16)

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        """One slab of one tile: load, expand and transpose into L0, accumulate; drain last."""
        x1, y1 = self.x1.next(), self.y1.next()
        self._load_x(k, unit, x1)
        self._load_dy(k, unit, y1)
        self._accumulate(k, unit, x1, y1)

    def _accumulate(
        self, k: Language, u: SimpleNamespace, x1: Slot, y1: Slot, at: tuple[int, int] = (0, 0)
    ) -> None:
        """Multiply a slab, whose planes begin ``at`` those of x and dy in L1; drain the last."""
        c0, planes = self.shape.c0, self._planes_of(u)
        window, (x_at, y_at) = self._window(u), at
        c = self.c.next() if u.first else self.c.last()
        plane, positions = u.h * u.w * 32, u.rows * u.columns
        for k0 in range(0, positions, self.tiling.base_k):
            kk = min(self.tiling.base_k, positions - k0)
            a, b = self.a.next(), self.b.next()
            self._transpose_dy(k, u, a, y1, (k0, kk), y_at)
            k.load3d(
                b.at(0, ceil_div(u.f * c0, 16) * ceil_div(kk, c0) * 512),
                x1.at(x_at * plane, planes * plane),
                window,
                self.dtype,
                m=(k0, kk),
                k=(u.tap * c0, u.f * c0),
            )
            init = bool(u.first and k0 == 0)
            k.mmad(c, a, b, u.m, kk, u.f * c0, self.dtype, init=init, hf32=self.hf32)
        if u.last:
            pitch = self.shape.plan.cout_g * self.row_bytes
            out = self.dw.at(0, u.m * self.row_bytes, base="dw", rows=u.f, pitch=pitch)
            atomic, n = self._atomic, u.f * c0
            k.fixpipe(out, c, u.m, n, FP32, staging=self.staging, atomic=atomic, c0=c0)

    def _planes_of(self, u: SimpleNamespace) -> int:
        """Planes of x that the unit's columns lie in."""
        planes: int = (u.tap + u.f - 1) // self.shape.taps + 1
        return planes

    def _window(self, u: SimpleNamespace) -> Window:
        """The img2col geometry of the part of x in L1."""
        s = self.shape
        return Window(
            h=u.h,
            w=u.w,
            pad_left=u.left,
            pad_right=u.right,
            pad_top=u.top,
            pad_bottom=u.bottom,
            kernel_h=s.kernel[1],
            kernel_w=s.kernel[2],
            stride_h=s.stride[1],
            stride_w=s.stride[2],
            dilation_h=s.dilation[1],
            dilation_w=s.dilation[2],
        )

    def _load_x(self, k: Language, u: SimpleNamespace, x1: Slot) -> None:
        """x rows of every plane the tile's columns lie in."""
        s, planes = self.shape, self._planes_of(u)
        plane, row, size = s.spatial[1] * s.spatial[2] * 32, s.spatial[2] * 32, u.w * 32
        if size == row:  # whole rows: one descriptor for all planes
            k.data_move(
                x1.at(0, planes * u.h * size),
                self.x.at(0, u.h * row, base="x", rows=planes, pitch=plane),
                self.dtype,
            )
        else:
            for p in range(planes):
                k.data_move(
                    x1.at(p * u.h * size, u.h * size),
                    self.x.at(p * plane, size, base="x", rows=u.h, pitch=row),
                    self.dtype,
                )

    def _load_dy(self, k: Language, u: SimpleNamespace, y1: Slot) -> None:
        """The slab's positions of every dy plane of the tile, planes padded to 16 positions."""
        _, ho, wo = self.shape.out
        size = u.rows * u.columns * 32
        planes, pitch = u.m // self.shape.c0, ceil_div(u.rows * u.columns, 16) * 512
        k.data_move(
            y1.at(0, size, rows=planes, pitch=pitch),
            self.dy.at(0, size, base="dy", rows=planes, pitch=ho * wo * 32),
            self.dtype,
        )

    def _transpose_dy(
        self, k: Language, u: SimpleNamespace, a: Slot, y1: Slot, steps: tuple[int, int], at: int
    ) -> None:
        """L0A <- dy^T for positions ``steps`` = (start, count) of planes from ``at`` in L1.

        One load3d, or load2d per plane.
        """
        k0, kk = steps
        planes, pitch = u.m // self.shape.c0, ceil_div(u.rows * u.columns, 16)
        if k.has_path("L1", "L0A", "load3d_transpose"):
            k.load3d(
                a.at(0, ceil_div(u.m, 16) * ceil_div(kk, self.shape.c0) * 512),
                y1.at(at * pitch * 512, planes * pitch * 512),
                Window(h=1, w=pitch * 16),
                self.dtype,
                m=(k0, kk),
                k=(0, u.m),
                transpose=True,
            )
            return
        k1 = ceil_div(kk, 16)
        whole = k1 == pitch and planes * k1 <= 255  # planes follow each other: one instruction
        for block in range(1 if whole else planes):
            count = planes * k1 if whole else k1
            source = y1.fractals((at + block) * pitch + k0 // 16, count)
            k.load2d(a.fractals(block * k1, count), source, self.dtype, transpose=True)
