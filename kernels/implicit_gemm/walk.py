"""Who computes which tile of an implicit matrix product, and when."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from npusim.kernels.implicit_gemm.geometry import Geometry, channel_tiles
from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.parts.plane import Plane, numbered
from npusim.language import IntArray, Tasks, grid, in_runs
from npusim.machine.program.kernel import require_table
from npusim.problem.axis import Runs


class Step(NamedTuple):
    """One filter depth of a slab's tile through some taps: ``n`` output, ``planes`` input blocks.

    ``h`` and ``w`` are numbers of readings: how the slab's rows and columns read the input.
    ``first`` and ``last`` begin and end the tile's sums; ``kept`` weights and a ``held`` slab of
    the input are in L1 already. The tile has the positions of ``images``.
    """

    h: int
    w: int
    images: int
    n: int
    planes: int
    first: bool
    last: bool
    kept: bool
    held: bool


class Walk:
    """The tiles of a ``kernel``'s product: slabs of its plane that read input, and channels."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.geometry = kernel, cast(Geometry, kernel.geometry)
        self.tiling, self.plane = cast(Tiling, kernel.tiling), cast(Plane, kernel.plane.live())

    def tasks(self, cores: int) -> Tasks[Step]:
        """One row per (item, filter depth, part of the taps)."""
        g, plane = self.geometry, self.plane
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
        h, w = plane.rows.readings[1][r], plane.columns.readings[1][c]
        kept, held = np.zeros((2, len(row)), np.bool_)
        if self.tiling.resident:
            taps = plane.rows.kernel[r] * (g.w.kernel + 1) + plane.columns.kernel[c]
            kept[1:] = _repeats(table["core"], bases["w"], taps, table["n"])
        if self.tiling.resident_input:
            held[1:] = _repeats(table["core"], bases["x"], h, w)
        steps = {
            "h": h,
            "w": w,
            "images": table["images"],
            "n": table["n"],
            "planes": table["planes"],
            "first": turn == 0,
            "last": turn == terms[row] - 1,
            "kept": kept,
            "held": held,
        }
        return Tasks(table["core"], Step, steps, bases)

    def _cores(self, item: dict[str, IntArray], terms: IntArray, cores: int) -> IntArray:
        """Core of each item: shares in contiguous runs; where items differ, runs of equal ones.

        Of each kind every core takes as many, the largest kind first; what is over goes to the
        cores that have least so far. Items without operands that stay are dealt out one by one.
        """
        share, t = item["share"], self.tiling
        if t.form == "window" or t.single_core_n or not len(share):
            return in_runs(int(share[-1]) + 1 if len(share) else 0, cores)[share]
        axes = (self.plane.rows, self.plane.columns)
        taps = [np.bincount(axis.sums, axis.count * axis.kernel) for axis in axes]
        size = terms * taps[0][item["row"]] * taps[1][item["column"]] * item["n"]
        stays = t.resident or t.resident_input
        kind = self._parts()[item["row"] * axes[1].slabs + item["column"]] if stays else size
        _, which, count = np.unique(kind, return_inverse=True, return_counts=True)
        places = np.split(np.argsort(which.reshape(-1), kind="stable"), np.cumsum(count)[:-1])
        core, load = np.empty_like(share), np.zeros(cores)
        for of_kind in sorted(places, key=lambda of_kind: -float(size[of_kind].mean())):
            each, over = divmod(len(of_kind), cores)
            spread = np.diff(np.arange(cores + 1) * over // cores)
            least = np.lexsort((-spread, load))
            if stays:
                some = np.full(cores, each)
                some[least[:over]] += 1
                core[of_kind] = np.repeat(np.arange(cores), some)
            else:
                core[of_kind] = least[np.arange(len(of_kind)) % cores]
            load += np.bincount(core[of_kind], size[of_kind], cores)
        return core

    def _parts(self) -> IntArray:
        """The part of the plane that each slab is of, as a number."""
        axes = (self.plane.rows, self.plane.columns)
        row, column = (axis.part[np.diff(axis.first, prepend=-1) != 0] for axis in axes)
        parts: IntArray = np.add.outer(row * len(axes[1].parts), column).reshape(-1)
        return parts

    def _place(self, slab: IntArray, row: IntArray, image: IntArray) -> IntArray:
        """Where slabs of images come in order, as numbers that ascend."""
        count, height = self.geometry.images, int(self.kernel.height)
        if height:
            return self.plane.rows.begins[row] // height * count + image
        # Slabs of one part of the plane follow each other, as they need the same weights, and of
        # one image, as each reads rows of the one before, which the L2 still holds.
        place: IntArray = (self._parts()[slab] * count + image) * self.plane.slabs + slab
        return place

    def _items(self, plane: Plane) -> dict[str, IntArray]:
        """(row and column of the slab, image, depth, group, output and input planes), and share.

        Items of one share are one core's; shares come in order from 0.
        """
        g, t = self.geometry, self.tiling
        depths = [d for d in range(g.depth_out) if g.live[d]]
        step, most = t.base_n * t.step_n // g.c0, t.single_core_n // g.c0 or g.planes_out
        tiles = [
            (group, block + n0, n, min(g.planes_in, g.all_in - group * g.planes_in), block)
            for group in range(g.groups)
            for planes in [min(g.planes_out, g.all_out - group * g.planes_out)]
            for block in range(0, planes, most)
            for n0, n in channel_tiles(min(most, planes - block), step, g.c0, even=t.even_n)
            if group * g.planes_in < g.all_in
        ]
        images = np.arange(0, g.images, self.tiling.images)
        axes = (np.arange(plane.slabs), images, depths, np.arange(len(tiles)))
        slab, image, depth, tile = grid(*(np.asarray(axis, np.int64) for axis in axes))
        row, column = np.divmod(slab, plane.columns.slabs)
        place = self._place(slab, row, image) * g.depth_out + depth
        if self.tiling.n_slowest:
            place = place + tile * (int(place.max(initial=0)) + 1)
        else:
            place = place * max(1, len(tiles)) + tile
        group, n0, n, planes, block = np.array(tiles, np.int64).reshape(-1, 5)[tile].T
        share = place
        if t.single_core_n:
            part = plane.rows.begins[row] // (self.kernel.height or g.h.out)
            share = numbered(part, image // t.single_core_images, group, block)
            inside = (n0, image, slab) if t.n_slowest else (image, slab, n0)
            place = numbered(share, depth, *inside)
        order = np.argsort(place, kind="stable")
        share = np.unique(share[order], return_inverse=True)[1].reshape(-1)
        names = ("row", "column", "image", "depth", "group", "n0", "n", "planes")
        columns = (row, column, image, depth, group, n0, n, planes)
        items = {name: one[order] for name, one in zip(names, columns, strict=True)}
        images = np.minimum(self.tiling.images, g.images - items["image"])
        return items | {"images": images, "share": share}

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
            "w": self.kernel.weight_base(group, kd, table["n0"]) + place * self.kernel.weight_row,
            "y": y * self.kernel.block,
            "bits": y * g.c0 // 8,
            "channel": (group * g.planes_out + table["n0"]) * g.c0 * 4,
        }

    def _first_place(self, runs: Runs, kernel: int) -> IntArray:
        """The least place in the filter that each run uses."""
        if not self.kernel.rotated:
            return runs.tap
        apart = np.array([part.taps[1] for part in runs.parts], np.int64)[runs.part]
        return kernel - 1 - runs.tap - (runs.kernel - 1) * apart


def _repeats(*columns: IntArray) -> npt.NDArray[np.bool_]:
    """Of each row but the first, whether it agrees with the row before in all columns."""
    same: npt.NDArray[np.bool_] = np.all([np.diff(column) == 0 for column in columns], axis=0)
    return same
