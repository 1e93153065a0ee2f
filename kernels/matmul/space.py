"""The tilings of a matrix product that are worth comparing, and what the cores do under each.

Tiles cut M and N evenly, and K where parts of it may add up. A tile goes along K in slabs, which
come to L1 as one of A and one of B, and each in base blocks: the loads of a product with img2col
whose filter has one tap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.integers import even_parts
from npusim.kernels.estimate import costs
from npusim.kernels.estimate.fit import cube_sizes, most_rows
from npusim.kernels.estimate.ladder import cores_below, l1_below
from npusim.kernels.estimate.pipeline import Columns, Space, chosen, distinct, joined, uneven
from npusim.kernels.estimate.streams import clear_cycles
from npusim.kernels.estimate.tile import (
    CubeStep,
    OperandLoads,
    SharedBytes,
    TileWork,
    WayOut,
    in_step,
    step_of,
    swapped,
)
from npusim.kernels.estimate.work import Floats
from npusim.kernels.matmul.tiling import Shape, Tiling, order_of
from npusim.language import FP32, IntArray, ceil_div, round_up
from npusim.machine.device.parts import Path
from npusim.machine.isa.base import Move

#: Most K of one product, and base blocks of slabs that are tried besides the longest that fit L1.
_MOST_K, _STEPS = 512, (1, 2, 4, 8)
#: Sides of tiles that are tried besides some even cuts, and how many of these.
_SIDES, _EVEN = np.array([16, 32, 64, 96, 128, 192, 256, 384, 512]), 8
#: Most parts of K that are dealt to a core.
_PARTS = 3
#: Rungs of the ladder of lesser machines (``ladder``) whose parts of K and slabs are tried too.
_LESS = 3
#: How A comes to L0A if it is stored K x M, on devices that can.
_ACROSS = ("L1", "L0A", "load3d_transpose")
#: Rows, and places of them, that stand for all where pieces of rows are counted.
_ROWS, _PLACES = 16, 4


class ProductSizes(NamedTuple):
    """Sizes of a tile, in elements, and how often its operands come.

    ``items`` tiles of ``m`` x ``n`` are summed over ``depth`` elements of K in ``slabs``, the
    ``longest`` of which is cut into base blocks, a ``run`` of them. The operand with shorter slabs
    comes in so many ``seconds``, each of so many ``steps``. Rows of A are cut into ``cut_a``
    elements before (0: they are looked at as if they were not). Tiles may begin ``between`` aligned
    places. In blocks of the cube they are ``high`` and ``wide``; of ``means`` tiles differ.
    """

    items: IntArray
    m: Floats
    n: Floats
    depth: Any
    longest: Any
    slabs: Any
    seconds: Floats
    steps: Floats
    run: Any
    cut_a: IntArray
    cut_b: IntArray
    between: Any
    high: Floats
    wide: Floats
    means: bool = False


class SlabLoads(NamedTuple):
    """The loads of A or B for a tile with a ``side`` of so many elements.

    A slab of ``blocks`` base blocks comes so many ``times`` for one of the other operand, into one
    of ``slots``: ``load_bytes`` in ``rows`` in GM, with ``start`` cycles beside those of its bytes.
    The operand has ``size`` bytes; ``held`` says that the L2 has it all. Where it has not, a core
    fetches so many times what it loads (``fetched``).
    """

    side: Floats
    blocks: IntArray
    times: Floats
    load_bytes: Floats
    start: Floats
    rows: Floats
    slots: Any
    size: int
    held: bool
    fetched: Floats


@dataclass(frozen=True)
class Products(Space):
    """Candidates for one product on one device: columns of fields, and what ranks them."""

    shape: Shape

    @cached_property
    def rows(self) -> Columns:
        """Fields of all candidates that fit the device's buffers, one entry per candidate."""
        t = self._parts(self._tiles_in_l0c())
        t = self.with_l0(t, t["m"])
        t["depth"] = -(-t["depth"] // t["k"]) * t["k"]  # parts are of whole base blocks
        t = self._slabs_in_l1(t)
        t["items"] = self._tiles(t) * -(-self.shape.k // t["depth"])
        t["cores"] = -(-t["items"] // -(-t["items"] // self.cores))
        return t

    def _tiles_in_l0c(self) -> Columns:
        """Sides of tiles that L0C, and BT for the bias, have room for."""
        s = self.shape
        high, wide = self._sides(s.m), self._sides(s.n)
        m, n = (side.reshape(-1) for side in np.meshgrid(high, wide, indexing="ij"))
        table = self.device.memory("BT" if s.biased else "L0C").size_bytes // FP32.bytes
        fits = m * n * 4 <= cube_sizes(self.device)["L0C"]
        fits &= (m <= most_rows(self.device, s.out)) & (n <= table)
        return chosen({"m": m, "n": n}, np.flatnonzero(fits))

    def _sides(self, extent: int) -> IntArray:
        """Sides of tiles along M or N: some even cuts, and usual sizes."""
        unit = self.shape.unit
        even = np.array(even_parts(ceil_div(extent, unit), _SIDES[-1] // unit, _EVEN)) * unit
        return distinct(even, _SIDES[(_SIDES % unit == 0) & (extent > _SIDES)])

    def _slabs_in_l1(self, t: Columns) -> Columns:
        """Add base blocks of slabs of which L1 holds two of each operand."""
        l1 = self.device.memory("L1").size_bytes
        room = 2 * (t["m"] + t["n"]) * self.shape.dtype.bytes * t["k"]
        t = chosen(t | {"room": room}, np.flatnonzero(room <= l1))
        longest = np.minimum(l1 // t["room"], -(-t["depth"] // t["k"]))
        lesser = [less // t["room"] for less in l1_below(l1)[:_LESS]]
        steps = [longest]
        for step in (*_STEPS, *lesser):
            wanted = np.broadcast_to(np.asarray(step), longest.shape)
            new = wanted < longest
            for other in steps:
                new = new & (wanted != other)
            steps.append(np.where(new, wanted, 0))
        candidates = [chosen(t | {"step": step}, np.flatnonzero(step)) for step in steps]
        return joined(*candidates)

    def given(self, tilings: Sequence[Tiling]) -> Columns:
        """Fields of such candidates, and whether each ``fits`` and is known.

        Blocks of several tiles are dealt as wholes: the core with most has a share of ``dealt``.
        """
        names = [field.name for field in fields(Tiling)]
        g = {name: np.array([getattr(tiling, name) for tiling in tilings]) for name in names}
        padded_k = round_up(self.shape.k, 16)
        depth = np.minimum(g["single_core_k"], padded_k)
        t = {
            "m": g["base_m"],
            "n": g["base_n"],
            "k": g["base_k"],
            "depth": np.where(g["single_core_k"] > 0, depth, padded_k),
            "step": g["step_ka"],
            "step_a": g["step_ka"],
            "step_b": g["step_kb"],
            "l0_slots": g["l0_slots"],
            "l0c_slots": g["l0c_slots"],
            "unit_flag": g["unit_flag"],
            "l1_halves": g["l1_halves"],
            "l1a": g["l1a_slots"],
            "l1b": g["l1b_slots"],
        }
        t |= self._dealt(t, g)
        fits = self._in_buffers(t) & self._has_estimate(g)
        return t | {"fits": fits, "barrier": g["barrier"]}

    def _dealt(self, t: Columns, g: Columns) -> Columns:
        """Tiles, cores, and the tiles of all cores as if each had as many as the busiest one.

        ``g`` are the fields of ``Tiling``.
        """
        s = self.shape
        parts = -(-s.k // t["depth"])
        items = self._tiles(t) * parts
        tiles_m = -(-s.m // t["m"])
        tiles_n = -(-s.n // t["n"])
        high = np.clip(-(-g["single_core_m"] // t["m"]), 1, tiles_m)
        wide = np.clip(-(-g["single_core_n"] // t["n"]), 1, tiles_n)
        blocks_m = -(-s.m // (t["m"] * high))
        blocks_n = -(-s.n // (t["n"] * wide))
        blocks = s.groups * blocks_m * blocks_n * parts
        allowed = np.where(g["cores"] > 0, g["cores"], self.cores)
        cores = np.minimum(np.minimum(allowed, self.cores), blocks)
        each = -(-blocks // cores) * high * wide
        return {"items": items, "cores": cores, "dealt": np.minimum(each, items) * cores}

    def _in_buffers(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Tell whether buffers of given tilings fit the memories of a core."""
        size = cube_sizes(self.device)
        element = self.shape.dtype.bytes
        rows, columns = t["m"] * t["k"], t["n"] * t["k"]  # of a base block of A, and of B
        l1 = t["l1a"] * t["step_a"] * rows
        l1 = l1 + t["l1b"] * t["step_b"] * columns
        fits = l1 * element <= size["L1"]
        fits &= t["l0_slots"] * rows * element <= size["L0A"]
        fits &= t["l0_slots"] * columns * element <= size["L0B"]
        fits &= t["l0c_slots"] * t["m"] * t["n"] * 4 <= size["L0C"]
        return np.asarray(fits)

    def _has_estimate(self, g: Columns) -> npt.NDArray[np.bool_]:
        """Tell whether closed forms know what tilings with these fields do."""
        fits = ~(g["full_load_a"] | g["through_ub"]) & (g["tail_m"] * g["tail_n"] == 1)
        fits &= ~g["unit_flag"] | (costs.unit_flag_lag(self.device) >= 0)
        cube = self.device.cube
        return np.asarray(fits & (cube is not None and self.shape.math in cube.rates))

    def _parts(self, t: Columns) -> Columns:
        """Add depths of a part of K: all of it, and what keeps cores busy if parts may add up."""
        s = self.shape
        tiles = self._tiles(t)
        depths = [np.full(len(t["m"]), round_up(s.k, 16))]
        candidates = [t | {"depth": depths[0]}]
        for cores in (self.cores, *cores_below(self.cores)[:_LESS]):
            for each in range(1, _PARTS + 1):
                count = each * cores // tiles
                depth = round_up(-(-s.k // np.maximum(1, count)), 16)
                new = np.logical_and.reduce([depth != other for other in depths])
                useful = (count > 1) & (depth < s.k) & s.splits & new
                depths.append(depth)
                candidates.append(chosen(t | {"depth": depth}, np.flatnonzero(useful)))
        return joined(*candidates)

    def _tiles(self, t: Columns) -> IntArray:
        """Tiles of the result."""
        s = self.shape
        return np.asarray(s.groups * -(-s.m // t["m"]) * -(-s.n // t["n"]))

    def depth(
        self, t: Columns, l0_slots: int, split: int
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """See ``pipeline.Space``: elements."""
        size, unit = cube_sizes(self.device), self.shape.unit
        side = np.minimum(size["L0A"] // t["m"], size["L0B"] // t["n"])
        deepest = np.minimum(side // l0_slots // self.shape.dtype.bytes, _MOST_K) // unit * unit
        steps = -(-t["depth"] // np.maximum(1, deepest)) * split
        fits = (deepest > 0) & ((split == 1) | (steps * unit <= t["depth"]))
        return round_up(-(-t["depth"] // steps), unit), fits

    def in_l1(self, t: Columns) -> IntArray:
        """Bytes of L1 that candidates take."""
        return np.asarray(2 * (t["m"] + t["n"]) * t["k"] * t["step"] * self.shape.dtype.bytes)

    def bytes_in_l1(self, t: Tiling) -> int:
        """Bytes of L1 that a tiling of them takes."""
        return 2 * (t.base_m + t.base_n) * t.base_k * t.step_ka * self.shape.dtype.bytes

    def clears(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Tell whether parts of K add into the result, which a kernel before this one clears."""
        return np.asarray(t["depth"] < self.shape.k)

    def tiling(self, t: dict[str, int]) -> Tiling:
        """See ``pipeline.Space``."""
        return Tiling(
            base_m=t["m"],
            base_n=t["n"],
            base_k=t["k"],
            step_ka=t["step"],
            step_kb=t["step"],
            l0_slots=t["l0_slots"],
            l0c_slots=t["l0c_slots"],
            unit_flag=bool(t["unit_flag"]),
            single_core_k=t["depth"] if t["depth"] < self.shape.k else 0,
            cores=t["cores"] if t["cores"] < min(self.cores, t["items"]) else 0,
            **order_of(self.shape, self.device),
        )

    @property
    def math(self) -> str:
        """See ``pipeline.Space``."""
        return self.shape.math

    def busiest(self, t: Columns) -> ProductSizes:
        """See ``pipeline.Space``."""
        items = t.get("dealt", t["items"])
        # In one round a core with a whole tile is the last; in several they even out.
        alone = -(-items // t["cores"]) == 1
        mean_m, mean_n = self._mean_sides(t)
        longer, shorter = _steps(t)
        depth = np.minimum(t["depth"], self.shape.k)
        slab = np.minimum(t["k"] * longer, depth)
        run = np.ceil(slab / t["k"])
        seconds = np.ceil(np.maximum(1, slab / (t["k"] * shorter)))
        m = np.where(alone, np.minimum(t["m"], self.shape.m), mean_m)
        n = np.where(alone, np.minimum(t["n"], self.shape.n), mean_n)
        return ProductSizes(
            items=items,
            m=m,
            n=n,
            depth=depth,
            longest=slab,
            slabs=-(-depth // (t["k"] * longer)),
            seconds=seconds,
            steps=np.ceil(run / seconds),
            run=run,
            cut_a=0 * depth,
            cut_b=0 * depth,
            # Of tiles side by side the busiest core may have those that begin between.
            between=self.shape.n > t["n"],
            high=np.ceil(m / 16) * 16,
            wide=np.ceil(n / 16) * 16,
        )

    def mean(self, t: Columns) -> ProductSizes:
        """See ``pipeline.Space``."""
        s = self.shape
        tiles_m, tiles_n = -(-s.m // t["m"]), -(-s.n // t["n"])
        depth = s.k / -(-s.k // np.minimum(t["depth"], s.k))  # the last part may be shorter
        slabs = np.maximum(1, depth / (t["k"] * _steps(t)[0]))
        slab = depth / slabs
        cube = round_up(s.m, 16) / tiles_m, round_up(s.n, 16) / tiles_n
        run = np.maximum(1, slab / t["k"])
        return self._optimistic(t, (s.m / tiles_m, s.n / tiles_n), cube, (depth, slabs, slab, run))

    def largest(self, t: Columns) -> ProductSizes:
        """See ``pipeline.Space``: the first tile."""
        s = self.shape
        m, n = np.minimum(t["m"], s.m), np.minimum(t["n"], s.n)
        cube = np.ceil(m / 16) * 16, np.ceil(n / 16) * 16
        mean, apart = self.mean(t), -np.ones_like(t["m"])
        return mean._replace(
            m=m / 1.0, n=n / 1.0, high=cube[0], wide=cube[1], cut_a=apart, cut_b=apart
        )

    def least(self, t: Columns) -> ProductSizes:
        """See ``pipeline.Space``: the last tile, and the last part of K."""
        s = self.shape
        steps = (s.m, t["m"]), (s.n, t["n"]), (s.k, np.minimum(t["depth"], s.k))
        m, n, depth = (size - (-(-size // step) - 1) * step for size, step in steps)
        slab = np.minimum(t["k"] * _steps(t)[0], depth)
        slabs = -(-depth // (t["k"] * _steps(t)[0]))
        cube = np.ceil(m / 16) * 16, np.ceil(n / 16) * 16
        run = np.ceil(slab / t["k"])
        least = self._optimistic(t, (m / 1.0, n / 1.0), cube, (depth, slabs, slab, run))
        apart = -np.ones_like(t["m"])
        return least._replace(cut_a=apart, cut_b=apart)

    def _optimistic(
        self, t: Columns, sides: tuple[Any, Any], cube: tuple[Any, Any], along: tuple[Any, ...]
    ) -> ProductSizes:
        """Sizes for a bound, of ``sides`` m and n, which the ``cube`` takes as so much.

        ``along`` K there is a depth, in so many slabs, a slab, and base blocks of it.
        """
        s = self.shape
        depth, slabs, slab, run = along
        seconds = np.maximum(1, slab / (t["k"] * _steps(t)[1]))
        part = np.minimum(t["depth"], s.k)
        k_rows_a, k_rows_b = self._k_rows
        return ProductSizes(
            items=t["items"],
            m=sides[0],
            n=sides[1],
            high=cube[0],
            wide=cube[1],
            depth=depth,
            longest=slab,
            slabs=slabs,
            seconds=seconds,
            steps=run / seconds,
            run=run,
            cut_a=s.m + 0 * part if k_rows_a else part,
            cut_b=s.n + 0 * part if k_rows_b else part,
            between=False,
            means=True,
        )

    def tile(self, t: Columns, sizes: ProductSizes) -> TileWork:
        """See ``pipeline.Space``."""
        a, b = self._operands(t, sizes)
        slab = sizes.depth / sizes.slabs
        k, rest = uneven(slab, sizes.longest.astype(np.float64), t["k"], sizes.run)
        # The operand with shorter slabs comes several times for each of the other.
        loads_a, loads_b = self._loads(t, sizes, a), self._loads(t, sizes, b)
        s = self.shape
        loads_a, loads_b = in_step(
            loads_a,
            loads_b,
            ((s.m - 1) % t["m"] + 1) / sizes.m,
            ((s.n - 1) % t["n"] + 1) / sizes.n,
            -(-np.asarray(sizes.items) // t["cores"]),
        )
        first, second = swapped(a.blocks < b.blocks, loads_a, loads_b)
        return TileWork(
            cores=t["cores"],
            items=sizes.items,
            firsts=sizes.slabs,
            seconds=sizes.seconds,
            steps=sizes.steps,
            run=sizes.run,
            first=first,
            second=second,
            step=self._step(t, sizes, k),
            rest=self._step(t, sizes, rest),
            drain=self._drain(t, sizes),
            traffic=self._traffic(t, sizes, a, b),
            port=self._port,
            step_slots=t["l0_slots"],
            drain_slots=t["l0c_slots"],
            unit_flag=t["unit_flag"],
            beside=self._beside(t),
        )

    def _mean_sides(self, t: Columns) -> tuple[Floats, Floats]:
        """Rows and columns of a tile on average."""
        s = self.shape
        return s.m / -(-s.m // t["m"]), s.n / -(-s.n // t["n"])

    @property
    def _k_rows(self) -> tuple[bool, bool]:
        """Tell whether rows of A in GM are along K, and those of B."""
        turned_a, turned_b = self.shape.turned
        return turned_a, not turned_b

    def _operands(self, t: Columns, sizes: ProductSizes) -> tuple[SlabLoads, SlabLoads]:
        """The loads of A and of B, as they lie in GM."""
        s, e = self.shape, self.shape.dtype.bytes
        k_rows_a, k_rows_b = self._k_rows
        blocks_a, blocks_b = _steps_of_both(t)
        slab, along = sizes.depth / sizes.slabs, np.minimum(t["depth"], s.k)
        times_a = np.where(blocks_a < blocks_b, sizes.seconds, 1)
        times_b = np.where(blocks_b < blocks_a, sizes.seconds, 1)
        start_a, rows_a = self._load(
            extent=(sizes.m, slab / times_a),
            most=(np.minimum(t["m"], s.m), np.minimum(t["k"] * blocks_a, along)),
            total=(s.m, s.k),
            k_rows=k_rows_a,
            cut=sizes.cut_a,
        )
        start_b, rows_b = self._load(
            extent=(sizes.n, slab / times_b),
            most=(np.minimum(t["n"], s.n), np.minimum(t["k"] * blocks_b, along)),
            total=(s.n, s.k),
            k_rows=k_rows_b,
            cut=sizes.cut_b,
        )
        a = SlabLoads(
            side=sizes.m,
            blocks=blocks_a,
            times=times_a,
            load_bytes=sizes.m * slab / times_a * e,
            start=start_a,
            rows=rows_a,
            slots=t.get("l1a", 2),
            size=s.groups * s.m * s.k * e,
            held=self.held[0],
            fetched=self._fetched(sizes.m, s.m, k_rows=k_rows_a),
        )
        b = SlabLoads(
            side=sizes.n,
            blocks=blocks_b,
            times=times_b,
            load_bytes=sizes.n * slab / times_b * e,
            start=start_b,
            rows=rows_b,
            slots=t.get("l1b", 2),
            size=s.groups * s.k * s.n * e,
            held=self.held[1],
            fetched=self._fetched(sizes.n, s.n, k_rows=k_rows_b),
        )
        return a, b

    def _loads(self, t: Columns, sizes: ProductSizes, operand: SlabLoads) -> OperandLoads:
        """The loads of an operand to L1."""
        e = self.shape.dtype.bytes
        rounds = -(-sizes.items // t["cores"])
        asked = t["cores"] * rounds * operand.side * sizes.depth * e
        return OperandLoads(
            start=operand.start,
            # Of one move these are cycles of rows.
            beside=operand.start - self._port.startup_cycles if self._port.variant else 0,
            size=operand.load_bytes,
            slots=operand.slots,
            until=np.where(operand.held, 0, rounds),
            copies=np.maximum(1, asked / operand.size),
            fetched=operand.fetched,
        )

    def _fetched(self, side: Floats, total: int, *, k_rows: bool) -> Floats:
        """How many times the bytes of a load a core fetches, in whole sectors of the L2.

        Rows along K have the rest of a sector in the next slab. Where a slab takes several moves,
        bytes that are fetched with one come besides those of all.
        """
        s, l2, e = self.shape, self.device.l2, self.shape.dtype.bytes
        if s.blocked or l2 is None:
            return np.ones_like(side)
        moves = self._port.variant == ""
        if not k_rows:
            return np.full_like(side, 1.0 + moves)
        row, sector = side * e, l2.sector_bytes
        wide = np.minimum(np.ceil(row / sector) * sector, np.maximum(row, total * e))
        return np.asarray(wide / row + moves)

    def _traffic(self, t: Columns, sizes: ProductSizes, a: SlabLoads, b: SlabLoads) -> SharedBytes:
        """Bytes that all cores move."""
        s, device = self.shape, self.device
        requests = (a.rows * a.times + b.rows * b.times) * sizes.slabs * t["items"]
        written = s.m * s.n * s.groups
        spared = requests
        l2, size = device.l2, a.size + b.size + written * s.out.bytes
        if l2 is not None and l2.has_room(size):  # what misses the L2 does so once
            spared = self.missing(*(each.size * each.rows / each.load_bytes for each in (a, b)))
        sums = self._sum_bytes(t)
        stored = written * sums * -(-s.k // t["depth"]) / costs.write_rate(device)
        return SharedBytes(
            asked=(sizes.m + sizes.n) * sizes.depth * s.dtype.bytes * t["items"],
            requests=requests,
            missing=self.missing(a.size, b.size),
            stored=stored,
            main=device.main_read_rate,
            spared=spared,
        )

    def _beside(self, t: Columns) -> Floats:
        """Cycles of the launch, and of the kernel that clears what parts of K are added into."""
        s = self.shape
        size = s.m * s.n * s.groups * s.out.bytes
        clear = clear_cycles(self.device, size) if s.splits else 0
        launch = costs.launch_cycles(self.device, "cube", t["cores"])
        return np.asarray(launch + np.where(t["depth"] < s.k, clear, 0))

    def _element(self, t: Columns) -> IntArray:
        """Bytes of an element of the result as it leaves."""
        s = self.shape
        return np.where(t["depth"] < s.k, s.out.bytes, (s.single or s.out).bytes)

    def _sum_bytes(self, t: Columns) -> IntArray:
        """Bytes that an element of the result takes of the way, with requests of atomic adds."""
        factor = self.device.l2.atomic_factor if self.device.l2 is not None else 1
        return np.asarray(np.where(t["depth"] < self.shape.k, factor, 1) * self._element(t))

    @property
    def _port(self) -> Path:
        """The way of operands to L1."""
        turning = not self.shape.blocked and self.device.has_path("GM", "L1", "nd2nz")
        return self.device.path("GM", "L1", "nd2nz" if turning else "")

    def _load(
        self,
        extent: tuple[Floats, Floats],
        most: tuple[IntArray, IntArray],
        total: tuple[int, int],
        *,
        k_rows: bool,
        cut: IntArray,
    ) -> tuple[Floats, Floats]:
        """Cycles of a load beside those of its bytes, and its rows in GM.

        All sizes are across K and along it. Rows, which with ``k_rows`` are along K, are as wide as
        the ``most`` that is no tail, and elements of the ``total`` operand apart. Rows are ``cut``
        into so many elements before, and all loads are looked at; 0 looks at a few, and -1 takes
        the fewest pieces that there can be. Where no move makes columns of NZ of rows, each column
        is a move of its own.
        """
        port, e = self._port, self.shape.dtype.bytes
        rows, columns = extent[::-1] if k_rows else extent
        wide, pitch = most[not k_rows], total[not k_rows]
        if port.variant == "":
            moves = columns * e / 32
            if self.shape.blocked:  # a move brings all columns, each of which lies in one piece
                return port.startup_cycles + 0 * moves, moves
            return moves * port.startup_cycles, rows * moves
        if np.min(cut, initial=0) < 0:
            counted = np.maximum(1, wide * e / (port.piece_bytes or np.inf))
            pieces = rows * columns / wide * counted
            return Move.cycles_beside_bytes(port, rows * columns * e, pieces), pieces
        # Both in one number: to sort pairs takes NumPy ten times as long.
        apart = 1 + int(np.max(cut, initial=0))
        each, which = np.unique(wide * apart + cut, return_inverse=True)
        lines = self.shape.groups * total[k_rows]
        counts = []
        for pair in each.tolist():
            width, part = divmod(pair, apart)
            counts.append(_pieces(port, width * e, pitch * e, lines, part * e))
        pieces = rows * columns / wide * np.array(counts)[which]
        return Move.cycles_beside_bytes(port, rows * columns * e, pieces), pieces

    def _step(self, t: Columns, sizes: ProductSizes, k: Floats) -> CubeStep:
        """The loads to L0 and the product of a step of ``k`` elements.

        Slots of a buffer get into each other's way where there are several that share banks.
        """
        device = self.device
        k_rows_a, k_rows_b = self._k_rows
        across = "load3d_transpose" if device.has_path(*_ACROSS) else "transpose"
        into_a = device.path("L1", "L0A", across if k_rows_a else "load3d")
        into_b = device.path("L1", "L0B", "load3d" if k_rows_b else "")
        a = self._into_l0(t, into_a, sizes.high, k, t.get("l1a", 2))
        b = self._into_l0(t, into_b, sizes.wide, k, t.get("l1b", 2))
        depth = k * self.shape.dtype.values
        return step_of(device, (into_a, into_b), (1, 1), (a, b), (sizes.high, depth, sizes.wide))

    def _into_l0(
        self, t: Columns, path: Path, side: Floats, k: Floats, slots: IntArray | int
    ) -> Floats:
        """Cycles to load ``side`` x ``k`` elements to L0 out of one of the slots of L1."""
        dtype = self.shape.dtype
        size = side * k * dtype.bytes
        shared = (np.asarray(slots) > 1) & (t.get("l1_halves", 0) == 0)
        elements = size / dtype.bytes * dtype.values
        return np.asarray(Move.cycles(path, size, elements=elements, conflict=shared))

    def _drain(self, t: Columns, sizes: ProductSizes) -> WayOut:
        """The way out of a tile."""
        device, e, m, n = self.device, self._element(t), sizes.m, sizes.n
        cycles, pace, _ = costs.drain_cycles(device, m, n, e, means=sizes.means)
        if device.has_path("L0C", "GM", "nz2nd"):
            path = device.path("L0C", "GM", "nz2nd")
            apart = sizes.between & (t["n"] * e % path.align_bytes > 0)
            apart = apart | (self.shape.n * e % path.align_bytes > 0)
            cycles = pace = Move.cycles(path, m * n * e, m, unaligned=m * apart)
        return WayOut(
            cycles=cycles,
            pace=pace,
            written=m * n * self._sum_bytes(t),
            blocked=np.where(t.get("barrier", False), 1, 0),
        )


def _steps_of_both(t: Columns) -> tuple[IntArray, IntArray]:
    """Base blocks of a slab of A and of one of B."""
    return t.get("step_a", t["step"]), t.get("step_b", t["step"])


def _steps(t: Columns) -> tuple[IntArray, IntArray]:
    """Base blocks of the longer slab and of the shorter one."""
    a, b = _steps_of_both(t)
    return np.maximum(a, b), np.minimum(a, b)


@lru_cache(maxsize=4096)
def _pieces(path: Path, width: int, pitch: int, rows: int, part: int) -> float:
    """Pieces of a row of ``width`` bytes on average, at multiples of these.

    With a ``part``, of each ``width`` bytes of an operand of so many ``rows``, whose parts of so
    many bytes are cut into such rows and what is left.
    """
    if not part:
        counts = [path.pieces(_ROWS, width, place * width, pitch) for place in range(_PLACES)]
        return sum(counts) / (_ROWS * _PLACES)
    alike = Counter[tuple[int, int]]()
    for begin in range(0, pitch, part):
        end = min(begin + part, pitch)
        for first in range(begin, end, width):
            alike[first % (path.piece_bytes or 1), min(width, end - first)] += 1
    pieces = 0
    for (first, size), count in alike.items():
        pieces += count * path.pieces(rows, size, first, pitch)
    return pieces * width / (rows * pitch)
