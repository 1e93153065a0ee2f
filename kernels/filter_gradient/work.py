"""What the cores do under tilings of a filter gradient: the columns that estimates need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.records import replace
from npusim.kernels.estimate import costs
from npusim.kernels.estimate.pipeline import Columns, Space, as_columns, chosen, uneven
from npusim.kernels.estimate.streams import clear_cycles, sum_cycles
from npusim.kernels.estimate.work import Floats, Work
from npusim.kernels.filter_gradient.cuts import Cut, cuts
from npusim.language import IntArray
from npusim.problem.axis import WIDEST_FILTER
from npusim.problem.convolution import Convolution

#: How dy comes to L0A by img2col, on devices that can.
_OF_DY = ("L1", "L0A", "load3d_transpose")


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
        path = self.device.path("L1", "L0B", "load3d")
        # Layers of other channels have the same.
        flat = replace(self.shape, cin=1, cout=1, groups=1)
        dy = self.device.path(*_OF_DY).window_bytes if self.device.has_path(*_OF_DY) else 0
        return cuts(flat, self.form, path.window_bytes, dy, self.widest)

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
        """How many runs of columns the tiles of a place are cut out of, and columns of each."""
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

    def work(self, t: Columns, *, sure: bool = False) -> Work:
        """See ``pipeline.Space``."""
        s, device = self.shape, self.device
        of = chosen(self.of_cut, t["cut"])
        if sure:
            of |= {"fetch": of["mean_fetch"], "dy_fetch": 0 * of["fetch"]}
        if sure:
            t = t | {"items": np.asarray(self._tiles(t) * t["parts"] * t["passes"])}
        (m, n), port = self._extents(t, sure=sure), device.path("GM", "L1")
        images, runs = of["images"], of["runs"]
        slabs = self._slabs(t, of, sure=sure)
        most, steps = of["most_positions"], np.ceil(of["most_positions"] / t["k"])
        k, rest = uneven(of["positions"], most, t["k"], steps)
        if sure:  # as few steps as there are, all of the mean
            alone = of["real"] * of["images"] / of["runs"]  # of 16 channels more are padded
            positions = of["positions"] if s.c0 == 16 else alone
            steps = np.maximum(1, positions / t["k"])
            k = rest = positions / steps
        full_step, rest_step = (self._step(t, of, (m, n, size), sure=sure) for size in (k, rest))
        x_bytes = images * t["planes"] * of["pixels"] * 32
        dy_bytes, dy_planes = images * of["real"] * m * self.element, m * self.element / 32
        x_rows, dy_rows = t["planes"] * of["x_pieces"], dy_planes * of["dy_pieces"]
        together = images * (x_rows if self.form == "rows" else 1)
        x_rows = np.where(images > 1, together, x_rows)
        dy_rows = np.where(images > 1, images, dy_rows)
        # Of a group that shares one operand this comes once.
        x_every, dy_every = (np.where(t["of_x"] == of_x, t["group"], 1) for of_x in (1, 0))
        requests = (x_rows / x_every + dy_rows / dy_every) * slabs * t["items"]
        asked = (x_bytes / x_every + dy_bytes / dy_every) * slabs * t["items"]
        x_moves, dy_moves = (1, 1) if sure else self._moves(t, of, dy_planes)
        once = s.n * s.cin1 * self._fetched, float(s.n * 32 * s.cout1 * prod(s.out))
        missing = self.missing(*once)
        drain, stored = self._out(t, (m, n), sure=sure)
        lacks = self._lacking(t, (x_bytes * slabs, dy_bytes * slabs), (x_every, dy_every), once)
        # The only slab may stay for the next tile, which estimates leave out.
        rounds, stays = -(-t["items"] // t["cores"]), (slabs < 2) & sure
        # What stays in L1 for several tiles comes first.
        swap = (t["group"] > 1) & (t["of_x"] == 0)
        pairs = lacks | {
            "start": (x_moves * port.startup_cycles, dy_moves * port.startup_cycles),
            "bytes": (x_bytes, dy_bytes),
        }
        first, second = (
            {f"{name}_{what}": np.where(swap, other, one) for what, (one, other) in some.items()}
            for name, some in (
                ("first", pairs),
                ("second", {what: pair[::-1] for what, pair in pairs.items()}),
            )
        )
        return Work(
            cores=t["cores"],
            items=t["items"],
            firsts=slabs,
            seconds=1,
            steps=steps * runs,
            **first,
            **second,
            first_every=np.where(stays, rounds, t["group"]),
            second_every=np.where(stays, rounds, 1),
            first_slots=np.where(t["group"] > 1, t["stay"], t["slots"]),
            second_slots=t["slots"],
            **self.stepping(t, full_step, rest_step, steps),
            **drain,
            rate=port.rate,
            shared=costs.read_rate(device, asked, requests),
            main=device.main_read_rate,
            least=np.maximum(stored, missing / device.main_read_rate),
            beside=costs.launch_cycles(device, "cube", t["cores"]) + self._besides(t),
        )

    @cached_property
    def _depths(self) -> list[int]:
        """Output planes that read any input, by the filter's depth, where there are any."""
        axis = self.shape.axis(0)
        depths = [
            sum(axis.real(out, kd) is not None for out in range(axis.out))
            for kd in range(axis.kernel)
        ]
        return [depth for depth in depths if depth] or [0]

    def _slabs(self, t: Columns, of: Columns, *, sure: bool) -> Floats:
        """Slabs of an item, of all images that come together; on average if that is ``sure``."""
        depth = sum(self._depths) / len(self._depths) if sure else self.shape.out[0]
        slabs = self.shape.n * depth * of["slabs"] / t["parts"]
        if sure:
            return np.asarray(slabs / of["images"] / t["passes"])
        return np.ceil(np.ceil(slabs) / of["images"] / t["passes"])

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

    def _out(
        self, t: Columns, size: tuple[Floats, Floats], *, sure: bool
    ) -> tuple[dict[str, Floats], Floats]:
        """Cycles of the drains of tiles, and of all writes together."""
        device, split = self.device, t["parts"] > 1
        cycles = costs.drain_cycles(device, *size, 4)[:2]
        atomic = device.l2.atomic_factor if device.l2 else 1
        factor = 1 if self.deterministic else atomic
        stored = self._written * np.where(split, t["parts"] * factor, t["passes"])
        each = size[0] * size[1] * 4 * np.where(split, factor, 1)
        return self.draining(t, cycles, each, sure=sure), stored / costs.write_rate(device)

    @property
    def _all_held(self) -> bool:
        """Whether the L2 has room for both operands."""
        s, l2 = self.shape, self.device.l2
        once = s.n * s.cin1 * self._fetched + s.n * 32 * s.cout1 * prod(s.out)
        return l2 is not None and once <= l2.size_bytes

    def _periods(self, t: Columns) -> tuple[IntArray, IntArray]:
        """Of which items of a core the L2 lacks x and dy: each so many-th, as others follow those
        that read the same: tiles along M, and along N those of other taps of its planes."""
        rounds, tiles, s = -(-t["items"] // t["cores"]), self._tiles(t), self.shape
        along = -(-s.plan.cout_g // t["m"])
        of_planes = tiles // s.plan.real_groups // s.kernel[0] // along * t["planes"]
        x = np.minimum(rounds, along * np.maximum(1, of_planes // s.plan.cin1_g))
        dy = np.where(along == 1, np.minimum(rounds, tiles), 1)
        alone = (t["group"] == 1) & self._all_held
        return np.where(alone, x, 1), np.where(alone, dy, 1)

    def _lacking(
        self,
        t: Columns,
        size: tuple[Floats, Floats],
        every: tuple[IntArray, IntArray],
        once: tuple[float, float],
    ) -> dict[str, tuple[Floats, Floats]]:
        """Until which item the L2 lacks x and dy, of which, and how many cores ask at once.

        ``size`` are the bytes of all loads for an item, which come for each ``every``-th, ``once``
        those of the operands.
        """
        rounds, tiles, periods = -(-t["items"] // t["cores"]), self._tiles(t), self._periods(t)
        alone, held = t["group"] == 1, self._all_held
        along = np.where(alone, np.minimum(rounds, -(-self.shape.plan.cout_g // t["m"])), 1)
        # Each tile goes through all positions: what the L2 does not hold comes anew for the next.
        until = np.where((rounds <= tiles) & alone, along, rounds) if held else rounds
        passes = 1 if held else rounds
        loads = (
            -(-last // np.where(alone, period, stays))
            for last, period, stays in zip((rounds, until), periods, every, strict=True)
        )
        copies = (
            np.maximum(1, t["cores"] * count * some / of_all / passes)
            for count, some, of_all in zip(loads, size, once, strict=True)
        )
        x, dy = (
            np.where(held, 0, last) for held, last in zip(self.held, (rounds, until), strict=True)
        )
        return {"until": (x, dy), "copies": tuple(copies), "period": periods}

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

    def _extents(self, t: Columns, *, sure: bool) -> tuple[Floats, Floats]:
        """Rows and columns of a tile that is no rest; of ``sure`` ones the mean."""
        s = self.shape
        high, (_, wide) = s.plan.cout_g, self._runs
        if self.form == "bands":  # of bands that are not quite equal the mean
            wide = s.taps * s.c0 // self.places
        if sure:
            return high / -(-high // t["m"]), wide / -(-wide // t["n"])
        return np.minimum(t["m"], high), t["n"]

    def _step(
        self, t: Columns, of: Columns, size: tuple[Floats, ...], *, sure: bool = False
    ) -> dict[str, Any]:
        """Cycles of the loads to L0 and the product of one step, ``sure`` without delays."""
        device, s, (m, n, k) = self.device, self.shape, size
        direct = device.has_path(*_OF_DY)
        into_a = device.path(*_OF_DY) if direct else device.path("L1", "L0A", "transpose")
        into_b, two = device.path("L1", "L0B", "load3d"), t["slots"] > 1
        if sure:
            two = two & ((t["group"] == 1) | (t["stay"] > 1))
        apart = (t.get("k", k) >= of["most_positions"]) | (t.get("k", k) <= 16)
        moves = np.where(direct or sure or apart & (m / s.c0 * k <= 4080), 1, np.ceil(m / s.c0))
        sizes = [side * k * self.element for side in (m, n)]
        a, b = (size / path.rate for size, path in zip(sizes, (into_a, into_b), strict=True))
        clash_a, clash_b = (
            np.where(two, size / 512 * float(path.conflict_cycles), 0)
            for size, path in zip(sizes, (into_a, into_b), strict=True)
        )
        a = np.maximum(a, m / s.c0 * k * of["dy_fetch"]) + clash_a
        b = np.maximum(b, n / s.c0 * k * of["fetch"]) + clash_b
        a, b = moves * into_a.startup_cycles + a, into_b.startup_cycles + b
        mmad = costs.mmad_cycles(device, m, k, n, self.rate, mean=sure)
        return costs.step(device, (into_a, into_b), (moves, 1), (a, b, mmad))
