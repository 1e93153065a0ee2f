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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.convolution import Convolution
from npusim.kernels.parts.implicit_gemm_shape import Geometry, weight_loads
from npusim.kernels.parts.plane import Plane, cut_plane
from npusim.kernels.tilings.implicit_gemm import Tiling
from npusim.language import (
    FP32,
    ArgumentError,
    BufferHandle,
    IntArray,
    Kernel,
    Language,
    Plan,
    Slot,
    Tasks,
    Tensor,
    Window,
    grid,
    in_runs,
    round_up,
)

__all__ = ["ImplicitGemm", "Tiling"]


class Step(NamedTuple):
    """One filter depth of a slab's tile: ``n`` output and ``planes`` input blocks.

    Of the virtual input ``h`` x ``w`` positions are in L1, of them ``real_h`` x ``real_w`` from
    (``skip_h``, ``skip_w``) on come from GM; around it lie padding rows and columns. ``first`` and
    ``last`` begin and end the tile's sums; ``kept`` weights are in L1 already.
    """

    positions: int
    h: int
    top: int
    bottom: int
    real_h: int
    skip_h: int
    w: int
    left: int
    right: int
    real_w: int
    skip_w: int
    n: int
    planes: int
    first: bool
    last: bool
    kept: bool


@dataclass(frozen=True)
class ImplicitGemm(Kernel):
    """Base of the two kernels; a subclass gives the geometry and moves the weights."""

    shape: Convolution
    tiling: Tiling
    x: Tensor
    w: Tensor
    y: Tensor
    hf32: bool = False

    role: ClassVar[str] = "cube"

    def __post_init__(self) -> None:
        columns = self.geometry.planes_in * self.geometry.taps
        if self.tiling.resident and self.tiling.step_columns < columns:
            raise ArgumentError(
                f"tiling is resident with step_columns {self.tiling.step_columns}; weights that "
                f"stay in L1 are loaded at once, all {columns} columns"
            )

    @staticmethod
    @abstractmethod
    def geometry_of(shape: Convolution) -> Geometry:
        """The product this kernel makes of a convolution."""

    @abstractmethod
    def weight_base(self, group: IntArray, kd: IntArray, n0: IntArray) -> IntArray:
        """Byte offset of the weights of a real group, filter depth and first output plane."""

    @abstractmethod
    def load_weights(self, k: Language, n: int, b1: Slot, columns: range) -> None:
        """L1 <- weights of ``columns`` (c1 * taps + tap) for ``n`` blocks of output channels."""

    @abstractmethod
    def feed_weights(
        self, k: Language, n: int, slots: tuple[Slot, Slot], at: tuple[range, range]
    ) -> None:
        """L0B <- the columns ``at[1]`` of the L1 slot that holds the columns ``at[0]``."""

    @cached_property
    def geometry(self) -> Geometry:
        """The sizes of the product."""
        return self.geometry_of(self.shape)

    @cached_property
    def plane(self) -> Plane:
        """The slabs of an output plane."""
        return cut_plane(self.geometry.h, self.geometry.w, self.tiling.base_m, self._height)

    @property
    def _height(self) -> int:
        """Rows whose slabs a core takes one after another, 0 where slabs are shared out singly."""
        t = self.tiling
        return max(1, t.single_core_m // self.geometry.w.out) if t.single_core_m else 0

    @property
    def c0_out(self) -> int:
        """Channels in a block of the output."""
        return 8 if self.y.dtype.bytes == 4 and self.x.dtype.bytes == 4 else 16

    @cached_property
    def ran(self) -> Tiling:
        """The tiling with the sizes that the shape leaves of it."""
        t, g = self.tiling, self.geometry
        columns = min(t.step_columns, g.planes_in * g.taps)
        return replace(
            t,
            base_m=min(t.base_m, max(1, self.plane.live().most_positions)),
            base_n=min(t.base_n, round_up(g.planes_out * g.c0, 16)),
            base_k=max(g.c0, min(t.base_k, columns * g.c0)),  # whole columns, at least one
            step_planes=min(t.step_planes, g.planes_in),
            step_columns=columns,
        )

    @property
    def tiling_text(self) -> str:
        return str(self.ran)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x, self.w, self.y)

    @property
    def needs_clear(self) -> bool:
        """Whether some outputs are reached by no input and must be cleared before."""
        dead = len(self.plane.live()) < len(self.plane) or not all(self.geometry.live)
        g = self.geometry
        return dead or (g.groups - 1) * g.planes_in >= g.all_in

    @property
    def has_work(self) -> bool:
        """Whether any output reads any input at all."""
        return len(self.plane.live()) > 0 and any(self.geometry.live)

    def plan(self, k: Language, cores: int) -> Plan[Step]:
        t, dtype, n, base_k = self.ran, self.x.dtype, self.ran.base_n, self.ran.base_k
        live = self.plane.live()
        pixels, m = live.most_pixels, round_up(live.most_positions, 16)
        x_l1 = (t.step_planes, pixels, 32 // dtype.bytes)
        w_l1 = (t.step_columns, n, self.geometry.c0)
        nest = _Nest(
            self,
            k,
            x1=k.buffer("L1", x_l1, dtype, slots=t.l1_slots, name="x_l1"),
            w1=k.buffer("L1", w_l1, dtype, slots=t.weight_slots, name="w_l1"),
            a=k.buffer("L0A", (m, base_k), dtype, slots=t.l0_slots, name="x_l0a"),
            b=k.buffer("L0B", (base_k, n), dtype, slots=t.l0_slots, name="w_l0b"),
            c=k.buffer("L0C", (m, n), FP32, slots=t.l0c_slots, name="y_l0c"),
            staging=k.fixpipe_staging(m, self.y.dtype, columns=n // 16),
        )
        return Plan(self._tasks(cores), nest.emit)

    # -- who computes what -----------------------------------------------------------------

    def _tasks(self, cores: int) -> Tasks[Step]:
        """One row per (item, filter depth), items in contiguous runs per core."""
        slab = self.plane.live().table()
        item = self._items(slab["row"])
        total = len(item["slab"])
        shares = int(item["share"][-1]) + 1 if total else 0
        item["core"] = in_runs(shares, cores)[item["share"]]
        counts = np.array([len(pairs) for pairs in self.geometry.live])
        offsets = np.cumsum(counts) - counts
        repeat = counts[item["depth"]]
        row = np.repeat(np.arange(total), repeat)
        turn = np.arange(len(row)) - np.repeat(np.cumsum(repeat) - repeat, repeat)
        table = {name: column[row] for name, column in item.items()}
        pairs = np.array([p for pairs in self.geometry.live for p in pairs]).reshape(-1, 2)
        kd, depth_in = pairs[offsets[table["depth"]] + turn].T
        slab = {name: column[table["slab"]] for name, column in slab.items()}
        bases = self._bases(table, slab, kd, depth_in)
        kept = np.zeros(len(row), np.bool_)
        if self.tiling.resident:
            kept[1:] = (np.diff(bases["w"]) == 0) & (np.diff(table["core"]) == 0)
        columns = {
            **{name: slab[name] for name in Step._fields if name in slab},
            "positions": slab["rows"] * slab["columns"],
            "n": table["n"],
            "planes": table["planes"],
            "first": turn == 0,
            "last": turn == repeat[row] - 1,
            "kept": kept,
        }
        return Tasks(table["core"], Step, columns, bases)

    def _items(self, rows: IntArray) -> dict[str, IntArray]:
        """(slab, image, depth, group, first and number of output planes, input planes), and share.

        ``rows`` are the first rows of slabs. Items of one share are one core's; shares come in
        order from 0.
        """
        g, step = self.geometry, self.tiling.base_n // self.geometry.c0
        depths = [d for d in range(g.depth_out) if g.live[d]]
        tiles = [
            (group, n0, min(step, planes - n0), min(g.planes_in, g.all_in - group * g.planes_in))
            for group in range(g.groups)
            for planes in [min(g.planes_out, g.all_out - group * g.planes_out)]
            for n0 in range(0, planes, step)
            if group * g.planes_in < g.all_in
        ]
        axes = (np.arange(len(rows)), np.arange(g.images), depths, np.arange(len(tiles)))
        slab, image, depth, tile = grid(*(np.asarray(axis, np.int64) for axis in axes))
        together = rows[slab] // self._height if self._height else slab
        place = ((together * g.images + image) * g.depth_out + depth) * max(1, len(tiles)) + tile
        order = np.argsort(place, kind="stable")
        slab, image, depth, tile = slab[order], image[order], depth[order], tile[order]
        share = np.unique(place[order], return_inverse=True)[1].reshape(-1)
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
        self,
        table: dict[str, IntArray],
        slab: dict[str, IntArray],
        kd: IntArray,
        depth_in: IntArray,
    ) -> dict[str, IntArray]:
        g, image, group = self.geometry, table["image"], table["group"]
        plane_in = (image * g.depth_in + depth_in) * g.all_in + group * g.planes_in
        plane_out = (image * g.depth_out + table["depth"]) * g.all_out
        plane_out = plane_out + group * g.planes_out + table["n0"]
        x = (plane_in * g.h.size + slab["real_row"]) * g.w.size + slab["real_column"]
        y = (plane_out * g.h.out + slab["row"]) * g.w.out + slab["column"]
        return {
            "x": x * 32,
            "w": self.weight_base(group, kd, table["n0"]),
            "y": y * self.c0_out * self.y.dtype.bytes,
        }


@dataclass(frozen=True)
class _Nest:
    """The program of a step, on the buffers of one core."""

    kernel: ImplicitGemm
    k: Language
    x1: BufferHandle
    w1: BufferHandle
    a: BufferHandle
    b: BufferHandle
    c: BufferHandle
    staging: BufferHandle | None

    def emit(self, u: Step) -> None:
        """One filter depth of one tile."""
        kernel, t, g = self.kernel, self.kernel.tiling, self.kernel.geometry
        c = self.c.next() if u.first else self.c.last()
        started, steps = not u.first, (t.step_planes * g.taps, t.step_columns, g.taps)
        for plane in range(0, u.planes, t.step_planes):
            planes = min(t.step_planes, u.planes - plane)
            x1 = self._load_input(u, plane, planes)
            for columns, used in weight_loads(plane, planes, u.planes, steps):
                w1 = self._load_weights(u, columns, used)
                step = max(1, t.base_k // g.c0)
                for j in range(used.start, used.stop, step):
                    at = range(j, min(j + step, used.stop))
                    self._multiply(u, (c, x1, w1), (plane, columns, at), init=not started)
                    started = True
        if u.last:
            y, c0, n = kernel.y, kernel.c0_out, u.n * g.c0
            block = c0 * y.dtype.bytes
            pitch = g.h.out * g.w.out * block
            out = y.at(0, u.positions * block, base="y", rows=n // c0, pitch=pitch)
            self.k.fixpipe(out, c, u.positions, n, y.dtype, staging=self.staging, c0=c0)

    def _load_weights(self, u: Step, columns: range, used: range) -> Slot:
        """The L1 slot with the task's weights of ``columns``, loaded unless it has them."""
        if u.kept or used.start != columns.start:
            return self.w1.last()
        w1 = self.w1.next()
        self.kernel.load_weights(self.k, u.n, w1, columns)
        return w1

    def _multiply(
        self,
        u: Step,
        slots: tuple[Slot, Slot, Slot],
        at: tuple[int, range, range],
        *,
        init: bool,
    ) -> None:
        """Both L0 loads and the mmad of the columns ``at[2]``."""
        (c, x1, w1), (plane, columns, now) = slots, at
        k, g, dtype = self.k, self.kernel.geometry, self.kernel.x.dtype
        kk, a, b = len(now) * g.c0, self.a.next(), self.b.next()
        planes = min(self.kernel.tiling.step_planes, u.planes - plane)
        held = x1.at(0, planes * u.h * u.w * 32)
        first = (now.start - plane * g.taps) * g.c0
        k.load3d(a, held, self._window(u), dtype, m=(0, u.positions), k=(first, kk))
        self.kernel.feed_weights(k, u.n, (b, w1), (columns, now))
        k.mmad(c, a, b, u.positions, kk, u.n * g.c0, dtype, init=init, hf32=self.kernel.hf32)

    def _window(self, u: Step) -> Window:
        """The img2col geometry of the input in L1; the virtual input has no zeros left to add."""
        h, w = self.kernel.geometry.h, self.kernel.geometry.w
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

    def _load_input(self, u: Step, plane: int, planes: int) -> Slot:
        """L1 <- the slab's rows of ``planes`` channel blocks, with zeros inserted in L1."""
        k, x, x1 = self.k, self.kernel.x, self.x1.next()
        h, w = self.kernel.geometry.h, self.kernel.geometry.w
        size, width = h.size * w.size * 32, w.size * 32
        slot_plane, slot_row = u.h * u.w * 32, u.w * 32
        if (u.h, u.w) != (u.real_h, u.real_w):  # holes remain between the rows or columns
            k.fill(x1.at(0, planes * slot_plane), 0.0, x.dtype)
        elif u.w == w.size:  # whole rows, nothing inserted: one descriptor for all planes
            source = x.at(plane * size, u.h * width, base="x", rows=planes, pitch=size)
            k.data_move(x1, source, x.dtype)
            return x1
        for p in range(planes):
            at = (plane + p) * size
            to = p * slot_plane + u.skip_h * slot_row + u.skip_w * 32
            pitch = h.insert * slot_row
            if w.insert == 1:  # rows are contiguous; they may lie insert rows apart in L1
                rows = x1.at(to, u.real_w * 32, rows=u.real_h, pitch=pitch)
                source = x.at(at, u.real_w * 32, base="x", rows=u.real_h, pitch=width)
                k.data_move(rows, source, x.dtype)
                continue
            for row in range(u.real_h):  # single blocks of 32 B, insert blocks apart
                blocks = x1.at(to + row * pitch, 32, rows=u.real_w, pitch=w.insert * 32)
                source = x.at(at + row * width, 32, base="x", rows=u.real_w, pitch=32)
                k.data_move(blocks, source, x.dtype)
        return x1
