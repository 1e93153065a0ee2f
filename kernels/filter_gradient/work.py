"""The tiles of a filter gradient: loads, products and drains, for estimates and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.base.records import replace
from npusim.kernels.estimate import costs
from npusim.kernels.estimate.pipeline import Columns, Space, as_columns, chosen, uneven
from npusim.kernels.estimate.streams import clear_cycles, sum_cycles
from npusim.kernels.estimate.tile import (
    CubeStep,
    OperandLoads,
    SharedBytes,
    TileWork,
    WayOut,
    fresh_cycles,
    in_step,
    step_of,
    swapped,
)
from npusim.kernels.estimate.work import Course, Floats
from npusim.kernels.filter_gradient.cuts import Cut, cuts
from npusim.language import IntArray
from npusim.machine.device.parts import Path
from npusim.machine.isa.base import Move
from npusim.machine.isa.dma import Fetcher
from npusim.problem.axis import WIDEST_FILTER
from npusim.problem.convolution import Convolution

#: How dy comes to L0A by img2col, on devices that can.
_OF_DY = ("L1", "L0A", "load3d_transpose")


class GradientSizes(NamedTuple):
    """Sizes of a tile, and how often its operands come.

    ``items`` tiles of ``m`` rows and ``n`` columns are summed over ``slabs``, each of so many
    ``steps`` of ``k`` positions, the last of which has the ``rest``. Loads to L1 are of ``x_moves``
    and ``dy_moves``. Steps bring dy to L0A in ``step_moves``, or ``rest_moves``, and fetch columns
    of img2col in ``x_fetch`` and ``dy_fetch`` cycles per position. What comes first comes anew
    after ``first_every`` items. Slots of L1 have ``shared`` banks. A load has as many ``images``,
    each of so many ``real`` positions and ``pixels`` of so many ``planes`` of x. Of the ``last``
    one there are so many steps. ``means`` are of tiles that differ.
    """

    items: IntArray
    m: Floats
    n: Floats
    slabs: Floats
    steps: Floats
    k: Floats
    rest: Floats
    x_moves: Any
    dy_moves: Any
    step_moves: Any
    rest_moves: Any
    x_fetch: Floats
    dy_fetch: Floats
    first_every: IntArray
    second_every: Any
    shared: npt.NDArray[np.bool_]
    planes: Floats
    real: Floats
    pixels: Floats
    images: Any
    last: Any = 0
    means: bool = False


#: Columns of cuts that say how operands come to L1.
_OF_LOADS = ("images", "runs", "x_pieces", "dy_pieces")


@dataclass(frozen=True)
class Gradient(Space):
    """A gradient on one device, and what is asked of candidates with such and such columns."""

    shape: Convolution
    rate: str
    element: int
    deterministic: bool
    form: str
    #: Most rows and columns of the filter in a band of the form "bands".
    widest: tuple[int, int] = (WIDEST_FILTER, WIDEST_FILTER)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Every way to cut the output plane that is worth comparing."""
        # Layers of other channels have the same.
        flat = replace(self.shape, cin=1, cout=1, groups=1)
        of_x = Fetcher.of(self.device.path("L1", "L0B", "load3d"))
        of_dy = Fetcher.of(self._into_l0a) if self.device.has_path(*_OF_DY) else None
        return cuts(flat, self.form, of_x, of_dy, self.widest)

    @cached_property
    def of_cut(self) -> Columns:
        """The cuts as columns."""
        return as_columns(self.cuts, Cut)

    @property
    def taps(self) -> int:
        """Filter places of a plane that may lie in a tile's columns, those of the widest band."""
        if self.form == "bands":
            return prod(-(-taps // count) for taps, count in self._bands)
        return 1 if self.form == "taps" else self.shape.taps

    @property
    def _bands(self) -> tuple[tuple[int, int], ...]:
        """Rows of the filter and of how many bands they are, and columns."""
        _, high, wide = self.shape.kernel
        return tuple((n, -(-n // most)) for n, most in zip((high, wide), self.widest, strict=True))

    @property
    def places(self) -> int:
        """Bands of a plane, or filter places, of which each has tiles of its own."""
        if self.form == "bands":
            return prod(count for _, count in self._bands)
        return self.shape.taps // self.taps

    @property
    def _runs(self) -> tuple[int, int]:
        """Runs of columns that the tiles of a place are cut out of, and columns of each."""
        planes, c0 = self.shape.plan.cin1_g, self.shape.c0
        if self.form == "bands":  # a tile is of one plane
            return planes, self.taps * c0
        return 1, planes * self.taps * c0

    def _along_n(self, t: Columns) -> npt.NDArray[np.int64]:
        """Tiles along N of one filter place or band."""
        runs, columns = self._runs
        return np.asarray(runs * -(-columns // t["n"]), np.int64)

    def _tiles(self, t: Columns) -> npt.NDArray[np.int64]:
        s = self.shape
        along_n = self._along_n(t) * self.places
        tiles = s.plan.real_groups * s.kernel[0] * -(-s.plan.cout_g // t["m"]) * along_n
        return np.asarray(tiles, np.int64)

    @property
    def math(self) -> str:
        """See ``pipeline.Space``."""
        return self.rate

    def busiest(self, t: Columns) -> GradientSizes:
        """See ``pipeline.Space``."""
        s, of = self.shape, chosen(self.of_cut, t["cut"])
        m, n = np.minimum(t["m"], s.plan.cout_g), t["n"]
        most = of["most_positions"]
        steps = np.ceil(most / t["k"])
        k, rest = uneven(of["positions"], most, t["k"], steps)
        slabs = np.ceil(s.n * s.out[0] * of["slabs"] / t["parts"])
        x_moves, dy_moves = self._moves(t, of, m * self.element / 32)
        return GradientSizes(
            items=t["items"],
            m=m,
            n=n,
            slabs=np.ceil(slabs / of["images"] / t["passes"]),
            steps=steps,
            k=k,
            rest=rest,
            x_moves=x_moves,
            dy_moves=dy_moves,
            step_moves=self._moves_to_l0a(t, of, m, k),
            rest_moves=self._moves_to_l0a(t, of, m, rest),
            x_fetch=of["fetch"],
            dy_fetch=of["dy_fetch"],
            first_every=t["group"],
            second_every=1,
            shared=t["slots"] > 1,
            planes=t["planes"],
            real=of["real"],
            pixels=of["pixels"],
            images=of["images"],
        )

    def mean(self, t: Columns) -> GradientSizes:
        """See ``pipeline.Space``."""
        s, of = self.shape, chosen(self.of_cut, t["cut"])
        high, wide = s.plan.cout_g, self._mean_columns
        depth = sum(self._depths) / len(self._depths)
        slabs = s.n * depth * of["slabs"] / t["parts"] / of["images"] / t["passes"]
        # Of 16 channels more positions are padded.
        alone = of["real"] * of["images"] / of["runs"]
        return self._optimistic(
            t,
            sides=(high / -(-high // t["m"]), wide / -(-wide // t["n"])),
            slabs=slabs,
            positions=of["positions"] * of["sixteens"] if s.c0 == 16 else alone,
            fetch=of["mean_fetch"],
        )._replace(planes=t["planes"], real=of["real"], pixels=of["pixels"], means=True)

    def largest(self, t: Columns) -> GradientSizes:
        """See ``pipeline.Space``: the first tile; bands differ, and so do places of the filter."""
        wide = self._mean_columns if self.form == "bands" else self._runs[1]
        sides = np.minimum(t["m"], self.shape.plan.cout_g), np.minimum(t["n"], wide)
        mean = self.mean(t)
        m, n = (side / 1.0 for side in sides)
        n = mean.n if self.form == "bands" else n
        return mean._replace(m=m, n=n, planes=np.floor((n / self.shape.c0 - 1) / self.taps) + 1)

    def least(self, t: Columns) -> GradientSizes:
        """See ``pipeline.Space``: the last tile, the smallest slab, the last images."""
        s, of = self.shape, chosen(self.of_cut, t["cut"])
        high, (_, wide) = s.plan.cout_g, self._runs
        m = high - (-(-high // t["m"]) - 1) * t["m"]
        n = wide - (-(-wide // t["n"]) - 1) * t["n"]
        if self.form == "bands":  # of which the last may be narrow
            n = np.minimum(n, s.c0)
        slabs = s.n * min(self._depths) * of["slabs"]
        loads = np.floor(np.ceil(slabs / of["images"]) / t["parts"] / t["passes"])
        loads = loads - 1 + of["rest"]  # the last may be of fewer images
        # Tiles of one operand are cut evenly into groups: some share has the most of them.
        along = np.where(t["of_x"] == 1, -(-high // t["m"]), self._along_n(t))
        group = -(-along // -(-along // t["group"]))
        positions = of["positions"] * of["sixteens"] if s.c0 == 16 else of["real"]
        uneven_slabs = of["least_real"] < of["real"]
        positions = np.where(uneven_slabs, of["least_real"], positions)
        sizes = self._optimistic(
            t,
            sides=(m / 1.0, n / 1.0),
            slabs=np.maximum(0, loads),
            positions=positions,
            fetch=of["least_fetch"],
        )
        return sizes._replace(
            last=sizes.steps * of["runs"] * of["rest"],
            planes=(n // s.c0 - 1) // self.taps + 1,
            real=of["least_real"],
            pixels=of["least_pixels"],
            images=of["images"] * of["rest"],
            # Some share is of a whole group of tiles.
            items=np.maximum(
                self._tiles(t) * t["parts"] * t["passes"], group * t["passes"] * t["cores"]
            ),
        )

    def course(self, t: Columns) -> Course:
        """See ``pipeline.Space``: the first core, else as many smallest tiles as fall to one."""
        s, of, least = self.shape, chosen(self.of_cut, t["cut"]), self.least(t)
        # The first core begins with the first slab of the first image.
        shared = t["group"] > 1
        plain = (s.kernel[0] == 1) & (self.places == 1) & (of["images"] == 1)
        known = plain & (~shared | (t["shares"] <= t["cores"]))
        uneven = known & (of["least_real"] < of["real"])
        positions = np.where(uneven, of["next_real"], least.steps * least.k)
        steps = np.maximum(1, positions / t["k"])
        sizes = least._replace(
            steps=steps,
            k=positions / steps,
            rest=positions / steps,
            real=np.where(uneven, of["next_real"], of["least_real"]),
            pixels=np.where(uneven, of["next_pixels"], of["least_pixels"]),
            images=of["images"],
        )
        x, dy = self._loads(t, sizes)
        # Elsewhere what the last load lacks of a whole one is left out.
        loads = np.maximum(0, np.floor(np.asarray(least.slabs) + 1e-9))
        loads = np.where(known, np.rint(s.n * self._depths[0] * of["slabs"]), loads)
        parts = np.where(shared, np.minimum(t["passes"], loads), t["parts"])
        along = np.where(t["of_x"] == 1, -(-s.plan.cout_g // t["m"]), self._along_n(t))
        per = np.where(shared, -(-along // -(-along // t["group"])), self._tiles(t))
        of_x = (t["group"] == 1) | (t["of_x"] == 1)
        first = np.where(known & shared, per, sizes.first_every)
        second = np.asarray(sizes.second_every)
        stay = np.where(t["group"] > 1, t["stay"], t["slots"])
        taps = positions
        # Of a core's tiles those along M follow each other. The last has few rows ("few"), and all
        # but the last columns are "wide".
        high, wide = (
            np.where(known, np.minimum(side, whole), last) / 1.0
            for side, whole, last in (
                (t["m"], s.plan.cout_g, sizes.m),
                (t["n"], self._runs[1], sizes.n),
            )
        )
        kinds = {
            "": sizes._replace(m=high),
            "_wide": sizes._replace(m=high, n=wide),
            "_few": sizes,
            "_few_wide": sizes._replace(n=wide),
        }
        steps_of = {
            kind: self._step(of_kind, sizes.k, sizes.step_moves) for kind, of_kind in kinds.items()
        }
        ways = {kind: self._drain(t, of_kind) for kind, of_kind in kinds.items()}
        direct = self.device.has_path("L0C", "GM")
        along = -(-s.plan.cout_g // t["m"])
        of_dy = shared & (t["of_x"] == 0)
        rows = np.where(shared, np.where(of_dy, 1, per), along)
        columns = np.where(shared, np.where(of_dy, per, 1), self._along_n(t))
        few_columns = np.where(shared & ~of_dy & (self._along_n(t) > 1), 0, 1)
        x_fast, dy_fast = x.size / self._port.rate, dy.size / self._port.rate / taps
        x_fresh = fresh_cycles(self.device, self._port, x)
        dy_fresh = fresh_cycles(self.device, self._port, dy) / taps
        # Whether no other tile reads the same: along the other side there is but one.
        single = (s.kernel[0] == 1) & (self.places == 1)
        x_alone = single & (along == 1)
        dy_alone = single & (self._along_n(t) == 1)
        return Course(
            items=np.where(loads > 0, np.ceil(sizes.items / t["cores"]), 0),
            # Counted on by a column, the last of them is the first to have no more.
            first=np.where(known, rows, 0),
            across=np.where(known, columns, 1),
            along=np.where(known, rows, 1),
            slow=1,
            period=np.where(known, rows, 1),
            rest=np.where(known & of_dy, 0, 1),
            over=np.where(known, columns - few_columns, 0),
            planes_in=loads,
            planes=1,
            parts=parts,
            per=np.where(known, per, 0),
            slabs=np.where(uneven, of["slabs"], 1),
            small=np.where(uneven, of["least_real"] / positions, 1),
            small_x=np.where(uneven, of["least_pixels"] / of["next_pixels"], 1),
            taps=taps,
            columns=taps,
            runs=of["runs"],
            k=sizes.k,
            x_every=np.where(of_x, first, second),
            w_every=np.where(of_x, second, first),
            x_slots=np.where(of_x, stay, t["slots"]),
            w_slots=np.where(of_x, t["slots"], stay),
            l0_slots=t["l0_slots"],
            c_slots=t["l0c_slots"],
            x_alone=2 * x_alone,
            w_alone=dy_alone,
            x_start=x.start,
            w_start=dy.start,
            a_waits=1,
            moves=1,
            x=x_fast,
            x_few=x_fast,
            x_fresh=x_fresh,
            # Others may begin with a small slab, and have dy sooner.
            x_few_fresh=x_fresh * np.where(uneven, of["least_pixels"] / of["next_pixels"], 1),
            w=dy_fast,
            w_wide=dy_fast,
            w_fresh=dy_fresh,
            w_wide_fresh=dy_fresh,
            a=steps_of[""].a,
            a_few=steps_of["_few"].a,
            b=steps_of[""].b,
            b_wide=steps_of["_wide"].b,
            **{f"m{kind}": self.product(one.m, one.k, one.n) for kind, one in steps_of.items()},
            **{f"drain{kind}": one.cycles if direct else one.pace for kind, one in ways.items()},
            **self.way_out(t),
        )

    def _optimistic(
        self,
        t: Columns,
        *,
        sides: tuple[Floats, Floats],
        slabs: Floats,
        positions: Floats,
        fetch: Floats,
    ) -> GradientSizes:
        """Sizes for a bound: tiles with such ``sides`` m and n, and so many ``slabs``.

        Each has so many ``positions`` and is fetched at ``fetch`` cycles for each of them.
        """
        of, c0 = chosen(self.of_cut, t["cut"]), self.shape.c0
        steps = np.maximum(1, positions / t["k"])  # as few as there are, all of the mean
        items = self._tiles(t) * t["parts"] * t["passes"]
        # The only slab may stay for the next tile, which estimates leave out.
        stays = slabs < 2
        rounds = -(-items // t["cores"])
        several = (t["group"] == 1) | (t["stay"] > 1)
        # Steps that go on to the next image fetch no block that is alone in its tile.
        runs_on = of["runs"] < of["images"]
        x_part = np.where(runs_on & (self.taps == 1), _fetched(t["n"], self._runs[1], c0), 1)
        dy_part = _fetched(t["m"], self.shape.plan.cout_g, c0)
        return GradientSizes(
            items=items,
            m=sides[0],
            n=sides[1],
            slabs=slabs,
            steps=steps,
            k=positions / steps,
            rest=positions / steps,
            x_moves=1,
            dy_moves=1,
            step_moves=1,
            rest_moves=1,
            x_fetch=fetch * x_part,
            dy_fetch=of["least_dy_fetch"] * dy_part,
            first_every=np.where(stays, rounds, t["group"]),
            second_every=np.where(stays, rounds, 1),
            shared=(t["slots"] > 1) & several,
            planes=t["planes"],
            real=of["real"],
            pixels=of["pixels"],
            images=of["images"],
        )

    def tile(self, t: Columns, sizes: GradientSizes) -> TileWork:
        """See ``pipeline.Space``."""
        of = {name: self.of_cut[name][t["cut"]] for name in _OF_LOADS}
        x, dy = self._loads(t, sizes)
        # What stays in L1 for several tiles comes first.
        first, second = swapped((t["group"] > 1) & (t["of_x"] == 0), x, dy)
        slots = np.where(t["group"] > 1, t["stay"], t["slots"])
        return TileWork(
            cores=t["cores"],
            items=sizes.items,
            firsts=sizes.slabs,
            seconds=1,
            steps=sizes.steps * of["runs"],
            run=sizes.steps,
            first=first._replace(every=sizes.first_every, slots=slots),
            second=second._replace(every=sizes.second_every),
            step=self._step(sizes, sizes.k, sizes.step_moves),
            rest=self._step(sizes, sizes.rest, sizes.rest_moves),
            drain=self._drain(t, sizes),
            traffic=self._traffic(t, sizes, x, dy),
            port=self._port,
            step_slots=t["l0_slots"],
            drain_slots=t["l0c_slots"],
            unit_flag=t["unit_flag"],
            beside=costs.launch_cycles(self.device, "cube", t["cores"]) + self._besides(t),
            last=sizes.last,
        )

    @property
    def _port(self) -> Path:
        """The way of operands to L1."""
        return self.device.path("GM", "L1")

    @property
    def _operand_bytes(self) -> tuple[float, float]:
        """Bytes of x, whole sectors of what is read, and of dy."""
        s = self.shape
        return s.n * s.cin1 * self._fetched, float(s.n * 32 * s.cout1 * prod(s.out))

    def _every(self, t: Columns) -> tuple[IntArray, IntArray]:
        """Tiles of a core for which x and dy come once: of a group one is shared."""
        x_every = np.where(t["of_x"] == 1, t["group"], 1)
        return x_every, np.where(t["of_x"] == 0, t["group"], 1)

    def _loads(self, t: Columns, sizes: GradientSizes) -> tuple[OperandLoads, OperandLoads]:
        """The loads of x and dy to L1, each as if it came for every tile."""
        x_bytes = sizes.images * sizes.planes * sizes.pixels * 32
        dy_bytes = sizes.images * sizes.real * sizes.m * self.element
        x_missing, dy_missing = self._lacking(t, sizes, x_bytes, dy_bytes)
        x_rows, dy_rows = self._rows(t, sizes)
        x = OperandLoads(
            start=sizes.x_moves * self._port.startup_cycles,
            size=x_bytes,
            slots=t["slots"],
            # Where positions read one pixel each, slabs read nothing in common.
            rows=x_rows if self.shape.taps == 1 else np.inf,
            **x_missing,
        )
        dy = OperandLoads(
            start=sizes.dy_moves * self._port.startup_cycles,
            size=dy_bytes,
            slots=t["slots"],
            rows=dy_rows,
            **dy_missing,
        )
        high, wide = self.shape.plan.cout_g, self._mean_columns
        return in_step(
            x,
            dy,
            ((wide - 1) % t["n"] + 1) / t["n"],
            ((high - 1) % t["m"] + 1) / sizes.m,
            -(-sizes.items // t["cores"]),
        )

    def _rows(self, t: Columns, sizes: GradientSizes) -> tuple[Floats, Floats]:
        """Rows in GM of a load of x, and of one of dy."""
        of = {name: self.of_cut[name][t["cut"]] for name in _OF_LOADS}
        images = of["images"]
        x_rows = t["planes"] * of["x_pieces"]
        together = images * (x_rows if self.form == "rows" else 1)
        x_rows = np.where(images > 1, together, x_rows)
        dy_rows = np.where(images > 1, images, sizes.m * self.element / 32 * of["dy_pieces"])
        return x_rows, dy_rows

    def _traffic(
        self, t: Columns, sizes: GradientSizes, x: OperandLoads, dy: OperandLoads
    ) -> SharedBytes:
        """Bytes that all cores move."""
        x_rows, dy_rows = self._rows(t, sizes)
        x_every, dy_every = self._every(t)
        split = t["parts"] > 1
        stored = self._written * np.where(split, t["parts"] * self._atomic_factor, t["passes"])
        requests = (x_rows / x_every + dy_rows / dy_every) * sizes.slabs * sizes.items
        missing = self.missing(*self._operand_bytes)
        # What the L2 holds misses once, in rows as short as any.
        most = np.maximum(x_rows / np.maximum(1, x.size), dy_rows / np.maximum(1, dy.size))
        return SharedBytes(
            asked=(x.size / x_every + dy.size / dy_every) * sizes.slabs * sizes.items,
            requests=requests,
            spared=np.minimum(requests, missing * most) if self._all_held else requests,
            missing=missing,
            stored=stored / costs.write_rate(self.device),
            main=self.device.main_read_rate,
        )

    @property
    def _atomic_factor(self) -> int:
        """Times that parts of K write an element, as they add to it."""
        if self.deterministic or not self.device.l2:
            return 1
        return self.device.l2.atomic_factor

    def _drain(self, t: Columns, sizes: GradientSizes) -> WayOut:
        """The way out of a tile."""
        cycles, pace, _ = costs.drain_cycles(self.device, sizes.m, sizes.n, 4, means=sizes.means)
        factor = np.where(t["parts"] > 1, self._atomic_factor, 1)
        return WayOut(cycles=cycles, pace=pace, written=sizes.m * sizes.n * 4 * factor)

    @cached_property
    def _depths(self) -> list[int]:
        """Output planes that read any input, by the filter's depth, where there are any."""
        axis = self.shape.axis(0)
        depths = [
            sum(axis.real(out, kd) is not None for out in range(axis.out))
            for kd in range(axis.kernel)
        ]
        return [depth for depth in depths if depth] or [0]

    def _moves(self, t: Columns, of: Columns, planes: Floats) -> tuple[Floats, Floats]:
        """Moves that bring x to L1, and so many ``planes`` of dy."""
        close = self.device.has_path(*_OF_DY)
        x_moves = of["x_moves"] + of["x_plane_moves"] * t["planes"]
        return x_moves, np.maximum(of["dy_plane_moves"] * planes, 1 if close else of["images"])

    @property
    def _written(self) -> int:
        """Bytes of the result."""
        s = self.shape
        return s.plan.real_groups * s.kernel[0] * s.plan.cin1_g * s.taps * s.plan.cout_g * s.c0 * 4

    def _besides(self, t: Columns) -> Floats:
        """Cycles of kernels around this one."""
        if not self.deterministic:
            return np.where(t["parts"] > 1, clear_cycles(self.device, self._written), 0)
        # Parts are written singly, and added up by vector cores.
        counts, which = np.unique(t["parts"], return_inverse=True)
        sums = [sum_cycles(self.device, self._written, int(n)) for n in counts]
        return np.where(t["parts"] > 1, np.array(sums)[which.reshape(-1)], 0)

    @property
    def _all_held(self) -> bool:
        """Tell whether the L2 has room for both operands."""
        l2 = self.device.l2
        return l2 is not None and l2.has_room(sum(self._operand_bytes))

    def _periods(self, t: Columns, rounds: IntArray) -> tuple[IntArray, IntArray]:
        """Items of a core, out of so many ``rounds``, from one that lacks x in L2 to the next.

        Others follow those that read the same: tiles along M, and along N those of other taps of
        its planes. The same of dy.
        """
        tiles, s = self._tiles(t), self.shape
        along = -(-s.plan.cout_g // t["m"])
        of_planes = tiles // s.plan.real_groups // s.kernel[0] // along * t["planes"]
        x = np.minimum(rounds, along * np.maximum(1, of_planes // s.plan.cin1_g))
        dy = np.where(along == 1, np.minimum(rounds, tiles), 1)
        alone = (t["group"] == 1) & self._all_held
        return np.where(alone, x, 1), np.where(alone, dy, 1)

    def _lacking(
        self, t: Columns, sizes: GradientSizes, x_bytes: Floats, dy_bytes: Floats
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields of ``OperandLoads`` on what the L2 lacks, of x and dy.

        Given are the bytes of a load of each.
        """
        rounds, tiles = -(-sizes.items // t["cores"]), self._tiles(t)
        x_period, dy_period = self._periods(t, rounds)
        x_every, dy_every = self._every(t)
        x_size, dy_size = self._operand_bytes
        alone, all_held = t["group"] == 1, self._all_held
        along = np.where(alone, np.minimum(rounds, -(-self.shape.plan.cout_g // t["m"])), 1)
        # Each tile goes through all positions: what the L2 does not hold comes anew for the next.
        until = np.where((rounds <= tiles) & alone, along, rounds) if all_held else rounds
        passes = 1 if all_held else rounds
        x_loads = -(-rounds // np.where(alone, x_period, x_every))
        dy_loads = -(-until // np.where(alone, dy_period, dy_every))
        x_copies = t["cores"] * x_loads * (x_bytes * sizes.slabs) / x_size / passes
        dy_copies = t["cores"] * dy_loads * (dy_bytes * sizes.slabs) / dy_size / passes
        x_held, dy_held = self.held
        return {
            "period": x_period,
            "until": np.where(x_held, 0, rounds),
            "copies": np.maximum(1, x_copies),
        }, {
            "period": dy_period,
            "until": np.where(dy_held, 0, until),
            "copies": np.maximum(1, dy_copies),
        }

    @property
    def _fetched(self) -> float:
        """Bytes from main memory for a plane of x, of all depths: whole sectors of what is read."""
        s, l2 = self.shape, self.device.l2
        size = 32 * prod(s.spatial)
        if self.form != "rows" or l2 is None:
            return float(size)
        row, pitch = s.spatial[2] * 32, s.spatial[2] * 32 * s.step(1)
        even = row % l2.sector_bytes == 0
        return size * min(1.0, (row + (0 if even else l2.sector_bytes - 32)) / pitch)

    @property
    def _mean_columns(self) -> int:
        """Columns of a run that tiles are cut out of; of bands that are not equal the mean."""
        if self.form == "bands":
            return self.shape.taps * self.shape.c0 // self.places
        return self._runs[1]

    @property
    def _into_l0a(self) -> Path:
        """The way of dy to L0A: by img2col where the device can, else transposed."""
        if self.device.has_path(*_OF_DY):
            return self.device.path(*_OF_DY)
        return self.device.path("L1", "L0A", "transpose")

    def _moves_to_l0a(self, t: Columns, of: Columns, m: Floats, k: Floats) -> Any:
        """Moves that bring dy to L0A for a step of ``k`` positions."""
        if self.device.has_path(*_OF_DY):
            return 1
        planes = m / self.shape.c0
        apart = (t["k"] >= of["most_positions"]) | (t["k"] <= 16)
        return np.where(apart & (planes * k <= 4080), 1, np.ceil(planes))

    def _step(self, sizes: GradientSizes, k: Floats, moves: Any) -> CubeStep:
        """The loads to L0 and the product of a step of ``k`` positions."""
        device, c0, m, n = self.device, self.shape.c0, sizes.m, sizes.n
        into_a, into_b = self._into_l0a, device.path("L1", "L0B", "load3d")
        a = Move.cycles(
            into_a,
            m * k * self.element,
            moves=moves,
            fetch=m / c0 * k * sizes.dy_fetch,
            conflict=sizes.shared,
        )
        b = Move.cycles(
            into_b,
            n * k * self.element,
            fetch=n / c0 * k * sizes.x_fetch,
            conflict=sizes.shared,
        )
        return step_of(device, (into_a, into_b), (moves, 1), (a, b), (m, k, n))


def _fetched(side: IntArray, whole: int, block: int) -> Floats:
    """The share of blocks in tiles of several, of tiles with a ``side`` of the ``whole``."""
    rest = whole - (-(-whole // side) - 1) * side
    alone = np.where(side <= block, whole, np.where(rest <= block, rest, 0))
    return np.asarray(1 - alone / whole)
