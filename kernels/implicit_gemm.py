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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.axis import Reading, Runs
from npusim.convolution import Convolution
from npusim.kernels.parts.implicit_gemm_shape import (
    Geometry,
    filter_places,
    output_lines,
    weight_loads,
    window,
)
from npusim.kernels.parts.plane import Plane, cut_plane
from npusim.kernels.tilings.implicit_gemm import Tiling
from npusim.language import (
    FP32,
    ArgumentError,
    IntArray,
    Kernel,
    Language,
    Plan,
    Slot,
    SlotRegion,
    Tasks,
    Tensor,
    grid,
    in_runs,
    round_up,
)
from npusim.program.kernel import require_table

__all__ = ["ImplicitGemm", "Tiling"]


class Step(NamedTuple):
    """One filter depth of a slab's tile through some taps: ``n`` output, ``planes`` input blocks.

    ``h`` and ``w`` are numbers of readings: how the slab's rows and columns read the input.
    ``first`` and ``last`` begin and end the tile's sums; ``kept`` weights are in L1 already.
    """

    h: int
    w: int
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
    #: Whether columns of img2col meet the filter's taps backwards.
    rotated: ClassVar[bool]

    def __post_init__(self) -> None:
        g = self.geometry
        if self.tiling.form == "window" and not (g.h.fits_window() and g.w.fits_window()):
            raise ArgumentError(
                "tiling form is 'window', but img2col loads know strides to 63, and padding, "
                "filters and dilation to 255; use form 'taps' or 'phases', or tiling 'auto'"
            )
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

    @property
    @abstractmethod
    def weight_row(self) -> int:
        """Bytes of a row of the weights: a filter place of a plane."""

    @abstractmethod
    def load_weights(
        self, k: Language, n: int, b1: Slot, columns: range, places: Sequence[int]
    ) -> None:
        """L1 <- weights of ``columns`` (c1 * taps + tap) for ``n`` blocks of output channels.

        Taps are the filter's ``places``, counted from the first one used.
        """

    @abstractmethod
    def feed_weights(
        self, k: Language, n: int, slots: tuple[Slot, Slot], at: tuple[range, range], taps: int
    ) -> None:
        """L0B <- the columns ``at[1]`` of the L1 slot that holds the columns ``at[0]``."""

    @property
    def useful_macs(self) -> int:
        return self.shape.useful_macs

    @property
    def needed_bytes(self) -> dict[str, int]:
        source, target = ("outputs", "inputs") if self.rotated else ("inputs", "outputs")
        return {
            self.x.name: self.shape.used(source, self.x.size_bytes),
            self.w.name: self.shape.used("taps", self.w.size_bytes),
            self.y.name: self.shape.used(target, self.y.size_bytes),
        }

    @cached_property
    def geometry(self) -> Geometry:
        """The sizes of the product."""
        return self.geometry_of(self.shape)

    @cached_property
    def plane(self) -> Plane:
        """The slabs of an output plane."""
        t, g = self.tiling, self.geometry
        return cut_plane(g.h, g.w, t.base_m, self._height, form=t.form)

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
        columns = min(t.step_columns, g.planes_in * self.plane.live().most_taps)
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
    def needs_clear(self) -> bool:
        """Whether some outputs are reached by no input and must be cleared before."""
        g = self.geometry
        dead = self.plane.live().positions < g.h.out * g.w.out or not all(g.live)
        return dead or (g.groups - 1) * g.planes_in >= g.all_in

    @property
    def has_work(self) -> bool:
        """Whether any output reads any input at all."""
        return self.plane.live().slabs > 0 and any(self.geometry.live)

    def plan(self, k: Language, cores: int) -> Plan[Step]:
        return Plan(self._tasks(cores), _Nest(self, k).emit)

    # -- who computes what -----------------------------------------------------------------

    def _tasks(self, cores: int) -> Tasks[Step]:
        """One row per (item, filter depth, part of the taps)."""
        g, plane = self.geometry, self.plane.live()
        item = self._items(plane)
        # How many terms add up to an item, and which of them each row is.
        depths = np.array([len(pairs) for pairs in g.live])
        rows, columns = (np.bincount(axis.sums) for axis in (plane.rows, plane.columns))
        along_h, along_w = rows[item["row"]], columns[item["column"]]
        terms = depths[item["depth"]] * along_h * along_w
        item["core"] = self._cores(item, terms, cores)
        require_table(int(terms.sum()))
        row = np.repeat(np.arange(len(terms)), terms)
        turn = np.arange(len(row)) - np.repeat(np.cumsum(terms) - terms, terms)
        table = {name: column[row] for name, column in item.items()}
        along_h, along_w = along_h[row], along_w[row]
        r = (np.cumsum(rows) - rows)[table["row"]] + turn // along_w % along_h
        c = (np.cumsum(columns) - columns)[table["column"]] + turn % along_w
        pairs = np.array([p for pairs in g.live for p in pairs]).reshape(-1, 2)
        at = (np.cumsum(depths) - depths)[table["depth"]] + turn // (along_h * along_w)
        kd, depth_in = pairs[at].T
        bases = self._bases(table, (plane.rows, r), (plane.columns, c), kd, depth_in)
        kept = np.zeros(len(row), np.bool_)
        if self.tiling.resident:
            kept[1:] = (np.diff(bases["w"]) == 0) & (np.diff(table["core"]) == 0)
        steps = {
            "h": plane.rows.readings[1][r],
            "w": plane.columns.readings[1][c],
            "n": table["n"],
            "planes": table["planes"],
            "first": turn == 0,
            "last": turn == terms[row] - 1,
            "kept": kept,
        }
        return Tasks(table["core"], Step, steps, bases)

    def _cores(self, item: dict[str, IntArray], terms: IntArray, cores: int) -> IntArray:
        """Core of each item: shares in contiguous runs, or dealt out where they differ much."""
        share = item["share"]
        if self.tiling.form == "window" or not len(share):
            return in_runs(int(share[-1]) + 1 if len(share) else 0, cores)[share]
        taps = [
            np.bincount(axis.sums, axis.count * axis.kernel)
            for axis in (self.plane.live().rows, self.plane.live().columns)
        ]
        size = terms * taps[0][item["row"]] * taps[1][item["column"]] * item["n"]
        core = np.empty_like(share)
        core[np.argsort(-size, kind="stable")] = np.arange(len(share)) % cores
        return core

    def _items(self, plane: Plane) -> dict[str, IntArray]:
        """(row and column of the slab, image, depth, group, output and input planes), and share.

        Items of one share are one core's; shares come in order from 0.
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
        axes = (np.arange(plane.slabs), np.arange(g.images), depths, np.arange(len(tiles)))
        slab, image, depth, tile = grid(*(np.asarray(axis, np.int64) for axis in axes))
        row, column = np.divmod(slab, plane.columns.slabs)
        together = plane.rows.first[row] // self._height if self._height else slab
        place = ((together * g.images + image) * g.depth_out + depth) * max(1, len(tiles)) + tile
        order = np.argsort(place, kind="stable")
        row, column, image, depth, tile = (c[order] for c in (row, column, image, depth, tile))
        share = np.unique(place[order], return_inverse=True)[1].reshape(-1)
        group, n0, n, planes = np.array(tiles, np.int64).reshape(-1, 4)[tile].T
        return {
            "row": row,
            "column": column,
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
        rows: tuple[Runs, IntArray],
        columns: tuple[Runs, IntArray],
        kd: IntArray,
        depth_in: IntArray,
    ) -> dict[str, IntArray]:
        """Byte offsets of what steps load and store, given their runs of rows and columns."""
        g, image, group = self.geometry, table["image"], table["group"]
        (h, r), (w, c) = rows, columns
        plane_in = (image * g.depth_in + depth_in) * g.all_in + group * g.planes_in
        plane_out = (image * g.depth_out + table["depth"]) * g.all_out
        plane_out = plane_out + group * g.planes_out + table["n0"]
        x = (plane_in * g.h.size + h.first_real[r]) * g.w.size + w.first_real[c]
        y = (plane_out * g.h.out + h.first[r]) * g.w.out + w.first[c]
        place = self._first_place(h, g.h.kernel)[r] * g.w.kernel
        place = place + self._first_place(w, g.w.kernel)[c]
        return {
            "x": x * 32,
            "w": self.weight_base(group, kd, table["n0"]) + place * self.weight_row,
            "y": y * self.c0_out * self.y.dtype.bytes,
        }

    def _first_place(self, runs: Runs, kernel: int) -> IntArray:
        """The least place in the filter that each run uses."""
        if not self.rotated:
            return runs.tap
        apart = np.array([part.taps[1] for part in runs.parts], np.int64)[runs.part]
        return kernel - 1 - runs.tap - (runs.kernel - 1) * apart


class _Nest:
    """The program of a step, on the buffers of one core."""

    def __init__(self, kernel: ImplicitGemm, k: Language) -> None:
        self.kernel, self.k = kernel, k
        t, dtype, n, base_k = kernel.ran, kernel.x.dtype, kernel.ran.base_n, kernel.ran.base_k
        live = kernel.plane.live()
        pixels, m = live.most_pixels, round_up(live.most_positions, 16)
        x_l1 = (t.step_planes, pixels, 32 // dtype.bytes)
        w_l1 = (t.step_columns, n, kernel.geometry.c0)
        self.readings = (live.rows.readings[0], live.columns.readings[0])
        self.x1 = k.buffer("L1", x_l1, dtype, slots=t.l1_slots, name="x_l1")
        self.w1 = k.buffer("L1", w_l1, dtype, slots=t.weight_slots, name="w_l1")
        self.a = k.buffer("L0A", (m, base_k), dtype, slots=t.l0_slots, name="x_l0a")
        self.b = k.buffer("L0B", (base_k, n), dtype, slots=t.l0_slots, name="w_l0b")
        self.c = k.buffer("L0C", (m, n), FP32, slots=t.l0c_slots, name="y_l0c")
        self.staging = k.fixpipe_staging(m, kernel.y.dtype, columns=n // 16)

    def emit(self, u: Step) -> None:
        """One filter depth of one tile through some taps."""
        t, g = self.kernel.tiling, self.kernel.geometry
        h, w = self.readings[0][u.h], self.readings[1][u.w]
        taps = h.kernel * w.kernel
        c = self.c.next() if u.first else self.c.last()
        started, steps = not u.first, (t.step_planes * taps, t.step_columns, taps)
        for plane in range(0, u.planes, t.step_planes):
            planes = min(t.step_planes, u.planes - plane)
            x1 = self._load_input((h, w), plane, planes)
            held = x1.at(0, planes * h.size * w.size * 32)
            for columns, used in weight_loads(plane, planes, u.planes, steps):
                w1 = self._load_weights(u, columns, used)
                step = max(1, t.base_k // g.c0)
                for j in range(used.start, used.stop, step):
                    at = range(j, min(j + step, used.stop))
                    self._multiply(u, (c, held, w1), (plane, columns, at), init=not started)
                    started = True
        if u.last:
            self._store(u, c)

    def _load_weights(self, u: Step, columns: range, used: range) -> Slot:
        """The L1 slot with the task's weights of ``columns``, loaded unless it has them."""
        if u.kept or used.start != columns.start:
            return self.w1.last()
        w1, (h, w) = self.w1.next(), (self.readings[0][u.h], self.readings[1][u.w])
        places = filter_places(h, w, self.kernel.geometry.w.kernel)
        self.kernel.load_weights(self.k, u.n, w1, columns, places)
        return w1

    def _multiply(
        self,
        u: Step,
        operands: tuple[Slot, SlotRegion, Slot],
        at: tuple[int, range, range],
        *,
        init: bool,
    ) -> None:
        """Both L0 loads and the mmad of the columns ``at[2]``."""
        (c, x1, w1), (plane, columns, now) = operands, at
        k, g, dtype = self.k, self.kernel.geometry, self.kernel.x.dtype
        h, w = self.readings[0][u.h], self.readings[1][u.w]
        kk, a, b = len(now) * g.c0, self.a.next(), self.b.next()
        positions, taps = h.outputs * w.outputs, h.kernel * w.kernel
        columns_at = ((now.start - plane * taps) * g.c0, kk)
        k.load3d(a, x1, window(h, w), dtype, m=(0, positions), k=columns_at)
        self.kernel.feed_weights(k, u.n, (b, w1), (columns, now), taps)
        k.mmad(c, a, b, positions, kk, u.n * g.c0, dtype, init=init, hf32=self.kernel.hf32)

    def _load_input(self, readings: tuple[Reading, Reading], plane: int, planes: int) -> Slot:
        """L1 <- the slab's rows of ``planes`` channel blocks, with zeros inserted in L1."""
        k, x, x1, (h, w) = self.k, self.kernel.x, self.x1.next(), readings
        g = self.kernel.geometry
        size, width = g.h.size * g.w.size * 32, g.w.size * 32
        slot_plane, slot_row = h.size * w.size * 32, w.size * 32
        if (h.size, w.size) != (h.real, w.real):  # holes remain between the rows or columns
            k.fill(x1.at(0, planes * slot_plane), 0.0, x.dtype)
        elif w.size == g.w.size and h.inputs_apart == 1:  # whole rows: one descriptor for all
            source = x.at(plane * size, h.size * width, base="x", rows=planes, pitch=size)
            k.data_move(x1, source, x.dtype)
            return x1
        together = w.insert == 1 and 1 in (w.real, w.inputs_apart)  # a row is in one piece
        for p in range(planes):
            at = (plane + p) * size
            to = p * slot_plane + h.skip * slot_row + w.skip * 32
            slot_pitch, pitch = h.insert * slot_row, h.inputs_apart * width
            if together:  # rows may lie apart in L1 or in GM
                rows = x1.at(to, w.real * 32, rows=h.real, pitch=slot_pitch)
                source = x.at(at, w.real * 32, base="x", rows=h.real, pitch=pitch)
                k.data_move(rows, source, x.dtype)
                continue
            for row in range(h.real):  # single blocks of 32 B
                blocks = x1.at(to + row * slot_pitch, 32, rows=w.real, pitch=w.insert * 32)
                between = w.inputs_apart * 32
                source = x.at(at + row * pitch, 32, base="x", rows=w.real, pitch=between)
                k.data_move(blocks, source, x.dtype)
        return x1

    def _store(self, u: Step, c: Slot) -> None:
        """Y <- the tile, one piece where its outputs follow each other."""
        k, g, y, c0 = self.k, self.kernel.geometry, self.kernel.y, self.kernel.c0_out
        h, w = self.readings[0][u.h], self.readings[1][u.w]
        block, n, m = c0 * y.dtype.bytes, u.n * g.c0, h.outputs * w.outputs
        plane, lines = g.h.out * g.w.out * block, output_lines(h, w, g.w.out, block)
        if len(lines) == 1 and (m == 1 or lines[0].pitch == block):
            out = y.at(0, m * block, base="y", rows=n // c0, pitch=plane)
            k.fixpipe(out, c, m, n, y.dtype, staging=self.staging, c0=c0)
            return
        out = y.at(0, block, base="y", rows=n // c0, pitch=plane)
        k.fixpipe_scatter(out, lines, c, m, n, y.dtype, staging=self.staging, c0=c0)
