"""The order of tiles of an implicit matrix product: the core and the turn of each."""

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
    ``first`` and ``last`` begin and end the tile's sums; weights or input that ``stay`` are in L1
    already. The tile has the positions of ``images``.
    """

    h: int
    w: int
    images: int
    n: int
    planes: int
    first: bool
    last: bool
    weights_stay: bool
    input_stays: bool


class _Terms(NamedTuple):
    """The products that add up to each item: of filter depths, and of runs of rows and columns."""

    depths: IntArray
    rows: IntArray
    columns: IntArray

    @property
    def total(self) -> IntArray:
        """Products of each item."""
        return self.depths * self.rows * self.columns


class _Reads(NamedTuple):
    """For each product its run of rows and of columns, filter depth and input depth."""

    row: IntArray
    column: IntArray
    kd: IntArray
    depth_in: IntArray


class _ChannelTile(NamedTuple):
    """``n`` output blocks of a group from block ``n0`` on, summed over ``planes`` input blocks.

    ``block`` is the first output block of the part of the channels that one core takes.
    """

    group: int
    n0: int
    n: int
    planes: int
    block: int


class Walk:
    """The tiles of a ``kernel``'s product: slabs of its plane that read input, and channels."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.geometry = cast(Geometry, kernel.geometry)
        self.tiling = cast(Tiling, kernel.tiling)
        self.plane = cast(Plane, kernel.plane.live())

    def tasks(self, cores: int) -> Tasks[Step]:
        """One row per (item, filter depth, part of the taps)."""
        items = self._items()
        terms = self._terms(items)
        count = terms.total
        items["core"] = self._cores(items, count, cores)
        require_table(int(count.sum()))
        item = np.repeat(np.arange(len(count)), count)
        turn = np.arange(len(item)) - _begins(count)[item]
        table = {name: column[item] for name, column in items.items()}
        reads = self._reads(table, turn, terms.rows[item], terms.columns[item])
        bases = self._bases(table, reads)
        h = self.plane.rows.readings[1][reads.row]
        w = self.plane.columns.readings[1][reads.column]
        core = table["core"]
        weights_stay = np.zeros(len(item), np.bool_)
        input_stays = np.zeros(len(item), np.bool_)
        if self.tiling.resident:
            taps = self.plane.rows.kernel[reads.row] * (self.geometry.w.kernel + 1)
            taps = taps + self.plane.columns.kernel[reads.column]
            weights_stay[1:] = _repeats(core, bases["w"], taps, table["n"])
        if self.tiling.resident_input:
            input_stays[1:] = _repeats(core, bases["x"], h, w)
        steps = {
            "h": h,
            "w": w,
            "images": table["images"],
            "n": table["n"],
            "planes": table["planes"],
            "first": turn == 0,
            "last": turn == count[item] - 1,
            "weights_stay": weights_stay,
            "input_stays": input_stays,
        }
        return Tasks(core, Step, steps, bases)

    def _terms(self, items: dict[str, IntArray]) -> _Terms:
        """The products that add up to each item."""
        depths = np.array([len(pairs) for pairs in self.geometry.live])
        rows = np.bincount(self.plane.rows.sums)
        columns = np.bincount(self.plane.columns.sums)
        return _Terms(depths[items["depth"]], rows[items["row"]], columns[items["column"]])

    def _reads(
        self, table: dict[str, IntArray], turn: IntArray, along_h: IntArray, along_w: IntArray
    ) -> _Reads:
        """The reads of each product of an item, where the plane has so many along both axes."""
        rows = np.bincount(self.plane.rows.sums)
        columns = np.bincount(self.plane.columns.sums)
        row = _begins(rows)[table["row"]] + turn // along_w % along_h
        column = _begins(columns)[table["column"]] + turn % along_w
        depths = np.array([len(pairs) for pairs in self.geometry.live])
        pair = _begins(depths)[table["depth"]] + turn // (along_h * along_w)
        pairs = np.array([p for pairs in self.geometry.live for p in pairs]).reshape(-1, 2)
        kd, depth_in = pairs[pair].T
        return _Reads(row, column, kd, depth_in)

    def _cores(self, items: dict[str, IntArray], terms: IntArray, cores: int) -> IntArray:
        """Core of each item: shares in contiguous runs; where items differ, runs of equal ones.

        Of each kind every core takes as many, the largest kind first; what is over goes to the
        cores that have least so far. Items without operands that stay are dealt out one by one.
        """
        share = items["share"]
        t = self.tiling
        if t.form == "window" or t.single_core_n or not len(share):
            shares = int(share[-1]) + 1 if len(share) else 0
            return in_runs(shares, cores)[share]
        rows = self.plane.rows
        columns = self.plane.columns
        taps_h = np.bincount(rows.sums, rows.count * rows.kernel)[items["row"]]
        taps_w = np.bincount(columns.sums, columns.count * columns.kernel)[items["column"]]
        size = terms * taps_h * taps_w * items["n"]
        stays = t.resident or t.resident_input
        kind = self._parts()[items["row"] * columns.slabs + items["column"]] if stays else size
        _, which, count = np.unique(kind, return_inverse=True, return_counts=True)
        by_kind = np.split(np.argsort(which.reshape(-1), kind="stable"), np.cumsum(count)[:-1])
        core = np.empty_like(share)
        load = np.zeros(cores)
        for alike in sorted(by_kind, key=lambda alike: -float(size[alike].mean())):
            core[alike] = _dealt(len(alike), load, in_a_run=stays)
            load += np.bincount(core[alike], size[alike], cores)
        return core

    def _parts(self) -> IntArray:
        """The part of the plane that each slab is of, as a number."""
        rows = _part_of_slabs(self.plane.rows)
        columns = _part_of_slabs(self.plane.columns)
        parts: IntArray = np.add.outer(rows * len(self.plane.columns.parts), columns).reshape(-1)
        return parts

    def _place(self, slab: IntArray, row: IntArray, image: IntArray) -> IntArray:
        """Numbers that ascend in the order in which slabs of images come."""
        count = self.geometry.images
        height = int(self.kernel.height)
        if height:
            return self.plane.rows.begins[row] // height * count + image
        # Slabs of one part of the plane follow each other, as they need the same weights, and of
        # one image, as each reads rows of the one before, which the L2 still holds.
        place: IntArray = (self._parts()[slab] * count + image) * self.plane.slabs + slab
        return place

    def _channel_tiles(self) -> list[_ChannelTile]:
        """The tiles along the channels of all groups."""
        g = self.geometry
        t = self.tiling
        step = t.base_n * t.step_n // g.c0
        most = t.single_core_n // g.c0 or g.planes_out
        tiles: list[_ChannelTile] = []
        for group in range(g.groups):
            planes_in = min(g.planes_in, g.all_in - group * g.planes_in)
            planes_out = min(g.planes_out, g.all_out - group * g.planes_out)
            if planes_in <= 0:
                continue
            for block in range(0, planes_out, most):
                cut = channel_tiles(min(most, planes_out - block), step, g.c0, even=t.even_n)
                tiles += [_ChannelTile(group, block + n0, n, planes_in, block) for n0, n in cut]
        return tiles

    def _items(self) -> dict[str, IntArray]:
        """(row and column of the slab, image, depth, group, output and input planes), and share.

        Items of one share are one core's; shares come in order from 0.
        """
        g = self.geometry
        t = self.tiling
        depths = [d for d in range(g.depth_out) if g.live[d]]
        tiles = self._channel_tiles()
        slab, image, depth, tile = grid(
            np.arange(self.plane.slabs, dtype=np.int64),
            np.arange(0, g.images, t.images, dtype=np.int64),
            np.array(depths, np.int64),
            np.arange(len(tiles), dtype=np.int64),
        )
        row, column = np.divmod(slab, self.plane.columns.slabs)
        group, n0, n, planes, block = np.array(tiles, np.int64).reshape(-1, 5)[tile].T
        place = self._place(slab, row, image) * g.depth_out + depth
        if t.n_slowest:
            place = place + tile * (int(place.max(initial=0)) + 1)
        else:
            place = place * max(1, len(tiles)) + tile
        share = place
        if t.single_core_n:
            part = self.plane.rows.begins[row] // (self.kernel.height or g.h.out)
            share = numbered(part, image // t.single_core_images, group, block)
            loops = (n0, image, slab) if t.n_slowest else (image, slab, n0)
            place = numbered(share, depth, *loops)
        order = np.argsort(place, kind="stable")
        return {
            "row": row[order],
            "column": column[order],
            "image": image[order],
            "depth": depth[order],
            "group": group[order],
            "n0": n0[order],
            "n": n[order],
            "planes": planes[order],
            "images": np.minimum(t.images, g.images - image[order]),
            "share": np.unique(share[order], return_inverse=True)[1].reshape(-1),
        }

    def _bases(self, table: dict[str, IntArray], reads: _Reads) -> dict[str, IntArray]:
        """Byte offsets of what steps load and store."""
        g = self.geometry
        image = table["image"]
        group = table["group"]
        rows = self.plane.rows
        columns = self.plane.columns
        plane_in = (image * g.depth_in + reads.depth_in) * g.all_in + group * g.planes_in
        plane_out = (image * g.depth_out + table["depth"]) * g.all_out
        plane_out = plane_out + group * g.planes_out + table["n0"]
        x = (plane_in * g.h.size + rows.first_real[reads.row]) * g.w.size
        x = x + columns.first_real[reads.column]
        y = (plane_out * g.h.out + rows.first[reads.row]) * g.w.out
        y = y + columns.first[reads.column]
        place = self._first_place(rows, g.h.kernel)[reads.row] * g.w.kernel
        place = place + self._first_place(columns, g.w.kernel)[reads.column]
        weights = self.kernel.weight_base(group, reads.kd, table["n0"])
        return {
            "x": x * 32,
            "w": weights + place * self.kernel.weight_row,
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


def _begins(count: IntArray) -> IntArray:
    """The place of the first of each run of so many."""
    begins: IntArray = np.cumsum(count) - count
    return begins


def _part_of_slabs(runs: Runs) -> IntArray:
    """The part of its axis that each slab is of."""
    part: IntArray = runs.part[np.diff(runs.first, prepend=-1) != 0]
    return part


def _dealt(count: int, load: npt.NDArray[np.float64], *, in_a_run: bool) -> IntArray:
    """Core of each of ``count`` equal items, where cores have a ``load`` already.

    All cores take as many, those with the least load what is over; each a contiguous run of items,
    or one after another.
    """
    cores = len(load)
    each, over = divmod(count, cores)
    # Of equal loads what is over is spread over the cores.
    even = np.diff(np.arange(cores + 1) * over // cores)
    least_first = np.lexsort((-even, load))
    if not in_a_run:
        return least_first[np.arange(count) % cores]
    shares = np.full(cores, each)
    shares[least_first[:over]] += 1
    return np.repeat(np.arange(cores), shares)


def _repeats(*columns: IntArray) -> npt.NDArray[np.bool_]:
    """For each row but the first: true if it agrees with the row before in all columns."""
    same: npt.NDArray[np.bool_] = np.all([np.diff(column) == 0 for column in columns], axis=0)
    return same
