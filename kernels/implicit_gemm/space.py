"""The tilings of forward convolution and input gradient that are worth comparing, and their work.

What is enumerated follows from the problem: tiles that cut rows, channels and planes evenly into
so many parts. What a device holds of them grows with its memories and leaves nothing out. Of each
candidate there is what the cores do under it: the columns that estimates need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.integers import even_parts
from npusim.kernels.estimate import costs
from npusim.kernels.estimate.fit import columns_in_ub, cube_sizes, most_rows
from npusim.kernels.estimate.pipeline import (
    Columns,
    Space,
    as_columns,
    chosen,
    deepest,
    distinct,
    uneven,
)
from npusim.kernels.estimate.streams import clear_cycles
from npusim.kernels.estimate.tile import (
    CubeStep,
    OperandLoads,
    SharedBytes,
    TileWork,
    WayOut,
    fresh_cycles,
    step_of,
)
from npusim.kernels.estimate.work import Course, Floats
from npusim.kernels.implicit_gemm.cuts import Cut, Way, cuts_of, ways_of
from npusim.kernels.implicit_gemm.geometry import Geometry
from npusim.kernels.implicit_gemm.tiling import Tiling
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.language import DType, IntArray, round_up
from npusim.machine.device.parts import Path
from npusim.machine.isa.base import Move
from npusim.machine.isa.dma import Fetcher

#: Cores, spread over all, of which the one with most to do is followed.
_TRIED = 6

#: Most output channels of a tile.
_MOST_N = 512


class GemmSizes(NamedTuple):
    """Sizes of a tile, and how often its operands come.

    It has ``m`` positions and ``n`` output channels, which the cube takes as ``wide``. An item has
    so many ``reads``, made as ``firsts`` loads, of so many ``planes`` of ``pixels`` each out of
    ``planes_in``. Of the weights for ``taps`` of these there are ``seconds`` loads, each for so
    many ``steps`` of ``k`` columns of C0 channels and one that is the ``rest``; to L0 weights take
    ``step_moves`` and ``rest_moves``, a column of the input ``fetch`` cycles for its
    positions. Loads to L1 are of ``x_moves``, of ``x_rows`` in GM, and ``w_moves``; they
    come anew after ``x_every`` and ``w_every`` items. ``lines`` of ``length`` positions leave, each
    position ``apart`` from the next, with zeros ``around`` them. A tile is of so many ``images``;
    ``means`` are of tiles that differ.
    """

    m: Floats
    n: Floats
    wide: Any
    taps: Floats
    pixels: Floats
    planes_in: float
    planes: Floats
    reads: Floats
    firsts: Floats
    seconds: Floats
    steps: Floats
    k: Floats
    rest: Floats
    step_moves: Floats
    rest_moves: Floats
    fetch: Floats
    x_moves: Floats
    x_rows: Floats
    w_moves: Any
    x_every: IntArray
    w_every: IntArray
    lines: Any
    length: Any
    apart: Any
    around: Any
    images: Any
    means: bool = False


class _Course(NamedTuple):
    """Cycles of one kind of tile, as those of ``Course``."""

    x_start: Any
    x: Any
    x_fresh: Any
    w_start: Any
    w: Any
    w_fresh: Any
    a: Any
    b: Any
    m: Any
    drain: Any
    moves: Any


@dataclass(frozen=True)
class Products(Space):
    """Candidates for one product on one device: columns of fields, and what ranks them."""

    geometry: Geometry
    dtype: DType
    rate: str
    rotated: bool
    forms: tuple[str, ...]

    @cached_property
    def cuts(self) -> list[Cut]:
        """Every way to cut the plane that is worth comparing."""
        path = self.device.path("L1", "L0A", "load3d")
        size = cube_sizes(self.device)
        # Two slots of L0A hold one block of 32 B per position, L0C one of 16 sums in fp32.
        highest = min(most_rows(self.device, self.dtype), size["L0A"] // 64, size["L0C"] // 64)
        return [
            cut
            for form in self.forms
            for cut in cuts_of(self.geometry, form, highest, Fetcher.of(path))
        ]

    @cached_property
    def of_cut(self) -> Columns:
        """The cuts as columns; zeros ``around`` leave with a tile only over UB that holds both."""
        of = as_columns(self.cuts, Cut)
        if self.device.has_path("L0C", "GM"):
            return of | {"around": 0 * of["around"]}
        rows = of["most_m"] + of["around"]
        around = of["around"] * (columns_in_ub(self.device, rows, self.dtype.bytes) > 0)
        return of | {"around": around, "apart": np.where(around > 0, 1, of["apart"])}

    @cached_property
    def rows(self) -> Columns:
        """Fields of all that fits the device's buffers, one entry for each."""
        g, t = self.geometry, self._loads_in_l1()
        t["tiles_n"] = -(-g.planes_out * g.c0 // t["n"])
        images = -(-g.images // self.of_cut["images"][t["cut"]])
        depths = sum(1 for pairs in g.live if pairs) * g.groups
        t["items"] = self.of_cut["slabs"][t["cut"]] * images * depths * t["tiles_n"]
        rounds = -(-t["items"] // self.cores)
        t["cores"] = -(-t["items"] // np.maximum(1, rounds))
        return deepest(t, t["most_k"])

    def _loads_in_l1(self) -> Columns:
        """Cuts, output channels, and ways of operands to L1 that have room there."""
        c0, element = self.geometry.c0, self.dtype.bytes
        size = cube_sizes(self.device)
        t = self._all_loads()
        taps = self.of_cut["most_taps"][t["cut"]]
        m = self.of_cut["most_m"][t["cut"]]
        of_parts = -(-taps // t["parts"])
        t["columns"] = np.where(t["parts"] > 1, of_parts, t["w_planes"] * taps)
        pixels = self.of_cut["most_pixels"][t["cut"]]
        x_bytes = t["l1_slots"] * t["planes"] * pixels * 32
        w_bytes = t["weight_slots"] * t["columns"] * t["n"] * c0 * element
        most = np.minimum(size["L0A"] // m, size["L0B"] // t["n"])
        most = np.minimum(most // 2 // element // c0, t["columns"])
        t["most_k"] = np.minimum(most, 4080 // c0)
        fits = x_bytes + w_bytes <= size["L1"]
        fits &= t["most_k"] > 0
        fits &= m * t["n"] * 4 <= size["L0C"]
        fits &= (t["parts"] == 1) | (t["parts"] <= taps)
        return chosen(t, np.flatnonzero(fits))

    def _all_loads(self) -> Columns:
        """All cuts with all numbers of output channels and all ways of operands to L1."""
        g = self.geometry
        even = np.array(even_parts(g.planes_out, max(1, _MOST_N // g.c0))) * g.c0
        wide = distinct(round_up(even, 16))
        ways = np.array(ways_of(g), np.int64).T
        axes = (len(self.cuts), len(wide), ways.shape[1])
        cut, column, way = np.indices(axes).reshape(3, -1)
        t = {name: fields[way] for name, fields in zip(Way._fields, ways, strict=True)}
        return t | {"cut": cut, "n": wide[column]}

    def spread(self, t: Columns) -> Columns:
        """See ``pipeline.Space``."""
        return self.with_l0(t, self.of_cut["most_m"][t["cut"]])

    def depth(
        self, t: Columns, l0_slots: int, split: int
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """See ``pipeline.Space``: blocks of K."""
        taps, m = (self.of_cut[name][t["cut"]] for name in ("most_taps", "most_m"))
        # Of weights that stay a step takes no more than those of the planes in L1.
        columns, l0 = np.minimum(t["columns"], t["planes"] * taps), cube_sizes(self.device)
        side = np.minimum(l0["L0A"] // m, l0["L0B"] // t["n"])
        deepest = side // l0_slots // self.dtype.bytes // self.geometry.c0
        deepest = np.minimum(deepest, t["most_k"])
        whole = -(-columns // np.maximum(1, deepest))
        fits = ((whole < columns) | (split == 1)) & (deepest > 0)
        return -(-columns // np.minimum(whole * split, columns)), fits

    def clears(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Tell whether some outputs read nothing, which a kernel before this one clears."""
        return np.asarray((self.of_cut["dead"] & (self.of_cut["around"] == 0))[t["cut"]])

    def tiling(self, t: dict[str, int]) -> Tiling:
        """See ``pipeline.Space``."""
        cut, g = self.cuts[t["cut"]], self.geometry
        return Tiling(
            base_m=cut.base_m,
            base_n=t["n"],
            base_k=t["k"] * g.c0,
            step_planes=t["planes"],
            step_columns=t["columns"],
            l1_slots=t["l1_slots"],
            weight_slots=t["weight_slots"],
            l0_slots=t["l0_slots"],
            l0c_slots=t["l0c_slots"],
            resident=bool(t["resident"]),
            form=cut.form,
            resident_input=bool(t["resident_input"]),
            n_slowest=bool(t["resident"]) and t["tiles_n"] * g.groups > 1,
            zeros=bool(self.of_cut["around"][t["cut"]]),
            unit_flag=bool(t["unit_flag"]),
            images=cut.images,
            even_n=g.planes_out * g.c0 % t["n"] > 0,  # tiles would leave a rest
            cores=t["cores"] if t["cores"] < self.cores else 0,
        )

    @property
    def math(self) -> str:
        """See ``pipeline.Space``."""
        return self.rate

    def busiest(self, t: Columns) -> GemmSizes:
        """See ``pipeline.Space``."""
        g, of, rounds = self.geometry, chosen(self.of_cut, t["cut"]), self._rounds(t)
        n, taps = self._most_n(t), of["taps"] + (of["most_taps"] - of["taps"]) / rounds
        chunks = np.ceil(g.planes_in / t["planes"])
        planes = g.planes_in / chunks
        seconds = np.where(t["parts"] > 1, t["parts"], self._weight_loads(t, planes))
        largest = taps * np.minimum(t["planes"], g.planes_in) / seconds
        steps = np.maximum(1, np.ceil(largest / t["k"] - 1e-6))
        k, rest = uneven(planes * taps / seconds, largest, t["k"], steps)
        reads = self._mean_depth * of["reads"] * chunks
        x_every, w_every = self._every(t)
        return GemmSizes(
            # In one round the core with the largest slab is the last; in several they even out.
            m=np.where(rounds == 1, of["most_m"], of["m"]),
            n=n,
            wide=round_up(np.ceil(n).astype(np.int64), 16),
            taps=taps,
            pixels=of["pixels"],
            planes_in=g.planes_in,
            planes=planes,
            reads=reads,
            firsts=np.maximum(1, np.rint(reads)),
            seconds=seconds,
            steps=steps,
            k=k,
            rest=rest,
            step_moves=k if self.rotated else np.maximum(1, np.ceil(_fractal_loads(k, n))),
            rest_moves=rest if self.rotated else np.maximum(1, np.ceil(_fractal_loads(rest, n))),
            fetch=of["fetch"],
            x_moves=self._input_moves(t, of, planes),
            x_rows=self._input_rows(t, of, planes),
            w_moves=self._weight_moves(t, of, n),
            x_every=x_every,
            w_every=w_every,
            lines=of["lines"],
            length=of["length"],
            apart=of["apart"],
            around=of["around"],
            images=of["images"],
        )

    def mean(self, t: Columns) -> GemmSizes:
        """See ``pipeline.Space``."""
        g, of = self.geometry, chosen(self.of_cut, t["cut"])
        # The last images may be fewer.
        full, rest = np.divmod(g.images, of["images"])
        count = full + (rest > 0)
        share = g.images / of["images"] / count
        sizes = self._optimistic(
            t,
            m=(full * of["m"] + rest / of["images"] * of["real_m"]) / count,
            real=of["real_m"] * share,
            n=self._mean_n(t),
            taps=of["taps"],
            planes_in=g.all_in / -(-g.all_in // g.planes_in),
            reads=self._mean_depth * of["reads"],
        )
        return sizes._replace(
            pixels=of["pixels"],
            fetch=self._column_fetch(t, of["mean_fetch"]) * share,
            images=of["images"] * share,
            means=True,
        )

    def largest(self, t: Columns) -> GemmSizes:
        """See ``pipeline.Space``: a largest slab and the most channels, but the fewest taps."""
        of = chosen(self.of_cut, t["cut"])
        n = np.minimum(t["n"], self.geometry.planes_out * self.geometry.c0)
        even = self.geometry.planes_out * self.geometry.c0 % t["n"] > 0
        least = self.least(t)
        return least._replace(
            m=of["most_m"] / 1.0,
            n=np.where(even, self._mean_n(t), n),
            wide=np.where(even, self._mean_n(t), n),
        )

    def least(self, t: Columns) -> GemmSizes:
        """See ``pipeline.Space``: the smallest slab, the last images, channels and planes."""
        rest = self.geometry.images % self.of_cut["images"][t["cut"]]
        return self._smallest(t, rest, self._fewest_n(t))

    def _smallest(self, t: Columns, rest: IntArray, n: Floats) -> GemmSizes:
        """Sizes of a smallest slab with ``n`` channels.

        It has ``rest`` images, where that is 0 as many as come together.
        """
        of = chosen(self.of_cut, t["cut"])
        images = np.where(rest > 0, rest, of["images"])
        # Of fewer images positions may be padded less.
        unpadded = np.maximum(1, of["least_m"] - 15) * images / of["images"]
        m = np.where(rest > 0, unpadded, of["least_m"])
        return self._like(t, (m, unpadded, of["least_pixels"] / 1.0), images, n)

    def _ordinary(self, t: Columns, n: Floats) -> GemmSizes:
        """Sizes of which no slab has less but the last, of a plane or of all images."""
        of = chosen(self.of_cut, t["cut"])
        slab = of["next_m"], of["next_real"], of["next_pixels"] / 1.0
        return self._like(t, slab, of["images"], n)

    def _like(
        self, t: Columns, slab: tuple[Floats, Floats, Floats], images: IntArray, n: Floats
    ) -> GemmSizes:
        """Sizes of slabs of so many ``images``, with ``n`` channels.

        ``slab`` has the positions that the cube takes and the real ones of all, and the pixels of
        one image.
        """
        g, of = self.geometry, chosen(self.of_cut, t["cut"])
        sizes = self._optimistic(
            t,
            m=slab[0],
            real=slab[1],
            n=n,
            taps=of["least_taps"] / 1.0,
            planes_in=g.all_in - (-(-g.all_in // g.planes_in) - 1) * g.planes_in,
            reads=np.float64(min((len(pairs) for pairs in g.live if pairs), default=0)),
        )
        return sizes._replace(
            pixels=slab[2],
            fetch=self._column_fetch(t, of["least_fetch"]) * images / of["images"],
            images=images,
        )

    def course(self, t: Columns) -> Course | None:
        """See ``pipeline.Space``: one with much to do, where cores take tiles in runs.

        Of other forms some core has as many of the smallest tile as fall to it.
        """
        g, of, rounds = self.geometry, chosen(self.of_cut, t["cut"]), self._rounds(t)
        if g.all_in % g.planes_in or not g.all_in:
            return None
        rest, few_n = 0 * t["n"] + g.images % of["images"], self._fewest_n(t)
        in_runs, over = self._in_runs(t), self._blocks_n % t["tiles_n"]
        more_n = few_n + np.where(in_runs & (over > 0), max(16, g.c0), 0)
        first, stop = self._run(t, rest, few_n, more_n)
        # Reads of tiles with other taps are cut otherwise.
        known = of["least_taps"] == of["most_taps"]
        taps, planes = of["least_taps"], t["planes"]
        chunk, total = planes * taps, g.planes_in * taps
        together = t["columns"] >= np.minimum(total, 2 * chunk)
        longest = np.where(together, chunk, np.minimum(chunk, t["columns"] // taps * taps))
        longest = np.where(t["columns"] < taps, t["columns"], longest)
        k = np.minimum(t["k"], np.minimum(longest, total)) / 1.0
        full = self._course_of(t, self._ordinary(t, few_n), k)
        wide = self._course_of(t, self._ordinary(t, more_n), k)
        few = self._course_of(t, self._smallest(t, rest, few_n), k)
        few_wide = self._course_of(t, self._smallest(t, rest, more_n), k)
        full, wide = (
            _Course(
                *(np.where(in_runs, mine, least) for mine, least in zip(one, other, strict=True))
            )
            for one, other in ((full, few), (wide, few_wide))
        )
        return Course(
            items=np.where(known, np.where(in_runs, stop - first, rounds), 0),
            first=np.where(in_runs, first, 0),
            across=np.where(in_runs, t["tiles_n"], 1),
            along=np.where(in_runs, t["items"] // t["tiles_n"], rounds),
            slow=np.where(in_runs & self._slow(t), 1, 0),
            # Of several images the last are fewer, else the last slab of each may be smaller.
            period=np.where(in_runs & (of["images"] == 1), of["slabs"], t["items"]),
            rest=np.where(in_runs & ((of["images"] == 1) | (rest > 0)), 1, 0),
            over=np.where(in_runs, over, 0),
            planes_in=g.planes_in,
            planes=planes,
            parts=1,
            per=0,
            slabs=1,
            small=1,
            small_x=1,
            taps=taps,
            columns=t["columns"],
            runs=1,
            k=k,
            x_every=np.where(t["resident_input"] > 0, np.where(in_runs, 0, rounds), 1),
            w_every=np.where(t["resident"] > 0, np.where(in_runs, 0, rounds), 1),
            x_slots=t["l1_slots"],
            w_slots=t["weight_slots"],
            l0_slots=t["l0_slots"],
            c_slots=t["l0c_slots"],
            x_alone=np.where(in_runs, 1, 0),
            w_alone=0,
            x_start=np.minimum(full.x_start, few.x_start),
            x=full.x,
            x_fresh=full.x_fresh,
            x_few=few.x,
            x_few_fresh=few.x_fresh,
            w_start=full.w_start,
            w=full.w,
            w_fresh=full.w_fresh,
            w_wide=wide.w,
            w_wide_fresh=wide.w_fresh,
            a=full.a,
            a_few=few.a,
            b=full.b,
            b_wide=wide.b,
            a_waits=0,
            m=full.m,
            m_wide=wide.m,
            m_few=few.m,
            m_few_wide=few_wide.m,
            drain=full.drain,
            drain_wide=wide.drain,
            drain_few=few.drain,
            drain_few_wide=few_wide.drain,
            moves=full.moves,
            **self.way_out(t),
        )

    def _run(
        self, t: Columns, rest: IntArray, few_n: Floats, more_n: Floats
    ) -> tuple[IntArray, IntArray]:
        """The tiles, from and to, of a core of several that has most positions and channels.

        The last slabs have ``rest`` images, and tiles ``few_n`` or ``more_n`` channels.
        """
        of, slow = chosen(self.of_cut, t["cut"]), self._slow(t)
        across, along = t["tiles_n"], t["items"] // t["tiles_n"]
        inner = np.where(slow, along, across)
        lacking = np.where(rest > 0, 1 - rest / of["images"], 0) * of["slabs"]

        def done(tiles: IntArray) -> Floats:
            """Positions and channels of the first tiles, as slabs times channels."""
            row, column = np.divmod(tiles, inner)
            row, column = np.where(slow, column, row), np.where(slow, row, column)
            over = self._blocks_n % across
            wide, next_wide = column * over // across, (column + 1) * over // across
            of_column = column * few_n + wide * (more_n - few_n)
            one = few_n + (next_wide - wide) * (more_n - few_n)
            last = np.maximum(0, row - (along - of["slabs"])) * lacking / of["slabs"]
            of_all = across * few_n + over * (more_n - few_n)
            in_order = row * of_all + of_column - last * of_all
            by_column = (along - lacking) * of_column + (row - last) * one
            return np.asarray(np.where(slow, by_column, in_order))

        best = begin = end = np.zeros_like(across)
        for part in range(_TRIED):
            core = np.maximum(0, t["cores"] * part // _TRIED)
            first = -(-core * t["items"] // t["cores"])
            stop = -(-(core + 1) * t["items"] // t["cores"])
            size = done(stop) - done(first)
            begin, end = np.where(size > best, first, begin), np.where(size > best, stop, end)
            best = np.maximum(best, size)
        return begin, end

    def _course_of(self, t: Columns, sizes: GemmSizes, steps: Floats) -> _Course:
        """The cycles of a ``Course`` of tiles of such sizes, with ``steps`` of so many columns."""
        g = self.geometry
        # The last load of an item is of the fewest planes.
        last = g.planes_in - (-(-g.planes_in // t["planes"]) - 1) * t["planes"]
        least = sizes._replace(x_moves=self._least_moves(t, chosen(self.of_cut, t["cut"]), last))
        x, w = self._loads(t, least)
        columns = sizes.planes * sizes.taps / sizes.seconds
        moves = steps if self.rotated else np.maximum(1, _fractal_loads(steps, sizes.n))
        step, drain = self._step(t, sizes, steps, moves), self._drain(sizes)
        direct = self.device.has_path("L0C", "GM")
        return _Course(
            x_start=x.start,
            x=x.size / sizes.planes / self._port.rate,
            x_fresh=fresh_cycles(self.device, self._port, x) / sizes.planes,
            w_start=w.start,
            w=w.size / columns / self._port.rate,
            w_fresh=fresh_cycles(self.device, self._port, w) / columns,
            a=step.a,
            b=step.b,
            m=self.product(step.m, step.k, step.n),
            drain=drain.cycles if direct else drain.pace,
            moves=drain.moves,
        )

    def _in_runs(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Tell whether cores take tiles in runs that are as equal as possible."""
        g = self.geometry
        window = np.array([cut.form == "window" for cut in self.cuts], np.bool_)[t["cut"]]
        return np.asarray(window & (g.groups == 1) & (len(g.live) == 1))

    @property
    def _blocks_n(self) -> int:
        """Blocks of output channels of which tiles have whole ones."""
        return -(-self.geometry.planes_out * self.geometry.c0 // max(16, self.geometry.c0))

    def _fewest_n(self, t: Columns) -> Floats:
        """Output channels of the smallest tile, as tiles are cut evenly."""
        g = self.geometry
        unit = max(16, g.c0)
        padding = self._blocks_n * unit - g.planes_out * g.c0
        return np.asarray(np.maximum(1, self._blocks_n // t["tiles_n"] * unit - padding) / 1.0)

    def _optimistic(
        self,
        t: Columns,
        *,
        m: Floats,
        real: Floats,
        n: Floats,
        taps: Floats,
        planes_in: float,
        reads: Any,
    ) -> GemmSizes:
        """Sizes for a bound: tiles of ``m`` x ``n``, each with so many ``reads`` of ``taps``.

        Of the positions so many are ``real``, and leave the core.
        The last planes of an odd number are padding that fills a fractal, and are not loaded.
        """
        of, rounds = chosen(self.of_cut, t["cut"]), self._rounds(t)
        lines = np.where(of["around"] > 0, 1, of["least_lines"])  # zeros and all leave at once
        chunks = np.ceil(planes_in / t["planes"])
        planes = planes_in / chunks
        parts = np.maximum(1, taps / t["columns"])
        seconds = np.where(t["parts"] > 1, parts, self._weight_loads(t, planes))
        columns = planes * taps / seconds
        steps = np.maximum(1, columns / t["k"])  # as few as there are, all of the mean
        k = columns / steps
        moves = k if self.rotated else np.maximum(1, _fractal_loads(k, n))
        # What stays, and what few taps need of it, may come in one load.
        several = (t["resident"] > 0) | (self._phases[t["cut"]] > 1)
        return GemmSizes(
            m=m,
            n=n,
            wide=n,
            taps=taps,
            pixels=of["pixels"],
            planes_in=planes_in,
            planes=planes,
            reads=reads * chunks,
            firsts=reads * chunks,
            seconds=seconds,
            steps=steps,
            k=k,
            rest=k,
            step_moves=moves,
            rest_moves=moves,
            fetch=of["mean_fetch"],
            x_moves=self._least_moves(t, of, planes),
            x_rows=self._input_rows(t, of, planes),
            w_moves=np.where(several, 0, 1),
            x_every=np.where(t["resident_input"] > 0, rounds, 1),
            w_every=np.where(t["resident"] > 0, rounds, 1),
            lines=lines,
            length=real / lines,
            apart=of["apart"],
            around=np.zeros(1),
            images=of["images"],
        )

    def _column_fetch(self, t: Columns, fetch: Floats) -> Floats:
        """Cycles to fetch a column: none of images side by side where a plane is read by itself."""
        g, of = self.geometry, chosen(self.of_cut, t["cut"])
        last = g.all_in - (-(-g.all_in // g.planes_in) - 1) * g.planes_in
        single = (t["planes"] == 1) | (g.planes_in % t["planes"] == 1) | (last % t["planes"] == 1)
        by_itself = of["side_by_side"] & (single | ~self._side_by_side(t, of))
        return np.where(by_itself, 0, fetch)

    def _least_moves(self, t: Columns, of: Columns, planes: Floats) -> Floats:
        """Moves that bring so many planes of any read of one image or more to L1 at least."""
        fewer = self.geometry.images % of["images"] > 0
        apart = of["least_moves"] + planes * of["least_plane_moves"]
        apart = np.where(fewer, apart / of["images"], apart)
        return np.where(self._side_by_side(t, of), 1, np.maximum(1, apart))

    def tile(self, t: Columns, sizes: GemmSizes) -> TileWork:
        """See ``pipeline.Space``."""
        x, w = self._loads(t, sizes)
        return TileWork(
            cores=t["cores"],
            items=t["items"],
            firsts=sizes.firsts,
            seconds=sizes.seconds,
            steps=sizes.steps,
            run=sizes.steps,
            first=x,
            second=w,
            step=self._step(t, sizes, sizes.k, sizes.step_moves),
            rest=self._step(t, sizes, sizes.rest, sizes.rest_moves),
            drain=self._drain(sizes),
            traffic=self._traffic(t, sizes, x, w),
            port=self._port,
            step_slots=t["l0_slots"],
            drain_slots=t["l0c_slots"],
            unit_flag=t["unit_flag"],
            beside=self._beside(t),
        )

    @property
    def _port(self) -> Path:
        """The way of operands to L1."""
        return self.device.path("GM", "L1")

    @property
    def _input_bytes(self) -> int:
        """Bytes of the input."""
        g = self.geometry
        return g.images * 32 * g.depth_in * g.all_in * g.h.size * g.w.size

    def _weight_bytes(self, planes_in: float) -> float:
        """Bytes of the weights of so many input planes."""
        g = self.geometry
        columns = g.groups * g.kernel_d * planes_in * g.taps * g.planes_out
        return columns * g.c0**2 * self.dtype.bytes

    def _weight_loads(self, t: Columns, planes: Floats) -> Floats:
        """Loads of weights of whole planes for a load of so many planes of the input."""
        return np.asarray(np.ceil(planes / np.maximum(1, t["w_planes"])))

    def _loads(self, t: Columns, sizes: GemmSizes) -> tuple[OperandLoads, OperandLoads]:
        """The loads of input and weights to L1."""
        columns = sizes.planes * sizes.taps / sizes.seconds
        x = OperandLoads(
            start=sizes.x_moves * self._port.startup_cycles,
            size=sizes.planes * sizes.pixels * sizes.images * 32,
            slots=t["l1_slots"],
            every=sizes.x_every,
            rows=np.where(self._apart[t["cut"]], sizes.x_rows, np.inf),
        )
        w = OperandLoads(
            start=sizes.w_moves * self._port.startup_cycles,
            size=columns * self.geometry.c0 * sizes.n * self.dtype.bytes,
            slots=t["weight_slots"],
            every=sizes.w_every,
            rows=self._weight_rows(sizes),
        )
        x_missing, w_missing = self._lacking(t, sizes, x.size, w.size)
        return x._replace(**x_missing), w._replace(**w_missing)

    def _weight_rows(self, sizes: GemmSizes) -> Floats:
        """Rows in GM of one load of weights."""
        if self._transposes:
            return np.asarray(sizes.n / self.geometry.c0 * sizes.taps)
        return np.asarray(sizes.planes * sizes.taps / sizes.seconds)

    def _traffic(
        self, t: Columns, sizes: GemmSizes, x: OperandLoads, w: OperandLoads
    ) -> SharedBytes:
        """Bytes that all cores move."""
        device = self.device
        w_rows = self._weight_rows(sizes)
        reads = sizes.reads * t["items"]
        # What an L2 that is too small loses of the input is not certain.
        times = 1 if sizes.means else self._fetched(t)
        missing = self.missing(self._input_bytes * times, self._weight_bytes(sizes.planes_in))
        requests = (sizes.x_rows / x.every + sizes.seconds * w_rows / w.every) * reads
        # What the L2 holds misses once, in rows as short as any.
        most = np.maximum(sizes.x_rows / np.maximum(1, x.size), w_rows / np.maximum(1, w.size))
        weights = self._weight_bytes(sizes.planes_in)
        l2, size = device.l2, self._input_bytes + weights + self._written
        held = l2 is not None and l2.has_room(size)
        return SharedBytes(
            asked=(x.size / x.every + sizes.seconds * w.size / w.every) * reads,
            requests=requests,
            spared=np.minimum(requests, missing * most) if held else requests,
            missing=missing,
            stored=self._written / costs.write_rate(device),
            # Phases write the same sectors, one after another.
            main=costs.main_rate(device, missing, self._written * sizes.apart),
        )

    def _beside(self, t: Columns) -> Floats:
        """Cycles of the launch, and of the kernel that clears what no input reaches."""
        launch = costs.launch_cycles(self.device, "cube", t["cores"])
        cleared = np.where(self.clears(t), clear_cycles(self.device, self._written), 0)
        return np.asarray(launch + cleared)

    def _drain(self, sizes: GemmSizes) -> WayOut:
        """The way out of a tile: its lines in one move each, or position by position."""
        g, device, element = self.geometry, self.device, self.dtype.bytes
        n, lines, length, apart = sizes.n, sizes.lines, sizes.length, sizes.apart
        cycles, pace, moves = costs.drain_cycles(
            device, lines * length, n, element, lines, sizes.around, means=sizes.means
        )
        if (apart > 1).any():
            singly = costs.scatter_cycles(
                device,
                length,
                n,
                g.c0 * element,
                apart,
                lines,
                g.h.out * g.w.out,
                halves=g.c0 == 8 and g.planes_out > 1,
                means=sizes.means,
            )
            cycles = np.where(apart > 1, singly[0], cycles)
            pace = np.where(apart > 1, singly[1], pace)
            moves = np.where(apart > 1, singly[2], moves)
        queue = device.pipe(costs.way_out(device).pipe)
        return WayOut(
            cycles=cycles,
            pace=pace,
            written=sizes.m * n * element,
            moves=moves,
            blocked=np.maximum(0, 1 - queue.queue_depth / moves),
        )

    @property
    def _written(self) -> int:
        """Bytes of the result."""
        g = self.geometry
        return g.images * g.depth_out * g.all_out * g.h.out * g.w.out * g.c0 * self.dtype.bytes

    @cached_property
    def _mean_depth(self) -> float:
        """Planes of the filter along the depth that reach an output, on average."""
        depths = [len(pairs) for pairs in self.geometry.live if pairs]
        return sum(depths) / max(1, len(depths))

    def _mean_n(self, t: Columns) -> Floats:
        """Output channels of a tile on average."""
        return np.asarray(self.geometry.planes_out * self.geometry.c0 / t["tiles_n"])

    def _most_n(self, t: Columns) -> Floats:
        """Output channels that tiles of the core with most of them have on average."""
        rounds, g = self._rounds(t), self.geometry
        # Tiles of one core are of all columns, or where N is slowest of some that are neighbours.
        tiles = np.where(self._slow(t), -(-rounds * t["tiles_n"] // t["items"]), rounds)
        most = np.ceil(tiles * -(-g.planes_out * g.c0 // 16) / t["tiles_n"])
        return np.asarray(np.minimum(t["n"], most / tiles * 16), np.float64)

    def _side_by_side(self, t: Columns, of: Columns) -> npt.NDArray[np.bool_]:
        """Tell whether images of few planes come with one move, of one row each."""
        return np.asarray(of["side_by_side"] & (t["planes"] <= MOST_BLOCKS))

    def _input_moves(self, t: Columns, of: Columns, planes: Floats) -> Floats:
        """Moves that bring so many planes of a read to L1."""
        apart = of["moves"] + planes * of["plane_moves"]
        return np.where(self._side_by_side(t, of), 1, apart)

    def _input_rows(self, t: Columns, of: Columns, planes: Floats) -> Floats:
        """Rows in GM of so many planes of a read."""
        rows = np.where(self._side_by_side(t, of), 1, planes * of["pieces"])
        return np.asarray(rows * of["images"])

    @property
    def _transposes(self) -> bool:
        """Tell whether weights are transposed on their way to L0B, in columns of a few bytes."""
        return self.rotated and self.dtype.bytes == 2

    def _weight_moves(self, t: Columns, of: Columns, n: Floats) -> Floats:
        """Moves that bring one load of weights to L1: place by place where not all taps are used.

        Of a band of a wide filter the taps of a row follow each other.
        """
        moves, banded = of["tap_moves"] / np.maximum(1, t["parts"]), of["band_moves"] > 0
        if banded.any():
            pieces = np.maximum(1, np.maximum(1, t["w_planes"]) * of["band_moves"] / t["parts"])
            moves = np.where(banded, np.minimum(moves, pieces), moves)
        if not self._transposes:
            return np.asarray(moves, np.float64)
        # Turned: place by place, or row by row of each output plane.
        blocks = n / self.geometry.c0
        moves = np.minimum(moves, blocks * of["tap_rows"])
        parts = blocks * np.ceil(of["tap_rows"] / t["parts"])
        return np.where(t["parts"] > 1, parts, moves)

    def _rounds(self, t: Columns) -> IntArray:
        """Items of a core, at most."""
        return np.asarray(-(-t["items"] // t["cores"]))

    def _every(self, t: Columns) -> tuple[IntArray, IntArray]:
        """Items of a core after which its input and its weights come anew.

        Under a form by phases each core has tiles of every phase, and each phase has weights and
        slabs of its own.
        """
        phases = self._phases[t["cut"]]
        of_phase = np.maximum(1, t["items"] // phases // t["cores"])
        run = np.where(phases > 1, of_phase, t["items"])
        tiles_m = np.maximum(1, t["items"] // np.maximum(1, t["tiles_n"]))
        weights = np.minimum(np.maximum(1, tiles_m // phases), run)
        x_every = np.where(t["resident_input"] > 0, np.minimum(t["tiles_n"], run), 1)
        return x_every, np.where(t["resident"] > 0, weights, 1)

    def _lacking(
        self, t: Columns, sizes: GemmSizes, x_bytes: Floats, w_bytes: Floats
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields of ``OperandLoads`` on what the L2 lacks, of input and weights.

        Given are the bytes of a load of each.
        """
        rounds, tiles_n = self._rounds(t), np.minimum(t["tiles_n"], t["items"])
        phases, stays = self._phases[t["cut"]], t["resident"] + t["resident_input"] > 0
        slow = self._slow(t)
        # Tiles of one slab follow each other on a core, or are those of several at a time.
        follow = ~slow & ((phases == 1) | stays)
        period = np.where(follow, np.minimum(tiles_n, rounds), 1)
        times = self._fetched(t)
        until = -(-rounds // self._passes(t)) * times
        asked = -(-until // period) / times
        weights = np.where(slow, rounds, np.minimum(tiles_n * phases, rounds))
        loads = np.where(t["resident"] > 0, np.minimum(phases, rounds), weights)
        x_copies = t["cores"] * asked * (x_bytes * sizes.firsts) / self._input_bytes
        of_item = w_bytes * sizes.seconds * sizes.firsts
        w_copies = t["cores"] * loads * of_item / self._weight_bytes(sizes.planes_in)
        x_held, w_held = self.held
        return {
            "period": period,
            "until": np.where(x_held, 0, until),
            "copies": np.maximum(1, x_copies),
        }, {
            "period": np.ones_like(weights),
            "until": np.where(w_held, 0, weights),
            "copies": np.maximum(1, w_copies),
        }

    def _passes(self, t: Columns) -> IntArray:
        """Passes of the cores over the input: for each phase, and for columns that are slowest.

        Cores at the same slabs of other columns read the same, if any are.
        """
        tiles_n = np.minimum(t["tiles_n"], t["items"])
        times = np.where(self._slow(t), tiles_n // np.gcd(t["cores"], tiles_n), 1)
        return self._phases[t["cut"]] * times

    def _slow(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Tell whether cores go through all slabs for some columns before the next columns."""
        return (t["resident"] > 0) & (t["tiles_n"] > 1)

    def _fetched(self, t: Columns) -> IntArray:
        """Times that the input comes from main memory.

        It does with each of the passes over it where the L2 has lost it when the next one comes.
        """
        l2, passes = self.device.l2, self._passes(t)
        sizes = self._input_bytes + self._written / passes
        if l2 is not None and l2.has_room(np.max(sizes, where=passes > 1, initial=0)):
            return np.ones_like(passes)
        return np.where(sizes > (l2.size_bytes if l2 is not None else 0), passes, 1)

    @cached_property
    def _apart(self) -> npt.NDArray[np.bool_]:
        """Tell of each cut whether two slabs read the same of the input or nothing in common."""
        whole = [cut.form == "window" and cut.slabs == 1 for cut in self.cuts]
        return np.array(whole, np.bool_) | (self.geometry.taps == 1)

    @cached_property
    def _phases(self) -> IntArray:
        """Phases of the outputs that read anything, by cut: 1 where it is not cut by them."""
        axes = (self.geometry.h, self.geometry.w)
        count = prod(min(axis.insert, axis.kernel) for axis in axes)
        return np.array([1 if cut.form == "window" else count for cut in self.cuts], np.int64)

    def _step(self, t: Columns, sizes: GemmSizes, columns: Floats, moves: Floats) -> CubeStep:
        """The loads to L0 and the product of a step of so many columns of C0 channels.

        ``moves`` bring its weights to L0B: transposed ones column by column, others at once.
        """
        device, g, element = self.device, self.geometry, self.dtype.bytes
        into_a = device.path("L1", "L0A", "load3d")
        into_b = device.path("L1", "L0B", "transpose" if self._transposes else "")
        k = columns * g.c0
        a = Move.cycles(
            into_a,
            sizes.m * k * element,
            fetch=columns * sizes.fetch,
            conflict=t["l1_slots"] > 1,
        )
        b = Move.cycles(into_b, sizes.n * k * element, moves=moves, conflict=t["weight_slots"] > 1)
        product = (sizes.m, k, sizes.wide)
        return step_of(device, (into_a, into_b), (1, moves), (a, b), product, used=sizes.n)


def _fractal_loads(columns: Floats, n: Floats) -> Floats:
    """Loads of weights to L0B for a step of so many columns, of up to 255 fractals each."""
    return columns * n / 16 / 255
