"""The tilings of forward convolution and input gradient that are worth comparing, and their work.

What is enumerated follows from the problem: tiles that cut rows, channels and planes evenly into
so many parts. What a device holds of them grows with its memories and leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.device.spec import Device
from npusim.dtypes import DType
from npusim.integers import IntArray, even_parts, round_up
from npusim.kernels.parts.implicit_gemm_shape import Geometry
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.kernels.tilings import costs
from npusim.kernels.tilings.fit import cube_sizes, most_rows
from npusim.kernels.tilings.implicit_gemm import Tiling
from npusim.kernels.tilings.pipeline import (
    ALMOST,
    L0_WAYS,
    Floats,
    Loads,
    Work,
    chosen,
    uneven,
)
from npusim.kernels.tilings.product_cuts import Cut, Way, cuts_of, ways_of
from npusim.kernels.tilings.streams import clear_cycles

#: Most output channels of a tile.
_MOST_N = 512
#: Tiles whose best possible time is so much longer than others' are not looked at.
_HOPELESS = 1.6

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Space:
    """Candidates for one product on one device: columns of fields, and what ranks them."""

    geometry: Geometry
    device: Device
    cores: int
    dtype: DType
    rate: str
    rotated: bool
    forms: tuple[str, ...]
    held: tuple[bool, ...]  # whether the L2 holds the first operand, and the second
    ways: tuple[tuple[int, int], ...] = L0_WAYS

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
            for cut in cuts_of(self.geometry, form, highest, path.window_bytes)
        ]

    @cached_property
    def of_cut(self) -> Columns:
        """The cuts as columns."""
        columns = zip(*self.cuts, strict=True) if self.cuts else [()] * len(Cut._fields)
        named = zip(Cut._fields, columns, strict=True)
        return {name: np.array(column) for name, column in named if name not in ("form", "kinds")}

    @cached_property
    def kinds(self) -> tuple[IntArray, Floats]:
        """Slabs and taps of each kind of slab, by cut; none of a kind that a cut has not."""
        most = max((len(cut.kinds) for cut in self.cuts), default=0)
        table = np.zeros((len(self.cuts), max(1, most), 2))
        for i, cut in enumerate(self.cuts):
            table[i, : len(cut.kinds)] = np.array(cut.kinds).reshape(-1, 2)
        return table[:, :, 1].astype(np.int64), table[:, :, 0]

    @cached_property
    def columns(self) -> Columns:
        """Fields of all candidates that fit the device's buffers, one entry per candidate."""
        g, size, element = self.geometry, cube_sizes(self.device), self.dtype.bytes
        wide = np.array(even_parts(g.planes_out, max(1, _MOST_N // g.c0))) * g.c0
        wide = np.unique(round_up(wide, 16))
        ways: Columns = dict(zip(Way._fields, np.array(ways_of(g), np.int64).T, strict=True))
        axes = (np.arange(len(self.cuts)), np.arange(len(wide)))
        cut, at_n = (a.reshape(-1) for a in np.meshgrid(*axes, indexing="ij"))
        cut, at_n = self._hopeful(cut, at_n, wide)
        count = len(ways["planes"])
        way = np.tile(np.arange(count), len(cut))
        cut, at_n = np.repeat(cut, count), np.repeat(at_n, count)
        t = {name: column[way] for name, column in ways.items()} | {"cut": cut, "n": wide[at_n]}
        taps, m = self.of_cut["most_taps"][cut], self.of_cut["most_m"][cut]
        t["columns"] = np.where(t["parts"] > 1, -(-taps // t["parts"]), t["w_planes"] * taps)
        x = t["l1_slots"] * t["planes"] * self.of_cut["most_pixels"][cut] * 32
        w = t["weight_slots"] * t["columns"] * t["n"] * g.c0 * element
        most = np.minimum(size["L0A"] // m, size["L0B"] // t["n"]) // 2 // element // g.c0
        t["most_k"] = np.minimum(np.minimum(most, t["columns"]), 4080 // g.c0)
        fits = (x + w <= size["L1"]) & (t["most_k"] > 0) & (m * t["n"] * 4 <= size["L0C"])
        fits &= (t["parts"] == 1) | (t["parts"] <= taps)
        t = self._l0(chosen(t, np.flatnonzero(fits)))
        t["tiles_n"] = -(-g.planes_out * g.c0 // t["n"])
        images = -(-g.images // self.of_cut["images"][t["cut"]])
        depths = sum(1 for pairs in g.live if pairs) * g.groups
        t["items"] = self.of_cut["slabs"][t["cut"]] * images * depths * t["tiles_n"]
        rounds = -(-t["items"] // self.cores)
        t["cores"] = -(-t["items"] // np.maximum(1, rounds))
        return t

    def _hopeful(
        self, cut: npt.NDArray[Any], at_n: npt.NDArray[Any], wide: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Pairs of a cut and a width that fit, without those much slower than others at best."""
        g, size, element = self.geometry, cube_sizes(self.device), self.dtype.bytes
        of, n = {name: column[cut] for name, column in self.of_cut.items()}, wide[at_n]
        m, c0 = of["most_m"], g.c0
        most = np.minimum(size["L0A"] // m, size["L0B"] // n) // 2 // element // c0
        fits = (most > 0) & (m * n * 4 <= size["L0C"])
        fits &= of["most_pixels"] * 32 + n * c0 * element <= size["L1"]
        fits &= m <= most_rows(self.device, self.dtype)
        columns = g.planes_in * of["taps"]
        k = np.minimum(np.maximum(most, 1), columns) * c0
        singly = dict.fromkeys(("l1_slots", "weight_slots"), np.ones_like(m))
        step = self._step(singly, of, (of["m"], n, k))
        tiles = -(-g.planes_out * c0 // n) * of["slabs"] * -(-g.images // of["images"])
        tiles = tiles * sum(1 for pairs in g.live if pairs) * g.groups
        least = np.maximum(step["m"], step["a"] + step["b"]) * columns * c0 / k * of["reads"]
        least = np.maximum(least, self._drain(of, n)[0]) * np.ceil(tiles / self.cores)
        least = least + costs.launch_cycles(self.device, "cube", 0)
        fits &= least <= _HOPELESS * np.min(least, where=fits, initial=np.inf)
        return cut[fits], at_n[fits]

    def _l0(self, t: Columns) -> Columns:
        """With the choices that L0 leaves: depths of a step, and how the next tile may begin."""
        cube, m = self.device.cube, self.of_cut["most_m"][t["cut"]]
        flag = cube is not None and cube.unit_flag and self.device.has_path("L0C", "GM")
        size = self.device.memory("L0C").size_bytes
        # Of weights that stay a step takes no more than those of the planes in L1.
        taps = self.of_cut["most_taps"][t["cut"]]
        columns = np.minimum(t["columns"], t["planes"] * taps)
        sums, l0 = m * t["n"] * 4, cube_sizes(self.device)
        side = np.minimum(l0["L0A"] // m, l0["L0B"] // t["n"])
        which, steps, ways = [], [], []
        for slots, unit_flag in ((2, False), (1, True) if flag else (1, False)):
            for l0_slots, split in self.ways:
                deepest = side // l0_slots // self.dtype.bytes // self.geometry.c0
                deepest = np.minimum(deepest, t["most_k"])
                whole = -(-columns // np.maximum(1, deepest))
                fits = (slots * sums <= size) & ((whole < columns) | (split == 1)) & (deepest > 0)
                if not unit_flag and slots == 1:  # where two fit there is no reason for one
                    fits &= 2 * sums > size
                which.append(np.flatnonzero(fits))
                steps.append(np.minimum(whole[which[-1]] * split, columns[which[-1]]))
                ways.append((slots, unit_flag, l0_slots))
        found = chosen(t, np.concatenate(which))
        found["k"] = -(-columns[np.concatenate(which)] // np.concatenate(steps))
        counts = [len(some) for some in which]
        slot, flags, l0_slots = np.repeat(np.array(ways, np.int64), counts, axis=0).T
        return found | {"l0c_slots": slot, "unit_flag": flags, "l0_slots": l0_slots}

    def tiling(self, i: int, cores: int) -> Tiling:
        """Candidate ``i`` on so many cores."""
        t = {name: int(column[i]) for name, column in self.columns.items()}
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
            n_slowest=bool(t["resident"]) and t["tiles_n"] > 1,
            unit_flag=bool(t["unit_flag"]),
            images=cut.images,
            even_n=self._uneven(t["n"]),
            cores=cores if cores < self.cores else 0,
        )

    def _uneven(self, n: int) -> bool:
        """Whether tiles of ``n`` channels leave a rest; then they are cut evenly instead."""
        return self.geometry.planes_out * self.geometry.c0 % n > 0

    def work(self, which: IntArray, cores: IntArray) -> Work:
        """What so many cores do under some of the candidates."""
        return self._work(chosen(self.columns, which) | {"cores": cores})

    def least(self, cores: IntArray) -> Floats:
        """Cycles of all candidates on so many cores, by their loads: not above ``bounds``."""
        t = self.columns | {"cores": cores}
        of = {name: column[t["cut"]] for name, column in self.of_cut.items()}
        # Where cores have tiles of unlike kinds, the busiest has no fewer taps than the mean.
        taps = of["taps"] * t["items"] / (cores * -(-t["items"] // cores))
        cycles, _ = self._loads(t, of, taps).moved()
        cycles = cycles + costs.launch_cycles(self.device, "cube", cores)
        found: Floats = (cycles + np.where(of["dead"], self._clear, 0)) * ALMOST
        return found

    def _loads(self, t: Columns, of: Columns, taps: Floats) -> Loads:
        """What comes to L1 of tiles with so many ``taps``."""
        g, port = self.geometry, self.device.path("GM", "L1")
        n, chunks = self._mean_n(t), -(-g.planes_in // t["planes"])
        planes = g.planes_in / chunks
        parts = t["parts"] > 1
        seconds = np.where(parts, t["parts"], np.ceil(planes / np.maximum(1, t["w_planes"])))
        whole = of["tap_moves"]
        if self.rotated:  # place by place, or row by row of each output plane
            whole = np.minimum(whole, n / g.c0 * of["tap_rows"])
        every_n, every_m = self._every(t)
        return Loads(
            cores=t["cores"],
            items=t["items"],
            firsts=np.maximum(1, np.rint(self._mean_depth * of["reads"] * chunks)),
            seconds=seconds,
            first_start=self._moves(t, of, planes)[0] * port.startup_cycles,
            first_bytes=planes * of["pixels"] * of["images"] * 32,
            second_start=np.where(parts, n / g.c0, whole) * port.startup_cycles,
            second_bytes=planes * taps / seconds * g.c0 * n * self.dtype.bytes,
            first_every=every_n,
            second_every=every_m,
            rate=port.rate,
        )

    def _work(self, t: Columns) -> Work:
        g, device, element = self.geometry, self.device, self.dtype.bytes
        of = {name: column[t["cut"]] for name, column in self.of_cut.items()}
        n, taps = self._mean_n(t), self._busiest_taps(t, of)
        # In one round the core with the largest slab is the last; in several they even out.
        m = np.where(t["items"] <= t["cores"], of["most_m"], of["m"])
        chunks = -(-g.planes_in // t["planes"])
        planes = g.planes_in / chunks
        loads: Any = self._loads(t, of, taps)
        columns, seconds = planes * taps, loads.seconds
        largest = columns / planes * np.minimum(t["planes"], g.planes_in)
        steps = np.maximum(1, np.ceil(largest / seconds / t["k"] - 1e-6))
        # Of slabs with different numbers of taps each kind has a rest of its own, or none.
        kinds = self.kinds[0][t["cut"]].any(axis=1)
        size = np.where(kinds, largest / seconds / steps, t["k"])
        k, rest = uneven(columns / seconds, largest / seconds, size, steps)
        x_bytes, w_bytes, firsts = loads.first_bytes, loads.second_bytes, loads.firsts
        x_rows, out = self._moves(t, of, planes)[1], self._written
        w_rows = n / g.c0 * of["taps"] if self.rotated else columns / seconds
        reads = self._mean_depth * of["reads"] * chunks * t["items"]
        asked = (x_bytes / loads.first_every + seconds * w_bytes / loads.second_every) * reads
        requests = (x_rows / loads.first_every + seconds * w_rows / loads.second_every) * reads
        image = g.images * 32
        x_once = image * g.depth_in * g.all_in * g.h.size * g.w.size
        w_once = g.groups * g.kernel_d * g.planes_in * g.taps * g.planes_out * g.c0**2 * element
        touched, stored = x_once + w_once + out, out / costs.write_rate(device)
        launch = costs.launch_cycles(device, "cube", t["cores"])
        (drain, drains), size = self._drain(of, n), m * n * element
        pace = costs.drain_pace(device, of["lines"] * of["length"], n, element, of["lines"])
        pace = np.where(of["apart"] > 1, drain, pace)
        drain, pace = (costs.shared_drain(device, d, size, t["cores"]) for d in (drain, pace))
        pace = costs.evicting_pace(device, pace, size, t["cores"], touched)
        # Under the unit flag the next tile follows the last of several drains.
        before = drain - drain / drains
        way_out = device.pipes["FIX" if device.has_path("L0C", "GM") else "MTE3"].queue_depth
        step = self._step(t, of, (m, n, k * g.c0)) | {"run": steps}
        short = self._step(t, of, (m, n, rest * g.c0))
        step |= {"rest_l0": short["a"] + short["b"], "rest_m": short["m"]}
        turns = (steps - 1) * np.maximum(step["a"] + step["b"], step["m"])
        turns = firsts * seconds * (turns + np.maximum(step["rest_l0"], step["rest_m"]))
        unlike = self._unlike(t, drain, turns)
        return Work(
            **loads._asdict(),
            steps=steps,
            first_slots=t["l1_slots"],
            second_slots=t["weight_slots"],
            **step,
            drain=drain,
            pace=pace,
            stall=drain * np.maximum(0, 1 - way_out / drains),
            drain_slots=t["l0c_slots"],
            lag=np.where(t["unit_flag"] > 0, costs.unit_flag_lag(device) + before, -1.0),
            shared=costs.read_rate(device, asked, requests),
            main=device.main_read_rate,
            **self._lacking(t, x_bytes * firsts, w_bytes * seconds * firsts, (x_once, w_once)),
            least=np.maximum(stored, self._missing(x_once, w_once) / device.main_read_rate),
            beside=launch + unlike + np.where(of["dead"], self._clear, 0),
        )

    @property
    def _written(self) -> int:
        """Bytes of the result."""
        g = self.geometry
        return g.images * g.depth_out * g.all_out * g.h.out * g.w.out * g.c0 * self.dtype.bytes

    @cached_property
    def _clear(self) -> float:
        """Cycles of the kernel that clears the result."""
        return clear_cycles(self.device, self._written)

    @cached_property
    def _mean_depth(self) -> float:
        """Planes of the filter along the depth that reach an output, on average."""
        depths = [len(pairs) for pairs in self.geometry.live if pairs]
        return sum(depths) / max(1, len(depths))

    def _mean_n(self, t: Columns) -> Floats:
        """What the tiles of a core have of N on average."""
        rounds, g = -(-t["items"] // t["cores"]), self.geometry
        most = np.ceil(rounds * -(-g.planes_out * g.c0 // 16) / t["tiles_n"])
        return np.asarray(np.minimum(t["n"], most / rounds * 16), np.float64)

    def _moves(self, t: Columns, of: Columns, planes: Floats) -> tuple[Floats, Floats]:
        """Moves that bring so many planes of a read to L1, and rows in GM of all of them."""
        at_once = of["side_by_side"] & (t["planes"] <= MOST_BLOCKS)
        moves = np.where(at_once, 1, of["moves"] + planes * of["plane_moves"])
        return moves, np.where(at_once, 1, planes * of["pieces"]) * of["images"]

    def _every(self, t: Columns) -> tuple[IntArray, IntArray]:
        """After how many items of a core its input and its weights come anew.

        Under a form by phases each core has tiles of every phase, and each phase has weights and
        slabs of its own.
        """
        rounds, phases = -(-t["items"] // t["cores"]), self._phases[t["cut"]]
        run = np.where(phases > 1, np.maximum(1, t["items"] // phases // t["cores"]), t["items"])
        tiles_m = np.maximum(1, t["items"] // np.maximum(1, t["tiles_n"]))
        weights = np.minimum(tiles_m, run)
        # Some cores go on to other weights half-way, unless each has its own.
        astride = (t["tiles_n"] > 1) & (phases == 1) & (t["cores"] % t["tiles_n"] > 0)
        weights = np.where(astride, np.minimum(weights, np.maximum(2, rounds)), weights)
        every_n = np.where(t["resident_input"] > 0, np.minimum(t["tiles_n"], run), 1)
        return every_n, np.where(t["resident"] > 0, weights, 1)

    def _lacking(self, t: Columns, x: Floats, w: Floats, once: tuple[int, int]) -> Columns:
        """Of which items the L2 lacks the operands, and how many cores ask for them at once.

        ``x`` and ``w`` are the bytes of all loads for an item, ``once`` those of the operands.
        """
        rounds, tiles_n = -(-t["items"] // t["cores"]), np.minimum(t["tiles_n"], t["items"])
        phases, stays = self._phases[t["cut"]], t["resident"] + t["resident_input"] > 0
        slow = (t["resident"] > 0) & (tiles_n > 1)
        # Tiles of one slab follow each other on a core, or are those of several at a time.
        follow = ~slow & ((phases == 1) | stays)
        period = np.where(follow, np.minimum(tiles_n, rounds), 1)
        until = -(-rounds // phases)
        # Where N is slowest, cores at the same slabs of other columns read the same, if any are.
        until = np.where(slow, -(-until * np.gcd(t["cores"], tiles_n) // tiles_n), until)
        weights = np.where(slow, rounds, np.minimum(tiles_n * phases, rounds))
        loads = np.where(t["resident"] > 0, np.minimum(phases, rounds), weights)
        return {
            "first_period": period,
            "first_until": np.where(self.held[0], 0, until),
            "first_copies": np.maximum(1, t["cores"] * -(-until // period) * x / once[0]),
            "second_period": np.ones_like(weights),
            "second_until": np.where(self.held[1], 0, weights),
            "second_copies": np.maximum(1, t["cores"] * loads * w / once[1]),
        }

    def _missing(self, *once: float) -> float:
        """Bytes of the operands that the L2 does not hold."""
        return sum(size for size, held in zip(once, self.held, strict=True) if not held)

    @cached_property
    def _phases(self) -> IntArray:
        """Phases of the outputs that read anything, by cut: 1 where it is not cut by them."""
        axes = (self.geometry.h, self.geometry.w)
        count = prod(min(axis.insert, axis.kernel) for axis in axes)
        return np.array([1 if cut.form == "window" else count for cut in self.cuts], np.int64)

    def _busiest_taps(self, t: Columns, of: Columns) -> Floats:
        """Taps of the tiles of the core with the most, on average.

        Each core has as many of each kind of slab, the kind with most taps first, and what cannot
        be shared out evenly goes to the cores that have least so far.
        """
        if not self.kinds[0].any():
            return of["taps"]
        of_slab = t["items"] // of["slabs"]
        keys = np.stack([t["cut"], of_slab, t["cores"]]).astype(np.int64)
        (cut, tiles, cores), which = np.unique(keys, axis=1, return_inverse=True)
        slabs, taps = (column[cut] for column in self.kinds)
        place = np.arange(int(cores.max()))
        load = np.where(place < cores[:, None], 0.0, np.inf)
        for kind in range(slabs.shape[1]):
            each, over = np.divmod(slabs[:, kind] * tiles, cores)
            load = np.sort(load + (each * taps[:, kind])[:, None], axis=1)
            load += (place < over[:, None]) * taps[:, kind, None]
        busiest = np.where(np.isfinite(load), load, 0).max(axis=1)[which.reshape(-1)]
        mean = of["taps"] * t["items"] / t["cores"]
        most: Floats = np.maximum(busiest, mean) / -(-t["items"] // t["cores"])
        return np.where(self.kinds[0][t["cut"]].any(axis=1), most, of["taps"])

    def _unlike(self, t: Columns, drain: Floats, turns: Floats) -> Floats:
        """Cycles that a core takes longer because its tiles are of several kinds.

        Of some the products take longer than the ``drain``, of others they do not; ``turns`` are
        the cycles of the products of a tile, which grow with its taps.
        """
        slabs, taps = (column[t["cut"]] for column in self.kinds)
        share = slabs / np.maximum(1, slabs.sum(axis=1))[:, None]
        scale = taps / np.maximum(1, (share * taps).sum(axis=1))[:, None]
        each = (share * np.maximum(drain[:, None], turns[:, None] * scale)).sum(axis=1)
        rounds = -(-t["items"] // t["cores"])
        return np.where(slabs.any(axis=1), rounds * (each - np.maximum(drain, turns)), 0)

    def _step(self, t: Columns, of: Columns, size: tuple[Floats, ...]) -> dict[str, Floats]:
        """Cycles of the loads to L0 and the product of one step."""
        (m, n, k), device, g = size, self.device, self.geometry
        element, path = self.dtype.bytes, device.path("L1", "L0A", "load3d")
        turned = self.rotated and element == 2
        into_b = device.path("L1", "L0B", "transpose" if turned else "")
        # Transposed weights come column by column, others at once.
        moves = k / g.c0 if self.rotated else np.ceil(k / g.c0 * n / 16 / 255)
        a = np.maximum(m * k * element / path.rate, k / g.c0 * of["fetch"])
        a = a + np.where(t["l1_slots"] > 1, m * k * element / 512 * float(path.conflict_cycles), 0)
        clash = n * k * element / 512 * float(into_b.conflict_cycles)
        b = moves * into_b.startup_cycles + n * k * element / into_b.rate
        cube, queues, wide = device.cube, device.pipes, round_up(np.ceil(n).astype(np.int64), 16)
        ahead = np.maximum(1, queues["MTE1"].queue_depth // (1 + moves))
        return {
            "a": a + path.startup_cycles,
            "b": b + np.where(t["weight_slots"] > 1, clash, 0),
            "m": costs.mmad_cycles(device, m, k, wide, self.rate) * n / wide,
            "a_head": path.idle_head_cycles,
            "m_head": cube.idle_head_cycles if cube else 0,
            "issue": path.issue_cycles + moves * into_b.issue_cycles + 1,
            "ahead": np.minimum(queues["M"].queue_depth, ahead),
        }

    def _drain(self, of: Columns, n: Any) -> tuple[Floats, Floats]:
        """Cycles in which a tile leaves the core, and in how many moves."""
        lines, length, size = of["lines"], of["length"], self.dtype.bytes
        together: Floats = costs.drain_cycles(self.device, lines * length, n, size, lines)
        if not (of["apart"] > 1).any():
            return together, lines
        g = self.geometry
        block, apart = g.c0 * size, of["apart"]
        halves = g.c0 == 8 and g.planes_out > 1
        spread, moves = costs.scatter_cycles(
            *(self.device, length, n, block, apart, lines, g.h.out * g.w.out), halves=halves
        )
        return np.where(apart > 1, spread, together), np.where(apart > 1, moves, lines)
