"""What forward convolution and input gradient share: img2col of one operand times weights.

    out[o, q] = sum over kd, c1, kh, kw, c0 of  in[v(o, tap), c] * w[tap, c, q]

A "virtual" input position of output o through tap k is ``o * stride - before + k * dilation``;
the virtual input is the real one with ``insert - 1`` zeros between its rows and columns (1: none).
Feature maps are blocked (N, D, C1, H, W, C0); M = output positions, N = output channels,
K = (c1, kh, kw, c0) of one filter depth.

    for item in (slab of positions, image and depth, real group, n tile):  # spread over cores
        for kd that reaches the depth:                                     # one *unit* each
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
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from npusim.convolution import Convolution
from npusim.dtypes import FP32
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.dma import Window
from npusim.isa.operands import Slot, Tensor
from npusim.kernels.parts.implicit_gemm_shape import Geometry, slabs, weight_loads
from npusim.kernels.tilings.checks import check_tiling
from npusim.program.kernel import Kernel, Units
from npusim.program.language import BufferHandle, Language

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """One mmad is base_m positions x base_k x base_n channels (elements).

    An L1 slot of the input holds ``step_planes`` channel blocks of the slab, one of the weights
    ``step_columns`` columns of (c1, kh, kw). A core takes the slabs of ``unit_m`` positions (whole
    rows) one after another; 0: slabs are shared out singly. With ``resident`` weights stay in L1
    as long as the same are needed, which takes one slot that holds all columns.
    """

    base_m: int
    base_n: int
    base_k: int
    step_planes: int = 1
    step_columns: int = 1
    l1_slots: int = 2
    weight_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    unit_m: int = 0
    resident: bool = False

    def __post_init__(self) -> None:
        counts = (
            "step_planes",
            "step_columns",
            "l1_slots",
            "weight_slots",
            "l0_slots",
            "l0c_slots",
        )
        check_tiling(self, sixteens=("base_n",), positive=("base_m", "base_k", *counts))

    def __str__(self) -> str:
        return (
            f"base {self.base_m}x{self.base_n}x{self.base_k}, planes {self.step_planes}, columns "
            f"{self.step_columns}, slots L1 {self.l1_slots}+{self.weight_slots} "
            f"L0 {self.l0_slots} L0C {self.l0c_slots}"
        )


class ImplicitGemm(Kernel):
    """Base of the two kernels; a subclass gives the geometry and moves the weights."""

    role: ClassVar[str] = "cube"

    def __init__(
        self,
        shape: Convolution,
        tiling: Tiling,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        hf32: bool = False,
    ) -> None:
        self.shape, self.tiling, self.hf32 = shape, tiling, hf32
        self.x, self.w, self.y = x, w, y
        self.dtype = x.dtype
        self.tiling_text = str(tiling)
        self.geometry = self.geometry_of(shape)
        columns = self.geometry.planes_in * self.geometry.taps
        if tiling.resident and tiling.step_columns < columns:
            raise ArgumentError(
                f"tiling is resident with step_columns {tiling.step_columns}; weights that stay in "
                f"L1 are loaded at once, all {columns} columns"
            )
        self.slabs = slabs(self.geometry, tiling.base_m, tiling.unit_m)
        self.c0_out = 8 if y.dtype.bytes == 4 and self.dtype.bytes == 4 else 16

    @staticmethod
    @abstractmethod
    def geometry_of(shape: Convolution) -> Geometry:
        """The product this kernel makes of a convolution."""

    @abstractmethod
    def weight_base(self, group: IntArray, kd: IntArray, n0: IntArray) -> IntArray:
        """Byte offset of the weights of a real group, filter depth and first output plane."""

    @abstractmethod
    def load_weights(self, k: Language, u: SimpleNamespace, b1: Slot, columns: range) -> None:
        """L1 <- weights of ``columns`` (c1 * taps + tap) for the unit's output channels."""

    @abstractmethod
    def feed_weights(
        self, k: Language, u: SimpleNamespace, slots: tuple[Slot, Slot], at: tuple[range, range]
    ) -> None:
        """L0B <- the columns ``at[1]`` of the L1 slot that holds the columns ``at[0]``."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x, self.w, self.y)

    @property
    def needs_clear(self) -> bool:
        """Whether some outputs are reached by no input and must be cleared before."""
        dead = any(not slab.live for slab in self.slabs) or not all(self.geometry.live)
        g = self.geometry
        return dead or (g.groups - 1) * g.planes_in >= g.all_in

    @property
    def has_work(self) -> bool:
        """Whether any output reads any input at all."""
        return any(slab.live for slab in self.slabs) and any(self.geometry.live)

    # -- the unit table --------------------------------------------------------------------

    def units(self, cores: int) -> Units:
        """One row per (item, filter depth), items in contiguous runs per core."""
        item = self._items()
        total = len(item["slab"])
        shares = int(item["share"][-1]) + 1 if total else 0
        item["core"] = item["share"] * min(cores, shares) // max(1, shares)
        counts = np.array([len(pairs) for pairs in self.geometry.live])
        offsets = np.cumsum(counts) - counts
        repeat = counts[item["depth"]]
        row = np.repeat(np.arange(total), repeat)
        turn = np.arange(len(row)) - np.repeat(np.cumsum(repeat) - repeat, repeat)
        table = {name: column[row] for name, column in item.items()}
        pairs = np.array([p for pairs in self.geometry.live for p in pairs]).reshape(-1, 2)
        kd, depth_in = pairs[offsets[table["depth"]] + turn].T
        bases = self._bases(table, kd, depth_in)
        kept = np.zeros(len(row), np.bool_)
        if self.tiling.resident:
            kept[1:] = (np.diff(bases["w"]) == 0) & (np.diff(table["core"]) == 0)
        signature = {
            **{name: column[table["slab"]] for name, column in self._slab_columns().items()},
            "n": table["n"],
            "planes": table["planes"],
            "first": (turn == 0).astype(np.int64),
            "last": (turn == repeat[row] - 1).astype(np.int64),
            "kept": kept.astype(np.int64),  # the weights in L1 are the unit's already
        }
        return Units(table["core"], signature, bases)

    def _items(self) -> dict[str, IntArray]:
        """(slab, image, depth, group, first and number of output planes, input planes), and share.

        Items of one share are one core's; shares come in order from 0.
        """
        g, step = self.geometry, self.tiling.base_n // self.geometry.c0
        live = [i for i, slab in enumerate(self.slabs) if slab.live]
        depths = [d for d in range(g.depth_out) if g.live[d]]
        tiles = [
            (group, n0, min(step, planes - n0), min(g.planes_in, g.all_in - group * g.planes_in))
            for group in range(g.groups)
            for planes in [min(g.planes_out, g.all_out - group * g.planes_out)]
            for n0 in range(0, planes, step)
            if group * g.planes_in < g.all_in
        ]
        grids = np.meshgrid(live, np.arange(g.images), depths, np.arange(len(tiles)), indexing="ij")
        slab, image, depth, tile = (grid.reshape(-1).astype(np.int64) for grid in grids)
        unit = np.array([s.unit for s in self.slabs], np.int64)[slab]
        place = ((unit * g.images + image) * g.depth_out + depth) * max(1, len(tiles)) + tile
        order = np.argsort(place, kind="stable")
        slab, image, depth, tile = slab[order], image[order], depth[order], tile[order]
        share = np.unique(place[order], return_inverse=True)[1].reshape(-1).astype(np.int64)
        group, n0, n, planes = np.array(tiles, np.int64).reshape(-1, 4)[tile].T
        return {
            "slab": slab,
            "image": image,
            "depth": depth,
            "group": group,
            "n0": n0,
            "n": n,
            "planes": planes,
            "share": share,
        }

    def _bases(
        self, table: dict[str, IntArray], kd: IntArray, depth_in: IntArray
    ) -> dict[str, IntArray]:
        g, block = self.geometry, self.c0_out * self.y.dtype.bytes
        cut = self._slab_table()
        start = {name: column[table["slab"]] for name, column in cut.items()}
        plane_in = (table["image"] * g.depth_in + depth_in) * g.all_in + table[
            "group"
        ] * g.planes_in
        plane_out = (table["image"] * g.depth_out + table["depth"]) * g.all_out
        plane_out = plane_out + table["group"] * g.planes_out + table["n0"]
        x = (plane_in * g.h.size + start["real_row"]) * g.w.size + start["real_column"]
        y = (plane_out * g.h.out + start["row"]) * g.w.out + start["column"]
        return {
            "x": x * 32,
            "w": self.weight_base(table["group"], kd, table["n0"]),
            "y": y * block,
        }

    def _slab_columns(self) -> dict[str, IntArray]:
        """What a unit's program depends on, one entry per slab."""
        rows = [
            (
                s.positions,
                *(s.h.size, s.h.before, s.h.after, s.real_h[1], s.real_h[2]),
                *(s.w.size, s.w.before, s.w.after, s.real_w[1], s.real_w[2]),
            )
            for s in self.slabs
        ]
        names = (
            *("positions", "h", "top", "bottom", "real_h", "skip_h"),
            *("w", "left", "right", "real_w", "skip_w"),
        )
        return dict(zip(names, np.array(rows, np.int64).T, strict=True))

    def _slab_table(self) -> dict[str, IntArray]:
        rows = [(s.row, s.column, s.real_h[0], s.real_w[0]) for s in self.slabs]
        names = ("row", "column", "real_row", "real_column")
        return dict(zip(names, np.array(rows, np.int64).T, strict=True))

    # -- the program -----------------------------------------------------------------------

    def buffers(self, k: Language) -> None:
        t, g = self.tiling, self.geometry
        live = [s for s in self.slabs if s.live]
        pixels = max((s.h.size * s.w.size for s in live), default=1)
        m = ceil_div(max((s.positions for s in live), default=1), 16) * 16
        n = min(t.base_n, ceil_div(g.planes_out * g.c0, 16) * 16)
        columns = min(t.step_columns, g.planes_in * g.taps)
        base_k = max(g.c0, min(t.base_k, columns * g.c0))  # whole columns, at least one
        planes = min(t.step_planes, g.planes_in)
        self.x1 = k.buffer(
            "L1",
            (planes, pixels, 32 // self.dtype.bytes),
            self.dtype,
            slots=t.l1_slots,
            name="x_l1",
        )
        self.w1 = k.buffer("L1", (columns, n, g.c0), self.dtype, slots=t.weight_slots, name="w_l1")
        self.a = k.buffer("L0A", (m, base_k), self.dtype, slots=t.l0_slots, name="x_l0a")
        self.b = k.buffer("L0B", (base_k, n), self.dtype, slots=t.l0_slots, name="w_l0b")
        self.c = k.buffer("L0C", (m, n), FP32, slots=t.l0c_slots, name="y_l0c")
        self.staging: BufferHandle | None = k.fixpipe_staging(m, self.y.dtype, columns=n // 16)

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        """One filter depth of one tile."""
        u, t, g = unit, self.tiling, self.geometry
        c = self.c.next() if u.first else self.c.last()
        started, steps = not u.first, (t.step_planes * g.taps, t.step_columns, g.taps)
        for plane in range(0, u.planes, t.step_planes):
            planes = min(t.step_planes, u.planes - plane)
            x1 = self._load_input(k, u, plane, planes)
            for columns, used in weight_loads(plane, planes, u.planes, steps):
                w1 = self._load_weights(k, u, columns, used)
                step = max(1, t.base_k // g.c0)
                for j in range(used.start, used.stop, step):
                    at = range(j, min(j + step, used.stop))
                    self._multiply(k, u, (c, x1, w1), (plane, columns, at), init=not started)
                    started = True
        if u.last:
            block = self.c0_out * self.y.dtype.bytes
            out = self.y.at(
                0,
                u.positions * block,
                base="y",
                rows=u.n * g.c0 // self.c0_out,
                pitch=g.h.out * g.w.out * block,
            )
            k.fixpipe(
                out, c, u.positions, u.n * g.c0, self.y.dtype, staging=self.staging, c0=self.c0_out
            )

    def _load_weights(self, k: Language, u: SimpleNamespace, columns: range, used: range) -> Slot:
        """The L1 slot with the unit's weights of ``columns``, loaded unless it has them."""
        if u.kept or used.start != columns.start:
            return self.w1.last()
        w1 = self.w1.next()
        self.load_weights(k, u, w1, columns)
        return w1

    def _multiply(
        self,
        k: Language,
        u: SimpleNamespace,
        slots: tuple[Slot, Slot, Slot],
        at: tuple[int, range, range],
        *,
        init: bool,
    ) -> None:
        """Both L0 loads and the mmad of the columns ``at[2]``."""
        (c, x1, w1), (plane, columns, now) = slots, at
        g, kk = self.geometry, len(now) * self.geometry.c0
        planes = min(self.tiling.step_planes, u.planes - plane)
        a, b = self.a.next(), self.b.next()
        k.load3d(
            a.at(0, ceil_div(u.positions, 16) * len(now) * 512),
            x1.at(0, planes * u.h * u.w * 32),
            self._window(u),
            self.dtype,
            m=(0, u.positions),
            k=((now.start - plane * g.taps) * g.c0, kk),
        )
        self.feed_weights(k, u, (b, w1), (columns, now))
        k.mmad(c, a, b, u.positions, kk, u.n * g.c0, self.dtype, init=init, hf32=self.hf32)

    def _window(self, u: SimpleNamespace) -> Window:
        """The img2col geometry of the input in L1; the virtual input has no zeros left to add."""
        h, w = self.geometry.h, self.geometry.w
        return Window(
            h=u.h,
            w=u.w,
            pad_left=u.left,
            pad_right=u.right,
            pad_top=u.top,
            pad_bottom=u.bottom,
            kernel_h=h.kernel,
            kernel_w=w.kernel,
            stride_h=h.stride,
            stride_w=w.stride,
            dilation_h=h.dilation,
            dilation_w=w.dilation,
        )

    def _load_input(self, k: Language, u: SimpleNamespace, plane: int, planes: int) -> Slot:
        """L1 <- the slab's rows of ``planes`` channel blocks, with zeros inserted in L1."""
        g, x1 = self.geometry, self.x1.next()
        size, width = g.h.size * g.w.size * 32, g.w.size * 32
        slot_plane, slot_row = u.h * u.w * 32, u.w * 32
        if (u.h, u.w) != (u.real_h, u.real_w):  # holes remain between the rows or columns
            k.fill(x1.at(0, planes * slot_plane), 0.0, self.dtype)
        elif u.w == g.w.size:  # whole rows, nothing inserted: one descriptor for all planes
            k.data_move(
                x1.at(0, planes * slot_plane),
                self.x.at(plane * size, u.h * width, base="x", rows=planes, pitch=size),
                self.dtype,
            )
            return x1
        for p in range(planes):
            source, target = (plane + p) * size, p * slot_plane + u.skip_h * slot_row
            if g.w.insert == 1:  # rows are contiguous; they may lie insert rows apart in L1
                k.data_move(
                    x1.at(
                        target + u.skip_w * 32,
                        u.real_w * 32,
                        rows=u.real_h,
                        pitch=g.h.insert * slot_row,
                    ),
                    self.x.at(source, u.real_w * 32, base="x", rows=u.real_h, pitch=width),
                    self.dtype,
                )
                continue
            for row in range(u.real_h):  # single blocks of 32 B, insert blocks apart
                k.data_move(
                    x1.at(
                        target + row * g.h.insert * slot_row + u.skip_w * 32,
                        32,
                        rows=u.real_w,
                        pitch=g.w.insert * 32,
                    ),
                    self.x.at(source + row * width, 32, base="x", rows=u.real_w, pitch=32),
                    self.dtype,
                )
        return x1
