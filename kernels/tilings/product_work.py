"""What the cores do under tilings of a product with img2col: the columns that estimates need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.base.dtypes import DType
from npusim.base.integers import IntArray, round_up
from npusim.device.spec import Device
from npusim.kernels.parts.implicit_gemm_shape import Geometry
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.kernels.tilings import costs
from npusim.kernels.tilings.fit import cube_sizes, most_rows
from npusim.kernels.tilings.pipeline import Floats, Leg, Loads, Work, no_legs, uneven
from npusim.kernels.tilings.product_cuts import Cut, Kind, cuts_of
from npusim.kernels.tilings.streams import clear_cycles

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Product:
    """A product on one device, and what is asked of candidates with such and such columns."""

    geometry: Geometry
    device: Device
    cores: int
    dtype: DType
    rate: str
    rotated: bool
    forms: tuple[str, ...]
    held: tuple[bool, ...]  # whether the L2 holds the first operand, and the second

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
    def kinds(self) -> Columns:
        """Of each cut the kinds of its slabs, the most taps first; 0 slabs where it has no more."""
        most = max((len(cut.kinds) for cut in self.cuts), default=0)
        table = np.zeros((len(self.cuts), most, len(Kind._fields)))
        for i, cut in enumerate(self.cuts):
            table[i, : len(cut.kinds)] = np.array(cut.kinds).reshape(-1, len(Kind._fields))
        return dict(zip(Kind._fields, np.moveaxis(table, 2, 0), strict=True))

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
        some = n / g.c0 * np.ceil(of["tap_rows"] / t["parts"])  # a move for each row of taps
        every_n, every_m = self._every(t)
        return Loads(
            cores=t["cores"],
            items=t["items"],
            firsts=np.maximum(1, np.rint(self._mean_depth * of["reads"] * chunks)),
            seconds=seconds,
            first_start=self._moves(t, of, planes)[0] * port.startup_cycles,
            first_bytes=planes * of["pixels"] * of["images"] * 32,
            second_start=np.where(parts, some, whole) * port.startup_cycles,
            second_bytes=planes * taps / seconds * g.c0 * n * self.dtype.bytes,
            first_every=every_n,
            second_every=every_m,
            rate=port.rate,
        )

    def _work(self, t: Columns) -> Work:
        g, device, element = self.geometry, self.device, self.dtype.bytes
        of = {name: column[t["cut"]] for name, column in self.of_cut.items()}
        tiles, alike = self._busiest(t)
        n, taps = self._mean_n(t), self._busiest_taps(t, of, tiles)
        # In one round the core with the largest slab is the last; in several they even out.
        m = np.where(t["items"] <= t["cores"], of["most_m"], of["m"])
        chunks = -(-g.planes_in // t["planes"])
        planes = g.planes_in / chunks
        loads: Any = self._loads(t, of, taps)
        columns, seconds = planes * taps, loads.seconds
        largest = columns / planes * np.minimum(t["planes"], g.planes_in)
        steps = np.maximum(1, np.ceil(largest / seconds / t["k"] - 1e-6))
        k, rest = uneven(columns / seconds, largest / seconds, t["k"], steps)
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
        missing = self._missing(x_once * self._fetched(t, x_once), w_once)
        launch = costs.launch_cycles(device, "cube", t["cores"])
        (drain, drains), size = self._drain(of, n), m * n * element
        pace = costs.drain_pace(device, of["lines"] * of["length"], n, element, of["lines"])
        pace = np.where(of["apart"] > 1, drain, pace)
        drain, pace = (costs.shared_drain(device, d, size, t["cores"]) for d in (drain, pace))
        pace = costs.evicting_pace(device, pace, size, t["cores"], touched)
        # Under the unit flag the next tile follows the last of several drains.
        before = drain - drain / drains
        way_out = device.pipe(costs.way_out(device).pipe).queue_depth
        step = self._step(t, of, (m, n, k * g.c0)) | {"run": steps, "step_slots": t["l0_slots"]}
        short = self._step(t, of, (m, n, rest * g.c0))
        step |= {"rest_l0": short["a"] + short["b"], "rest_m": short["m"]}
        return Work(
            **loads._asdict(),
            alike=alike,
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
            least=np.maximum(stored, missing / device.main_read_rate),
            beside=launch + np.where(of["dead"], self._clear, 0),
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
        """What the tiles of the core with most of N have of it on average."""
        rounds, g = -(-t["items"] // t["cores"]), self.geometry
        # Tiles of one core are of all columns, or where N is slowest of some that are neighbours.
        tiles = np.where(self._slow(t), -(-rounds * t["tiles_n"] // t["items"]), rounds)
        most = np.ceil(tiles * -(-g.planes_out * g.c0 // 16) / t["tiles_n"])
        return np.asarray(np.minimum(t["n"], most / tiles * 16), np.float64)

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
        weights = np.minimum(np.maximum(1, tiles_m // phases), run)
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
        slow = self._slow(t)
        # Tiles of one slab follow each other on a core, or are those of several at a time.
        follow = ~slow & ((phases == 1) | stays)
        period = np.where(follow, np.minimum(tiles_n, rounds), 1)
        passes = self._passes(t)
        times = self._fetched(t, once[0])
        until = -(-rounds // passes) * times
        asked = -(-until // period) / times
        weights = np.where(slow, rounds, np.minimum(tiles_n * phases, rounds))
        loads = np.where(t["resident"] > 0, np.minimum(phases, rounds), weights)
        return {
            "first_period": period,
            "first_until": np.where(self.held[0], 0, until),
            "first_copies": np.maximum(1, t["cores"] * asked * x / once[0]),
            "second_period": np.ones_like(weights),
            "second_until": np.where(self.held[1], 0, weights),
            "second_copies": np.maximum(1, t["cores"] * loads * w / once[1]),
        }

    def _passes(self, t: Columns) -> IntArray:
        """How often the cores go over the input: for each phase, and for columns that are slowest.

        Cores at the same slabs of other columns read the same, if any are.
        """
        tiles_n = np.minimum(t["tiles_n"], t["items"])
        times = np.where(self._slow(t), tiles_n // np.gcd(t["cores"], tiles_n), 1)
        return self._phases[t["cut"]] * times

    def _slow(self, t: Columns) -> npt.NDArray[np.bool_]:
        """Whether cores go through all slabs for some columns before the next columns."""
        return (t["resident"] > 0) & (t["tiles_n"] > 1)

    def _fetched(self, t: Columns, once: int) -> IntArray:
        """How often the input of ``once`` bytes comes from main memory: with each of the passes
        over it where the L2 has lost it when the next one comes."""
        l2, passes = self.device.l2, self._passes(t)
        size = l2.size_bytes if l2 is not None else 0
        return np.where(once + self._written / passes > size, passes, 1)

    def _missing(self, *once: Any) -> Any:
        """Bytes of the operands that the L2 does not hold."""
        return sum(size for size, held in zip(once, self.held, strict=True) if not held)

    @cached_property
    def _phases(self) -> IntArray:
        """Phases of the outputs that read anything, by cut: 1 where it is not cut by them."""
        axes = (self.geometry.h, self.geometry.w)
        count = prod(min(axis.insert, axis.kernel) for axis in axes)
        return np.array([1 if cut.form == "window" else count for cut in self.cuts], np.int64)

    def _busiest(self, t: Columns) -> tuple[Floats, Floats]:
        """Of each kind the tiles of the core with most products, and the share of cores like it;
        no tiles where all slabs are alike.

        Each core has as many of each kind of slab, the kind with most taps first, and what cannot
        be shared out evenly goes to the cores that have least so far. Parts with as many taps are
        one kind, unless operands stay.
        """
        if not self.kinds["slabs"][t["cut"]].any():
            return np.zeros((len(t["cut"]), self.kinds["slabs"].shape[1])), np.ones(len(t["cut"]))
        of_slab = t["items"] // self.of_cut["slabs"][t["cut"]]
        stays = t["resident"] + t["resident_input"] > 0
        keys = np.stack([t["cut"], of_slab, t["cores"], stays]).astype(np.int64)
        (cut, tiles, cores, stays), which = np.unique(keys, axis=1, return_inverse=True)
        slabs, taps = self.kinds["slabs"][cut], self.kinds["taps"][cut]
        for kind in range(slabs.shape[1] - 1, 0, -1):
            alike = (stays == 0) & (taps[:, kind] == taps[:, kind - 1])
            slabs[:, kind - 1] += np.where(alike, slabs[:, kind], 0)
            slabs[:, kind] = np.where(alike, 0, slabs[:, kind])
        place = np.arange(int(cores.max(initial=1)))
        load = np.where(place < cores[:, None], 0.0, np.inf)
        counts = np.zeros((*load.shape, slabs.shape[1]))
        for kind in range(slabs.shape[1]):
            each, over = np.divmod(slabs[:, kind] * tiles, cores)
            turn = np.argsort(np.argsort(load, axis=1, kind="stable"), axis=1)
            counts[:, :, kind] = each[:, None] + (turn < over[:, None])
            load += counts[:, :, kind] * taps[:, kind, None]
        busiest = np.argmax(np.where(np.isfinite(load), load, -1.0), axis=1)
        found = counts[np.arange(len(cut)), busiest]
        like = (counts == found[:, None]).all(axis=2) & np.isfinite(load)
        return found[which.reshape(-1)], (like.sum(axis=1) / cores)[which.reshape(-1)]

    def _busiest_taps(self, t: Columns, of: Columns, tiles: Floats) -> Floats:
        """Taps of the ``tiles`` of the core with the most, on average."""
        busiest = (tiles * self.kinds["taps"][t["cut"]]).sum(axis=1)
        mean = of["taps"] * t["items"] / t["cores"]
        most: Floats = np.maximum(busiest, mean) / -(-t["items"] // t["cores"])
        return np.where(tiles.any(axis=1), most, of["taps"])

    def _legs(self, t: Columns) -> Floats:
        """Tiles of each kind of slab on the busiest core, in their order."""
        kinds = {name: column[t["cut"]] for name, column in self.kinds.items()}
        if not kinds["slabs"].any():
            return no_legs(*kinds["slabs"].shape)
        items, taps, place = self._busiest(t)[0], np.maximum(1, kinds["taps"]), kinds["place"]
        t = {name: column[:, None] for name, column in t.items()}
        of = {name: column[t["cut"]] for name, column in self.of_cut.items()}
        g, n, held = self.geometry, self._mean_n(t), t["columns"]
        m = np.where(t["items"] <= t["cores"], of["most_m"], of["m"])
        chunks, most = -(-g.planes_in // t["planes"]), np.minimum(t["planes"], g.planes_in)
        planes = g.planes_in / chunks
        # Weights come for several loads of the input, for some planes of one, or part of a plane.
        several = held >= np.minimum(g.planes_in * taps, 2 * most * taps)
        loads = np.ceil(chunks / np.maximum(1, held // (most * taps)))
        some = np.where(
            held >= taps, np.ceil(planes / np.maximum(1, held // taps)), planes * -(-taps // held)
        )
        seconds = np.where(several, 1, some)
        steps = np.maximum(1, np.ceil(most * taps / seconds / t["k"] - 1e-6))
        k, rest = uneven(planes * taps / seconds, most * taps / seconds, t["k"], steps)
        full, short = (self._step(t, of, (m, n, size * g.c0)) for size in (k, rest))
        moves = np.where(taps < g.taps, taps, 1.0)
        if self.rotated:
            moves = np.minimum(moves, n / g.c0 * of["tap_rows"])
        of_part = n / g.c0 * np.ceil(of["tap_rows"] / -(-taps // held))
        start = np.where(held < taps, of_part, moves) * np.where(several, loads / chunks, 1)
        leg = Leg(
            items=items,
            seconds=seconds,
            second_start=start * self.device.path("GM", "L1").startup_cycles,
            second_bytes=planes * taps / seconds * g.c0 * n * self.dtype.bytes,
            steps=steps,
            run=steps,
            l0=full["a"] + full["b"],
            m=full["m"],
            rest_l0=short["a"] + short["b"],
            rest_m=short["m"],
        )
        legs = np.stack(np.broadcast_arrays(*leg), axis=2)
        order = np.argsort(place, axis=1, kind="stable")
        return np.ascontiguousarray(np.take_along_axis(legs, order[:, :, None], axis=1))

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
        cube, wide = device.cube, round_up(np.ceil(n).astype(np.int64), 16)
        ahead = np.maximum(1, device.pipe(into_b.pipe).queue_depth // (1 + moves))
        return {
            "a": a + path.startup_cycles,
            "b": b + np.where(t["weight_slots"] > 1, clash, 0),
            "m": costs.mmad_cycles(device, m, k, wide, self.rate) * n / wide,
            "a_head": path.idle_head_cycles,
            "m_head": cube.idle_head_cycles if cube else 0,
            "issue": path.issue_cycles + moves * into_b.issue_cycles + 1,
            "ahead": np.minimum(device.pipe("M").queue_depth, ahead),
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
