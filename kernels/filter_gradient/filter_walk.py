"""Who adds which part of a filter gradient, and when: the walk through tiles, images and slabs.

A tile is (real group, filter depth, rows, fractal columns) of dw. It is summed over pieces of K;
a run of slabs of one tile and piece goes through L0C at once. Cores share out *shares*: with
``single_core_k`` a block of dw for one piece, else one part of K of one tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

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


class Walk:
    """The steps of one shape and tiling, and the tables they refer to."""

    def __init__(self, shape: Convolution, tiling: Tiling) -> None:
        self.shape, self.tiling = shape, tiling
        #: Rows of a piece of K, 0 where pieces are not whole rows.
        self.height = max(1, tiling.single_core_k // shape.out[2]) if tiling.single_core_k else 0
        widest = widest_band(shape, tiling)
        self.plane: Plane = cut_plane(shape, tiling.slab_k, self.height, tiling.form, widest)
        #: Slabs that tiles go through: all of them, or those that their filter place reads.
        self.slabs = [np.arange(self.plane.reads)]
        if tiling.form == "taps":
            rows, columns = self.plane.rows, self.plane.columns
            tap = np.add.outer(rows.tap * shape.kernel[2], columns.tap).reshape(-1)
            order = np.argsort(tap, kind="stable")
            ends = np.cumsum(np.bincount(tap, minlength=shape.taps))
            self.slabs = np.split(order, ends[:-1])
        elif tiling.form == "bands":
            rows, columns = self.plane.rows, self.plane.columns
            band = np.add.outer(rows.part * len(columns.parts), columns.part).reshape(-1)
            order = np.argsort(band, kind="stable")
            ends = np.cumsum(np.bincount(band, minlength=len(rows.parts) * len(columns.parts)))
            self.slabs = np.split(order, ends[:-1])

    @cached_property
    def tiles(self) -> dict[str, IntArray]:
        """Every tile of dw (``_tiles``); candidates of tilings are made without."""
        return _tiles(self.shape, self.tiling)

    @property
    def place(self) -> IntArray:
        """Which of the ``slabs`` each tile goes through."""
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
        slabs = [count * len(some) for count in reach for some in self.slabs]
        return min(self.tiling.k_parts, min((n for n in slabs if n), default=1))

    @property
    def written(self) -> int:
        """Elements of dw, with those that pad channels, that any share writes."""
        live = np.array([bool(self.depths(kd)) for kd in range(self.shape.kernel[0])])
        t, slabs = self.tiles, np.array([len(some) > 0 for some in self.slabs])
        return int((t["m"] * t["f"])[live[t["kd"]] & slabs[self.place]].sum()) * self.shape.c0

    def steps(self) -> dict[str, IntArray]:
        """Every (tile, image and depth, slab) that reads input, in the order of the nest.

        Columns, one row per slab of a tile, in the order in which each share does them. "tile" and
        "slab" are rows of the tables of tiles and slabs; "turn" is the row's place among the
        "count" that go through L0C together; "part" is that of K, 0 without parts; "lap" counts the
        passes before. A row stands for the slab of so many "images", from "image" on.
        """
        s, row = self.shape, self.plane.table()["row"]
        slabs = np.array([len(some) for some in self.slabs])
        tile, where = grid(np.arange(len(self.place)), np.arange(s.n * s.out[0]))
        count = slabs[self.place[tile]]
        require_table(int(count.sum()))
        turn = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        tile, where = np.repeat(tile, count), np.repeat(where, count)
        slab = np.concatenate(self.slabs)[(np.cumsum(slabs) - slabs)[self.place[tile]] + turn]
        depth_in = where % s.out[0] * s.stride[0] - s.padding[0][0]
        depth_in = depth_in + self.tiles["kd"][tile] * s.dilation[0]
        live = (depth_in >= 0) & (depth_in < s.spatial[0])
        tile, where, slab, depth_in = (c[live] for c in (tile, where, slab, depth_in))
        if self.height:
            part, share, order = self._blocks(tile, where, slab, row)
        elif max(self.tiling.group, self.tiling.passes) > 1:
            part, share, order = self._passes(tile)
        else:
            part, share, order = self._parts(tile)
        columns = (tile, where, depth_in, slab, share, part)
        tile, where, depth_in, slab, share, part = (c[order] for c in columns)
        new = _changes(share, tile, part, *([where] if self.height else []))
        first = np.flatnonzero(new)
        count = np.diff(np.append(first, len(new)))
        turn, count = np.arange(len(new)) - np.repeat(first, count), np.repeat(count, count)
        each = self.tiling.images
        steps = {
            "tile": tile,
            "image": where // s.out[0],
            "depth_out": where % s.out[0],
            "depth_in": depth_in,
            "slab": slab,
            "share": share,
            "part": part * (self.tiling.passes == 1),
            "lap": part * (self.tiling.passes > 1),
            "turn": turn // each,
            "count": -(-count // each),
            "images": np.minimum(each, count - turn),
        }
        # Of images that come together the first stands for all.
        return {name: column[turn % each == 0] for name, column in steps.items()}

    def _parts(self, tile: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Part of K, share and order of steps that come tile by tile: parts slowest."""
        total = np.bincount(tile, minlength=len(self.tiles["m"]))
        place = np.arange(len(tile)) - (np.cumsum(total) - total)[tile]
        part = ((place + 1) * self.parts - 1) // total[tile]
        share = _ranks(part, tile)
        return part, share, np.argsort(share, kind="stable")

    def _passes(self, tile: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The same for groups of tiles: of a share pass by pass, of a pass tile by tile.

        The tiles that need the same operand are cut evenly into groups.
        """
        t, each = self.tiles, self.tiling.images
        along_m = self.tiling.keeps == "x"
        outer = _ranks(t["g"], t["kd"], self.place, t["n_held"] if along_m else t["m0"])
        turn = _turns(outer, t["m0"] if along_m else t["f0"])
        count = np.bincount(outer)[outer]
        groups = -(-count // self.tiling.group)
        share = _ranks(outer, turn * groups // count)[tile]
        total = np.bincount(tile, minlength=len(turn))
        place = np.arange(len(tile)) - (np.cumsum(total) - total)[tile]
        loads = -(-total // each)
        passes = np.minimum(self.tiling.passes, loads)[tile]
        part = ((place // each + 1) * passes - 1) // loads[tile]
        return part, share, np.lexsort((turn[tile], part, share))

    def _blocks(
        self, tile: IntArray, where: IntArray, slab: IntArray, row: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """The same for blocks of dw: K slowest; what ``keeps`` says stays longest."""
        t = {name: column[tile] for name, column in self.tiles.items()}
        # Of what is shared besides K, the side that is cut goes fastest.
        along_m = not self.tiles["n_block"].any()
        inner = (where, t["m_block"]) if along_m else (t["m_block"], where)
        share = _ranks(t["g"], row[slab] // self.height, *inner, t["n_block"])
        loops = (t["m_start"], t["n_held"])
        outer = loops if self.tiling.keeps == "dy" else loops[::-1]
        order = np.lexsort((slab, t["m0"], t["f0"], *outer[::-1], share))
        return np.zeros_like(tile), share, order

    def held(self, at: dict[str, IntArray]) -> dict[str, IntArray]:
        """Whether each step loads dy and x, and else how many loads ago its slab came."""
        t, tile = self.tiling, at["tile"]
        dy = _stays((at["share"], at["lap"], self.tiles["m_start"][tile]), at, t.dy_slabs)
        x = _stays((at["share"], at["lap"], self.tiles["n_held"][tile]), at, t.x_slabs)
        return {"dy_load": dy[0], "dy_back": dy[1], "x_load": x[0], "x_back": x[1]}


def _tiles(s: Convolution, t: Tiling) -> dict[str, IntArray]:
    """Every tile of dw: first row and rows m0, m, first fractal column and columns f0, f.

    *_start and *_size are what is loaded for it, *_block the block of a share it belongs to;
    ``n_held`` tells loads of columns apart, across filter depths too. ``place`` is the filter place
    or band that it has columns of, which begin ``band`` columns after those of a plane.
    """
    if t.form == "bands":
        return _banded_tiles(s, t)
    plan, step = s.plan, t.base_n // s.c0
    # Fractal columns are those of all taps, or one after another of each tap.
    taps, places = (1, s.taps) if t.form == "taps" else (s.taps, 1)
    columns = plan.cin1_g * taps
    along_m, along_n = t.base_m, step
    depths = 0  # filter depths of one block, 0 for a part of one
    if t.single_core_k:
        along_m, depths = t.single_core_m, t.single_core_n // s.c0 // columns
        along_n = columns if depths else t.single_core_n // s.c0
    rows = []
    for g in range(plan.real_groups):
        # The last real group may reach past the tensors' channel blocks: nothing is there.
        m_all = min(plan.cout_g, s.cout1 * s.c0 - g * plan.cout_g)
        f_all = min(plan.cin1_g, s.cin1 - g * plan.cin1_g) * taps
        for kd, place in product(range(s.kernel[0]), range(places)):
            for n in _nest(f_all, along_n, t.step_n, step):
                block = kd // depths if depths else kd * columns + n[0]
                held = (kd * columns + n[1]) * places + place
                start, f0 = (at * places + place for at in (n[1], n[3]))
                rows += [
                    (g, kd, *m, block, held, start, n[2], f0, n[4], place, 0)
                    for m in _nest(m_all, along_m, t.step_m, t.base_m)
                ]
    return _as_table(rows)


def _banded_tiles(s: Convolution, t: Tiling) -> dict[str, IntArray]:
    """The same where a tile has columns of one band of taps, of one plane of channels."""
    rows, plan, step = [], s.plan, t.base_n // s.c0
    bands = bands_of(s, t)
    for g in range(plan.real_groups):
        m_all = min(plan.cout_g, s.cout1 * s.c0 - g * plan.cout_g)
        planes = range(min(plan.cin1_g, s.cin1 - g * plan.cin1_g))
        for kd, (place, (band, taps)), plane in product(
            range(s.kernel[0]), enumerate(bands), planes
        ):
            first = plane * s.taps + band
            for n in _nest(taps, taps, t.step_n, step):
                held = (kd * len(planes) + plane) * s.taps + band + n[1]
                rows += [
                    (g, kd, *m, 0, held, first + n[1], n[2], first + n[3], n[4], place, band)
                    for m in _nest(m_all, t.base_m, t.step_m, t.base_m)
                ]
    return _as_table(rows)


def bands_of(s: Convolution, t: Tiling) -> list[tuple[int, int]]:
    """The first filter place and the places of each band: those of rows, or of part of a row."""
    high, wide = widest_band(s, t)
    down, across = (
        [(part.taps[0], part.axis.kernel) for part in s.axis(i).parts("window", widest)[0]]
        for i, widest in ((1, high), (2, wide))
    )
    return [
        (row * s.kernel[2] + column, rows * columns)
        for row, rows in down
        for column, columns in across
    ]


def _as_table(rows: Sequence[tuple[int, ...]]) -> dict[str, IntArray]:
    """Rows of tiles as columns by name."""
    names = (
        *("g", "kd", "m_block", "m_start", "m_size", "m0", "m"),
        *("n_block", "n_held", "n_start", "n_size", "f0", "f", "place", "band"),
    )
    return dict(zip(names, np.array(rows, np.int64).reshape(-1, len(names)).T, strict=True))


def _nest(total: int, block: int, step: int, base: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(block, start and size of its load, start and size of the tile) of every tile of an axis.

    A load is for ``step`` tiles of ``base``, fewer at the end of a block.
    """
    for number, first in enumerate(range(0, total, block)):
        stop = min(first + block, total)
        for start in range(first, stop, step * base):
            end = min(start + step * base, stop)
            for tile in range(start, end, base):
                yield number, start, end - start, tile, min(base, end - tile)


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


def _changes(*columns: IntArray) -> np.ndarray:
    """Rows in which any column differs from the row before; the first."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return new


def _stays(
    key: tuple[IntArray, ...], at: dict[str, IntArray], most: int
) -> tuple[IntArray, IntArray]:
    """(whether to load, how many loads ago) of an operand that belongs to a share and block.

    All slabs of a run stay if they are no more than ``most``.
    """
    new = _changes(*key)
    index = np.arange(len(new))
    run = index - np.maximum.accumulate(np.where(new, index, 0))
    load = (at["count"] > most) | (run < at["count"])
    return load.astype(np.int64), np.where(load, 0, at["count"] - 1 - at["turn"])
