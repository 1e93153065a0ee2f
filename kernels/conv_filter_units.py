"""Filter gradient of a convolution by units of work, as the vendor's library shares it out.

The formula, layouts and products of ``conv_backprop_filter`` under another nest: a unit is a
block of rows of one image and depth, with some of the rows and columns of dw; it goes through
its tiles of dw one after another and adds each into dw. Operands stay in L1 between tiles.

    for unit in (rows of dy, image and depth, block of m or of n):     # spread over cores
        for m block, n block:           # or n block, m block: what the outer one loads stays
            for n tile, m tile:
                for slab of output rows in unit:
                    L1 <- x rows, all planes of the n block            # MTE2, unless there
                    L1 <- dy slab, all planes of the m block           # MTE2, unless there
                    for k in slab step base_k: as in conv_backprop_filter
                dw tile <- L0C, added                                  # FIX, or V and MTE3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from npusim.convolution import Convolution
from npusim.dtypes import FP32
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import Tensor
from npusim.kernels.conv_backprop_filter import ConvBackpropFilter, IntArray, Tiling
from npusim.kernels.parts.conv_filter_slabs import cut_plane
from npusim.kernels.tilings.checks import check_tiling
from npusim.program.kernel import Units
from npusim.program.language import Language


@dataclass(frozen=True, kw_only=True)
class UnitTiling(Tiling):
    """A unit is ``unit_m`` x ``unit_n`` of dw (elements) and ``unit_k`` output positions.

    An L1 slot holds one slab for ``step_m`` tiles along M (dy) or ``step_n`` along N (x). Slots
    in all are ``dy_slots`` and ``x_slots``; where a unit has at most ``dy_slabs`` (``x_slabs``)
    slabs they stay while the next tile needs the same. ``order`` "m" keeps dy, "n" keeps x. Of
    the inherited fields ``k_parts``, ``k_order``, ``l1_slots`` and ``deterministic`` have no say.
    """

    unit_m: int
    unit_n: int
    unit_k: int
    step_m: int = 1
    step_n: int = 1
    dy_slots: int = 2
    x_slots: int = 2
    dy_slabs: int = 1
    x_slabs: int = 1
    order: str = "m"

    def __post_init__(self) -> None:
        super().__post_init__()
        slots = ("dy_slots", "x_slots", "dy_slabs", "x_slabs")
        units = ("unit_m", "unit_n", "unit_k", "step_m", "step_n", *slots)
        check_tiling(self, sixteens=(), positive=units)
        if self.order not in ("m", "n"):
            raise ArgumentError(f"tiling order is {self.order!r}; it is 'm' or 'n'")
        for name in ("dy", "x"):
            have, held = getattr(self, f"{name}_slots"), getattr(self, f"{name}_slabs")
            if held > have:
                raise ArgumentError(
                    f"tiling {name}_slabs is {held}; no more than {name}_slots, {have}, can stay"
                )

    def __str__(self) -> str:
        return (
            f"base {self.base_m}x{self.base_n}x{self.base_k}, slab {self.slab_k}, units "
            f"{self.unit_m}x{self.unit_n}x{self.unit_k}, slots dy {self.dy_slots} x "
            f"{self.x_slots} L0 {self.l0_slots} L0C {self.l0c_slots}"
        )


class ConvFilterUnits(ConvBackpropFilter):
    """The kernel for one shape and tiling, under the name of the kernel it is a nest of."""

    tiling: UnitTiling

    def __init__(
        self,
        shape: Convolution,
        tiling: UnitTiling,
        x: Tensor,
        dy: Tensor,
        dw: Tensor,
        hf32: bool = False,
    ) -> None:
        super().__init__(shape, tiling, x, dy, dw, hf32)
        self.height = max(1, tiling.unit_k // shape.out[2])  # rows of a unit
        self.cut = cut_plane(shape, tiling.slab_k, self.height)

    @property
    def parts(self) -> int:
        """The most units that add into one tile."""
        blocks = len({run.first // self.height for run in self.cut.rows})
        depths = max(len(self._depths(kd)) for kd in range(self.shape.kernel[0]))
        return max(1, self.shape.n * depths * blocks)

    # -- the unit table --------------------------------------------------------------------

    def units(self, cores: int) -> Units:
        """One row per (unit, tile, slab), units in contiguous runs per core."""
        taps, c0 = self.shape.taps, self.shape.c0
        table, cut = self._tile_table(), self.cut.table()
        at = self._places(table, cut["row"] // self.height)
        if not len(at.tile):
            return Units(np.zeros(0, np.int64))
        tile = {name: column[at.tile] for name, column in table.items()}
        slab = {name: column[at.slab] for name, column in cut.items()}
        dy_load, dy_back = _stays((at.share, tile["m_start"]), at, self.tiling.dy_slabs)
        x_load, x_back = _stays((at.share, tile["n_block"]), at, self.tiling.x_slabs)
        places = ("row", "column", "h_start", "w_start")
        signature = {
            **{"m": tile["m"], "f": tile["f"], "tap": tile["f0"] % taps},
            **{"dy_m": tile["m_size"], "dy_at": (tile["m0"] - tile["m_start"]) // c0},
            **{"x_f": tile["n_size"], "x_tap": tile["n_start"] % taps},
            "x_at": tile["f0"] // taps - tile["n_start"] // taps,
            **{name: column for name, column in slab.items() if name not in places},
            **{"dy_load": dy_load, "dy_back": dy_back, "x_load": x_load, "x_back": x_back},
            "first": (at.turn == 0).astype(np.int64),
            "last": (at.turn == at.count - 1).astype(np.int64),
        }
        shares = int(at.share[-1]) + 1
        return Units(
            at.share * min(cores, shares) // shares, signature, self._addresses(tile, at, slab)
        )

    def _tile_table(self) -> dict[str, IntArray]:
        """Every tile of dw, the blocks and units it belongs to, one entry each.

        Of the tile m0, m and the fractal columns f0, f; of what is loaded for it the same as
        *_start and *_size; ``n_block`` numbers the blocks of columns across filter depths.
        """
        s, plan, t = self.shape, self.shape.plan, self.tiling
        columns = plan.cin1_g * s.taps
        depths = t.unit_n // s.c0 // columns  # filter depths of one unit, 0 for a part of one
        along_n = (t.unit_n // s.c0 if not depths else columns), t.step_n, t.base_n // s.c0
        rows = []
        for g in range(plan.real_groups):
            m_all = min(plan.cout_g, s.cout1 * s.c0 - g * plan.cout_g)
            f_all = min(plan.cin1_g, s.cin1 - g * plan.cin1_g) * s.taps
            for kd in range(s.kernel[0]):
                for n in _nest(f_all, *along_n):
                    unit = kd // depths if depths else kd * columns + n[0]
                    rows += [
                        (g, kd, *m, unit, kd * columns + n[1], *n[1:])
                        for m in _nest(m_all, t.unit_m, t.step_m, t.base_m)
                    ]
        names = (
            *("g", "kd", "m_unit", "m_start", "m_size", "m0", "m"),
            *("n_unit", "n_block", "n_start", "n_size", "f0", "f"),
        )
        return dict(zip(names, np.array(rows, np.int64).reshape(-1, len(names)).T, strict=True))

    def _places(self, tile: dict[str, IntArray], slab_unit: IntArray) -> _Places:
        """Every (tile, image and depth, slab) that reads input, in the order of the nest."""
        s = self.shape
        in_unit = np.bincount(slab_unit, minlength=1)
        grids = np.meshgrid(
            np.arange(len(tile["m"])),
            np.arange(s.n * s.out[0]),
            np.arange(len(slab_unit)),
            indexing="ij",
        )
        number, where, slab = (grid.reshape(-1).astype(np.int64) for grid in grids)
        depth_in = where % s.out[0] * s.stride[0] - s.padding[0][0]
        depth_in = depth_in + tile["kd"][number] * s.dilation[0]
        live = (depth_in >= 0) & (depth_in < s.spatial[0])
        number, where, slab, depth_in = (c[live] for c in (number, where, slab, depth_in))
        block, mu, nu = slab_unit[slab], tile["m_unit"][number], tile["n_unit"][number]
        # K slowest; of what is shared besides, the side that is cut goes fastest.
        inner = (where, mu) if not tile["n_unit"].any() else (mu, where)
        outer = (tile["m_start"][number], tile["n_block"][number])
        loops = outer if self.tiling.order == "m" else outer[::-1]
        share = _ranks(tile["g"][number], block, *inner, nu)
        order = np.lexsort((slab, tile["m0"][number], tile["f0"][number], *loops[::-1], share))
        first = np.cumsum(in_unit) - in_unit
        return _Places(
            tile=number[order],
            image=where[order] // s.out[0],
            depth_out=where[order] % s.out[0],
            depth_in=depth_in[order],
            slab=slab[order],
            share=share[order],
            turn=(slab - first[block])[order],
            count=in_unit[block][order],
        )

    def _addresses(
        self, tile: dict[str, IntArray], at: _Places, slab: dict[str, IntArray]
    ) -> dict[str, IntArray]:
        """Byte offsets: of x and dy where their blocks begin, of dw where the tile does."""
        zero, depth = np.zeros_like(at.tile), np.stack((at.depth_out, at.depth_in))
        loaded = np.stack((tile["g"], tile["kd"], tile["m_start"], zero, tile["n_start"], zero))
        result = np.stack((tile["g"], tile["kd"], tile["m0"], zero, tile["f0"], zero))
        bases = self._bases(loaded, at.image, depth, slab)
        return {**bases, "dw": self._bases(result, at.image, depth, slab)["dw"]}

    # -- the program -----------------------------------------------------------------------

    def buffers(self, k: Language) -> None:
        t, s = self.tiling, self.shape
        columns = s.plan.cin1_g * s.taps
        block = self._tile_table()
        reach = block["n_start"] % s.taps + block["n_size"]  # columns from the block's first plane
        planes = ceil_div(int(reach.max()), s.taps)
        pixels, most = self.cut.most_pixels or 1, self.cut.most_positions or 1
        positions = ceil_div(most, 16) * 16
        m, base_k = min(t.base_m, s.plan.cout_g), min(t.base_k, positions)
        n = ceil_div(min(t.base_n, columns * s.c0), 16) * 16
        rows = min(t.step_m * t.base_m, s.plan.cout_g) // s.c0
        x_l1, dy_l1 = (planes, pixels, s.c0), (rows, positions, s.c0)
        self.x1 = k.buffer("L1", x_l1, self.dtype, slots=t.x_slots, name="x_l1")
        self.y1 = k.buffer("L1", dy_l1, self.dtype, slots=t.dy_slots, name="dy_l1")
        self.a = k.buffer("L0A", (m, base_k), self.dtype, slots=t.l0_slots, name="dy_l0a")
        self.b = k.buffer("L0B", (base_k, n), self.dtype, slots=t.l0_slots, name="x_l0b")
        self.c = k.buffer("L0C", (m, n), FP32, slots=t.l0c_slots, name="dw_l0c")
        self.staging = k.fixpipe_staging(m, FP32, columns=n // 16)

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        """One slab of one tile, loaded where it is not there yet."""
        u = unit
        block = SimpleNamespace(**{**vars(u), "m": u.dy_m, "f": u.x_f, "tap": u.x_tap})
        if u.x_load:
            self._load_x(k, block, self.x1.next())
        if u.dy_load:
            self._load_dy(k, block, self.y1.next())
        x1, y1 = self.x1.last(u.x_back), self.y1.last(u.dy_back)
        self._accumulate(k, u, x1, y1, (u.x_at, u.dy_at))


@dataclass(frozen=True)
class _Places:
    """Columns of the unit table: what each row is, and the ``turn`` of its slab among ``count``."""

    tile: IntArray
    image: IntArray
    depth_out: IntArray
    depth_in: IntArray
    slab: IntArray
    share: IntArray
    turn: IntArray
    count: IntArray


def _nest(total: int, unit: int, step: int, base: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(unit, start and size of its block, start and size of the tile) of every tile of an axis.

    A block is ``step`` tiles of ``base``, fewer at the end of a unit.
    """
    for number, first in enumerate(range(0, total, unit)):
        stop = min(first + unit, total)
        for start in range(first, stop, step * base):
            end = min(start + step * base, stop)
            for tile in range(start, end, base):
                yield number, start, end - start, tile, min(base, end - tile)


def _ranks(*columns: IntArray) -> IntArray:
    """Each row's place, from 0, in the order of ``columns``, the first slowest."""
    place = np.zeros_like(columns[0])
    for column in columns:
        place = place * (int(column.max(initial=0)) + 1) + column
    return np.unique(place, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _stays(key: tuple[IntArray, IntArray], at: _Places, most: int) -> tuple[IntArray, IntArray]:
    """(whether to load, how many loads ago) of an operand that belongs to a (unit, block).

    All slabs of a block stay if they are no more than ``most``.
    """
    new = np.ones(len(at.turn), np.bool_)
    new[1:] = np.any([np.diff(column) != 0 for column in key], axis=0)
    index = np.arange(len(new))
    run = index - np.maximum.accumulate(np.where(new, index, 0))
    load = (at.count > most) | (run < at.count)
    return load.astype(np.int64), np.where(load, 0, at.count - 1 - at.turn)
