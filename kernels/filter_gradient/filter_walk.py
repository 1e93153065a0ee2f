"""The walk of a filter gradient through tiles, images and slabs: the core and turn of each part.

A tile is (real group, filter depth, rows, fractal columns) of dw. It is summed over pieces of K;
a run of slabs of one tile and piece goes through L0C at once. Cores share out *shares*: with
``single_core_k`` a block of dw for one piece, else one part of K of one tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.kernels.filter_gradient.tiling import Tiling, cut_plane, widest_band
from npusim.kernels.parts.plane import Plane, numbered
from npusim.language import IntArray, grid
from npusim.machine.program.kernel import require_table
from npusim.problem.convolution import Convolution


class Step(NamedTuple):
    """A slab of a tile of ``m`` rows by ``f`` fractal columns, the first one filter place ``tap``.

    The slab is ``rows`` x ``columns`` positions and reads ``h`` x ``w`` pixels, padding around
    them, through ``high`` x ``wide`` taps. dy in L1 has ``dy_m`` rows, the tile's from plane
    ``dy_at`` on; x has ``x_f`` columns from filter place ``x_tap``, the tile's from plane ``x_at``.
    Either is loaded or came ``*_back`` loads ago, the slabs of so many ``images`` at once.
    ``first`` and ``last`` begin and end the tile's sums, which ``adds`` puts to those of a pass
    before.
    """

    m: int
    f: int
    tap: int
    dy_m: int
    dy_at: int
    x_f: int
    x_tap: int
    x_at: int
    rows: int
    h: int
    top: int
    bottom: int
    columns: int
    w: int
    left: int
    right: int
    high: int
    wide: int
    dy_load: bool
    dy_back: int
    x_load: bool
    x_back: int
    first: bool
    last: bool
    adds: bool
    images: int


class Loads(NamedTuple):
    """For each step: 1 where ``dy`` or ``x`` is loaded, and else how many loads ago it came."""

    dy: IntArray
    dy_back: IntArray
    x: IntArray
    x_back: IntArray


class Band(NamedTuple):
    """Neighbouring taps of a filter: the first ``place``, and how many ``taps``."""

    place: int
    taps: int


class _Visits(NamedTuple):
    """A row for each slab of each tile: ``where`` is image times output depths plus depth."""

    tile: IntArray
    where: IntArray
    slab: IntArray
    depth_in: IntArray

    def taken(self, rows: npt.NDArray[Any]) -> _Visits:
        """The rows that an index, or a mask, takes."""
        return _Visits(self.tile[rows], self.where[rows], self.slab[rows], self.depth_in[rows])


class _Order(NamedTuple):
    """The part of K and the share of each visit, and the ``place`` that each step is taken from."""

    part: IntArray
    share: IntArray
    place: IntArray


class _Cut(NamedTuple):
    """A tile of an axis, ``first`` and ``size``, in a load and a block of a share."""

    block: int
    start: int
    load_size: int
    first: int
    size: int


class _TileOfDw(NamedTuple):
    """A tile of dw, of rows ``m`` and fractal columns ``n``; see ``_tiles``."""

    g: int
    kd: int
    m: _Cut
    n: _Cut
    n_load: int
    place: int
    band: int


class Walk:
    """The steps of one shape and tiling, and the tables they refer to."""

    def __init__(self, shape: Convolution, tiling: Tiling) -> None:
        self.shape = shape
        self.tiling = tiling
        #: Rows of a piece of K, 0 where pieces are not whole rows.
        self.height = max(1, tiling.single_core_k // shape.out[2]) if tiling.single_core_k else 0
        widest = widest_band(shape, tiling)
        self.plane: Plane = cut_plane(shape, tiling.slab_k, self.height, tiling.form, widest)
        #: Slabs that tiles go through: all of them, or those that their filter place reads.
        self.slabs = self._slabs()

    def _slabs(self) -> list[IntArray]:
        """The slabs of each filter place, or of each band; else of all tiles."""
        rows = self.plane.rows
        columns = self.plane.columns
        if self.tiling.form == "taps":
            place = np.add.outer(rows.tap * self.shape.kernel[2], columns.tap).reshape(-1)
            return _grouped(place, self.shape.taps)
        if self.tiling.form == "bands":
            place = np.add.outer(rows.part * len(columns.parts), columns.part).reshape(-1)
            return _grouped(place, len(rows.parts) * len(columns.parts))
        return [np.arange(self.plane.reads)]

    @cached_property
    def tiles(self) -> dict[str, IntArray]:
        """Every tile of dw (``_tiles``); candidates of tilings are made without."""
        return _tiles(self.shape, self.tiling)

    @property
    def place(self) -> IntArray:
        """The number of the ``slabs`` that each tile goes through."""
        return self.tiles["place"]

    def depths(self, kd: int) -> list[tuple[int, int]]:
        """(output depth, input depth) pairs that meet through filter depth ``kd``."""
        axis = self.shape.axis(0)
        pairs = ((do, axis.real(do, kd)) for do in range(axis.out))
        return [(do, di) for do, di in pairs if di is not None]

    @property
    def parts(self) -> int:
        """The most sums that are added into one tile: at least 1, at most one per slab."""
        reach = [self.shape.n * len(self.depths(kd)) for kd in range(self.shape.kernel[0])]
        if self.height:
            blocks = len(np.unique(self.plane.rows.first // self.height))
            return max(1, max(reach) * blocks)
        counts = [images * len(slabs) for images in reach for slabs in self.slabs]
        return min(self.tiling.k_parts, min((count for count in counts if count), default=1))

    @property
    def written(self) -> int:
        """Elements of dw, with those that pad channels, that any share writes."""
        t = self.tiles
        reached = np.array([bool(self.depths(kd)) for kd in range(self.shape.kernel[0])])
        read = np.array([len(slabs) > 0 for slabs in self.slabs])
        live = reached[t["kd"]] & read[self.place]
        return int((t["m"] * t["f"])[live].sum()) * self.shape.c0

    def steps(self) -> dict[str, IntArray]:
        """Every (tile, image and depth, slab) that reads input, in the order of the nest.

        Columns, one row per slab of a tile, in the order in which each share does them. "tile" and
        "slab" are rows of the tables of tiles and slabs; "turn" is the row's place among the
        "count" that go through L0C together; "part" is that of K, 0 without parts; "lap" counts the
        passes before. A row stands for the slab of so many "images", from "image" on.
        """
        visits = self._visits()
        order = self._order(visits)
        visits = visits.taken(order.place)
        part = order.part[order.place]
        share = order.share[order.place]
        loops = [share, visits.tile, part]
        if self.height:
            loops.append(visits.where)
        new = _changes(*loops)
        first = np.flatnonzero(new)
        count = np.diff(np.append(first, len(new)))
        turn = np.arange(len(new)) - np.repeat(first, count)
        count = np.repeat(count, count)
        images = self.tiling.images
        depths = self.shape.out[0]
        passes = self.tiling.passes > 1
        steps = {
            "tile": visits.tile,
            "image": visits.where // depths,
            "depth_out": visits.where % depths,
            "depth_in": visits.depth_in,
            "slab": visits.slab,
            "share": share,
            "part": np.zeros_like(part) if passes else part,
            "lap": part if passes else np.zeros_like(part),
            "turn": turn // images,
            "count": -(-count // images),
            "images": np.minimum(images, count - turn),
        }
        # Of images that come together the first stands for all.
        return {name: column[turn % images == 0] for name, column in steps.items()}

    def _visits(self) -> _Visits:
        """Every tile at every image and depth and slab that it reads, tile by tile."""
        s = self.shape
        slabs = np.array([len(slabs) for slabs in self.slabs])
        tile, where = grid(np.arange(len(self.place)), np.arange(s.n * s.out[0]))
        count = slabs[self.place[tile]]
        require_table(int(count.sum()))
        turn = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        tile = np.repeat(tile, count)
        where = np.repeat(where, count)
        slab = np.concatenate(self.slabs)[(np.cumsum(slabs) - slabs)[self.place[tile]] + turn]
        depth_in = where % s.out[0] * s.stride[0] - s.padding[0][0]
        depth_in = depth_in + self.tiles["kd"][tile] * s.dilation[0]
        live = (depth_in >= 0) & (depth_in < s.spatial[0])
        return _Visits(tile, where, slab, depth_in).taken(live)

    def _order(self, visits: _Visits) -> _Order:
        """The order of steps, by the way in which shares are made."""
        if self.height:
            return self._blocks(visits)
        if max(self.tiling.group, self.tiling.passes) > 1:
            return self._passes(visits.tile)
        return self._parts(visits.tile)

    def _parts(self, tile: IntArray) -> _Order:
        """Parts of K of single tiles, parts slowest."""
        total = np.bincount(tile, minlength=len(self.tiles["m"]))
        place = np.arange(len(tile)) - (np.cumsum(total) - total)[tile]
        part = ((place + 1) * self.parts - 1) // total[tile]
        share = _ranks(part, tile)
        return _Order(part, share, np.argsort(share, kind="stable"))

    def _passes(self, tile: IntArray) -> _Order:
        """Groups of tiles: of a share pass by pass, of a pass tile by tile.

        The tiles that need the same operand are cut evenly into groups.
        """
        t = self.tiles
        images = self.tiling.images
        if self.tiling.keeps == "x":
            outer = _ranks(t["g"], t["kd"], self.place, t["n_load"])
            turn = _turns(outer, t["m0"])
        else:
            outer = _ranks(t["g"], t["kd"], self.place, t["m0"])
            turn = _turns(outer, t["f0"])
        count = np.bincount(outer)[outer]
        groups = -(-count // self.tiling.group)
        share = _ranks(outer, turn * groups // count)[tile]
        total = np.bincount(tile, minlength=len(turn))
        place = np.arange(len(tile)) - (np.cumsum(total) - total)[tile]
        loads = -(-total // images)
        passes = np.minimum(self.tiling.passes, loads)[tile]
        part = ((place // images + 1) * passes - 1) // loads[tile]
        return _Order(part, share, np.lexsort((turn[tile], part, share)))

    def _blocks(self, visits: _Visits) -> _Order:
        """Blocks of dw: K slowest; what ``keeps`` says stays longest."""
        t = {name: column[visits.tile] for name, column in self.tiles.items()}
        piece = self.plane.table()["row"][visits.slab] // self.height
        # Of what is shared besides K, the side that is cut goes fastest.
        if self.tiles["n_block"].any():
            share = _ranks(t["g"], piece, t["m_block"], visits.where, t["n_block"])
        else:
            share = _ranks(t["g"], piece, visits.where, t["m_block"], t["n_block"])
        if self.tiling.keeps == "dy":
            order = np.lexsort((visits.slab, t["m0"], t["f0"], t["n_load"], t["m_start"], share))
        else:
            order = np.lexsort((visits.slab, t["m0"], t["f0"], t["m_start"], t["n_load"], share))
        return _Order(np.zeros_like(visits.tile), share, order)

    def loads(self, steps: dict[str, IntArray]) -> Loads:
        """The loads of dy and of x at each step."""
        dy = self.tiles["m_start"][steps["tile"]]
        x = self.tiles["n_load"][steps["tile"]]
        dy_load, dy_back = _stays(dy, steps, self.tiling.dy_slabs)
        x_load, x_back = _stays(x, steps, self.tiling.x_slabs)
        return Loads(dy_load, dy_back, x_load, x_back)


def _tiles(s: Convolution, t: Tiling) -> dict[str, IntArray]:
    """Every tile of dw: first row and rows m0, m, first fractal column and columns f0, f.

    *_start and *_size are what is loaded for it, *_block the block of a share it belongs to;
    ``n_load`` tells loads of columns apart, across filter depths too. ``place`` is the filter place
    or band that it has columns of, which begin ``band`` columns after those of a plane.
    """
    if t.form == "bands":
        return _banded_tiles(s, t)
    plan = s.plan
    # Fractal columns are those of all taps, or one after another of each tap.
    taps = 1 if t.form == "taps" else s.taps
    places = s.taps if t.form == "taps" else 1
    columns = plan.cin1_g * taps
    block_m = t.base_m
    block_n = t.base_n // s.c0
    depths = 0  # filter depths of one block, 0 for a part of one
    if t.single_core_k:
        block_m = t.single_core_m
        depths = t.single_core_n // s.c0 // columns
        block_n = columns if depths else t.single_core_n // s.c0
    tiles: list[_TileOfDw] = []
    for g in range(plan.real_groups):
        # The last real group may reach past the tensors' channel blocks: nothing is there.
        all_m = min(plan.cout_g, s.cout1 * s.c0 - g * plan.cout_g)
        all_f = min(plan.cin1_g, s.cin1 - g * plan.cin1_g) * taps
        rows = [*_nest(all_m, block_m, t.step_m, t.base_m)]
        for kd, place in product(range(s.kernel[0]), range(places)):
            for n in _nest(all_f, block_n, t.step_n, t.base_n // s.c0):
                block = kd // depths if depths else kd * columns + n.block
                load = (kd * columns + n.start) * places + place
                shifted = n._replace(
                    block=block, start=n.start * places + place, first=n.first * places + place
                )
                tiles += [_TileOfDw(g, kd, m, shifted, load, place, 0) for m in rows]
    return _as_table(tiles)


def _banded_tiles(s: Convolution, t: Tiling) -> dict[str, IntArray]:
    """The same where a tile has columns of one band of taps, of one plane of channels."""
    plan = s.plan
    tiles: list[_TileOfDw] = []
    for g in range(plan.real_groups):
        all_m = min(plan.cout_g, s.cout1 * s.c0 - g * plan.cout_g)
        planes = min(plan.cin1_g, s.cin1 - g * plan.cin1_g)
        rows = [*_nest(all_m, t.base_m, t.step_m, t.base_m)]
        for kd, (place, band), plane in product(
            range(s.kernel[0]), enumerate(bands_of(s, t)), range(planes)
        ):
            first = plane * s.taps + band.place
            for n in _nest(band.taps, band.taps, t.step_n, t.base_n // s.c0):
                load = (kd * planes + plane) * s.taps + band.place + n.start
                shifted = n._replace(block=0, start=first + n.start, first=first + n.first)
                tiles += [_TileOfDw(g, kd, m, shifted, load, place, band.place) for m in rows]
    return _as_table(tiles)


def bands_of(s: Convolution, t: Tiling) -> list[Band]:
    """The bands of the filter: of rows, or of part of a row."""
    high, wide = widest_band(s, t)
    return [
        Band(row.taps[0] * s.kernel[2] + column.taps[0], row.axis.kernel * column.axis.kernel)
        for row in s.axis(1).parts("window", high)[0]
        for column in s.axis(2).parts("window", wide)[0]
    ]


def _as_table(tiles: Sequence[_TileOfDw]) -> dict[str, IntArray]:
    """Tiles as columns by name."""
    names = (
        "g",
        "kd",
        "m_block",
        "m_start",
        "m_size",
        "m0",
        "m",
        "n_block",
        "n_start",
        "n_size",
        "f0",
        "f",
        "n_load",
        "place",
        "band",
    )
    rows = [(t.g, t.kd, *t.m, *t.n, t.n_load, t.place, t.band) for t in tiles]
    return dict(zip(names, np.array(rows, np.int64).reshape(-1, len(names)).T, strict=True))


def _nest(total: int, block: int, step: int, base: int) -> Iterator[_Cut]:
    """The tiles of an axis of ``total``, in blocks.

    A load is for ``step`` tiles of ``base``, fewer at the end of a block.
    """
    for number, first in enumerate(range(0, total, block)):
        stop = min(first + block, total)
        for start in range(first, stop, step * base):
            end = min(start + step * base, stop)
            for tile in range(start, end, base):
                yield _Cut(number, start, end - start, tile, min(base, end - tile))


def _grouped(number: IntArray, count: int) -> list[IntArray]:
    """The rows that have each of the numbers below ``count``."""
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=count))
    return np.split(order, ends[:-1])


def _ranks(*columns: IntArray) -> IntArray:
    """Each row's place, from 0, in the order of ``columns``, the first slowest."""
    return np.unique(numbered(*columns), return_inverse=True)[1].reshape(-1)


def _turns(key: IntArray, value: IntArray) -> IntArray:
    """Each row's place, from 0, among those of the same ``key``, in the order of ``value``."""
    order = np.lexsort((value, key))
    count = np.bincount(key)
    turn = np.empty_like(order)
    turn[order] = np.arange(len(key)) - np.repeat(np.cumsum(count) - count, count)
    return turn


def _changes(*columns: IntArray) -> npt.NDArray[np.bool_]:
    """Rows in which any column differs from the row before; the first."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return new


def _stays(block: IntArray, steps: dict[str, IntArray], most: int) -> tuple[IntArray, IntArray]:
    """(1 to load, loads ago) of an operand of which each share and pass needs a ``block`` at once.

    All slabs of a run stay if they are no more than ``most``.
    """
    count = steps["count"]
    new = _changes(steps["share"], steps["lap"], block)
    index = np.arange(len(new))
    run = index - np.maximum.accumulate(np.where(new, index, 0))
    load = (count > most) | (run < count)
    return load.astype(np.int64), np.where(load, 0, count - 1 - steps["turn"])
